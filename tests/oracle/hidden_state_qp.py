"""The hidden-state theorem for merged runs as a quadratic program, straight from its statement.

The statement is in `hidden_state_shifts`, with the meaning of a, b, L, lam and tau. The least mu over all
feasible shifts is a convex quadratic program in shifts and gaps; `solve` gives it to Clarabel at 1e-12,
`brute_force_mu` to a search that knows nothing of programs, for two runs of up to three steps.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import clarabel
import numpy as np
from scipy import sparse
from scipy.optimize import minimize

from .hidden_state_shifts import (
    Infeasible,
    Runs,
    evaluate,
    linear_check,
    mu_if_linear,
    objective,
    project,
    random_shifts,
    support,
)

__all__ = [
    "Infeasible",
    "Solution",
    "brute_force_mu",
    "evaluate",
    "linear_check",
    "mu_if_linear",
    "optimal_mu",
    "project",
    "random_shifts",
    "solve",
]


class Solution(NamedTuple):
    mu: float
    """Of shifts projected to be feasible: a proof up to rounding, hence never below the optimum."""
    mu_lower: float
    """From the solver's dual: the optimum is not below it."""
    shifts: list[list[float]]


def solve(a: Runs, b: Runs, L: Runs, lam: Sequence[float], tau: float = 0.0) -> Solution:
    """The best shifts, by Clarabel.

    Everything is brought into [0, 1] first: the objective in units of the better of spending every gap at
    once and spending all at the end, gaps in units of Z_i^t, the gap an unshifted run would have, and shifts
    before the end in units of Z_i^t or of b_i^t times the unit of mu, whichever is less: no optimal shift is
    larger.
    """
    runs = support(a, b, L, lam)
    if not runs:
        return Solution(0.0, 0.0, [])
    variance = sum((w * bi[-1]) ** 2 for _, bi, _, w in runs) + tau**2
    start = objective(project([[math.inf] * len(r[0]) for r in runs], a, b, L, lam), runs, tau)
    late = objective(project([[0.0] * len(r[0]) for r in runs], a, b, L, lam), runs, tau)
    unit = min(start, late)
    if not 0 < unit < math.inf:
        if unit == 0 or variance == 0:
            return Solution(unit, unit, [])
        unit = 1.0

    offsets = np.concatenate([[0], np.cumsum([2 * len(ai) for ai, _, _, _ in runs])])
    size = int(offsets[-1]) + 1  # per run T shifts, then T gaps; at the very end the merged last shift
    quadratic, rows, cols, values, right = np.zeros(size), [], [], [], []
    merged: list[tuple[int, float]] = [(size - 1, -1.0)]
    merged_unit = 0.0

    def equality(terms: list[tuple[int, float]], value: float) -> None:
        for column, coefficient in terms:
            rows.append(len(right))
            cols.append(column)
            values.append(coefficient)
        right.append(value)

    scales = []
    for (ai, bi, li, w), base in zip(runs, offsets, strict=False):
        steps, previous, scale = len(ai), 0.0, []
        for t in range(steps):
            free = 0.0 if li[t] == math.inf else li[t] * previous
            unit_gap = free + ai[t] if free + ai[t] > 0 else 1.0
            shift, gap = int(base) + t, int(base) + steps + t
            least = min(unit_gap, bi[t] * unit) if t < steps - 1 and bi[t] > 0 else unit_gap
            terms = [(gap, 1.0), (shift, least / unit_gap)]
            if t and li[t] == math.inf:
                equality([(gap - 1, 1.0)], 0.0)
            elif t:
                terms.append((gap - 1, -free / unit_gap))
            equality(terms, ai[t] / unit_gap)
            if t == steps - 1:
                equality([(gap, 1.0)], 0.0)
                merged.append((shift, w * unit_gap))
                merged_unit += w * unit_gap
            elif bi[t] == 0:
                equality([(shift, 1.0)], 0.0)
            else:
                quadratic[shift] = 2 * (least / bi[t] / unit) ** 2
            scale.append(least)
            previous = unit_gap
        scales.append(scale)
    equality([(c, v / (merged_unit if c < size - 1 else 1.0)) for c, v in merged], 0.0)
    quadratic[-1] = 2 * merged_unit**2 / variance / unit**2

    equalities = sparse.csc_matrix((values, (rows, cols)), shape=(len(right), size))
    matrix = sparse.vstack([equalities, -sparse.identity(size)], format="csc")
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.max_iter = 500
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-12
    # With the default regularisation, 1e-8, one ill-scaled problem in 150 stops far from the optimum.
    settings.static_regularization_constant = 1e-12
    settings.iterative_refinement_max_iter = 50
    cones = [clarabel.ZeroConeT(len(right)), clarabel.NonnegativeConeT(size)]
    bounds = np.concatenate([right, np.zeros(size)])
    hessian = sparse.csc_matrix(sparse.diags(quadratic))
    result = clarabel.DefaultSolver(hessian, np.zeros(size), matrix, bounds, cones, settings).solve()
    if "PrimalInfeasible" in str(result.status):  # a gap to close where there is no noise to close it with
        return Solution(math.inf, math.inf, [])
    if "Solved" not in str(result.status):
        raise ArithmeticError(f"Clarabel: {result.status}")
    found = [
        [x * u for x, u in zip(result.x[int(base) :], scale, strict=False)]
        for scale, base in zip(scales, offsets, strict=False)
    ]
    shifts = project(found, a, b, L, lam)
    return Solution(objective(shifts, runs, tau), unit * math.sqrt(max(0.0, result.obj_val_dual)), shifts)


def optimal_mu(a: Runs, b: Runs, L: Runs, lam: Sequence[float], tau: float = 0.0) -> float:
    """The least mu the theorem proves."""
    return solve(a, b, L, lam, tau).mu


def brute_force_mu(a: Runs, b: Runs, L: Runs, lam: Sequence[float], tau: float = 0.0) -> float:
    """The least mu by local search over the fractions of the gap spent at each step before the last.

    In these fractions every point of a box is feasible. A coarse grid gives the starts.
    """
    runs = support(a, b, L, lam)
    counts = [len(ai) - 1 for ai, _, _, _ in runs]
    if len(runs) > 2 or max(counts) > 2:
        raise ValueError("only for two runs of three steps")

    def square(fractions: np.ndarray) -> float:
        wanted, position = [], 0
        for (ai, _, li, _), count in zip(runs, counts, strict=True):
            gap, row = 0.0, []
            for t, fraction in enumerate(fractions[position : position + count]):
                room = li[t] * gap + ai[t]
                row.append(fraction * room)
                gap = room - row[-1]
            wanted.append([*row, li[count] * gap + ai[count]])
            position += count
        return objective(wanted, runs, tau) ** 2

    grid = [np.array(point) for point in itertools.product(np.linspace(0.0, 1.0, 6), repeat=sum(counts))]
    starts = sorted(grid, key=square)[:6]
    unit = square(starts[0])
    best = unit
    for start in starts if sum(counts) else []:
        point = start
        for _ in range(3):  # restarting renews the quadratic model where the first descent stalled
            result = minimize(
                lambda x: square(x) / unit,
                point,
                method="SLSQP",
                bounds=[(0.0, 1.0)] * len(point),
                options={"ftol": 1e-16, "maxiter": 500},
            )
            point = np.clip(result.x, 0.0, 1.0)
            best = min(best, square(point))
    return math.sqrt(best)
