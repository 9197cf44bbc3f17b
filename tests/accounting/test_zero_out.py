"""zero_out: costs against the law of the pair itself, theorems and premises, and what is implied of replace_one."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from accounting.runs import DELTA, sampled, sgd
from dpmerge.accounting import (
    AccountantHistory,
    Adjacency,
    ApproximateDp,
    Bound,
    Checkpoint,
    DpSgd,
    Exposure,
    GaussianDp,
    GaussianProfile,
    GaussianRelease,
    LinearCombination,
    RenyiMechanism,
    Smoothness,
    StepBlock,
    compose,
    hidden_state,
    implied_replace_one_epsilon,
    joint_release,
    last_step,
    merged_trajectory,
)
from dpmerge.accounting.premises import NULL_RECORD
from dpmerge.errors import InvalidInputError
from oracle import null_record
from oracle.gaussian_mp import epsilon as gaussian_oracle

ZERO_OUT = Adjacency.ZERO_OUT
RATES = [1.0, 2.0, 0.5]


def shuffled(noise: float | tuple[float, ...], *, steps_per_epoch: int, **facts: Any) -> DpSgd:
    levels = (noise,) if isinstance(noise, float) else noise
    blocks = [StepBlock(steps=1, noise_multiplier=each, clip_norm=1.0, learning_rate=1.0) for each in levels]
    return DpSgd(blocks=blocks, adjacency=ZERO_OUT, sampling="shuffled", steps_per_epoch=steps_per_epoch, **facts)  # type: ignore[arg-type]


# Against the definition: n - 1 records and a further one, or a null record in its place


@pytest.mark.parametrize("epsilon", [0.1, 0.3, 1.0])
@pytest.mark.parametrize(("sigma", "q"), [(1.0, 0.3), (0.7, 0.05), (2.0, 0.6)])
def test_a_poisson_step_costs_what_its_worst_pair_does(sigma: float, q: float, epsilon: float) -> None:
    plus, minus = sampled(rate=q, noise=sigma, adjacency=ZERO_OUT).profile().deltas(epsilon)
    alone = null_record.hockey_sticks([0.0] * 4, 1.0, epsilon, sigma=sigma, q=q)
    assert (float(plus), float(minus)) == pytest.approx(alone, rel=1e-5, abs=1e-9)
    for others in ([1.0, -1.0, 1.0], [0.4, 0.4, 0.4, 0.4, -1.0], [1.0] * 6):
        found = null_record.hockey_sticks(others, 1.0, epsilon, sigma=sigma, q=q)
        assert found[0] <= float(plus) * (1 + 1e-6) + 1e-12
        assert found[1] <= float(minus) * (1 + 1e-6) + 1e-12


@pytest.mark.parametrize("epsilon", [0.2, 1.0])
def test_two_poisson_steps_cost_what_their_worst_pair_does(epsilon: float) -> None:
    plus, minus = sampled(steps=2, rate=0.3, adjacency=ZERO_OUT).profile().deltas(epsilon)
    alone = null_record.two_steps([], 1.0, epsilon, sigma=1.0, q=0.3)
    assert (float(plus), float(minus)) == pytest.approx(alone, rel=2e-4, abs=1e-6)
    assert max(alone) > 1e-3
    others = null_record.two_steps([1.0, -1.0, 1.0], 1.0, epsilon, sigma=1.0, q=0.3)
    assert others[0] < float(plus)
    assert others[1] <= float(minus) * (1 + 1e-6) + 1e-9


@pytest.mark.parametrize("epsilon", [0.2, 1.0])
def test_a_clipped_total_is_turned_round(epsilon: float) -> None:
    """Others that pull one way are outvoted by one record: 2C, of Poisson batches too."""
    plus, minus = sampled(rate=0.3, adjacency=ZERO_OUT, clipping="aggregate").profile().deltas(epsilon)
    found = null_record.hockey_sticks([-1.0] * 11, 20.0, epsilon, sigma=1.0, q=0.3, aggregate=True)
    assert found[0] <= float(plus)
    assert found[0] > 0.9 * float(plus), "nearly always somebody else is in the batch"
    assert found[1] <= float(minus) + 1e-12
    whole = null_record.hockey_sticks([-1.0], 20.0, epsilon, sigma=1.0, aggregate=True)
    assert whole == pytest.approx([float(d) for d in GaussianProfile(2.0).deltas(epsilon)], rel=1e-5)
    assert sgd(noise=1.0, adjacency="zero_out", clipping="aggregate").profile() == GaussianProfile(2.0)


def test_a_full_batch_step_costs_one_clip_norm() -> None:
    assert sgd(RATES, noise=2.0, adjacency="zero_out").profile() == GaussianProfile(math.sqrt(3) / 2)
    found = null_record.hockey_sticks([1.0, -0.5], 1.0, 0.5, sigma=2.0)
    assert found == pytest.approx([float(d) for d in GaussianProfile(0.5).deltas(0.5)], rel=1e-5)


def test_a_realised_divisor_would_cost_more_than_is_claimed() -> None:
    """Why it is refused: the size of the batch tells whether the record was drawn (n = 1000, q = 0.01, σ = 1)."""
    claimed = sampled(rate=0.01, noise=1.0, adjacency=ZERO_OUT).profile().delta(1.0)
    assert null_record.realised_size_seen(1000, 0.01, 1.0, 1.0) / claimed == pytest.approx(2.9, abs=0.05)
    # In one coordinate alone, few records: dividing by the realised size shows there, too.
    divided = null_record.hockey_sticks([0.0] * 3, 1.0, 1.0, sigma=1.0, q=0.3, realised_divisor=True)
    constant = null_record.hockey_sticks([0.0] * 3, 1.0, 1.0, sigma=1.0, q=0.3)
    assert divided != pytest.approx(constant, rel=0.05)


def test_a_pass_over_shuffled_batches_costs_one_step_at_its_smallest_noise() -> None:
    run = shuffled((2.0, 1.0, 4.0, 3.0), steps_per_epoch=2)
    assert run.profile() == GaussianProfile(math.sqrt(1 + 1 / 9))
    assert run.profile(3) == GaussianProfile(math.sqrt(1 + 1 / 16))
    for epsilon in (0.2, 0.5, 1.0):
        order_secret = null_record.secret_order(1.0, epsilon, sigmas=(2.0, 1.0))
        assert max(order_secret) <= run.profile(2).delta(epsilon)
        in_order = null_record.hockey_sticks([1.0], 1.0, epsilon, sigma=1.0)  # who sits where it is noisiest least
        assert max(in_order) == pytest.approx(run.profile(2).delta(epsilon), rel=1e-5)
    assert shuffled(2.0, steps_per_epoch=1, clipping="aggregate").profile() == GaussianProfile(1.0)


# Theorems: as under add_remove, without its divisor

COMBINATIONS: dict[str, tuple[Callable[[LinearCombination], Bound], dict[str, Any]]] = {
    "joint_release": (joint_release, {}),
    "last_step": (last_step, {}),
    "last_step, clipped total": (last_step, {"clipping": "aggregate"}),
    "hidden_state": (
        hidden_state,
        {"smoothness": Smoothness(kind="logistic", feature_bound=0.3, records=20, divisor=1.0, vouched_by="Ann")},
    ),
    "merged_trajectory, clipped total": (merged_trajectory, {"clipping": "aggregate"}),
}


@pytest.mark.parametrize("name", COMBINATIONS)
def test_theorems_say_what_they_say_under_add_remove(name: str) -> None:
    theorem, facts = COMBINATIONS[name]

    def bound(adjacency: str) -> Bound:
        runs = [sgd(RATES, noise=noise, adjacency=adjacency, **facts) for noise in (4.0, 8.0)]
        return theorem(LinearCombination.of_runs(runs, [0.3, 0.7], release_noise=0.5))

    ours, theirs = bound("zero_out"), bound("add_remove")
    assert ours.certifies
    assert ours.mu == theirs.mu
    names = [{premise.name for premise in each.premises} for each in (ours, theirs)]
    assert names[0] - names[1] == {NULL_RECORD}
    assert names[1] - names[0] == {"public_divisor"}
    if "clipping" not in facts:
        assert ours.mu == pytest.approx(bound("replace_one").mu / 2)  # type: ignore[operator]


def test_one_merged_poisson_step_is_the_mixture_over_who_drew_the_record() -> None:
    weights, rates, noises = (0.3, 0.7), (0.2, 0.5), (1.0, 2.0)
    runs = [sampled(rate=q, noise=s, adjacency=ZERO_OUT) for q, s in zip(rates, noises, strict=True)]
    bound = merged_trajectory(LinearCombination.of_runs(runs, weights))
    assert bound.certifies
    assert bound.profile is not None
    deviation = math.hypot(*(w * s for w, s in zip(weights, noises, strict=True)))
    mixture = [
        (
            math.prod(q if d else 1 - q for q, d in zip(rates, drawn, strict=True)),
            sum(w for w, d in zip(weights, drawn, strict=True) if d),
            deviation,
        )
        for drawn in ((False, False), (False, True), (True, False), (True, True))
    ]
    at = np.linspace(-12 * deviation, 1 + 12 * deviation, 200_001)
    there = null_record.density(at, mixture)
    null = null_record.density(at, [(1.0, 0.0, deviation)])
    for epsilon in (0.1, 0.5):
        found = [
            float(np.trapezoid(np.maximum(a - math.exp(epsilon) * b, 0), at)) for a, b in ((there, null), (null, there))
        ]
        claimed = [float(d) for d in bound.profile.deltas(epsilon)]
        assert claimed == pytest.approx(found, rel=1e-3, abs=1e-9)
        assert all(ours >= true * (1 - 1e-9) for ours, true in zip(claimed, found, strict=True))


def test_poisson_runs_cost_what_they_cost_under_add_remove_in_both_directions() -> None:
    ours, theirs = (sampled(steps=100, rate=0.02, adjacency=a).profile() for a in (ZERO_OUT, Adjacency.ADD_REMOVE))
    for epsilon in (0.05, 0.5, 1.5):
        assert [*map(float, ours.deltas(epsilon))] == [*map(float, theirs.deltas(epsilon))]
    curves = [profile.renyi_divergence(np.array([2.0, 8.0])) for profile in (ours, theirs)]
    assert np.array_equal(*curves)  # type: ignore[arg-type]


def test_who_recorded_a_run_vouches_for_its_null_record() -> None:
    runs = [sgd(RATES, adjacency="zero_out", vouched_by=f"team {name}") for name in "ab"]
    premises = {p.name: p for p in joint_release(LinearCombination.of_runs(runs, [0.5, 0.5])).premises}
    assert premises[NULL_RECORD].holds
    assert premises[NULL_RECORD].vouched_by == "team a, team b"
    history = AccountantHistory(costs=sgd(RATES, adjacency="zero_out", vouched_by="the log"))
    named = {p.name: p.vouched_by for p in joint_release(LinearCombination.of_runs([history], [1.0])).premises}
    assert named[NULL_RECORD] == "the log"


ONE_SHOTS = [
    GaussianRelease(sensitivity=1.0, standard_deviation=2.0, adjacency=ZERO_OUT),
    GaussianDp(mu=0.5, adjacency=ZERO_OUT),
    RenyiMechanism(orders=(2.0, 8.0), values=(0.25, 1.0), adjacency=ZERO_OUT),
    ApproximateDp(points=((1.0, 1e-6),), adjacency=ZERO_OUT),
]


@pytest.mark.parametrize("release", ONE_SHOTS, ids=lambda each: type(each).__name__)
def test_an_imported_guarantee_is_of_the_adjacency_it_states_and_of_no_other(release: Any) -> None:
    """Its figures are taken as stated, and it composes with its own kind alone."""
    bound = joint_release(LinearCombination.of_runs([release], [1.0]))
    assert bound.certifies
    assert NULL_RECORD not in {premise.name for premise in bound.premises}
    for other in ("add_remove", "replace_one"):
        with pytest.raises(InvalidInputError, match="the same adjacency for every run"):
            Exposure.of([Checkpoint(release, 1), Checkpoint(sgd(adjacency=other), 1)])
    assert Exposure.of([Checkpoint(release, 1), Checkpoint(sgd(adjacency="zero_out"), 1)]).profile()


# What is implied of replace_one


def test_a_gaussian_guarantee_implies_twice_its_mu() -> None:
    profile = sgd(RATES, noise=4.0, adjacency="zero_out").profile()
    exact = float(gaussian_oracle(2 * math.sqrt(3) / 4, DELTA))
    assert implied_replace_one_epsilon(profile, DELTA) == pytest.approx(exact, rel=1e-10)
    assert implied_replace_one_epsilon(profile, DELTA) == sgd(RATES, noise=4.0).profile().epsilon(DELTA)
    assert implied_replace_one_epsilon(profile, DELTA) > compose([profile, profile]).epsilon(DELTA)


def test_a_sampled_guarantee_implies_the_triangle_inequality() -> None:
    run = sampled(steps=200, rate=0.02, noise=1.0, adjacency=ZERO_OUT)
    implied = implied_replace_one_epsilon(run.profile(), DELTA)
    half = implied / 2
    assert (1 + math.exp(half)) * run.profile().delta(half) <= DELTA
    assert (1 + math.exp(0.999 * half)) * run.profile().delta(0.999 * half) > DELTA
    own = sampled(steps=200, rate=0.02, noise=1.0, adjacency=Adjacency.REPLACE_ONE).profile().epsilon(DELTA)
    assert implied > own


def test_one_pair_implies_twice_its_epsilon() -> None:
    pair = ApproximateDp(points=((1.0, 1e-6),), adjacency=ZERO_OUT).profile()
    assert implied_replace_one_epsilon(pair, 4e-6) == pytest.approx(2.0, rel=1e-5)  # (1 + e)·1e-6 is enough
    assert implied_replace_one_epsilon(pair, 1e-6) == math.inf
    with pytest.raises(InvalidInputError, match="delta: got 0"):
        implied_replace_one_epsilon(pair, 0)


def test_shuffled_batches_are_refused_where_the_number_of_records_is_private() -> None:
    block = StepBlock(steps=2, noise_multiplier=1.0, clip_norm=1.0, learning_rate=1.0)
    with pytest.raises(InvalidInputError, match="shuffled under replace_one or zero_out only"):
        DpSgd(blocks=[block], adjacency="add_remove", sampling="shuffled", steps_per_epoch=2)  # type: ignore[arg-type]
