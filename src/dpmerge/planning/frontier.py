"""The analysis of a portfolio: what utility each method reaches at each ε, and what to release for a target.

Guarantees: a frontier is the best of the candidates looked into, each at its proved cost (or dashed); recommended plans
are made without looking at any model, so they may be used as they stand. The utilities shown may not be released.
Refuses: portfolios without a private checkpoint, sweeps of anything but two or three different checkpoints.

Candidates are made once, for a few budgets between the most private model and everything together, and shared by all
curves and targets: the linear program is then solved for every target on what is known.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from pathlib import Path

import numpy as np

from dpmerge.accounting import validation
from dpmerge.accounting.renyi import Conversion
from dpmerge.accounting.validation import Array
from dpmerge.errors import InvalidInputError, NoGuaranteeError
from dpmerge.evaluation.evaluation_progress import Progressed
from dpmerge.evaluation.evaluators import Evaluator, load_evaluator
from dpmerge.evaluation.score_cache import ScoreCache
from dpmerge.planning.analysis import Analysis, Edge, Face, InputModel, Recommendation
from dpmerge.planning.asked_accounting import known_conversion
from dpmerge.planning.candidate_arrays import CandidateBatch
from dpmerge.planning.candidate_search import CandidateSearch, joint_epsilon
from dpmerge.planning.candidates import AskedTheorem, require_theorem
from dpmerge.planning.checkpoint_choice import AskedCheckpoints, asked_checkpoints
from dpmerge.planning.frontier_curves import FrontierCurves, Scoring, Utilities
from dpmerge.planning.objectives import LeastNoise
from dpmerge.planning.paper_frontier import paper_frontier
from dpmerge.planning.plan import Plan
from dpmerge.planning.planner import plan
from dpmerge.planning.simplex_sweeps import edge, face, proved
from dpmerge.planning.usable_checkpoints import UsableCheckpoint, UsableCheckpoints, usable_checkpoints
from dpmerge.planning.weight_search import covered_checkpoints
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.portfolio.portfolio_caveats import caveats
from dpmerge.terms.guarantee import Guarantee

BUDGETS = 6
"""For how many ε's candidates are searched."""


def frontier(
    portfolio: Portfolio,
    delta: float = 1e-5,
    *,
    evaluator: Evaluator | str | None = None,
    evaluations: int = 600,
    cache: ScoreCache | str | Path | None = None,
    executor: Executor | None = None,
    theorem: AskedTheorem = "auto",
    conversion: Conversion | None = None,
    checkpoints: AskedCheckpoints = "all",
    paper: bool = False,
    faces: Sequence[Sequence[str]] | None = None,
    targets: int = 24,
    progress: Progressed | None = None,
) -> Analysis:
    """What each privacy level costs in utility, by which method (docs/reference/verbs/frontier.md).

    Args:
        portfolio: The runs.
        delta: The δ at which every ε is given.
        evaluator: Scores merged models on public data, more is better: a callable, or its name as on the command line
            (`module:function`, `linear:FILE.npz`, `lm_eval:TASK`). Without one the utility is the noise predicted from
            the records.
        evaluations: How many merges may be scored, besides recommended plans.
        cache: Where scores are kept as they arrive; *not for release*.
        executor: Where merges are scored; without one they are scored one after the other.
        theorem: By which theorem sweeps account for combinations; `auto`: the tightest that is proved.
        conversion: How Rényi divergences become an ε: `improved` (the default), or `classic`, the paper's.
        checkpoints: Those that may be used: `all`, `final` (the last one kept of each run), or names, run@step.
        paper: Exactly the paper's workflow on three models (the final ones, or named) and an evaluator: four
            heatmaps and four frontiers, classic conversion, `merged_trajectory`, weights on a grid; no plans.
        faces: Triples (or pairs) of checkpoints, run@step, whose mixtures are swept; by default the least private ones
            and models of different cost.
        targets: For how many targets plans are recommended.
        progress: Called with how many targets are planned, and of how many.

    Returns:
        Frontiers, sweeps, recommended plans and caveats as plain data; `dpmerge.report` draws them. They show models
        nobody has released: an analysis is *not for release*.

    Raises:
        NoGuaranteeError: The theorem asked for covers none of the models swept.
        InvalidInputError: A bad value; a portfolio without a private checkpoint; a cache without an evaluator.

    >>> from dpmerge import Portfolio
    >>> found = frontier(Portfolio.load("examples/probe"), targets=2, faces=[["s16@20", "s64@20"]])
    >>> [curve.name for curve in found.curves][:2], found.utility.name
    (['random selection, RDP', 'random selection, PLD'], 'predicted noise-to-signal')
    """
    validation.instance("portfolio", portfolio, Portfolio, "a Portfolio, as Portfolio.load returns it")
    require_theorem(theorem)
    validation.integer("targets", targets, least=2, most=200)
    scoring = _scoring(evaluator, evaluations, cache, executor)
    everything = usable_checkpoints(portfolio, delta)
    if paper:
        _require_paper(theorem, conversion, faces)
        three = asked_checkpoints(everything, "final" if checkpoints == "all" else checkpoints)
        return paper_frontier(three, scoring, points=4 * targets)
    converted = known_conversion("improved" if conversion is None else conversion)
    usable = asked_checkpoints(everything, checkpoints)
    triples, pairs = _swept(usable, faces)
    swept_faces = tuple(face(usable, three, theorem=theorem, conversion=converted) for three in triples)
    swept_edges = tuple(edge(usable, two, theorem=theorem, conversion=converted) for two in pairs)
    _require_covered(theorem, swept_faces, swept_edges)
    joint = joint_epsilon(portfolio, delta)
    grid = _epsilons(usable, joint, points=4 * targets)
    searches = [_search(usable, epsilon, "auto") for epsilon in np.geomspace(grid[0], grid[-1], BUDGETS)]
    plans = list(_plans(usable, grid[:: len(grid) // targets or 1], progress))
    curves = FrontierCurves.of(usable, searches, _assumed(usable, grid), plans, scoring, converted)
    return Analysis(
        title=f"{len(portfolio.runs)} runs on {portfolio.dataset}",
        subtitle=f"unit of privacy: {portfolio.unit}; {portfolio.adjacency}; δ = {delta:g}{_converted(converted)}",
        delta=delta,
        utility=curves.utilities.axis,
        models=tuple(
            InputModel(checkpoint.name, checkpoint.epsilon, utility, checkpoint.run.settings)
            for checkpoint, utility in zip(usable.checkpoints, curves.of_checkpoints, strict=True)
        ),
        curves=tuple(curves.curves(grid)),
        faces=swept_faces,
        edges=swept_edges,
        recommendations=tuple(_recommendation(plan, curves.utilities) for plan in plans),
        joint_epsilon=float(np.inf) if joint is None else joint,
        caveats=tuple(_caveats(portfolio, plans, scoring)),
        command=_command(portfolio),
    )


def _require_paper(theorem: str, conversion: str | None, faces: Sequence[Sequence[str]] | None) -> None:
    if conversion not in (None, "classic"):
        raise InvalidInputError("conversion", conversion, "classic, the paper's, with paper")
    if theorem not in ("auto", "merged_trajectory"):
        raise InvalidInputError("theorem", theorem, "merged_trajectory, the paper's, with paper")
    if faces is not None:
        raise InvalidInputError("faces", list(faces), "none with paper: its three models are its checkpoints")


def _scoring(
    evaluator: Evaluator | str | None,
    evaluations: int,
    cache: ScoreCache | str | Path | None,
    executor: Executor | None,
) -> Scoring | None:
    if evaluator is None:
        if cache is not None:
            raise InvalidInputError("cache", str(cache), "no cache without an evaluator")
        return None
    scorer = load_evaluator(evaluator) if isinstance(evaluator, str) else evaluator
    return Scoring(evaluator=scorer, evaluations=evaluations, cache=cache, executor=executor)


def _converted(conversion: Conversion) -> str:
    return "" if conversion == "improved" else f"; RDP by the {conversion} conversion"


def _caveats(portfolio: Portfolio, plans: Sequence[Plan], scoring: Scoring | None) -> Iterator[str]:
    if scoring is not None:
        yield "to choose a target, a plan or a model by the scores shown is to choose by looking: no plan covers that"
    if not plans:
        yield "no plan is recommended: no target can be met, or nobody recorded the rates and noise to plan by"
    if any(plan.is_final for plan in plans):
        yield "plans marked final hold only if nothing else of their runs is ever released: of all of them, use one"
    yield from dict.fromkeys(caveat.text for caveat in caveats(portfolio))


def _require_covered(theorem: AskedTheorem, faces: Sequence[Face], edges: Sequence[Edge]) -> None:
    """A theorem asked for by name has something to say about something that is swept."""
    values = [panel.epsilons for f in faces for panel in f.panels if panel.method == "combine"]
    values += [line.epsilons for e in edges for line in e.lines if line.method == "combine"]
    if theorem != "auto" and values and not any(np.isfinite(v).any() for v in values):
        raise NoGuaranteeError(f"Theorem {theorem} covers none of the models swept; use auto.")


def _epsilons(usable: UsableCheckpoints, joint: float | None, points: int) -> Array:
    """From below the most private model, far below where release noise goes there, to a little above everything."""
    positive = [
        checkpoint.epsilon
        for checkpoint in usable.checkpoints
        if np.isfinite(checkpoint.epsilon) and checkpoint.epsilon > 0
    ]
    least = min(positive, default=0.01)
    top = 1.1 * (joint if joint is not None else max(positive, default=0.1) * 1.5)
    noisy = any(covered_checkpoints(usable, "hidden_state", by_name=False))
    return np.geomspace(least / (10 if noisy else 1.5), max(top, 1.5 * least), points)


def _search(usable: UsableCheckpoints, epsilon: float, theorem: AskedTheorem) -> CandidateSearch:
    target = Guarantee(epsilon=float(epsilon), delta=usable.delta)
    return CandidateSearch.of(usable, target, LeastNoise(), theorem, "pld")


def _assumed(usable: UsableCheckpoints, grid: Array) -> list[CandidateBatch]:
    """Combinations by merged_trajectory where that is no proof: what the paper would claim."""
    try:
        searches = [
            _search(usable, epsilon, "merged_trajectory") for epsilon in np.geomspace(grid[0], grid[-1], BUDGETS)
        ]
    except NoGuaranteeError:
        return []
    batches = [batch for search in searches for batch in search.combined]
    return [b for b in batches if not proved(usable, b.checkpoints, "merged_trajectory")]


def _plans(usable: UsableCheckpoints, grid: Array, progress: Progressed | None) -> Iterator[Plan]:
    """What `dpmerge plan` makes of each target that can be met."""
    for done, epsilon in enumerate(grid.tolist(), start=1):
        with suppress(NoGuaranteeError, InvalidInputError):  # out of reach, or no noise recorded to plan by
            yield plan(usable.portfolio, epsilon=float(f"{epsilon:.3g}"), delta=usable.delta)
        if progress is not None:
            progress(done, len(grid))


def _command(portfolio: Portfolio) -> str:
    """The verb that plans, with this portfolio and what is allowed in it."""
    allowed = [word for name in sorted(portfolio.allowed) for word in ("--allow", name)]
    return shlex.join(["dpmerge", "plan", str(portfolio.listing or portfolio.path), *allowed])


def _recommendation(plan: Plan, utilities: Utilities) -> Recommendation:
    outcomes = zip(plan.probabilities, plan.candidates, strict=True)
    return Recommendation(
        plan.target.epsilon,
        plan.guarantee.epsilon,
        utilities.of_plan(plan),
        plan.theorem,
        tuple((probability, str(candidate.recipe)) for probability, candidate in outcomes),
        tuple(candidate.recipe.document() for candidate in plan.candidates),
        plan.is_final,
    )


def _swept(
    usable: UsableCheckpoints, faces: Sequence[Sequence[str]] | None
) -> tuple[list[Sequence[UsableCheckpoint]], list[Sequence[UsableCheckpoint]]]:
    """Triples and pairs to sweep: as named, or the least private of the largest group, and such of different cost."""
    if faces is not None:
        named = [[usable[name] for name in names] for names in faces]
        for members in named:
            if len(members) not in (2, 3) or len({checkpoint.name for checkpoint in members}) != len(members):
                raise InvalidInputError(
                    "face", [checkpoint.name for checkpoint in members], "two or three different checkpoints"
                )
        ends = dict.fromkeys((members[0], members[-1]) for members in named)
        return [members for members in named if len(members) == 3], list(ends)
    group = max(usable.groups, key=len)
    last = sorted((of_run[-1] for of_run in group if np.isfinite(of_run[-1].epsilon)), key=lambda r: r.epsilon)
    distinct = list({round(checkpoint.epsilon, 9): checkpoint for checkpoint in reversed(last)}.values())[::-1]
    triples: list[Sequence[UsableCheckpoint]] = []
    if len(last) >= 3:
        triples.append(tuple(last[-3:]))
    if len(distinct) >= 3:
        triples.append((distinct[0], distinct[len(distinct) // 2], distinct[-1]))
    pairs: list[Sequence[UsableCheckpoint]] = [(last[0], last[-1])] if len(last) >= 2 else []
    return [triple for index, triple in enumerate(triples) if set(triple) not in map(set, triples[:index])], pairs
