"""Checkpoints, candidates and frontier points as frames of pandas.

Guarantees: full precision, nothing rounded; names as they are recorded; NaN where there is no figure.
Refuses: to be made without pandas, in one line that says what to install.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import singledispatch
from typing import Any

from dpmerge.accounting import validation
from dpmerge.errors import InvalidInputError
from dpmerge.extras import needs_extra
from dpmerge.planning.analysis import Analysis
from dpmerge.planning.plan import Plan
from dpmerge.portfolio.inspection import Cost, Inspection, checkpoint_costs
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.portfolio.recorded_runs import Run, SavedCheckpoint

Row = dict[str, Any]

_CHECKPOINT = ("checkpoint", "run", "step", "settings", "epsilon", "mu", "no_figure_because")
_COLUMNS: dict[type, tuple[str, ...]] = {
    Portfolio: _CHECKPOINT,
    Inspection: _CHECKPOINT,
    Plan: ("probability", "recipe", "epsilon", "theorem", "proved", "noise_to_signal", "models", "release_noise"),
    Analysis: ("curve", "method", "accounting", "theorem", "proved", "epsilon", "utility"),
}
"""Also those of a frame without rows."""


def frame_of(subject: object, **options: Any) -> Any:
    """A frame of what `dpmerge.notebook.frame` says; arguments and errors as there."""
    with needs_extra("notebook", by="a frame"):
        import pandas
    rows = list(_rows(subject, **options))
    names = dict.fromkeys([*_COLUMNS[type(subject)], *(name for row in rows for name in row)])
    return pandas.DataFrame.from_records(rows, columns=list(names))


@singledispatch
def _rows(subject: object) -> Iterator[Row]:
    accepted = "a portfolio, an inspection, a plan or an analysis"
    raise InvalidInputError("subject", subject, accepted, found=type(subject).__name__)


@_rows.register
def _(subject: Portfolio, delta: float = 1e-5) -> Iterator[Row]:
    validation.delta("delta", delta)
    for run in subject.runs:
        yield from _checkpoints(run, zip(run.checkpoints, checkpoint_costs(run, delta), strict=True))


@_rows.register
def _(subject: Inspection) -> Iterator[Row]:
    for run in subject.portfolio.runs:
        yield from _checkpoints(run, subject.costs[run.id])


def _checkpoints(run: Run, costs: Iterable[tuple[SavedCheckpoint, Cost]]) -> Iterator[Row]:
    for saved, cost in costs:
        yield {
            "checkpoint": saved.name,
            "run": run.id,
            "step": saved.step,
            "settings": run.settings,
            "epsilon": math.nan if cost.epsilon is None else cost.epsilon,
            "mu": math.nan if cost.mu is None else cost.mu,
            "no_figure_because": cost.reason or "",
            **{f"public {each.name}": each.value for each in saved.metrics if each.measured_on == "public"},
        }


@_rows.register
def _(subject: Plan) -> Iterator[Row]:
    for probability, candidate in zip(subject.probabilities, subject.candidates, strict=True):
        known = candidate.noise_to_signal
        yield {
            "probability": probability,
            "recipe": str(candidate.recipe),
            "epsilon": candidate.profile.epsilon(subject.target.delta),
            "theorem": candidate.theorem,
            "proved": candidate.proved,
            "noise_to_signal": math.nan if known is None else known,
            "models": len(candidate.recipe.parts),
            "release_noise": candidate.recipe.release_noise or 0.0,
        }


@_rows.register
def _(subject: Analysis) -> Iterator[Row]:
    for curve in subject.curves:
        for epsilon, utility in zip(curve.epsilons.tolist(), curve.utilities.tolist(), strict=True):
            yield {
                "curve": curve.name,
                "method": curve.method,
                "accounting": curve.accounting,
                "theorem": curve.theorem or "",
                "proved": curve.proved,
                "epsilon": epsilon,
                "utility": utility,
            }
