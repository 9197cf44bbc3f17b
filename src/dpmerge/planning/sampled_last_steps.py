"""Averages of Poisson-sampled runs by last_step, whose costs are composed one by one.

Guarantees: every row meets the theorem's premises, and its profile is the theorem's own word on it.
Refuses nothing: what the theorem does not cover is not in what comes back.

One step in many thousands is hardly worth the runs it locks, and each weighting takes a composition. So unless the
theorem is asked for by name, only averages of runs that took at most FEW_STEPS are priced, and MOST_PRICED of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, islice

import numpy as np

from dpmerge.accounting.combination import Bound
from dpmerge.accounting.exposure import Exposure
from dpmerge.accounting.premises import MOST_SAMPLED_LAST_STEPS
from dpmerge.accounting.profile import PrivacyProfile
from dpmerge.accounting.validation import Array
from dpmerge.errors import NoGuaranteeError
from dpmerge.planning.candidate_arrays import CandidateBatch
from dpmerge.planning.candidates import bound_of, covered
from dpmerge.planning.feasible_weights import lattice
from dpmerge.planning.noise_prediction import precision_weights
from dpmerge.planning.pareto_front import ParetoFront
from dpmerge.planning.usable_checkpoints import UsableCheckpoint, UsableCheckpoints
from dpmerge.planning.weight_search import WORTH_LOCKING, Face, around
from dpmerge.terms.recipe import Recipe
from dpmerge.terms.theorems import Theorem

FEW_STEPS = 32
"""A last step then is worth one or two percent of ε."""

MOST_PRICED = 16
MOST_PAIRS = 3
MOST_SINGLES = 8
PARTS = 4
"""Of which the weights of pairs are multiples, beside precision weights."""


def sampled_last_steps(
    usable: UsableCheckpoints, mu: float, fronts: Sequence[ParetoFront], *, by_name: bool
) -> Iterator[CandidateBatch]:
    """Weightings of faces that have sampled runs, by last_step: those that gain by it, or all if it was asked for."""
    weighted = ((face, row) for face in dict.fromkeys(_faces(usable, mu, fronts, by_name)) for row in _rows(face))
    priced: dict[Face, list[tuple[Array, PrivacyProfile]]] = {}
    for face, row in islice(weighted, MOST_PRICED):
        profile = _price(usable, face, row)
        if profile is not None and (by_name or _gains(usable, face, profile)):
            priced.setdefault(face, []).append((row, profile))
    for face, found in priced.items():
        rows = np.array([row for row, _ in found])
        yield CandidateBatch(face, rows, "last_step", None, tuple(profile for _, profile in found))


def _faces(usable: UsableCheckpoints, mu: float, fronts: Sequence[ParetoFront], by_name: bool) -> Iterator[Face]:
    for group in usable.groups:
        known = {
            checkpoint: None
            for of_run in group
            for checkpoint in of_run
            if checkpoint.noise is not None and (by_name or checkpoint.saved.step <= FEW_STEPS)
        }
        last = [of_run[-1] for of_run in group if of_run[-1] in known]
        singles: list[Face] = [(checkpoint,) for checkpoint in last[:MOST_SINGLES]] if by_name else []
        pairs: list[Face] = list(islice(combinations(sorted(last, key=lambda c: c.epsilon), 2), MOST_PAIRS))
        near = [face for found in fronts for face in around(found, mu**2)]
        for face in (*near, tuple(last), *pairs, *singles):
            inside = tuple(checkpoint for checkpoint in face if checkpoint in known)
            sampled = sum(not checkpoint.is_gaussian for checkpoint in inside)
            if 0 < sampled <= MOST_SAMPLED_LAST_STEPS and (by_name or len(inside) > 1) and _covers(usable, inside):
                yield inside


def _covers(usable: UsableCheckpoints, face: Face) -> bool:
    bound: Bound = covered(usable.portfolio, [checkpoint.name for checkpoint in face], "last_step")
    return bound.certifies and bound.mu is None


def _rows(face: Face) -> Iterator[Array]:
    yield precision_weights([checkpoint.noise for checkpoint in face if checkpoint.noise is not None])
    if len(face) == 2:
        yield from (row for row in lattice(2, PARTS) if row.min() > 0)


def _price(usable: UsableCheckpoints, face: Face, row: Array) -> PrivacyProfile | None:
    recipe = Recipe.of(zip([checkpoint.name for checkpoint in face], row.tolist(), strict=True))
    bound = bound_of(usable.portfolio, recipe, Theorem.LAST_STEP)
    return bound.profile if bound.certifies else None


def _gains(usable: UsableCheckpoints, face: Sequence[UsableCheckpoint], profile: PrivacyProfile) -> bool:
    """Whether it is worth locking the runs: what joint release costs no more for is left to it."""
    try:
        joint = Exposure.of(checkpoint.prefix for checkpoint in face).profile().epsilon(usable.delta)
        return profile.epsilon(usable.delta) < (1 - WORTH_LOCKING) * joint
    except NoGuaranteeError:
        return False
