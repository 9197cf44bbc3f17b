"""A cap on a portfolio's data, and its default ceiling: how far each run may ever be looked at, picked by noise alone.

Guarantees: the ceiling's joint release fits the cap, and no model was looked at to pick it.
Refuses: fields of one privacy filter that are given to another.
"""

from __future__ import annotations

from collections.abc import Sequence

from dpmerge.errors import InvalidInputError
from dpmerge.ledger.caps import Cap, Rule
from dpmerge.planning.look_set import look_set
from dpmerge.planning.usable_checkpoints import usable_checkpoints
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.terms.guarantee import Guarantee


def ceiling_steps(
    portfolio: Portfolio, epsilon: float, delta: float, names: Sequence[str] | None = None
) -> dict[str, int]:
    """Run → step, ancestors included; the checkpoints named, or the runs whose average carries the least noise."""
    target = Guarantee(epsilon=epsilon, delta=delta)
    target.require_target()
    chosen = look_set(usable_checkpoints(portfolio, delta), target, names, "pld")
    return {run.label: step for run, step in chosen.exposure.steps.items()}


def portfolio_cap(
    portfolio: Portfolio,
    epsilon: float,
    delta: float,
    privacy_filter: Rule,
    ceiling: Sequence[str] | None,
    order: float | None,
) -> Cap:
    """A cap on a portfolio's data; the default ceiling is picked by noise levels alone."""
    if privacy_filter != "ceiling":
        if ceiling is not None:
            raise InvalidInputError("ceiling", ceiling, f"nothing with the privacy filter {privacy_filter}")
        return Cap(epsilon=epsilon, delta=delta, rule=privacy_filter, order=order)
    if order is not None:
        raise InvalidInputError("order", order, "nothing with the privacy filter ceiling")
    steps = ceiling_steps(portfolio, epsilon, delta, ceiling)
    return Cap.of_manifests(epsilon, delta, steps, [run.manifest for run in portfolio.runs])
