"""Candidates with their utilities, and the frontier that each method draws through them.

Guarantees: a point of a frontier is the best of the candidates at hand within its ε, each at the cost of its theorem.
Where every merge has to be scored, few are: spread over cost, those of least noise first.
Refuses nothing: where a method reaches no ε of the grid, its curve is not a number there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dpmerge.accounting import validation
from dpmerge.accounting.renyi import DEFAULT_ORDERS, Conversion
from dpmerge.accounting.validation import Array
from dpmerge.evaluation.evaluate import evaluate
from dpmerge.evaluation.evaluation_progress import Progressed
from dpmerge.evaluation.evaluators import Evaluator
from dpmerge.evaluation.score_cache import ScoreCache
from dpmerge.planning.analysis import Accounting, Curve, Utility
from dpmerge.planning.candidate_arrays import CandidateArrays, CandidateBatch, some_of
from dpmerge.planning.candidate_search import CandidateSearch
from dpmerge.planning.plan import Plan
from dpmerge.planning.selection_program import Mixture, best_alone, best_mixture, best_renyi_mixture
from dpmerge.planning.simplex_sweeps import ACCOUNTINGS
from dpmerge.planning.unreachable_targets import candidate_epsilons
from dpmerge.planning.usable_checkpoints import UsableCheckpoints
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.terms.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class Scoring:
    """How merged models are scored for the vertical axis; without it, by predicted noise."""

    evaluator: Evaluator
    name: str = "score on public data"
    evaluations: int = 600
    executor: Executor | None = None
    cache: ScoreCache | str | Path | None = None
    progress: Progressed | None = None

    def __post_init__(self) -> None:
        validation.integer("evaluations", self.evaluations, least=1, most=1_000_000)


class Utilities(Protocol):
    """What is on the vertical axis, for every candidate at hand; `scores` are higher where it is better."""

    @property
    def axis(self) -> Utility: ...

    def scores(self, batch: CandidateBatch) -> Array: ...

    def of_plan(self, plan: Plan) -> float:
        """Expected over the plan's draw, as the axis shows it."""
        ...


class PredictedNoise:
    """The noise-to-signal predicted from the records: nothing is evaluated."""

    axis = Utility("predicted noise-to-signal", higher_is_better=False, measured=False)

    def scores(self, batch: CandidateBatch) -> Array:
        return np.asarray(-batch.noise_to_signal)

    def of_plan(self, plan: Plan) -> float:
        return float(np.nan) if plan.noise_to_signal is None else plan.noise_to_signal


@dataclass(frozen=True, eq=False)
class MeasuredScores:
    """Scores of merged models on public data, all evaluated at once."""

    axis: Utility
    by_batch: Mapping[int, Array]
    by_recipe: Mapping[Recipe, float]

    @classmethod
    def of(
        cls, portfolio: Portfolio, batches: Sequence[CandidateBatch], plans: Sequence[Plan], scoring: Scoring
    ) -> MeasuredScores:
        """Evaluate every candidate of the batches, and of the plans."""
        candidates = [batch.recipe(index) for batch in batches for index in range(len(batch))]
        recipes = [*candidates, *(candidate.recipe for plan in plans for candidate in plan.candidates)]
        found = evaluate(
            portfolio,
            recipes,
            scoring.evaluator,
            executor=scoring.executor,
            cache=scoring.cache,
            progress=scoring.progress,
        )
        ends = np.cumsum([len(batch) for batch in batches])
        parts = np.split(np.array(found[: len(candidates)]), ends[:-1])
        return cls(
            axis=Utility(scoring.name, higher_is_better=True, measured=True),
            by_batch={id(batch): part for batch, part in zip(batches, parts, strict=True)},
            by_recipe=dict(zip(recipes, found, strict=True)),
        )

    def scores(self, batch: CandidateBatch) -> Array:
        return self.by_batch[id(batch)]

    def of_plan(self, plan: Plan) -> float:
        outcomes = zip(plan.probabilities, plan.candidates, strict=True)
        return sum(probability * self.by_recipe[candidate.recipe] for probability, candidate in outcomes)


@dataclass(frozen=True, eq=False)
class FrontierCurves:
    """Candidates with their utilities: checkpoints, combinations, and combinations whose cost is only assumed."""

    usable: UsableCheckpoints
    utilities: Utilities
    singles: CandidateBatch
    combined: tuple[CandidateBatch, ...]
    assumed: tuple[CandidateBatch, ...]
    conversion: Conversion = "improved"

    @classmethod
    def of(
        cls,
        usable: UsableCheckpoints,
        searches: Sequence[CandidateSearch],
        assumed: Sequence[CandidateBatch],
        plans: Sequence[Plan],
        scoring: Scoring | None,
        conversion: Conversion = "improved",
    ) -> FrontierCurves:
        """The candidates of some searches; where they have to be scored, as many as may be."""
        singles = searches[0].singles
        combined = [batch for search in searches for batch in search.combined]
        if scoring is None:
            return cls(usable, PredictedNoise(), singles, tuple(combined), tuple(assumed), conversion)
        room = scoring.evaluations - len(singles)
        combined, assumed = _thinned(combined, assumed, room, usable.delta)
        utilities = MeasuredScores.of(usable.portfolio, [singles, *combined, *assumed], plans, scoring)
        return cls(usable, utilities, singles, tuple(combined), tuple(assumed), conversion)

    @property
    def of_checkpoints(self) -> list[float]:
        """The utility of each checkpoint as it was trained."""
        return [float(self._shown(score)) for score in self.utilities.scores(self.singles)]

    def _shown(self, score: float) -> float:
        return score if self.utilities.axis.higher_is_better else -score

    def curves(self, grid: Array) -> Iterator[Curve]:
        for accounting in ACCOUNTINGS:
            yield self.curve(f"random selection, {accounting.upper()}", "select", accounting, grid)
        for accounting in ACCOUNTINGS:
            yield self.curve(f"linear combination, {accounting.upper()}", "combine", accounting, grid)
        yield self.curve("mixture of both, PLD", "mix", "pld", grid)
        if self.assumed:
            yield self.curve("linear combination by merged_trajectory", "combine", "pld", grid, assumed=True)

    def curve(self, name: str, method: str, accounting: Accounting, grid: Array, *, assumed: bool = False) -> Curve:
        """One frontier: random selection by its exact program over the models, averages by the best of those here."""
        batches = (self.singles,) if method == "select" else (self.singles, *self.combined)
        if assumed:
            batches = (self.singles, *self.combined, *self.assumed)
        scores = np.concatenate([self.utilities.scores(batch) for batch in batches])
        solve = _solver(
            CandidateArrays(batches), scores, accounting, self.usable.delta, self.conversion, drawn=method != "combine"
        )
        found = [solve(float(epsilon)) for epsilon in grid]
        utilities = np.array([np.nan if m is None else self._shown(m.score) for m in found])
        used = {batch.theorem for batch in batches[1:]}
        theorem = None if method == "select" else "merged_trajectory" if assumed else " or ".join(sorted(used))
        return Curve(name, method, accounting, theorem, not assumed, grid, utilities)  # type: ignore[arg-type]


def _solver(
    candidates: CandidateArrays,
    scores: Array,
    accounting: Accounting,
    delta: float,
    conversion: Conversion,
    *,
    drawn: bool,
) -> Callable[[float], Mixture | None]:
    """The best mixture, or single candidate, at each ε."""
    if not drawn:
        own = candidate_epsilons(candidates, delta, accounting, conversion)
        return lambda epsilon: best_alone(own, scores, epsilon)
    if accounting == "pld":
        return lambda epsilon: best_mixture(candidates.deltas(epsilon), scores, delta * (1 - 1e-8))
    curves = candidates.curves(DEFAULT_ORDERS)
    return lambda epsilon: _first(
        best_renyi_mixture(curves, scores, epsilon * (1 - 1e-8), delta, DEFAULT_ORDERS, conversion)
    )


def _first(found: tuple[Mixture, float] | None) -> Mixture | None:
    return None if found is None else found[0]


def _thinned(
    combined: Sequence[CandidateBatch], assumed: Sequence[CandidateBatch], room: int, delta: float
) -> tuple[list[CandidateBatch], list[CandidateBatch]]:
    """Fewer candidates where each has to be scored: spread over cost, those of least noise first."""
    shares = (room, 0) if not assumed else (room * 2 // 3, room // 3)
    return tuple(_spread(batches, share, delta) for batches, share in zip((combined, assumed), shares, strict=True))  # type: ignore[return-value]


def _spread(batches: Sequence[CandidateBatch], room: int, delta: float) -> list[CandidateBatch]:
    """At most `room` entries: in each of many bands of cost the least noisy ones."""
    if not batches or room <= 0:
        return []
    costs = np.concatenate([batch.epsilons(delta) for batch in batches])
    noises = np.nan_to_num(np.concatenate([batch.noise_to_signal for batch in batches]), nan=np.inf)
    owner = np.repeat(np.arange(len(batches)), [len(batch) for batch in batches])
    index = np.concatenate([np.arange(len(batch)) for batch in batches])
    chosen = _one_of_each_band(costs, noises)[:room]
    return [
        some_of(batch, np.sort(index[chosen[owner[chosen] == number]]))
        for number, batch in enumerate(batches)
        if np.any(owner[chosen] == number)
    ]


def _one_of_each_band(costs: Array, noises: Array) -> npt.NDArray[np.intp]:
    """Candidates in the order in which they are worth scoring: one of each band of cost before a second of any."""
    positive = np.flatnonzero(np.isfinite(costs) & (costs > 0))
    bands = np.floor(np.log(costs[positive]) / np.log(1.05)).astype(int)
    by_band = np.lexsort((noises[positive], bands))
    order, sorted_bands = positive[by_band], bands[by_band]
    rank = np.arange(order.size) - np.searchsorted(sorted_bands, sorted_bands)
    return np.asarray(order[np.argsort(rank, kind="stable")])
