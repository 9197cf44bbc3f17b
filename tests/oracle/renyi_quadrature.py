"""Renyi divergence of the Poisson-subsampled Gaussian, both directions, by quadrature at thirty digits.

With r(x) = 1 - q + q e^((2x - 1) / (2 sigma^2)) the ratio of the mixture (1-q) N(0, sigma^2) + q N(1,
sigma^2) to N(0, sigma^2),

    remove: D_alpha(mixture | N(0)) = log E_{N(0)}[r^alpha] / (alpha - 1)
    add:    D_alpha(N(0) | mixture) = log E_{N(0)}[r^(1 - alpha)] / (alpha - 1)

(Mironov, Talwar, Zhang 2019). For whole alpha the first is a finite sum.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from mpmath import mp, mpf

Direction = Literal["remove", "add"]
DIGITS = 30


def renyi_divergence(alpha: float, sigma: float, q: float, direction: Direction) -> mpf:
    """Divergence of order alpha > 1 of one step; multiply by the number of steps to compose."""
    if alpha <= 1:
        raise ValueError(f"order must exceed 1: {alpha}")
    with mp.workdps(DIGITS + 15):
        order, s, rate = mpf(alpha), mpf(sigma), mpf(q)
        power = order if direction == "remove" else 1 - order

        low, high, top = _range(float(power), sigma, q)

        def integrand(x: mpf) -> mpf:  # divided by its largest value: the quadrature's tolerance is absolute
            ratio = 1 - rate + rate * mp.exp((2 * x - 1) / (2 * s**2))
            return mp.exp(power * mp.log(ratio) - x**2 / (2 * s**2) - top)

        total = mp.quad(integrand, mp.linspace(low, high, int((high - low) / (2 * sigma)) + 2))
        return (top + mp.log(total / (s * mp.sqrt(2 * mp.pi)))) / (order - 1)


def _range(power: float, sigma: float, q: float) -> tuple[float, float, float]:
    """Where r^power N(0) is above e^-110 of its largest value, and the logarithm of that.

    It has one bump at 0, where r is about 1 - q, and one at `power`, where r is exponential.
    """
    x = np.arange(min(0.0, power) - 17 * sigma, max(0.0, power) + 17 * sigma, sigma / 8)
    with np.errstate(divide="ignore"):
        log_ratio = np.logaddexp(np.log1p(-q), np.log(q) + (2 * x - 1) / (2 * sigma**2))
    height = power * log_ratio - x**2 / (2 * sigma**2)
    kept = x[height > height.max() - 110]
    return float(kept[0] - sigma), float(kept[-1] + sigma), float(height.max())


def renyi_divergence_integer(alpha: int, sigma: float, q: float) -> mpf:
    """Remove, whole alpha: log of sum of binom(alpha, k) (1-q)^(alpha-k) q^k e^(k(k-1)/(2 sigma^2))."""
    with mp.workdps(DIGITS + 15):
        s, rate = mpf(sigma), mpf(q)
        terms = (
            mp.binomial(alpha, k) * (1 - rate) ** (alpha - k) * rate**k * mp.exp(mpf(k * k - k) / (2 * s**2))
            for k in range(alpha + 1)
        )
        return mp.log(mp.fsum(terms)) / (alpha - 1)
