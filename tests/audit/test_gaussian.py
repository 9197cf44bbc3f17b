"""Limits of μ against the noncentral t distribution by quadrature, and ε and δ of Gaussians at fifty."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp, mpf

from audit.mechanisms import gaussian, scores
from dpmerge.auditing.gaussian_estimator import (
    gaussian_delta,
    gaussian_epsilon,
    mixture_epsilon,
    mu_interval,
    mu_lower,
    noncentrality,
    t_tail,
)
from dpmerge.errors import InvalidInputError

log_mus = st.floats(-6, 2)
log_deltas = st.floats(-60, -0.31)


def exact_delta(mu: float, epsilon: float) -> mpf:
    """Φ(−ε/μ + μ/2) − e^ε Φ(−ε/μ − μ/2), with digits to spare for the cancellation."""
    with mp.workdps(80 + 2 * int(epsilon / mu + mu)):
        m, e = mpf(mu), mpf(epsilon)
        return mp.ncdf(-e / m + m / 2) - mp.exp(e) * mp.ncdf(-e / m - m / 2)


# ε and δ


@pytest.mark.parametrize("mu", [1e-6, 1e-3, 0.3, 0.999, 1.0, 1.001, 3.0, 20.0, 100.0])
@pytest.mark.parametrize("where", [-3.0, -0.5, 0.0, 2.0, 8.0])
def test_delta_agrees_with_the_fifty_digit_formula(mu: float, where: float) -> None:
    """At ε = μ²/2 + where · μ, which is where δ ≈ Φ(−where)."""
    epsilon = max(0.0, mu * mu / 2 + where * mu)
    assert float(gaussian_delta(mu, epsilon)) == pytest.approx(float(exact_delta(mu, epsilon)), rel=1e-9)


@settings(max_examples=50)
@given(log_mus, log_deltas)
def test_epsilon_has_the_delta_it_was_asked_for(log_mu: float, log_delta: float) -> None:
    mu, delta = 10.0**log_mu, 10.0**log_delta
    epsilon = gaussian_epsilon(mu, delta)
    if epsilon == 0:
        assert exact_delta(mu, 0.0) <= delta * (1 + 1e-9)
    else:
        # δ falls by a factor of about e^(−a/μ) per unit of ε.
        slack = 1e-9 * max(epsilon, mu)
        assert exact_delta(mu, epsilon + slack) <= delta <= exact_delta(mu, epsilon - slack)


@pytest.mark.parametrize(("mu", "epsilon"), [(0.786, 3.32), (1.99, 9.94)])
def test_epsilon_has_its_known_values(mu: float, epsilon: float) -> None:
    assert gaussian_epsilon(mu, 1e-5) == pytest.approx(epsilon, abs=0.005)


def test_delta_and_epsilon_are_exact_at_the_ends_of_the_scale() -> None:
    assert gaussian_epsilon(0.0, 1e-5) == 0
    assert gaussian_delta(0.0, 0.0) == 0
    assert gaussian_delta(1e-12, 5.0) == 0
    assert gaussian_epsilon(1e-8, 1e-5) == 0
    assert gaussian_delta(100.0, 0.0) == 1
    assert np.all(gaussian_delta([[0.0], [1.0]], [0.0, 1.0]) == [[0, 0], gaussian_delta(1.0, [0.0, 1.0])])


@settings(max_examples=50)
@given(st.lists(st.floats(0, 6), min_size=1, max_size=5), st.integers(0, 10**6), st.floats(-12, -1))
def test_a_mixture_averages_its_deltas(mus: list[float], seed: int, log_delta: float) -> None:
    chances = np.random.default_rng(seed).dirichlet(np.ones(len(mus)))
    delta = 10**log_delta
    epsilon = mixture_epsilon(mus, chances.tolist(), delta)

    def total(at: float) -> float:
        return math.fsum(float(chance * gaussian_delta(mu, at)) for mu, chance in zip(mus, chances, strict=True))

    if epsilon > 0:
        assert total(epsilon) == pytest.approx(delta, rel=1e-6)
        # Every μ that grows makes it grow: what is a lower limit of each gives a lower bound.
        assert mixture_epsilon([mu + 0.1 for mu in mus], chances.tolist(), delta) > epsilon
    else:
        assert total(0.0) <= delta * (1 + 1e-9)


def test_a_mixture_of_one_is_that_one() -> None:
    assert mixture_epsilon([2.0, 9.0], [1.0, 0.0], 1e-5) == pytest.approx(gaussian_epsilon(2.0, 1e-5), rel=1e-12)


def test_the_tangent_of_the_trade_off_curve_meets_the_axis_at_delta() -> None:
    """Where it has the slope e^s, the tangent meets the axis at δ(s)."""
    for mu in (0.5, 1.0, 3.0):
        for false in (1e-9, 0.01, 0.3, 0.5):
            with mp.workdps(40):
                x = -mp.sqrt(2) * mp.erfinv(2 * mpf(false) - 1)
                true, score = mp.ncdf(mu - x), mu * x - mpf(mu) ** 2 / 2
                meets = true - mp.exp(score) * mpf(false)
            if score >= 0:
                assert float(gaussian_delta(mu, float(score))) == pytest.approx(float(meets), rel=1e-8)


# Limits of μ


@pytest.mark.parametrize(("freedom", "observed"), [(2, -3.0), (3, 8.0), (20, 25.0), (400, 60.0)])
def test_the_tail_of_the_noncentral_t_agrees_with_quadrature(freedom: int, observed: float) -> None:
    with mp.workdps(20):
        spread = 1 / mp.sqrt(2 * freedom)
        pieces = sorted({max(mpf(0), 1 + spread * mpf(k) / 2) for k in range(-24, 30)})

        def density(s: mpf) -> mpf:
            return s ** (freedom - 1) * mp.exp(-freedom * s * s / 2)

        whole = mp.quad(density, pieces)
        for shift in (observed - 2, 0.8 * observed + 1):
            tail = mp.quad(lambda s, nu=shift: mp.ncdf(nu - observed * s) * density(s), pieces) / whole
            assert t_tail(observed, freedom, shift) == pytest.approx(float(tail), abs=1e-10)
            assert noncentrality(observed, freedom, float(tail)) == pytest.approx(shift, abs=1e-6)


@pytest.mark.parametrize("size", [2, 5, 40])
@pytest.mark.parametrize("mu", [0.0, 1.0, 20.0])
def test_the_lower_limit_is_wrong_as_often_as_stated(size: int, mu: float) -> None:
    """Exactly: neither more often nor, as an approximation for many scores would be, less. Worlds differ in size."""
    rng = np.random.default_rng(7)
    worlds = ((rng.standard_normal(size), rng.standard_normal(5 * size) + mu) for _ in range(1000))
    wrong = sum(mu_lower(3 * absent, 3 * present, 0.8) > mu for absent, present in worlds)
    assert abs(wrong / 1000 - 0.2) <= 3.5 * math.sqrt(0.2 * 0.8 / 1000)


@settings(max_examples=50)
@given(st.integers(0, 10**6), st.floats(0.1, 5), st.sampled_from([0.5, 0.9]), st.sampled_from([0.91, 0.99]))
def test_intervals_grow_with_confidence(seed: int, mu: float, less: float, more: float) -> None:
    absent, present = scores(gaussian(mu), 20, seed)
    inner, outer = mu_interval(absent, present, less), mu_interval(absent, present, more)
    assert 0 <= outer.low <= inner.low <= inner.estimate <= inner.high <= outer.high
    # One-sided, the same limit is had with half the error.
    assert mu_lower(absent, present, (1 + more) / 2) == pytest.approx(outer.low, abs=1e-9)


@settings(max_examples=50)
@given(st.integers(0, 10**6), st.floats(0.01, 100), st.floats(-50, 50))
def test_the_scale_of_scores_does_not_matter(seed: int, scale: float, origin: float) -> None:
    absent, present = scores(gaussian(2.0), 30, seed)
    plain = mu_interval(absent, present, 0.9)
    moved = mu_interval(scale * absent + origin, scale * present + origin, 0.9)
    assert moved.low == pytest.approx(plain.low, abs=1e-7)
    assert moved.high == pytest.approx(plain.high, abs=1e-7)


def test_the_interval_of_many_scores_is_narrow_and_holds_the_truth() -> None:
    for mu in (0.5, 3.0, 80.0):
        interval = mu_interval(*scores(gaussian(mu), 200_000, 1), 0.95)
        assert interval.low < mu < interval.high
        # Of the means 1.96 · √(2/n), of the deviation 1.96 · μ/√(4n).
        assert interval.high - interval.low == pytest.approx(3.92 * math.sqrt((2 + mu * mu / 4) / 200_000), rel=0.02)


def test_scores_that_are_all_equal_show_nothing() -> None:
    interval = mu_interval(np.zeros(5), np.zeros(5), 0.95)
    assert (interval.estimate, interval.low) == (0, 0)
    assert mu_lower(np.zeros(5), np.zeros(5), 0.95) == 0


def test_scores_the_wrong_way_round_show_nothing() -> None:
    absent, present = scores(gaussian(3.0), 100, 1)
    assert mu_lower(present, absent, 0.95) == 0


def test_the_gaussian_bound_of_another_auditor_shows_much_of_worlds_that_are_alike() -> None:
    """It takes the absolute value of a distance between two upper limits: what is uncertain then looks far apart.

    So it shows much of two worlds that are alike, and elsewhere more as the confidence grows. Ours does neither.
    """
    others = json.loads((Path(__file__).parents[1] / "data" / "jax_privacy_values.json").read_text())["samples"]

    def bounds(name: str) -> tuple[list[float], list[float]]:
        """Theirs and ours, at 95 % and at 99 %."""
        sample = others[name]
        theirs = [case["gdp"] for case in sample["cases"] if case["delta"] == 1e-5]
        lows = (mu_lower(sample["absent"], sample["present"], confidence) for confidence in (0.95, 0.99))
        return theirs, [gaussian_epsilon(low, 1e-5) for low in lows]

    theirs, ours = bounds("alike")
    assert min(theirs) > 3
    assert ours == [0, 0]
    theirs, ours = bounds("near")
    assert theirs[0] < theirs[1]
    assert ours[0] > ours[1] > 2


# What is refused


@pytest.mark.parametrize(
    ("absent", "present", "field"),
    [
        ([1.0], [1.0, 2.0], "absent"),
        ([1.0, 2.0], [[1.0, 2.0]], "present"),
        ([1.0, math.inf], [1.0, 2.0], "absent"),
        ([1.0, 2.0], [math.nan, 2.0], "present"),
        ([1.0, 1.0], [2.0, 2.0], "scores"),
    ],
)
def test_invalid_scores_are_refused_by_the_name_of_the_field(
    absent: list[float], present: list[float], field: str
) -> None:
    with pytest.raises(InvalidInputError) as error:
        mu_interval(absent, present, 0.95)
    assert error.value.field == field


@pytest.mark.parametrize("confidence", [0.0, 1.0, math.nan])
def test_an_invalid_confidence_is_refused(confidence: float) -> None:
    with pytest.raises(InvalidInputError) as error:
        mu_lower([1.0, 2.0], [1.0, 2.0], confidence)
    assert error.value.field == "confidence"


@pytest.mark.parametrize(
    ("mus", "chances", "delta", "field"),
    [
        ([1.0], [1.0], 0.0, "delta"),
        ([1.0], [1.0], 1.0, "delta"),
        ([-1.0], [1.0], 1e-5, "mus"),
        ([math.inf], [1.0], 1e-5, "mus"),
        ([1.0, 2.0], [1.0], 1e-5, "probabilities"),
        ([1.0, 2.0], [0.7, 0.7], 1e-5, "probabilities"),
        ([1.0, 2.0], [1.5, -0.5], 1e-5, "probabilities"),
    ],
)
def test_invalid_mixtures_are_refused(mus: list[float], chances: list[float], delta: float, field: str) -> None:
    with pytest.raises(InvalidInputError) as error:
        mixture_epsilon(mus, chances, delta)
    assert error.value.field == field


@pytest.mark.parametrize(
    ("mu", "epsilon", "field"), [(-1.0, 1.0, "mu"), (1.0, -1.0, "epsilon"), (1.0, math.inf, "epsilon")]
)
def test_invalid_deltas_are_refused(mu: float, epsilon: float, field: str) -> None:
    with pytest.raises(InvalidInputError) as error:
        gaussian_delta(mu, epsilon)
    assert error.value.field == field


def test_scores_that_are_very_far_apart_have_a_finite_lower_limit() -> None:
    """Of μ = 10⁶ nobody needs more than that it is above 9,000."""
    rng = np.random.default_rng(0)
    absent, present = rng.normal(size=1000), rng.normal(size=1000) + 1e6
    interval = mu_interval(absent, present, 0.95)
    assert 9_000 < mu_lower(absent, present, 0.95) < 1e4
    assert 9_000 < interval.low < 1e4
    assert interval.estimate > 9e5
    assert interval.high == np.inf
    assert gaussian_epsilon(interval.low, 1e-5) > 1e7
