"""Do these runs belong together? Every check between the runs of a portfolio.

Guarantees: runs that pass speak about the same data, unit and adjacency, have models of one shape, and no two of
them share noise that anybody could know of: no stream, seed, or weights in common.
Refuses, each with a named error, the file and the field: anything else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from dpmerge.errors import InvalidInput, MissingParent, MixedPortfolio, NotIndependent, TensorMismatch
from dpmerge.portfolio.runs import RecordedRun, SavedCheckpoint, all_checkpoints
from dpmerge.privacy.exposure import Checkpoint, Mechanism


def require_agreement(runs: Sequence[RecordedRun]) -> None:
    """All checks, in the order in which their answers make sense."""
    _require_distinct_names(runs)
    _require_same_subject(runs)
    _require_same_tensors(runs)
    _require_own_noise(runs)


def _require_distinct_names(runs: Sequence[RecordedRun]) -> None:
    first: dict[str, RecordedRun] = {}
    for run in runs:
        other = first.setdefault(run.manifest.run, run)
        if other is not run:
            accepted = f"a name of its own; {other.file} has the same"
            raise MixedPortfolio(run.file, "run", run.manifest.run, accepted)


def _require_same_subject(runs: Sequence[RecordedRun]) -> None:
    subjects: dict[str, Callable[[RecordedRun], object]] = {
        "dataset.id": lambda run: run.manifest.dataset.id,
        "dataset.size": lambda run: run.manifest.dataset.size,
        "unit": lambda run: run.manifest.unit,
        "adjacency": lambda run: run.manifest.adjacency,
    }
    for field, of in subjects.items():
        known = [run for run in runs if of(run) is not None]
        for run in known[1:]:
            if of(run) != of(known[0]):
                accepted = f"{of(known[0])!r}, as in {known[0].file}: only runs on the same data can be merged"
                raise MixedPortfolio(run.file, field, of(run), accepted)


def _require_same_tensors(runs: Sequence[RecordedRun]) -> None:
    first: SavedCheckpoint | None = None
    for checkpoint in all_checkpoints(tuple(runs)):
        first = first or checkpoint
        if difference := sorted(set(first.tensors) ^ set(checkpoint.tensors)):
            there = first.name if difference[0] in first.tensors else checkpoint.name
            found = f"{difference[0]!r}, which only {there} has"
            accepted = f"the tensor names of {first.name}"
            raise TensorMismatch(checkpoint.files[0], "tensor names", difference[0], accepted, found=found)
        for name, (path, slot) in checkpoint.tensors.items():
            other = first.tensors[name][1]
            if slot.shape != other.shape:
                accepted = f"{list(other.shape)}, as in {first.name}"
                raise TensorMismatch(path, f"{name}.shape", list(slot.shape), accepted)
            if slot.dtype != other.dtype:
                raise TensorMismatch(path, f"{name}.dtype", slot.dtype, f"{other.dtype}, as in {first.name}")


def _require_own_noise(runs: Sequence[RecordedRun]) -> None:
    # torch uses 32 bits of a seed: two that differ by 2³² give the same noise.
    streams: dict[str, Callable[[RecordedRun], object]] = {
        "noise.stream": lambda run: run.manifest.noise.stream,
        "noise.seed": lambda run: None if run.manifest.noise.seed is None else run.manifest.noise.seed % 2**32,
    }
    for field, of in streams.items():
        first: dict[object, RecordedRun] = {}
        for run in runs:
            other = run if of(run) is None else first.setdefault(of(run), run)
            if other is not run:
                accepted = f"noise of its own; {other.file} has the same, so the two are not independent"
                raise NotIndependent(run.file, field, of(run), accepted)
    seen: dict[str, SavedCheckpoint] = {}
    for checkpoint in _moved_checkpoints(runs):
        other_checkpoint = seen.setdefault(str(checkpoint.weights), checkpoint)
        if other_checkpoint.run != checkpoint.run:
            accepted = f"weights of its own; {other_checkpoint.name} has the same, so the two share their noise"
            found = f"{checkpoint.name}, the same weights under another name"
            raise NotIndependent(checkpoint.files[0], "weights", checkpoint.name, accepted, found=found)


def _moved_checkpoints(runs: Sequence[RecordedRun]) -> Iterator[SavedCheckpoint]:
    """Checkpoints of known weights that noise has gone into: not the start, nor what a rate of zero left there."""
    for run in runs:
        for checkpoint in run.checkpoints:
            if checkpoint.step > 0 and checkpoint.weights not in (None, run.manifest.initial_weights):
                yield checkpoint


def mechanisms(runs: Sequence[RecordedRun]) -> dict[str, Mechanism]:
    """Each run as the mathematics sees it, its private ancestors attached."""
    by_name = {run.manifest.run: run for run in runs}
    made: dict[str, Mechanism] = {}

    def make(run: RecordedRun, descendants: tuple[str, ...]) -> Mechanism:
        name = run.manifest.run
        if name in descendants:
            accepted = "a parent that does not descend from this run"
            circle = " → ".join((*descendants[descendants.index(name) :], name))
            raise MissingParent(run.file, "ancestry.run", run.manifest.ancestry.run, accepted, found=circle)
        if name not in made:
            made[name] = run.manifest.mechanism_from(_parent(run, (*descendants, name)))
        return made[name]

    def _parent(run: RecordedRun, descendants: tuple[str, ...]) -> Checkpoint | None:
        ancestry = run.manifest.ancestry
        _require_declared(run, runs)
        if ancestry.run is None or ancestry.step is None:
            return None
        parent = by_name.get(ancestry.run)
        if parent is None:
            accepted = "a run of this portfolio: what its parent cost must be counted too"
            raise MissingParent(run.file, "ancestry.run", ancestry.run, accepted)
        try:
            return Checkpoint(make(parent, descendants), ancestry.step)
        except InvalidInput as error:
            if isinstance(error, MissingParent):
                raise
            raise MissingParent(run.file, "ancestry.step", ancestry.step, error.accepted) from None

    for run in runs:
        make(run, ())
    return made


def _require_declared(run: RecordedRun, runs: Sequence[RecordedRun]) -> None:
    """A run that started from another one's weights must say so, and one that says so must have them."""
    start, ancestry = run.manifest.initial_weights, run.manifest.ancestry
    if start is None:
        return
    for checkpoint in _moved_checkpoints(runs):
        declared = (ancestry.run, ancestry.step) == (checkpoint.run, checkpoint.step)
        if checkpoint.weights == start and not declared:
            accepted = f"private, run {checkpoint.run}, step {checkpoint.step}: the initial weights are its"
            raise MissingParent(run.file, "ancestry.start", ancestry.start, accepted)
        if declared and checkpoint.weights != start:
            accepted = f"the weights of {checkpoint.name}, from which the run says it started"
            raise MissingParent(run.file, "initial_weights", start, accepted, found=start)
