"""Do these runs belong together? Every check between the runs of a portfolio.

Guarantees: runs that pass speak about the same data, unit and adjacency, have models of one shape, and no two of
them share noise that anybody could know of: no stream, and (see `provenance`, `undeclared_parents`) no weights in
common. Those that share a seed are told to the mathematics as a group (`shared_seeds`).
Refuses, each with a named error, the file and the field: anything else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dpmerge.accounting.exposure import Mechanism
from dpmerge.errors import (
    InvalidInputError,
    MissingParentError,
    MixedPortfolioError,
    NotIndependentError,
    TensorMismatchError,
)
from dpmerge.portfolio.provenance import require_origins
from dpmerge.portfolio.recorded_runs import RecordedRun, SavedCheckpoint, all_checkpoints
from dpmerge.portfolio.shared_seeds import noise_groups
from dpmerge.portfolio.undeclared_parents import require_named_parents
from dpmerge.terms.ancestry import attach

_ONE_SHAPE = "put models of other tensors into a portfolio of their own"


def require_agreement(runs: Sequence[RecordedRun]) -> None:
    """All checks, in the order in which their answers make sense."""
    _require_distinct_names(runs)
    _require_same_subject(runs)
    _require_same_tensors(runs)
    _require_own_stream(runs)
    require_origins(runs)
    require_named_parents(runs)


def _require_distinct_names(runs: Sequence[RecordedRun]) -> None:
    first: dict[str, RecordedRun] = {}
    for run in runs:
        other = first.setdefault(run.manifest.run, run)
        if other is not run:
            problem = f"run: {other.file} is named {run.manifest.run!r} as well"
            raise MixedPortfolioError(run.file, "run", run.manifest.run, "give it a name of its own", problem=problem)


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
                problem = f"{field}: {of(run)!r} here, {of(known[0])!r} in {known[0].file}"
                remedy = "all runs of a portfolio agree on it: keep others in a portfolio of their own"
                raise MixedPortfolioError(run.file, field, of(run), remedy, problem=problem)


def _require_same_tensors(runs: Sequence[RecordedRun]) -> None:
    """All models have one shape, except private parents, which only have to be paid for."""
    parents = {run.manifest.ancestry.run for run in runs}
    first: SavedCheckpoint | None = None
    for checkpoint in all_checkpoints(tuple(sorted(runs, key=lambda run: run.manifest.run in parents))):
        first = first or checkpoint
        difference = tensor_difference(first, checkpoint)
        if difference is not None and checkpoint.run not in parents:
            raise difference


def tensor_difference(first: SavedCheckpoint, checkpoint: SavedCheckpoint) -> TensorMismatchError | None:
    """In what the tensors of two checkpoints differ that averaging needs to be the same."""
    if difference := sorted(set(first.tensors) ^ set(checkpoint.tensors)):
        there = first.name if difference[0] in first.tensors else checkpoint.name
        problem = f"tensor names: only {there} has {difference[0]!r}"
        return TensorMismatchError(checkpoint.files[0], "tensor names", difference[0], _ONE_SHAPE, problem=problem)
    for name, (path, slot) in checkpoint.tensors.items():
        other = first.tensors[name][1]
        for kind, ours, theirs in (
            ("shape", list(slot.shape), list(other.shape)),
            ("dtype", slot.dtype, other.dtype),
        ):
            if ours != theirs:
                field = f"{name}.{kind}"
                problem = f"{field}: {ours} here, {theirs} in {first.name}"
                return TensorMismatchError(path, field, ours, _ONE_SHAPE, problem=problem)
    return None


def _require_own_stream(runs: Sequence[RecordedRun]) -> None:
    first: dict[str, RecordedRun] = {}
    for run, stream in [(each, noise.stream) for each in runs for noise in each.manifest.streams]:
        other = run if stream is None else first.setdefault(stream, run)
        if other is not run:
            why = "so the two are not independent"
            if run.manifest.resumed or other.manifest.resumed:
                why = "so the two are one run, resumed from copies of its folder"
            problem = f"noise.stream: {other.file} has the same ({stream}), {why}"
            remedy = "keep one of the two, or train one of them again with noise of its own"
            raise NotIndependentError(run.file, "noise.stream", stream, remedy, problem=problem)


def mechanisms(runs: Sequence[RecordedRun]) -> dict[str, Mechanism]:
    """Each run as the mathematics sees it, its private ancestors attached."""
    by_name = {run.manifest.run: run for run in runs}
    groups = noise_groups(run.manifest for run in runs)
    made: dict[str, Mechanism] = {}
    for run in runs:
        parent = run.manifest.ancestry.run
        if parent is not None and parent not in by_name:
            problem = f"ancestry.run: the parent {parent!r} is not in this portfolio"
            remedy = "add its run: what its parent cost must be counted too"
            raise MissingParentError(run.file, "ancestry.run", parent, remedy, problem=problem)
    try:
        for name in by_name:
            attach(
                name,
                lambda each: by_name[each].manifest.ancestry.parent,
                lambda each, start: by_name[each].manifest.mechanism_from(start, groups.get(each)),
                made,
            )
    except InvalidInputError as error:
        child, _, field = error.field.rpartition(".ancestry.")
        if child not in by_name:
            raise
        raise MissingParentError(
            by_name[child].file, f"ancestry.{field}", error.value, error.accepted, found=error.found
        ) from None
    return made
