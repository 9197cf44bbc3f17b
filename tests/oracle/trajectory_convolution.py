"""The merged trajectory by convolving privacy loss distributions, and one Poisson step of a merged model.

Step t of the merged runs is a Gaussian release with sensitivity sum of lambda_i eta_i^t k C_i and deviation
sqrt(sum of (lambda_i eta_i^t sigma_i C_i)^2); the paper convolves the privacy loss distributions of the
steps. The composition of Gaussians is Gaussian, so the result must agree with mu^2 = sum of mu_t^2 up to the
grid.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, zip_longest
from typing import Literal, NamedTuple

import numpy as np
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy.optimize import brentq
from scipy.special import logsumexp, ndtr

Rates = Sequence[Sequence[float]]
Alignment = Literal["appended", "prepended"]


def merged_steps(
    weights: Sequence[float],
    rates: Rates,
    noise_multipliers: Sequence[float],
    clip_norms: Sequence[float],
    k: float,
    alignment: Alignment = "appended",
) -> list[tuple[float, float]]:
    """(sensitivity, deviation) of every merged step that moves; a shorter run's virtual steps add nothing."""
    rows = [row if alignment == "appended" else row[::-1] for row in rates]
    steps = []
    for etas in zip_longest(*rows, fillvalue=0.0):
        scaled = [w * eta * c for w, eta, c in zip(weights, etas, clip_norms, strict=True)]
        sensitivity = k * sum(scaled)
        deviation = sum((x * sigma) ** 2 for x, sigma in zip(scaled, noise_multipliers, strict=True)) ** 0.5
        if sensitivity > 0:
            steps.append((sensitivity, deviation))
    return steps


def convolve(steps: Sequence[tuple[float, float]], h: float = 1e-3) -> pld.PrivacyLossDistribution:
    """Compose the Gaussian steps one after the other on a grid of width h."""
    total = None
    for sensitivity, deviation in steps:
        options = {"sensitivity": sensitivity, "value_discretization_interval": h}
        step = pld.from_gaussian_mechanism(deviation, **options)
        total = step if total is None else total.compose(step)
    return total


def merged_trajectory_epsilon(
    delta: float,
    weights: Sequence[float],
    rates: Rates,
    noise_multipliers: Sequence[float],
    clip_norms: Sequence[float],
    k: float,
    h: float = 1e-3,
    alignment: Alignment = "appended",
) -> float:
    """eps at delta of the merged trajectory, by convolution; above the closed form by a multiple of h."""
    steps = merged_steps(weights, rates, noise_multipliers, clip_norms, k, alignment)
    return float(convolve(steps, h).get_epsilon_for_delta(delta))


class BothDirections(NamedTuple):
    remove: float
    """Of the mixture from N(0, s^2)."""
    add: float
    """Of N(0, s^2) from the mixture."""


def mixture_of_gaussians_delta(
    eps: float, shifts: Sequence[float], probs: Sequence[float], std: float
) -> BothDirections:
    """Hockey-stick divergences between N(0, s^2) and sum of p_j N(c_j, s^2), exact but for rounding.

    One Poisson-sampled step of a linear combination: c_j runs over the subset sums of lambda_i eta_i C_i, p_j
    is the probability that exactly those runs draw the record. Shifts of either sign are allowed.
    """
    c, p = np.asarray(shifts, dtype=float) / std, np.asarray(probs, dtype=float)
    if abs(p.sum() - 1) > 1e-12:
        raise ValueError(f"probabilities sum to {p.sum()}")
    c, p = c[p > 0], p[p > 0]

    def log_ratio(y: np.ndarray) -> np.ndarray:
        return logsumexp(np.log(p) + np.multiply.outer(y, c) - c**2 / 2, axis=-1)

    # exp(log_ratio) is convex in y, so it meets any level at most twice, on either side of its least value.
    reach = 40 + np.abs(c).max() + (abs(eps) + 50) / np.abs(c[c != 0]).max() if np.any(c) else 40.0
    grid = np.linspace(-reach, reach, 4001)

    def divergence(sign: int) -> float:
        level = sign * eps  # remove: ratio > e^eps; add: ratio < e^-eps
        above = log_ratio(grid) > level
        where = np.nonzero(above[1:] != above[:-1])[0]
        roots = [brentq(lambda y: float(log_ratio(y)) - level, grid[i], grid[i + 1]) for i in where]
        total = 0.0
        for low, high in pairwise([-np.inf, *roots, np.inf]):
            inside = np.clip((low + high) / 2, -reach, reach) if roots else 0.0
            if (float(log_ratio(inside)) > level) == (sign > 0):
                mixture = float(p @ _interval(low - c, high - c))
                base = float(_interval(np.asarray(low), np.asarray(high)))
                first, second = (mixture, base) if sign > 0 else (base, mixture)
                total += first - np.exp(eps) * second
        return max(0.0, float(total))

    return BothDirections(divergence(1), divergence(-1))


def _interval(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Standard normal mass of [low, high], from the nearer tail."""
    return np.where(low > 0, ndtr(-low) - ndtr(-high), ndtr(high) - ndtr(low))
