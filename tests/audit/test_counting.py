"""Binomial limits against exact sums, and bounds from rates against the definition of differential privacy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mp, mpf

from dpmerge.auditing.counting_estimator import clopper_pearson, delta_from_rates, epsilon_from_rates
from dpmerge.errors import InvalidInputError

confidences = st.floats(0.5, 0.9999)
rates = st.floats(0, 1)


@st.composite
def counts(draw: st.DrawFn) -> tuple[int, int]:
    trials = draw(st.integers(1, 5000))
    return draw(st.integers(0, trials)), trials


def at_least(hits: int, trials: int, rate: float) -> mpf:
    """P[Binomial ≥ hits], summed at fifty digits over the side that has fewer terms."""
    with mp.workdps(50):
        p = mpf(rate)
        below = hits <= trials // 2
        terms = range(hits) if below else range(hits, trials + 1)
        total = mp.fsum(mp.binomial(trials, k) * p**k * (1 - p) ** (trials - k) for k in terms)
        return 1 - total if below else total


@pytest.mark.parametrize(("hits", "trials"), [(1, 1), (3, 100), (1, 20_000), (50, 100), (97, 100), (400, 400)])
@pytest.mark.parametrize("confidence", [0.5, 0.975, 0.999999])
def test_limits_are_where_the_tail_is_the_error(hits: int, trials: int, confidence: float) -> None:
    low, _ = clopper_pearson(hits, trials, confidence)
    assert float(at_least(hits, trials, float(low))) == pytest.approx(1 - confidence, rel=1e-8)
    _, high = clopper_pearson(trials - hits, trials, confidence)
    assert 1 - float(high) == pytest.approx(float(low), rel=1e-9)


@pytest.mark.parametrize("trials", [1, 2, 7, 40])
@pytest.mark.parametrize("confidence", [0.6, 0.95])
def test_coverage_is_exact_for_few_trials(trials: int, confidence: float) -> None:
    """Over all outcomes: a limit is wrong with at most the stated probability, whatever the rate."""
    hits = np.arange(trials + 1)
    low, high = clopper_pearson(hits, trials, confidence)
    for rate in np.linspace(0.001, 0.999, 97):
        chance = np.array([math.comb(trials, k) * rate**k * (1 - rate) ** (trials - k) for k in hits])
        assert chance[low > rate].sum() <= 1 - confidence + 1e-12
        assert chance[high < rate].sum() <= 1 - confidence + 1e-12


@pytest.mark.parametrize("trials", [1, 10, 10**6, 10**9])
def test_no_hits_and_only_hits_have_the_closed_form_limits(trials: int) -> None:
    low, high = clopper_pearson([0, trials], trials, 0.95)
    assert low[0] == 0
    assert high[1] == 1
    assert high[0] == pytest.approx(-math.expm1(math.log(0.05) / trials), rel=1e-9)
    assert 1 - low[1] == pytest.approx(high[0], rel=1e-6)
    assert 0 < high[0] < 1
    assert 0 < low[1] < 1


@given(counts(), confidences, confidences)
def test_limits_grow_with_hits_and_spread_with_confidence(pair: tuple[int, int], one: float, other: float) -> None:
    hits, trials = pair
    low, high = clopper_pearson([hits, min(hits + 1, trials)], trials, one)
    assert low[0] <= low[1]
    assert high[0] <= high[1]
    less, more = sorted((one, other))
    inner, outer = clopper_pearson(hits, trials, less), clopper_pearson(hits, trials, more)
    assert outer[0] <= inner[0] <= hits / trials <= inner[1] <= outer[1]


@given(rates, rates, st.floats(0, 0.5))
def test_epsilon_is_the_least_that_allows_the_rates(true: float, false: float, delta: float) -> None:
    """Both inequalities hold at the bound, and one of them fails just below it."""
    epsilon = float(epsilon_from_rates(true, false, delta))

    def allowed(at: float) -> bool:
        slack = 1e-9 * min(1.0, math.exp(at))
        there = true <= math.exp(at) * false + delta + slack
        return there and 1 - false <= math.exp(at) * (1 - true) + delta + slack

    assert epsilon >= 0
    if math.isfinite(epsilon) and epsilon < 600:
        assert allowed(epsilon)
        if epsilon > 1e-3 and min(false, 1 - true) > 1e-4:
            assert not allowed(epsilon - 1e-3)


@given(rates, rates, st.floats(0, 30))
def test_delta_is_the_least_that_allows_the_rates(true: float, false: float, epsilon: float) -> None:
    delta = float(delta_from_rates(true, false, epsilon))
    factor = math.exp(epsilon)
    gaps = true - factor * false, (1 - false) - factor * (1 - true)
    assert delta == pytest.approx(max(0.0, *gaps), abs=1e-12)
    assert 0 <= delta <= 1


@given(rates, rates, st.floats(1e-3, 5))
def test_epsilon_at_the_delta_shown_at_an_epsilon_is_that_epsilon(true: float, false: float, epsilon: float) -> None:
    """The ε at the δ that the rates show at ε is ε again."""
    delta = float(delta_from_rates(true, false, epsilon))
    if 1e-6 < delta < 1 and min(false, 1 - true) > 1e-6:
        assert float(epsilon_from_rates(true, false, delta)) == pytest.approx(epsilon, rel=1e-6)


def test_rates_of_either_direction_show_epsilon() -> None:
    assert float(epsilon_from_rates(0.5, 0.001, 0.0)) == pytest.approx(math.log(500))
    assert float(epsilon_from_rates(0.999, 0.5, 0.0)) == pytest.approx(math.log(500))
    assert float(delta_from_rates(0.999, 0.5, 1.0)) == pytest.approx(0.5 - math.e * 0.001)


def test_rates_that_are_alike_or_small_show_nothing() -> None:
    true, false = [0.0, 0.5, 1.0, 0.2, 1e-6], [0.0, 0.5, 1.0, 0.7, 1e-9]
    assert np.all(epsilon_from_rates(true, false, 1e-5) == 0)
    assert np.all(delta_from_rates(true, false, 7.0) < 1e-6)


def test_an_epsilon_beyond_doubles_gives_no_nan() -> None:
    assert float(delta_from_rates(0.9, 0.1, 1e4)) == 0
    assert float(delta_from_rates(0.9, 0.0, 1e4)) == pytest.approx(0.9)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ((5, 4, 0.95), "hits"),
        ((-1, 4, 0.95), "hits"),
        ((math.nan, 4, 0.95), "hits"),
        ((0, 0, 0.95), "trials"),
        ((1, 4, 1.0), "confidence"),
        ((1, 4, 0.0), "confidence"),
        ((1, 4, math.nan), "confidence"),
    ],
)
def test_invalid_counts_are_refused_by_the_name_of_the_field(arguments: tuple[float, int, float], field: str) -> None:
    with pytest.raises(InvalidInputError) as error:
        clopper_pearson(*arguments)
    assert error.value.field == field


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ((1.5, 0.1, 0.0), "true_low"),
        ((math.nan, 0.1, 0.0), "true_low"),
        ((0.5, -0.1, 0.0), "false_high"),
        ((0.5, 0.1, 1.0), "delta"),
        ((0.5, 0.1, -1e-9), "delta"),
    ],
)
def test_invalid_rates_are_refused_by_the_name_of_the_field(arguments: tuple[float, float, float], field: str) -> None:
    with pytest.raises(InvalidInputError) as error:
        epsilon_from_rates(*arguments)
    assert error.value.field == field


@pytest.mark.parametrize("epsilon", [-0.1, math.inf, math.nan])
def test_an_invalid_epsilon_is_refused(epsilon: float) -> None:
    with pytest.raises(InvalidInputError) as error:
        delta_from_rates(0.5, 0.1, epsilon)
    assert error.value.field == "epsilon"
