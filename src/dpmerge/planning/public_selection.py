"""Choosing by looking: the best merge by a score on public data, and what having looked costs.

Guarantees: a charged plan costs the joint release of its whole look set, fixed before any model is scored, however many
merges are tried and whatever comes out (theory 5).
Refuses: look sets that do not fit the target; theorems other than joint release, which are void once one looks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, get_args

from dpmerge.accounting import validation
from dpmerge.accounting.combination import LinearCombination, joint_release
from dpmerge.accounting.premises import Premise
from dpmerge.errors import InvalidInputError
from dpmerge.evaluation.evaluate import evaluate
from dpmerge.evaluation.evaluation_progress import Progressed
from dpmerge.evaluation.evaluators import Evaluator, identity_of
from dpmerge.evaluation.score_cache import ScoreCache
from dpmerge.planning.analysis import Accounting
from dpmerge.planning.candidate_search import Method, joint_epsilon, selected_profile
from dpmerge.planning.candidates import AskedTheorem, Candidate, linear_combination, predicted_ratio
from dpmerge.planning.look_set import LookSet, averageable, inside, look_set
from dpmerge.planning.plan import Plan
from dpmerge.planning.usable_checkpoints import UsableCheckpoints
from dpmerge.terms.guarantee import Guarantee
from dpmerge.terms.recipe import Recipe

Tuning = Literal["charged", "uncharged"]

MOST_EVALUATIONS = 1_000_000


@dataclass(frozen=True, kw_only=True)
class PublicEvaluation:
    """Score merges on public data and take the best; what may be looked at is paid for (theory 5).

    Args:
        evaluator: From a mapping of tensor names to arrays to a number, more is better.
        tuning: `charged`, or `uncharged`: nothing is paid for looking, and the plan says so.
        look: The checkpoints that may be looked at, run@step; without it the planner picks runs and prefixes within the
            target by their noise alone.
        evaluations: How many merges are scored, at most.
        executor: Where they are scored; without one, one after the other.
        cache: Where scores are kept as they arrive; *not for release*.
        progress: Called with how many are scored, and of how many.

    Raises:
        InvalidInputError: A bad value, or a look set where looking is not charged.

    >>> import dpmerge as dpm
    >>> portfolio = dpm.Portfolio.load("examples/probe")
    >>> scored = PublicEvaluation(evaluator=lambda tensors: float(-abs(tensors["weight"]).sum()), evaluations=4)
    >>> dpm.plan(portfolio, epsilon=1, delta=1e-5, objective=scored).chosen_by["look"]
    {'s16': 1, 's32': 10, 's64': 10}
    """

    evaluator: Evaluator
    tuning: Tuning = "charged"
    look: Sequence[str] | None = None
    evaluations: int = 500
    executor: Executor | None = None
    cache: ScoreCache | str | Path | None = None
    progress: Progressed | None = None

    def __post_init__(self) -> None:
        if self.tuning not in get_args(Tuning):
            raise InvalidInputError("tuning", self.tuning, " or ".join(get_args(Tuning)))
        validation.integer("evaluations", self.evaluations, least=1, most=MOST_EVALUATIONS)
        if self.look is not None and self.tuning == "uncharged":
            raise InvalidInputError("look", list(self.look), "no look set where looking is not charged")

    def scores(self, usable: UsableCheckpoints, recipes: Sequence[Recipe]) -> list[float]:
        return evaluate(
            usable.portfolio,
            recipes,
            self.evaluator,
            executor=self.executor,
            cache=self.cache,
            progress=self.progress,
        )


def public_selection_plan(
    usable: UsableCheckpoints,
    target: Guarantee,
    objective: PublicEvaluation,
    method: Method,
    theorem: AskedTheorem,
    accounting: Accounting,
) -> Plan:
    """The best of the merges inside the look set, at the look set's price."""
    require_joint_release(theorem)
    look = look_set(usable, target, objective.look, accounting)
    recipes = list(islice(inside(usable, look, method, objective.evaluations), objective.evaluations))
    scores = objective.scores(usable, recipes)
    tried = dict(zip(recipes, scores, strict=True))
    if method != "select":
        _climbed(usable, look, objective, tried)
    best = _best(usable, tried)
    return look_set_plan(
        usable, target, look, best, method, accounting,
        chosen_by={
            "kind": "public_evaluation",
            "objective": "public_evaluation",
            "rule": f"the best score of {len(tried)} candidates on public data",
            "look": {checkpoint.run.id: checkpoint.saved.step for checkpoint in look.latest},
            "evaluations": len(tried),
            "evaluator": described(objective.evaluator),
            "score": tried[best],
        },
        premises=(Premise("evaluation_data_public", True, "whoever named the evaluator"), look.premise()),
    )  # fmt: skip


def described(evaluator: Evaluator) -> str:
    """An evaluator by its identity, or by its name; never by where it lies in memory."""
    name = getattr(evaluator, "__qualname__", type(evaluator).__qualname__)
    return identity_of(evaluator) or f"{getattr(evaluator, '__module__', '?')}:{name}"


def _best(usable: UsableCheckpoints, tried: Mapping[Recipe, float]) -> Recipe:
    """The best score; of equal ones the least predicted noise."""

    def noise(recipe: Recipe) -> float:
        combination = linear_combination(usable.portfolio, recipe)
        ratio = predicted_ratio(usable.portfolio, combination, recipe.release_noise)
        return float("inf") if ratio is None else ratio

    highest = max(tried.values())
    return min((recipe for recipe, score in tried.items() if score == highest), key=noise)


def require_joint_release(theorem: AskedTheorem) -> None:
    if theorem not in ("auto", "joint_release"):
        raise InvalidInputError("theorem", theorem, "joint_release: a choice made by looking voids all other theorems")


def look_set_plan(
    usable: UsableCheckpoints,
    target: Guarantee,
    look: LookSet,
    recipe: Recipe,
    method: Method,
    accounting: Accounting,
    *,
    chosen_by: dict[str, Any],
    premises: tuple[Premise, ...],
) -> Plan:
    """One merge, charged for everything that was looked at to find it."""
    seen = [checkpoint.prefix for checkpoint in look.latest]
    bound = joint_release(LinearCombination(checkpoints=seen, weights=[1 / len(seen)] * len(seen)))
    combination = linear_combination(usable.portfolio, recipe)
    ratio = predicted_ratio(usable.portfolio, combination, recipe.release_noise)
    candidate = Candidate(recipe, bound, look.exposure, ratio)
    profile = selected_profile([candidate], [1.0], accounting)
    resolved = "select" if recipe.is_one_checkpoint else "combine"
    return Plan(
        portfolio=usable.portfolio,
        target=target,
        guarantee=Guarantee(epsilon=profile.epsilon(target.delta), delta=target.delta),
        method=resolved if method == "auto" else method,
        accounting=accounting,
        candidates=(candidate,),
        probabilities=(1.0,),
        profile=profile,
        chosen_by=chosen_by,
        asked={"method": method, "theorem": "joint_release"},
        further_premises=premises,
        joint_epsilon=joint_epsilon(usable.portfolio, target.delta),
        left_out=usable.left_out,
    )


def _climbed(usable: UsableCheckpoints, look: LookSet, objective: PublicEvaluation, tried: dict[Recipe, float]) -> None:
    """Exchange weight between pairs of checkpoints around the best found, while evaluations are left."""
    step = 0.1
    while step > 0.01 and len(tried) < objective.evaluations:
        best = max(tried, key=lambda recipe: tried[recipe])
        left = objective.evaluations - len(tried)
        around = [recipe for recipe in _neighbours(usable, look, best, step) if recipe not in tried][:left]
        tried |= zip(around, objective.scores(usable, around), strict=True)
        if max(tried, key=lambda recipe: tried[recipe]) is best:
            step /= 2


def _neighbours(usable: UsableCheckpoints, look: LookSet, recipe: Recipe, step: float) -> Iterator[Recipe]:
    runs = {usable[name].run for name in recipe.names}
    groups = [g for g in averageable(usable, look) if runs <= {checkpoint.run for checkpoint in g}]
    names = [checkpoint.name for checkpoint in (groups[0] if groups else [])]
    weights = dict.fromkeys(dict.fromkeys([*recipe.names, *names]), 0.0) | dict(recipe.parts)
    for giver in recipe.names:
        for taker in weights:
            if taker != giver and weights[giver] > 0:
                moved = min(step, weights[giver])
                yield Recipe.of(weights | {giver: weights[giver] - moved, taker: weights[taker] + moved})
