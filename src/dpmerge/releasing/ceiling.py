"""The default ceiling of a cap: how far each run may ever be looked at, picked by noise levels alone.

Guarantees: its joint release fits the cap, and no model was looked at to pick it.
"""

from __future__ import annotations

from collections.abc import Sequence

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
