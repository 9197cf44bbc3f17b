"""The linear program of random selection against exact vertex enumeration, linprog, and exact arithmetic."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy.optimize import linprog

from dpmerge.accounting import DEFAULT_ORDERS
from dpmerge.planning.selection_program import Mixture, best_mixture, best_renyi_mixture, whole_units
from dpmerge.terms.release_terms import UNITS
from oracle.planning_brute_force import best_renyi_selection, best_vertex

Array = npt.NDArray[np.float64]


def require_sound(found: Mixture, costs: Array, limit: float, *, rows: int) -> None:
    """Everything that must hold of a mixture whatever its score: exact probabilities, an exact constraint."""
    assert len(found.indices) == len(found.probabilities) == len(set(found.indices))
    assert len(found.indices) <= rows + 1
    assert all(p > 0 for p in found.probabilities)
    assert all((Fraction(p) * UNITS).denominator == 1 for p in found.probabilities)
    assert sum(map(Fraction, found.probabilities)) == 1
    assert excess(found, costs, limit) <= 1e-12, (found, costs, limit)


def excess(found: Mixture, costs: Array, limit: float) -> float:
    """By how much the dearest row exceeds the limit, relative to it; in exact arithmetic until the end."""
    shares = [(i, Fraction(p)) for i, p in zip(found.indices, found.probabilities, strict=True)]
    spent = max(sum(p * Fraction(float(row[i])) for i, p in shares) for row in costs)
    return float(spent / Fraction(limit) - 1)


def require_optimal(found: Mixture | None, costs: Array, scores: Array, limit: float, tolerance: float = 1e-7) -> None:
    """Not above the exact optimum, and below it by no more than rounding, relative to it."""
    exact = best_vertex(costs.tolist(), scores.tolist(), [limit] * len(costs))
    assert (found is None) == (exact is None), (found, exact, costs, scores, limit)
    if found is None or exact is None:
        return
    require_sound(found, costs, limit, rows=len(costs))
    value = sum(
        Fraction(p) * Fraction(float(scores[i])) for i, p in zip(found.indices, found.probabilities, strict=True)
    )
    usable = scores[np.isfinite(scores) & np.isfinite(costs).all(axis=0)]
    largest = max(map(abs, map(Fraction, usable.tolist())))
    lost = exact[0] - value
    assert lost >= -largest / 10**12
    assert lost <= Fraction(tolerance) * abs(exact[0]) + largest / 10**14, (
        float(value),
        float(exact[0]),
        found,
        costs,
        scores,
        limit,
    )
    assert abs(Fraction(found.score) - value) <= largest / 10**12


def random_instance(rng: np.random.Generator, rows: int) -> tuple[Array, Array, float]:
    """Costs over many orders of magnitude, ties, limits at, below and above some cost."""
    size = int(rng.integers(1, 9))
    spread = float(rng.choice([0.5, 3.0, 12.0, 60.0, 250.0]))
    costs = 10 ** rng.uniform(-spread, 0, (rows, size))
    if rows == 2 and rng.random() < 0.5:
        costs[1] = np.minimum(1.0, costs[0] * 10 ** rng.uniform(-1, 1, size))
    if rows == 2 and rng.random() < 0.15:
        costs[1] = costs[0]
    scores = -(10 ** rng.uniform(-2, 2, size)) if rng.random() < 0.7 else rng.normal(size=size)
    if rng.random() < 0.3:
        costs = np.round(costs, 1) + 0.05
        scores = np.round(scores)
    limit = float(rng.choice([10 ** rng.uniform(-spread, 0), float(rng.choice(costs.ravel())), 1e-12, 1e-5, 0.4]))
    return costs, scores, limit


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("seed", range(6))
def test_random_programs_are_solved_exactly(rows: int, seed: int) -> None:
    rng = np.random.default_rng([rows, seed])
    solved = 0
    for _ in range(80):
        costs, scores, limit = random_instance(rng, rows)
        found = best_mixture(costs, scores, limit)
        require_optimal(found, costs, scores, limit)
        solved += found is not None
    assert solved > 20


@pytest.mark.parametrize("seed", range(4))
def test_random_programs_agree_with_linprog(seed: int) -> None:
    """On larger instances than can be enumerated, scaled so that linprog can be trusted."""
    rng = np.random.default_rng([17, seed])
    for _ in range(25):
        size, rows = int(rng.integers(10, 300)), int(rng.integers(1, 3))
        costs, scores = rng.uniform(0, 2, (rows, size)), rng.normal(size=size)
        reference = linprog(
            -scores, A_ub=costs, b_ub=np.full(rows, 0.7), A_eq=np.ones((1, size)), b_eq=[1.0], method="highs"
        )
        found = best_mixture(costs, scores, 0.7)
        assert (found is None) == (reference.status == 2)
        if found is not None:
            require_sound(found, costs, 0.7, rows=rows)
            assert found.score == pytest.approx(-reference.fun, rel=1e-8, abs=1e-9)


@pytest.mark.parametrize("rows", [1, 2])
def test_no_random_feasible_point_is_better(rows: int) -> None:
    rng = np.random.default_rng(rows)
    for _ in range(40):
        costs, scores = rng.uniform(0, 2, (rows, 6)), rng.normal(size=6)
        found = best_mixture(costs, scores, 0.8)
        points = rng.dirichlet(np.full(6, 0.5), 2000)
        feasible = (points @ costs.T <= 0.8).all(axis=1)
        if feasible.any():
            assert found is not None
            assert (points[feasible] @ scores).max() <= found.score + 2e-8


@pytest.mark.parametrize(
    ("costs", "scores", "limit"),
    [
        pytest.param([[0.5]], [1.0], 0.5, id="one candidate at the limit"),
        pytest.param([[0.5]], [1.0], math.nextafter(0.5, 0), id="one candidate just above the limit"),
        pytest.param([[0.5], [0.6]], [1.0], 0.55, id="one candidate over in one direction"),
        pytest.param([[0.5, 0.6, 0.7]], [1.0, 2.0, 3.0], 0.1, id="all infeasible"),
        pytest.param([[0.3, 0.3, 0.3]], [1.0, 1.0, 1.0], 0.3, id="all the same"),
        pytest.param([[0.1, 0.9, 0.9]], [1.0, 2.0, 2.0], 0.5, id="ties"),
        pytest.param([[0.1, 0.5, 0.9]], [1.0, 2.0, 3.0], 0.7, id="on one line"),
        pytest.param([[0.0, 1.0]], [0.0, 1.0], 1e-12, id="nothing and everything"),
        pytest.param([[0.0, 0.0, 1.0]], [0.0, 0.5, 1.0], 1e-12, id="two for nothing"),
        pytest.param([[0.0, 0.0], [0.0, 0.0]], [2.0, 1.0], 1e-12, id="zero costs"),
        pytest.param([[1e-300, 1.0]], [0.0, 1.0], 1e-12, id="tiny and huge"),
        pytest.param([[1e-300, 1e-290]], [0.0, 1.0], 1e-295, id="all tiny"),
        pytest.param([[5e-324, 1.0]], [0.0, 1.0], 5e-324, id="the smallest float"),
        pytest.param([[1e-310, 1e-305]], [0.0, 1.0], 1e-307, id="subnormal"),
        pytest.param([[1e-300, 1.0], [1.0, 1e-300]], [0.0, 1.0], 1e-12, id="one direction each"),
        pytest.param([[1e-20, 1.0, 1e-20], [1e-20, 1e-20, 1.0]], [0.0, 1.0, 1.0], 1e-12, id="three of them"),
        pytest.param([[0.1, 0.9]], [1.0, math.nan], 0.5, id="one score unknown"),
        pytest.param([[0.1, 0.9]], [math.nan, 1.0], 0.5, id="the only fitting score unknown"),
        pytest.param([[0.1, 0.2]], [math.nan, math.nan], 0.5, id="no score known"),
        pytest.param([[0.1, math.inf]], [1.0, 2.0], 0.5, id="infinite cost"),
        pytest.param([[math.inf, math.inf]], [1.0, 2.0], 0.5, id="infinite costs"),
        pytest.param([[0.1, math.inf], [0.1, math.inf]], [1.0, 2.0], 0.5, id="infinite costs both ways"),
        pytest.param([[0.1, 0.4], [0.1, math.inf]], [1.0, 2.0], 0.5, id="infinite cost one way"),
        pytest.param([[0.1, 0.2]], [-math.inf, 1.0], 0.15, id="a score of minus infinity"),
        pytest.param([[0.1, 0.9]], [-1e9, -1.0], 0.5, id="scores far apart"),
        pytest.param([[0.1, 0.9]], [-1e-300, -1e-301], 0.5, id="tiny scores"),
        pytest.param([[0.1, 0.9]], [0.0, 0.0], 0.5, id="zero scores"),
        pytest.param([[0.1, 0.9]], [1e300, -1e300], 0.5, id="scores that overflow when subtracted"),
        pytest.param([[1e-12, 1e-12 * (1 + 1e-15)]], [0.0, 1.0], 1e-12, id="one rounding apart"),
        pytest.param([[0.0, 0.5, 1.0], [1.0, 0.5, 0.0]], [0.0, -1.0, 0.0], 0.5, id="degenerate corner"),
    ],
)
def test_programs_with_ties_extreme_costs_or_unknown_scores_are_solved_exactly(
    costs: list[list[float]], scores: list[float], limit: float
) -> None:
    require_optimal(best_mixture(np.array(costs), np.array(scores), limit), np.array(costs), np.array(scores), limit)


@pytest.mark.parametrize("rows", [1, 2])
def test_the_constraint_holds_up_to_rounding(rows: int) -> None:
    """Counted in fractions; a planner leaves a hundred times more slack."""
    rng = np.random.default_rng([5, rows])
    above = []
    for _ in range(200):
        costs, scores = rng.uniform(0, 2, (rows, 5)), rng.normal(size=5)
        found = best_mixture(costs, scores, 0.7)
        if found is not None and (over := excess(found, costs, 0.7)) > 1e-11:
            above.append(over)
    assert not above, f"{len(above)} of 200 exceed the limit, by up to {max(above)} of it"


@pytest.mark.parametrize("worst", [1e3, 1e6, 1e9, 1e12])
def test_a_useless_candidate_does_not_spoil_the_precision_of_the_others(worst: float) -> None:
    """Two directions; of three candidates one is nearly free and nearly useless: the other two still mix exactly."""
    costs = np.array([[1e-6, 0.9, 1.1], [2e-6, 0.5, 0.9]])
    scores = np.array([-worst, -1.2, -1.0])
    require_optimal(best_mixture(costs, scores, 1.0), costs, scores, 1.0)


def test_scores_over_sixteen_orders_of_magnitude_are_solved_exactly() -> None:
    """Two directions; the best mixes the third and the fourth, whatever the first scores."""
    costs = np.array(
        [
            [0.45335, 0.69115, 0.74254, 1.07941, 1.49762, 1.95902, 2.21787],
            [0.43371, 0.6207, 0.55109, 0.97159, 1.23827, 1.62533, 1.5125],
        ]
    )
    scores = -np.array([1.031e9, 537.9, 5.318, 0.4914, 0.01628, 0.000715, 5.378e-7])
    require_optimal(best_mixture(costs, scores, 1.0), costs, scores, 1.0)


@pytest.mark.parametrize("spread", [2.0, 5.0, 9.0])
def test_programs_in_which_better_costs_more_by_orders_of_magnitude_are_solved_exactly(spread: float) -> None:
    """As in a portfolio: the noisier the more private, both directions nearly alike."""
    rng = np.random.default_rng(int(spread))
    for _ in range(100):
        size = int(rng.integers(3, 9))
        quality = np.sort(rng.uniform(-1, 1, size))
        costs = 10 ** (rng.choice([0.5, 3.0]) * quality + rng.normal(size=(2, size)) * 0.1)
        scores = -(10 ** (-spread * quality + rng.normal(size=size) * 0.05))
        require_optimal(best_mixture(costs, scores, 1.0), costs, scores, 1.0)


def test_a_draw_that_gains_nothing_is_not_made() -> None:
    found = best_mixture(np.array([[0.1, 0.5, 0.9]]), np.array([1.0, 2.0, 3.0]), 0.5)
    assert found is not None
    assert (found.indices, found.probabilities) == ((1,), (1.0,))


@pytest.mark.parametrize("seed", range(4))
def test_whole_units_sum_to_one_and_raise_only_the_cheapest_share(seed: int) -> None:
    """Rounded down but for the cheapest, no row of costs can grow if one candidate is the cheapest in all of them."""
    rng = np.random.default_rng(seed)
    for _ in range(100):
        size = int(rng.integers(1, 5))
        shares = rng.dirichlet(np.full(size, rng.choice([0.05, 1.0])))
        costs = 10 ** rng.uniform(-200, 0, size)
        units = whole_units(shares, costs)
        assert sum(map(Fraction, units.tolist())) == 1
        assert all((Fraction(u) * UNITS).denominator == 1 and u >= 0 for u in units.tolist())
        assert np.abs(units - shares).max() <= (size + 1) / UNITS
        dearer = np.arange(size) != int(np.argmin(costs))
        assert (units[dearer] <= shares[dearer] * (1 + 1e-15)).all()


def renyi_case(rng: np.random.Generator) -> dict[str, Any]:
    size = int(rng.integers(1, 7))
    return {
        "squared": 10 ** rng.uniform(-5, 1, size),
        "ratios": 10 ** rng.uniform(-1, 2, size),
        "epsilon": float(10 ** rng.uniform(-1.5, 1.2)),
        "delta": float(rng.choice([1e-12, 1e-8, 1e-5, 1e-2, 0.4])),
    }


@pytest.mark.parametrize("seed", range(4))
def test_renyi_programs_find_the_best_over_all_orders(seed: int) -> None:
    rng = np.random.default_rng([3, seed])
    solved = 0
    for _ in range(12):
        case = renyi_case(rng)
        squared, ratios = case["squared"], case["ratios"]
        curves = squared[:, None] * DEFAULT_ORDERS / 2
        found = best_renyi_mixture(curves, -ratios, case["epsilon"], case["delta"], DEFAULT_ORDERS)
        exact = best_renyi_selection(
            squared.tolist(), ratios.tolist(), case["epsilon"], case["delta"], DEFAULT_ORDERS.tolist()
        )
        assert (found is None) == (exact is None), case
        if found is None or exact is None:
            continue
        solved += 1
        mixture, order = found
        assert sum(map(Fraction, mixture.probabilities)) == 1
        assert -mixture.score == pytest.approx(exact, rel=1e-7), case
        room = (
            case["epsilon"] - math.log((order - 1) / order) + (math.log(case["delta"]) + math.log(order)) / (order - 1)
        )
        terms = [
            p * math.exp((order - 1) * (order * squared[i] / 2 - room))
            for i, p in zip(mixture.indices, mixture.probabilities, strict=True)
        ]
        assert math.fsum(terms) <= 1 + 1e-10, case
    assert solved > 3


@pytest.mark.parametrize(
    ("values", "scores"),
    [
        pytest.param([0.0, math.inf], [0.0, 1.0], id="no privacy"),
        pytest.param([math.inf, math.inf], [0.0, 1.0], id="none at all"),
        pytest.param([0.0, 1e300], [0.0, 1.0], id="overflow"),
        pytest.param([0.0, 0.0], [0.0, 1.0], id="perfect privacy"),
        pytest.param([1e-3, 1e-3], [math.nan, 1.0], id="unknown score"),
        pytest.param([1e-3, 1e-3], [math.nan, math.nan], id="no known score"),
    ],
)
def test_renyi_programs_never_draw_unknown_scores_or_unbounded_candidates(
    values: list[float], scores: list[float]
) -> None:
    curves = np.repeat(np.array(values)[:, None], DEFAULT_ORDERS.size, axis=1)
    found = best_renyi_mixture(curves, np.array(scores), 1.0, 1e-5, DEFAULT_ORDERS)
    usable = [i for i in range(2) if values[i] < 0.5 and not math.isnan(scores[i])]
    if not usable:
        assert found is None
        return
    assert found is not None
    mixture, _ = found
    shares = dict(zip(mixture.indices, mixture.probabilities, strict=True))
    assert sum(map(Fraction, mixture.probabilities)) == 1
    assert mixture.score >= max(scores[i] for i in usable)
    assert all(not math.isnan(scores[i]) for i in shares)
    # One that no divergence bounds may not be drawn at all, by this accounting.
    assert all(math.isfinite(values[i]) for i in shares)


def test_every_program_on_a_small_grid_is_solved_exactly() -> None:
    """All programs with costs and scores on a grid of a few values: every kind of tie there is."""
    grid = (0.0, 0.25, 0.5, 1.0)
    for costs, scores in itertools.product(
        itertools.product(grid, repeat=3), itertools.product((0.0, 1.0, 2.0), repeat=3)
    ):
        table, values = np.array([costs]), np.array(scores)
        require_optimal(best_mixture(table, values, 0.5), table, values, 0.5, tolerance=2e-8)
        both = np.array([costs, costs[::-1]])
        require_optimal(best_mixture(both, values, 0.5), both, values, 0.5, tolerance=2e-8)
