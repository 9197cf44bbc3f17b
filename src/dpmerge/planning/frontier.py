"""The analysis of a portfolio: what utility each method reaches at each ε, and what to release for a target.

Guarantees: a frontier is the best of the candidates looked into, each at its proved cost (or dashed); recommended plans
are made without looking at any model, so they may be used as they stand. The utilities shown may not be released.
Refuses: portfolios without a private checkpoint, sweeps of anything but two or three different checkpoints.

Candidates are made once, for a few budgets between the most private model and everything together, and shared by all
curves and targets: the linear program is then solved for every target on what is known.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from dpmerge.errors import InvalidInput, NoGuarantee
from dpmerge.evaluation.progress import Progressed
from dpmerge.planning.analysis import Analysis, Edge, Face, InputModel, Recommendation
from dpmerge.planning.bench import Bench, Scoring
from dpmerge.planning.candidates import Theorem, require_theorem
from dpmerge.planning.desk import Desk, joint_epsilon
from dpmerge.planning.objectives import LeastNoise
from dpmerge.planning.plan import Plan
from dpmerge.planning.pool import Batch
from dpmerge.planning.rungs import Rung, Rungs, rungs
from dpmerge.planning.search import covered_rungs
from dpmerge.planning.sweeps import edge, face, proved
from dpmerge.planning.target import Guarantee
from dpmerge.portfolio.caveats import caveats
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.privacy import domain
from dpmerge.privacy.domain import Array

BUDGETS = 6
"""For how many ε's candidates are searched."""


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
    whole, halves = _swept(known, faces)
    swept_faces = tuple(face(known, three, theorem=theorem) for three in whole)
    swept_edges = tuple(edge(known, two, theorem=theorem) for two in halves)
    _require_covered(theorem, swept_faces, swept_edges)
    joint = joint_epsilon(portfolio, delta)
    grid = _epsilons(known, joint, points=4 * targets)
    desks = [_desk(known, epsilon, "auto") for epsilon in np.geomspace(grid[0], grid[-1], BUDGETS)]
    assumed = _assumed(known, grid)
    plans = list(_plans(known, grid[:: len(grid) // targets or 1], progress))
    bench = Bench.of(known, desks, assumed, plans, scoring)
    return Analysis(
        title=f"{len(portfolio.runs)} runs on {portfolio.dataset}",
        subtitle=f"unit of privacy: {portfolio.unit}; {portfolio.adjacency}; δ = {delta:g}",
        delta=delta,
        utility=bench.utility,
        models=tuple(InputModel(r.name, r.epsilon, u) for r, u in zip(known.usable, bench.of_checkpoints, strict=True)),
        curves=tuple(bench.curves(grid)),
        faces=swept_faces,
        edges=swept_edges,
        recommendations=tuple(_recommendation(plan, bench) for plan in plans),
        joint_epsilon=float(np.inf) if joint is None else joint,
        caveats=tuple(_caveats(portfolio, plans, scoring)),
    )


def _caveats(portfolio: Portfolio, plans: Sequence[Plan], scoring: Scoring | None) -> Iterator[str]:
    if scoring is not None:
        yield "to choose a target, a plan or a model by the scores shown is to choose by looking: no plan covers that"
    if not plans:
        yield "no plan is recommended: no target can be met, or nobody recorded the rates and noise to plan by"
    if any(plan.is_final for plan in plans):
        yield "plans marked final hold only if nothing else of their runs is ever released: of all of them, use one"
    yield from dict.fromkeys(caveat.text for caveat in caveats(portfolio))


def _require_covered(theorem: Theorem, faces: Sequence[Face], edges: Sequence[Edge]) -> None:
    """A theorem asked for by name has something to say about something that is swept."""
    values = [panel.epsilons for f in faces for panel in f.panels if panel.method == "combine"]
    values += [line.epsilons for e in edges for line in e.lines if line.method == "combine"]
    if theorem != "auto" and values and not any(np.isfinite(v).any() for v in values):
        raise NoGuarantee(f"theorem: got {theorem}, which covers none of the models swept; accepted: auto")


def _epsilons(known: Rungs, joint: float | None, points: int) -> Array:
    """From below the most private model, far below where release noise goes there, to a little above everything."""
    positive = [rung.epsilon for rung in known.usable if np.isfinite(rung.epsilon) and rung.epsilon > 0]
    least = min(positive, default=0.01)
    top = 1.1 * (joint if joint is not None else max(positive, default=0.1) * 1.5)
    noisy = any(covered_rungs(known, "hidden_state", by_name=False))
    return np.geomspace(least / (10 if noisy else 1.5), max(top, 1.5 * least), points)


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
        except (NoGuarantee, InvalidInput):  # out of reach, or no noise recorded to plan by
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
        tuple(candidate.recipe.document() for candidate in plan.candidates),
        plan.is_final,
    )


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
