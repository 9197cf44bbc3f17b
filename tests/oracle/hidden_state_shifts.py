"""The hidden-state theorem for merged runs: what given shifts prove, and its closed form.

Release sum of lambda_i theta_i + N(0, tau^2). Run i's update at step t is L_i^t-Lipschitz in the state, moves
by at most a_i^t = eta k C between neighbouring data at one state, and carries noise of deviation
b_i^t = eta sigma C. Shifts s_i^t >= 0 with gaps z_i^t = L_i^t z_i^{t-1} + a_i^t - s_i^t >= 0, z_i^0 = 0 and
z_i^T = 0 prove the release mu-GDP with

    mu^2 = sum_{t<T} sum_i (s_i^t / b_i^t)^2 + (sum_i lambda_i s_i^T)^2 / (sum_i (lambda_i b_i^T)^2 + tau^2)

(shifted interpolation of Bok, Su, Altschuler 2024 for several runs). Arrays are one sequence per run, of
possibly unequal lengths; only the last steps meet. Runs of weight zero are outside the theorem and ignored,
steps of rate zero (a = b = 0 and L = 1) change nothing and are dropped, L = inf forbids a gap before the
step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

Runs = Sequence[Sequence[float]]


class Infeasible(ValueError):
    """The shifts prove nothing."""


def support(a: Runs, b: Runs, L: Runs, lam: Sequence[float]) -> list[tuple[list, list, list, float]]:
    """(a, b, L, weight) of every run of positive weight, steps of rate zero dropped."""
    kept = []
    for ai, bi, li, weight in zip(a, b, L, lam, strict=True):
        steps = [(x, y, f) for x, y, f in zip(ai, bi, li, strict=True) if not (x == 0 and y == 0 and f == 1)]
        if weight > 0 and steps:
            kept.append((*map(list, zip(*steps, strict=True)), weight))
    return kept


def _grow(factor: float, gap: float) -> float:
    return 0.0 if gap == 0 else factor * gap  # inf * 0 is 0: no gap, nothing to stretch


def objective(shifts: Runs, runs: list, tau: float) -> float:
    """mu of the statement, feasible or not."""
    total, last, variance = 0.0, 0.0, tau**2
    for s, (_, b, _, weight) in zip(shifts, runs, strict=True):
        for shift, noise in zip(s[:-1], b[:-1], strict=True):
            if shift:
                total += (shift / noise) ** 2 if noise else math.inf
        last += weight * s[-1]
        variance += (weight * b[-1]) ** 2
    return math.sqrt(total + (last**2 / variance if variance else math.inf if last else 0.0))


def project(shifts: Runs, a: Runs, b: Runs, L: Runs, lam: Sequence[float]) -> list[list[float]]:
    """Nearest course that never overspends: each shift cut to what the gap allows, the last one all of it."""
    out = []
    for wanted, (ai, bi, li, _) in zip(shifts, support(a, b, L, lam), strict=True):
        gap, row = 0.0, []
        for t, (want, step, noise, factor) in enumerate(zip(wanted, ai, bi, li, strict=True)):
            room = _grow(factor, gap) + step
            forced = t == len(ai) - 1 or li[t + 1] == math.inf
            shift = room if forced else min(max(want, 0.0), room) if noise else 0.0
            gap = room - shift
            row.append(shift)
        out.append(row)
    return out


def evaluate(
    s: Runs, a: Runs, b: Runs, L: Runs, lam: Sequence[float], tau: float = 0.0, tolerance: float = 1e-12
) -> float:
    """mu proved by the given shifts; raises Infeasible if they prove none.

    One row per run of positive weight, one shift per step that is not dropped, as `project` returns them.
    The gaps are computed in rational arithmetic, so the check has no rounding of its own; `tolerance`, in
    units of the largest gap the run could have, allows for shifts that were rounded to floats. Zero is exact.
    """
    runs = support(a, b, L, lam)
    for i, (row, (ai, _, li, _)) in enumerate(zip(s, runs, strict=True)):
        gap = largest = Fraction(0)
        for t, (shift, step, factor) in enumerate(zip(row, ai, li, strict=True)):
            if shift < 0:
                raise Infeasible(f"run {i}, step {t}: shift {shift}")
            slack = Fraction(tolerance) * (largest + Fraction(step))
            if factor == math.inf:
                if abs(gap) > slack:
                    raise Infeasible(f"run {i}, step {t}: gap {float(gap)} before an unbounded factor")
                factor, gap, largest = 1, Fraction(0), Fraction(0)
            largest = Fraction(factor) * largest + Fraction(step)
            gap = Fraction(factor) * gap + Fraction(step) - Fraction(shift)
            slack = Fraction(tolerance) * largest
            if gap < -slack or (t == len(ai) - 1 and gap > slack):
                raise Infeasible(f"run {i}, step {t}: gap {float(gap)}")
    return objective(s, runs, tau)


def random_shifts(
    rng: np.random.Generator,
    a: Runs,
    b: Runs,
    L: Runs,
    lam: Sequence[float],
) -> list[list[float]]:
    """Feasible shifts: at each step a random part of the gap, often none or all, the rest at the end."""
    wanted = []
    for ai, _, li, _ in support(a, b, L, lam):
        part = np.clip(rng.uniform(-0.3, 1.3, len(ai)) ** rng.choice([1, 3]), 0.0, 1.0)
        gap, row = 0.0, []
        for step, factor, fraction in zip(ai, li, part, strict=True):
            room = (0.0 if factor == math.inf else factor * gap) + step
            row.append(float(fraction * room))
            gap = room - row[-1]
        wanted.append(row)
    return project(wanted, a, b, L, lam)


def _linear(a: Runs, b: Runs, L: Runs, lam: Sequence[float], tau: float) -> tuple[Fraction, Fraction, list]:
    """sum of lambda_i A_i, sum of lambda_i^2 B_i^2 + tau^2, and G per run, all rational."""
    shift, variance, later = Fraction(0), Fraction(tau) ** 2, []
    for ai, bi, li, weight in support(a, b, L, lam):
        if math.inf in li:
            raise ValueError("the closed form needs finite Lipschitz factors")
        products = [Fraction(1)]
        for factor in reversed(li[1:]):
            products.append(products[-1] * Fraction(factor))
        products.reverse()
        w = Fraction(weight)
        shift += w * sum(g * Fraction(x) for g, x in zip(products, ai, strict=True))
        variance += w**2 * sum((g * Fraction(x)) ** 2 for g, x in zip(products, bi, strict=True))
        later.append(products)
    return shift, variance, later


def mu_if_linear(a: Runs, b: Runs, L: Runs, lam: Sequence[float], tau: float = 0.0) -> float:
    """sum of lambda_i A_i / sqrt(sum of lambda_i^2 B_i^2 + tau^2), unchecked: at most the program's value."""
    shift, variance, _ = _linear(a, b, L, lam, tau)
    return math.sqrt(shift**2 / variance)


def linear_check(
    a: Runs,
    b: Runs,
    L: Runs,
    lam: Sequence[float],
    tau: float = 0.0,
    tolerance: float = 0.0,
) -> bool:
    """Whether s_i^t = c lambda_i G_i^t (b_i^t)^2 for t < T keep every gap at or above zero.

    Only then is the closed form the program's value. The last shifts are whatever closes the gaps; their
    weighted sum is right by the choice of c. The check is rational, exact for the floats given; where a gap
    is zero in theory and the floats were rounded, `tolerance` (in units of the largest gap) decides.
    """
    shift, variance, later = _linear(a, b, L, lam, tau)
    c = shift / variance
    for (ai, bi, li, weight), products in zip(support(a, b, L, lam), later, strict=True):
        gap = largest = Fraction(0)
        for step, noise, factor, g in list(zip(ai, bi, li, products, strict=True))[:-1]:
            largest = Fraction(factor) * largest + Fraction(step)
            gap = Fraction(factor) * gap + Fraction(step) - c * Fraction(weight) * g * Fraction(noise) ** 2
            if gap < -Fraction(tolerance) * largest:
                return False
    return True
