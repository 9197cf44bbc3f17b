"""Where a run's randomness comes from.

Guarantees: unless told a seed, the generators of noise and of Poisson batches start from the operating system's
entropy, all of it: torch keeps only 32 bits of a seed for the CPU, so its whole state is drawn instead.
Says, once in a process, that torch's generators are not cryptographic.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import zlib
from dataclasses import dataclass

import numpy as np
import torch

from dpmerge.accounting import validation
from dpmerge.errors import RecordingError
from dpmerge.portfolio.manifest import NoiseRecord
from dpmerge.training.user_warnings import InsecureNoiseWarning, warn_user

_STATE_BYTES = 5056
_WORDS = slice(24, 24 + 8 * 624)
"""Where the 624 words of the Mersenne twister stand in the state torch hands out, each in eight bytes."""

LARGEST_SEED = 2**32 - 1
"""torch uses 32 bits of a CPU seed: two seeds that differ by 2³² give the same noise."""


@dataclass(frozen=True)
class RunGenerators:
    """The generators of a run, and what the manifest says about them."""

    noise: torch.Generator
    batches: torch.Generator
    record: NoiseRecord


class NoiseStreamCheck:
    """Refuses noise that is not one stream: a generator that was swapped, set back, or shared with a fork."""

    def __init__(self, generator: torch.Generator, *, drawn: bool = True) -> None:
        self._generator, self._process = generator, os.getpid()
        self._drawn = drawn  # of several processes one draws the noise
        self._state = self._fingerprint()

    def require_undisturbed(self, generator: torch.Generator) -> None:
        """Before noise is drawn: the generator is the one that was given, in the state in which it was left."""
        if generator is not self._generator:
            raise RecordingError(
                "optimizer.generator: replaced in the course of the run, so the manifest would name another one; leave "
                "the generator that record() gave the optimizer"
            )
        if os.getpid() != self._process:
            raise RecordingError(
                "record: this process was forked off the one that records, so it would draw the same noise; train in "
                "one of the two, or begin a record in each after the fork"
            )
        if self._fingerprint() != self._state:
            raise RecordingError(
                "optimizer.generator: used or set back by something else, so its noise would not be fresh; draw other "
                "random numbers from a generator of their own"
            )

    def used(self, generator: torch.Generator) -> None:
        """Noise was drawn."""
        if generator is self._generator and self._drawn:
            self._state = self._fingerprint()

    def _fingerprint(self) -> int:
        return zlib.crc32(self._generator.get_state().numpy().data)


def run_generators(device: torch.device, seed: int | None, *, rank: int = 0) -> RunGenerators:
    """Generators for the noise (on the parameters' device) and for Poisson batches (on the CPU)."""
    stream = secrets.token_hex(16)
    if seed is not None:
        validation.integer("noise_seed", seed, least=0, most=LARGEST_SEED)
        record = NoiseRecord(source="seeded", generator=_name(device), secure_rng=False, stream=stream, seed=int(seed))
        label = f"batches {seed}" + (f" on rank {rank}" if rank else "")
        noise = _seeded(device, seed) if rank == 0 else _seeded(device, _derived(f"noise {seed} on rank {rank}"))
        return RunGenerators(noise, _seeded(torch.device("cpu"), _derived(label)), record)
    record = NoiseRecord(source="os_entropy", generator=_name(device), secure_rng=False, stream=stream)
    return RunGenerators(from_os_entropy(device), from_os_entropy(torch.device("cpu")), record)


def from_os_entropy(device: torch.device) -> torch.Generator:
    """A generator nobody can reproduce."""
    generator = _seeded(device, secrets.randbits(63))
    state = generator.get_state()
    if device.type == "cpu" and state.numel() == _STATE_BYTES:
        words = np.frombuffer(secrets.token_bytes(4 * 624), dtype=np.uint32).astype(np.uint64)
        content = state.numpy().copy()
        content[_WORDS] = words.view(np.uint8)
        generator.set_state(torch.from_numpy(content))
    return generator


def warn_insecure_noise(_already: list[bool] = []) -> None:  # noqa: B006
    """Warn the first time only: it is true of every run of the process."""
    if not _already:
        _already.append(True)
        warn_user(
            "torch's noise generators are not cryptographic: who sees enough noise can predict the rest. The manifest "
            "says secure_rng: false. Opacus' secure_mode needs torchcsprng.",
            InsecureNoiseWarning,
        )


def _derived(label: str) -> int:
    return int.from_bytes(hashlib.sha256(label.encode()).digest()[:4], "little")


def _seeded(device: torch.device, seed: int) -> torch.Generator:
    generator = torch.Generator(device=device)
    generator.manual_seed(seed)
    return generator


def _name(device: torch.device) -> str:
    return "torch mt19937" if device.type == "cpu" else f"torch philox ({device.type})"
