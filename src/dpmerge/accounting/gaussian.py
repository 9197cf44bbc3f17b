"""Gaussian differential privacy in closed form, vectorised over any number of mechanisms.

Guarantees: δ to 1e-9 relative for μ in [1e-6, 1e3] and δ down to 1e-300, ε to 1e-9·max(ε, μ), and
δ(ε(δ)) ≤ δ: the answer is rounded towards the larger ε by more than the evaluation error.
Refuses: negative or NaN μ. μ = 0 is perfect privacy, μ = ∞ none.

A composition of full-batch Gaussian steps is N(0, 1) against N(μ, 1) with μ² = Σ μ_t² (Dong, Roth, Su 2022),
    δ(ε) = Φ(−a) − e^ε Φ(−b),   a = ε/μ − μ/2,   b = ε/μ + μ/2,   both ways alike.
Since e^ε φ(b) = φ(a), this is φ(a)·(R(a) − R(b)) with R the Mills ratio, which neither overflows nor, for μ
that are not tiny, cancels; for tiny μ the difference is expanded around its midpoint.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import erfcx, ndtr, ndtri

from dpmerge.accounting import validation
from dpmerge.accounting.profile import PrivacyProfile, reflected
from dpmerge.accounting.validation import Array

_SERIES_BELOW = 1e-3  # of μ: there the midpoint series is exact to 1e-15 and the difference loses 4 digits
_EVALUATION_ERROR = 2e-11  # relative, of δ as computed here; twice the worst seen against 60 digits
_TABLE_SIZE = 4096
_LOG_SQRT_2PI = 0.5 * np.log(2 * np.pi)


@dataclass(frozen=True)
class GaussianProfile(PrivacyProfile):
    """The exact profile of μ-GDP (theory 2.2).

    Args:
        mu: μ ≥ 0: no easier to tell apart than N(0, 1) from N(μ, 1); infinite without noise.

    >>> profile = GaussianProfile(1.0)
    >>> round(profile.delta(1.0), 11)
    0.12693673751
    >>> round(profile.epsilon(1e-5), 9)
    4.377178096
    """

    mu: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "mu", validation.non_negative("mu", self.mu, infinite=True))

    def deltas(self, epsilon: npt.ArrayLike) -> tuple[Array, Array]:
        """Both directions alike, rounded up by the evaluation error."""
        delta = safe_gaussian_delta(self.mu, epsilon)
        return delta, delta

    def epsilon(self, delta: float) -> float:
        self.check_delta(delta)
        return float(gaussian_epsilon(self.mu, delta))

    def renyi_divergence(self, orders: Array) -> Array:
        """RDP(α) = αμ²/2 (Mironov 2017)."""
        return np.asarray(orders * (self.mu * self.mu / 2))


def gaussian_delta(mu: npt.ArrayLike, epsilon: npt.ArrayLike) -> Array:
    """δ_μ(ε), elementwise with broadcasting.

    Args:
        mu: In [0, ∞].
        epsilon: Any real numbers.

    Returns:
        δ as computed; a profile's is rounded up by the evaluation error.

    >>> gaussian_delta([0.5, 1.0], 1.0).round(6)
    array([0.00683 , 0.126937])
    """
    mu, epsilon = np.broadcast_arrays(np.asarray(mu, dtype=float), np.asarray(epsilon, dtype=float))
    size = np.abs(epsilon)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):
        a = size / mu - mu / 2
        far_left = a < -5  # there δ is near one and R(a) would overflow
        safe_a = np.where(far_left, 0.0, a)
        near = np.exp(-safe_a * safe_a / 2 - _LOG_SQRT_2PI) * _mills_difference(safe_a, mu, _mills(safe_a + mu))
        far = ndtr(-a) - np.exp(-a * a / 2 - _LOG_SQRT_2PI) * _mills(a + mu)
        delta = np.where(far_left, far, near)
    delta = np.where(mu == 0, 0.0, np.where(np.isinf(mu) & np.isfinite(size), 1.0, delta))
    delta = np.where(np.isposinf(size) & np.isfinite(mu), 0.0, delta)
    return np.where(epsilon < 0, reflected(size, delta), delta)


def safe_gaussian_delta(mu: npt.ArrayLike, epsilon: npt.ArrayLike) -> Array:
    """δ_μ(ε) rounded up by the evaluation error, so that what it promises holds."""
    return np.minimum(1.0, gaussian_delta(mu, epsilon) * (1 + _evaluation_error(mu)))


def gaussian_epsilon(mu: npt.ArrayLike, delta: npt.ArrayLike) -> Array:
    """The smallest ε ≥ 0 with δ_μ(ε) ≤ δ, elementwise with broadcasting, rounded up by the evaluation error.

    Newton's method on log δ as a function of a. log δ is concave there (the hockey-stick integrand is
    log-concave jointly with the Gaussian density, and marginals of log-concave functions are log-concave), so
    every Newton step lands on the right of the root, where δ is small enough, and closes in monotonically.

    Args:
        mu: In [0, ∞].
        delta: Strictly between 0 and 1.

    Returns:
        ε ≥ 0, infinite where μ is.

    >>> gaussian_epsilon([0.5, 1.0], 1e-5).round(6)
    array([1.993091, 4.377178])
    """
    mu, delta = np.broadcast_arrays(np.asarray(mu, dtype=float), np.asarray(delta, dtype=float))
    if delta.size == 0:
        return np.zeros(delta.shape)
    ordinary = (mu > 0) & (mu < 1e150)  # beyond that μ² overflows and ε is infinite for all purposes
    solved_mu = np.where(ordinary, mu, 1.0)
    error = _evaluation_error(solved_mu)
    log_target = np.log(delta) - 1.5 * error
    a = _newton(_starting_point(solved_mu, delta), solved_mu, log_target)
    epsilon = np.maximum(0.0, solved_mu * (a + solved_mu / 2))
    for _ in range(60):  # a rounding of the last product may still fall short: step up until the check holds
        short = gaussian_delta(solved_mu, epsilon) * (1 + error) > delta
        if not np.any(short):
            break
        epsilon = np.where(short, np.nextafter(epsilon * (1 + 1e-14) + 1e-16 * solved_mu, np.inf), epsilon)
    else:
        epsilon = np.where(short, np.inf, epsilon)
    return np.where(ordinary, epsilon, np.where(mu == 0, 0.0, np.inf))


def largest_mu(epsilon: float, delta: float) -> float:
    """The largest μ (from below) for which μ-GDP implies (ε, δ)-DP: one comparison then tests any candidate.

    Args:
        epsilon: ε ≥ 0.
        delta: Strictly between 0 and 1.

    Returns:
        μ.

    Raises:
        InvalidInputError: A value outside its domain.

    >>> round(largest_mu(1.0, 1e-5), 6)
    0.268051
    """
    epsilon = validation.non_negative("epsilon", epsilon)
    validation.delta("delta", delta)
    low, high = 0.0, 1.0
    while gaussian_delta(high, epsilon) * (1 + _evaluation_error(high)) <= delta:
        low, high = high, 2 * high
    while high - low > 1e-15 * high:
        middle = (low + high) / 2
        if middle in (low, high):
            break
        fits = gaussian_delta(middle, epsilon) * (1 + _evaluation_error(middle)) <= delta
        low, high = (middle, high) if fits else (low, middle)
    return low


def _evaluation_error(mu: npt.ArrayLike) -> Array:
    """Relative, of δ as computed here: ε/μ − μ/2 loses digits in proportion to μ beyond the stated range."""
    return np.asarray(_EVALUATION_ERROR * np.maximum(1.0, np.asarray(mu) / 1e3))


def _mills(x: Array) -> Array:
    """R(x) = Φ(−x)/φ(x)."""
    return np.asarray(np.sqrt(np.pi / 2) * erfcx(x / np.sqrt(2)))


def _mills_difference(a: Array, mu: Array, shifted: Array) -> Array:
    """R(a) − R(a + μ), to 1e-11 relative for a up to 40, given R(a + μ)."""
    difference = _mills(a) - shifted
    tiny = mu < _SERIES_BELOW
    if not np.any(tiny):
        return difference
    # Around the midpoint m: μ·(1 − mR) + μ³/24·((m² + 2) − (m³ + 3m)R) + O(μ⁵), from R' = xR − 1.
    m = a + mu / 2
    ratio = _mills(m)
    series = mu * ((1 - m * ratio) + mu * mu / 24 * ((m * m + 2) - (m**3 + 3 * m) * ratio))
    return np.where(tiny, series, difference)


def _starting_point(mu: Array, delta: Array) -> Array:
    """Where Newton begins: δ < Φ(−a) gives a point on the safe side; many μ at one δ begin from a table."""
    bound = -ndtri(delta)
    if mu.size <= 4 * _TABLE_SIZE or delta.min() != delta.max():
        return np.asarray(bound)
    log_mu = np.log(mu)
    nodes = np.linspace(log_mu.min(), log_mu.max(), _TABLE_SIZE)
    node_mu = np.exp(nodes)
    at_nodes = _newton(np.full(_TABLE_SIZE, bound.flat[0]), node_mu, np.full(_TABLE_SIZE, np.log(delta.flat[0])))
    return np.asarray(np.interp(log_mu, nodes, at_nodes))


def _newton(a: Array, mu: Array, log_target: Array) -> Array:
    """Solve log δ(a) = log_target, where ∂ log δ/∂a = −μ R(a + μ) / (R(a) − R(a + μ))."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):
        for _ in range(100):
            shifted = _mills(a + mu)
            difference = _mills_difference(a, mu, shifted)
            excess = np.log(difference) - a * a / 2 - _LOG_SQRT_2PI - log_target
            step = excess * difference / (mu * shifted)
            # Below a = −μ/2 (ε < 0) the answer is clamped to zero anyway; stop there before R overflows.
            moved = np.maximum(a + step, -mu / 2 - 1e-3)
            moved = np.where(np.isfinite(moved), moved, a)
            done = np.abs(moved - a) <= 1e-13 * (1 + np.abs(a))
            a = moved
            if np.all(done):
                break
    return a
