"""The probabilities that meet linear constraints: {π in the simplex, A π ≤ b}, its vertices, membership, points of it.

Guarantees: what is said to be a member meets every inequality in floating point; a vertex is a member too, for which
it is moved into the set by at most 1e-9 of the way.
Refuses: vertices of so many models that listing them would take minutes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from math import comb

import numpy as np
import numpy.typing as npt

from dpmerge.accounting import validation
from dpmerge.accounting.profile import SUM_ROUNDING, PrivacyProfile
from dpmerge.accounting.renyi import DEFAULT_ORDERS, Conversion, RenyiProfile, renyi_penalty
from dpmerge.accounting.validation import Array
from dpmerge.errors import InvalidInputError
from dpmerge.terms.guarantee import Guarantee

MOST_SUPPORTS = 200_000
"""Of one, two or three models, that are looked at for vertices."""

_STEPS = 30
"""Moves of a random walk for each dimension before its place is taken as a sample."""


@dataclass(frozen=True, eq=False)
class SelectionPolytope:
    """{π : π ≥ 0, Σ π_i = 1, Σ π_i coefficients_ci ≤ limit for each row c} (theory 3).

    Args:
        coefficients: One row a constraint, at most two; infinite for a model that must not be drawn.
        limit: The same for each row.
        order: The Rényi order α that the constraint is of; None for the two directions of a profile.

    >>> half = SelectionPolytope(np.array([[0.0, 2.0, 4.0]]), 1.0)
    >>> half.vertices.round(6).tolist()
    [[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.75, 0.0, 0.25]]
    """

    coefficients: Array
    limit: float
    order: float | None = None

    @property
    def dimension(self) -> int:
        return int(self.coefficients.shape[1])

    def contains(self, probabilities: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """Which rows of probabilities meet every inequality."""
        rows = validation.simplex_rows("probabilities", probabilities, self.dimension)
        finite = np.all(np.isfinite(self.coefficients), axis=0)
        inside = np.all(rows[:, finite] @ self.coefficients[:, finite].T <= self.limit, axis=1)
        return np.asarray(inside & ~np.any(rows[:, ~finite] > 0, axis=1))

    @cached_property
    def vertices(self) -> Array:
        """Its corners, one a row; none if it is empty. At most one more model than there are constraints has a share.

        Raises:
            InvalidInputError: Too many models to list them.
        """
        if sum(comb(self.dimension, size) for size in (1, 2, 3)) > MOST_SUPPORTS:
            accepted = f"fewer models: more than {MOST_SUPPORTS:,} sets of one to three would be looked at"
            raise InvalidInputError("checkpoints", self.dimension, accepted)
        found = np.array(list(self._corners())).reshape(-1, self.dimension)
        members = [self._moved_inside(corner, found) for corner in found]
        kept = [corner for corner in members if corner is not None]
        return np.array(kept).reshape(-1, self.dimension)

    def sample(self, count: int, generator: np.random.Generator) -> Array:
        """Members spread nearly evenly over it: places of random walks that turn at its sides (hit and run)."""
        corners = self.vertices
        if not len(corners):
            return np.zeros((0, self.dimension))
        place = generator.dirichlet(np.ones(len(corners)), size=count) @ corners
        used = np.flatnonzero(corners.max(axis=0) > 0)
        for _ in range(_STEPS * max(used.size - 1, 0)):
            place[:, used] = self._step(place[:, used], self.coefficients[:, used], generator)
        place = np.where(place < validation.SMALLEST, 0.0, place)
        place /= place.sum(axis=1, keepdims=True)
        # Rounding may leave a place a hair outside; the middle of all corners is inside, and so is what lies between.
        middle, inside = corners.mean(axis=0), self.contains(place)
        for share in (1e-12, 1e-9, 1e-6, 1.0):
            place[~inside] = (1 - share) * place[~inside] + share * middle
            inside = self.contains(place)
        return place[inside]

    def _step(self, place: Array, coefficients: Array, generator: np.random.Generator) -> Array:
        """To a point of the line in a random direction, evenly between the sides that it meets."""
        direction = generator.standard_normal(place.shape)
        direction -= direction.mean(axis=1, keepdims=True)
        room = np.hstack([place, self.limit - place @ coefficients.T])
        closing = np.hstack([-direction, direction @ coefficients.T])
        with np.errstate(divide="ignore", invalid="ignore"):
            reach = np.maximum(room, 0.0) / np.abs(closing)
        ahead = np.where(closing > 0, reach, np.inf).min(axis=1)
        behind = np.where(closing < 0, reach, np.inf).min(axis=1)
        length = -behind + (ahead + behind) * generator.random(len(place))
        return np.asarray(np.maximum(place + length[:, np.newaxis] * direction, 0.0))

    def _corners(self) -> Iterator[Array]:
        """As many constraints are tight as there are models with a share, but one."""
        finite = [int(index) for index in np.flatnonzero(np.all(np.isfinite(self.coefficients), axis=0))]
        rows = np.unique(self.coefficients[:, finite], axis=0) if finite else self.coefficients[:0]
        for size in range(1, rows.shape[0] + 2):
            for support in combinations(range(len(finite)), size):
                for tight in combinations(range(rows.shape[0]), size - 1):
                    shares = self._tight(rows[np.ix_(tight, support)])
                    if shares is None or shares.min() <= 0:
                        continue
                    if np.all(rows[:, support] @ shares <= self.limit * (1 + 1e-12)):
                        corner = np.zeros(self.dimension)
                        corner[[finite[index] for index in support]] = shares
                        yield corner

    def _tight(self, rows: Array) -> Array | None:
        """The shares with which these constraints are met exactly; None where that is no single point."""
        size = rows.shape[1]
        if size == 1:
            return np.ones(1)
        system = np.vstack([rows / self.limit, np.ones(size)])
        scale = np.abs(system).max(axis=0)
        if np.linalg.cond(system / scale) > 1e12:
            return None
        return np.asarray(np.linalg.solve(system / scale, np.ones(size)) / scale)

    def _moved_inside(self, corner: Array, corners: Array) -> Array | None:
        """The corner, towards the middle of its own face as far as rounding makes it; None if that is not enough."""
        face = corners[np.all((corners > 0) <= (corner > 0), axis=1)].mean(axis=0)
        for share in (0.0, 1e-15, 1e-14, 1e-13, 1e-12, 1e-11, 1e-10, 1e-9):
            moved = (1 - share) * corner + share * face
            moved = moved / moved.sum()
            if self.contains(moved)[0]:
                return np.asarray(moved)
        return None


def exact_polytope(profiles: Sequence[PrivacyProfile], target: Guarantee) -> SelectionPolytope:
    """The probabilities that meet a target: Σ π_i δ±_i(ε) ≤ δ, one inequality for each direction."""
    # A hair more than `selection_feasible` allows for, so that every corner is a member there too.
    deltas = np.array([profile.deltas(target.epsilon) for profile in profiles]).T * SUM_ROUNDING**2
    return SelectionPolytope(deltas, target.delta)


def renyi_polytopes(
    profiles: Sequence[PrivacyProfile], target: Guarantee, conversion: Conversion
) -> Iterator[SelectionPolytope]:
    """The same by Rényi divergence, for each order that some model meets it by: Σ π_i e^{(α−1)(ρ_i(α) − B_α)} ≤ 1."""
    curves = np.array([RenyiProfile.of(profile).values for profile in profiles])
    penalty = renyi_penalty(DEFAULT_ORDERS, target.delta, conversion)
    # Rounded up by more than the error of the exponent.
    known = np.where(np.isfinite(curves), curves, 0.0)
    rounded = curves + 1e-14 * (known + np.abs(penalty) + target.epsilon)
    with np.errstate(over="ignore"):
        costs = np.exp((DEFAULT_ORDERS - 1) * (rounded + penalty - target.epsilon)) * SUM_ROUNDING**4
    for order, of_order in zip(DEFAULT_ORDERS.tolist(), costs.T, strict=True):
        if of_order.min() <= 1:
            yield SelectionPolytope(of_order[np.newaxis], 1.0, order)
