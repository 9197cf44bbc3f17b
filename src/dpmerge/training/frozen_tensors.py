"""Tensors that nobody trains: the base of an adapter, buffers. What changes in them without noise is a release.

Guarantees: they are hashed whole when a record begins and when it is closed, and at each checkpoint as well if they are
small or saved with it. A large base that is not saved is looked at, at each checkpoint, in some thousand values of each
tensor, at places drawn by the operating system that nobody knows: if one value in a hundred has changed, in any way,
that is missed with a chance below 10⁻¹⁷ (of 4,096 values). A change of a few values may be missed until the close; the
checkpoints kept since the last whole hash then lose their claim.
Refuses: tensors that changed (`RecordingError`).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from dpmerge.errors import RecordingError
from dpmerge.training.noise_generators import from_os_entropy
from dpmerge.training.sharded_models import whole

WHOLE_UP_TO = 64 * 2**20
"""Bytes: so much is hashed within the time that saving an adapter takes anyway."""
VALUES_OF_EACH, VALUES_IN_ALL, FEWEST_OF_EACH = 4096, 2**21, 1024
"""How many values are looked at: of each tensor, of all, and of each of very many."""


class FrozenTensors:
    """The tensors of a model that must stay as they were, by name."""

    def __init__(self, state: Mapping[str, Tensor], digests: Mapping[str, str]) -> None:
        self._digests = dict(digests)
        self.small = sum(state[name].nbytes for name in digests) <= WHOLE_UP_TO
        most = max(FEWEST_OF_EACH, min(VALUES_OF_EACH, VALUES_IN_ALL // max(1, len(digests))))
        generator = from_os_entropy(torch.device("cpu"))
        self._places = {} if self.small else {n: _places(state[n], most, generator) for n in digests}
        self._values = {name: _bits(state[name], places) for name, places in self._places.items()}

    def require_same(self, state: Mapping[str, Tensor]) -> None:
        """All of them, bit by bit."""
        for name, digest in tensor_digests(state, self._digests).items():
            if digest != self._digests[name]:
                raise changed(name)

    def require_same_sample(self, state: Mapping[str, Tensor]) -> None:
        """The values that are looked at, bit by bit."""
        for name, places in self._places.items():
            if not torch.equal(_bits(state[name], places), self._values[name]):
                raise changed(name)


def tensor_digests(state: Mapping[str, Tensor], names: Iterable[str]) -> dict[str, str]:
    """The SHA-256 of each tensor's bytes, on all processors; a tensor of several names is hashed once."""
    if any(isinstance(value, DTensor) for value in state.values()):
        # Gathered one by one, by all processes in the same order.
        return {name: _digest(whole(state[name])) for name in names}
    asked = {name: _identity(state[name]) for name in names}
    once = {identity: state[name] for name, identity in asked.items()}
    largest_first = sorted(once, key=lambda identity: -once[identity].nbytes)
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        found = dict(zip(largest_first, threads.map(lambda each: _digest(once[each]), largest_first), strict=True))
    return {name: found[identity] for name, identity in asked.items()}


def changed(name: str) -> RecordingError:
    return RecordingError(
        f"model.{name}: changed in training although the private optimizer does not train it, so private data may have "
        "flowed into it without noise; freeze it, or train it with the same optimizer"
    )


def _places(value: Tensor, most: int, generator: torch.Generator) -> Tensor | None:
    """Where a tensor is looked at; all of it if it is short."""
    count = value.numel()
    if count <= most:
        return None
    return torch.randint(count, (most,), generator=generator).sort().values.to(value.device)


def _bits(value: Tensor, places: Tensor | None) -> Tensor:
    """Bytes, so that NaN is the same as NaN, and 0 is not −0."""
    chosen = value.detach().reshape(-1) if places is None else value.detach().take(places.to(value.device))
    return chosen.to("cpu", copy=True).contiguous().view(torch.uint8)


def _identity(value: Tensor) -> tuple[object, ...]:
    return value.data_ptr(), value.device, value.dtype, tuple(value.shape), value.stride()


def _digest(value: Tensor) -> str:
    return hashlib.sha256(_bytes(value).data).hexdigest()


def _bytes(value: Tensor) -> npt.NDArray[np.uint8]:
    flat = value.detach().to("cpu").contiguous().reshape(-1)
    return np.asarray(flat.view(torch.uint8).numpy())
