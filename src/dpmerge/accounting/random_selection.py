"""Random selection: draw one candidate with given probabilities, independently of the data and of all run noise.

Guarantees: δ±(ε) ≤ Σ π_i δ±_i(ε) (joint convexity of the hockey-stick divergence) and
RDP(α) ≤ log Σ π_i e^{(α−1)RDP_i(α)} / (α−1). Candidates may be correlated, share runs, or be merges themselves.
Publishing the index does not raise these numbers. The guarantee is ex ante: given the index, the drawn
candidate's own holds.
Refuses: probabilities off the simplex.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp

from dpmerge.accounting import validation
from dpmerge.accounting.epsilon_solver import Bracket, Indices, smallest_epsilon
from dpmerge.accounting.profile import SUM_ROUNDING, PrivacyProfile
from dpmerge.accounting.renyi import Conversion, renyi_epsilon
from dpmerge.accounting.validation import Array
from dpmerge.errors import InvalidInputError

_GRID = 2**12
_CHUNK = 2**16
_RENYI_CHUNK = 2**11


@dataclass(frozen=True, eq=False)
class SelectionProfile(PrivacyProfile):
    """The profile of a random selection among members: the paper's Algorithm 1 (theory 3).

    Args:
        members: The profile of each candidate.
        probabilities: Of drawing each, ≥ 0 and summing to 1; the draw is independent of the data and of all noise.

    Raises:
        InvalidInputError: Probabilities off the simplex, or no member.

    >>> from dpmerge.accounting.gaussian import GaussianProfile
    >>> profile = SelectionProfile((GaussianProfile(1.0), GaussianProfile(4.0)), (0.999, 0.001))
    >>> round(profile.epsilon(1e-5), 9)
    16.522789155
    """

    members: tuple[PrivacyProfile, ...]
    probabilities: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "members", tuple(self.members))
        if not self.members:
            raise InvalidInputError("members", self.members, "at least one profile")
        _check_members(self.members)
        vector = validation.simplex("probabilities", self.probabilities, len(self.members))
        chosen = [(member, p) for member, p in zip(self.members, vector.tolist(), strict=True) if p > 0]
        object.__setattr__(self, "members", tuple(member for member, _ in chosen))
        object.__setattr__(self, "probabilities", tuple(p for _, p in chosen))

    def deltas(self, epsilon: npt.ArrayLike) -> tuple[Array, Array]:
        points = np.asarray(epsilon, dtype=float)
        plus, minus = np.zeros(points.shape), np.zeros(points.shape)
        for member, probability in zip(self.members, self.probabilities, strict=True):
            member_plus, member_minus = member.deltas(points)
            plus = plus + probability * member_plus
            minus = minus + probability * member_minus
        return np.minimum(1.0, plus * SUM_ROUNDING), np.minimum(1.0, minus * SUM_ROUNDING)

    @property
    def least_delta(self) -> float:
        return max(member.least_delta for member in self.members)

    def epsilon(self, delta: float) -> float:
        self.check_delta(delta)
        if len(self.members) == 1:
            return self.members[0].epsilon(delta)
        return super().epsilon(delta)

    def renyi_divergence(self, orders: Array) -> Array | None:
        """log-sum-exp over the members' curves; None if one of them has none."""
        curves = []
        for member in self.members:
            curve = member.renyi_divergence(orders)
            if curve is None:
                return None
            curves.append(curve)
        return _selected_curve(np.array(curves), np.array(self.probabilities), orders)


def selection_epsilons(members: Sequence[PrivacyProfile], probabilities: npt.ArrayLike, delta: float) -> Array:
    """ε at δ of many selections at once: one row of `probabilities` each.

    Divergences of the members are tabulated once; each row is bracketed between two points of the table by
    bisection and then solved with exact evaluations, so that the result is as safe as a single `epsilon`
    (theory 3).

    Args:
        members: The profile of each candidate.
        probabilities: One row for each selection.
        delta: Strictly between 0 and 1.

    Returns:
        ε of each row.

    Raises:
        DeltaOutOfReachError: δ is below what a member can promise.
        InvalidInputError: Probabilities off the simplex.

    >>> from dpmerge.accounting import GaussianProfile
    >>> members = [GaussianProfile(0.5), GaussianProfile(1.0)]
    >>> selection_epsilons(members, [[1, 0], [0.5, 0.5], [0, 1]], 1e-5).round(4)
    array([1.9931, 4.2124, 4.3772])
    """
    members = list(members)
    _check_members(members)
    rows = validation.simplex_rows("probabilities", probabilities, len(members))
    for member in members:
        member.check_delta(delta)
    ends = np.array([member.epsilon(delta) for member in members])
    ends = ends[np.isfinite(ends)] if np.any(np.isfinite(ends)) else np.array([1.0])
    # A selection costs no less than its least and no more than its most private member. Quadratic spacing,
    # because the divergence of a mixture bends most near the small end.
    grid = ends.min() + (ends.max() - ends.min() + 1e-9) * np.linspace(0, 1, _GRID) ** 2
    table = np.array([member.deltas(grid) for member in members])  # (member, direction, point)
    result = np.empty(rows.shape[0])
    for start in range(0, rows.shape[0], _CHUNK):
        part = slice(start, start + _CHUNK)
        result[part] = _solve_rows(members, rows[part], delta, grid, table)
    return result


def selection_feasible(
    members: Sequence[PrivacyProfile], probabilities: npt.ArrayLike, epsilon: float, delta: float
) -> npt.NDArray[np.bool_]:
    """Which selections meet (ε, δ): two inner products a row (theory 3).

    Args:
        members: The profile of each candidate.
        probabilities: One row for each selection.
        epsilon: The ε to meet.
        delta: The δ to meet it at.

    Returns:
        Whether each row meets it.

    Raises:
        DeltaOutOfReachError: δ is below what a member can promise.
        InvalidInputError: Probabilities off the simplex.

    >>> from dpmerge.accounting import GaussianProfile
    >>> members = [GaussianProfile(0.5), GaussianProfile(1.0)]
    >>> selection_feasible(members, [[1, 0], [0.5, 0.5], [0, 1]], 4.3, 1e-5).tolist()
    [True, True, False]
    """
    members = list(members)
    _check_members(members)
    rows = validation.simplex_rows("probabilities", probabilities, len(members))
    for member in members:
        member.check_delta(delta)
    plus, minus = np.array([member.deltas(epsilon) for member in members]).T
    return np.asarray((rows @ plus * SUM_ROUNDING <= delta) & (rows @ minus * SUM_ROUNDING <= delta))


def selection_renyi_epsilons(
    curves: Array, probabilities: npt.ArrayLike, delta: float, orders: Array, conversion: Conversion
) -> Array:
    """ε at δ by Rényi divergence for many selections (theory 3).

    Args:
        curves: The Rényi curve of each candidate, one a row; infinite where nothing is known.
        probabilities: One row for each selection.
        delta: Strictly between 0 and 1.
        orders: Of the curves.
        conversion: `classic` (Mironov 2017) or `improved` (Canonne, Kamath, Steinke 2020).

    Returns:
        ε of each row.

    Raises:
        InvalidInputError: Probabilities off the simplex, or curves that do not match the orders.

    >>> from dpmerge.accounting import DEFAULT_ORDERS
    >>> curves = np.array([[mu**2 / 2] for mu in (0.5, 1.0)]) * DEFAULT_ORDERS
    >>> selection_renyi_epsilons(curves, [[1, 0], [0.5, 0.5]], 1e-5, DEFAULT_ORDERS, "improved").round(4)
    array([2.1657, 4.5693])
    """
    validation.delta("delta", delta)
    orders = validation.orders("orders", orders)
    rows = validation.simplex_rows("probabilities", probabilities, len(curves))
    if np.shape(curves) != (len(curves), orders.size) or np.any(np.asarray(curves) < 0):
        accepted = f"one row a member of {orders.size} numbers ≥ 0 (infinity where nothing is known)"
        raise InvalidInputError("curves", curves, accepted, found=f"an array of shape {np.shape(curves)}")
    exponents = (orders - 1) * np.where(np.isfinite(curves), curves, -np.inf)
    largest = np.maximum(exponents.max(axis=0), 0.0)
    scaled = np.exp(exponents - largest)
    unknown = (~np.isfinite(curves)).astype(float)
    result = np.empty(rows.shape[0])
    for start in range(0, rows.shape[0], _RENYI_CHUNK):
        part = rows[start : start + _RENYI_CHUNK]
        sums = part @ scaled
        with np.errstate(divide="ignore"):
            logarithms = largest + np.log(sums)
            # Where the largest member is not in the support the scaled sum may have underflowed: sum those again.
            row, order = np.nonzero(sums < 1e-200)
            logarithms[row, order] = logsumexp(exponents[:, order] + np.log(part[row].T), axis=0)
        values = np.where((part > 0) @ unknown > 0, np.inf, np.maximum(logarithms / (orders - 1), 0.0))
        result[start : start + _RENYI_CHUNK] = renyi_epsilon(orders, values, delta, conversion)
    return result


def _selected_curve(curves: Array, probabilities: Array, orders: Array) -> Array:
    with np.errstate(invalid="ignore"):
        exponents = (orders - 1) * curves
    # Logarithms of the probabilities, not factors: one may be the smallest of doubles.
    sums = logsumexp(exponents + np.log(probabilities)[:, np.newaxis], axis=0)
    return np.asarray(np.maximum(sums / (orders - 1), 0.0))


def _check_members(members: Sequence[PrivacyProfile]) -> None:
    for position, member in enumerate(members):
        validation.instance(f"members[{position}]", member, PrivacyProfile, "a profile, such as run.profile()")


def _solve_rows(members: Sequence[PrivacyProfile], rows: Array, delta: float, grid: Array, table: Array) -> Array:
    symmetric = bool(np.all(table[:, 0] == table[:, 1]))

    def mixed(both_ways: Callable[[int], Sequence[Array] | Array], chosen: Array) -> Array:
        plus = minus = np.zeros(chosen.shape[0])
        for column in range(len(members)):
            member_plus, member_minus = both_ways(column)
            plus = plus + chosen[:, column] * member_plus
            minus = plus if symmetric else minus + chosen[:, column] * member_minus
        return np.maximum(plus, minus) * SUM_ROUNDING

    def tabulated(place: Indices) -> Array:
        return mixed(lambda column: table[column][:, place], rows)

    def exact(epsilon: Array, which: Indices) -> Array:
        return mixed(lambda column: members[column].deltas(epsilon), rows[which])

    low = np.zeros(rows.shape[0], dtype=np.intp)
    high = np.full(rows.shape[0], grid.size - 1, dtype=np.intp)
    while np.any(high - low > 1):
        middle = (low + high) // 2
        fits = tabulated(middle) <= delta
        high, low = np.where(fits, middle, high), np.where(fits, low, middle)
    bracket = Bracket(grid[low], grid[high], tabulated(low), tabulated(high))
    return smallest_epsilon(exact, np.full(rows.shape[0], delta), bracket)
