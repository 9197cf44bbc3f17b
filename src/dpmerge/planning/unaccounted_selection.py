"""The paper's practice: choose by scores on public data and pay nothing for having looked.

Guarantees: the plan is marked `uncharged`, and with it everything made from it: its ε does not cover the choice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dpmerge.accounting.premises import Premise
from dpmerge.accounting.validation import Array
from dpmerge.planning.candidate_arrays import CandidateBatch, some_of
from dpmerge.planning.candidate_search import CandidateSearch, Method
from dpmerge.planning.plan import Plan
from dpmerge.planning.public_selection import PublicEvaluation, described
from dpmerge.planning.usable_checkpoints import UsableCheckpoints


def unaccounted_plan(search: CandidateSearch, objective: PublicEvaluation, method: Method) -> Plan:
    """The paper's practice: score candidates within the target and take the best, the looking not paid for."""
    singles, combined = search.singles, search.combined
    # A theorem asked for by name is about combinations: single models are scored for a draw only.
    by_name = search.theorem not in ("auto", "joint_release") and method != "mix"
    kept = [some_of(singles, np.arange(0 if by_name else min(len(singles), objective.evaluations)))]
    room = objective.evaluations - len(kept[0])
    if method != "select":
        kept += _nearest(search, combined, room)
    recipes = [batch.recipe(index) for batch in kept for index in range(len(batch))]
    scores = iter(objective.scores(search.usable, recipes))
    measured = {id(batch): np.array([next(scores) for _ in range(len(batch))]) for batch in kept}
    looked_at: dict[str, int] = {}
    for name in (name for recipe in recipes for name in recipe.names):
        run, step = search.usable[name].run.id, search.usable[name].saved.step
        looked_at[run] = max(looked_at.get(run, 0), step)
    looked = MeasuredMerge(measured, len(recipes), described(objective.evaluator), looked_at)
    scored = replace(search, objective=looked, singles=kept[0], combined=tuple(kept[1:]))
    return scored.plan("mix" if method == "auto" else method)


@dataclass(frozen=True, eq=False)
class MeasuredMerge:
    """Scores that were measured, batch by batch."""

    by_batch: dict[int, Array]
    count: int
    evaluator: str
    looked_at: Mapping[str, int]
    name: str = "public_evaluation"
    uses_release_noise: bool = True

    def scores(self, batch: CandidateBatch, usable: UsableCheckpoints) -> Array:  # noqa: ARG002
        return self.by_batch[id(batch)]

    def drawbacks(self, batch: CandidateBatch, usable: UsableCheckpoints) -> Array:  # noqa: ARG002
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
        nobody = "nobody: the choice was made by looking at models that are not paid for"
        return (Premise("chosen_without_looking", False, nobody),)


def _nearest(search: CandidateSearch, batches: Sequence[CandidateBatch], room: int) -> list[CandidateBatch]:
    """Of all combinations those whose cost is nearest to the target: a draw mixes cheaper with dearer ones."""
    found = []
    for number, batch in enumerate(batches):
        with np.errstate(divide="ignore"):
            distance = np.abs(np.log(batch.epsilons(search.target.delta) / search.target.epsilon))
        found += [(d, number, index) for index, d in enumerate(distance.tolist()) if np.isfinite(d)]
    chosen = sorted(found)[: max(room, 0)]
    kept = []
    for number, batch in enumerate(batches):
        if indices := sorted(index for _, which, index in chosen if which == number):
            kept.append(some_of(batch, np.array(indices)))
    return kept
