"""The one solver: from δ(ε), non-increasing in ε, to the smallest ε that meets a δ.

Guarantees: the ε returned satisfies δ(ε) ≤ δ as computed, or is infinite; it exceeds the smallest such ε by about 1e-11
in log δ. A δ that is not a number counts as too large.
Refuses nothing: bad brackets are replaced by ones that are searched.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dpmerge.accounting.validation import Array

Indices = npt.NDArray[np.intp]

LARGEST_EPSILON = 2.0**40
"""Beyond this ε a guarantee says nothing to anybody; the solver answers infinity."""

_AIM = 5e-12  # in log δ: how far to the safe side of the root the solver aims

_MOST_ROUNDS = 400


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

    Args:
        delta_at: `delta_at(epsilon, which)` evaluates profiles number `which` at one ε each; non-increasing in ε.
        target: The δ to meet, for each profile.
        bracket: Where to begin; where it does not hold, or none is given, one is searched.

    Returns:
        ε for each profile, infinite where none up to LARGEST_EPSILON is enough.

    >>> smallest_epsilon(lambda epsilon, _: np.exp(-epsilon), np.array([np.exp(-3.0)])).round(9)
    array([3.])
    """
    if bracket is None:
        everything = np.arange(target.size)
        low, high = np.zeros(target.size), np.ones(target.size)
        bracket = Bracket(low, high, delta_at(low, everything), delta_at(high, everything))
    with np.errstate(divide="ignore"):
        ends = _Ends(
            excess=lambda epsilon, which: _log_ratio(delta_at(epsilon, which), target[which]),
            low=np.array(bracket.low, dtype=float),
            high=np.array(bracket.high, dtype=float),
            low_excess=_log_ratio(bracket.delta_low, target),
            high_excess=_log_ratio(bracket.delta_high, target),
        )
        ends.lower_what_fits()
        ends.raise_what_does_not()
        ends.narrow()
    return ends.high


def _log_ratio(delta: Array, target: Array) -> Array:
    """log(δ/target), positive where δ is too large; a δ that is not a number is too large."""
    return np.log(np.where(np.isnan(delta), np.inf, delta)) - np.log(target)


@dataclass
class _Ends:
    """Both ends of every bracket, and by how much δ exceeds its target there: positive below, at most 0 above."""

    excess: Callable[[Array, Indices], Array]
    low: Array
    high: Array
    low_excess: Array
    high_excess: Array

    def lower_what_fits(self) -> None:
        """A lower end that fits already becomes the upper one: zero is the only smaller ε worth asking."""
        which = np.flatnonzero(self.low_excess <= 0)
        if not which.size:
            return
        self.high[which], self.high_excess[which] = self.low[which], self.low_excess[which]
        self.low[which] = 0.0
        self.low_excess[which] = self.excess(self.low[which], which)
        fits = which[self.low_excess[which] <= 0]
        self.high[fits], self.high_excess[fits] = 0.0, 0.0

    def raise_what_does_not(self) -> None:
        """Double each upper end until it fits, or is beyond LARGEST_EPSILON and so infinite."""
        while (which := np.flatnonzero((self.high_excess > 0) & np.isfinite(self.high))).size:
            self.low[which], self.low_excess[which] = self.high[which], self.high_excess[which]
            doubled = 2 * self.high[which] + 1e-3
            self.high[which] = np.where(self.high[which] < LARGEST_EPSILON, doubled, np.inf)
            reached = which[np.isfinite(self.high[which])]
            self.high_excess[reached] = self.excess(self.high[reached], reached)

    def narrow(self) -> None:
        """Until every upper end is as good as exact: secants, and a bisection where two rounds did not halve.

        The secant goes through weights of both ends (Illinois), aimed a little to the safe side.
        """
        weights = _IllinoisWeights(self)
        width_before = np.full(self.low.size, np.inf)
        active = np.flatnonzero(np.isfinite(self.high) & (self.low_excess > 0))
        for round_number in range(_MOST_ROUNDS):
            width = self.high[active] - self.low[active]
            still_open = (self.high_excess[active] < -2 * _AIM) & (width > 1e-14 * self.high[active])
            active, width = active[still_open], width[still_open]
            if not active.size:
                return
            point = weights.secant(active, width)
            unusable = ~((point > self.low[active]) & (point < self.high[active]))
            if round_number % 2 == 0:
                unusable |= width > width_before[active] / 2
                width_before[active] = width
            point = np.where(unusable, self.low[active] + width / 2, point)
            weights.move(active, point, self.excess(point, active))


class _IllinoisWeights:
    """The excesses the secant goes through: an end that stays put twice running loses half its weight."""

    def __init__(self, ends: _Ends) -> None:
        self.ends = ends
        self.low, self.high = ends.low_excess.copy(), ends.high_excess.copy()
        self.last_moved = np.zeros(ends.low.size, dtype=int)  # 1: the lower end, −1: the upper one

    def secant(self, active: Indices, width: Array) -> Array:
        with np.errstate(invalid="ignore"):
            rise = self.low[active] - self.high[active]
            return np.asarray(self.ends.low[active] + width * (self.low[active] + _AIM) / rise)

    def move(self, active: Indices, point: Array, value: Array) -> None:
        """Replace the end on whose side each point lies."""
        below, above = value > 0, value <= 0
        ends = self.ends
        self._replace(active[below], point[below], value[below], 1, ends.low, ends.low_excess, self.low, self.high)
        self._replace(active[above], point[above], value[above], -1, ends.high, ends.high_excess, self.high, self.low)

    def _replace(
        self,
        which: Indices,
        point: Array,
        value: Array,
        moved: int,
        end: Array,
        end_excess: Array,
        weight: Array,
        other_weight: Array,
    ) -> None:
        end[which], end_excess[which], weight[which] = point, value, value
        other_weight[which[self.last_moved[which] == moved]] /= 2
        self.last_moved[which] = moved
