"""Composed loss distributions: never below the truth, in the far tail too, and close to it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting import NeighboringRelation
from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism

from dpmerge.accounting import GaussianProfile, LossDistributionProfile, compose, discretised_step
from dpmerge.accounting.loss_distribution import LEAST_DELTA, epsilon_curve
from dpmerge.accounting.step_mechanisms import GaussianStep, MixtureStep, PoissonStep
from dpmerge.errors import DeltaOutOfReachError
from oracle import tilted_convolution, trajectory_convolution


def sampled(sigma: float, q: float, replace_one: bool = False) -> PoissonStep:
    return PoissonStep(ratio=1 / sigma, sampling_rate=q, replace_one=replace_one)


# (σ, q, steps): small and large noise, rare and frequent sampling, few and many steps.
SETTINGS = [
    (1.0, 0.01, 1),
    (1.0, 0.01, 1000),
    (0.6, 0.004, 700),
    (0.6, 0.1, 60),
    (3.0, 0.5, 100),
    (5.0, 0.001, 20_000),
    (20.0, 0.2, 500),
    (0.4, 0.02, 10),
]


@pytest.mark.parametrize(("sigma", "q", "steps"), SETTINGS)
@pytest.mark.parametrize("relation", ["remove", "add", "replace_one"])
def test_epsilon_is_at_least_the_truth_and_at_most_a_little_more(
    sigma: float, q: float, steps: int, relation: str
) -> None:
    """Against an independent composition whose tails are accurate: at δ where an ordinary FFT is not."""
    profile = LossDistributionProfile.of({sampled(sigma, q, relation == "replace_one"): steps})
    side = profile._composed[1 if relation == "add" else 0]
    for delta in (1e-5, max(1e-9, profile.least_delta)):
        truth = tilted_convolution.epsilon_bounds(delta, relation, sigma, q, steps)  # type: ignore[arg-type]
        epsilon = side.epsilon(delta)
        assert epsilon >= truth.lower, "below the true epsilon"
        assert epsilon <= truth.upper * 1.01 + 2e-3
        assert profile.epsilon(delta) >= epsilon


@pytest.mark.parametrize(("sigma", "steps"), [(3.0, 1000), (50.0, 10_000), (1.0, 1), (10.0, 20), (0.5, 5)])
def test_convolved_gaussians_are_never_below_their_closed_form(sigma: float, steps: int) -> None:
    """Sampling rate one, forced through the convolution: the case in which dp_accounting's own comes out too low."""
    forced = LossDistributionProfile.of({PoissonStep(1 / sigma, 1.0, False): steps})
    exact = GaussianProfile(np.sqrt(steps) / sigma)
    for delta in (1e-3, 1e-5, 1e-8, forced.least_delta):
        assert forced.epsilon(delta) >= exact.epsilon(delta) * (1 - 1e-10)
    assert forced.epsilon(1e-5) == pytest.approx(exact.epsilon(1e-5), rel=1e-4)
    points = np.linspace(0, exact.epsilon(1e-12), 300)
    assert np.all(forced.deltas(points)[0] >= exact.deltas(points)[0] * (1 - 1e-10))


@pytest.mark.parametrize(("sigma", "q"), [(1.0, 0.01), (0.5, 0.004), (20.0, 0.5), (2.0, 1.0), (1.0, 0.999), (0.1, 0.2)])
@pytest.mark.parametrize("replace_one", [False, True])
def test_single_steps_are_those_of_dp_accounting(sigma: float, q: float, replace_one: bool) -> None:
    """Our divergences are evaluated at once and in closed form; the distributions are the same."""
    relation = NeighboringRelation.REPLACE_ONE if replace_one else NeighboringRelation.ADD_OR_REMOVE_ONE
    theirs = from_gaussian_mechanism(
        sigma, sampling_prob=q, value_discretization_interval=1e-3, neighboring_relation=relation
    )
    ours = sampled(sigma, q, replace_one).pmfs(1e-3)
    for mine, pmf in zip(ours, (theirs._pmf_remove, theirs._pmf_add), strict=True):
        dense = pmf.to_dense_pmf()
        skipped = mine.first - dense._lower_loss  # of an addition: where there is hardly any mass
        assert skipped == 0 or (pmf is theirs._pmf_add and skipped > 0)
        assert dense._probs[:skipped].sum() < 1e-9
        np.testing.assert_allclose(mine.probabilities[1:], dense._probs[skipped + 1 :], atol=1e-11)
        assert mine.infinity == pytest.approx(dense._infinity_mass, abs=1e-20)


@pytest.mark.parametrize(("sigma", "q"), [(1.0, 0.01), (16.0, 0.37), (5.0, 1e-3), (0.5, 0.004), (2.0, 1.0)])
@pytest.mark.parametrize("interval", [1e-3, 1.25e-5])
@pytest.mark.parametrize("relation", ["remove", "add", "replace_one"])
def test_discretising_takes_nothing_from_the_divergence(sigma: float, q: float, interval: float, relation: str) -> None:
    """At every grid point, below zero too, δ of the distribution is at least the δ it was made from, to 1e-15."""
    pmf = sampled(sigma, q, relation == "replace_one").pmfs(interval)[1 if relation == "add" else 0]
    function = {
        "remove": discretised_step._removal_delta,
        "add": discretised_step._addition_delta,
        "replace_one": discretised_step._replacement_delta,
    }
    if relation == "add" and q == 1:
        function["add"] = discretised_step._removal_delta  # symmetric: one distribution serves both
    exact = function[relation](pmf.losses, 1 / sigma, q)
    mass, losses = pmf.probabilities, pmf.losses
    for place in np.linspace(0, mass.size - 1, 25).astype(int):
        above = slice(place + 1, None)
        made = math.fsum([*(-np.expm1(losses[place] - losses[above]) * mass[above]).tolist(), pmf.infinity])
        assert made >= exact[place] - 1e-15


@pytest.mark.parametrize("relation", ["remove", "add", "replace_one"])
def test_divergences_of_one_step_agree_with_quadrature(relation: str) -> None:
    function = {
        "remove": discretised_step._removal_delta,
        "add": discretised_step._addition_delta,
        "replace_one": discretised_step._replacement_delta,
    }
    for sigma, q in ((1.0, 0.01), (0.7, 0.3), (5.0, 0.9), (2.0, 0.001)):
        for epsilon in (-0.5, -0.005, 0.0, 0.004, 0.1, 1.0):
            truth = tilted_convolution.one_step_delta(epsilon, relation, sigma, q)  # type: ignore[arg-type]
            computed = float(function[relation](np.array([epsilon]), 1 / sigma, q)[0])
            assert computed == pytest.approx(truth, rel=1e-8, abs=1e-15)


@pytest.mark.parametrize("mu", [2.5, 4.3, 5.0, 20.0])
def test_strong_gaussian_steps_beside_sampled_ones_cost_hardly_more(mu: float) -> None:
    together = compose([GaussianProfile(mu), LossDistributionProfile.of({sampled(1.0, 0.01): 3})])
    alone = GaussianProfile(mu).epsilon(1e-5)
    assert alone <= together.epsilon(1e-5) <= alone * 1.05


@pytest.mark.parametrize("sigma", [0.02, 0.03, 0.05, 0.2])
@pytest.mark.parametrize("replace_one", [False, True])
def test_sampled_steps_of_little_noise_cost_less_than_unsampled_without_overflow(
    sigma: float, replace_one: bool
) -> None:
    """Losses far beyond e^709: between the exact value of a step that is always drawn and what is left undrawn."""
    profile = LossDistributionProfile.of({sampled(sigma, 0.1, replace_one): 1})
    always = GaussianProfile((2 if replace_one else 1) / sigma).epsilon(1e-5)
    assert 0.2 * always < profile.epsilon(1e-5) <= always
    assert profile.epsilon(0.2) < 0.3


@pytest.mark.parametrize("replace_one", [False, True])
@pytest.mark.parametrize(("sigma", "q"), [(1e30, 0.1), (1e10, 0.5), (1.0, 5e-324), (1.0, 1e-300), (1e6, 1e-9)])
def test_steps_that_tell_nothing_cost_nothing(sigma: float, q: float, replace_one: bool) -> None:
    assert LossDistributionProfile.of({sampled(sigma, q, replace_one): 3}).epsilon(1e-9) == 0


def test_a_gaussian_step_of_next_to_no_noise_beside_sampled_ones_is_not_private() -> None:
    sampled_steps = LossDistributionProfile.of({sampled(1.0, 0.01): 3})
    assert compose([GaussianProfile(1e9), sampled_steps]).epsilon(1e-5) == np.inf


def test_a_schedule_of_forty_noises_costs_less_than_its_weakest_throughout() -> None:
    schedule = {sampled(float(sigma), 0.01): 5 for sigma in np.geomspace(2, 0.8, 40)}
    profile = LossDistributionProfile.of(schedule)
    weakest = LossDistributionProfile.of({sampled(0.8, 0.01): 200})
    assert 0 < profile.epsilon(1e-5) < weakest.epsilon(1e-5)


def test_a_thousand_sampled_steps_cost_the_reference_numbers() -> None:
    """σ = 1, q = 0.01, 1000 steps, δ = 1e-5; and the same under replace_one."""
    profile = LossDistributionProfile.of({sampled(1.0, 0.01): 1000})
    removal, addition = (side.epsilon(1e-5) for side in profile._composed)
    assert removal == pytest.approx(1.8282, abs=1e-4)
    assert addition == pytest.approx(1.4167, abs=1e-4)
    assert profile.epsilon(1e-5) == removal
    replaced = LossDistributionProfile.of({sampled(1.0, 0.01, replace_one=True): 1000})
    assert replaced.epsilon(1e-5) == pytest.approx(2.84, abs=5e-3)


def test_a_curve_of_epsilons_equals_one_at_a_time() -> None:
    step = sampled(1.0, 0.02)
    counts = [1, 7, 50, 200, 800]
    curve = epsilon_curve([LossDistributionProfile.of({step: n}) for n in counts], 1e-5)
    singles = [LossDistributionProfile.of({step: n}).epsilon(1e-5) for n in counts]
    np.testing.assert_allclose(curve, singles, atol=1e-3)
    for epsilon, count in zip(curve, counts, strict=True):
        assert epsilon >= tilted_convolution.epsilon_bounds(1e-5, "remove", 1.0, 0.02, count).lower
    assert np.all(np.diff(curve) > 0)


def test_the_curve_of_a_long_run_is_never_below_the_truth() -> None:
    """σ = 1, q = 0.01, 50 checkpoints up to 5000 steps: the setting whose speed is measured."""
    step = sampled(1.0, 0.01)
    counts = list(range(100, 5001, 100))
    curve = epsilon_curve([LossDistributionProfile.of({step: n}) for n in counts], 1e-5)
    for place in (0, 9, 29, 49):
        truth = tilted_convolution.epsilon_bounds(1e-5, "remove", 1.0, 0.01, counts[place])
        assert truth.lower <= curve[place] <= truth.upper + 1e-3


def test_composing_a_step_six_times_equals_six_steps() -> None:
    step = sampled(1.0, 0.05)
    listed = compose([LossDistributionProfile.of({step: 1})] * 6)
    assert isinstance(listed, LossDistributionProfile)
    assert listed == LossDistributionProfile.of({step: 6})


def test_unequal_steps_compose_in_any_order() -> None:
    first, second = (
        LossDistributionProfile.of({sampled(1.0, 0.05): 3}),
        LossDistributionProfile.of({sampled(2.0, 0.1): 4}),
    )
    assert compose([first, second]) == compose([second, first])


def test_gaussian_steps_are_merged_before_they_are_discretised() -> None:
    step = sampled(1.0, 0.05)
    profile = compose([GaussianProfile(3.0), LossDistributionProfile.of({step: 5}), GaussianProfile(4.0)])
    assert profile == LossDistributionProfile.of({step: 5, GaussianStep(5.0): 1})


def test_a_negligible_sampled_step_leaves_the_gaussians_cost() -> None:
    nothing = LossDistributionProfile.of({sampled(100.0, 1e-4): 1})
    together = compose([GaussianProfile(1.0), nothing])
    assert together.epsilon(1e-5) >= GaussianProfile(1.0).epsilon(1e-5)
    assert together.epsilon(1e-5) == pytest.approx(GaussianProfile(1.0).epsilon(1e-5), rel=1e-4)


def test_many_tiny_steps_are_not_overcharged_by_the_grid() -> None:
    """Losses far below any fixed grid: the interval adapts, so that 10⁵ tiny steps do not look like large ones."""
    profile = LossDistributionProfile.of({sampled(5.0, 1e-4): 100_000})
    truth = tilted_convolution.epsilon_bounds(1e-5, "remove", 5.0, 1e-4, 100_000)
    assert truth.lower <= profile.epsilon(1e-5) <= truth.upper * 1.05


@pytest.mark.parametrize("direction", ["remove", "add"])
def test_a_mixture_of_gaussians_is_never_below_quadrature(direction: str) -> None:
    shifts, probabilities = (0.0, 0.4, 0.7, 1.1), (0.72, 0.18, 0.08, 0.02)
    profile = LossDistributionProfile.of({MixtureStep(shifts, probabilities): 1})
    for epsilon in (0.01, 0.2, 0.6, 1.0):
        truth = getattr(
            trajectory_convolution.mixture_of_gaussians_delta(epsilon, shifts, probabilities, 1.0), direction
        )
        computed = profile.deltas(epsilon)[0 if direction == "remove" else 1]
        assert computed >= truth * (1 - 1e-9)
        assert computed == pytest.approx(truth, rel=1e-3, abs=1e-9)


def test_a_delta_below_the_least_is_refused() -> None:
    profile = LossDistributionProfile.of({sampled(1.0, 0.01): 100})
    assert profile.least_delta >= LEAST_DELTA
    assert np.isfinite(profile.epsilon(profile.least_delta))
    with pytest.raises(DeltaOutOfReachError, match="delta: got 1e-11; accepted: at least 1e-10"):
        profile.epsilon(1e-11)
    with pytest.raises(DeltaOutOfReachError):
        epsilon_curve([profile], 1e-11)


def test_the_least_delta_rises_with_the_number_of_steps() -> None:
    many = LossDistributionProfile.of({sampled(5.0, 1e-3): 1_000_000})
    assert many.least_delta > LEAST_DELTA
    assert many.delta(1e6) >= many.least_delta / 10, "the slack is part of every delta"


def test_two_steps_agree_with_quadrature() -> None:
    profile = LossDistributionProfile.of({sampled(1.0, 0.2): 2})
    for relation, side in (("remove", 0), ("add", 1)):
        truth = tilted_convolution.two_step_delta(0.5, relation, 1.0, 0.2)  # type: ignore[arg-type]
        assert profile.deltas(0.5)[side] == pytest.approx(truth, rel=1e-4)
        assert profile.deltas(0.5)[side] >= truth * (1 - 1e-6)


@pytest.mark.parametrize(("sigma", "q", "steps"), [(1.0, 1e-6, 10**7), (2.0, 1e-4, 10**6)])
def test_rarely_drawn_steps_may_be_composed_ten_million_times(sigma: float, q: float, steps: int) -> None:
    """Nothing of order one is rounded: what a step of this kind adds to δ is far below a double's last digit."""
    profile = LossDistributionProfile.of({sampled(sigma, q): steps})
    assert profile.least_delta < 2e-7
    addition = profile._composed[1].epsilon(1e-6)
    truth = tilted_convolution.epsilon_bounds(1e-6, "add", sigma, q, steps)
    assert truth.lower <= addition <= truth.upper * 1.01
    assert profile.epsilon(1e-6) >= addition


def test_few_points_and_many_are_the_same_divergence() -> None:
    """One is a sum over frequencies, the other one over the distribution itself."""
    many = LossDistributionProfile.of({sampled(0.8, 0.01): 500, sampled(2.0, 0.01): 500})
    points = np.linspace(-1.0, 8.0, 200)
    for side in many._composed:
        one_by_one = np.array([float(side._by_frequencies(np.asarray(point))) for point in points])
        np.testing.assert_allclose(one_by_one, side._by_tail_sums(points), rtol=1e-9, atol=side.slack)


def test_the_grids_of_one_composition_do_not_depend_on_what_was_composed_before() -> None:
    step, other = sampled(1.0, 0.01), sampled(0.7, 0.002)
    first = LossDistributionProfile.of({step: 300, other: 4000}).epsilon(1e-5)
    for count in (1, 10, 5000):
        LossDistributionProfile.of({other: count}).epsilon(1e-5)
    from dpmerge.accounting import loss_distribution

    loss_distribution._composition.cache_clear()
    assert LossDistributionProfile.of({step: 300, other: 4000}).epsilon(1e-5) == first
