"""What every profile promises, whatever it is made of."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from dpmerge.accounting import (
    DiscreteProfile,
    GaussianProfile,
    LossDistributionProfile,
    NonPrivateProfile,
    PrivacyProfile,
    RenyiProfile,
    SelectionProfile,
    compose,
)
from dpmerge.accounting.step_mechanisms import GaussianStep, MixtureStep, PoissonStep

SAMPLED = PoissonStep(ratio=0.8, sampling_rate=0.05, replace_one=False)
REPLACED = PoissonStep(ratio=0.8, sampling_rate=0.05, replace_one=True)

# Each with less noise as `level` grows.
FAMILIES: dict[str, Callable[[float], PrivacyProfile]] = {
    "gaussian": GaussianProfile,
    "poisson, add_remove": lambda level: LossDistributionProfile.of({PoissonStep(level, 0.05, False): 40}),
    "poisson, replace_one": lambda level: LossDistributionProfile.of({PoissonStep(level, 0.05, True): 40}),
    "poisson and gaussian steps": lambda level: LossDistributionProfile.of(
        {PoissonStep(level, 0.05, False): 40, GaussianStep(level): 1}
    ),
    "mixture step": lambda level: LossDistributionProfile.of({MixtureStep((0.0, level), (0.9, 0.1)): 1}),
    "renyi, improved": lambda level: RenyiProfile.of(GaussianProfile(level)),
    "renyi, classic": lambda level: RenyiProfile.of(GaussianProfile(level)).converted("classic"),
    "one pair": lambda level: DiscreteProfile.from_points([(level, 1e-6)]),
    "table": lambda level: DiscreteProfile.from_points(
        [(e, GaussianProfile(level).delta(e)) for e in np.linspace(0, 6, 40)]
    ),
    "selection": lambda level: SelectionProfile(
        (GaussianProfile(level), LossDistributionProfile.of({SAMPLED: 10})), (0.3, 0.7)
    ),
    "selection of everything": lambda level: SelectionProfile(
        (
            GaussianProfile(level),
            LossDistributionProfile.of({REPLACED: 10}),
            DiscreteProfile.from_points([(1.0, 1e-7)]),
            RenyiProfile.of(GaussianProfile(0.5)),
            NonPrivateProfile(),
        ),
        (0.3, 0.3, 0.2, 0.199999, 1e-6),
    ),
    "pair and gaussian": lambda level: compose([DiscreteProfile.from_points([(0.5, 1e-7)]), GaussianProfile(level)]),
    "pair and renyi": lambda level: compose(
        [DiscreteProfile.from_points([(0.5, 1e-7)]), RenyiProfile.of(GaussianProfile(level))]
    ),
}

DELTAS = (1e-3, 1e-5, 1e-8)
POINTS = np.linspace(0, 8, 65)


@pytest.fixture(params=FAMILIES, scope="module")
def family(request: pytest.FixtureRequest) -> Callable[[float], PrivacyProfile]:
    return FAMILIES[request.param]


@pytest.fixture(scope="module")
def profile(family: Callable[[float], PrivacyProfile]) -> PrivacyProfile:
    return family(1.0)


def test_delta_at_the_stated_epsilon_is_at_most_the_delta_asked_for(profile: PrivacyProfile) -> None:
    for delta in DELTAS:
        epsilon = profile.epsilon(delta)
        assert np.isinf(epsilon) or profile.delta(epsilon) <= delta


def test_a_slightly_smaller_epsilon_would_exceed_the_delta_asked_for(profile: PrivacyProfile) -> None:
    for delta in DELTAS:
        epsilon = profile.epsilon(delta)
        if 0 < epsilon < np.inf:
            assert profile.delta(epsilon * (1 - 1e-6)) > delta


def test_delta_falls_with_epsilon_and_epsilon_with_delta(profile: PrivacyProfile) -> None:
    for side in profile.deltas(POINTS):
        assert np.all(np.diff(side) <= 1e-15)
        assert np.all((side >= 0) & (side <= 1))
    epsilons = [profile.epsilon(delta) for delta in DELTAS]
    assert epsilons == sorted(epsilons)


@pytest.mark.parametrize("name", [name for name in FAMILIES if "renyi" not in name])
def test_delta_is_convex_in_exp_epsilon(name: str) -> None:
    """Of every profile that is one; a minimum of Rényi bounds is only a bound on one."""
    for side in FAMILIES[name](1.0).deltas(POINTS):
        slopes = np.diff(side) / np.diff(np.exp(POINTS))
        assert np.all(np.diff(slopes) >= -1e-9)


def test_arrays_agree_with_single_values(profile: PrivacyProfile) -> None:
    plus, minus = profile.deltas(POINTS.reshape(5, 13))
    assert plus.shape == minus.shape == (5, 13)
    singles = [profile.delta(float(e)) for e in POINTS]
    np.testing.assert_allclose(np.maximum(plus, minus).ravel(), singles, rtol=1e-12)


def test_delta_below_zero_follows_from_the_other_direction(profile: PrivacyProfile) -> None:
    """δ₊(−ε) = 1 − e^{−ε}(1 − δ₋(ε)) for an exact profile; an upper bound may be above, and not far."""
    inside = np.linspace(0.1, 3, 9)
    plus, minus = profile.deltas(-inside)
    other_plus, other_minus = profile.deltas(inside)
    for below, above in ((plus, other_minus), (minus, other_plus)):
        exact = -np.expm1(-inside) + np.exp(-inside) * above
        np.testing.assert_allclose(below, exact, atol=2e-4)


def test_more_noise_is_more_private(family: Callable[[float], PrivacyProfile]) -> None:
    for delta in DELTAS:
        epsilons = [family(level).epsilon(delta) for level in (0.25, 0.5, 1.0)]
        assert epsilons == sorted(epsilons)


def test_composing_with_perfect_privacy_changes_nothing(profile: PrivacyProfile) -> None:
    for together in (compose([profile]), compose([profile, GaussianProfile(0.0)])):
        for delta in DELTAS:
            assert together.epsilon(delta) == pytest.approx(profile.epsilon(delta), rel=1e-9)


def test_composing_with_a_non_private_model_is_not_private(profile: PrivacyProfile) -> None:
    assert compose([profile, NonPrivateProfile()]).epsilon(1e-5) == np.inf


def test_composing_in_any_order_costs_the_same(profile: PrivacyProfile) -> None:
    others = [
        GaussianProfile(0.7),
        LossDistributionProfile.of({SAMPLED: 5}),
        DiscreteProfile.from_points([(0.3, 1e-7)]),
    ]
    one = compose([profile, *others]).epsilon(1e-5)
    another = compose([*reversed(others), profile]).epsilon(1e-5)
    assert one == pytest.approx(another, rel=1e-9)


def test_composing_in_groups_costs_the_same(profile: PrivacyProfile) -> None:
    first, second = GaussianProfile(0.7), DiscreteProfile.from_points([(0.3, 1e-7)])
    at_once = compose([profile, first, second]).epsilon(1e-5)
    assert compose([compose([profile, first]), second]).epsilon(1e-5) == pytest.approx(at_once, rel=1e-9)
    assert compose([profile, compose([first, second])]).epsilon(1e-5) == pytest.approx(at_once, rel=1e-9)


def test_composing_costs_at_least_each_part(profile: PrivacyProfile) -> None:
    other = GaussianProfile(0.7)
    together = compose([profile, other]).epsilon(1e-5)
    assert together >= max(profile.epsilon(1e-5), other.epsilon(1e-5)) * (1 - 1e-9)


def test_selecting_one_member_for_sure_costs_what_it_costs(profile: PrivacyProfile) -> None:
    members = (GaussianProfile(2.0), profile, GaussianProfile(0.1))
    chosen = SelectionProfile(members, (0.0, 1.0, 0.0))
    for delta in DELTAS:
        assert chosen.epsilon(delta) == profile.epsilon(delta)


def test_a_selection_costs_between_its_cheapest_and_dearest_member(profile: PrivacyProfile) -> None:
    other = GaussianProfile(0.3)
    mixed = SelectionProfile((profile, other), (0.4, 0.6)).epsilon(1e-5)
    ends = sorted([profile.epsilon(1e-5), other.epsilon(1e-5)])
    assert ends[0] * (1 - 1e-9) <= mixed <= ends[1] * (1 + 1e-9)


@pytest.mark.parametrize("name", [name for name in FAMILIES if "renyi" not in name])
def test_renyi_accounting_is_never_tighter_than_the_profile(name: str) -> None:
    profile = FAMILIES[name](1.0)
    curve = profile.renyi_divergence(np.array([1.5, 2.0, 4.0, 8.0, 16.0, 32.0]))
    if curve is None:
        assert name in ("poisson, replace_one", "mixture step", "selection of everything")
        return
    assert np.all(np.diff(curve[np.isfinite(curve)]) >= -1e-12)
    for delta in DELTAS:
        # A discretised loss distribution may exceed the Rényi bound by its grid error.
        assert RenyiProfile.of(profile).epsilon(delta) >= profile.epsilon(delta) * (1 - 1e-9) - 2e-4


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-3, 2.0, float("nan"), float("inf"), True, "1e-5"])
def test_delta_outside_its_domain_is_refused(profile: PrivacyProfile, delta: float) -> None:
    with pytest.raises(ValueError, match="delta: got .*; accepted: a number strictly between 0 and 1"):
        profile.epsilon(delta)


def test_a_profile_of_nan_deltas_has_infinite_epsilon() -> None:
    class Broken(NonPrivateProfile):
        def deltas(self, epsilon: object) -> tuple[np.ndarray, np.ndarray]:
            nothing = np.full(np.shape(epsilon), np.nan)
            return nothing, nothing

    assert Broken().epsilon(1e-5) == np.inf
