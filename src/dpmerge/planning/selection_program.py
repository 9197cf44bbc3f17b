"""The linear program of random selection: the probabilities with the best expected score that meet a target.

Guarantees: exact to 1e-8 of the limit, for which a caller leaves slack. Under privacy loss distributions the
constraints are two, Σ π_i δ±_i(ε) ≤ δ; under Rényi divergence one for each order α, of which meeting one is enough,
    Σ π_i e^{(α−1)ρ_i(α)} ≤ e^{(α−1)B_α}:
the best of all orders is taken. Probabilities are multiples of 2⁻⁵³ that sum to exactly one, so that a draw can use
integers.
Refuses (None): targets that no mixture meets.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpmerge.accounting.renyi import Conversion, renyi_penalty
from dpmerge.accounting.validation import Array
from dpmerge.planning.simplex_pivots import Indices, pivoted
from dpmerge.terms.release_terms import UNITS


@dataclass(frozen=True)
class Mixture:
    """Which candidates, with which probabilities (at most one more than there are constraints), and the score."""

    indices: tuple[int, ...]
    probabilities: tuple[float, ...]
    score: float


def best_mixture(costs: Array, scores: Array, limit: float) -> Mixture | None:
    """Maximise Σ π_i scores_i with Σ π_i costs_ci ≤ limit for each row c of costs and π in the simplex.

    One row of costs, or two equal ones, leave a problem in the plane: the upper hull of (cost, score), read off at
    the limit. Otherwise the simplex method, on the candidates that no other one beats in every respect.
    """
    finite = np.flatnonzero(np.isfinite(scores) & np.all(np.isfinite(costs), axis=0))
    # Scaled by the limit: a solver's tolerance is absolute. What overflows cannot be drawn at all.
    with np.errstate(over="ignore"):
        scaled, values = costs[:, finite] / limit, scores[finite]
    drawable = np.all(np.isfinite(scaled), axis=0)
    finite, scaled, values = finite[drawable], scaled[:, drawable], values[drawable]
    if not finite.size:
        return None
    in_the_plane = np.array_equal(scaled[0], scaled[-1])
    chosen = _on_the_hull(scaled[0], values) if in_the_plane else _by_simplex(scaled, values)
    if chosen is None:
        return None
    indices, shares = _without_a_draw(scaled, values) if _is_idle(scaled, values, *chosen) else chosen
    probabilities = whole_units(shares, scaled[:, indices].max(axis=0))
    kept = probabilities > 0
    return Mixture(
        tuple(finite[indices[kept]].tolist()),
        tuple(probabilities[kept].tolist()),
        float(probabilities @ values[indices]),
    )


def best_renyi_mixture(
    curves: Array,
    scores: Array,
    epsilon: float,
    delta: float,
    orders: Array,
    conversion: Conversion = "improved",
) -> tuple[Mixture, float] | None:
    """The best mixture under Rényi divergence, and the order that proves it. `curves` has one candidate a row."""
    budgets = epsilon - renyi_penalty(orders, delta, conversion)
    best: tuple[Mixture, float] | None = None
    for index in np.flatnonzero(budgets > 0):
        with np.errstate(over="ignore"):
            exponents = (orders[index] - 1) * (curves[:, index] - budgets[index])
            mixture = best_mixture(np.exp(exponents)[np.newaxis], scores, 1.0)
        if mixture is not None and (best is None or mixture.score > best[0].score):
            best = mixture, float(orders[index])
    return best


def best_alone(costs: Array, scores: Array, limit: float) -> Mixture | None:
    """The best single candidate within the limit: no draw."""
    fitting = np.where(np.isfinite(scores) & (costs <= limit), scores, -np.inf)
    index = int(np.argmax(fitting))
    return Mixture((index,), (1.0,), float(fitting[index])) if np.isfinite(fitting[index]) else None


def whole_units(shares: Array, costs: Array) -> Array:
    """Probabilities as multiples of 1/UNITS that sum to one: all rounded down, the cheapest gets what is left."""
    units = np.floor(shares / shares.sum() * UNITS).astype(np.int64)
    units[int(np.argmin(costs))] += UNITS - int(units.sum())
    return np.asarray(units / UNITS)


def _is_idle(costs: Array, scores: Array, indices: Indices, shares: Array) -> bool:
    """Whether a draw gains nothing over the best single candidate but rounding."""
    alone = np.max(scores, initial=-np.inf, where=costs.max(axis=0) <= 1)
    mixed = float(shares @ scores[indices])
    return bool(mixed - alone <= 1e-8 * abs(mixed))


def _without_a_draw(costs: Array, scores: Array) -> tuple[Indices, Array]:
    fitting = np.where(costs.max(axis=0) <= 1, scores, -np.inf)
    return np.array([np.argmax(fitting)]), np.ones(1)


def _on_the_hull(costs: Array, scores: Array) -> tuple[Indices, Array] | None:
    """The two neighbours on the upper hull of (cost, score) around a cost of one."""
    order = np.lexsort((-scores, costs))
    cheapest = costs[order[0]]
    if cheapest > 1:
        return None
    # Only a candidate that scores better than all cheaper ones can be on the hull.
    before = np.concatenate([[-np.inf], np.maximum.accumulate(scores[order])[:-1]])
    order = order[scores[order] > before]
    hull: list[int] = []
    for index in order.tolist():
        while len(hull) > 1 and _turns_left(costs, scores, hull[-2], hull[-1], index):
            hull.pop()
        hull.append(index)
    corners = costs[hull]
    right = int(np.searchsorted(corners, 1.0, side="right"))
    if right == len(hull):
        return np.array([hull[-1]]), np.ones(1)
    left, above = hull[right - 1], hull[right]
    share = (1 - costs[left]) / (costs[above] - costs[left])
    return np.array([left, above]), np.array([1 - share, share])


def _turns_left(costs: Array, scores: Array, first: int, middle: int, last: int) -> bool:
    """Whether the middle point lies on or below the line from the first to the last."""
    # As shares of the way, which cannot overflow; along the hull costs and scores only grow.
    rise = (scores[middle] - scores[first]) / (scores[last] - scores[first])
    run = (costs[middle] - costs[first]) / (costs[last] - costs[first])
    return bool(rise <= run)


def _by_simplex(costs: Array, scores: Array) -> tuple[Indices, Array] | None:
    kept = _unbeaten(costs, scores)
    # Costs far above the limit would spoil the scaling of the matrix; their probability is what counts.
    scale = np.maximum(1.0, costs[:, kept].max(axis=0))
    spread = np.ptp(scores[kept]) or 1.0
    from scipy.optimize import linprog  # half a second to import, and only sampled runs need it

    # In the variables π_i·scale_i: costs at most one, and objective and sum in the same units.
    result = linprog(
        -(scores[kept] - scores[kept].min()) / spread / scale,
        A_ub=costs[:, kept] / scale,
        b_ub=np.ones(costs.shape[0]),
        A_eq=(1 / scale)[np.newaxis],
        b_eq=[1.0],
        bounds=(0, None),
        method="highs-ds",
    )
    if result.x is None or not result.success:
        return None
    shares = np.maximum(result.x, 0.0) / scale
    support = np.flatnonzero(result.x > 1e-12)
    indices, exact = pivoted(costs[:, kept], scores[kept], support, shares[support])
    return kept[indices], exact


def _unbeaten(costs: Array, scores: Array) -> Indices:
    """Candidates that no other one matches or beats in every cost and in score."""
    order = np.lexsort((costs[1], costs[0], -scores))
    kept: list[int] = []
    for index in order.tolist():
        others = costs[:, kept]
        if not np.any(np.all(others <= costs[:, [index]], axis=0)):
            kept.append(index)
    return np.array(kept, dtype=np.intp)
