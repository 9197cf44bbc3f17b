"""What the user had before any merging: the least private finished checkpoint within a target, beside a plan for it.

Guarantees: the checkpoint meets the plan's target by itself; it is found by its cost alone, no model is looked at.
Refuses nothing: None where no finished checkpoint meets the target.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dpmerge.accounting.rounding import format_up
from dpmerge.planning.usable_checkpoints import UsableCheckpoint, usable_checkpoints

if TYPE_CHECKING:
    from dpmerge.planning.plan import Plan

FINISHED = 0.8
"""The share of a run's whole rate from which a checkpoint counts as trained."""


@dataclass(frozen=True, kw_only=True)
class SingleCheckpoint:
    """A checkpoint by itself, to compare a plan with."""

    name: str
    epsilon: float
    noise_to_signal: float | None

    def document(self) -> dict[str, Any]:
        return {"checkpoint": self.name, "epsilon": self.epsilon, "noise_to_signal": self.noise_to_signal}


def single_checkpoint(plan: Plan) -> SingleCheckpoint | None:
    """The least private finished checkpoint within the plan's target; of equal ones the first."""
    usable = usable_checkpoints(plan.portfolio, plan.target.delta, non_private=plan.non_private)
    fitting = [c for c in usable.checkpoints if c.share_of_run >= FINISHED and c.epsilon <= plan.target.epsilon]
    if not fitting:
        return None
    dearest = max(fitting, key=lambda checkpoint: checkpoint.epsilon)
    return SingleCheckpoint(name=dearest.name, epsilon=dearest.epsilon, noise_to_signal=_ratio(dearest))


def compared(plan: Plan, single: SingleCheckpoint | None) -> str:
    """One sentence: what the plan does better than that checkpoint, by what it was chosen by."""
    if single is None:
        return "No finished checkpoint meets the target by itself."
    alone = f"{single.name} alone, the least private finished checkpoint within the target (ε = "
    alone += f"{format_up(single.epsilon)})"
    if [candidate.recipe.names for candidate in plan.candidates] == [(single.name,)] and not any(
        candidate.recipe.release_noise for candidate in plan.candidates
    ):
        return f"That is {alone}."
    if plan.chosen_by.get("objective") == "saturate":
        return f"Beside it, {alone} leaves {1 - single.epsilon / plan.target.epsilon:.1%} of ε unused."
    if plan.chosen_by.get("objective") == "prior":
        return f"Beside it, {alone}{_stated(plan, single)}."
    if "score" in plan.chosen_by:
        return f"Beside it, {alone} would have cost no look at any model."
    if plan.noise_to_signal is None or not single.noise_to_signal:
        return f"Beside it there is {alone}; nothing is predicted that would tell which is better."
    change = plan.noise_to_signal / single.noise_to_signal - 1
    if abs(change) < 0.005:
        return f"Beside it, {alone} has as much predicted noise."
    return f"It has {abs(change):.0%} {'less' if change < 0 else 'more'} predicted noise than {alone}."


def _stated(plan: Plan, single: SingleCheckpoint) -> str:
    """What the prior says of both."""
    utilities: dict[str, float] = plan.chosen_by["prior"]
    if single.name not in utilities:
        return " has no stated utility"
    return f" has a stated utility of {utilities[single.name]:g}"


def _ratio(checkpoint: UsableCheckpoint) -> float | None:
    return None if checkpoint.noise is None else 1 / checkpoint.noise.precision if checkpoint.noise.variance else 0.0
