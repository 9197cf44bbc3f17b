"""Where weights come from: values that noise has gone into can be in one place only.

Guarantees: a tensor that a run trained, as it was after some step, is found nowhere else in the portfolio, unless the
other run says that it descends from there. So a copied model is not taken for an independent one, a model is not
passed off as an earlier (cheaper) checkpoint, and a private start is not passed off as a fresh one.
Refuses: everything else, naming both places. Where contents were not read, files and recorded digests are compared.
Equal values are found here; those that were changed on the way, in `undeclared_parents`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from dpmerge.errors import DigestMismatchError, MissingParentError, NotIndependentError
from dpmerge.portfolio.averages import is_average
from dpmerge.portfolio.recorded_runs import RecordedRun, SavedCheckpoint
from dpmerge.terms.mechanism_schema import DpSgdFacts

WHOLE = "all weights"
LEAST_VALUES = 4
"""Fewer values than this may be the same by chance."""


class _Mark(NamedTuple):
    """By what the same values are recognised: a tensor of a name, all weights, or a whole file."""

    what: str
    digest: str


Origins = Mapping[_Mark, SavedCheckpoint]


def require_origins(runs: Sequence[RecordedRun]) -> None:
    """Every value that noise has gone into has one origin, and every start is what it is said to be."""
    by_name = {run.manifest.run: run for run in runs}
    origins = _origins(runs, by_name)
    for run in runs:
        _require_own_values(run, origins, by_name)
        _require_declared_start(run, origins, by_name)
        _require_start(run)


def _origins(runs: Iterable[RecordedRun], by_name: Mapping[str, RecordedRun]) -> Origins:
    """Where each value that noise has gone into was first seen; a second place needs an explanation."""
    first: dict[_Mark, SavedCheckpoint] = {}
    for run in runs:
        for checkpoint in run.checkpoints:
            for mark in _noised(run, checkpoint):
                origin = first.setdefault(mark, checkpoint)
                if not _explained(origin, checkpoint, mark, by_name):
                    raise _copied(checkpoint, origin, mark)
    return first


def _require_own_values(run: RecordedRun, origins: Origins, by_name: Mapping[str, RecordedRun]) -> None:
    """What a checkpoint holds, frozen tensors included, is its run's own or comes from a parent that is named."""
    for checkpoint in run.checkpoints:
        for mark in _marks(checkpoint, checkpoint.tensors):
            origin = origins.get(mark, checkpoint)
            if not (_explained(origin, checkpoint, mark, by_name) or _descends(run, origin, by_name)):
                raise _copied(checkpoint, origin, mark)


def _require_declared_start(run: RecordedRun, origins: Origins, by_name: Mapping[str, RecordedRun]) -> None:
    """A start, or a tensor of it, that another run's noise has gone into names that run as its parent."""
    tensors = run.manifest.tensors
    starts = [("the initial weights", _Mark(WHOLE, run.manifest.initial_weights or ""))]
    starts += [(name, _Mark(name, digest)) for name, digest in (tensors.initial.items() if tensors else ())]
    for what, mark in starts:
        origin = origins.get(mark)
        if origin is not None and not _descends(run, origin, by_name):
            raise _undeclared(run, origin, what)


def _noised(run: RecordedRun, checkpoint: SavedCheckpoint) -> Iterator[_Mark]:
    """The marks of what a run's noise has gone into by the time of a checkpoint."""
    if not _moved(run, 0, checkpoint.step):
        return
    tensors = run.manifest.tensors
    trained = tensors.trained if tensors else []
    if checkpoint.digests is not None:
        # A tensor has moved if it is not what it was; where nobody knows, only the whole model is known to have.
        known = tensors.initial if tensors else {}
        yield from _marks(checkpoint, [n for n in trained if n in known and known[n] != checkpoint.digests[n]])
    else:
        yield from _marks(checkpoint, trained if trained or len(checkpoint.files) > 1 else checkpoint.tensors)


def _marks(checkpoint: SavedCheckpoint, names: Iterable[str]) -> Iterator[_Mark]:
    """By what these tensors of a checkpoint, and it as a whole, are recognised."""
    if checkpoint.weights is not None:
        yield _Mark(WHOLE, checkpoint.weights)
    if checkpoint.digests is not None:
        for name in names:
            slot = checkpoint.tensors[name][1]
            if math.prod(slot.shape) >= LEAST_VALUES:
                yield _Mark(name, checkpoint.digests[name])
        return
    holding = {checkpoint.tensors[name][0] for name in names}
    for path, digest in zip(checkpoint.files, checkpoint.file_digests, strict=True):
        if path in holding:
            yield _Mark("a file", digest)


def _moved(run: RecordedRun, after: int, upto: int) -> bool:
    """Whether a step in (after, upto] moved the weights; a rate of zero leaves them as they were."""
    facts = run.manifest.mechanism
    if not isinstance(facts, DpSgdFacts):
        return upto > after
    taken = 0
    for block in facts.blocks:
        first, last = max(after - taken, 0), min(upto - taken, block.steps)
        if block.learning_rate is None and last > first:
            return True  # nobody says that a rate was zero
        stated = block.learning_rate or 0.0
        rates = stated[first:last] if isinstance(stated, list) else [stated] * (last > first)
        if any(rate > 0 for rate in rates):
            return True
        taken += block.steps
    return False


def _explained(
    origin: SavedCheckpoint, checkpoint: SavedCheckpoint, mark: _Mark, by_name: Mapping[str, RecordedRun]
) -> bool:
    """Whether the same values in two checkpoints of one run, averages of its weights included, are in order.

    A single tensor may rest (a rate below what its numbers can show); a whole model only where no rate moved it.
    """
    (first, earlier), (run, later) = (_step_of(each, by_name) for each in (origin, checkpoint))
    if first != run:
        return False
    if origin is checkpoint or mark.what in checkpoint.tensors:
        return True
    return run in by_name and not _moved(by_name[run], *sorted((earlier, later)))


def _step_of(checkpoint: SavedCheckpoint, by_name: Mapping[str, RecordedRun]) -> tuple[str, int]:
    """The run whose noise is in a checkpoint, and after which step: of an average, those it is an average of."""
    manifest = by_name[checkpoint.run].manifest
    parent = manifest.ancestry.parent if is_average(manifest) else None
    return (checkpoint.run, checkpoint.step) if parent is None else (parent.run, parent.step)


def _descends(run: RecordedRun, origin: SavedCheckpoint, by_name: Mapping[str, RecordedRun]) -> bool:
    """Whether a run says that it started, itself or through its parents, from that checkpoint or a later one."""
    seen = set[str]()
    ancestry = run.manifest.ancestry
    while ancestry.run is not None and ancestry.run not in seen:
        if ancestry.run == origin.run and (ancestry.step or 0) >= origin.step:
            return True
        seen.add(ancestry.run)
        parent = by_name.get(ancestry.run)
        if parent is None:
            return False
        ancestry = parent.manifest.ancestry
    return False


def _copied(checkpoint: SavedCheckpoint, origin: SavedCheckpoint, mark: _Mark) -> NotIndependentError:
    why = (
        "so the two share their noise"
        if origin.run != checkpoint.run
        else "so one of them is not what it is said to be"
    )
    problem = f"weights: {mark.what} of {checkpoint.name}: {origin.name} has the same, {why}"
    remedy = f"remove the copy, or state in the manifest of {checkpoint.run} which private checkpoint it started from"
    return NotIndependentError(checkpoint.files[0], "weights", mark.digest, remedy, problem=problem)


def _undeclared(run: RecordedRun, origin: SavedCheckpoint, what: str) -> MissingParentError:
    ancestry = run.manifest.ancestry
    said = ancestry.start if ancestry.parent is None else str(ancestry.parent)
    problem = f"ancestry: the start is stated as {said}"
    remedy = f"state start private, run {origin.run}, step {origin.step}: {what} came from there"
    return MissingParentError(run.file, "ancestry", ancestry.start, remedy, problem=problem)


def _require_start(run: RecordedRun) -> None:
    """What is kept of the start is the start."""
    start = run.manifest.initial_weights
    for checkpoint in run.checkpoints if start is not None else ():
        if checkpoint.step == 0 and checkpoint.weights not in (None, start):
            problem = f"initial weights: {checkpoint.name} has the digest {checkpoint.weights}, not {start}"
            remedy = "put back the checkpoint of the start, or take step 0 out of the manifest"
            raise DigestMismatchError(
                checkpoint.files[0], "initial weights", checkpoint.weights, remedy, problem=problem
            )
