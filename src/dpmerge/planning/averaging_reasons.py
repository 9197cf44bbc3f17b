"""When there is reason to average models: linear or smooth ones, and networks fine-tuned whole from one public start.

Guarantees: a reason is what the records state, never a model. What an average costs does not depend on it.
Refuses nothing: `auto` leaves out averages without a reason; `combine` and `mix` make them, and the plan says so.

Between networks trained apart from a random start lies a ridge: their average can be worse than each of them, and so
can that of adapters, whatever they are adapted to (docs/usefulness.md has the figures).
"""

from __future__ import annotations

from collections.abc import Sequence

from dpmerge.accounting.mechanisms import DpSgd
from dpmerge.portfolio.manifest_parts import ModelKind
from dpmerge.portfolio.recorded_runs import Run


def model_kind(run: Run) -> ModelKind | None:
    """As the manifest states it; a run of stated smoothness is smooth."""
    if run.manifest.model is not None:
        return run.manifest.model
    smooth = isinstance(run.mechanism, DpSgd) and run.mechanism.smoothness is not None
    return "smooth" if smooth else None


def noise_decides(run: Run) -> bool:
    """Whether nothing but noise keeps an average from being as good as its members."""
    return model_kind(run) in ("linear", "smooth")


def averaged_with_reason(runs: Sequence[Run]) -> tuple[Run, ...]:
    """Those of some runs that may be averaged at all of which an average may be expected to be good."""
    convex = [run for run in runs if noise_decides(run)]
    tuned = [run for run in runs if not noise_decides(run) and _starts_in_public(run)]
    common = [run for run in tuned if run.manifest.initial_weights == tuned[0].manifest.initial_weights]
    kept = {run.id for run in (convex if len(convex) >= len(common) else common)}
    return tuple(run for run in runs if run.id in kept)


def unreasoned(runs: Sequence[Run]) -> tuple[Run, ...]:
    """Those of the runs in one average that there is no reason to average."""
    reasoned = {run.id for run in averaged_with_reason(runs)}
    return tuple(run for run in runs if run.id not in reasoned)


def _starts_in_public(run: Run) -> bool:
    """Whether all weights were trained on from a public checkpoint that somebody named: adapters begin at random."""
    manifest = run.manifest
    stated = manifest.ancestry.start == "public" and not manifest.ancestry.assumed
    frozen = manifest.tensors is not None and bool(manifest.tensors.frozen or manifest.tensors.frozen_weights)
    return stated and manifest.initial_weights is not None and not frozen
