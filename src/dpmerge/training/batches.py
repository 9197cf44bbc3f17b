"""How batches are really drawn and used, seen from the loader and from what enters the model.

Guarantees: what is recorded is what happened: Poisson only where Opacus' sampler drew the batches, full batch only
where every record is in every batch, and epochs that overlap or are cut short, or whose batches are not used each once,
are not accounted as whole ones. A logical step is made of one draw, which no other step uses, and of as many gradients
as that draw has records; of Poisson batches, the rows that enter the model are those drawn for the step.
Refuses: samplers that may draw a record twice, logical steps glued together from several draws, batches used twice.
Of full batches it trusts that the batch used is the data: nothing has to be drawn anew for each step.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import TracebackType
from typing import Any

import numpy as np
import torch
from opacus.optimizers import DPOptimizer
from opacus.utils.batch_memory_manager import BatchSplittingSampler
from opacus.utils.uniform_sampler import UniformWithReplacementSampler
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, TensorDataset

from dpmerge.errors import CannotRecord
from dpmerge.privacy.mechanisms import Sampling
from dpmerge.training.row_prints import Prints, RowPrints

WATCHED = "_dpmerge_watched"
_PASSES_KEPT = 4
"""Of full batches: one that was taken out once, and used ever since, is still the data after an evaluation or two."""
_RANDOM_BITS = 2**24
"""torch.rand in single precision is a multiple of 2⁻²⁴, so it is below q a little more often than q says."""


@dataclass(eq=False)
class _Pass:
    """One pass over the sampler: how many records each of its batches has."""

    sizes: list[int] = field(default_factory=list)
    steps: int = 0
    active: bool = True
    split: bool = False  # into physical batches, by BatchMemoryManager

    @property
    def draws(self) -> int:
        return len(self.sizes)


@dataclass(eq=False)
class _Handed:
    """One pass over a loader: what came out of it and waits to be used."""

    drawn: _Pass | None = None
    draws: int = 0
    steps: int = 0
    waiting: dict[int, Prints] = field(default_factory=dict)


def _entered(waiting: Mapping[int, Prints], entered: Prints | None) -> int | None:
    """The number of the waiting batch that entered the model, and nothing else did; None if there is none."""
    return None if entered is None else next((n for n, batch in waiting.items() if entered <= batch), None)


class Batches:
    """The batches of one loader, watched from `__enter__` to `__exit__`."""

    def __init__(
        self, loader: DataLoader[Any], optimizer: DPOptimizer, prints: RowPrints, *, vouched: bool = False
    ) -> None:
        self._loader, self._optimizer = loader, optimizer
        self._prints, self._vouched = prints, vouched
        self._sampler = _sampler(loader)
        try:
            self.records = len(loader.dataset)  # type: ignore[arg-type]
        except TypeError:
            raise CannotRecord("data_loader: a data set without a length; nobody can say how it was sampled") from None
        self.sampling, self._per_epoch = _kind(self._sampler, self.records)
        self._rate = float(self._sampler.sample_rate) if self.sampling is Sampling.POISSON else 1.0
        self._generator: torch.Generator | None = getattr(self._sampler, "generator", None)
        self._whole_epochs = True
        self._unfinished = False
        self._passes: list[_Pass] = []
        self._current: _Pass | None = None
        self._steps = 0
        self._hands: _Handed | None = None  # the pass from which the loader handed out a batch last
        self._physical: _Handed | None = None  # the same, where BatchMemoryManager's own loader counts as well
        self._used: dict[int, int] = {}  # where somebody vouches: what entered the model for which batch
        self._handed_out: set[int] = set()  # shuffled: every tensor that ever came out of the loader
        self._draws_state: int | None = None
        self._rows = 0
        self._number: int | None = None
        self._full: list[list[Prints]] = []  # full batches of the last passes, in the parts they were handed out in
        self._parts_used: set[tuple[int, int]] = set()
        self._parts: list[Prints] = []
        self._data: list[Any] | None = None  # of every tensor of the data set, the fingerprints of its rows, sorted
        self._reused = False  # what entered is a whole batch, though of another step
        self._linked = True
        self.linked = True
        """Whether all that entered the model was what had been drawn for it."""

    @property
    def rows(self) -> int:
        """How many rows were clipped for the step under way."""
        return self._rows

    @cached_property
    def sampling_rate(self) -> float:
        """The probability with which a record is in a batch: Poisson's, as torch's random numbers make it, or 1."""
        if self.sampling is not Sampling.POISSON:
            return 1.0
        compared = max(self._rate, float(np.float32(self._rate)))
        return min(1.0, math.ceil(compared * _RANDOM_BITS) / _RANDOM_BITS)

    @property
    def steps_per_epoch(self) -> int | None:
        """For shuffled batches, after how many steps a record may come again; 1 once an epoch was not whole."""
        if self.sampling is not Sampling.SHUFFLED:
            return None
        return self._per_epoch if self._whole_epochs else 1

    def use(self, generator: torch.Generator | None) -> torch.Generator | None:
        """Draw Poisson batches from this generator (amplification needs batches nobody can predict); return the old."""
        if self.sampling is not Sampling.POISSON:
            return None
        before, self._generator, self._sampler.generator = self._sampler.generator, generator, generator
        self._note_draw()
        return before  # type: ignore[no-any-return]

    def _note_draw(self) -> None:
        if self._generator is not None and self.sampling is Sampling.POISSON:
            self._draws_state = zlib.crc32(self._generator.get_state().numpy().data)

    def _require_unpredicted(self) -> None:
        """Refuse draws that somebody could predict: the generator was set back, or to a state that is known."""
        before = self._draws_state
        self._note_draw()
        if before is not None and self._draws_state != before:
            raise CannotRecord(
                "data_loader: the generator of the sampler was seeded, or used by something else, in the course of the "
                "run; batches that can be predicted are not Poisson's: leave it alone"
            )

    def clipped(self, rows: int, entered: Prints | None) -> None:
        """Gradients of so many rows, of what entered the model, were clipped and added to the step's sum."""
        if self._current is not None and self._current.split and not self._optimizer._step_skip_queue:
            raise CannotRecord(
                "optimizer.step: called more often than BatchMemoryManager handed out batches; call it once for each"
            )
        self._rows += rows
        if self.sampling is Sampling.FULL_BATCH:
            self._linked &= self._is_full(entered)
            self._parts.append(entered or frozenset())
            return
        waiting = self._physical.waiting if self._physical is not None else {}
        self._number = _entered(waiting, entered)
        linked = self._number is not None
        taken_for = self._number if linked else next(iter(waiting), None)
        if linked or self._vouched:
            batch = waiting.pop(taken_for, None)  # type: ignore[arg-type]
            # What entered for another batch before is not made of this one, whoever vouches for it.
            self._linked &= linked or self._used.get(hash(entered), hash(batch)) == hash(batch)
        else:
            self._linked = False
            self._reused = entered is not None and {hash(each) for each in entered} <= self._handed_out
        self.linked &= linked
        if self._vouched:
            self._used.setdefault(hash(entered), hash(batch))

    def _is_full(self, entered: Prints | None) -> bool:
        """Whether what entered is a batch of the whole data, or a part of one that this step has not used yet."""
        passes = self._full[-_PASSES_KEPT:]
        for chunks in passes:
            for number, chunk in enumerate(chunks):
                if entered is not None and entered <= chunk and (id(chunks), number) not in self._parts_used:
                    self._parts_used.add((id(chunks), number))
                    return True
        return False

    def _is_data(self) -> bool:
        """Whether what entered in this step is the data set itself, each record once, in any order and any parts."""
        if not isinstance(self._loader.dataset, TensorDataset) or not all(self._parts):
            return False
        if self._data is None:
            self._data = [_sorted(each) for each in self._prints.handed(self._loader.dataset.tensors)]
        together = self._parts if len(self._parts) == 1 else [[b"".join(b"".join(part) for part in self._parts)]]
        if len(self._parts) > 1 and any(len(part) != 1 for part in self._parts):
            return False
        return all(any(np.array_equal(_sorted(each), rows) for rows in self._data) for each in together[0])

    def stepped(self) -> None:
        """A logical step is about to be taken."""
        if self.sampling is Sampling.POISSON and (
            float(self._sampler.sample_rate) != self._rate or self._sampler.generator is not self._generator
        ):
            raise CannotRecord("data_loader: the sampler's rate or generator was changed in the course of the run")
        full = self.sampling is Sampling.FULL_BATCH
        if full:
            self._linked = self._linked or self._is_data()
            self.linked &= self._linked
        accepted = {self.records} if full else self._drawn()
        drawn = min(accepted, key=lambda size: abs(size - self._rows))
        if full and self._rows != drawn:
            raise CannotRecord(
                f"data_loader: a step was taken on {self._rows} of {drawn} records, but the loader gives full batches; "
                "train on what it gives, or let it draw smaller ones"
            )
        if self._rows > drawn:
            raise CannotRecord(
                f"data_loader: a step was taken on {self._rows} gradients, but its batch has {drawn} records; copies "
                "of a record are clipped one by one and add up, so average them before clipping, or leave them out"
            )
        if self._rows < drawn:
            raise CannotRecord(
                f"data_loader: a step was taken on {self._rows} gradients, but its batch has {drawn} records; leave no "
                "record out, and let records come first in every layer (batch_first): the gradient of a time step is "
                "one of all records"
            )
        if not self._linked and not self._vouched_for():
            raise CannotRecord(
                f"data_loader: what entered the model in step {self._steps + 1} is not, row by row, the batch drawn "
                "for it; train on that batch (moved, cast or reshaped is fine) and change records in the data set, in "
                "collate_fn or within the model; or say separate_records=True if each row is made of one record drawn "
                "for the step"
            )
        self._whole_epochs &= self._linked
        self._steps += 1

    def _vouched_for(self) -> bool:
        """Whether a step may have used something else than its batch: another whole batch, at the cost of a pass."""
        if self.sampling is Sampling.SHUFFLED:
            return self._reused or self._vouched
        return self._vouched and self.sampling is Sampling.FULL_BATCH

    def settled(self) -> None:
        """The gradients added so far were used, or refused; the next ones are another step's."""
        self._rows, self._linked = 0, True
        self._parts_used.clear()
        self._parts.clear()

    def require_used_up(self) -> None:
        """A pass in which steps were taken left no batch out, not even its last one."""
        hands = self._hands
        if self.sampling is Sampling.POISSON and hands is not None and 0 < hands.steps < hands.draws:
            raise _left_out(hands)

    def _drawn(self) -> set[int]:
        """How many records the step's draw has, as far as that is known; refused if there is no draw of its own."""
        current, hands = self._current, self._hands
        split = current is not None and current.split
        using = current if split else hands
        if current is None or using is None or using.steps >= using.draws:
            raise CannotRecord(
                f"data_loader: step {self._steps + 1} was taken without a batch of its own from the loader that was "
                "given; pass the loader make_private returned, train on it, and take one step for each batch"
            )
        using.steps += 1
        # Workers draw batches long before they are used.
        if self.sampling is Sampling.POISSON and using.draws > using.steps and not (split and self._loader.num_workers):
            raise _left_out(using)
        if split:
            return {current.sizes[current.steps - 1]}
        drawn = hands.drawn if hands is not None else None
        if drawn is None or hands is None:
            return {current.sizes[-1]}
        if not getattr(self._loader, "in_order", True) or (self._number is None and self.sampling is Sampling.SHUFFLED):
            return set(drawn.sizes)
        return {drawn.sizes[hands.draws - 1 if self._number is None else self._number]}

    def __enter__(self) -> Batches:
        watch, drawn_by, handed_by = self, type(self._sampler), type(self._loader)
        any_loader = DataLoader.__iter__

        def draws(sampler: Any) -> Iterator[Any]:
            this = watch._begin()
            try:
                drawn = drawn_by.__iter__(sampler)
                while True:
                    watch._require_unpredicted()
                    batch = next(drawn, None)
                    watch._note_draw()
                    if batch is None:
                        return
                    watch._drew(this, len(batch))
                    yield batch
            finally:
                this.active = False

        def batches(loader: Any) -> Iterator[Any]:
            watch.require_used_up()
            this = watch._hands = _Handed()
            for batch in handed_by.__iter__(loader):
                watch._hands = this
                watch._handed(this, batch)
                yield batch

        def physical_batches(loader: Any) -> Iterator[Any]:
            this = _Handed()
            for batch in any_loader(loader):
                watch._handed(this, batch)
                yield batch

        def iterate(loader: Any) -> Iterator[Any]:
            theirs = loader is not watch._loader and _sampler(loader) is watch._sampler
            return physical_batches(loader) if theirs else any_loader(loader)

        # Both stay what they are, of the same type; what comes out of them is counted.
        self._classes = drawn_by, handed_by
        self._sampler.__class__ = type(drawn_by.__name__, (drawn_by,), {"__iter__": draws, WATCHED: True})
        self._loader.__class__ = type(handed_by.__name__, (handed_by,), {"__iter__": batches})
        # BatchMemoryManager makes a loader of its own, which draws from the same sampler.
        self._any_loader = any_loader
        DataLoader.__iter__ = iterate  # type: ignore[assignment,method-assign]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sampler.__class__, self._loader.__class__ = self._classes
        DataLoader.__iter__ = self._any_loader  # type: ignore[method-assign]

    def _handed(self, this: _Handed, batch: Any) -> None:
        """A batch comes out of a loader."""
        this.drawn = this.drawn or self._current
        self._physical = this
        prints = self._prints.handed(batch)
        if self.sampling is Sampling.FULL_BATCH:
            if this.draws == 0:
                self._full = [*self._full[-_PASSES_KEPT:], []]
            self._full[-1].append(prints)
        else:
            this.waiting[this.draws] = prints
        if self.sampling is Sampling.SHUFFLED:
            self._handed_out |= {hash(each) for each in prints}
        this.draws += 1

    def signalled(self, do_skip: bool) -> None:
        """The optimizer was told whether the next physical batch ends a logical step."""
        self._unfinished = do_skip
        if self._current is not None:
            self._current.split = True

    def _begin(self) -> _Pass:
        if self._optimizer._step_skip_queue:
            raise CannotRecord(
                "data_loader: a new epoch begins while batches of the last one are still waiting; finish each logical "
                "batch before leaving the loop"
            )
        overlapping = any(each.active for each in self._passes)
        if self._per_epoch and (overlapping or self._steps % self._per_epoch):
            self._whole_epochs = False
        self._passes = [each for each in self._passes if each.active]
        self._passes.append(_Pass())
        return self._passes[-1]

    def _drew(self, this: _Pass, records: int) -> None:
        if self._unfinished:
            raise CannotRecord(
                "optimizer.signal_skip_step: one logical step was made of several draws, in which a record may be "
                "twice; let BatchMemoryManager split one draw instead"
            )
        self._current = this
        this.sizes.append(records)


def _sorted(prints: bytes) -> Any:
    return np.sort(np.frombuffer(prints, dtype=np.uint64))


def _left_out(this: _Pass | _Handed) -> CannotRecord:
    return CannotRecord(
        f"data_loader: of {this.draws} batches drawn in this pass only {this.steps} were used; leaving one out because "
        "of what is in it is a release of its own, so take a step for each, empty ones too"
    )


def _sampler(loader: DataLoader[Any]) -> Any:
    sampler = getattr(loader, "batch_sampler", None)
    while isinstance(sampler, BatchSplittingSampler):
        sampler = sampler.sampler
    return sampler


def _kind(sampler: Any, records: int) -> tuple[Sampling, int | None]:
    if hasattr(sampler, WATCHED):
        raise CannotRecord("data_loader: this loader is being recorded already")
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
