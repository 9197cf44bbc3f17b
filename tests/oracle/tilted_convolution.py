"""Lower and upper bounds on the composition of Poisson-subsampled Gaussian steps, accurate in the far tail.

`tilted_step` puts the loss of a step on a grid so that the composition of the discrete steps bounds the true
one from below or above. Here T discrete steps are composed by the power of a Fourier transform, taken after
exponential tilting to a mean at eps: the floating-point error is then relative to delta(eps) and not to 1,
and a delta of 1e-14 keeps ten digits. What remains goes on the safe side: wrap-around by a Chernoff bound,
and the transform's own error as u T (log2 n + 4) per coefficient, u = 2^-53 (an estimate, not a proof;
answers for different tilts, which should agree, differ by a twentieth of it).

The width of the bracket is the grid's. With the default, eps is known to 3e-5 at sigma = 1, q = 0.01,
T = 1000, down to delta = 1e-14. For q below 0.001 the number of cells limits it to about 1 % of delta, and a
tiny delta that is due to one extreme step gains little from tilting. No delta below T times 2e-28 can be had.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.fft import next_fast_len
from scipy.optimize import brentq, minimize_scalar

from .tilted_step import (
    Relation,
    Step,
    components,
    cuts,
    loss,
    lower_step,
    one_step_delta,
    two_step_delta,
    upper_step,
)

__all__ = [
    "Bounds",
    "Relation",
    "default_grid",
    "delta_bounds",
    "epsilon_bounds",
    "one_step_delta",
    "two_step_delta",
]

ROUNDOFF = 2.0**-53


class Bounds(NamedTuple):
    lower: float
    upper: float


def default_grid(relation: Relation, sigma: float, q: float) -> float:
    """A hundredth of the scale of one step's loss, but no more than 500,000 cells.

    The scale is the lesser of deviation and distance of quartiles: for small q few losses are large.
    """
    terms, _ = components(relation, q)
    x = np.linspace(*cuts(sigma), 20001)
    value = loss(x, relation, sigma, q)
    density = sum(w * np.exp(-(((x - m) / sigma) ** 2) / 2) for w, m in terms)
    density /= density.sum()
    deviation = np.sqrt(np.sum(density * value**2) - np.sum(density * value) ** 2)
    quartiles = np.diff(np.interp([0.25, 0.75], np.cumsum(density), value))[0]
    return float(max(min(deviation, quartiles) / 100, (value[-1] - value[0]) / 500_000))


def _cumulant(step: Step, h: float, theta: float) -> float:
    """log of sum of mass e^(theta loss)."""
    exponent = theta * h * (step.first + np.arange(len(step.mass)))
    top = exponent[step.mass > 0].max()
    return float(top + np.log(np.sum(step.mass * np.exp(np.minimum(exponent - top, 0.0)))))


def _outside(step: Step, h: float, theta: float, steps: int, edge: float, sign: int) -> float:
    """Chernoff bound on the tilted mass of the sum beyond an edge, above it (sign 1) or below (-1)."""
    base = _cumulant(step, h, theta)

    def exponent(log_u: float) -> float:
        u = np.exp(log_u)
        return steps * (_cumulant(step, h, theta + sign * u) - base) - sign * u * edge

    # Any u gives a bound, so a coarse search for the best one will do.
    best = minimize_scalar(exponent, bounds=(-4.0, 8.0), method="bounded", options={"xatol": 0.2}).fun
    return float(np.exp(min(0.0, best)))


def _tilt(step: Step, h: float, eps: float, steps: int) -> float:
    """The theta >= 0 that brings the mean of the sum to eps, or 0 if it is above already."""

    def exponent(log_theta: float) -> float:
        theta = np.exp(log_theta)
        return steps * _cumulant(step, h, theta) - theta * eps

    best = minimize_scalar(exponent, bounds=(-8.0, 8.0), method="bounded", options={"xatol": 0.02})
    return float(np.exp(best.x)) if best.fun < steps * _cumulant(step, h, 0.0) - 1e-6 else 0.0


class Composed(NamedTuple):
    """The tilted distribution of the sum of losses, `entries` at (start + j) h, and how wrong it may be."""

    h: float
    theta: float
    log_mass: float
    start: int
    entries: np.ndarray
    entry_error: float
    wrapped: float

    def delta(self, eps: float) -> tuple[float, float]:
        """delta(eps) without infinite losses, and a bound on its numerical error."""
        first = min(max(0, int(np.floor(eps / self.h)) - self.start), len(self.entries))
        beyond = (self.start + np.arange(first, len(self.entries))) * self.h - eps
        weight = np.exp(self.log_mass - self.theta * (beyond + eps)) * -np.expm1(-np.maximum(beyond, 0.0))
        front = float(np.exp(self.log_mass - self.theta * eps))
        error = float(weight.sum()) * self.entry_error + front * self.wrapped
        return float(weight @ self.entries[first:]), error


def _compose(step: Step, h: float, theta: float, steps: int) -> Composed:
    log_mass = _cumulant(step, h, theta)
    index = np.arange(len(step.mass))
    tilted = step.mass * np.exp(np.minimum(theta * h * (step.first + index) - log_mass, 700.0))
    mean = np.sum(tilted * (step.first + index))
    deviation = max(1.0, np.sqrt(steps * np.sum(tilted * (step.first + index - mean) ** 2)))
    reach, wrapped = [], 0.0
    for sign in (-1, 1):
        width = 9 * deviation
        while (outside := _outside(step, h, theta, steps, (steps * mean + sign * width) * h, sign)) > 1e-16:
            if width > 1 << 22:
                break
            width *= 1.4
        reach.append(width)
        wrapped += outside
    start, size = int(np.floor(steps * mean - reach[0])), next_fast_len(int(sum(reach)) + 3)
    transform = np.fft.rfft(np.bincount(index % size, tilted, size))
    power = np.abs(transform) ** (steps - 1)
    spread = 2 * min(float(np.sum(power)), 32 * float(np.linalg.norm(power))) / size
    entries = np.fft.irfft(np.exp(steps * np.log(np.where(transform == 0, 1e-300, transform))), size)
    # The sum's index is steps * first + position, and the position is known modulo size.
    entries = np.roll(entries, -((start - steps * step.first) % size))
    in_inverse = 8 * float(np.linalg.norm(entries)) / size**0.5
    entry_error = ROUNDOFF * (np.log2(size) + 4) * (steps * spread + in_inverse)
    return Composed(h, theta, steps * log_mass, start, entries, float(entry_error), wrapped)


def _sides(relation: Relation, sigma: float, q: float, h: float | None) -> list[tuple[Step, float, int]]:
    """(step, grid, sign of its error)."""
    h = default_grid(relation, sigma, q) if h is None else h
    return [(lower_step(relation, sigma, q, h), h, -1), (upper_step(relation, sigma, q, h), h, 1)]


def delta_bounds(
    eps: float,
    relation: Relation,
    sigma: float,
    q: float,
    steps: int,
    h: float | None = None,
) -> Bounds:
    """delta(eps) of the composition of `steps` steps, from below and from above."""
    found = []
    for step, grid, sign in _sides(relation, sigma, q, h):
        highest = step.first + int(np.nonzero(step.mass)[0][-1])
        value = error = 0.0
        if steps * highest * grid > eps:
            value, error = _compose(step, grid, _tilt(step, grid, eps, steps), steps).delta(eps)
        found.append(value + sign * error + steps * step.infinite)
    return Bounds(float(max(0.0, found[0], -np.expm1(min(eps, 0.0)))), float(min(1.0, found[1])))


def epsilon_bounds(
    delta: float, relation: Relation, sigma: float, q: float, steps: int, h: float | None = None
) -> Bounds:
    """Bounds on the eps >= 0 at which the composition has the given delta."""
    return Bounds(*(_solve(*side, delta, steps) for side in _sides(relation, sigma, q, h)))


def _solve(step: Step, h: float, sign: int, delta: float, steps: int) -> float:
    target = delta - steps * step.infinite
    at_zero, error = _compose(step, h, _tilt(step, h, 0.0, steps), steps).delta(0.0)
    if at_zero + sign * error <= target:
        return 0.0

    def renyi(log_theta: float) -> float:
        theta = np.exp(log_theta)
        return (steps * _cumulant(step, h, theta) - np.log(target)) / theta

    # The classic conversion is an upper bound on eps and close enough to say where to tilt.
    best = minimize_scalar(renyi, bounds=(-8.0, 8.0), method="bounded", options={"xatol": 0.02})
    guess = high = float(best.fun) * 1.001
    for _ in range(2):
        composed = _compose(step, h, _tilt(step, h, guess, steps), steps)

        def excess(eps: float, composed: Composed = composed) -> float:
            value, error = composed.delta(eps)
            return float(np.log(max(value + sign * error, 1e-300) / target))

        low = guess  # stay near the tilt, where the distribution is accurate
        while low > 0 and excess(low) <= 0:
            low -= 0.05 * high
        guess = brentq(excess, max(0.0, low), high, xtol=1e-10)
    return guess
