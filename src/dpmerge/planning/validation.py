"""Choosing by a private validation set: the exponential mechanism on counts, each side charged to whom it belongs.

Guarantees: the choice is (ε_V, 0)-DP for the people in the validation set, by exact integer sampling; for the people in
the training set the plan costs the joint release of every model scored. Both are reported, and what one person pays.
Refuses: scores that are not counts, and caches, which would write the counts down.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, Context, Decimal
from itertools import islice
from typing import Any

from dpmerge.errors import EvaluationFailed
from dpmerge.evaluation.evaluate import evaluate
from dpmerge.evaluation.evaluators import Evaluator
from dpmerge.evaluation.progress import Progressed
from dpmerge.planning.analysis import Accounting
from dpmerge.planning.candidates import Theorem
from dpmerge.planning.desk import Method
from dpmerge.planning.look_set import inside, look_set
from dpmerge.planning.looking import priced_plan, require_joint_release
from dpmerge.planning.plan import Plan
from dpmerge.planning.rungs import Rungs
from dpmerge.planning.target import Guarantee
from dpmerge.privacy import domain
from dpmerge.privacy.premises import Premise

_SCALE = 2**512
"""Weights are integers of this scale: a candidate so much worse than the best that it rounds to one is never drawn."""


@dataclass(frozen=True, kw_only=True)
class PrivateValidation:
    """Count successes of merges on a private validation set, and draw one with probability ∝ e^{ε·count/2}.

    The evaluator returns how many validation records a merge gets right: one record changes a count by at most one.
    `disjoint_vouched_by` says who vouches that each person lies wholly in the training or in the validation set and
    that the split does not depend on the data; otherwise what a person pays adds up.
    """

    evaluator: Evaluator
    epsilon: float
    look: Sequence[str] | None = None
    evaluations: int = 50
    disjoint_vouched_by: str | None = None
    executor: Executor | None = None
    progress: Progressed | None = None

    def __post_init__(self) -> None:
        domain.positive("validation epsilon", self.epsilon)
        domain.integer("evaluations", self.evaluations, least=1)


def validated_plan(
    rungs: Rungs,
    target: Guarantee,
    objective: PrivateValidation,
    method: Method,
    theorem: Theorem,
    accounting: Accounting,
) -> Plan:
    """One of the merges inside the look set, drawn by how well it does on the validation set."""
    require_joint_release(theorem)
    look = look_set(rungs, target, objective.look, accounting)
    recipes = list(islice(inside(rungs, look, method, objective.evaluations), objective.evaluations))
    scores = evaluate(
        rungs.portfolio, recipes, objective.evaluator, executor=objective.executor, progress=objective.progress
    )
    counts = []
    for recipe, score in zip(recipes, scores, strict=True):
        if score < 0 or score != int(score):
            raise EvaluationFailed(str(recipe), "a score that is no count", "how many validation records are right")
        counts.append(int(score))
    chosen = recipes[exponential_choice(counts, objective.epsilon)]
    disjoint = objective.disjoint_vouched_by
    plan = priced_plan(
        rungs, target, look, chosen, method, accounting,
        chosen_by={
            "kind": "private_validation",
            "objective": "private_validation",
            "rule": f"the exponential mechanism on counts of {len(recipes)} merges",
            "look": {rung.run.id: rung.saved.step for rung in look.latest},
            "evaluations": len(recipes),
        },
        premises=(
            look.premise(),
            Premise("one_validation_record_changes_a_count_by_one", True, "whoever named the evaluator"),
            *([Premise("training_and_validation_people_disjoint", True, disjoint)] if disjoint else []),
        ),
    )  # fmt: skip
    return _with_validation(plan, objective.epsilon, disjoint is not None)


def _with_validation(plan: Plan, epsilon: float, disjoint: bool) -> Plan:
    """Add what the validation side costs, and what one person pays for both."""
    training = plan.guarantee
    whole = max(training.epsilon, epsilon) if disjoint else training.epsilon + epsilon
    validation: dict[str, Any] = {
        "guarantee": {"epsilon": epsilon, "delta": 0.0},
        "one_person_pays": {"epsilon": whole, "delta": training.delta},
        "because": "each person is in one set only" if disjoint else "nobody vouches that the sets are disjoint",
    }
    return replace(plan, chosen_by={**plan.chosen_by, "validation": validation})


def exponential_choice(
    counts: Sequence[int], epsilon: float, *, below: Callable[[int], int] = secrets.randbelow
) -> int:
    """A place drawn with probability ∝ e^{ε·count/2}, from the operating system's randomness over whole numbers.

    Rounding a weight up to a whole number of 2⁻⁵¹² changes a ratio of two that matter by less than 1e-100.
    """
    best = max(counts)
    exact = Context(prec=200)
    half = exact.divide(Decimal(repr(float(epsilon))), Decimal(2))
    weights = []
    for count in counts:
        share = exact.exp(exact.multiply(half, Decimal(count - best)))
        weights.append(int(exact.multiply(share, Decimal(_SCALE)).to_integral_value(rounding=ROUND_CEILING)))
    drawn = below(sum(weights))
    for place, weight in enumerate(weights):
        if drawn < weight:
            return place
        drawn -= weight
    raise AssertionError("a draw below the sum of the weights falls into one of them")
