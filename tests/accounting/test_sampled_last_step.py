"""last_step of Poisson-sampled runs: against exact laws by integration, and every premise that may fail."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from accounting.runs import DELTA, failing, sampled, sgd
from dpmerge.accounting import (
    Checkpoint,
    Clipping,
    DpSgd,
    GaussianProfile,
    GaussianRelease,
    LinearCombination,
    LossDistributionProfile,
    Optimizer,
    StepBlock,
    joint_release,
    last_step,
    last_step_mus,
    tightest,
)
from dpmerge.accounting.discretised_mixture import mixture_pmfs
from dpmerge.accounting.step_mechanisms import MixtureStep
from oracle import sampled_last_step as oracle
from oracle.trajectory_convolution import mixture_of_gaussians_delta

EPSILONS = (0.05, 0.5, 1.0, 2.0)


def run_of(described: oracle.Run, **facts: Any) -> DpSgd:
    blocks = [
        StepBlock(
            steps=1,
            noise_multiplier=sigma,
            clip_norm=described.clip,
            learning_rate=described.rate,
            sampling_rate=described.q,
        )
        for sigma in described.noise
    ]
    return DpSgd(blocks=blocks, adjacency="add_remove", **facts)  # type: ignore[arg-type]


CASES = {
    "one step": ([oracle.Run([1.0], 0.3), oracle.Run([2.0], 0.3)], (0.3, 0.7), 0.0),
    "two steps": ([oracle.Run([1.5, 1.0], 0.3), oracle.Run([2.0, 1.2], 0.3)], (0.4, 0.6), 0.0),
    "release noise": ([oracle.Run([1.5, 1.0], 0.3), oracle.Run([2.0, 1.2], 0.3)], (0.4, 0.6), 0.8),
    "unequal rates": ([oracle.Run([1.0], 0.3, 2.0, 0.5), oracle.Run([2.0, 0.8], 0.1, 0.3, 3.0)], (0.9, 0.1), 0.0),
    "beside a full batch": ([oracle.Run([3.0, 2.0], 1.0), oracle.Run([1.0, 1.5], 0.3)], (0.5, 0.5), 0.0),
    "alone": ([oracle.Run([1.0, 1.5, 0.9], 0.3)], (1.0,), 0.0),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("removal", [True, False])
def test_what_is_certified_is_the_exact_law_of_what_is_seen(case: str, removal: bool) -> None:
    described, weights, tau = CASES[case]
    bound = last_step(LinearCombination.of_runs([run_of(each) for each in described], weights, release_noise=tau))
    assert bound.certifies
    assert bound.profile is not None
    for epsilon in EPSILONS:
        truth = oracle.seen_delta(epsilon, described, weights, tau, removal=removal)
        computed = float(bound.profile.deltas(epsilon)[0 if removal else 1])
        assert computed >= truth * (1 - 1e-6), "never below"
        assert computed == pytest.approx(truth, rel=2e-3, abs=1e-9)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("removal", [True, False])
def test_the_merged_model_alone_never_tells_more(case: str, removal: bool) -> None:
    described, weights, tau = CASES[case]
    bound = last_step(LinearCombination.of_runs([run_of(each) for each in described], weights, release_noise=tau))
    assert bound.profile is not None
    for epsilon in EPSILONS:
        truth = oracle.merged_model_delta(epsilon, described, weights, tau, removal=removal)
        assert float(bound.profile.deltas(epsilon)[0 if removal else 1]) >= truth * (1 - 1e-9)


def test_the_oracles_agree_where_one_step_is_all_there_is() -> None:
    described, weights, tau = CASES["one step"]
    shifts, probabilities = oracle.merged_last_step(described, weights, tau)
    for epsilon in (-1.0, 0.0, 0.7):
        exact = mixture_of_gaussians_delta(epsilon, shifts.tolist(), probabilities.tolist(), 1.0)
        for removal, value in ((True, exact.remove), (False, exact.add)):
            seen = oracle.seen_delta(epsilon, described, weights, tau, removal=removal)
            assert seen == pytest.approx(value, rel=1e-9)
            assert seen == pytest.approx(oracle.merged_model_delta(epsilon, described, weights, tau, removal=removal))


def test_trained_runs_whose_others_amplify_what_is_hidden_are_never_told_apart_better() -> None:
    """Simulated: in the second step all other records' gradients follow the hidden weights; thresholds by pilot runs.

    What is counted is within Hoeffding's bound at 1e-9 on either side.
    """
    described, weights, _ = CASES["two steps"]
    bound = last_step(LinearCombination.of_runs([run_of(each) for each in described], weights))
    assert bound.profile is not None
    trials = 200_000
    random = np.random.default_rng(7)

    def merged(with_record: bool) -> np.ndarray:
        total = np.zeros(trials)
        for run, weight in zip(described, weights, strict=True):
            theta = np.zeros(trials)
            for sigma in run.noise:
                others = 50 * np.sign(theta)  # as many clipped gradients as follow the sign of the hidden weight
                drawn = (random.random(trials) < run.q) * with_record
                theta = theta + others + drawn + sigma * random.standard_normal(trials)
            total += weight * theta
        return total

    pilot_with, pilot_without = merged(True), merged(False)
    edges = np.quantile(np.concatenate([pilot_with, pilot_without]), np.linspace(0, 1, 200))
    for epsilon in (0.1, 0.5, 1.0):
        masses = [np.histogram(each, edges)[0] / trials for each in (pilot_with, pilot_without)]
        told = masses[0] > np.exp(epsilon) * masses[1]
        in_event = []
        for with_record in (True, False):
            place = np.searchsorted(edges, merged(with_record)) - 1
            inside = (place >= 0) & (place < told.size)
            in_event.append(float(np.mean(inside & told[np.clip(place, 0, told.size - 1)])))
        margin = np.sqrt(np.log(2e9) / (2 * trials))
        least = (in_event[0] - margin) - np.exp(epsilon) * (in_event[1] + margin)
        assert bound.profile.delta(epsilon) >= least
        assert least > 0 or epsilon > 0.5, "the attack tells something"


def test_it_is_between_the_steps_before_and_joint_release() -> None:
    for steps in (1, 3, 20):
        runs = [sampled(steps, noise=0.9, rate=0.2), sampled(steps, noise=2.0, rate=0.05)]
        combination = LinearCombination.of_runs(runs, [0.2, 0.8])
        merged, joint = last_step(combination).epsilon(DELTA), joint_release(combination).epsilon(DELTA)
        assert merged is not None
        assert joint is not None
        assert merged < joint
        if steps > 1:
            before = LinearCombination(checkpoints=[Checkpoint(run, steps - 1) for run in runs], weights=[0.2, 0.8])
            assert merged > joint_release(before).epsilon(DELTA)  # type: ignore[operator]


def test_a_run_alone_costs_what_it_costs_and_release_noise_lowers_it() -> None:
    alone = LinearCombination.of_runs([sampled(4)], [1.0])
    assert last_step(alone).epsilon(DELTA) == pytest.approx(joint_release(alone).epsilon(DELTA), rel=2e-4)
    costs = [
        last_step(LinearCombination.of_runs([sampled(4)], [1.0], release_noise=tau)).epsilon(DELTA)
        for tau in (0.0, 1.0, 100.0)
    ]
    assert costs[0] > costs[1] > costs[2] >= sampled(4).profile(3).epsilon(DELTA)  # type: ignore[operator]


def test_sampling_at_a_rate_of_nearly_one_costs_the_full_batch() -> None:
    almost = [sampled(3, rate=1 - 1e-12, noise=s) for s in (1.0, 2.0)]
    full = [sgd([1.0] * 3, s, adjacency="add_remove") for s in (1.0, 2.0)]
    expected = last_step(LinearCombination.of_runs(full, [0.3, 0.7])).epsilon(DELTA)
    found = last_step(LinearCombination.of_runs(almost, [0.3, 0.7])).epsilon(DELTA)
    assert found == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(
    ("optimizer", "coefficient"),
    [
        (Optimizer(momentum=0.9), 1.0),
        (Optimizer(momentum=0.9, nesterov=True), 1.9),
        (Optimizer(momentum=0.9, dampening=0.5), 0.5),
        (Optimizer(weight_decay=0.1), 1.0),
    ],
)
def test_the_rate_is_the_coefficient_of_the_last_gradient(optimizer: Optimizer, coefficient: float) -> None:
    other = oracle.Run([2.0, 1.2], 0.3)
    stated = [run_of(oracle.Run([1.5, 1.0], 0.3), optimizer=optimizer), run_of(other)]
    scaled = [run_of(oracle.Run([1.5, 1.0], 0.3, coefficient)), run_of(other)]
    found, expected = (last_step(LinearCombination.of_runs(runs, [0.4, 0.6])) for runs in (stated, scaled))
    assert found.profile == expected.profile


def test_steps_of_rate_zero_after_the_last_acting_one_are_counted_as_of_a_full_batch() -> None:
    def pausing(rate: float) -> DpSgd:
        rates = (1.0, 1.0, 0.0)
        block = StepBlock(steps=3, noise_multiplier=1.0, clip_norm=1.0, learning_rate=rates, sampling_rate=rate)
        return DpSgd(blocks=[block], adjacency="add_remove")  # type: ignore[arg-type]

    found = last_step(LinearCombination.of_runs([pausing(0.3), sampled(2, rate=0.3)], [0.5, 0.5]))
    swapped = last_step(LinearCombination.of_runs([sampled(3, rate=0.3), sampled(2, rate=0.3)], [0.5, 0.5]))
    assert found.profile == swapped.profile, "two of three steps beside the merged one, whichever they are"
    full = [pausing(1.0), sgd([1.0] * 2, 1.0, adjacency="add_remove")]
    assert last_step_mus(full, [[0.5, 0.5]])[0] == pytest.approx(np.sqrt(3 + 2))
    still = DpSgd(
        blocks=[StepBlock(steps=2, noise_multiplier=1, clip_norm=1, learning_rate=0, sampling_rate=0.3)],
        adjacency="add_remove",  # type: ignore[arg-type]
    )
    assert last_step(LinearCombination.of_runs([still], [1.0])).profile == still.profile()


def test_ancestors_are_charged_and_releases_with_noise_on_the_weights_are_merged() -> None:
    parent = sampled(5)
    children = [sampled(2, ancestry=Checkpoint(parent, 4)), sampled(2, noise=3.0)]
    orphans = [sampled(2), sampled(2, noise=3.0)]
    found = last_step(LinearCombination.of_runs(children, [0.5, 0.5]))
    assert found.certifies
    assert found.epsilon(DELTA) > last_step(LinearCombination.of_runs(orphans, [0.5, 0.5])).epsilon(DELTA)  # type: ignore[operator]
    release = GaussianRelease(sensitivity=1.0, standard_deviation=2.0, adjacency="add_remove", on_weights=True)  # type: ignore[arg-type]
    twin = sgd([1.0], 2.0, adjacency="add_remove")
    profiles = [last_step(LinearCombination.of_runs([sampled(2), r], [0.5, 0.5])).profile for r in (release, twin)]
    assert profiles[0] == profiles[1]


def two(**facts: Any) -> list[DpSgd]:
    return [sampled(2, **facts), sampled(2)]


REFUSED: dict[str, tuple[list[DpSgd], str]] = {
    "replace_one": ([sampled(2, adjacency="replace_one") for _ in range(2)], "full_batch"),
    "a clipped total": (two(clipping=Clipping.AGGREGATE), "per_example_clipping"),
    "Adam": (two(optimizer=Optimizer(name="adam")), "last_update_linear_in_its_gradient"),
    "noise that may be another's": (two(independent_noise=False), "sampling_independent_between_runs"),
    "eleven runs": ([sampled(2) for _ in range(11)], "at_most_ten_sampled_runs"),
    "a run and its parent": ([(parent := sampled(2)), sampled(2, ancestry=Checkpoint(parent, 2))], "no_run_descends"),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_a_premise_that_fails_is_named(reason: str) -> None:
    runs, name = REFUSED[reason]
    bound = last_step(LinearCombination.of_runs(runs, [1 / len(runs)] * len(runs)))
    assert bound.profile is None
    assert not bound.certifies
    assert any(each.startswith(name) for each in failing(bound))


def test_ten_runs_are_covered_in_seconds_and_auto_takes_it() -> None:
    runs = [sampled(1, noise=s, rate=0.1) for s in np.linspace(0.8, 2.0, 10)]
    combination = LinearCombination.of_runs(runs, np.linspace(1, 2, 10) / 15)
    best = tightest([joint_release(combination), last_step(combination)], DELTA)
    assert best is not None
    assert best[0].theorem == "last_step"
    always = [sgd([1.0], s, adjacency="add_remove") for s in np.linspace(0.8, 2, 10)]
    assert best[1] < last_step(LinearCombination.of_runs(always, combination.weights)).epsilon(DELTA)  # type: ignore[operator]


@pytest.mark.parametrize("interval", [1e-3, 1e-2])
def test_a_mixture_of_a_thousand_is_pessimistic_on_a_coarser_grid(interval: float) -> None:
    """Each component split into many equal ones: the same distribution, on as coarse a grid as a thousand need."""
    shifts, probabilities = (0.0, 0.5, 1.2), (0.7, 0.2, 0.1)
    spread = tuple(float(np.nextafter(s, 9) + i * 1e-15) for s in shifts for i in range(400))
    shares = tuple(p / 400 for p in probabilities for _ in range(400))
    many, few = mixture_pmfs(spread, shares, interval), mixture_pmfs(shifts, probabilities, interval)
    for crowded, plain in zip(many, few, strict=True):
        for epsilon in (0.1, 0.5, 1.0):
            deltas = [
                pmf.infinity + float(pmf.probabilities @ np.maximum(0, -np.expm1(epsilon - pmf.losses)))
                for pmf in (crowded, plain)
            ]
            exact = mixture_of_gaussians_delta(epsilon, shifts, probabilities, 1.0)
            truth = exact.remove if crowded is many[0] else exact.add
            assert deltas[0] >= truth * (1 - 1e-9)
            assert deltas[0] == pytest.approx(deltas[1], rel=1e-2)


def test_a_mixture_of_one_that_always_occurs_is_that_gaussian() -> None:
    for shifts, probabilities in (((0.7,), (1.0,)), ((0.0, 0.7, 3.0), (0.0, 1.0, 0.0))):
        profile = LossDistributionProfile.of({MixtureStep(shifts, probabilities): 1})
        for epsilon in (0.0, 0.5, 2.0):
            for delta in profile.deltas(epsilon):
                assert float(delta) == pytest.approx(GaussianProfile(0.7).delta(epsilon), rel=1e-4)
                assert float(delta) >= GaussianProfile(0.7).delta(epsilon) * (1 - 1e-9)


@pytest.mark.parametrize(("steps", "joint", "merged"), [(1, 2.73, 0.446), (10, 4.59, 4.46), (1000, 42.13, 42.11)])
def test_the_figures_on_the_page(steps: int, joint: float, merged: float) -> None:
    combination = LinearCombination.of_runs([sampled(steps, noise=s, rate=0.1) for s in (0.8, 2.0)], [0.25, 0.75])
    assert joint_release(combination).epsilon(DELTA) == pytest.approx(joint, abs=0.005)
    assert last_step(combination).epsilon(DELTA) == pytest.approx(merged, abs=0.005)
