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
import numpy.typing as npt

from dpmerge.privacy.domain import Array
from dpmerge.privacy.renyi import renyi_penalty

Places = npt.NDArray[np.intp]

_MOST_PIVOTS = 100

UNITS = 2**53
"""Probabilities are whole numbers of this many parts: exactly a double, and exactly an integer to draw by."""


@dataclass(frozen=True)
class Mixture:
    """Which candidates, with which probabilities (at most one more than there are constraints), and the score."""

    places: tuple[int, ...]
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
    places, shares = _without_a_draw(scaled, values) if _is_idle(scaled, values, *chosen) else chosen
    probabilities = whole_units(shares, scaled[:, places].max(axis=0))
    kept = probabilities > 0
    return Mixture(
        tuple(finite[places[kept]].tolist()),
        tuple(probabilities[kept].tolist()),
        float(probabilities @ values[places]),
    )


def best_renyi_mixture(
    curves: Array, scores: Array, epsilon: float, delta: float, orders: Array
) -> tuple[Mixture, float] | None:
    """The best mixture under Rényi divergence, and the order that proves it. `curves` has one candidate a row."""
    budgets = epsilon - renyi_penalty(orders, delta, "improved")
    best: tuple[Mixture, float] | None = None
    for place in np.flatnonzero(budgets > 0):
        with np.errstate(over="ignore"):
            exponents = (orders[place] - 1) * (curves[:, place] - budgets[place])
            mixture = best_mixture(np.exp(exponents)[np.newaxis], scores, 1.0)
        if mixture is not None and (best is None or mixture.score > best[0].score):
            best = mixture, float(orders[place])
    return best


def best_alone(costs: Array, scores: Array, limit: float) -> Mixture | None:
    """The best single candidate within the limit: no draw."""
    fitting = np.where(np.isfinite(scores) & (costs <= limit), scores, -np.inf)
    place = int(np.argmax(fitting))
    return Mixture((place,), (1.0,), float(fitting[place])) if np.isfinite(fitting[place]) else None


def whole_units(shares: Array, costs: Array) -> Array:
    """Probabilities as multiples of 1/UNITS that sum to one: all rounded down, the cheapest gets what is left."""
    units = np.floor(shares / shares.sum() * UNITS).astype(np.int64)
    units[int(np.argmin(costs))] += UNITS - int(units.sum())
    return np.asarray(units / UNITS)


def _is_idle(costs: Array, scores: Array, places: Places, shares: Array) -> bool:
    """Whether a draw gains nothing over the best single candidate but rounding."""
    alone = np.max(scores, initial=-np.inf, where=costs.max(axis=0) <= 1)
    mixed = float(shares @ scores[places])
    return bool(mixed - alone <= 1e-8 * abs(mixed))


def _without_a_draw(costs: Array, scores: Array) -> tuple[Places, Array]:
    fitting = np.where(costs.max(axis=0) <= 1, scores, -np.inf)
    return np.array([np.argmax(fitting)]), np.ones(1)


def _on_the_hull(costs: Array, scores: Array) -> tuple[Places, Array] | None:
    """The two neighbours on the upper hull of (cost, score) around a cost of one."""
    order = np.lexsort((-scores, costs))
    cheapest = costs[order[0]]
    if cheapest > 1:
        return None
    # Only a candidate that scores better than all cheaper ones can be on the hull.
    before = np.concatenate([[-np.inf], np.maximum.accumulate(scores[order])[:-1]])
    order = order[scores[order] > before]
    hull: list[int] = []
    for place in order.tolist():
        while len(hull) > 1 and _turns_left(costs, scores, hull[-2], hull[-1], place):
            hull.pop()
        hull.append(place)
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


def _by_simplex(costs: Array, scores: Array) -> tuple[Places, Array] | None:
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
    places, exact = _pivoted(costs[:, kept], scores[kept], support, shares[support])
    return kept[places], exact


def _pivoted(costs: Array, scores: Array, support: Places, shares: Array) -> tuple[Places, Array]:
    """Go on from the solver's vertex as long as a candidate improves it: its tolerance is relative to the widest score.

    The simplex method on three rows, Σ π = 1 and a slack for each cost; a basis that cannot be solved ends it, with the
    best vertex so far.
    """
    rows, count = costs.shape
    columns = np.hstack([np.vstack([costs, np.ones(count)]), np.vstack([np.eye(rows), np.zeros(rows)])])
    gains = np.concatenate([scores, np.zeros(rows)])
    limits = np.ones(rows + 1)
    slack = 1 - costs[:, support] @ shares
    basis = [*support.tolist(), *(count + np.argsort(-slack)[: rows + 1 - support.size]).tolist()]
    best, best_value = (support, shares), float(shares @ scores[support])
    for _ in range(_MOST_PIVOTS):
        square = columns[:, basis]
        if len(basis) != rows + 1 or abs(np.linalg.det(square)) < 1e-250:
            break
        values = np.linalg.solve(square, limits)
        if values.min() < -1e-12:
            break
        taken = [(place, value) for place, value in zip(basis, values, strict=True) if place < count and value > 0]
        value = float(sum(share * scores[place] for place, share in taken))
        spent = sum(share * costs[:, place] for place, share in taken)
        if value >= best_value and np.max(spent) <= 1 + 1e-12 and abs(sum(share for _, share in taken) - 1) < 1e-12:
            best = np.array([place for place, _ in taken], dtype=np.intp), np.array([share for _, share in taken])
            best_value = value
        prices = np.linalg.solve(square.T, gains[basis])
        reduced = gains - prices @ columns
        reduced[basis] = 0.0
        entering = int(np.argmax(reduced))
        if reduced[entering] <= 1e-12 * np.abs(gains[basis]).max():
            break
        direction = np.linalg.solve(square, columns[:, entering])
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = np.where(direction > 1e-14, np.maximum(values, 0.0) / direction, np.inf)
        leaving = int(np.argmin(ratios))
        if not np.isfinite(ratios[leaving]):
            break
        basis[leaving] = entering
    return best


def _unbeaten(costs: Array, scores: Array) -> Places:
    """Candidates that no other one matches or beats in every cost and in score."""
    order = np.lexsort((costs[1], costs[0], -scores))
    kept: list[int] = []
    for place in order.tolist():
        others = costs[:, kept]
        if not np.any(np.all(others <= costs[:, [place]], axis=0)):
            kept.append(place)
    return np.array(kept, dtype=np.intp)
