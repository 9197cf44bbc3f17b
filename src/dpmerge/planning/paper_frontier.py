"""The paper's own workflow: three models, a test set, weights on a grid, utility against ε by four accountings.

Guarantees: numbers as the paper computes them: Rényi divergence by the classic conversion, averages by
`merged_trajectory`; probabilities of random selection by the exact program. One banner says what of it is not proved.
Refuses: other than three models, no evaluator, runs that `merged_trajectory` has no formula for.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb

import numpy as np

from dpmerge.accounting.renyi import Conversion
from dpmerge.accounting.validation import Array
from dpmerge.errors import InvalidInputError
from dpmerge.planning.analysis import BANNER, Analysis, InputModel
from dpmerge.planning.candidate_arrays import CandidateArrays, CandidateBatch, single_checkpoints
from dpmerge.planning.candidate_search import joint_epsilon
from dpmerge.planning.candidates import AskedTheorem, candidate
from dpmerge.planning.feasible_set import UNPROVED
from dpmerge.planning.feasible_weights import Weightings, lattice
from dpmerge.planning.frontier_curves import FrontierCurves, MeasuredScores, Scoring
from dpmerge.planning.simplex_sweeps import ACCOUNTINGS, face, proved
from dpmerge.planning.unreachable_targets import candidate_epsilons
from dpmerge.planning.usable_checkpoints import UsableCheckpoints
from dpmerge.portfolio.portfolio_caveats import caveats
from dpmerge.terms.recipe import Recipe

THEOREM: AskedTheorem = "merged_trajectory"
CONVERSION: Conversion = "classic"

IN_SAMPLE = (
    "The frontier is in-sample: weights are chosen by the scores shown, on the data they are shown for, and no ε here "
    "accounts for that choice."
)


def paper_frontier(usable: UsableCheckpoints, scoring: Scoring | None, *, points: int = 96) -> Analysis:
    """Heatmaps and frontiers of three models as the paper has them (docs/reference/verbs/frontier.md).

    Args:
        usable: The three models, at a δ.
        scoring: How merges are scored, and how many at most: the grid is the finest with that many points.
        points: At how many ε a frontier is drawn.

    Returns:
        Four heatmaps, four frontiers and the models; no plan is recommended.

    Raises:
        NoGuaranteeError: The paper's theorem has no formula for these runs.
        InvalidInputError: Not three models, no evaluator, or too few evaluations for a grid.
    """
    three = usable.checkpoints
    if len(three) != 3:
        accepted = "three models for the paper's workflow: name them, run@step,run@step,run@step"
        raise InvalidInputError("checkpoints", len(three), accepted, found=f"{len(three)} models")
    if scoring is None:
        raise InvalidInputError("evaluator", None, "one: the paper's workflow has a test set", found="none")
    even = Recipe.of({checkpoint.name: 1 / 3 for checkpoint in three})
    candidate(usable.portfolio, even, delta=usable.delta, theorem=THEOREM)  # refuses what it has no formula for
    holds = proved(usable, three, THEOREM)
    singles, gridded = single_checkpoints(usable), _gridded(usable, scoring.evaluations)
    utilities = MeasuredScores.of(usable.portfolio, [singles, gridded], (), scoring)
    assumed = () if holds else (gridded,)
    curves = FrontierCurves(usable, utilities, singles, (gridded,) if holds else (), assumed, CONVERSION)
    grid = _epsilons(usable, singles, gridded, points)
    named = {"select": "random selection", "combine": "linear combination"}
    unproved = "" if holds else f" {UNPROVED.format(THEOREM)}"
    settings = f"δ = {usable.delta:g}; RDP by the classic conversion; {usable.portfolio.adjacency}"
    return Analysis(
        title=f"The paper's workflow: {', '.join(checkpoint.name for checkpoint in three)}",
        subtitle=f"{settings}. {IN_SAMPLE}{unproved}",
        delta=usable.delta,
        utility=utilities.axis,
        models=tuple(
            InputModel(checkpoint.name, checkpoint.epsilon, utility)
            for checkpoint, utility in zip(three, curves.of_checkpoints, strict=True)
        ),
        curves=tuple(
            curves.curve(f"{words}, {by.upper()}", method, by, grid, assumed=method == "combine" and not holds)
            for method, words in named.items()
            for by in ACCOUNTINGS
        ),
        faces=(face(usable, three, theorem=THEOREM, conversion=CONVERSION),),
        edges=(),
        recommendations=(),
        joint_epsilon=_joint(usable),
        caveats=tuple(dict.fromkeys(caveat.text for caveat in caveats(usable.portfolio))),
        banner=f"{BANNER} {IN_SAMPLE}{unproved}",
    )


def finest_grid(models: int, most: int) -> int:
    """Into how many parts the simplex can be divided with at most so many points.

    >>> finest_grid(3, 600), finest_grid(3, 5151)
    (33, 100)
    """
    parts = 1
    while comb(parts + models, models - 1) <= most and parts < 100:
        parts += 1
    return parts


def _gridded(usable: UsableCheckpoints, evaluations: int) -> CandidateBatch:
    models = len(usable.checkpoints)
    if evaluations < 2 * models:
        raise InvalidInputError("evaluations", evaluations, f"an integer ≥ {2 * models}: a grid has so many points")
    rows = lattice(models, finest_grid(models, evaluations - models))
    prefixes = tuple(checkpoint.prefix for checkpoint in usable.checkpoints)
    return CandidateBatch(usable.checkpoints, rows, THEOREM, Weightings(prefixes, THEOREM).mus(rows))


def _epsilons(usable: UsableCheckpoints, singles: CandidateBatch, gridded: CandidateBatch, points: int) -> Array:
    """From the most private model to the dearest average, by either accounting."""
    both: Sequence[Array] = [
        candidate_epsilons(CandidateArrays((singles, gridded)), usable.delta, by, CONVERSION) for by in ACCOUNTINGS
    ]
    finite = np.concatenate(both)
    finite = finite[np.isfinite(finite) & (finite > 0)]
    return np.geomspace(finite.min() / 1.05, finite.max() * 1.05, points)


def _joint(usable: UsableCheckpoints) -> float:
    joint = joint_epsilon(usable.portfolio, usable.delta)
    return float(np.inf) if joint is None else joint
