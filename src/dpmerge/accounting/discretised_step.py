"""Single steps on a grid: privacy loss distributions that bound the truth however often they are composed.

Guarantees: pessimistic in both directions at whatever grid interval is asked (connect-the-dots, Doroshenko et al.
2022), up to an error of floating point in δ, STEP_ERROR. Distributions are those of dp_accounting, without its
rounding noise.
Refuses nothing: the run that owns the step has checked its numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import log_ndtr, ndtr, ndtri

from dpmerge.accounting.gaussian import gaussian_delta
from dpmerge.accounting.profile import reflected
from dpmerge.accounting.validation import Array

STEP_ERROR = 5e-15
"""Absolute error in δ of one step discretised here: 3.4e-15 was the most seen against 80 digits."""

RELATIVE_ERROR = 8 * 2.0**-53
"""What δ may lack beside that at a negative ε, of 1 − e^ε: a composition's δ then lacks as much of itself a step.

Two units were the most seen. It matters where a step is seldom drawn, and its own error much smaller than a unit.
"""

MIXTURE_ERROR = 1e-12
"""The same of a mixture of Gaussians (`discretised_mixture`): 1e-15 was the most seen against 60 digits."""

TAIL_DEVIATIONS = float(-ndtri(math.exp(-50) / 2))
"""Where the noise is truncated: ten standard deviations, as dp_accounting does."""


@dataclass(frozen=True, eq=False)
class LossPmf:
    """A privacy loss distribution on the grid (first + j)·interval, with mass at infinity."""

    interval: float
    first: int
    probabilities: Array
    infinity: float

    @property
    def losses(self) -> Array:
        return np.asarray((self.first + np.arange(self.probabilities.size)) * self.interval)


@lru_cache(maxsize=64)
def gaussian_pmfs(ratio: float, rate: float, replace_one: bool, interval: float) -> tuple[LossPmf, LossPmf]:
    """A Poisson-subsampled Gaussian step, discretised from its divergences in closed form, all grid points at once."""
    if replace_one:
        symmetric = _discretised("REPLACE", ratio, rate, interval)
        return symmetric, symmetric
    removal = _discretised("REMOVE", ratio, rate, interval)
    return removal, removal if rate == 1 else _discretised("ADD", ratio, rate, interval)


def _discretised(relation: str, ratio: float, rate: float, interval: float) -> LossPmf:
    lower, upper = _truncated_losses(relation, ratio, rate)
    lowest = math.floor(lower / interval)
    highest = max(math.ceil(upper / interval), lowest + 1)
    points = np.asarray(np.arange(lowest, highest + 1) * interval, dtype=np.float64)
    deltas = _DIVERGENCES[relation](points, ratio, rate)
    assert np.all(np.isfinite(deltas)), f"divergence of a step with ratio {ratio} and rate {rate} is not a number"
    deltas = np.maximum.accumulate(deltas[::-1])[::-1]  # rounding may break monotony; repaired upwards
    return connected_dots(interval, lowest, np.minimum(deltas, 1.0))


def _truncated_losses(relation: str, ratio: float, rate: float) -> tuple[float, float]:
    """The losses where noise TAIL_DEVIATIONS away ends up; what lies beyond goes to the ends, or to infinity."""
    drawn = ratio * TAIL_DEVIATIONS + ratio**2 / 2  # the loss there of a step that is always drawn
    if relation == "REMOVE":
        return _log_mixed(rate, -drawn), _log_mixed(rate, drawn)
    if relation == "ADD":
        # An added record's noise is around zero. Further down there is only the rounding of a δ that is nearly one.
        return -_log_mixed(rate, drawn - ratio**2), -_log_mixed(rate, -drawn)
    opposite = ratio**2  # a replacement has a loss from either end, and they are this much apart
    return (
        _log_mixed(rate, -drawn) - _log_mixed(rate, drawn - opposite),
        _log_mixed(rate, drawn) - _log_mixed(rate, -drawn - opposite),
    )


def _log_mixed(rate: float, loss: float) -> float:
    """log(1 − q + q·e^loss), without overflow."""
    if rate == 1:
        return loss
    if loss > 1:
        return float(np.logaddexp(math.log1p(-rate), math.log(rate) + loss))
    return math.log1p(rate * math.expm1(loss))


def connected_dots(interval: float, lowest: int, deltas: Array) -> LossPmf:
    """The distribution whose divergence joins the given δ's by straight lines in e^ε (Doroshenko et al. 2022).

    Its mass at a grid point is the change of slope there. Written with first differences, which are exact because
    neighbours are within a factor of two, and then with the difference of those: nothing else cancels.
    """
    step = math.expm1(interval) if interval < 700 else math.inf
    falls = np.diff(deltas)
    mass = np.empty(deltas.size)
    mass[0] = 1 - deltas[0] + falls[0] / step
    mass[1:-1] = np.diff(falls) / step - falls[:-1]
    mass[-1] = falls[-1] / math.expm1(-interval)
    return LossPmf(interval, lowest, np.maximum(mass, 0.0), float(deltas[-1]))


def _removal_delta(epsilon: Array, ratio: float, rate: float) -> Array:
    """H_ε((1−q)Q + qP, Q) = q·H_ε′(P, Q) with e^ε′ = 1 + (e^ε − 1)/q; 1 − e^ε where that is not positive."""
    if rate == 1:
        return gaussian_delta(ratio, epsilon)
    certain = -np.expm1(np.minimum(epsilon, 0.0))  # what the undrawn part alone gives, below log(1 − q)
    above = epsilon > np.log1p(-rate)
    size = np.where(above, epsilon, 0.0)
    with np.errstate(divide="ignore", over="ignore"):
        small = np.log1p(np.expm1(np.minimum(size, 1.0)) / rate)
        large = size - np.log(rate) + np.log1p((rate - 1) * np.exp(-np.maximum(size, 1.0)))
    inner = np.where(size > 1.0, large, small)
    amplified = rate * gaussian_delta(ratio, np.where(np.isfinite(inner), inner, 0.0))
    return np.where(above & np.isfinite(inner), amplified, certain)


def _addition_delta(epsilon: Array, ratio: float, rate: float) -> Array:
    """H_ε(Q, (1−q)Q + qP) = w·H_ε′(Q, P) with w = 1 − (1−q)e^ε and e^ε′ = q·e^ε/w; zero where w is not positive."""
    kept = -np.expm1(np.minimum(epsilon + np.log1p(-rate), 0.0))
    positive = kept > 0
    inner = np.log(rate) + epsilon - np.log(np.where(positive, kept, 1.0))
    return np.where(positive, kept * gaussian_delta(ratio, inner), 0.0)


def _replacement_delta(epsilon: Array, ratio: float, rate: float) -> Array:
    """H_ε((1−q)N(0) + qN(r), (1−q)N(0) + qN(−r)): the loss rises in x, so it is a difference of upper tails.

    The loss equals ε where y = e^{rx} solves A·y² − (1−q)(e^ε − 1)·y − e^ε·A = 0, A = q·e^{−r²/2}.
    """
    size = np.abs(epsilon)
    log_a = np.log(rate) - ratio**2 / 2
    with np.errstate(divide="ignore"):
        log_middle = np.log1p(-rate) + size + np.log(-np.expm1(-size)) if rate < 1 else np.full_like(size, -np.inf)
    # y = (m + √(m² + 4A²e^ε)) / 2A, in logarithms.
    root = np.logaddexp(2 * log_middle, np.log(4) + 2 * log_a + size) / 2
    x = (np.logaddexp(log_middle, root) - np.log(2) - log_a) / ratio
    undrawn = np.exp(log_middle + log_ndtr(-x))
    drawn = rate * (ndtr(ratio - x) - np.exp(size + log_ndtr(-ratio - x)))
    delta = np.clip(drawn - undrawn, 0.0, 1.0)
    return np.where(epsilon < 0, reflected(size, delta), delta)


_DIVERGENCES = {
    "REMOVE": _removal_delta,
    "ADD": _addition_delta,
    "REPLACE": _replacement_delta,
}
