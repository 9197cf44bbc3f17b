"""Random selection of a scalar Gaussian release with the index kept secret: the true mixture.

    P = sum of pi_i N(0, s_i^2),    Q = sum of pi_i N(shift, s_i^2)

Its hockey-stick divergence is at most the public-index value sum of pi_i delta_{shift/s_i}(eps), by joint
convexity. P - e^eps Q changes sign at finitely many points; between them the divergence is a sum of normal
distribution functions, so once the points are known it is exact, and an error in a point enters only
quadratically because the integrand vanishes there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal

import numpy as np
from mpmath import mp, mpf
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.special import logsumexp

from .gaussian_mp import epsilon, rs_delta, rs_epsilon

Direction = Literal["forward", "backward"]
Floats = Sequence[float]
DIGITS = 60


def log_density(x: np.ndarray, sigmas: Floats, probabilities: Floats, mean: float) -> np.ndarray:
    """Logarithm of the density of sum of pi_i N(mean, s_i^2), without underflow in the tails."""
    s = np.asarray(sigmas, dtype=float)
    log_weights = np.log(np.asarray(probabilities, dtype=float)) - np.log(s) - 0.5 * np.log(2 * np.pi)
    terms = log_weights - 0.5 * ((np.asarray(x, dtype=float)[..., None] - mean) / s) ** 2
    return logsumexp(terms, axis=-1)


def _means(shift: float, direction: Direction) -> tuple[float, float]:
    return {"forward": (0.0, shift), "backward": (shift, 0.0)}[direction]


def _clean(sigmas: Floats, probabilities: Floats) -> tuple[list[float], list[float]]:
    kept = [(s, p) for s, p in zip(sigmas, probabilities, strict=True) if p > 0]
    return [s for s, _ in kept], [p for _, p in kept]


def sign_changes(
    eps: float, sigmas: Floats, probabilities: Floats, shift: float, direction: Direction
) -> tuple[list[float], Callable[[float], float]]:
    """Points where P = e^eps Q, in order, and the function log P - log Q - eps itself.

    The loss is not monotone when the deviations differ: near the centre the narrow component rules, in the
    tails the wide one. The grid is fine on the scale of every component and reaches beyond the last crossing,
    which the widest component alone decides.
    """
    sigmas, probabilities = _clean(sigmas, probabilities)
    mean_p, mean_q = _means(shift, direction)

    def loss_minus_eps(x: np.ndarray) -> np.ndarray:
        p = log_density(x, sigmas, probabilities, mean_p)
        return p - log_density(x, sigmas, probabilities, mean_q) - eps

    widest = max(sigmas)
    inner = np.concatenate([s * np.linspace(0.0, 45.0, 2001) for s in sigmas])
    reach = 45 * widest + 10 * (abs(eps) + 10) * widest**2 / abs(shift)
    offsets = np.unique(np.concatenate([inner, np.geomspace(45 * widest, reach, 500)]))
    grid = shift / 2 + np.concatenate([-offsets[::-1], offsets[1:]])
    positive = loss_minus_eps(grid) > 0
    where = np.nonzero(positive[1:] != positive[:-1])[0]

    def scalar(x: float) -> float:
        return float(loss_minus_eps(np.asarray(x)))

    return [brentq(scalar, grid[i], grid[i + 1], xtol=1e-300, rtol=1e-15) for i in where], scalar


def _exact(eps: float, sigmas: Floats, probabilities: Floats, shift: float, direction: Direction) -> mpf:
    points, loss_minus_eps = sign_changes(eps, sigmas, probabilities, shift, direction)
    mean_p, mean_q = _means(shift, direction)
    with mp.workdps(DIGITS):

        def normal(low: mpf, high: mpf) -> mpf:
            if low > 0:  # the upper tail by reflection: a difference of numbers near 1 would lose it
                low, high = -high, -low
            return mp.ncdf(high) - mp.ncdf(low)

        def mass(low: mpf, high: mpf, mean: float) -> mpf:
            pairs = zip(sigmas, probabilities, strict=True)
            return mp.fsum(mpf(p) * normal((low - mean) / s, (high - mean) / s) for s, p in pairs if p > 0)

        edges = [-np.inf, *points, np.inf]
        total = mpf(0)
        for low, high in pairwise(edges):
            inside = np.clip((low + high) / 2, edges[1] - 1, edges[-2] + 1) if points else 0.0
            if loss_minus_eps(inside) > 0:
                low_mp, high_mp = mpf(low), mpf(high)
                total += mass(low_mp, high_mp, mean_p) - mp.exp(mpf(eps)) * mass(low_mp, high_mp, mean_q)
        return total


def hockey_stick(
    eps: float,
    sigmas: Floats,
    probabilities: Floats,
    shift: float,
    direction: Direction = "forward",
) -> float:
    """Hockey-stick divergence of order e^eps: P from Q if `forward`, Q from P if `backward`."""
    return float(_exact(eps, sigmas, probabilities, shift, direction))


def hockey_stick_by_quadrature(
    eps: float,
    sigmas: Floats,
    probabilities: Floats,
    shift: float,
    direction: Direction = "forward",
) -> float:
    """The same by integrating (P - e^eps Q)+ numerically between the sign changes; about nine digits."""
    points, loss_minus_eps = sign_changes(eps, sigmas, probabilities, shift, direction)
    sigmas, probabilities = _clean(sigmas, probabilities)
    mean_p, _ = _means(shift, direction)

    def integrand(x: float) -> float:
        density = np.exp(log_density(np.asarray(x), sigmas, probabilities, mean_p))
        return float(-np.expm1(-max(loss_minus_eps(x), 0.0)) * density)

    scales = [c + s * u for c in (0.0, shift) for s in sigmas for u in (-38, -12, -6, -3, 0, 3, 6, 12, 38)]
    edges = np.unique([*points, *scales])
    parts = [pair for pair in pairwise(edges) if integrand(sum(pair) / 2) > 0]
    return sum(quad(integrand, *pair, epsabs=0, epsrel=1e-10, limit=200)[0] for pair in parts)


def true_epsilon(delta: float, sigmas: Floats, probabilities: Floats, shift: float) -> float:
    """Smallest eps >= 0 at which both directions of the true mixture have divergence at most delta."""

    def excess(eps: float) -> float:
        both = [_exact(eps, sigmas, probabilities, shift, d) for d in ("forward", "backward")]
        return float(mp.log(max(*both, mpf("1e-50")) / delta))

    if excess(0.0) <= 0:
        return 0.0
    high = float(public_index_epsilon(delta, sigmas, probabilities, shift))
    return brentq(excess, 0.0, high * (1 + 1e-9), xtol=1e-14)


def public_index_delta(eps: float, sigmas: Floats, probabilities: Floats, shift: float) -> float:
    """sum of pi_i delta_{shift/s_i}(eps): what random selection certifies."""
    return float(rs_delta([abs(shift) / s for s in sigmas], probabilities, eps))


def public_index_epsilon(delta: float, sigmas: Floats, probabilities: Floats, shift: float) -> float:
    """Smallest eps >= 0 at which the public-index divergence is at most delta."""
    return float(rs_epsilon([abs(shift) / s for s in sigmas], probabilities, delta))


def equal_variance_epsilon(delta: float, sigmas: Floats, probabilities: Floats, shift: float) -> float:
    """eps of the linear combination that has the variance of the random selection, sum of pi_i s_i^2."""
    variance = sum(p * s**2 for s, p in zip(sigmas, probabilities, strict=True))
    return float(epsilon(abs(shift) / variance**0.5, delta))
