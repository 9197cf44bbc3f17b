"""What one more run, or one more checkpoint of a run that exists, would have bought for a target.

Guarantees: each suggestion is planned for as if it were there, by the same method, accounting and theorems; the gain is
in predicted noise, not in accuracy. That takes up to eight plans, so it is done when asked for.
Refuses nothing: plans chosen by anything but noise get no suggestion.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dpmerge.accounting.mechanisms import DpSgd
from dpmerge.errors import NoGuaranteeError
from dpmerge.planning.plan import Plan
from dpmerge.planning.planner import plan
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.portfolio.recorded_runs import Run, SavedCheckpoint

MOST_RUNS = 4
MOST_STEPS = 20

WORTH_SAYING = 0.01
"""Gains below this share of the noise are not mentioned."""


@dataclass(frozen=True)
class Suggestion:
    """Something that does not exist, in words, and the noise-to-signal it would have made possible."""

    what: str
    noise_to_signal: float
    saves: float  # share of the plan's noise

    def __str__(self) -> str:
        return f"{self.what} would allow {self.saves:.0%} less noise."


def suggestions(made: Plan) -> list[Suggestion]:
    """The best further run and the best further checkpoint, if either is worth saying.

    Args:
        made: A plan by predicted noise.

    Returns:
        At most two suggestions; none for plans that were chosen by anything else.
    """
    if made.chosen_by.get("objective") != "noise" or made.noise_to_signal is None:
        return []
    found = []
    for kind in (_one_more_run(made), _one_more_checkpoint(made)):
        tried = [s for what, portfolio in kind if (s := _tried(made, what, portfolio)) is not None]
        best = max(tried, key=lambda suggestion: suggestion.saves, default=None)
        if best is not None and best.saves > WORTH_SAYING:
            found.append(best)
    return found


def _tried(made: Plan, what: str, portfolio: Portfolio) -> Suggestion | None:
    try:
        better = plan(portfolio, made.target, accounting=made.accounting, non_private=made.non_private, **made.asked)  # type: ignore[arg-type]
    except NoGuaranteeError:
        return None
    if better.noise_to_signal is None or made.noise_to_signal is None:
        return None
    used = {name for c in better.candidates for name in c.recipe.names} - {
        saved.name for saved in made.portfolio.checkpoints()
    }
    if not used:
        return None
    words = what.format(step=min(used).rsplit("@", 1)[-1])
    return Suggestion(words, better.noise_to_signal, 1 - better.noise_to_signal / made.noise_to_signal)


def _one_more_run(made: Plan) -> Iterator[tuple[str, Portfolio]]:
    """Runs with the settings of those that exist; several of equal settings are tried once."""
    settings: set[tuple[bytes, ...]] = set()
    for run in _involved_first(made):
        mechanism = run.mechanism
        if not isinstance(mechanism, DpSgd) or mechanism.ancestry is not None or not run.checkpoints:
            continue
        facts = (mechanism.noise_multipliers.tobytes(), mechanism.clip_norms.tobytes(), mechanism.rates.tobytes())
        if facts in settings or len(settings) == MOST_RUNS:
            continue
        settings.add(facts)
        name = f"another-{run.id}"
        manifest = run.manifest.model_copy(update={"run": name})
        twin = Run(manifest, run.folder, replace(mechanism, label=name), _renamed(run.checkpoints, name))
        yield f"One more run with the settings of {run.id}", _with_runs(made.portfolio, [*made.portfolio.runs, twin])


def _one_more_checkpoint(made: Plan) -> Iterator[tuple[str, Portfolio]]:
    for run in _involved_first(made)[:MOST_RUNS]:
        if not run.checkpoints or not isinstance(run.mechanism, DpSgd):
            continue
        last = run.checkpoints[-1].step
        kept = {saved.step: saved for saved in run.checkpoints}
        steps = sorted({*kept, *np.unique(np.linspace(1, last, MOST_STEPS).astype(int)).tolist()})
        every = tuple(kept.get(step, replace(run.checkpoints[-1], step=step)) for step in steps)
        denser = Run(run.manifest, run.folder, run.mechanism, every)
        runs = [denser if other is run else other for other in made.portfolio.runs]
        yield f"One more checkpoint, {run.id}@{{step}},", _with_runs(made.portfolio, runs)


def _involved_first(made: Plan) -> list[Run]:
    """The runs of the plan, then the others by their number of steps."""
    involved = {run.label for run in made.exposure.steps}
    return sorted(made.portfolio.runs, key=lambda run: run.id not in involved)


def _renamed(checkpoints: Sequence[SavedCheckpoint], run: str) -> tuple[SavedCheckpoint, ...]:
    return tuple(replace(saved, run=run) for saved in checkpoints)


def _with_runs(portfolio: Portfolio, runs: Sequence[Run]) -> Portfolio:
    return replace(portfolio, runs=tuple(runs))
