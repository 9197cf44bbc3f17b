"""Gaussian scores: how far apart their two means are, with exact limits, and what that distance says of ε and δ.

Guarantees: the limits of μ hold with their confidence for any number of scores, if these are Gaussian with one variance
in both worlds: they are those of the noncentral t distribution. δ is right to 1e-9 relative, ε to 1e-9 of the larger of
ε and μ, for μ up to 300.
Refuses: scores that are not finite, fewer than two in a world, scores without noise, a negative μ, a δ outside (0, 1).

The formulas are the audit's own: what is wrong in the accounting is not repeated here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.special import erfcx, log_ndtr, ndtr

from dpmerge.auditing.attacks import Array
from dpmerge.auditing.counting_estimator import checked_confidence
from dpmerge.auditing.findings import Interval
from dpmerge.errors import InvalidInputError

_NODES, _NODE_WEIGHTS = np.polynomial.legendre.leggauss(20)
_FAR = 1e4
"""A distance beyond which limits are those of this one: lower ones stay true, and ε = 5·10⁷ is no privacy anyway."""

_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)


def mu_interval(absent: npt.ArrayLike, present: npt.ArrayLike, confidence: float) -> Interval:
    """The distance of the means in deviations, and two limits that hold at once with at least `confidence`.

    Nothing in it is below 0: scores are larger where the record is, and a distance that seems negative is chance.
    """
    error = (1 - checked_confidence(confidence)) / 2
    distance, scale, freedom = _standing(absent, present)
    low = scale * noncentrality(min(distance, _FAR) / scale, freedom, error)
    high = scale * noncentrality(distance / scale, freedom, 1 - error) if distance <= _FAR else math.inf
    return Interval(estimate=max(0.0, distance), low=max(0.0, low), high=max(0.0, high))


def mu_lower(absent: npt.ArrayLike, present: npt.ArrayLike, confidence: float) -> float:
    """A number that is at most μ with at least `confidence`, and at least 0."""
    error = 1 - checked_confidence(confidence)
    distance, scale, freedom = _standing(absent, present)
    return max(0.0, scale * noncentrality(min(distance, _FAR) / scale, freedom, error))


def noncentrality(observed: float, freedom: int, tail: float) -> float:
    """The ν at which a noncentral t variable is at least `observed` with probability `tail`.

    Seen so, ν is the exact lower limit of a noncentrality with confidence 1 − tail.
    """

    def excess(shift: float) -> float:
        return t_tail(observed, freedom, shift) - tail

    below = above = 1.0
    while excess(observed - below) > 0:
        below *= 2
    while excess(observed + above) < 0:
        above *= 2
    return float(brentq(excess, observed - below, observed + above, xtol=1e-11, rtol=1e-14))


def t_tail(observed: float, freedom: int, shift: float) -> float:
    """The probability that (Z + ν) / s is at least `observed`, for ν = `shift`, Z ~ N(0, 1), s² ~ χ²/freedom.

    It is the mean of Φ(ν − observed · s). The trapezoidal rule over s converges faster than any power of its step, and
    there are steps enough for the slope of Φ; the weights are normalised, so that no constant of the χ² is needed.
    """
    spread = 1 / math.sqrt(2 * freedom)
    # In u = log s the density stays smooth down to one degree of freedom.
    count = 300 + int(60 * abs(observed) * spread)
    u = np.linspace(-12 * spread * (1 + 3 * spread), 12 * spread, count)
    log_density = freedom * (u - np.expm1(2 * u) / 2)
    weight = np.exp(log_density - log_density.max())
    return float(weight @ ndtr(shift - observed * np.exp(u)) / weight.sum())


def gaussian_delta(mu: npt.ArrayLike, epsilon: npt.ArrayLike) -> Array:
    """δ at ε ≥ 0 of N(0, 1) against N(μ, 1), the same either way.

    >>> round(float(gaussian_delta(1.0, 1.0)), 11)
    0.12693673751
    """
    return np.exp(log_gaussian_delta(mu, epsilon))


def log_gaussian_delta(mu: npt.ArrayLike, epsilon: npt.ArrayLike) -> Array:
    """log δ, where δ = Φ(−a) − e^ε Φ(−b), a = ε/μ − μ/2, b = a + μ (Balle, Wang 2018).

    With φ(a) = e^ε φ(b) and the Mills ratio R = Φ(−x)/φ(x) that is Φ(−a) − φ(a) R(b). For μ ≤ 1, where the two nearly
    cancel, it is φ(a) ∫ (1 − x R(x)) dx from a to b, because R' = xR − 1.
    """
    mu, epsilon = np.broadcast_arrays(np.asarray(mu, dtype=float), np.asarray(epsilon, dtype=float))
    for name, value in (("mu", mu), ("epsilon", epsilon)):
        if not np.all((value >= 0) & np.isfinite(value)):
            raise InvalidInputError(name, value.tolist(), "finite numbers ≥ 0")
    positive = np.where(mu > 0, mu, 1.0)
    # For a μ that is hardly one, a is beyond doubles, and log δ is −∞ as it should be.
    with np.errstate(divide="ignore", over="ignore", under="ignore", invalid="ignore"):
        a = epsilon / positive - positive / 2
        log_density = -a * a / 2 - _LOG_SQRT_2PI
        upper = log_ndtr(-a)
        apart = upper + np.log1p(-np.exp(np.minimum(0.0, log_density + np.log(_mills(a + positive)) - upper)))
        x = np.maximum(a, -0.5)[..., None] + positive[..., None] * (_NODES + 1) / 2
        near = log_density + np.log(positive / 2) + np.log(_mills_slope(x) @ _NODE_WEIGHTS)
    return np.where(mu > 0, np.where(mu <= 1, near, apart), -np.inf)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The least ε ≥ 0 at which N(0, 1) against N(μ, 1) has at most δ.

    >>> round(gaussian_epsilon(1.0, 1e-5), 9)
    4.377178096
    """
    return mixture_epsilon([mu], [1.0], delta)


def mixture_epsilon(mus: Sequence[float], probabilities: Sequence[float], delta: float) -> float:
    """The least ε ≥ 0 with Σ π_i δ_i(ε) ≤ δ: an index i is drawn with π and seen, then a Gaussian with μ_i.

    It grows with every μ_i, so that of lower limits it is a lower bound.
    """
    if not 0 < delta < 1:
        raise InvalidInputError("delta", delta, "a number strictly between 0 and 1")
    distance, chance = np.asarray(mus, dtype=float), np.asarray(probabilities, dtype=float)
    if distance.shape != chance.shape or not np.all(chance >= 0) or abs(chance.sum() - 1) > 1e-9:
        raise InvalidInputError("probabilities", chance.tolist(), "one for each μ, at least 0, that sum to 1")
    if not np.all((distance >= 0) & np.isfinite(distance)):
        raise InvalidInputError("mus", distance.tolist(), "finite numbers ≥ 0")
    counts = (distance > 0) & (chance > 0)
    distance, chance = distance[counts], chance[counts]
    if distance.size == 0:
        return 0.0

    def excess(epsilon: float) -> float:
        terms = log_gaussian_delta(distance, epsilon)
        largest = float(terms.max())
        return largest + math.log(float(chance @ np.exp(terms - largest))) - math.log(delta)

    if excess(0.0) <= 0:
        return 0.0
    # From there on even the largest δ_i is below δ, since δ_i < Φ(−a) ≤ exp(−a²/2).
    furthest = float(distance.max())
    high = furthest**2 / 2 + furthest * math.sqrt(-2 * math.log(delta))
    return float(brentq(excess, 0.0, high, xtol=1e-13 * high, rtol=1e-13))


def _standing(absent: npt.ArrayLike, present: npt.ArrayLike) -> tuple[float, float, int]:
    """The distance of the means in pooled deviations, how much that varies by the means, the degrees of freedom."""
    without, within = np.asarray(absent, dtype=float), np.asarray(present, dtype=float)
    for name, scores in (("absent", without), ("present", within)):
        if scores.ndim != 1 or scores.size < 2:
            raise InvalidInputError(
                name, scores.shape, "a list of at least two scores", found=f"the shape {scores.shape}"
            )
        if not np.all(np.isfinite(scores)):
            raise InvalidInputError(name, "NaN or infinity", "finite scores")
    size = max(np.abs(without).max(), np.abs(within).max()) or 1.0
    without, within = without / size, within / size
    freedom = without.size + within.size - 2
    variance = float(without.var() * without.size + within.var() * within.size) / freedom
    gap = float(within.mean() - without.mean())
    if variance == 0 and gap != 0:
        problem = "scores: no noise at all and two means, which is not Gaussian"
        raise InvalidInputError("scores", gap, "count them at a threshold instead", problem=problem)
    distance = gap / math.sqrt(variance) if gap else 0.0
    return distance, math.sqrt(1 / without.size + 1 / within.size), freedom


def _mills(x: Array) -> Array:
    return np.asarray(math.sqrt(math.pi / 2) * erfcx(x / math.sqrt(2)))


def _mills_slope(x: Array) -> Array:
    """1 − x R(x); far out, where that cancels, its asymptotic series."""
    far = np.maximum(x, 300.0) ** -2
    return np.where(x > 300, far * (1 - far * (3 - 15 * far)), 1 - x * _mills(x))
