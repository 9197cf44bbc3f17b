"""What all processes of a run must agree on before its first step.

Guarantees: every rank was told the same about the run, starts from the same weights with the same optimizer, and reads
the same records under the same numbers, as far as a few of them show; every rank's batches, and the noise of each that
draws some, come from a stream of its own. Of a generator's state only a digest under a common salt leaves its process.
"""

from __future__ import annotations

import hashlib
import json
import random
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from dpmerge.errors import RecordingError
from dpmerge.training.process_group import ProcessGroup

RECORDS_COMPARED = 8


def agree_on_start(
    group: ProcessGroup, facts: Mapping[str, Any], *, generators: Sequence[torch.Generator], dataset: Any, records: int
) -> int:
    """Compare what each rank says of the run; return a number that all know and nobody could choose."""
    said = {name: json.dumps(fact, sort_keys=True, default=_plain) for name, fact in facts.items()}
    told = [json.loads(each) for each in group.gather_texts(json.dumps({"salt": secrets.token_hex(16), "said": said}))]
    for name in dict.fromkeys(name for each in told for name in each["said"]):
        heard = [each["said"].get(name, "nothing") for each in told]
        other = next((rank for rank, fact in enumerate(heard) if fact != heard[0]), None)
        if other is not None:
            raise RecordingError(
                f"{name}: {_short(heard[0])} on rank 0 and {_short(heard[other])} on rank {other}; make model, "
                "optimizer, loader and record() alike on every rank"
            )
    salt = hashlib.sha256("".join(each["salt"] for each in told).encode()).digest()
    _compare_streams(group, salt, generators)
    _compare_records(group, salt, dataset, records)
    return int.from_bytes(salt[:16], "little")


def _compare_streams(group: ProcessGroup, salt: bytes, generators: Sequence[torch.Generator]) -> None:
    """Ranks whose generators are alike draw the same positions of their shares: then nothing is amplified."""
    streams = [hashlib.sha256(salt + each.get_state().numpy().tobytes()).hexdigest() for each in generators]
    heard = [stream for each in group.gather_texts(json.dumps(streams)) for stream in json.loads(each)]
    if len(set(heard)) < len(heard):
        raise RecordingError(
            "record: two ranks draw from the same stream of random numbers, so their batches, or their noise, "
            "are no independent ones; begin the record in each process after it was started, from the operating "
            "system's entropy"
        )


def _compare_records(group: ProcessGroup, salt: bytes, dataset: Any, records: int) -> None:
    """Record 5 must be the same on all ranks, or shares by number say nothing."""
    chosen = np.random.Generator(np.random.Philox(int.from_bytes(salt[16:], "little")))
    places = [int(place) for place in chosen.integers(records, size=RECORDS_COMPARED)]
    heard = [json.loads(each) for each in group.gather_texts(json.dumps([_read(dataset, salt, p) for p in places]))]
    for place, digests in zip(places, zip(*heard, strict=True), strict=True):
        # What is not read alike twice (augmentation), or is no data, cannot be compared.
        if None not in digests and len(set(digests)) > 1:
            raise RecordingError(
                f"data_loader: record {place} is not the same on all ranks, so a record may be on two of them; load "
                "the same records in the same order on every rank (Opacus' sampler deals them out)"
            )


def _read(dataset: Any, salt: bytes, place: int) -> str | None:
    """A digest of one record; None if it is another one each time, or holds something else than data."""
    with _same_random_numbers():
        first = _digest(dataset[place], salt)
        return first if first == _digest(dataset[place], salt) else None


def _digest(record: Any, salt: bytes) -> str | None:
    found = hashlib.sha256(salt)
    for leaf in tree_leaves(record):
        if isinstance(leaf, Tensor):
            found.update(leaf.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        elif isinstance(leaf, np.ndarray | np.generic):
            found.update(np.asarray(leaf).tobytes())
        elif isinstance(leaf, bool | int | float | str | bytes):
            found.update(repr(leaf).encode())
        elif leaf is not None:
            return None
    return found.hexdigest()


@contextmanager
def _same_random_numbers() -> Iterator[None]:
    """The loop's random numbers go on afterwards where they were."""
    state = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(state[0])
        np.random.set_state(state[1])
        torch.set_rng_state(state[2])


def _plain(fact: Any) -> Any:
    return fact.model_dump(mode="json") if hasattr(fact, "model_dump") else str(fact)


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:40]}… ({hashlib.sha256(text.encode()).hexdigest()[:8]})"
