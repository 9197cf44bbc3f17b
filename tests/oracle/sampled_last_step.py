"""What is seen of Poisson-sampled runs if only their last steps are merged: exact laws by integration.

The differing record has a gradient of full norm along one direction, in which everything else is equal; that is the
worst case. A run's step then shows N(C, (sC)^2) with probability q, else N(0, (sC)^2); without the record always the
latter. Seen are all steps but the last of each run, and the sum of the last ones, weighted, with noise tau on top.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from scipy.special import logsumexp, ndtr

Array = np.ndarray


@dataclass(frozen=True)
class Run:
    """Noise multipliers of its steps, sampling rate, effective rate of the last step, clip norm."""

    noise: Sequence[float]
    q: float
    rate: float = 1.0
    clip: float = 1.0


def log_ratio(x: Array, shifts: Array, probabilities: Array) -> Array:
    """log of (sum of p_j N(c_j, 1) over N(0, 1)) at x."""
    return logsumexp(np.log(probabilities) + np.multiply.outer(x, shifts) - shifts**2 / 2, axis=-1)


def mixture_deltas(eps: Array, shifts: Array, probabilities: Array, removal: bool) -> Array:
    """Divergences of the mixture from N(0, 1), or back, at many eps of either sign: the ratio rises in x, bisected."""
    level = eps if removal else -eps
    low, high = np.full(eps.shape, -60.0), np.full(eps.shape, 60.0 + shifts.max())
    for _ in range(80):
        middle = (low + high) / 2
        above = log_ratio(middle, shifts, probabilities) > level
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    mixture_above = ndtr(shifts - high[..., None]) @ probabilities
    mixture_below = ndtr(high[..., None] - shifts) @ probabilities
    if removal:
        return np.maximum(mixture_above - np.exp(eps) * ndtr(-high), 0.0)
    return np.maximum(ndtr(high) - np.exp(eps) * mixture_below, 0.0)


def merged_last_step(runs: Sequence[Run], weights: Sequence[float], tau: float) -> tuple[Array, Array]:
    """Shifts in units of the merged noise, and their probabilities: one for each set of runs that drew the record."""
    moves = [w * run.rate * run.clip for run, w in zip(runs, weights, strict=True)]
    deviation = np.sqrt(sum((m * run.noise[-1]) ** 2 for run, m in zip(runs, moves, strict=True)) + tau**2)
    shifts, probabilities = [], []
    for drawn in product((0, 1), repeat=len(runs)):
        chance = np.prod([run.q if d else 1 - run.q for run, d in zip(runs, drawn, strict=True)])
        if chance > 0:
            shifts.append(np.dot(drawn, moves) / deviation)
            probabilities.append(chance)
    return np.array(shifts), np.array(probabilities)


def seen_delta(
    eps: float, runs: Sequence[Run], weights: Sequence[float], tau: float, *, removal: bool, nodes: int = 160
) -> float:
    """delta of all that the theorem counts as seen, by Gauss-Legendre over the steps before the last: at most two."""
    shifts, probabilities = merged_last_step(runs, weights, tau)
    earlier = [(1 / sigma, run.q) for run in runs for sigma in run.noise[:-1]]
    points, loss, density = np.zeros(1), np.zeros(1), np.ones(1)
    for shift, q in earlier:
        x, w = np.polynomial.legendre.leggauss(nodes)
        half = (18 + shift) / 2
        x, w = (x + 1) * half - 9, w * half
        each = log_ratio(x, np.array([0.0, shift]), np.array([1 - q, q])) if q < 1 else shift * x - shift**2 / 2
        base = w * np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)
        loss = np.add.outer(loss, each).ravel()
        density = np.multiply.outer(density, base * (np.exp(each) if removal else 1.0)).ravel()
        points = np.zeros(loss.shape)
    left = points + eps + (-loss if removal else loss)
    return float(density @ mixture_deltas(left, shifts, probabilities, removal))


def merged_model_delta(
    eps: float, runs: Sequence[Run], weights: Sequence[float], tau: float, *, removal: bool
) -> float:
    """delta of the merged model alone where every gradient is constant: sums of shifts over all steps of all runs."""
    moves, variance = [], tau**2
    for run, weight in zip(runs, weights, strict=True):
        for sigma in run.noise:
            moves.append((weight * run.rate * run.clip, run.q))
            variance += (weight * run.rate * run.clip * sigma) ** 2
    shifts, probabilities = [], []
    for drawn in product((0, 1), repeat=len(moves)):
        chance = np.prod([q if d else 1 - q for (_, q), d in zip(moves, drawn, strict=True)])
        if chance > 0:
            shifts.append(sum(move for (move, _), d in zip(moves, drawn, strict=True) if d) / np.sqrt(variance))
            probabilities.append(chance)
    return float(mixture_deltas(np.array([eps]), np.array(shifts), np.array(probabilities), removal)[0])
