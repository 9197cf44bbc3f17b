"""Joint release across kinds of profiles, the textbook baselines, imported guarantees."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpmerge.accounting import (
    DiscreteProfile,
    GaussianProfile,
    LossDistributionProfile,
    RenyiProfile,
    SelectionProfile,
    advanced_composition,
    basic_composition,
    compose,
    gaussian_delta,
    no_free_lunch,
    optimal_composition,
)
from dpmerge.accounting.discrete import MOST_ATOMS
from dpmerge.accounting.step_mechanisms import PoissonStep
from dpmerge.errors import InvalidInputError, NoGuaranteeError
from oracle import randomized_response

pairs = st.lists(st.tuples(st.floats(0.01, 2), st.sampled_from([0.0, 1e-8, 1e-6, 1e-4])), min_size=1, max_size=7)


@given(pairs, st.sampled_from([1e-3, 1e-5]))
def test_optimal_composition_of_unequal_pairs_agrees_with_enumeration(
    chosen: list[tuple[float, float]], delta: float
) -> None:
    truth = randomized_response.optimal_epsilon(delta, chosen)
    epsilon = optimal_composition(chosen, delta)
    assert epsilon >= truth * (1 - 1e-9)
    assert epsilon == pytest.approx(truth, rel=1e-7, abs=1e-9)


@given(st.integers(1, 30), st.floats(0.01, 0.5))
def test_optimal_composition_of_equal_pairs_is_the_published_formula(count: int, epsilon: float) -> None:
    profile = DiscreteProfile.from_points([(epsilon, 1e-6)])
    together = compose([profile] * count)
    for i in range(count // 2 + 1):
        expected = randomized_response.homogeneous_delta(i, count, epsilon, 1e-6)
        assert together.delta((count - 2 * i) * epsilon) == pytest.approx(expected, rel=1e-8)


@given(pairs, st.sampled_from([1e-3, 1e-5]))
def test_optimal_composition_never_costs_more_than_basic(chosen: list[tuple[float, float]], delta: float) -> None:
    epsilon, total = basic_composition(chosen)
    if total <= delta:
        assert optimal_composition(chosen, delta) <= epsilon * (1 + 1e-9)


def test_many_unequal_pairs_are_rounded_up_not_down() -> None:
    """2^18 distinct sums do not fit: the result is above the exact one, and not far."""
    rng = np.random.default_rng(0)
    chosen = [(float(e), 1e-8) for e in rng.uniform(0.05, 0.3, 18)]
    exact = randomized_response.optimal_epsilon(1e-5, chosen)
    rounded = optimal_composition(chosen, 1e-5)
    together = compose([DiscreteProfile.from_points([pair]) for pair in chosen])
    assert isinstance(together, DiscreteProfile)
    assert together.losses.size <= MOST_ATOMS
    assert exact * (1 - 1e-9) <= rounded <= exact * 1.01


def test_advanced_and_basic_composition_are_the_textbook_formulas() -> None:
    assert advanced_composition(0.2, 1e-6, 20, 1e-6) == pytest.approx(randomized_response.advanced(0.2, 1e-6, 20, 1e-6))
    assert basic_composition([(0.1, 1e-6), (0.2, 0.0)]) == pytest.approx((0.3, 1e-6))


def test_composing_nothing_costs_nothing() -> None:
    assert compose([]).epsilon(1e-5) == 0
    assert optimal_composition([], 1e-5) == 0
    assert basic_composition([]) == (0, 0)


def test_enormous_mus_do_not_overflow() -> None:
    assert compose([GaussianProfile(1e200), GaussianProfile(1e200)]).epsilon(1e-5) == np.inf
    assert np.all(np.isinf(GaussianProfile(1e200).renyi_divergence(np.array([2.0]))))


def test_composing_gaussian_profiles_costs_no_more_than_composing_their_pairs() -> None:
    """The paper's comparison: N identical Gaussian mechanisms, profiles against what their pairs give."""
    for count in (2, 5, 20):
        single = GaussianProfile(0.3)
        delta = 1e-6
        epsilon = single.epsilon(delta)
        total = 2 * count * delta
        exact = compose([single] * count).epsilon(total)
        assert exact <= optimal_composition([(epsilon, delta)] * count, total)
        assert exact <= advanced_composition(epsilon, delta, count, count * delta)[0]
        assert (
            RenyiProfile.of(compose([single] * count)).epsilon(total)
            <= advanced_composition(epsilon, delta, count, count * delta)[0]
        )


@settings(max_examples=50)
@given(st.floats(0.1, 3), st.lists(st.floats(0.0, 6), min_size=1, max_size=12))
def test_a_table_bounds_the_profile_it_was_read_from(mu: float, points: list[float]) -> None:
    exact = GaussianProfile(mu)
    table = DiscreteProfile.from_points([(e, exact.delta(e)) for e in points])
    grid = np.linspace(-4, 8, 241)
    assert np.all(table.deltas(grid)[0] >= gaussian_delta(mu, grid) * (1 - 1e-9) - 1e-15)
    for epsilon in points:
        assert table.delta(epsilon) == pytest.approx(exact.delta(epsilon), rel=1e-6, abs=1e-14)
    assert table.probabilities.sum() + table.infinity == pytest.approx(1.0, abs=1e-12)


def test_a_fine_table_costs_hardly_more_than_the_profile() -> None:
    exact = GaussianProfile(1.0)
    table = DiscreteProfile.from_points([(e, exact.delta(e)) for e in np.linspace(0, 8, 400)])
    assert exact.epsilon(1e-5) <= table.epsilon(1e-5) <= exact.epsilon(1e-5) + 1e-3
    doubled = compose([table, table]).epsilon(1e-5)
    assert GaussianProfile(np.sqrt(2)).epsilon(1e-5) <= doubled <= GaussianProfile(np.sqrt(2)).epsilon(1e-5) + 5e-3


def test_a_point_at_a_tiny_epsilon_divides_by_no_zero() -> None:
    """e^(−ε) rounds to 1 there, and the slope beside it was divided by zero."""
    profile = DiscreteProfile.from_points([(1.0, 0.0), (1e-60, 1e-160)])
    assert 1e-160 <= profile.delta(0.0) < 1e-29
    assert profile.delta(0.5) <= 1e-160


def test_of_points_that_contradict_each_other_the_strongest_counts() -> None:
    table = DiscreteProfile.from_points([(1.0, 1e-3), (1.0, 1e-4), (2.0, 1e-2), (0.5, 1e-5)])
    alone = DiscreteProfile.from_points([(0.5, 1e-5)])
    for epsilon in (0.2, 0.5, 1.0, 2.0, 5.0):
        assert table.delta(epsilon) == pytest.approx(alone.delta(epsilon), rel=1e-9)


def test_a_large_epsilon_does_not_overflow() -> None:
    profile = DiscreteProfile.from_points([(900.0, 1e-6)])
    assert profile.delta(899.0) < 1
    assert profile.epsilon(1e-5) == pytest.approx(900.0, rel=1e-6)
    assert profile.epsilon(1e-7) == np.inf


def test_a_pair_composes_exactly_with_a_gaussian() -> None:
    """δ(ε) = δ₀ + (1 − δ₀)·(weighted Gaussian profiles at ε ∓ ε₀): the definition written out."""
    together = compose([GaussianProfile(0.8), DiscreteProfile.from_points([(0.5, 1e-6)])])
    up = np.exp(0.5) / (1 + np.exp(0.5))
    for epsilon in (0.0, 0.3, 1.0, 3.0):
        expected = 1e-6 + (1 - 1e-6) * (
            up * gaussian_delta(0.8, epsilon - 0.5) + (1 - up) * gaussian_delta(0.8, epsilon + 0.5)
        )
        assert together.delta(epsilon) == pytest.approx(float(expected), rel=1e-9)


def test_composing_a_selection_composes_each_outcome() -> None:
    selection = SelectionProfile((GaussianProfile(3.0), GaussianProfile(0.3)), (0.01, 0.99))
    together = compose([GaussianProfile(4.0), selection])
    assert isinstance(together, SelectionProfile)
    assert together.members == (GaussianProfile(5.0), GaussianProfile(np.hypot(4.0, 0.3)))
    twice = compose([selection, selection])
    assert twice.epsilon(1e-5) >= selection.epsilon(1e-5)


def test_composed_renyi_curves_add_up() -> None:
    curve = RenyiProfile.of(GaussianProfile(1.0))
    together = compose([curve, GaussianProfile(2.0), curve])
    assert isinstance(together, RenyiProfile)
    np.testing.assert_allclose(together.values, together.orders * 6 / 2)


def test_a_renyi_curve_with_replace_one_sampling_is_refused() -> None:
    sampled = LossDistributionProfile.of({PoissonStep(1.0, 0.1, True): 2})
    with pytest.raises(NoGuaranteeError, match="Rényi curve only"):
        compose([RenyiProfile.of(GaussianProfile(1.0)), sampled])


def test_a_curve_between_its_orders_takes_the_next_larger() -> None:
    curve = RenyiProfile(np.array([2.0, 4.0, 8.0]), np.array([0.2, 0.5, 1.0]))
    np.testing.assert_array_equal(
        curve.renyi_divergence(np.array([1.5, 2.0, 3.0, 8.0, 9.0])), [0.2, 0.2, 0.5, 1.0, np.inf]
    )


BAD_CURVES = {
    "negative value": ([2.0, 3.0], [0.1, -1e-12]),
    "NaN value": ([2.0, 3.0], [0.1, float("nan")]),
    "too few values": ([2.0, 3.0], [0.1]),
}


@pytest.mark.parametrize("name", BAD_CURVES)
def test_bad_curves_are_refused(name: str) -> None:
    orders, values = BAD_CURVES[name]
    with pytest.raises(InvalidInputError, match="values: got .*; accepted: 2 numbers ≥ 0, one for each order"):
        RenyiProfile(np.array(orders), np.array(values))


BAD_ORDERS = {
    "order one": [1.0, 2.0],
    "descending": [3.0, 2.0],
    "repeated": [2.0, 2.0],
    "infinite": [2.0, float("inf")],
    "enormous": [2.0, 1e31],
    "none": [],
}


@pytest.mark.parametrize("name", BAD_ORDERS)
def test_bad_orders_are_refused(name: str) -> None:
    with pytest.raises(InvalidInputError, match="orders: got .*strictly increasing list of numbers > 1"):
        RenyiProfile.of(GaussianProfile(1.0), BAD_ORDERS[name])


def test_an_unknown_conversion_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="conversion: got 'best'; accepted: classic or improved"):
        RenyiProfile.of(GaussianProfile(1.0)).converted("best")  # type: ignore[arg-type]


BAD_POINTS = {
    "negative epsilon": [(-1.0, 1e-5)],
    "NaN delta": [(1.0, float("nan"))],
    "delta above one": [(1.0, 1.5)],
    "infinite epsilon": [(float("inf"), 1e-5)],
    "none": [],
}


@pytest.mark.parametrize("name", BAD_POINTS)
def test_bad_points_are_refused(name: str) -> None:
    with pytest.raises(InvalidInputError, match="points.*accepted"):
        DiscreteProfile.from_points(BAD_POINTS[name])


def test_the_no_free_lunch_limit_is_the_formula_and_refuses_a_target_above_the_other() -> None:
    for target, other, delta in ((0.5, 4.0, 1e-5), (1.0, 8.0, 0.0), (2.0, 3.0, 1e-6)):
        expected = randomized_response.total_variation_limit(target, 1e-5, other, delta)
        computed = no_free_lunch(epsilon_target=target, epsilon_other=other, delta=delta, delta_target=1e-5)
        assert computed == pytest.approx(expected, rel=1e-12)
    assert no_free_lunch(epsilon_target=1.0, epsilon_other=5000.0, delta=0.0, delta_target=0.0) == pytest.approx(
        1 - np.exp(-1)
    )
    with pytest.raises(InvalidInputError, match="epsilon_target: got 4; accepted: a number below epsilon_other = 3"):
        no_free_lunch(epsilon_target=4, epsilon_other=3, delta=0.0, delta_target=1e-5)


@pytest.mark.parametrize(("epsilon", "delta"), [(1.2, 1e-5), (0.0, 1e-5), (3.0, 1e-6), (0.7, 0.1)])
def test_a_known_pair_holds_at_its_own_delta(epsilon: float, delta: float) -> None:
    profile = DiscreteProfile.from_points([(epsilon, delta)])
    assert profile.epsilon(delta) == epsilon
    assert profile.epsilon(delta * (1 - 1e-9)) == np.inf


def test_two_known_pairs_together_never_round_below_the_sum_of_their_deltas() -> None:
    profile = DiscreteProfile.from_points([(1.0, 0.1)])
    both = compose([profile, profile])
    assert both.epsilon(0.19 * (1 - 1e-9)) == np.inf
    assert 1.9 < both.epsilon(0.19 * (1 + 1e-9)) < 2.1
