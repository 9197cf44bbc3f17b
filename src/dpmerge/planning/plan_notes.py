"""What a plan says beside its cost: averages without a reason, looks that had no room, a δ that is too large.

Guarantees: notes depend on the records and on how the plan was made; none of them changes the plan or its cost.
Refuses nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from dpmerge.accounting.mechanisms import DpSgd
from dpmerge.planning.averaging_reasons import averaged_with_reason, model_kind, unreasoned
from dpmerge.planning.noise_prediction import is_relative
from dpmerge.portfolio.recorded_runs import Run
from dpmerge.terms.mechanism_schema import DpSgdFacts

if TYPE_CHECKING:
    from dpmerge.planning.plan import Plan

STATE_IT = "`dpmerge manifest upgrade --set model=…`"


def plan_notes(plan: Plan) -> list[str]:
    """Sentences for a person, most important first."""
    return [*_doubtful_averages(plan), *_averages_left_out(plan), *_relative_noise(plan), *_large_delta(plan)]


def _doubtful_averages(plan: Plan) -> Iterator[str]:
    """Averages that were asked for, of models that there is no reason to average."""
    portfolio = plan.portfolio
    doubtful: dict[str, Run] = {}
    for candidate in plan.candidates:
        runs = list({name: portfolio.run(portfolio.saved(name).run) for name in candidate.recipe.names}.values())
        together = list({run.id: run for run in runs}.values())
        if len(together) > 1:
            doubtful |= {run.id: run for run in unreasoned(together)}
    if doubtful:
        yield (
            f"It averages {_named(list(doubtful.values()))}: of adapters, and of networks trained apart from a random "
            "start, an average can be far worse than each model in it. Compare them on public data, or use --method "
            "auto."
        )


def _averages_left_out(plan: Plan) -> Iterator[str]:
    """Averages that auto did not consider, and the field that would make it."""
    if plan.asked.get("method") != "auto" or plan.asked.get("theorem") not in ("auto", "joint_release"):
        return
    if "look" in plan.chosen_by or not plan.charged:
        return
    left_out = [
        run
        for together in plan.portfolio.combinable()
        if len(together) > 1
        for run in set(together) - set(averaged_with_reason(together))
    ]
    left_out = [run for run in plan.portfolio.runs if run in left_out]
    if not left_out:
        return
    unknown = [run for run in left_out if model_kind(run) is None]
    words = f"Averages of {_named(left_out)} were not considered: they can be worse than each of them, unless models "
    words += "are linear or smooth, or trained on as a whole from one public checkpoint (docs/usefulness.md)."
    if unknown:
        words += f" If these models are linear or smooth, say so in the manifest's field `model` ({STATE_IT});"
    yield f"{words}{' otherwise' if unknown else ''} --method mix averages all the same."


def _relative_noise(plan: Plan) -> Iterator[str]:
    """That noise was predicted in another way than for SGD."""
    others = [run for run in plan.portfolio.runs if is_relative([run.mechanism])]
    if others and plan.chosen_by.get("objective") == "noise":
        yield (
            f"Noise is predicted relative to the clip norm: {_named(others)} used an optimizer that is not SGD, and "
            "such optimizers divide a gradient by its own size."
        )


def _large_delta(plan: Plan) -> Iterator[str]:
    records = max((n for run in plan.portfolio.runs if (n := _records(run)) is not None), default=None)
    if records is not None and plan.target.delta > 1 / records:
        yield (
            f"δ = {plan.target.delta:g} is above one in {records:,} records: it allows to publish a record at random. "
            f"Use at most {1 / records:.1g}, better less."
        )


def _records(run: Run) -> int | None:
    """As the manifest states it: the size of the data, or the expected batch over the sampling rate."""
    manifest = run.manifest
    if manifest.dataset.size is not None:
        return manifest.dataset.size
    facts, mechanism = manifest.mechanism, run.mechanism
    if not isinstance(facts, DpSgdFacts) or not isinstance(mechanism, DpSgd) or not facts.expected_batch_size:
        return None
    return int(facts.expected_batch_size / float(mechanism.sampling_rates[0]))


def _named(runs: Sequence[Run]) -> str:
    names = [run.id for run in runs]
    return ", ".join(names) if len(names) <= 4 else f"{', '.join(names[:3])} and {len(names) - 3} more runs"
