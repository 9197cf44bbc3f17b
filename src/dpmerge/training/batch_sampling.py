"""How a loader draws its batches: read from its sampler, and the same from the first step to the last.

Guarantees: Poisson only where Opacus' sampler draws from the whole data set, full batch only where every record is in
every batch; Poisson's generator is where the last draw left it, and its rate is as torch's random numbers make it. An
order is called secret only while torch's own sampler shuffles all records by the generator that it was given here.
Refuses: samplers that may draw a record twice, a rate or a generator that is changed in the course of the run, draws
that somebody could predict.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from opacus.utils.batch_memory_manager import BatchSplittingSampler
from opacus.utils.uniform_sampler import DistributedUniformWithReplacementSampler, UniformWithReplacementSampler
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler

from dpmerge.accounting.training_settings import Sampling
from dpmerge.errors import RecordingError
from dpmerge.training.distributed_sampling import draws, require_shared

OBSERVED = "_dpmerge_observed"
"""The mark of a sampler whose draws are being recorded."""
_RANDOM_BITS = 2**24
"""torch.rand in single precision is a multiple of 2⁻²⁴, so it is below q a little more often than q says."""


def batch_sampler_of(loader: DataLoader[Any]) -> Any:
    """What draws a loader's logical batches, below whatever splits them into physical ones."""
    sampler = getattr(loader, "batch_sampler", None)
    while isinstance(sampler, BatchSplittingSampler):
        sampler = sampler.sampler
    return sampler


def drawing_of(sampler: Any) -> Callable[[Any], Iterator[Any]]:
    """How a sampler draws the batches of a pass: as its class does, but for one that drops empty batches."""
    drops = type(sampler) is DistributedUniformWithReplacementSampler
    return draws if drops else type(sampler).__iter__


def sampling_of(sampler: Any, records: int, processes: tuple[int, int] | None) -> tuple[Sampling, int | None]:
    """How batches are drawn from so many records, and of shuffled ones how many an epoch has."""
    if hasattr(sampler, OBSERVED):
        raise RecordingError(
            "data_loader: this loader is being recorded already; leave the first record() block before the next begins"
        )
    if processes is not None:
        require_shared(sampler, records, rank=processes[0], world=processes[1])
        return (Sampling.FULL_BATCH if sampler.sample_rate >= 1 else Sampling.POISSON), None
    if type(sampler) is UniformWithReplacementSampler and sampler.num_samples == records:
        return (Sampling.FULL_BATCH if sampler.sample_rate >= 1 else Sampling.POISSON), None
    inner: Any = sampler.sampler if type(sampler) is BatchSampler else None
    once = type(inner) is SequentialSampler or (type(inner) is RandomSampler and not inner.replacement)
    if inner is not None and once and len(inner) <= records:
        if sampler.batch_size >= records and len(inner) == records and len(sampler) == 1:
            return Sampling.FULL_BATCH, None
        return Sampling.SHUFFLED, len(sampler)
    described = type(sampler).__name__ + (f" over {type(inner).__name__}" if inner is not None else "")
    raise RecordingError(
        f"data_loader: batches drawn by {described}; recorded are Opacus' Poisson batches (make_private), and torch's "
        "own batches in order or shuffled without replacement"
    )


class SamplerCheck:
    """The sampler of a run, and what must not change about it."""

    def __init__(self, sampler: Any, records: int, processes: tuple[int, int] | None = None) -> None:
        self._sampler = sampler
        self.sampling, self.batches_per_epoch = sampling_of(sampler, records, processes)
        self._rate = float(sampler.sample_rate) if self.sampling is Sampling.POISSON else 1.0
        self._generator: torch.Generator | None = getattr(sampler, "generator", None)
        self._state: int | None = None
        self._records = records
        self._secret = False
        self._shuffles: RandomSampler | None = None  # all records, by a generator nobody knows

    @cached_property
    def rate(self) -> float:
        """The probability with which a record is in a batch: Poisson's, as torch's random numbers make it, or 1."""
        if self.sampling is not Sampling.POISSON:
            return 1.0
        compared = max(self._rate, float(np.float32(self._rate)))
        return min(1.0, math.ceil(compared * _RANDOM_BITS) / _RANDOM_BITS)

    def use(self, generator: torch.Generator | None) -> torch.Generator | None:
        """Draw Poisson batches from this generator (amplification needs batches nobody can predict); return the old."""
        if self.sampling is not Sampling.POISSON:
            return None
        before, self._generator, self._sampler.generator = self._sampler.generator, generator, generator
        self.drew()
        return before  # type: ignore[no-any-return]

    def shuffle_by(self, generator: torch.Generator) -> Callable[[], None]:
        """Shuffle by this generator from now on, where torch's own sampler shuffles all records; what puts it back."""
        inner = getattr(self._sampler, "sampler", None)
        if self.sampling is not Sampling.SHUFFLED or type(inner) is not RandomSampler or len(inner) != self._records:
            return lambda: None
        before, self._generator, inner.generator = inner.generator, generator, generator
        self._secret, self._shuffles = True, inner
        self.drew()
        return partial(setattr, inner, "generator", before)

    @property
    def secret_batch_size(self) -> int | None:
        """The size of a batch of shuffled records whose order nobody knows; None where somebody may."""
        return int(self._sampler.batch_size) if self._secret else None

    def drew(self) -> None:
        """The sampler has drawn: from here the generator goes on."""
        if self._generator is not None and (self.sampling is Sampling.POISSON or self._secret):
            self._state = zlib.crc32(self._generator.get_state().numpy().data)

    def require_unpredicted(self) -> None:
        """Refuse draws that somebody could predict: the generator was set back, or to a state that is known."""
        before = self._state
        self.drew()
        undisturbed = before is None or self._state == before
        if self._secret:  # a known order has a cost as well: it is only no longer secret
            self._secret = undisturbed and self._shuffles_alone
        elif not undisturbed:
            raise RecordingError(
                "data_loader: the generator of the sampler was seeded, or used by something else, in the course of the "
                "run; batches that can be predicted are not Poisson's: leave it alone"
            )

    @property
    def _shuffles_alone(self) -> bool:
        """Whether what shuffles is what it was when it got its generator."""
        inner = self._shuffles
        return (
            inner is not None
            and self._sampler.sampler is inner
            and type(inner) is RandomSampler
            and inner.generator is self._generator
            and len(inner) == self._records
            and not inner.replacement
        )

    def require_unchanged(self) -> None:
        """Refuse, when a step is taken, another rate or generator than at the start."""
        self._secret = self._secret and self._shuffles_alone
        if self.sampling is Sampling.POISSON and (
            float(self._sampler.sample_rate) != self._rate or self._sampler.generator is not self._generator
        ):
            raise RecordingError(
                "data_loader: the sampler's rate or generator was changed in the course of the run; make a new loader "
                "and record a new run, which names this one as its parent"
            )
