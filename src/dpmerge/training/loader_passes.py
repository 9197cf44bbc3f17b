"""Passes over a loader and its sampler, seen as they happen: what was drawn, and what was handed out.

Guarantees: loader and sampler stay the objects they are, of the same type, and are put back at the end; the loader that
BatchMemoryManager makes of its own, which draws from the same sampler, is seen as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol

from torch.utils.data import DataLoader

from dpmerge.training.batch_sampling import OBSERVED, batch_sampler_of, drawing_of
from dpmerge.training.row_fingerprints import Fingerprints


@dataclass(eq=False)
class SamplerPass:
    """One pass over the sampler: how many records each of its batches has."""

    sizes: list[int] = field(default_factory=list)
    seen: set[int] = field(default_factory=set)  # shuffled: which records it has drawn
    steps: int = 0
    active: bool = True
    split: bool = False  # into physical batches, by BatchMemoryManager
    share: int = 0  # of several processes: from which records this one draws

    @property
    def draws(self) -> int:
        return len(self.sizes)


@dataclass(eq=False)
class LoaderPass:
    """One pass over a loader: what came out of it and waits to be used."""

    drawn: SamplerPass | None = None
    draws: int = 0
    steps: int = 0
    waiting: dict[int, Fingerprints] = field(default_factory=dict)
    used: list[int] = field(default_factory=list)  # shuffled: which of its batches entered the model, one after another


class BatchListener(Protocol):
    """Who is told of each draw, and of each batch that comes out of a loader."""

    def sampler_pass_begins(self) -> SamplerPass: ...

    def drawing(self) -> None: ...

    def drew(self, this: SamplerPass, batch: Any | None) -> None: ...

    def loader_pass_begins(self) -> LoaderPass: ...

    def handed_out(self, this: LoaderPass, batch: Any, *, physical: bool) -> None: ...


class LoaderObserver:
    """Tells a listener of all passes over one loader, from `__enter__` to `__exit__`."""

    def __init__(self, loader: DataLoader[Any], listener: BatchListener) -> None:
        self._loader, self._listener = loader, listener
        self._sampler = batch_sampler_of(loader)

    def __enter__(self) -> LoaderObserver:
        listener, own_loader, own_sampler = self._listener, self._loader, self._sampler
        drawn_by, handed_by = type(own_sampler), type(own_loader)
        draw = drawing_of(own_sampler)
        any_loader = DataLoader.__iter__

        def draws(sampler: Any) -> Iterator[Any]:
            this = listener.sampler_pass_begins()
            try:
                drawn = draw(sampler)
                while True:
                    listener.drawing()
                    batch = next(drawn, None)
                    listener.drew(this, batch)
                    if batch is None:
                        return
                    yield batch
            finally:
                this.active = False

        def batches(loader: Any) -> Iterator[Any]:
            this = listener.loader_pass_begins()
            for batch in handed_by.__iter__(loader):
                listener.handed_out(this, batch, physical=False)
                yield batch

        def physical_batches(loader: Any) -> Iterator[Any]:
            this = LoaderPass()
            for batch in any_loader(loader):
                listener.handed_out(this, batch, physical=True)
                yield batch

        def iterate(loader: Any) -> Iterator[Any]:
            of_memory_manager = loader is not own_loader and batch_sampler_of(loader) is own_sampler
            return physical_batches(loader) if of_memory_manager else any_loader(loader)

        self._classes = drawn_by, handed_by
        own_sampler.__class__ = type(drawn_by.__name__, (drawn_by,), {"__iter__": draws, OBSERVED: True})
        own_loader.__class__ = type(handed_by.__name__, (handed_by,), {"__iter__": batches})
        self._any_loader = any_loader
        DataLoader.__iter__ = iterate  # type: ignore[assignment,method-assign]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sampler.__class__, self._loader.__class__ = self._classes
        DataLoader.__iter__ = self._any_loader  # type: ignore[method-assign]
