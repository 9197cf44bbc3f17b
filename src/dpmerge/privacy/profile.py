"""What every privacy guarantee is: a profile ε ↦ (δ₊(ε), δ₋(ε)), the hockey-stick divergences both ways.

Guarantees: `epsilon(delta)` returns a number at which both divergences are at most δ, or infinity.
Refuses: δ outside (0, 1), and δ below `least_delta`, the floor of what the representation can promise.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dpmerge.errors import DeltaOutOfReach
from dpmerge.privacy import domain
from dpmerge.privacy.domain import Array

Indices = npt.NDArray[np.intp]

LARGEST_EPSILON = 2.0**40
"""Beyond this ε a guarantee says nothing to anybody; the solver answers infinity."""

SUM_ROUNDING = 1 + 4e-15
"""By this a sum of a few products of divergences is rounded up, so that a mass of exactly δ at infinity is not lost."""

_AIM = 5e-12  # in log δ: how far to the safe side of the root the solver aims


class PrivacyProfile(ABC):
    """A proved upper bound on the hockey-stick divergences of a mechanism between neighbouring datasets.

    Under add_remove "+" is the removal of a record and "−" its addition, for every profile alike;
    under replace_one both are equal. Values hold for every pair of neighbours.
    """

    @abstractmethod
    def deltas(self, epsilon: npt.ArrayLike) -> tuple[Array, Array]:
        """(δ₊, δ₋) at each ε; ε may be negative (needed by composition) and of any shape."""

    @abstractmethod
    def renyi_divergence(self, orders: Array) -> Array | None:
        """The Rényi curve at the given orders, larger of both directions; None where no formula is proved."""

    @property
    def least_delta(self) -> float:
        """The smallest δ for which `epsilon` may be asked."""
        return 0.0

    def delta(self, epsilon: float) -> float:
        """The certified δ at ε: the larger of both directions."""
        plus, minus = self.deltas(np.asarray(domain.number("epsilon", epsilon), dtype=float))
        return float(np.maximum(plus, minus))

    def epsilon(self, delta: float) -> float:
        """The smallest ε ≥ 0 (to solver precision, from above) with both divergences at most δ."""
        self.check_delta(delta)
        return float(smallest_epsilon(lambda e, _: np.maximum(*self.deltas(e)), np.array([delta]))[0])

    def check_delta(self, delta: float) -> None:
        """Raise unless δ is in (0, 1) and not below the floor of this profile."""
        domain.delta("delta", delta)
        if delta < self.least_delta:
            raise DeltaOutOfReach(delta, self.least_delta)


class NonPrivateProfile(PrivacyProfile):
    """A model trained without privacy: anything may be told apart, δ = 1 at every ε."""

    def deltas(self, epsilon: npt.ArrayLike) -> tuple[Array, Array]:
        ones = np.ones_like(np.asarray(epsilon, dtype=float))
        return ones, ones

    def renyi_divergence(self, orders: Array) -> Array:
        return np.full_like(orders, np.inf)

    def __repr__(self) -> str:
        return "NonPrivateProfile()"


def reflected(epsilon: Array, opposite_delta: Array) -> Array:
    """δ₊(−ε) = 1 − e^{−ε}(1 − δ₋(ε)) for ε ≥ 0: one direction below zero from the other above it."""
    return np.asarray(-np.expm1(-epsilon) + np.exp(-epsilon) * opposite_delta)


class Bracket(NamedTuple):
    """Two ε's on either side of the answer, and δ at both: delta_low > target ≥ delta_high, low ≥ 0."""

    low: Array
    high: Array
    delta_low: Array
    delta_high: Array


def smallest_epsilon(
    delta_at: Callable[[Array, Indices], Array], target: Array, bracket: Bracket | None = None
) -> Array:
    """The smallest ε ≥ 0 with δ(ε) ≤ target for each of many profiles, always the safe end of the bracket.

    `delta_at(epsilon, which)` evaluates profiles number `which` at one ε each and must be non-increasing in ε.
    Where the given bracket does not hold (or none is given) one is searched. The answer satisfies
    δ(ε) ≤ target as computed, or is infinite; it exceeds the smallest such ε by about 1e-11 in log δ.
    """
    everything = np.arange(target.size)
    if bracket is None:
        low, high = np.zeros(target.size), np.ones(target.size)
        bracket = Bracket(low, high, delta_at(low, everything), delta_at(high, everything))
    with np.errstate(divide="ignore"):
        low, high = np.array(bracket.low, dtype=float), np.array(bracket.high, dtype=float)
        low_excess = _log_ratio(bracket.delta_low, target)
        high_excess = _log_ratio(bracket.delta_high, target)

        def excess(epsilon: Array, which: Indices) -> Array:
            return _log_ratio(delta_at(epsilon, which), target[which])

        # A lower end that fits already: zero is the only smaller one worth asking.
        which = np.flatnonzero(low_excess <= 0)
        if which.size:
            high[which], high_excess[which] = low[which], low_excess[which]
            low[which] = 0.0
            low_excess[which] = excess(low[which], which)
            fits = which[low_excess[which] <= 0]
            high[fits], high_excess[fits] = 0.0, 0.0
        while (which := np.flatnonzero((high_excess > 0) & np.isfinite(high))).size:
            low[which], low_excess[which] = high[which], high_excess[which]
            high[which] = np.where(high[which] < LARGEST_EPSILON, 2 * high[which] + 1e-3, np.inf)
            reached = which[np.isfinite(high[which])]
            high_excess[reached] = excess(high[reached], reached)
        _shrink(excess, low, high, low_excess, high_excess)
    return high


def _log_ratio(delta: Array, target: Array) -> Array:
    """log(δ/target), positive where δ is too large; a δ that is not a number is too large."""
    return np.log(np.where(np.isnan(delta), np.inf, delta)) - np.log(target)


def _shrink(
    excess: Callable[[Array, Indices], Array], low: Array, high: Array, low_excess: Array, high_excess: Array
) -> None:
    """Narrow each [low, high] with excess(low) > 0 ≥ excess(high), in place, until high is as good as exact.

    Secant through the bracket (Illinois weights) aimed a little to the safe side; a bisection whenever two
    rounds did not halve the bracket.
    """
    low_weight, high_weight = low_excess.copy(), high_excess.copy()
    last_moved = np.zeros(low.size, dtype=int)
    width_before = np.full(low.size, np.inf)
    active = np.flatnonzero(np.isfinite(high) & (low_excess > 0))
    for round_number in range(400):
        width = high[active] - low[active]
        open_still = (high_excess[active] < -2 * _AIM) & (width > 1e-14 * high[active])
        active, width = active[open_still], width[open_still]
        if not active.size:
            return
        with np.errstate(invalid="ignore"):
            rise = low_weight[active] - high_weight[active]
            point = low[active] + width * (low_weight[active] + _AIM) / rise
        unusable = ~((point > low[active]) & (point < high[active]))
        if round_number % 2 == 0:
            unusable |= width > width_before[active] / 2
            width_before[active] = width
        point = np.where(unusable, low[active] + width / 2, point)
        value = excess(point, active)
        for moved, chosen, end, end_excess, weight, other_weight in (
            (1, value > 0, low, low_excess, low_weight, high_weight),
            (-1, value <= 0, high, high_excess, high_weight, low_weight),
        ):
            which = active[chosen]
            end[which], end_excess[which], weight[which] = point[chosen], value[chosen], value[chosen]
            # Illinois: an end that stays put twice running loses half its weight, so that the secant passes it.
            other_weight[which[last_moved[which] == moved]] /= 2
            last_moved[which] = moved
