"""What is known of the weights that runs started from: values, digests, or nothing.

Guarantees: values that are said to be a start's are those of every kept tensor that is still as it was then.
Refuses (`DigestMismatchError`): a recorded sample that is not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from dpmerge.errors import DigestMismatchError
from dpmerge.portfolio.recorded_runs import RecordedRun, Run, SavedCheckpoint
from dpmerge.portfolio.samples import Sample, aligned
from dpmerge.terms.mechanism_schema import DpSgdFacts, HistoryFacts

Samples = Mapping[str, Sample]


def start_values(run: RecordedRun) -> Samples:
    """Some values of each tensor a run started from, as recorded or as kept in a checkpoint."""
    manifest = run.manifest
    recorded = manifest.start_sample.samples() if manifest.start_sample is not None else {}
    seen: dict[str, Sample] = {}
    for checkpoint in run.checkpoints:
        for name, sample in checkpoint.samples.items():
            if checkpoint.step == 0 or _rests(run, checkpoint, name):
                seen.setdefault(name, sample)
    for name, sample in seen.items():
        both = aligned(recorded[name], sample) if name in recorded else None
        if name in recorded and (both is None or (both[0] != both[1]).any()):
            field = f"start_sample.values: {name}"
            problem = f"{field} has other values in a checkpoint in which it is as it was at the start"
            raise DigestMismatchError(run.file, field, None, "put back what was recorded", problem=problem)
    return {**recorded, **seen}


def _rests(run: RecordedRun, checkpoint: SavedCheckpoint, name: str) -> bool:
    """Whether a tensor of a checkpoint is what it was at the start: frozen, or never moved."""
    tensors = run.manifest.tensors
    if tensors is None or checkpoint.digests is None:
        return False
    return name in tensors.frozen or tensors.initial.get(name) == checkpoint.digests[name]


def start_digest(run: RecordedRun, name: str) -> str | None:
    """Of one tensor, where it is recorded."""
    return run.manifest.tensors.initial.get(name) if run.manifest.tensors is not None else None


def same_start(run: RecordedRun, other: RecordedRun, name: str, by_name: Mapping[str, RecordedRun]) -> bool:
    """Whether a tensor started as it did in the other run, or where that one's line of parents began.

    Training takes noise out again: a child may well go back to where its parent started.
    """
    whole, part = run.manifest.initial_weights, start_digest(run, name)
    return any(
        (whole is not None and each.manifest.initial_weights == whole)
        or (part is not None and start_digest(each, name) == part)
        for each in (other, *ancestors(other, by_name))
    )


def ancestors(run: RecordedRun, by_name: Mapping[str, RecordedRun]) -> Iterator[RecordedRun]:
    """The runs it says it descends from, as far as they are there."""
    seen = {run.manifest.run}
    parent = by_name.get(run.manifest.ancestry.run or "")
    while parent is not None and parent.manifest.run not in seen:
        seen.add(parent.manifest.run)
        yield parent
        parent = by_name.get(parent.manifest.ancestry.run or "")


def not_kept(runs: Sequence[Run]) -> list[str]:
    """Trained runs whose start nobody can compare with the others' checkpoints, and which do not share their start."""
    found = []
    for run in runs:
        manifest = run.manifest
        kept = manifest.start_sample is not None or any(checkpoint.step == 0 for checkpoint in run.checkpoints)
        named = manifest.ancestry.run is not None or not isinstance(manifest.mechanism, DpSgdFacts | HistoryFacts)
        others = [other.manifest.initial_weights for other in runs if other is not run]
        if not kept and not named and any(start is None or start != manifest.initial_weights for start in others):
            found.append(run.id)
    return found
