"""Private parents that nobody named: a start that is suspiciously near a checkpoint of another run.

Guarantees: where the starts of two runs are kept, what sets one start apart from the other is compared with the other
run's movement, tensor by tensor and all together (`weight_similarity`); an equal start is one start and no parent, and
neither is a common public model. Where one of the starts is not kept, weights are compared with weights; where nothing
can be compared, `starts.not_kept` names the run. What is found near is accepted as a parent when it is named.
Refuses (`MissingParentError`): parents that were cast, scaled, noised, averaged or used in part and are not named, and
named ones that are not near.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dpmerge.errors import MissingParentError
from dpmerge.portfolio.averages import is_average
from dpmerge.portfolio.recorded_runs import RecordedRun, SavedCheckpoint
from dpmerge.portfolio.samples import Sample, aligned
from dpmerge.portfolio.starts import Samples, same_start, start_digest, start_values
from dpmerge.portfolio.weight_similarity import (
    DISTANCE,
    LEAST_COMPARED,
    LEAST_OF_A_TENSOR,
    Agreement,
    agreement,
    distance,
    set_apart,
)

EVERYTHING = "all trained tensors together"


def require_named_parents(runs: Sequence[RecordedRun]) -> None:
    """No start is near another run's checkpoint, unless ancestry explains it; and a parent that is named is one."""
    comparison = _Comparison(runs)
    for run in runs:
        if is_average(run.manifest):
            continue  # it started nowhere: its run did
        comparison.require_parent(run)
        for other in runs:
            stated = other.manifest.run in (run.manifest.ancestry.independent_of or ())
            if other is not run and not stated:
                comparison.require_apart(run, other)


@dataclass(frozen=True)
class _Near:
    """A checkpoint that a start is near, and by what one sees it."""

    checkpoint: SavedCheckpoint
    why: str


class _Comparison:
    """Runs beside one another; the signs of their movements are computed once."""

    def __init__(self, runs: Sequence[RecordedRun]) -> None:
        self.by_name = {run.manifest.run: run for run in runs}
        self._starts = {run.manifest.run: start_values(run) for run in runs}
        self._signs: dict[tuple[str, str, int], Sample | None] = {}

    def require_parent(self, run: RecordedRun) -> None:
        """The start is the parent's checkpoint, where that is kept; or it is near it, as far as anybody can tell."""
        start, ancestry = run.manifest.initial_weights, run.manifest.ancestry
        parent = self.by_name.get(ancestry.run or "")
        for checkpoint in parent.checkpoints if parent is not None and start is not None else ():
            # A child that keeps other tensors (an adapter, a new head) has no digest to compare.
            same = bool(run.checkpoints) and set(run.checkpoints[0].tensors) == set(checkpoint.tensors)
            if not same or checkpoint.step != ancestry.step or checkpoint.weights in (None, start):
                continue
            assert parent is not None
            unread = not checkpoint.samples and run.manifest.start_sample is not None
            theirs = self._starts[parent.manifest.run]
            if not unread and self._near(run, parent, [checkpoint], {}, theirs) is None:
                problem = f"initial_weights: {start}, not those of {checkpoint.name}, where the run says it started"
                remedy = "state the checkpoint it started from"
                raise MissingParentError(run.file, "initial_weights", start, remedy, problem=problem)

    def require_apart(self, run: RecordedRun, other: RecordedRun) -> None:
        """Refuse a start that is near a checkpoint of another run, or of its parent later than it says."""
        ancestry = run.manifest.ancestry
        theirs = self._starts[other.manifest.run]
        candidates = [checkpoint for checkpoint in other.checkpoints if checkpoint.step > 0]
        explained: Samples = {}
        if ancestry.run is not None:
            parent = self.by_name.get(ancestry.run)
            saved = [c for c in parent.checkpoints if c.step >= (ancestry.step or 0)] if parent is not None else []
            if not saved or (parent is not other and saved[0].step != ancestry.step):
                return  # the parent is named, and what it was is not kept
            explained = saved[0].samples
            if parent is other:
                theirs, candidates = explained, [c for c in candidates if c.step > saved[0].step]
        near = self._near(run, other, candidates, explained, theirs)
        if near is not None:
            raise _unnamed(run, near)

    def _near(
        self,
        run: RecordedRun,
        other: RecordedRun,
        candidates: Sequence[SavedCheckpoint],
        explained: Samples,
        theirs: Samples,
    ) -> _Near | None:
        """The checkpoint of these that a start is near, if there is one.

        `explained` is what the run says it started from: what is left without that must not be near anything.
        """
        mine = self._starts[run.manifest.run]
        names = [name for name in _trained(other) if not same_start(run, other, name, self.by_name)]
        moved = [name for name in names if name in mine and name in theirs]
        bases = {
            name: explained[name] if name in explained and _resembles(mine[name], explained[name]) else theirs[name]
            for name in moved
        }
        apart = {name: signs for name in moved if (signs := _apart(mine[name], bases[name])) is not None}
        found = self._same_movement(apart, _spread_out(candidates), theirs)
        if found is not None:  # which step it was, all of them tell
            found = self._same_movement(apart, candidates, theirs) or found
        if found is None and explained:
            found = _better_explained({name: mine[name] for name in names if name in mine}, explained, candidates)
        elif found is None:
            weights = {name: _weights(run, other, name, mine) for name in names if name not in moved}
            found = _same_weights({n: sample for n, sample in weights.items() if sample is not None}, candidates)
        return found

    def _same_movement(self, apart: Samples, candidates: Sequence[SavedCheckpoint], bases: Samples) -> _Near | None:
        """Whether what sets a start apart is how a run moved: the checkpoint that agrees most."""
        most, found = 0.0, None
        for checkpoint in candidates:
            together = Agreement()
            seen = list[tuple[str, Agreement]]()
            for name, signs in apart.items():
                moved = self._movement(checkpoint, name, bases[name])
                both = aligned(signs, moved) if moved is not None else None
                if both is not None:
                    seen.append((name, agreement(*both)))
                    together += seen[-1][1]
            for what, each in ((EVERYTHING, together), *seen):
                if each.suspicious and each.share > most:
                    words = f"{(1 + each.share) / 2:.0%} of {each.compared} values"
                    why = f"{what}: {words} differ from that run's start to the same side in both"
                    most, found = each.share, _Near(checkpoint, why)
        return found

    def _movement(self, checkpoint: SavedCheckpoint, name: str, base: Sample) -> Sample | None:
        key = (checkpoint.name, name, id(base))
        if key not in self._signs:
            sample = checkpoint.samples.get(name)
            self._signs[key] = None if sample is None else _apart(sample, base)
        return self._signs[key]


def _better_explained(start: Samples, explained: Samples, candidates: Sequence[SavedCheckpoint]) -> _Near | None:
    """Whether a start is much nearer to another checkpoint than to the one it is said to come from."""
    for checkpoint in candidates:
        for name in (name for name in start if name in explained and name in checkpoint.samples):
            values = aligned(start[name], explained[name], checkpoint.samples[name])
            if values is None or len(values[0]) < LEAST_COMPARED:
                continue
            said, other = distance(values[0], values[1]), distance(values[0], values[2])
            if other < DISTANCE and other < said / 2:
                return _Near(checkpoint, f"{name} differs from it by {other:.1%}, and by {said:.1%} from what is named")
    return None


def _same_weights(weights: Samples, candidates: Sequence[SavedCheckpoint]) -> _Near | None:
    """Where a start is not kept: whether weights that should have nothing in common are near one another."""
    for checkpoint in candidates:
        far, compared = 0.0, 0
        for name, sample in weights.items():
            both = aligned(sample, checkpoint.samples[name]) if name in checkpoint.samples else None
            if both is None or (count := len(both[0])) < LEAST_OF_A_TENSOR:
                continue
            one = distance(*both)
            far, compared = far + count * one, compared + count
            if one < DISTANCE and count >= LEAST_COMPARED:
                return _Near(checkpoint, f"{name} differs from it by {one:.1%} only, and a start is not kept")
        if compared >= LEAST_COMPARED and far / compared < DISTANCE:
            share = f"{far / compared:.1%}"
            return _Near(checkpoint, f"{EVERYTHING} differ from it by {share} only, and a start is not kept")
    return None


def _spread_out(candidates: Sequence[SavedCheckpoint]) -> list[SavedCheckpoint]:
    """Checkpoints of which one is within half as many steps again of any: a run's movements until then are alike."""
    chosen = list[SavedCheckpoint]()
    for checkpoint in candidates:
        if not chosen or checkpoint.step >= 1.5 * chosen[-1].step or checkpoint is candidates[-1]:
            chosen.append(checkpoint)
    return chosen


def _apart(sample: Sample, base: Sample) -> Sample | None:
    both = aligned(sample, base)
    return None if both is None else Sample(max(sample.every, base.every), set_apart(*both))


def _resembles(sample: Sample, other: Sample) -> bool:
    both = aligned(sample, other)
    return both is not None and distance(*both) < DISTANCE


def _weights(run: RecordedRun, other: RecordedRun, name: str, start: Samples) -> Sample | None:
    """What stands for a start in a comparison of weights: itself, or the first checkpoint of starts known to differ."""
    if name in start:
        return start[name]
    if start_digest(run, name) is None or start_digest(other, name) is None or not run.checkpoints:
        return None
    return run.checkpoints[0].samples.get(name)


def _trained(run: RecordedRun) -> list[str]:
    if run.manifest.tensors is not None:
        return run.manifest.tensors.trained
    return list(run.checkpoints[0].tensors) if run.checkpoints else []


def _unnamed(run: RecordedRun, near: _Near) -> MissingParentError:
    ancestry, origin = run.manifest.ancestry, near.checkpoint
    said = ancestry.start if ancestry.parent is None else str(ancestry.parent)
    problem = f"ancestry: the start is stated as {said}"
    remedy = (
        f"state start private, run {origin.run}, step {origin.step}: the start is suspiciously near {origin.name} "
        f"({near.why}); or, if it does not come from there, independent_of: [{origin.run}], which certificates repeat"
    )
    return MissingParentError(run.file, "ancestry", ancestry.start, remedy, problem=problem)
