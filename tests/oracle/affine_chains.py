"""Runs whose updates are affine in the state: every release is Gaussian and its privacy is known exactly.

Run i moves by theta^t = c_i^t theta^{t-1} - eta_i^t (g_i^t + noise), noise N(0, (sigma_i^t C_i^t)^2). The
gradient g does not depend on the state, and the differing record moves it by k C_i^t. On neighbouring data
every release is therefore a Gaussian with the same covariance and a shifted mean, and
mu = sqrt(shift' Sigma^-1 shift) holds with equality: a certified mu below it is false.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.linalg import cho_factor, cho_solve

Steps = float | Sequence[float]


class Chain(NamedTuple):
    """One scalar run. Each of `rate`, `noise_multiplier`, `clip_norm` is one number or one per step."""

    factors: Sequence[float]
    rate: Steps = 1.0
    noise_multiplier: Steps = 1.0
    clip_norm: Steps = 1.0


def moments(chain: Chain, k: float) -> tuple[float, float]:
    """Greatest shift A = sum of |G^t| eta k C and deviation B, B^2 = sum of (G^t eta sigma C)^2.

    G^t is the product of the factors after step t. The differing record may turn its gradient at every step,
    so a negative factor does not help.
    """
    steps = len(chain.factors)
    rate, sigma, clip = (np.broadcast_to(np.asarray(v, dtype=float), steps) for v in chain[1:])
    later = np.cumprod(np.append(1.0, np.asarray(chain.factors, dtype=float)[:0:-1]))[::-1]
    shift = np.abs(later) * rate * k * clip
    noise = later * rate * sigma * clip
    return float(shift.sum()), float(np.sqrt(np.sum(noise**2)))


def merged_final_mu(
    chains: Sequence[Chain],
    weights: Sequence[float],
    k: float,
    release_noise: float = 0.0,
) -> float:
    """Exact mu of releasing sum of lambda_i theta_i^T + N(0, release_noise^2) and nothing else."""
    parts = [moments(chain, k) for chain in chains]
    shift = sum(w * a for w, (a, _) in zip(weights, parts, strict=True))
    variance = sum((w * b) ** 2 for w, (_, b) in zip(weights, parts, strict=True)) + release_noise**2
    return shift / variance**0.5


def joint_final_mu(chains: Sequence[Chain], k: float) -> float:
    """Exact mu of releasing every run's final model (not its trajectory)."""
    return sum((a / b) ** 2 for a, b in (moments(chain, k) for chain in chains)) ** 0.5


class Counterexample(NamedTuple):
    truth: float
    merged_trajectory: float
    joint_release: float


def unequal_contractions(steps: int = 100) -> Counterexample:
    """Two runs, constant gradients, contraction by 0.9 in one and none in the other; add_remove.

    The formula of the merged trajectory, (sum lambda eta k C)^2 / sum (lambda eta sigma C)^2 per step, lies
    below the exact mu of the final merged model alone: the hidden states drift apart in a way the merged
    increments do not show.
    """
    weights, sigmas, k = (0.5, 0.5), (10.0, 1.0), 1.0
    chains = [Chain([0.9] * steps, noise_multiplier=10.0), Chain([1.0] * steps, noise_multiplier=1.0)]
    per_step = (sum(weights) * k) ** 2 / sum((w * s) ** 2 for w, s in zip(weights, sigmas, strict=True))
    return Counterexample(
        truth=merged_final_mu(chains, weights, k),
        merged_trajectory=(steps * per_step) ** 0.5,
        joint_release=(steps * sum((k / s) ** 2 for s in sigmas)) ** 0.5,
    )


def _per_run_maps(maps: np.ndarray, runs: int) -> np.ndarray:
    """(T, d, d) shared by all runs, or (N, T, d, d)."""
    maps = np.asarray(maps, dtype=float)
    return np.broadcast_to(maps, (runs, *maps.shape)) if maps.ndim == 3 else maps


def _trajectories(
    maps: np.ndarray,
    shifts: np.ndarray,
    deviations: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Mean shift (N, T d) and covariance (N, T d, T d) of every run's whole trajectory.

    The stacked states are R (updates), R block lower triangular with blocks M_t ... M_{r+1}.
    """
    runs, steps, dim = shifts.shape
    maps = _per_run_maps(maps, runs)
    means = np.zeros((runs, steps * dim))
    covariances = np.zeros((runs, steps * dim, steps * dim))
    for i in range(runs):
        response = np.zeros((steps * dim, steps * dim))
        for t in range(steps):
            rows = slice(t * dim, (t + 1) * dim)
            if t:
                response[rows] = maps[i, t] @ response[(t - 1) * dim : t * dim]
            response[rows, rows] = np.eye(dim)
        noise = np.repeat(deviations[i] ** 2, dim)
        means[i] = response @ shifts[i].ravel()
        covariances[i] = (response * noise) @ response.T
    return means, covariances


def _mahalanobis(shift: np.ndarray, covariance: np.ndarray) -> float:
    return float(np.sqrt(shift @ cho_solve(cho_factor(covariance, lower=True), shift)))


def matrix_mu(
    maps: np.ndarray,
    shifts: np.ndarray,
    deviations: np.ndarray,
    weights: Sequence[float],
    release_noise: float = 0.0,
    trajectory: bool = False,
) -> float:
    """Exact mu of the merged final model, or with `trajectory` of the merged models after every step.

    `maps` is (T, d, d), shared by the runs, or (N, T, d, d): the linear part of each step, the first of which
    does not matter. `shifts` is (N, T, d): eta k C times a unit vector, or anything shorter. `deviations` is
    (N, T): eta sigma C. The release noise is added afresh to each released model.
    """
    shifts, deviations = np.asarray(shifts, dtype=float), np.asarray(deviations, dtype=float)
    means, covariances = _trajectories(maps, shifts, deviations)
    w = np.asarray(weights, dtype=float)
    mean, covariance = w @ means, np.tensordot(w**2, covariances, axes=1)
    covariance = covariance + release_noise**2 * np.eye(len(mean))
    kept = slice(0 if trajectory else -shifts.shape[2], None)
    return _mahalanobis(mean[kept], covariance[kept, kept])


def matrix_joint_mu(
    maps: np.ndarray,
    shifts: np.ndarray,
    deviations: np.ndarray,
    trajectory: bool = False,
) -> float:
    """Exact mu of releasing every run's final model, or with `trajectory` every state of every run."""
    shifts, deviations = np.asarray(shifts, dtype=float), np.asarray(deviations, dtype=float)
    means, covariances = _trajectories(maps, shifts, deviations)
    kept = slice(0 if trajectory else -shifts.shape[2], None)
    squares = [_mahalanobis(m[kept], c[kept, kept]) ** 2 for m, c in zip(means, covariances, strict=True)]
    return sum(squares) ** 0.5
