"""The oracles against reference numbers, closed forms and each other."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from mpmath import mp, mpf
from scipy.integrate import trapezoid
from scipy.stats import norm

from oracle import (
    affine_chains,
    gaussian_mp,
    hidden_state_qp,
    logistic_steps,
    mixture_quadrature,
    null_record,
    randomized_response,
    renyi_quadrature,
    tilted_convolution,
    trajectory_convolution,
)
from oracle.hidden_state_taut import exact_mu

ORDERS = [*(x / 10 for x in range(11, 111)), *range(12, 64), 128, 256, 512, 1024]
DECAYING = [2.0, 4.0, *(4.0 - 4.0 * i / 18 for i in range(18))]
CONSTANT = [4.0] * 20


# Gaussian differential privacy

MU = (20 * (2 / 32) ** 2) ** 0.5, (20 * (2 / 64) ** 2) ** 0.5


@pytest.mark.parametrize(
    ("mu", "delta", "eps", "classic", "improved"),
    [
        (MU[0], 1e-5, 1.0470536090917477, 1.3803559097041311, 1.1431505950444587),
        (MU[1], 1e-5, 0.49059145328175424, 0.6804123298520656, 0.5387819598177005),
        (5**0.5 / 1.5, 1e-6, 7.749856847826679, 8.947288730846935, 8.257599022115773),
        (4.0, 1e-5, 24.381610883113673, 27.194104554141855, 25.930920950267982),
    ],
)
def test_the_epsilon_of_a_gaussian_has_its_known_values(
    mu: float, delta: float, eps: float, classic: float, improved: float
) -> None:
    assert float(gaussian_mp.epsilon(mu, delta)) == pytest.approx(eps, rel=1e-13)
    assert float(gaussian_mp.rdp_epsilon(mu, delta, ORDERS, "classic")) == pytest.approx(classic, rel=1e-13)
    assert float(gaussian_mp.rdp_epsilon(mu, delta, ORDERS, "improved")) == pytest.approx(improved, rel=1e-13)


def test_the_delta_of_a_gaussian_has_its_known_values() -> None:
    values = {0.25: 0.0023205932919801732, 0.5: 7.666116173706196e-06, 2.0: 2.45571543704966e-48}
    for eps, delta in values.items():
        assert float(gaussian_mp.delta(MU[1], eps)) == pytest.approx(delta, rel=1e-12)
    assert gaussian_mp.delta(0, -1) == pytest.approx(1 - math.exp(-1))
    assert (gaussian_mp.epsilon(0, 1e-9), gaussian_mp.epsilon(math.inf, 0.5)) == (0, mp.inf)


@pytest.mark.parametrize("mu", [1e-6, 1e-3, 1.0, 40.0, 1e3])
@pytest.mark.parametrize("delta", ["1e-300", "1e-40", "1e-8"])
def test_gaussian_epsilon_inverts_delta_to_fifty_digits(mu: float, delta: str) -> None:
    eps = gaussian_mp.epsilon(mu, delta)
    with mp.workdps(60):
        assert abs(gaussian_mp.delta(mu, eps) / mpf(delta) - 1) < mpf(10) ** -50
        # delta(-eps) = 1 - e^-eps + e^-eps delta(eps), because the two directions agree
        mirrored = -mp.expm1(-eps) + mp.exp(-eps) * mpf(delta)
        assert abs(gaussian_mp.delta(mu, -eps) / mirrored - 1) < mpf(10) ** -50


@pytest.mark.parametrize(
    ("probabilities", "eps", "classic", "improved"),
    [
        ((0.6, 0.4), 1.0113878966687935, 1.3503123561551673, 1.1091348230612232),
        ((0.02, 0.98), 0.740837767820213, 1.134553226948725, 0.8708005215236175),
        ((1, 0), 1.0470536090917477, 1.3803559097041311, 1.1431505950444587),
    ],
)
def test_the_epsilon_of_random_selection_has_its_known_values(
    probabilities: tuple, eps: float, classic: float, improved: float
) -> None:
    assert float(gaussian_mp.rs_epsilon(MU, probabilities, 1e-5)) == pytest.approx(eps, rel=1e-13)
    for conversion, expected in (("classic", classic), ("improved", improved)):
        found = gaussian_mp.rs_rdp_epsilon(MU, probabilities, 1e-5, ORDERS, conversion)
        assert float(found) == pytest.approx(expected, rel=1e-13)


def test_random_selection_with_a_non_private_candidate_is_finite_only_below_delta() -> None:
    assert gaussian_mp.rs_epsilon((1, math.inf), (0.9, 0.1), 1e-5) == mp.inf
    eps = gaussian_mp.rs_epsilon((1, math.inf), (1 - 1e-6, 1e-6), 1e-5)
    assert float(gaussian_mp.rs_delta((1, math.inf), (1 - 1e-6, 1e-6), eps)) == pytest.approx(1e-5, rel=1e-14)


# The true mixture of random selection


def test_secret_index_beats_linear_combination_for_a_scalar() -> None:
    example = ((1, 2), (0.5, 0.5), 0.1)
    assert mixture_quadrature.true_epsilon(1e-5, *example) == pytest.approx(0.150, abs=5e-4)
    assert mixture_quadrature.equal_variance_epsilon(1e-5, *example) == pytest.approx(0.207, abs=5e-4)
    assert mixture_quadrature.public_index_epsilon(1e-5, *example) == pytest.approx(0.3222, abs=5e-4)


@pytest.mark.parametrize("eps", [-0.3, 0.0, 0.15, 1.0])
@pytest.mark.parametrize("example", [((1, 2), (0.5, 0.5), 0.1), ((0.1, 3, 1), (0.3, 0.3, 0.4), 0.7)])
def test_the_divergence_of_a_mixture_agrees_with_quadrature_in_both_directions(eps: float, example: tuple) -> None:
    exact = mixture_quadrature.hockey_stick(eps, *example)
    assert exact == pytest.approx(mixture_quadrature.hockey_stick(eps, *example, "backward"), rel=1e-12)
    assert exact == pytest.approx(mixture_quadrature.hockey_stick_by_quadrature(eps, *example), rel=1e-9)
    assert exact <= mixture_quadrature.public_index_delta(eps, *example) * (1 + 1e-12)


def test_mixture_of_equals_is_gaussian() -> None:
    found = mixture_quadrature.hockey_stick(0.4, (2, 2), (0.3, 0.7), 1.0)
    assert found == pytest.approx(float(gaussian_mp.delta(0.5, 0.4)), rel=1e-12)


# Affine chains


def test_unequal_contractions_cost_more_than_the_merged_trajectory_says() -> None:
    example = affine_chains.unequal_contractions()
    assert example.truth == pytest.approx(4.40, abs=0.005)
    assert example.merged_trajectory == pytest.approx(1.99, abs=0.005)
    assert example.joint_release == pytest.approx(10.05, abs=0.005)


@pytest.mark.parametrize(
    ("records", "noises", "true"),
    [(3, (10, 0.5), 0.778), (101, (10, 0.5), 2.942), (301, (10, 0.5), 3.863), (1001, (10, 0.25), 11.095)],
)
def test_two_steps_of_logistic_regression_cost_the_same_at_two_resolutions(
    records: int, noises: tuple, true: float
) -> None:
    """At two resolutions; and clipping the total makes every row 0.50."""
    for total, expected in ((False, true), (True, 0.498)):
        coarse, fine = (
            logistic_steps.epsilon(
                *logistic_steps.flipped_label(records, noises, total=total, width=width, points=points), 1e-5
            )
            for width, points in ((0.5, 20_000), (0.25, 40_000))
        )
        assert fine == pytest.approx(coarse, abs=1e-3)
        assert fine == pytest.approx(expected, abs=3e-3)


def test_without_a_second_step_logistic_regression_is_gaussian() -> None:
    """Feature zero: nobody pushes, and the law is that of the noise; one record alone, its gradient always clipped."""
    law = logistic_steps.merged_law(
        labels=[1], feature=0.0, noises=(3.0,), weights=(1.0,), total=False, width=0.1, points=4000
    )
    place = (np.arange(len(law)) - len(law) // 2) * 0.1
    assert law.sum() == pytest.approx(1)
    assert law @ place == pytest.approx(0, abs=1e-9)
    assert law @ place**2 == pytest.approx(2 * 3.0**2, rel=1e-3)


def test_scalar_chains_agree_with_covariance_algebra() -> None:
    rng = np.random.default_rng(3)
    factors, rate, sigma = (rng.uniform(0.4, 1.4, (2, 6)) for _ in range(3))
    chains = [affine_chains.Chain(f, r, s, 0.7) for f, r, s in zip(factors, rate, sigma, strict=True)]
    maps, shifts, noise = factors[..., None, None], 2 * 0.7 * rate[..., None], 0.7 * rate * sigma
    weights = (0.3, 0.7)
    found = affine_chains.matrix_mu(maps, shifts, noise, weights, 0.5)
    assert affine_chains.merged_final_mu(chains, weights, 2, 0.5) == pytest.approx(found, rel=1e-12)
    final = affine_chains.matrix_joint_mu(maps, shifts, noise)
    assert affine_chains.joint_final_mu(chains, 2) == pytest.approx(final, rel=1e-12)
    every = affine_chains.matrix_joint_mu(maps, shifts, noise, trajectory=True)
    assert every == pytest.approx(np.sqrt(np.sum((2 / sigma) ** 2)), rel=1e-12)
    trajectory = affine_chains.matrix_mu(maps, shifts, noise, weights, trajectory=True)
    assert affine_chains.matrix_mu(maps, shifts, noise, weights) <= trajectory <= every


def test_shared_maps_make_the_merged_trajectory_exact() -> None:
    rng = np.random.default_rng(4)
    maps, rate, sigma = rng.normal(size=(5, 3, 3)), rng.uniform(0.5, 2, (2, 5)), rng.uniform(0.5, 3, (2, 5))
    weights = np.array([0.3, 0.7])
    formula = np.sum((weights @ rate) ** 2 / np.sum((weights[:, None] * rate * sigma) ** 2, axis=0)) ** 0.5
    directions = rng.normal(size=(2, 5, 3))
    directions /= np.linalg.norm(directions, axis=2, keepdims=True)
    aligned = np.broadcast_to(directions[0], directions.shape)

    def exact(unit: np.ndarray) -> float:
        return affine_chains.matrix_mu(maps, rate[..., None] * unit, rate * sigma, weights, trajectory=True)

    assert exact(aligned) == pytest.approx(formula, rel=1e-10)
    assert exact(directions) < formula


# The hidden-state program


def _two_runs(rates: list[float], sigmas: tuple, k: float, lipschitz: tuple) -> tuple:
    a = [[k * eta for eta in rates] for _ in sigmas]
    b = [[sigma * eta for eta in rates] for sigma in sigmas]
    return a, b, [[factor] * len(rates) for factor in lipschitz]


HIDDEN_STATE = [
    (CONSTANT, (64, 32), 2, (1, 1), (0.95, 0.05), 0, 0.1503762783904125, 0.14705882352941177),
    (CONSTANT, (64, 32), 2, (1, 1), (0.7, 0.3), 0, 0.2553247762294643, 0.1952172023607576),
    (CONSTANT, (64, 32), 2, (1, 1), (0.7, 0.3), 256, 0.20285841944004337, 0.1863389981249825),
    (DECAYING, (64, 32), 2, (1, 1), (0.95, 0.05), 0, 0.25457668713974074, 0.12985498997606082),
    (DECAYING, (64, 32), 2, (1, 1), (0.95, 0.05), 256, 0.1230873122000693, 0.12147643445197659),
    (DECAYING, (64, 32), 2, (1, 1), (0.5, 0.5), 256, 0.19136914780885797, 0.18574926138235165),
    ([1.0] * 30, (10, 1), 1, (0.9, 1), (0.5, 0.5), 0, 2.750493468989418, 1.6793517129129165),
    ([1.0] * 30, (10, 1), 1, (1, 1), (0.98, 0.02), 0, 0.5621299571292118, 0.5588994049952277),
    (CONSTANT, (64, 32), 2, (1.05, 1.02), (0.7, 0.3), 128, 0.2503477841785485, 0.17423816477609022),
    (CONSTANT, (64,), 2, (0.98,), (1,), 0, 0.13881804935552658, 0.13881804935552655),
]


@pytest.mark.parametrize("case", HIDDEN_STATE)
def test_the_hidden_state_program_has_its_reference_values_as_optimum(case: tuple) -> None:
    rates, sigmas, k, lipschitz, weights, tau, mu, mu_if_linear = case
    arrays = (*_two_runs(rates, sigmas, k, lipschitz), weights)
    solution = hidden_state_qp.solve(*arrays, tau)
    assert solution.mu == pytest.approx(mu, rel=1e-10)
    assert solution.mu_lower == pytest.approx(mu, rel=1e-10)
    assert float(exact_mu(*arrays, tau)) == pytest.approx(mu, rel=1e-10)
    assert hidden_state_qp.evaluate(solution.shifts, *arrays, tau) == solution.mu
    assert hidden_state_qp.mu_if_linear(*arrays, tau) == pytest.approx(mu_if_linear, rel=1e-13)
    assert hidden_state_qp.linear_check(*arrays, tau) == (len(sigmas) == 1)
    rng = np.random.default_rng(0)
    for _ in range(20):
        shifts = hidden_state_qp.random_shifts(rng, *arrays)
        assert hidden_state_qp.evaluate(shifts, *arrays, tau) >= mu * (1 - 1e-10)


def test_unbounded_factors_give_the_last_step() -> None:
    a, b, factors = _two_runs(DECAYING, (64, 32), 2, (math.inf, math.inf))
    for solver in (hidden_state_qp.optimal_mu, exact_mu):
        assert float(solver(a, b, factors, (0.5, 0.5), 256)) == pytest.approx(0.3045922662798431, rel=1e-12)


def test_hidden_state_solvers_agree_and_are_never_below_the_truth() -> None:
    rng = np.random.default_rng(11)
    passed = 0
    for _ in range(40):
        lengths = rng.integers(1, 4, rng.integers(1, 3))
        a = [rng.uniform(0.01, 2, n).tolist() for n in lengths]
        b = [np.exp(rng.uniform(-2, 2, n)).tolist() for n in lengths]
        factors = [rng.uniform(0, 1.4, n).tolist() for n in lengths]
        weights, tau = rng.dirichlet(np.ones(len(lengths))).tolist(), float(rng.choice([0.0, 1.0]))
        case = (a, b, factors, weights, tau)
        exact = float(exact_mu(*case))
        assert hidden_state_qp.optimal_mu(*case) == pytest.approx(exact, rel=1e-10)
        assert hidden_state_qp.brute_force_mu(*case) == pytest.approx(exact, rel=1e-7)
        linear = hidden_state_qp.mu_if_linear(*case)
        if hidden_state_qp.linear_check(*case):
            passed += 1
            assert linear == pytest.approx(exact, rel=1e-12)
        else:
            assert linear < exact
        chains = [affine_chains.Chain(f, x, np.divide(y, x)) for x, y, f in zip(a, b, factors, strict=True)]
        truth = affine_chains.merged_final_mu(chains, weights, 1, tau)
        assert truth == pytest.approx(linear, rel=1e-12)
    assert 5 < passed < 35


def test_hidden_state_solvers_agree_on_long_ill_scaled_runs() -> None:
    rng = np.random.default_rng(12)
    for _ in range(10):
        lengths = rng.integers(1, 120, 3)
        a = [(rng.uniform(0.01, 2, n) * 10 ** rng.uniform(-3, 3)).tolist() for n in lengths]
        b = [np.exp(rng.uniform(-3, 3, n)).tolist() for n in lengths]
        factors = [rng.uniform(0.5, 1.3, n).tolist() for n in lengths]
        weights = rng.dirichlet(np.ones(3)).tolist()
        exact = float(exact_mu(a, b, factors, weights, 0.1))
        assert hidden_state_qp.optimal_mu(a, b, factors, weights, 0.1) == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize("shifts", [[[1.0, 0.5]], [[1.5, 0.5]], [[-0.1, 2.1]]])
def test_infeasible_shifts_are_refused(shifts: list) -> None:
    ones = [[1, 1]]
    assert hidden_state_qp.evaluate([[0.5, 1.5]], ones, ones, ones, [1]) == pytest.approx(2.5**0.5)
    with pytest.raises(hidden_state_qp.Infeasible):
        hidden_state_qp.evaluate(shifts, ones, ones, ones, [1])


# Composition of Poisson-subsampled steps


@pytest.mark.parametrize(("steps", "sigma"), [(1, 1.0), (10, 3.0), (1000, 30.0)])
@pytest.mark.parametrize("delta", [0.1, 1e-5, 1e-14])
@pytest.mark.parametrize("relation", ["remove", "add"])
def test_tilted_composition_without_sampling_encloses_the_gaussian_delta(
    steps: int, sigma: float, delta: float, relation: str
) -> None:
    eps = float(gaussian_mp.epsilon(steps**0.5 / sigma, delta))
    bounds = tilted_convolution.delta_bounds(eps, relation, sigma, 1.0, steps)
    assert bounds.lower <= delta <= bounds.upper
    assert bounds.upper / bounds.lower < 1.002


@pytest.mark.parametrize("relation", ["remove", "add", "replace_one"])
@pytest.mark.parametrize("eps", [-0.1, 0.0, 0.05, 1.0, 6.0])
def test_tilted_composition_of_two_steps_encloses_the_exact_delta(relation: str, eps: float) -> None:
    exact = tilted_convolution.two_step_delta(eps, relation, 1.0, 0.1)
    bounds = tilted_convolution.delta_bounds(eps, relation, 1.0, 0.1, 2)
    assert bounds.lower * (1 - 1e-9) <= exact <= bounds.upper * (1 + 1e-9)
    assert bounds.upper - bounds.lower <= 1e-4 * exact + 1e-26


@pytest.mark.parametrize(
    ("relation", "delta", "eps"),
    [
        ("remove", 1e-5, 1.8282),
        ("add", 1e-5, 1.4167),
        ("replace_one", 1e-5, 2.84344),
        ("remove", 1e-14, 4.54370),
        ("add", 1e-14, 2.50850),
    ],
)
def test_the_tilted_bounds_on_epsilon_are_close_to_the_known_values(relation: str, delta: float, eps: float) -> None:
    bounds = tilted_convolution.epsilon_bounds(delta, relation, 1.0, 0.01, 1000)
    assert bounds.lower < bounds.upper < bounds.lower + 5e-5
    assert bounds.lower == pytest.approx(eps, abs=1e-4)
    at_lower = tilted_convolution.delta_bounds(bounds.lower, relation, 1.0, 0.01, 1000)
    assert at_lower.lower == pytest.approx(delta, rel=1e-6)


# Mechanisms known only by (eps, delta)


def test_optimal_composition_agrees_with_its_closed_form_and_inverts() -> None:
    for count in range(1, 9):
        for i in range(count // 2 + 1):
            closed = randomized_response.homogeneous_delta(i, count, 0.37, 1e-5)
            found = randomized_response.optimal_delta((count - 2 * i) * 0.37, [(0.37, 1e-5)] * count)
            assert found == pytest.approx(closed, rel=1e-9)
    pairs = [(0.3, 1e-6), (1.1, 1e-5), (0.7, 0.0)]
    for delta in (2e-5, 1e-3, 0.2):
        eps = randomized_response.optimal_epsilon(delta, pairs)
        assert randomized_response.optimal_delta(eps, pairs) == pytest.approx(delta, rel=1e-10)
        assert eps <= randomized_response.basic(pairs)[0]
    assert randomized_response.optimal_epsilon(1e-6, pairs) == math.inf
    assert randomized_response.optimal_epsilon(0.9, pairs) == 0.0
    assert randomized_response.optimal_epsilon(1e-5, [(0.8, 1e-5)]) == pytest.approx(0.8, rel=1e-9)


def test_advanced_composition_and_the_total_variation_limit_have_their_known_values() -> None:
    assert randomized_response.advanced(1.0471, 1e-5, 3, 1e-5) == pytest.approx((14.51219709590985, 4e-5))
    assert randomized_response.advanced(0.2, 1e-6, 20, 1e-6) == pytest.approx((5.587187033594279, 2.1e-5))
    limit = randomized_response.total_variation_limit
    assert limit(0.5, 1e-5, 4, 1e-5) == pytest.approx(0.4051832187855789, rel=1e-13)
    assert limit(1, 1e-5, 8, 0) == pytest.approx(0.632414337810414, rel=1e-13)
    assert limit(2, 1e-5, 3, 1e-6) == pytest.approx(0.9138728339266943, rel=1e-13)


# Renyi divergence


@pytest.mark.parametrize(("sigma", "q"), [(1.0, 0.01), (0.5, 0.1)])
@pytest.mark.parametrize("alpha", [2, 7, 64])
def test_renyi_divergence_by_quadrature_agrees_with_the_sum_for_integer_orders(
    sigma: float, q: float, alpha: int
) -> None:
    remove = renyi_quadrature.renyi_divergence(alpha, sigma, q, "remove")
    closed = renyi_quadrature.renyi_divergence_integer(alpha, sigma, q)
    with mp.workdps(40):
        assert abs(remove / closed - 1) < mpf(10) ** -30
    assert 0 < renyi_quadrature.renyi_divergence(alpha, sigma, q, "add") <= remove


def test_renyi_divergence_without_sampling_is_that_of_a_gaussian() -> None:
    for direction in ("remove", "add"):
        found = renyi_quadrature.renyi_divergence(2.5, 2.0, 1.0, direction)
        assert float(found) == pytest.approx(2.5 / 8, rel=1e-15)


# The merged trajectory

SECOND = [[0.1] * 5, [0.3, 0.3, 0.2, 0.2, 0.2, 0.1, 0.1, 0.05, 0.05]]


@pytest.mark.parametrize(
    ("alignment", "mu", "eps"),
    [
        ("appended", 1.1214491067486787, 5.570314151661302),
        ("prepended", 1.3405536027290532, 6.845522822251531),
    ],
)
def test_convolved_trajectory_has_the_closed_form(alignment: str, mu: float, eps: float) -> None:
    runs = ((0.2, 0.8), SECOND, (1.5, 3), (1, 0.5), 1)
    steps = trajectory_convolution.merged_steps(*runs, alignment)
    assert sum((a / b) ** 2 for a, b in steps) ** 0.5 == pytest.approx(mu, rel=1e-13)
    found = trajectory_convolution.merged_trajectory_epsilon(1e-6, *runs, alignment=alignment)
    assert eps <= found <= eps + 1e-3


def test_a_step_of_a_mixture_of_gaussians_has_the_exact_delta() -> None:
    for eps, relation in itertools.product((0.0, 0.1, 2.0), ("remove", "add")):
        found = trajectory_convolution.mixture_of_gaussians_delta(eps, (0, 1), (0.9, 0.1), 1.3)
        exact = tilted_convolution.one_step_delta(eps, relation, 1.3, 0.1)
        assert getattr(found, relation) == pytest.approx(exact, rel=1e-12, abs=1e-17)
    found = trajectory_convolution.mixture_of_gaussians_delta(1.0, (2,), (1,), 1.5)
    assert found == pytest.approx((float(gaussian_mp.delta(2 / 1.5, 1)),) * 2, rel=1e-12)
    # Two opposite shifts have the ratio e^(-1/2) cosh(x), which passes a level in both tails.
    for eps in (-0.3, 0.5):
        both = trajectory_convolution.mixture_of_gaussians_delta(eps, (-1, 1), (0.5, 0.5), 1.0)
        x = np.linspace(-12, 12, 400_001)
        ratio, density = np.exp(-0.5) * np.cosh(x), norm.pdf(x)
        remove = trapezoid(np.maximum(ratio - np.exp(eps), 0) * density, x)
        add = trapezoid(np.maximum(1 - np.exp(eps) * ratio, 0) * density, x)
        assert both == pytest.approx((remove, add), abs=1e-9)


# A null record


@pytest.mark.parametrize("eps", [0.1, 0.5, 1.0])
def test_a_record_made_null_is_the_known_pair_where_a_closed_form_exists(eps: float) -> None:
    whole = null_record.hockey_sticks([0.3, -1.0], 1.0, eps, sigma=1.5)
    assert whole == pytest.approx((float(gaussian_mp.delta(1 / 1.5, eps)),) * 2, rel=1e-6)
    found = null_record.hockey_sticks([0.0, 0.0], 1.0, eps, sigma=1.3, q=0.1)
    exact = [tilted_convolution.one_step_delta(eps, relation, 1.3, 0.1) for relation in ("remove", "add")]
    assert found == pytest.approx(exact, rel=1e-5, abs=1e-12)
    both = null_record.two_steps([], 1.0, eps, sigma=1.5)
    assert both == pytest.approx((float(gaussian_mp.delta(2**0.5 / 1.5, eps)),) * 2, rel=1e-4)


def test_the_laws_of_a_null_record_are_mixtures_over_who_was_drawn() -> None:
    assert null_record.law([1.0, 0.0], sigma=2.0, q=0.25) == [(0.75, 0.0, 2.0), (0.25, 1.0, 2.0)]
    total = {mean: chance for chance, mean, _ in null_record.law([-3.0, 20.0], sigma=1.0, q=0.5, aggregate=True)}
    assert total == {0.0: 0.25, -1.0: 0.25, 1.0: 0.5}
    divided = null_record.law([1.0, 1.0], sigma=1.0, realised_divisor=True)
    assert divided == [(1.0, 1.0, 0.5)]
