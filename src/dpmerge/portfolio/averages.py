"""Averages of a run's weights, kept beside its checkpoints: each as a run of its own, of no steps and no noise.

`adult-s32.ema-100` is the exponential average of adult-s32 after step 100: whatever can be done with a checkpoint can
be done with `adult-s32.ema-100@1`, at the cost of the run's first 100 steps.

Guarantees: an average descends from the checkpoint beside which it was kept, so whoever prices it prices that prefix;
it is never an iterate (theory 2.2), so no theorem about updates is asked about it.
"""

from __future__ import annotations

from collections.abc import Iterator

from dpmerge.portfolio.manifest import SCHEMA, Manifest, NoiseRecord, SavedAs
from dpmerge.portfolio.manifest_parts import SavedAverage
from dpmerge.terms.documents import validated
from dpmerge.terms.one_shot_schema import AverageFacts
from dpmerge.terms.run_record import Ancestry


def average_name(run: str, average: str, step: int) -> str:
    """What an average is called in a portfolio."""
    return f"{run}.{average}-{step}"


def is_average(manifest: Manifest) -> bool:
    """Whether a manifest is that of an average."""
    return isinstance(manifest.mechanism, AverageFacts)


def averages_of(manifest: Manifest) -> Iterator[Manifest]:
    """The manifest of each average that a run kept, as if somebody had written it."""
    for saved in manifest.checkpoints:
        for average in saved.averages or ():
            yield _manifest(manifest, saved, average)


def _manifest(run: Manifest, saved: SavedAs, average: SavedAverage) -> Manifest:
    content = {
        "schema": SCHEMA,
        "run": average_name(run.run, average.name, saved.step),
        "dataset": run.dataset,
        "unit": run.unit,
        "adjacency": run.adjacency,
        "mechanism": AverageFacts(kind="average", decay=average.decay, vouched_by=average.vouched_by),
        "noise": NoiseRecord(source="none"),
        "ancestry": Ancestry(start="private", run=run.run, step=saved.step),
        # Where its run began: what sets the average apart from there is the run's movement.
        "initial_weights": run.initial_weights,
        "start_sample": run.start_sample,
        "tensors": run.tensors,
        "tuning": run.tuning,
        "model": run.model,
        "checkpoints": [SavedAs(step=1, files=average.files, weights=average.weights)],
        "recorded_by": run.recorded_by,
        "tools": run.tools,
    }
    return validated(Manifest, content, "manifest")
