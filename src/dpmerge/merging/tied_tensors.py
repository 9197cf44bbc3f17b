"""Which names are one weight: asked of the records, and looked for in the values.

One weight under n names with noise of its own under each is a weight with a τ/√n of noise: whoever averages the names
takes the rest off. The sharper theorems also count each run's step once, in the coordinates it was trained in, so that
a weight which has two names in one run and is two weights in another is moved by more than they say, even without
release noise.

Guarantees: with release noise, names that hold the same values in any input, in whatever order, are one weight by the
record of every run, and what the records call one weight holds the same values in every input. Without it, under a
theorem sharper than joint release, the same names hold the same values in all inputs.
Refuses: anything else. Equal values are never taken for a tie: that they are equal is itself learned from the data.
Where a record states its ties, other names may be equal that rest at the values of their start, or by chance.
Cannot see: a weight that is rounded, scaled or only in part another, or twice inside one tensor.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dpmerge.errors import TensorMismatchError
from dpmerge.executors.task_runs import results_of, threads_unless
from dpmerge.merging.arithmetic import FLOATS
from dpmerge.merging.weight_files import opened, read_exactly
from dpmerge.portfolio.manifest import Tensors
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.portfolio.recorded_runs import Run, SavedCheckpoint
from dpmerge.portfolio.tensors import TensorEntry
from dpmerge.terms.recipe import Recipe

Names = frozenset[str]

PRECISION = {"F64": 53, "F32": 24, "F16": 11, "BF16": 8}
NO_CHANCE = 32
"""Bits of numbers: so many are not the same by chance."""

_PIECE = 2**19
_STORED = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
_ODD = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93))
_32 = np.uint64(32)


def stated_ties(runs: Sequence[Run]) -> tuple[tuple[str, ...], ...]:
    """The names of each weight that has several, on which all runs agree; a run that states none has none."""
    groups = [_stated(run) for run in runs]
    for run, others in zip(runs[1:], groups[1:], strict=True):
        if difference := sorted(groups[0] ^ others, key=sorted):
            names = ", ".join(sorted(difference[0]))
            has, lacks = (runs[0], run) if difference[0] in groups[0] else (run, runs[0])
            unstated = lacks.manifest.tensors is None or lacks.manifest.tensors.tied is None
            stated = "it states nothing" if unstated else "it states other ties"
            problem = f"tensors.tied: {stated}, and {has.id} that {names} are one weight"
            remedy = "with release noise all runs of an average have to agree on them: state them alike"
            raise TensorMismatchError(lacks.file, "tensors.tied", None, remedy, problem=problem)
    return tuple(sorted(tuple(sorted(group)) for group in groups[0])) if groups else ()


def require_ties(
    portfolio: Portfolio, recipes: Iterable[tuple[Recipe, bool]], jobs: int = 2, executor: Executor | None = None
) -> None:
    """Refuse recipes in which a weight has names nobody told of; each comes with whether it is priced sharply.

    Reads every tensor that might be another's copy, once for each checkpoint, by so many threads or by an executor.
    """
    seen: dict[str, _Looked] = {}
    for recipe, sharp in recipes:
        if recipe.release_noise == 0 and not (sharp and len(recipe.parts) > 1):
            continue
        saved = [portfolio.saved(name) for name in recipe.names]
        if recipe.release_noise > 0:
            stated_ties([portfolio.run(name) for name in dict.fromkeys(checkpoint.run for checkpoint in saved)])
        for checkpoint in saved:
            if checkpoint.name not in seen:
                seen[checkpoint.name] = _looked(portfolio.run(checkpoint.run), checkpoint, jobs, executor)
            if recipe.release_noise > 0:
                _require_stated(portfolio.run(checkpoint.run), checkpoint, seen[checkpoint.name])
            elif difference := sorted(seen[checkpoint.name].same ^ seen[saved[0].name].same, key=sorted):
                raise _tied_in_one(saved[0], checkpoint, difference[0])


def _stated(run: Run) -> frozenset[Names]:
    facts = run.manifest.tensors
    return frozenset(frozenset(group) for group in (facts.tied or () if facts is not None else ()))


@dataclass(frozen=True)
class _Values:
    """By what a tensor is recognised: its bytes, its values in their order, and in any; whatever dtype they have."""

    stored: str
    digest: str
    unordered: int


@dataclass(frozen=True)
class _Looked:
    """What a look at a checkpoint found: its tensors that have others of their size, and which must be one weight."""

    values: Mapping[str, _Values]
    same: frozenset[Names]

    def in_order(self, names: Iterable[str]) -> bool:
        return len({self.values[name].digest for name in names}) == 1


def _looked(run: Run, checkpoint: SavedCheckpoint, jobs: int, executor: Executor | None) -> _Looked:
    """Read what might be a copy; names that may be equal without being one weight are only found if stated."""
    facts = run.manifest.tensors
    sizes: dict[int, list[str]] = {}
    trained = set(checkpoint.tensors if facts is None else facts.trained)
    for name, (_, slot) in checkpoint.tensors.items():
        if slot.dtype in FLOATS and slot.end > slot.start:
            sizes.setdefault(math.prod(slot.shape), []).append(name)
    sizes = {size: group for size, group in sizes.items() if trained & set(group)}
    names = [name for group in sizes.values() if len(group) > 1 for name in group]
    with threads_unless(executor, jobs) as pool:
        found = results_of(pool, _values, [checkpoint.tensors[name] for name in names], named="the values of tensor")
    values = dict(zip(names, found, strict=True))
    same: set[Names] = set()
    tied = {name: tie for tie in _stated(run) for name in tie}
    # A copy that is called frozen gets no noise, and gives the trained one away.
    for group in (group for alike in sizes.values() for group in _equal(alike, values) if group & trained):
        weights = {tied.get(name, frozenset([name])) for name in group}
        if _may_be_equal(facts, checkpoint.tensors[min(group)][1], group, len(weights), values):
            same.update(weight for weight in weights if len(weight) > 1 and weight <= group)
        else:
            same.add(group)
    return _Looked(values, frozenset(same))


def _equal(names: Sequence[str], values: Mapping[str, _Values]) -> list[Names]:
    """The sets of several names that hold the same values, in whatever order."""
    found: dict[int, set[str]] = {}
    for name in names if len(names) > 1 else ():
        found.setdefault(values[name].unordered, set()).add(name)
    return [frozenset(group) for group in found.values() if len(group) > 1]


def _may_be_equal(
    facts: Tensors | None, slot: TensorEntry, names: Names, weights: int, values: Mapping[str, _Values]
) -> bool:
    """Whether weights that are said to be several may be equal: at rest since the start, or few values by chance."""
    if facts is None or facts.tied is None:
        return False
    at_rest = all(facts.initial.get(name) == values[name].stored for name in names)
    return at_rest or (weights - 1) * math.prod(slot.shape) * PRECISION[slot.dtype] < NO_CHANCE


def _require_stated(run: Run, checkpoint: SavedCheckpoint, looked: _Looked) -> None:
    """The names that hold the same values are those the run's record says are one weight, and no others."""
    stated = _stated(run)
    for tie in sorted(stated, key=sorted):
        held = [name for name in tie if name in looked.values]  # what has no values can have no others
        if held and not looked.in_order(held):
            listed = ", ".join(sorted(tie))
            problem = f"tensors.tied: {listed} are one weight, it says, and have other values in {checkpoint.name}"
            raise TensorMismatchError(run.file, "tensors.tied", None, "correct what it says", problem=problem)
    for names in sorted(looked.same - stated, key=sorted):
        first = min(names)
        other = min(names - next((tie for tie in stated if first in tie), frozenset([first])))
        path, slot = checkpoint.tensors[other]
        cure = f"if the two are one weight, {run.file} has to say so (tensors.tied)"
        facts = run.manifest.tensors
        if facts is not None and not {first, other} <= set(facts.trained):
            cure = "what holds trained values is trained: list both as trained, and as one weight (tensors.tied)"
        elif slot.shape != checkpoint.tensors[first][1].shape or not looked.in_order([first, other]):
            cure = "keep one of the two, of which the other can be made"
        problem = f"{other}: it has the values of {first} in {checkpoint.name}, so that noise would average out"
        raise TensorMismatchError(path, other, None, cure, problem=problem)


def _tied_in_one(first: SavedCheckpoint, other: SavedCheckpoint, names: Names) -> TensorMismatchError:
    problem = (
        f"tensors: {', '.join(sorted(names))} have the same values in one of {first.name} and {other.name}, and not in "
        "the other"
    )
    remedy = "state tensors.tied in both manifests, if they only rest in one; or make a joint release"
    return TensorMismatchError(other.manifest_file, "tensors", None, remedy, problem=problem)


def _values(path: Path, slot: TensorEntry) -> _Values:
    """One pass over a tensor, a piece at a time."""
    stored, digest, unordered = hashlib.sha256(), hashlib.blake2b(digest_size=16), 0
    buffer = bytearray(min(_PIECE, slot.end - slot.start))
    file = opened(path)
    try:
        for start in range(slot.start, slot.end, _PIECE):
            piece = memoryview(buffer)[: min(_PIECE, slot.end - start)]
            read_exactly(file, piece, start)
            stored.update(piece)
            values = widened(slot.dtype, piece)
            digest.update(values.data)
            unordered += _mixed(values.view(np.uint64))
    finally:
        file.close()
    return _Values(stored.hexdigest(), digest.hexdigest(), unordered % 2**64)


def widened(dtype: str, piece: memoryview) -> npt.NDArray[np.float64]:
    """Values in double precision, in which every other is exact; zero has one sign."""
    stored = np.frombuffer(piece, _STORED[dtype])
    wide = (stored.astype(np.uint32) << 16).view(np.float32) if dtype == "BF16" else stored
    return np.asarray(wide.astype(np.float64) + 0.0)


def _mixed(bits: npt.NDArray[np.uint64]) -> int:
    """A sum over the values, each well mixed first: the same in any order, and hardly ever for other values."""
    mixed = bits.copy()
    for odd in _ODD:
        mixed += odd  # zero is no fixed point
        mixed *= odd
        mixed ^= mixed >> _32
    return int(mixed.sum(dtype=np.uint64))
