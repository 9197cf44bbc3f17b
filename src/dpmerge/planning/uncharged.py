"""The paper's practice: choose by scores on public data and pay nothing for having looked.

Guarantees: the plan is marked `uncharged`, and with it everything made from it: its ε does not cover the choice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dpmerge.planning.desk import Desk, Method
from dpmerge.planning.looking import PublicEvaluation, described
from dpmerge.planning.plan import Plan
from dpmerge.planning.pool import Batch, some_of
from dpmerge.planning.rungs import Rungs
from dpmerge.privacy.domain import Array
from dpmerge.privacy.premises import Premise


def uncharged_plan(desk: Desk, objective: PublicEvaluation, method: Method) -> Plan:
    """The paper's practice: score candidates within the target and take the best, the looking not paid for."""
    singles, combined = desk.singles, desk.combined
    # A theorem asked for by name is about combinations: single models are scored for a draw only.
    by_name = desk.theorem not in ("auto", "joint_release") and method != "mix"
    kept = [some_of(singles, np.arange(0 if by_name else min(len(singles), objective.evaluations)))]
    room = objective.evaluations - len(kept[0])
    if method != "select":
        kept += _nearest(desk, combined, room)
    recipes = [batch.recipe(place) for batch in kept for place in range(len(batch))]
    scores = iter(objective.scores(desk.rungs, recipes))
    measured = {id(batch): np.array([next(scores) for _ in range(len(batch))]) for batch in kept}
    looked_at: dict[str, int] = {}
    for name in (name for recipe in recipes for name in recipe.names):
        run, step = desk.rungs[name].run.id, desk.rungs[name].saved.step
        looked_at[run] = max(looked_at.get(run, 0), step)
    looked = Measured(measured, len(recipes), described(objective.evaluator), looked_at)
    scored = replace(desk, objective=looked, singles=kept[0], combined=tuple(kept[1:]))
    return scored.plan("mix" if method == "auto" else method)


@dataclass(frozen=True, eq=False)
class Measured:
    """Scores that were measured, batch by batch."""

    by_batch: dict[int, Array]
    count: int
    evaluator: str
    looked_at: Mapping[str, int]
    name: str = "public_evaluation"
    uses_release_noise: bool = True

    def scores(self, batch: Batch, rungs: Rungs) -> Array:  # noqa: ARG002
        return self.by_batch[id(batch)]

    def doubts(self, batch: Batch, rungs: Rungs) -> Array:  # noqa: ARG002
        return np.zeros(len(batch))

    def document(self) -> dict[str, Any]:
        return {
            "kind": "uncharged",
            "objective": self.name,
            "rule": f"the best score of {self.count} candidates on public data",
            "evaluations": self.count,
            "evaluator": self.evaluator,
            "looked_at": dict(self.looked_at),
        }

    def premises(self) -> tuple[Premise, ...]:
        voice = "nobody: the choice was made by looking at models that are not paid for"
        return (Premise("chosen_without_looking", False, voice),)


def _nearest(desk: Desk, batches: Sequence[Batch], room: int) -> list[Batch]:
    """Of all combinations those whose cost is nearest to the target: a draw mixes cheaper with dearer ones."""
    found = []
    for number, batch in enumerate(batches):
        with np.errstate(divide="ignore"):
            distance = np.abs(np.log(batch.epsilons(desk.target.delta) / desk.target.epsilon))
        found += [(d, number, place) for place, d in enumerate(distance.tolist()) if np.isfinite(d)]
    chosen = sorted(found)[: max(room, 0)]
    kept = []
    for number, batch in enumerate(batches):
        if places := sorted(place for _, which, place in chosen if which == number):
            kept.append(some_of(batch, np.array(places)))
    return kept
