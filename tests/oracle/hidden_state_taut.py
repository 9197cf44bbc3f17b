"""The hidden-state program solved exactly, without a solver, at fifty digits.

Write Gamma_t for the product of the Lipschitz factors after step t of a run and count shifts and gaps in the
units they have at the end: sigma_t = Gamma_t s_t, weights w_t = (Gamma_t b_t)^2. The gaps are then plain
differences, Gamma_t z_t = U_t - Y_t with U_t = sum_{r<=t} Gamma_r a_r and Y_t = sum_{r<=t} sigma_r, and the
program reads: over nondecreasing Y with Y_0 = 0 and Y_t <= U_t for t < T, minimise

    sum_i sum_{t<T} (Y_t - Y_{t-1})^2 / w_t + S^2 / V,    S = sum_i lambda_i (U_T - Y_{T-1}),

V = sum_i (lambda_i b_i^T)^2 + tau^2. Drawn over X_t = w_1 + ... + w_t the first sum is the energy of a string
held below the points (X_t, U_t) and pulled up at its end with slope kappa_i = lambda_i S / V. Such a string
follows the greatest convex minorant of the points until that is steeper than kappa_i, and then goes straight:
its slope is min(minorant's slope, kappa_i). S is a decreasing, piecewise linear function of S / V, which
leaves one equation.

Where the pull is weaker than every slope of every minorant this is the closed form, and that is its check.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from mpmath import mp, mpf

from .hidden_state_shifts import Runs, support

DIGITS = 50
Segments = list[tuple[mpf, mpf]]


def _minorant(points: list[tuple[mpf, mpf]]) -> Segments:
    """(length, slope) of the greatest convex minorant of points with nondecreasing abscissae."""
    hull: list[tuple[mpf, mpf]] = []
    for x, y in points:
        if hull and hull[-1][0] == x:
            continue  # a step without noise: nothing can be spent there, the bound before it still holds
        while len(hull) > 1:
            (x0, y0), (x1, y1) = hull[-2:]
            if (y1 - y0) * (x - x1) < (y - y1) * (x1 - x0):
                break
            hull.pop()
        hull.append((x, y))
    return [(x1 - x0, (y1 - y0) / (x1 - x0)) for (x0, y0), (x1, y1) in pairwise(hull)]


def _strings(a: Sequence[float], b: Sequence[float], factors: Sequence[float]) -> tuple[mpf, mpf, Segments]:
    """Cost of what an unbounded factor forces to be spent, U_T and the string of the rest."""
    forced = mpf(0)
    walls = [t for t in range(1, len(a)) if factors[t] == math.inf]
    for first, last in zip([0, *walls], [*walls, len(a)], strict=True):
        gammas = [mpf(1)]
        for factor in reversed(factors[first + 1 : last]):
            gammas.append(gammas[-1] * mpf(factor))
        gammas.reverse()
        # A factor of zero forgets every gap before it, at no cost.
        start = max((t + 1 for t, g in enumerate(gammas) if g == 0), default=0)
        points, x, u = [(mpf(0), mpf(0))], mpf(0), mpf(0)
        end = last - first if last < len(a) else last - first - 1
        for t in range(start, end):
            x += (gammas[t] * mpf(b[first + t])) ** 2
            u += gammas[t] * mpf(a[first + t])
            points.append((x, u))
        segments = _minorant(points)
        if last < len(a):  # the gap must be nil at the wall: the string is tied to its last point
            spent = sum((length * slope for length, slope in segments), mpf(0))
            if points[-1][1] > spent * (1 + mpf(10) ** -40):
                forced = mp.inf
            forced += sum((length * slope**2 for length, slope in segments), mpf(0))
    return forced, u + mpf(a[-1]), segments


def exact_mu(a: Runs, b: Runs, L: Runs, lam: Sequence[float], tau: float = 0.0) -> mpf:
    """The least mu the hidden-state theorem proves."""
    with mp.workdps(DIGITS + 10):
        square, total, variance, strings = mpf(0), mpf(0), mpf(tau) ** 2, []
        for ai, bi, li, weight in support(a, b, L, lam):
            forced, reach, segments = _strings(ai, bi, li)
            square += forced
            total += mpf(weight) * reach
            variance += (mpf(weight) * mpf(bi[-1])) ** 2
            strings += [(length, slope, mpf(weight)) for length, slope in segments]
        pull = _pull(total, variance, strings)
        last = total
        for length, slope, weight in strings:
            taken = min(slope, weight * pull)
            square += length * taken**2
            last -= weight * length * taken
        if variance > 0:
            square += last**2 / variance
        elif last > mpf(10) ** -DIGITS * total:
            return mp.inf
        return mp.sqrt(square)


def _pull(total: mpf, variance: mpf, strings: list[tuple[mpf, mpf, mpf]]) -> mpf:
    """S / V: the root c of V c = total - sum of weight * length * min(slope, weight * c)."""
    taken, rate = mpf(0), sum((weight**2 * length for length, _, weight in strings), mpf(0))
    for length, slope, weight in sorted(strings, key=lambda item: item[1] / item[2]):
        limit = slope / weight
        if variance + rate > 0 and (total - taken) / (variance + rate) <= limit:
            break
        taken += weight * length * slope
        rate -= weight**2 * length
    rate = max(rate, mpf(0))
    # At V = 0 a little of `rate` is left by rounding once every string is taut; any large pull is then right.
    return (total - taken) / (variance + rate) if variance + rate > 0 else mp.inf
