"""A mixture of Gaussians on a grid: one merged step of several runs, each of which drew the record or did not.

Guarantees: as `discretised_step`, pessimistic in both directions at whatever grid interval is asked, up to
MIXTURE_ERROR in δ; of many components on a coarser grid, so that a thousand take half a second.
Refuses nothing: who makes the step has checked its numbers.

N(0, 1) against Σ p_j N(c_j, 1), c_j ≥ 0: the loss ℓ(x) = log Σ p_j e^{l_j(x)}, l_j(x) = c_j·x − c_j²/2, rises in x, so
each divergence is that of a half-line, at the x with ℓ(x) = ±ε. There it is a sum of positive terms, one divergence of
two Gaussians each, and nothing cancels:
    H_ε(Σ p_j N(c_j), N(0)) = Σ p_j δ_{c_j}(l_j(x)),  ℓ(x) = ε;
    H_ε(N(0), Σ p_j N(c_j)) = Σ w_j δ_{c_j}(−l_j(x)),  ℓ(x) = −ε,  w_j = p_j e^{l_j(x) − ℓ(x)}.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from scipy.special import log_ndtr, logsumexp

from dpmerge.accounting.discretised_step import TAIL_DEVIATIONS, LossPmf, connected_dots
from dpmerge.accounting.gaussian import gaussian_delta
from dpmerge.accounting.validation import Array

_MOST_TERMS = 2**21  # grid points times components that are worth their time
_CHUNK = 2**19  # of these at once
_TABLE = 2**12  # points between which the x of a loss is first looked up
_NEWTON_ROUNDS = 6


@lru_cache(maxsize=64)
def mixture_pmfs(
    shifts: tuple[float, ...], probabilities: tuple[float, ...], interval: float
) -> tuple[LossPmf, LossPmf]:
    """N(0, 1) against Σ p_j N(c_j, 1): the losses for removal (of the mixture) and for addition."""
    mixture = _Mixture(shifts, probabilities)
    return mixture.discretised(interval, removal=True), mixture.discretised(interval, removal=False)


class _Mixture:
    """The components, and where each loss comes from."""

    def __init__(self, shifts: tuple[float, ...], probabilities: tuple[float, ...]) -> None:
        occurs = np.array(probabilities) > 0
        self._shifts, self._probabilities = np.array(shifts)[occurs], np.array(probabilities)[occurs]
        self._logarithms = np.log(self._probabilities)
        self._ends = -TAIL_DEVIATIONS, TAIL_DEVIATIONS + float(self._shifts.max())
        self._places = np.linspace(self._ends[0] - 1, self._ends[1] + 1, _TABLE)
        self._losses = np.concatenate([self._loss(part)[0] for part in self._chunks(self._places)])

    def discretised(self, interval: float, *, removal: bool) -> LossPmf:
        """Truncated where noise TAIL_DEVIATIONS away ends up; what lies beyond goes to the ends, or to infinity."""
        reach = np.array([self._ends[0], self._ends[1] if removal else TAIL_DEVIATIONS])
        ends = np.sort(self._loss(reach)[0] * (1 if removal else -1))
        coarse = interval
        while (ends[1] - ends[0]) / coarse * self._shifts.size > _MOST_TERMS:
            coarse *= 2
        lowest = math.floor(ends[0] / coarse)
        highest = max(math.ceil(ends[1] / coarse), lowest + 1)
        points = np.asarray(np.arange(lowest, highest + 1) * coarse, dtype=np.float64)
        divergence = self._removal if removal else self._addition
        deltas = np.concatenate([divergence(part) for part in self._chunks(points)])
        assert np.all(np.isfinite(deltas)), f"divergence of a mixture with shifts {self._shifts} is not a number"
        deltas = np.minimum(np.maximum.accumulate(deltas[::-1])[::-1], 1.0)  # rounding may break monotony
        return _refined(connected_dots(coarse, lowest, deltas), round(coarse / interval), interval)

    def _chunks(self, points: Array) -> list[Array]:
        return np.array_split(points, max(1, points.size * self._shifts.size // _CHUNK))

    def _loss(self, x: Array) -> tuple[Array, Array]:
        """ℓ(x), and the l_j(x) it is made of."""
        each = np.multiply.outer(x, self._shifts) - self._shifts**2 / 2
        return np.asarray(logsumexp(each + self._logarithms, axis=-1)), each

    def _place(self, loss: Array) -> Array:
        """The x with ℓ(x) = loss: ℓ is convex, so that Newton's steps come down to it from the right."""
        x = np.interp(loss, self._losses, self._places)
        for _ in range(_NEWTON_ROUNDS):
            value, each = self._loss(x)
            slope = np.exp(each + self._logarithms - value[..., np.newaxis]) @ self._shifts
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                moved = x - (value - loss) / slope
            x = np.clip(np.where(np.isfinite(moved), moved, x), self._places[0], self._places[-1])
        return x

    def _removal(self, epsilon: Array) -> Array:
        x = self._place(epsilon)
        loss, each = self._loss(x)
        delta = gaussian_delta(self._shifts, each) @ self._probabilities
        # What the half-line beyond x gives at ε itself, where x is not quite the place of it.
        delta = delta + np.exp(epsilon + log_ndtr(-x)) * np.expm1(loss - epsilon)
        return np.asarray(np.where(epsilon <= self._losses[0], -np.expm1(np.minimum(epsilon, 0.0)), delta))

    def _addition(self, epsilon: Array) -> Array:
        x = self._place(-epsilon)
        loss, each = self._loss(x)
        weights = np.exp(each + self._logarithms - loss[..., np.newaxis])
        delta = (weights * gaussian_delta(self._shifts, -each)).sum(axis=-1)
        drawn = logsumexp(log_ndtr(np.subtract.outer(x, self._shifts)) + self._logarithms, axis=-1)
        delta = delta + np.exp(epsilon + drawn) * np.expm1(-loss - epsilon)
        return np.asarray(np.where(-epsilon <= self._losses[0], np.maximum(delta, 0.0), delta))


def _refined(pmf: LossPmf, factor: int, interval: float) -> LossPmf:
    """The same distribution on a finer grid, of which it uses every so-manyth point."""
    if factor == 1:
        return pmf
    probabilities = np.zeros((pmf.probabilities.size - 1) * factor + 1)
    probabilities[::factor] = pmf.probabilities
    return LossPmf(interval, pmf.first * factor, probabilities, pmf.infinity)
