"""How batches are really drawn, seen from the loader while it is used.

Guarantees: what is recorded is what happened: Poisson only where Opacus' sampler drew the batches, full batch only
where every record is in every batch, and epochs that were cut short are not accounted as whole ones. A logical step
is made of exactly one draw.
Refuses: samplers that may draw a record twice, logical steps glued together from several draws.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Any

import torch
from opacus.optimizers import DPOptimizer
from opacus.utils.batch_memory_manager import BatchSplittingSampler
from opacus.utils.uniform_sampler import UniformWithReplacementSampler
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler

from dpmerge.errors import CannotRecord
from dpmerge.privacy.mechanisms import Sampling


class Batches:
    """The batches of one loader, watched from `__enter__` to `__exit__`."""

    def __init__(self, loader: DataLoader[Any], optimizer: DPOptimizer) -> None:
        self._optimizer = optimizer
        self._sampler = _sampler(loader)
        self.records = len(loader.dataset)  # type: ignore[arg-type]
        self.sampling, self._per_epoch = _kind(self._sampler, self.records)
        self._whole_epochs = True
        self._unfinished = False
        self._draws = 0
        self._steps = 0

    @property
    def sampling_rate(self) -> float:
        """The rate of the next step: Poisson's, or 1."""
        return float(self._sampler.sample_rate) if self.sampling is Sampling.POISSON else 1.0

    @property
    def steps_per_epoch(self) -> int | None:
        """For shuffled batches, after how many steps a record may come again; 1 once an epoch was cut short."""
        if self.sampling is not Sampling.SHUFFLED:
            return None
        return self._per_epoch if self._whole_epochs else 1

    def use(self, generator: torch.Generator | None) -> torch.Generator | None:
        """Draw Poisson batches from this generator (amplification needs batches nobody can predict); return the old."""
        if self.sampling is not Sampling.POISSON:
            return None
        before: torch.Generator | None = self._sampler.generator
        self._sampler.generator = generator
        return before

    def stepped(self) -> None:
        """A logical step is about to be taken."""
        self._steps += 1
        if self.sampling is not Sampling.FULL_BATCH and self._draws < self._steps:
            raise CannotRecord(
                f"data_loader: step {self._steps} was taken, but only {self._draws} batches were drawn from the "
                "loader that was given; pass the loader make_private returned, and train on it"
            )

    def __enter__(self) -> Batches:
        watch, drawn_by = self, type(self._sampler)
        self._drawn_by = drawn_by

        def watched(sampler: Any) -> Iterator[Any]:
            watch._epoch_begins()
            for batch in drawn_by.__iter__(sampler):
                watch._drew()
                yield batch

        # The loader keeps its sampler, of the same type; only its draws are counted.
        self._sampler.__class__ = type(drawn_by.__name__, (drawn_by,), {"__iter__": watched})
        self._signal = self._optimizer.signal_skip_step
        self._optimizer.signal_skip_step = self._signalled
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sampler.__class__ = self._drawn_by
        del self._optimizer.signal_skip_step

    def _signalled(self, do_skip: bool = True) -> None:
        self._unfinished = do_skip
        self._signal(do_skip)

    def _epoch_begins(self) -> None:
        if self._optimizer._step_skip_queue:
            raise CannotRecord(
                "data_loader: a new epoch begins while batches of the last one are still waiting; finish each logical "
                "batch before leaving the loop"
            )
        if self._per_epoch and self._steps % self._per_epoch:
            self._whole_epochs = False

    def _drew(self) -> None:
        if self._unfinished:
            raise CannotRecord(
                "optimizer.signal_skip_step: one logical step was made of several draws, in which a record may be "
                "twice; let BatchMemoryManager split one draw instead"
            )
        self._draws += 1


def _sampler(loader: DataLoader[Any]) -> Any:
    sampler = getattr(loader, "batch_sampler", None)
    while isinstance(sampler, BatchSplittingSampler):
        sampler = sampler.sampler
    return sampler


def _kind(sampler: Any, records: int) -> tuple[Sampling, int | None]:
    if type(sampler) is UniformWithReplacementSampler and sampler.num_samples == records:
        return (Sampling.FULL_BATCH if sampler.sample_rate >= 1 else Sampling.POISSON), None
    inner: Any = sampler.sampler if type(sampler) is BatchSampler else None
    once = type(inner) is SequentialSampler or (type(inner) is RandomSampler and not inner.replacement)
    if inner is not None and once and len(inner) <= records:
        if sampler.batch_size >= records and len(inner) == records and len(sampler) == 1:
            return Sampling.FULL_BATCH, None
        return Sampling.SHUFFLED, len(sampler)
    described = type(sampler).__name__ + (f" over {type(inner).__name__}" if inner is not None else "")
    raise CannotRecord(
        f"data_loader: batches drawn by {described}; recorded are Opacus' Poisson batches (make_private), and torch's "
        "own batches in order or shuffled without replacement"
    )
