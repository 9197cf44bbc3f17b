"""Closed-form Gaussian profiles against 50 digits, over the whole range they promise."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpmerge.accounting import GaussianProfile, compose, gaussian_delta, gaussian_epsilon, largest_mu
from dpmerge.errors import InvalidInputError
from oracle import gaussian_mp

log_mus = st.floats(-6, 3)
log_deltas = st.one_of(st.floats(-300, np.log10(0.5)), st.floats(-14, np.log10(0.5)))


@given(log_mus, log_deltas)
def test_epsilon_is_accurate_and_never_too_small(log_mu: float, log_delta: float) -> None:
    mu, delta = 10.0**log_mu, 10.0**log_delta
    epsilon = GaussianProfile(mu).epsilon(delta)
    assert gaussian_mp.delta(mu, epsilon) <= mpmath.mpf(delta), "certified epsilon below the true one"
    assert abs(epsilon - gaussian_mp.epsilon(mu, delta)) <= 1e-9 * max(epsilon, mu)


@given(log_mus, log_deltas)
def test_delta_is_accurate_and_never_too_small(log_mu: float, log_delta: float) -> None:
    mu = 10.0**log_mu
    epsilon = float(gaussian_epsilon(mu, 10.0**log_delta))
    truth = gaussian_mp.delta(mu, epsilon)
    assert abs(gaussian_delta(mu, epsilon) / truth - 1) <= 1e-9
    assert GaussianProfile(mu).delta(epsilon) >= truth


@given(log_mus, st.floats(-40, 40))
def test_delta_is_accurate_at_negative_and_large_epsilon(log_mu: float, epsilon: float) -> None:
    mu = 10.0**log_mu
    truth = float(gaussian_mp.delta(mu, epsilon))
    computed = float(gaussian_delta(mu, epsilon))
    assert computed == pytest.approx(truth, rel=1e-9, abs=1e-300)


@given(st.lists(st.floats(0, 30), min_size=1, max_size=6))
def test_composed_gaussians_are_one_gaussian(mus: list[float]) -> None:
    together = compose([GaussianProfile(mu) for mu in mus])
    assert isinstance(together, GaussianProfile)
    assert together.mu == pytest.approx(np.sqrt(np.sum(np.square(mus))), rel=1e-12)


@given(st.floats(1e-4, 50), st.floats(-12, -0.5))
def test_largest_mu_meets_the_target_and_a_little_more_does_not(epsilon: float, log_delta: float) -> None:
    delta = 10.0**log_delta
    mu = largest_mu(epsilon, delta)
    assert gaussian_mp.delta(mu, epsilon) <= delta
    assert gaussian_mp.delta(mu * (1 + 1e-8), epsilon) > delta


def test_many_at_once_equal_one_by_one() -> None:
    """The table that starts Newton's method for large arrays changes nothing."""
    mus = np.geomspace(1e-6, 1e3, 10_000)
    many = gaussian_epsilon(mus, 1e-5)
    singles = np.array([float(gaussian_epsilon(mu, 1e-5)) for mu in mus[::97]])
    np.testing.assert_allclose(many[::97], singles, rtol=1e-10, atol=1e-18)
    assert np.all(gaussian_delta(mus, many) <= 1e-5)


def test_epsilons_of_arrays_are_broadcast() -> None:
    epsilons = gaussian_epsilon([[0.5], [1.0]], [1e-5, 1e-6, 1e-7])
    assert epsilons.shape == (2, 3)
    assert epsilons[1, 0] == pytest.approx(GaussianProfile(1.0).epsilon(1e-5), rel=1e-12)
    assert gaussian_epsilon(np.zeros((0,)), 1e-5).shape == (0,)


def test_zero_infinite_and_enormous_mus_have_exact_answers() -> None:
    assert GaussianProfile(0.0).epsilon(1e-300) == 0
    assert GaussianProfile(0.0).delta(0.0) == 0
    assert GaussianProfile(np.inf).epsilon(0.5) == np.inf
    assert GaussianProfile(np.inf).delta(100.0) == 1
    assert GaussianProfile(1e200).epsilon(1e-5) == np.inf
    assert GaussianProfile(1.0).epsilon(0.9) == 0
    assert GaussianProfile(1.0).delta(np.inf) == 0


@given(st.floats(-3, 2), st.floats(-12, -2))
def test_renyi_conversion_agrees_with_fifty_digits(log_mu: float, log_delta: float) -> None:
    from dpmerge.accounting import DEFAULT_ORDERS, RenyiProfile

    mu, delta = 10.0**log_mu, 10.0**log_delta
    curve = RenyiProfile.of(GaussianProfile(mu))
    for conversion in ("classic", "improved"):
        truth = float(gaussian_mp.rdp_epsilon(mu, delta, DEFAULT_ORDERS.tolist(), conversion))
        assert curve.converted(conversion).epsilon(delta) == pytest.approx(truth, rel=1e-10, abs=1e-14)


@pytest.mark.parametrize("mu", [-1.0, float("nan"), True, "1", None])
def test_a_mu_outside_its_domain_is_refused(mu: float) -> None:
    with pytest.raises(InvalidInputError, match="mu: got .*; accepted: a number ≥ 0"):
        GaussianProfile(mu)
