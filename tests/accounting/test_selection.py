"""Random selection: the bound, the truth it bounds, and many selections at once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpmerge.accounting import (
    DEFAULT_ORDERS,
    DiscreteProfile,
    GaussianProfile,
    LossDistributionProfile,
    NonPrivateProfile,
    PrivacyProfile,
    RenyiProfile,
    SelectionProfile,
    compose,
    selection_epsilons,
    selection_feasible,
    selection_renyi_epsilons,
)
from dpmerge.accounting.step_mechanisms import PoissonStep
from dpmerge.errors import InvalidInputError
from oracle import gaussian_mp, mixture_quadrature

mus = st.lists(st.floats(0.05, 6), min_size=2, max_size=4)


@st.composite
def selections(draw: st.DrawFn) -> tuple[list[float], list[float]]:
    members = draw(mus)
    raw = draw(st.lists(st.floats(0, 1), min_size=len(members), max_size=len(members)).filter(lambda x: sum(x) > 0.1))
    return members, [value / sum(raw) for value in raw]


@given(selections(), st.sampled_from([1e-3, 1e-5, 1e-9]))
def test_selection_of_gaussians_is_never_below_fifty_digits(
    case: tuple[list[float], list[float]], delta: float
) -> None:
    members, probabilities = case
    profile = SelectionProfile(tuple(map(GaussianProfile, members)), tuple(probabilities))
    epsilon = profile.epsilon(delta)
    truth = gaussian_mp.rs_epsilon(members, probabilities, delta)
    assert epsilon >= truth
    assert epsilon == pytest.approx(float(truth), rel=1e-8)
    many = selection_epsilons([GaussianProfile(mu) for mu in members], [probabilities], delta)[0]
    assert many >= truth
    assert many == pytest.approx(float(truth), rel=1e-8)
    for conversion in ("classic", "improved"):
        expected = float(gaussian_mp.rs_rdp_epsilon(members, probabilities, delta, DEFAULT_ORDERS.tolist(), conversion))
        curve = RenyiProfile.of(profile).converted(conversion)
        assert curve.epsilon(delta) == pytest.approx(expected, rel=1e-9)


@settings(max_examples=25)
@given(
    st.lists(st.floats(0.5, 5), min_size=2, max_size=3),
    st.floats(0.05, 0.95),
    st.floats(0.05, 2),
    st.floats(0.0, 2),
)
def test_the_bound_is_never_below_the_true_mixture(
    sigmas: list[float], first: float, shift: float, epsilon: float
) -> None:
    probabilities = [first] + [(1 - first) / (len(sigmas) - 1)] * (len(sigmas) - 1)
    profile = SelectionProfile(tuple(GaussianProfile(shift / sigma) for sigma in sigmas), tuple(probabilities))
    for direction in ("forward", "backward"):
        truth = mixture_quadrature.hockey_stick(epsilon, sigmas, probabilities, shift, direction)
        assert profile.delta(epsilon) >= truth
    public = mixture_quadrature.public_index_delta(epsilon, sigmas, probabilities, shift)
    assert profile.delta(epsilon) == pytest.approx(public, rel=1e-9), "with a public index the bound is exact"


def test_scalar_mixtures_can_be_more_private_than_the_combination_of_equal_variance() -> None:
    """The paper's comparison of the two fails in (ε, δ): σ = (1, 2), π = ½, Δ = 0.1, δ = 1e-5."""
    combination = mixture_quadrature.equal_variance_epsilon(1e-5, [1, 2], [0.5, 0.5], 0.1)
    truth = mixture_quadrature.true_epsilon(1e-5, [1, 2], [0.5, 0.5], 0.1)
    assert combination == pytest.approx(0.207, abs=5e-4)
    assert truth == pytest.approx(0.150, abs=5e-4)
    bound = SelectionProfile((GaussianProfile(0.1), GaussianProfile(0.05)), (0.5, 0.5)).epsilon(1e-5)
    assert bound >= truth


MEMBERS: tuple[PrivacyProfile, ...] = (
    GaussianProfile(1.5),
    LossDistributionProfile.of({PoissonStep(1.0, 0.05, False): 30}),
    DiscreteProfile.from_points([(0.5, 1e-7), (1.5, 1e-9)]),
)


def test_many_selections_equal_one_by_one_for_any_profiles() -> None:
    rows = np.random.default_rng(0).dirichlet([0.5, 0.5, 0.5], 40)
    rows[0], rows[1] = [1, 0, 0], [0, 1, 0]
    many = selection_epsilons(MEMBERS, rows, 1e-5)
    for row, epsilon in zip(rows, many, strict=True):
        one = SelectionProfile(MEMBERS, tuple(row))
        assert one.delta(epsilon) <= 1e-5 * (1 + 1e-12)
        assert epsilon == pytest.approx(one.epsilon(1e-5), rel=1e-7)


def test_feasibility_agrees_with_epsilon() -> None:
    rows = np.random.default_rng(1).dirichlet([1, 1, 1], 200)
    epsilons = selection_epsilons(MEMBERS, rows, 1e-5)
    target = float(np.median(epsilons)) * (1 + 1e-6)
    np.testing.assert_array_equal(selection_feasible(MEMBERS, rows, target, 1e-5), epsilons <= target)


def test_a_non_private_member_needs_a_probability_below_delta() -> None:
    members = (GaussianProfile(0.5), NonPrivateProfile())
    assert SelectionProfile(members, (1 - 2e-5, 2e-5)).epsilon(1e-5) == np.inf
    assert SelectionProfile(members, (1 - 5e-6, 5e-6)).epsilon(1e-5) < 10
    rows = [[1 - 2e-5, 2e-5], [1 - 5e-6, 5e-6], [1, 0]]
    many = selection_epsilons(members, rows, 1e-5)
    assert many[0] == np.inf
    assert many[1] == pytest.approx(SelectionProfile(members, rows[1]).epsilon(1e-5), rel=1e-8)
    assert many[2] == pytest.approx(GaussianProfile(0.5).epsilon(1e-5), rel=1e-8)


def test_a_non_private_member_of_probability_delta_is_not_private() -> None:
    members = (GaussianProfile(1.0), NonPrivateProfile())
    assert SelectionProfile(members, (1 - 1e-5, 1e-5)).epsilon(1e-5) == np.inf
    assert selection_epsilons(members, [[1 - 1e-5, 1e-5]], 1e-5)[0] == np.inf
    assert not selection_feasible(members, [[1 - 1e-5, 1e-5]], 100.0, 1e-5)[0]
    pair = DiscreteProfile.from_points([(1.0, 1e-5)])
    assert compose([pair, GaussianProfile(1.0)]).epsilon(1e-5) == np.inf


def test_both_directions_are_mixed_before_the_larger_is_taken() -> None:
    """max(Σ π δ₊, Σ π δ₋), not Σ π max(δ₊, δ₋): add_remove members keep their orientation."""
    sampled = LossDistributionProfile.of({PoissonStep(1.0, 0.02, False): 200})
    profile = SelectionProfile((sampled, GaussianProfile(0.4)), (0.5, 0.5))
    plus, minus = profile.deltas(0.5)
    sampled_plus, sampled_minus = sampled.deltas(0.5)
    gaussian = GaussianProfile(0.4).delta(0.5)
    assert plus == pytest.approx(0.5 * sampled_plus + 0.5 * gaussian)
    assert minus == pytest.approx(0.5 * sampled_minus + 0.5 * gaussian)
    assert sampled_plus != sampled_minus


@given(selections(), st.randoms())
def test_permuting_candidates_changes_nothing(case: tuple[list[float], list[float]], random: object) -> None:
    members, probabilities = case
    pairs = list(zip(members, probabilities, strict=True))
    random.shuffle(pairs)  # type: ignore[attr-defined]
    one = SelectionProfile(tuple(map(GaussianProfile, members)), tuple(probabilities)).epsilon(1e-5)
    other = SelectionProfile(tuple(GaussianProfile(mu) for mu, _ in pairs), tuple(p for _, p in pairs)).epsilon(1e-5)
    assert one == pytest.approx(other, rel=1e-9)


def test_renyi_maps_agree_with_single_curves_and_skip_unused_members() -> None:
    members = (GaussianProfile(0.5), GaussianProfile(3.0), NonPrivateProfile())
    curves = np.array([member.renyi_divergence(DEFAULT_ORDERS) for member in members])
    rows = np.array([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0], [0.9, 0.0, 0.1], [0.999, 0.001, 0.0]])
    many = selection_renyi_epsilons(curves, rows, 1e-5, DEFAULT_ORDERS, "improved")
    for row, epsilon in zip(rows, many, strict=True):
        expected = RenyiProfile.of(SelectionProfile(members, tuple(row))).epsilon(1e-5)
        assert epsilon == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("curves", [[[0.1, -1e-9]], [[0.1, 0.2, 0.3]], [0.1]])
def test_bad_curves_are_refused(curves: list[list[float]]) -> None:
    with pytest.raises(InvalidInputError, match="curves: got an array of shape .*; accepted: one row a member of 2"):
        selection_renyi_epsilons(np.array(curves), [[1.0]], 1e-5, np.array([2.0, 3.0]), "improved")


BAD_PROBABILITIES = {
    "too few": (1.0,),
    "too many": (0.5, 0.25, 0.25),
    "negative": (1.5, -0.5),
    "not summing to one": (0.5, 0.4),
    "NaN": (0.5, float("nan")),
    "infinite": (0.5, float("inf")),
}


@pytest.mark.parametrize("name", BAD_PROBABILITIES)
def test_probabilities_off_the_simplex_are_refused(name: str) -> None:
    members = (GaussianProfile(1.0), GaussianProfile(2.0))
    with pytest.raises(InvalidInputError, match="probabilities.*: got .*; accepted: .*2 numbers ≥ 0"):
        SelectionProfile(members, BAD_PROBABILITIES[name])
    with pytest.raises(InvalidInputError, match="probabilities"):
        selection_epsilons(members, [BAD_PROBABILITIES[name]], 1e-5)
    with pytest.raises(InvalidInputError, match="probabilities"):
        selection_feasible(members, [BAD_PROBABILITIES[name]], 1.0, 1e-5)


def test_selecting_among_nothing_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="at least one profile"):
        SelectionProfile((), ())
