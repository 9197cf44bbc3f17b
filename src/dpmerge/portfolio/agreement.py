"""Do these runs belong together? Every check between the runs of a portfolio.

Guarantees: runs that pass speak about the same data, unit and adjacency, have models of one shape, and no two of
them share noise that anybody could know of: no stream, no seed, and (see `origins` and `parents`) no weights in common.
Refuses, each with a named error, the file and the field: anything else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from dpmerge.errors import InvalidInput, MissingParent, MixedPortfolio, NotIndependent, TensorMismatch
from dpmerge.portfolio.origins import require_origins
from dpmerge.portfolio.parents import require_named_parents
from dpmerge.portfolio.runs import RecordedRun, SavedCheckpoint, all_checkpoints
from dpmerge.privacy.exposure import Checkpoint, Mechanism


def require_agreement(runs: Sequence[RecordedRun]) -> None:
    """All checks, in the order in which their answers make sense."""
    _require_distinct_names(runs)
    _require_same_subject(runs)
    _require_same_tensors(runs)
    _require_own_noise(runs)
    require_origins(runs)
    require_named_parents(runs)


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
                accepted = f"{of(known[0])!r}, as in {known[0].file}: all runs of a portfolio agree on it"
                raise MixedPortfolio(run.file, field, of(run), accepted)


def _require_same_tensors(runs: Sequence[RecordedRun]) -> None:
    """All models have one shape, except private parents, which only have to be paid for."""
    parents = {run.manifest.ancestry.run for run in runs}
    first: SavedCheckpoint | None = None
    for checkpoint in all_checkpoints(tuple(sorted(runs, key=lambda run: run.manifest.run in parents))):
        first = first or checkpoint
        difference = tensor_difference(first, checkpoint)
        if difference is not None and checkpoint.run not in parents:
            raise difference


def tensor_difference(first: SavedCheckpoint, checkpoint: SavedCheckpoint) -> TensorMismatch | None:
    """In what the tensors of two checkpoints differ that averaging needs to be the same."""
    if difference := sorted(set(first.tensors) ^ set(checkpoint.tensors)):
        there = first.name if difference[0] in first.tensors else checkpoint.name
        found = f"{difference[0]!r}, which only {there} has"
        accepted = f"the tensor names of {first.name}"
        return TensorMismatch(checkpoint.files[0], "tensor names", difference[0], accepted, found=found)
    for name, (path, slot) in checkpoint.tensors.items():
        other = first.tensors[name][1]
        if slot.shape != other.shape:
            accepted = f"{list(other.shape)}, as in {first.name}"
            return TensorMismatch(path, f"{name}.shape", list(slot.shape), accepted)
        if slot.dtype != other.dtype:
            return TensorMismatch(path, f"{name}.dtype", slot.dtype, f"{other.dtype}, as in {first.name}")
    return None


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


def mechanisms(runs: Sequence[RecordedRun]) -> dict[str, Mechanism]:
    """Each run as the mathematics sees it, its private ancestors attached."""
    by_name = {run.manifest.run: run for run in runs}
    made: dict[str, Mechanism] = {}

    for run in runs:
        lineage = [run]
        while (parent := _parent(lineage[-1], by_name)) is not None and parent.manifest.run not in made:
            if parent in lineage:
                circle = " → ".join(each.manifest.run for each in (*lineage[lineage.index(parent) :], parent))
                accepted = "a parent that does not descend from this run"
                raise MissingParent(parent.file, "ancestry.run", parent.manifest.ancestry.run, accepted, found=circle)
            lineage.append(parent)
        for each in reversed(lineage):  # a parent before its children, however long the line is
            made.setdefault(each.manifest.run, each.manifest.mechanism_from(_start(each, made)))
    return made


def _parent(run: RecordedRun, by_name: Mapping[str, RecordedRun]) -> RecordedRun | None:
    name = run.manifest.ancestry.run
    if name is not None and name not in by_name:
        accepted = "a run of this portfolio: what its parent cost must be counted too"
        raise MissingParent(run.file, "ancestry.run", name, accepted)
    return None if name is None else by_name[name]


def _start(run: RecordedRun, made: Mapping[str, Mechanism]) -> Checkpoint | None:
    ancestry = run.manifest.ancestry
    if ancestry.run is None or ancestry.step is None:
        return None
    try:
        return Checkpoint(made[ancestry.run], ancestry.step)
    except InvalidInput as error:
        raise MissingParent(run.file, "ancestry.step", ancestry.step, error.accepted) from None
