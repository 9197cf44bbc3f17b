"""Choosing by a private validation set: the exponential mechanism on counts, each side charged to whom it belongs.

Guarantees: the choice is (ε_V, 2⁻⁵⁰⁰)-DP for the people in the validation set, drawn over whole numbers; for those in
the training set the plan costs the joint release of every model scored. The plan's guarantee is for one person: the
larger of both if the sets are vouched to be disjoint, else the sum. Both sides are reported.
Refuses: scores that are not counts, without repeating them, and caches, which would write them down.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, Context, Decimal
from itertools import islice
from typing import Any

from dpmerge.accounting import validation
from dpmerge.accounting.premises import Premise
from dpmerge.errors import EvaluationError, InvalidInputError
from dpmerge.evaluation.evaluate import evaluate
from dpmerge.evaluation.evaluation_progress import Progressed
from dpmerge.evaluation.evaluators import Evaluator
from dpmerge.evaluation.linear_classifier import LinearClassifier
from dpmerge.planning.analysis import Accounting
from dpmerge.planning.candidate_search import Method
from dpmerge.planning.candidates import AskedTheorem
from dpmerge.planning.look_set import inside, look_set
from dpmerge.planning.plan import Plan
from dpmerge.planning.public_selection import look_set_plan, require_joint_release
from dpmerge.planning.usable_checkpoints import UsableCheckpoints
from dpmerge.terms.guarantee import Guarantee
from dpmerge.terms.recipe import Recipe
from dpmerge.terms.release_terms import ROUNDING_DELTA

_SCALE = 2**512
"""Weights are integers of this scale."""

LEAST_DELTA = 1e-100
"""Of a target: below, there would be no room for that."""

MOST_CANDIDATES = 1000


@dataclass(frozen=True, kw_only=True)
class PrivateValidation:
    """Count successes of merges on a private validation set, and draw one with probability ∝ e^{ε·count/2}.

    (theory 5.1.)

    Args:
        evaluator: How many validation records a merge gets right: one record changes a count by at most one. (A
            LinearClassifier returns a share, and says of how many.)
        epsilon: What the choice costs people in the validation set.
        look: The checkpoints that may be scored, run@step; without it the planner picks them by their noise alone.
        evaluations: How many merges are scored, at most.
        disjoint_vouched_by: Who vouches that each person lies wholly in the training or in the validation set and that
            the split does not depend on the data; otherwise what a person pays adds up.
        records_per_unit: How many validation records one unit of privacy has, at most; left out it is 1 where the unit
            is a record, and has to be said where it is not.
        executor: Where merges are scored; without one, one after the other.
        progress: Called with how many are scored, and of how many.

    Raises:
        InvalidInputError: A value outside its domain.

    >>> import dpmerge as dpm
    >>> portfolio = dpm.Portfolio.load("examples/probe")
    >>> counted = PrivateValidation(evaluator=lambda tensors: 7, epsilon=0.2, evaluations=3)
    >>> dpm.plan(portfolio, epsilon=1, delta=1e-5, objective=counted).chosen_by["sides"]["validation"]["epsilon"]
    0.2
    """

    evaluator: Evaluator
    epsilon: float
    look: Sequence[str] | None = None
    evaluations: int = 50
    disjoint_vouched_by: str | None = None
    records_per_unit: int | None = None
    executor: Executor | None = None
    progress: Progressed | None = None

    def __post_init__(self) -> None:
        validation.positive("validation epsilon", self.epsilon)
        validation.integer("evaluations", self.evaluations, least=1, most=MOST_CANDIDATES)
        if self.disjoint_vouched_by is not None and not str(self.disjoint_vouched_by).strip():
            raise InvalidInputError("disjoint", self.disjoint_vouched_by, "who vouches for it; or leave it out")
        if self.records_per_unit is not None:
            validation.integer("records per unit", self.records_per_unit, least=1)

    def sensitivity(self, unit: str) -> int:
        """By how much one unit of privacy can change a count."""
        if self.records_per_unit is None and unit != "record":
            accepted = f"a bound on how many validation records one {unit} has"
            raise InvalidInputError("records per unit", None, accepted, found="nothing")
        return self.records_per_unit or 1

    def for_training(self, target: Guarantee) -> Guarantee:
        """What the target leaves for the people in the training set."""
        left = target.epsilon if self.disjoint_vouched_by else (target.epsilon - self.epsilon) * (1 - 1e-12)
        if self.epsilon > target.epsilon or left <= 0:
            accepted = f"less than the target's {target.epsilon:g}, which covers a person who is in both sets"
            raise InvalidInputError("validation epsilon", self.epsilon, accepted)
        if target.delta < LEAST_DELTA:
            raise InvalidInputError("delta", target.delta, f"at least {LEAST_DELTA:g} with a validation set")
        return Guarantee(epsilon=left, delta=math.nextafter(target.delta, 0.0))


def private_selection_plan(
    usable: UsableCheckpoints,
    target: Guarantee,
    objective: PrivateValidation,
    method: Method,
    theorem: AskedTheorem,
    accounting: Accounting,
) -> Plan:
    """One of the merges inside the look set, drawn by how well it does on the validation set."""
    require_joint_release(theorem)
    look = look_set(usable, objective.for_training(target), objective.look, accounting)
    recipes = list(islice(inside(usable, look, method, objective.evaluations), objective.evaluations))
    unit = usable.portfolio.unit
    sensitivity = objective.sensitivity(unit)
    for_a_record = objective.epsilon if sensitivity == 1 else math.nextafter(objective.epsilon / sensitivity, 0.0)
    chosen = recipes[exponential_choice(_counts(usable, recipes, objective), for_a_record)]
    disjoint = objective.disjoint_vouched_by
    plan = look_set_plan(
        usable, objective.for_training(target), look, chosen, method, accounting,
        chosen_by={
            "kind": "private_validation",
            "objective": "private_validation",
            "rule": f"the exponential mechanism on counts of {len(recipes)} candidates",
            "look": {checkpoint.run.id: checkpoint.saved.step for checkpoint in look.latest},
            "evaluations": len(recipes),
        },
        premises=(
            look.premise(),
            Premise("one_validation_record_changes_a_count_by_one", True, "whoever named the evaluator"),
            Premise(f"at_most_{sensitivity}_of_them_a_{unit}", True, "whoever made the validation set"),
            *([Premise("training_and_validation_people_disjoint", True, disjoint)] if disjoint else []),
        ),
    )  # fmt: skip
    return _for_one_person(plan, target, objective.epsilon, disjoint is not None)


def _counts(usable: UsableCheckpoints, recipes: Sequence[Recipe], objective: PrivateValidation) -> list[int]:
    """How many records each gets right; what went wrong is not repeated, it may tell of the validation set."""
    # Nothing but the classifier that is known to return shares: a factor on counts would multiply what one record does.
    shares = objective.evaluator.records if isinstance(objective.evaluator, LinearClassifier) else 1
    try:
        scores = evaluate(
            usable.portfolio, recipes, objective.evaluator, executor=objective.executor, progress=objective.progress
        )
    except EvaluationError:
        scores = []
    counts = [round(score * shares) for score in scores]
    if not scores or any(c < 0 or abs(s * shares - c) > 1e-6 for s, c in zip(scores, counts, strict=True)):
        what = "something else (not shown: it may tell of the validation set)"
        raise EvaluationError("a candidate on the validation set", what, "how many validation records are right")
    return counts


def _for_one_person(plan: Plan, target: Guarantee, epsilon: float, disjoint: bool) -> Plan:
    """The guarantee for everybody, and what it is made of; the rounding's δ is within what was left for it."""
    training = plan.guarantee
    whole = max(training.epsilon, epsilon) if disjoint else math.nextafter(training.epsilon + epsilon, math.inf)
    sides: dict[str, Any] = {
        "training": {"epsilon": training.epsilon, "delta": training.delta},
        "validation": {"epsilon": epsilon, "delta": ROUNDING_DELTA},
        "because": "each person is in one set only" if disjoint else "nobody vouches that the sets are disjoint",
    }
    guarantee = Guarantee(epsilon=whole, delta=target.delta)
    return replace(plan, target=target, guarantee=guarantee, chosen_by={**plan.chosen_by, "sides": sides})


def exponential_choice(
    counts: Sequence[int], epsilon: float, *, below: Callable[[int], int] = secrets.randbelow
) -> int:
    """An index drawn with probability ∝ e^{ε·count/2}, from the operating system's randomness over whole numbers."""
    best = max(counts)
    exact = Context(prec=200)
    half = exact.divide(Decimal(repr(float(epsilon))), Decimal(2))
    weights = []
    for count in counts:
        share = exact.exp(exact.multiply(half, Decimal(count - best)))
        weights.append(int(exact.multiply(share, Decimal(_SCALE)).to_integral_value(rounding=ROUND_CEILING)))
    drawn = below(sum(weights))
    for index, weight in enumerate(weights):
        if drawn < weight:
            return index
        drawn -= weight
    raise AssertionError("a draw below the sum of the weights falls into one of them")
