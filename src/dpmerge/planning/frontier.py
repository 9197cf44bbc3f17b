"""The analysis of a portfolio: what utility each method reaches at each ε, and what to release for a target.

Guarantees: a frontier is the best of the candidates looked into, each at its proved cost (or dashed); recommended plans
are made without looking at any model, so they may be used as they stand. The utilities shown may not be released.
Refuses: portfolios without a private checkpoint, faces of anything but three averageable checkpoints.

Candidates are made once, for a few budgets between the most private model and everything together, and shared by all
curves and targets: the linear program is then solved for every target on what is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dpmerge.errors import InvalidInput, NoGuarantee
from dpmerge.evaluation.evaluate import evaluate
from dpmerge.evaluation.evaluators import Evaluator
from dpmerge.evaluation.progress import Progressed
from dpmerge.evaluation.score_cache import ScoreCache
from dpmerge.planning.analysis import Accounting, Analysis, Curve, InputModel, Recommendation, Utility
from dpmerge.planning.candidates import Theorem, require_theorem
from dpmerge.planning.desk import Desk, joint_epsilon
from dpmerge.planning.objectives import LeastNoise
from dpmerge.planning.plan import Plan
from dpmerge.planning.pool import Batch, Pool, some_of
from dpmerge.planning.program import Mixture, best_mixture, best_renyi_mixture
from dpmerge.planning.rungs import Rung, Rungs, rungs
from dpmerge.planning.sweeps import ACCOUNTINGS, edge, face, proved
from dpmerge.planning.target import Guarantee
from dpmerge.portfolio.caveats import caveats
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.portfolio.recipe import Recipe
from dpmerge.privacy import domain
from dpmerge.privacy.domain import Array
from dpmerge.privacy.renyi import DEFAULT_ORDERS, renyi_epsilon

BUDGETS = 6
"""For how many ε's candidates are searched."""

MOST_IN_A_BATCH = 400
"""Candidates of one batch that are kept where every one has to be scored or solved for again and again."""


@dataclass(frozen=True, kw_only=True)
class Scoring:
    """How merged models are scored for the vertical axis; without it, by predicted noise."""

    evaluator: Evaluator
    name: str = "score on public data"
    evaluations: int = 600
    executor: Executor | None = None
    cache: ScoreCache | str | Path | None = None
    progress: Progressed | None = None


def analyse(
    portfolio: Portfolio,
    delta: float,
    *,
    scoring: Scoring | None = None,
    theorem: Theorem = "auto",
    faces: Sequence[Sequence[str]] | None = None,
    targets: int = 24,
    progress: Progressed | None = None,
) -> Analysis:
    """Everything a report shows about a portfolio at δ.

    `faces` are triples (or pairs) of checkpoints, run@step, whose mixtures are swept; by default the least private ones
    and models of different cost. `theorem` is the one by which sweeps account for combinations (`auto`: the tightest
    that is proved).
    """
    require_theorem(theorem)
    domain.integer("targets", targets, least=2, most=200)
    known = rungs(portfolio, delta)
    joint = joint_epsilon(portfolio, delta)
    grid = _epsilons(known, joint, points=4 * targets)
    desks = [_desk(known, epsilon, "auto") for epsilon in np.geomspace(grid[0], grid[-1], BUDGETS)]
    assumed = _assumed(known, grid)
    plans = list(_plans(known, grid[:: len(grid) // targets or 1], progress))
    bench = Bench.of(known, desks, assumed, plans, scoring)
    whole, halves = _swept(known, faces)
    return Analysis(
        title=f"{len(portfolio.runs)} runs on {portfolio.dataset}",
        subtitle=f"unit of privacy: {portfolio.unit}; {portfolio.adjacency}; δ = {delta:g}",
        delta=delta,
        utility=bench.utility,
        models=tuple(InputModel(r.name, r.epsilon, u) for r, u in zip(known.usable, bench.of_checkpoints, strict=True)),
        curves=tuple(bench.curves(grid)),
        faces=tuple(face(known, three, theorem=theorem) for three in whole),
        edges=tuple(edge(known, two, theorem=theorem) for two in halves),
        recommendations=tuple(_recommendation(plan, bench) for plan in plans),
        joint_epsilon=float(np.inf) if joint is None else joint,
        caveats=tuple(dict.fromkeys(caveat.text for caveat in caveats(portfolio))),
    )


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
            yield self._curve(f"RS, {accounting.upper()}", "select", accounting, grid)
        for accounting in ACCOUNTINGS:
            yield self._curve(f"LC, {accounting.upper()}", "combine", accounting, grid)
        yield self._curve("mix, PLD", "mix", "pld", grid)
        if self.assumed:
            yield self._curve("LC by merged_trajectory", "combine", "pld", grid, assumed=True)

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
        return lambda epsilon: _first(best_renyi_mixture(curves, scores, epsilon, delta, DEFAULT_ORDERS))
    if drawn:
        return lambda epsilon: best_mixture(pool.deltas(epsilon), scores, delta)
    if accounting == "rdp":
        own = renyi_epsilon(DEFAULT_ORDERS, pool.curves(DEFAULT_ORDERS), delta, "improved")
    else:
        own = pool.epsilons(delta)

    def alone(epsilon: float) -> Mixture | None:
        fitting = np.where(np.isfinite(scores) & (own <= epsilon), scores, -np.inf)
        place = int(np.argmax(fitting))
        return Mixture((place,), (1.0,), float(fitting[place])) if np.isfinite(fitting[place]) else None

    return alone


def _first(found: tuple[Mixture, float] | None) -> Mixture | None:
    return None if found is None else found[0]


def _epsilons(known: Rungs, joint: float | None, points: int) -> Array:
    """From half the most private model's ε, in case release noise goes there, to a little above everything."""
    finite = [rung.epsilon for rung in known.usable if np.isfinite(rung.epsilon)]
    if not finite:
        raise InvalidInput("portfolio", str(known.portfolio.path), "a portfolio with a private checkpoint")
    top = 1.1 * (joint if joint is not None else max(finite) * 1.5)
    return np.geomspace(min(finite) / 2, max(top, 1.5 * min(finite)), points)


def _desk(known: Rungs, epsilon: float, theorem: Theorem) -> Desk:
    target = Guarantee(epsilon=float(epsilon), delta=known.delta)
    return Desk.of(known, target, LeastNoise(), theorem, "pld")


def _assumed(known: Rungs, grid: Array) -> list[Batch]:
    """Combinations by merged_trajectory where that is no proof: what the paper would claim."""
    try:
        desks = [_desk(known, epsilon, "merged_trajectory") for epsilon in np.geomspace(grid[0], grid[-1], BUDGETS)]
    except NoGuarantee:
        return []
    batches = [batch for desk in desks for batch in desk.combined]
    return [b for b in batches if not proved(known, b.rungs, "merged_trajectory")]


def _plans(known: Rungs, grid: Array, progress: Progressed | None) -> Iterator[Plan]:
    """The default plan for each target that can be met."""
    for done, epsilon in enumerate(grid.tolist(), start=1):
        try:
            rounded = float(f"{epsilon:.3g}")
            yield _desk(known, rounded, "auto").preferred()
        except NoGuarantee:
            pass
        if progress is not None:
            progress(done, len(grid))


def _recommendation(plan: Plan, bench: Bench) -> Recommendation:
    outcomes = zip(plan.probabilities, plan.candidates, strict=True)
    return Recommendation(
        plan.target.epsilon,
        plan.guarantee.epsilon,
        bench.of_plan(plan),
        plan.theorem,
        tuple((probability, str(candidate.recipe)) for probability, candidate in outcomes),
    )


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


def _swept(known: Rungs, faces: Sequence[Sequence[str]] | None) -> tuple[list[Sequence[Rung]], list[Sequence[Rung]]]:
    """Triples and pairs to sweep: as named, or the least private of the largest group, and such of different cost."""
    if faces is not None:
        named = [[known[name] for name in names] for names in faces]
        for members in named:
            if len(members) not in (2, 3) or len({rung.name for rung in members}) != len(members):
                raise InvalidInput("face", [rung.name for rung in members], "two or three different checkpoints")
        ends = dict.fromkeys((members[0], members[-1]) for members in named)
        return [members for members in named if len(members) == 3], list(ends)
    group = max(known.groups, key=len)
    last = sorted((of_run[-1] for of_run in group if np.isfinite(of_run[-1].epsilon)), key=lambda r: r.epsilon)
    distinct = list({round(rung.epsilon, 9): rung for rung in reversed(last)}.values())[::-1]
    triples: list[Sequence[Rung]] = []
    if len(last) >= 3:
        triples.append(tuple(last[-3:]))
    if len(distinct) >= 3:
        triples.append((distinct[0], distinct[len(distinct) // 2], distinct[-1]))
    pairs: list[Sequence[Rung]] = [(last[0], last[-1])] if len(last) >= 2 else []
    return [triple for place, triple in enumerate(triples) if set(triple) not in map(set, triples[:place])], pairs
