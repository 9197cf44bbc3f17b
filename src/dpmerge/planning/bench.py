"""The bench: candidates with their utilities, and the frontier that each method draws through them.

Guarantees: a point of a frontier is the best of the candidates at hand within its ε, each at the cost of its theorem.
Where every merge has to be scored, few are: spread over cost, those of least noise first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dpmerge.evaluation.evaluate import evaluate
from dpmerge.evaluation.evaluators import Evaluator
from dpmerge.evaluation.progress import Progressed
from dpmerge.evaluation.score_cache import ScoreCache
from dpmerge.planning.analysis import Accounting, Curve, Utility
from dpmerge.planning.desk import Desk
from dpmerge.planning.plan import Plan
from dpmerge.planning.pool import Batch, Pool, some_of
from dpmerge.planning.program import Mixture, best_alone, best_mixture, best_renyi_mixture
from dpmerge.planning.rungs import Rungs
from dpmerge.planning.sweeps import ACCOUNTINGS
from dpmerge.portfolio.recipe import Recipe
from dpmerge.privacy import domain
from dpmerge.privacy.domain import Array
from dpmerge.privacy.renyi import DEFAULT_ORDERS, renyi_epsilon


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
        domain.integer("evaluations", self.evaluations, least=1, most=1_000_000)


@dataclass(frozen=True, eq=False)
class Bench:
    """Candidates with their utilities: checkpoints, combinations, and combinations whose cost is only assumed."""

    rungs: Rungs
    utility: Utility
    singles: Batch
    combined: tuple[Batch, ...]
    assumed: tuple[Batch, ...]
    scores: Callable[[Batch], Array]
    of_plan: Callable[[Plan], float]

    @classmethod
    def of(
        cls,
        known: Rungs,
        desks: Sequence[Desk],
        assumed: Sequence[Batch],
        plans: Sequence[Plan],
        scoring: Scoring | None,
    ) -> Bench:
        singles = desks[0].singles
        combined = [batch for desk in desks for batch in desk.combined]
        if scoring is None:
            utility = Utility("predicted noise-to-signal", higher_is_better=False, measured=False)
            return cls(
                known, utility, singles, tuple(combined), tuple(assumed),
                lambda batch: -batch.noise_to_signal, _predicted,
            )  # fmt: skip
        combined, assumed = _thinned(combined, assumed, scoring.evaluations - len(singles), known.delta)
        batches = [singles, *combined, *assumed]
        recipes = [batch.recipe(place) for batch in batches for place in range(len(batch))]
        planned = [candidate.recipe for plan in plans for candidate in plan.candidates]
        found = evaluate(
            known.portfolio,
            [*recipes, *planned],
            scoring.evaluator,
            executor=scoring.executor,
            cache=scoring.cache,
            progress=scoring.progress,
        )
        measured = dict(zip([*recipes, *planned], found, strict=True))
        ends = np.cumsum([0, *(len(batch) for batch in batches)])
        by_batch = {id(b): np.array(found[i:j]) for b, i, j in zip(batches, ends, ends[1:], strict=False)}
        utility = Utility(scoring.name, higher_is_better=True, measured=True)
        return cls(
            known, utility, singles, tuple(combined), tuple(assumed),
            lambda batch: by_batch[id(batch)], lambda plan: _expected(plan, measured),
        )  # fmt: skip

    @property
    def of_checkpoints(self) -> list[float]:
        return [float(self._shown(score)) for score in self.scores(self.singles)]

    def _shown(self, score: float) -> float:
        return score if self.utility.higher_is_better else -score

    def curves(self, grid: Array) -> Iterator[Curve]:
        for accounting in ACCOUNTINGS:
            yield self._curve(f"random selection, {accounting.upper()}", "select", accounting, grid)
        for accounting in ACCOUNTINGS:
            yield self._curve(f"linear combination, {accounting.upper()}", "combine", accounting, grid)
        yield self._curve("mixture of both, PLD", "mix", "pld", grid)
        if self.assumed:
            yield self._curve("linear combination by merged_trajectory", "combine", "pld", grid, assumed=True)

    def _curve(self, name: str, method: str, accounting: Accounting, grid: Array, *, assumed: bool = False) -> Curve:
        batches = (self.singles,) if method == "select" else (self.singles, *self.combined)
        if assumed:
            batches = (self.singles, *self.combined, *self.assumed)
        pool = Pool(batches)
        scores = np.concatenate([self.scores(batch) for batch in batches])
        solve = _solver(pool, scores, accounting, self.rungs.delta, drawn=method != "combine")
        found = [solve(float(epsilon)) for epsilon in grid]
        utilities = np.array([np.nan if m is None else self._shown(m.score) for m in found])
        used = {batch.theorem for batch in batches[1:]}
        theorem = None if method == "select" else "merged_trajectory" if assumed else " or ".join(sorted(used))
        return Curve(name, method, accounting, theorem, not assumed, grid, utilities)  # type: ignore[arg-type]


def _solver(
    pool: Pool, scores: Array, accounting: Accounting, delta: float, *, drawn: bool
) -> Callable[[float], Mixture | None]:
    """The best mixture, or single candidate, at each ε."""
    if accounting == "rdp" and drawn:
        curves = pool.curves(DEFAULT_ORDERS)
        return lambda epsilon: _first(best_renyi_mixture(curves, scores, epsilon * (1 - 1e-8), delta, DEFAULT_ORDERS))
    if drawn:
        return lambda epsilon: best_mixture(pool.deltas(epsilon), scores, delta * (1 - 1e-8))
    if accounting == "rdp":
        own = renyi_epsilon(DEFAULT_ORDERS, pool.curves(DEFAULT_ORDERS), delta, "improved")
    else:
        own = pool.epsilons(delta)
    return lambda epsilon: best_alone(own, scores, epsilon)


def _first(found: tuple[Mixture, float] | None) -> Mixture | None:
    return None if found is None else found[0]


def _predicted(plan: Plan) -> float:
    return float(np.nan) if plan.noise_to_signal is None else plan.noise_to_signal


def _expected(plan: Plan, measured: dict[Recipe, float]) -> float:
    return sum(p * measured[c.recipe] for p, c in zip(plan.probabilities, plan.candidates, strict=True))


def _thinned(
    combined: Sequence[Batch], assumed: Sequence[Batch], room: int, delta: float
) -> tuple[list[Batch], list[Batch]]:
    """Fewer candidates where each has to be scored: spread over cost, those of least noise first."""
    shares = (room, 0) if not assumed else (room * 2 // 3, room // 3)
    return tuple(_spread(batches, share, delta) for batches, share in zip((combined, assumed), shares, strict=True))  # type: ignore[return-value]


def _spread(batches: Sequence[Batch], room: int, delta: float) -> list[Batch]:
    """At most `room` entries: in each of many bands of cost the least noisy ones."""
    if not batches or room <= 0:
        return []
    costs = np.concatenate([batch.epsilons(delta) for batch in batches])
    noises = np.nan_to_num(np.concatenate([batch.noise_to_signal for batch in batches]), nan=np.inf)
    owner = np.repeat(np.arange(len(batches)), [len(batch) for batch in batches])
    place = np.concatenate([np.arange(len(batch)) for batch in batches])
    usable = np.flatnonzero(np.isfinite(costs) & (costs > 0))
    bands = np.floor(np.log(costs[usable]) / np.log(1.05)).astype(int)
    # One from each band before a second from any.
    order = usable[np.lexsort((noises[usable], bands))]
    sorted_bands = np.floor(np.log(costs[order]) / np.log(1.05)).astype(int)
    rank = np.arange(order.size) - np.searchsorted(sorted_bands, sorted_bands)
    chosen = order[np.argsort(rank, kind="stable")][:room]
    return [
        some_of(batch, np.sort(place[chosen[owner[chosen] == number]]))
        for number, batch in enumerate(batches)
        if np.any(owner[chosen] == number)
    ]
