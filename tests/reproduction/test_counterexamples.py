"""The two counterexamples beside logistic regression: merged_trajectory is violated, by the margins stated."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dpmerge.auditing.estimate import estimate_epsilon
from dpmerge.auditing.scenario import DELTA
from oracle import affine_chains, gaussian_mp
from reproduction.scenarios import counterexamples
from reproduction.scenarios.adversarial_losses import linear_mu
from reproduction.scenarios.counterexamples import (
    CONTRACTIONS,
    NOISE_MULTIPLIERS,
    OTHERS,
    WEIGHTS,
    contracted_parts,
    read_back,
    written_down,
)

SCENARIOS = {scenario.name: scenario for scenario in counterexamples.SCENARIOS}


def test_revealed_states_at_full_size_violate_merged_trajectory() -> None:
    """ε ≥ 9 with 95 % confidence; and less than is known if both hidden models are seen as they are."""
    scenario = SCENARIOS["revealed_state"]
    assert scenario.trials == 2_000_000
    found = scenario.play(trials=None, confidence=0.95, seed=0)
    claimed = {f.claim.by: f.claim.value for f in found.findings}
    assert claimed["merged_trajectory"] == pytest.approx(3.32, abs=5e-3)
    assert claimed["last_step"] == pytest.approx(24.95, abs=5e-3)
    assert claimed["joint_release"] == pytest.approx(39.8, abs=5e-2)
    assert found.as_theory_says
    attacked = found.findings[0].estimate
    assert attacked.estimator == "counting"
    truth = gaussian_mp.epsilon(float(np.hypot(2 / 4, 2 / 0.5)), DELTA)
    assert 9 <= attacked.bound < float(truth)


def loss_of_others(weights: np.ndarray) -> float:
    zeroth, first, second = weights
    return float(0.4 * (first * (np.cos(zeroth / 40) - 1) + second * np.sin(zeroth / 40)))


def gradient_of_others(weights: np.ndarray) -> np.ndarray:
    """By differences, so that nothing is taken from the code; and clipped to 1, which must never act."""
    slopes = [(loss_of_others(weights + width) - loss_of_others(weights - width)) / 2e-4 for width in np.eye(3) * 1e-4]
    found = np.array(slopes)
    assert np.linalg.norm(found) < 1, "clipping would act"
    return found


@pytest.mark.parametrize("present", [True, False])
def test_revealed_states_are_those_of_ordinary_training(present: bool) -> None:
    """Gradient descent on the stated losses, 10⁷ equal others at a time, with the same noise."""
    trials = 30
    across, up = written_down(np.random.default_rng(1), trials, present, WEIGHTS, NOISE_MULTIPLIERS)
    rng = np.random.default_rng(1)
    first, second = rng.standard_normal((3, trials, 2)), rng.standard_normal((2, trials, 2))
    record = np.array([1.0 if present else -1.0, 0.0, 0.0])
    for trial in range(trials):
        merged = np.zeros(3)
        for run in range(2):
            weights = np.zeros(3)
            for noise in (first[:, trial, run], np.append(0.0, second[:, trial, run])):
                total = record + OTHERS * gradient_of_others(weights)
                # Noise is symmetric: it is added here, and there as well.
                weights = weights - total + NOISE_MULTIPLIERS[run] * noise
            merged += WEIGHTS[run] * weights
        seen = 1 - merged[1] / (0.4 * OTHERS), -merged[2] / (0.4 * OTHERS)
        assert (across[trial], up[trial]) == pytest.approx(seen, abs=1e-8)


def test_reading_back_weighs_both_possible_pairs_of_hidden_models() -> None:
    """Of two angles on one side of the long arrow or the other: the ratio is that of the two readings together."""
    hidden = np.array([[1.5, -0.7], [-3.0, 0.2]])  # run by run, two trials
    across, up = WEIGHTS @ np.cos(hidden / 40), WEIGHTS @ np.sin(hidden / 40)
    found = read_back(across, up, WEIGHTS, NOISE_MULTIPLIERS)
    for trial in range(2):
        arrows = WEIGHTS * np.exp(1j * hidden[:, trial] / 40)
        total = arrows.sum()
        mirrored = 40 * np.angle(total**2 / np.abs(total) ** 2 * np.conj(arrows))
        ways = [hidden[:, trial], mirrored]
        assert np.abs((WEIGHTS * np.exp(1j * mirrored / 40)).sum() - total) < 1e-12
        likelihood = {
            centre: sum(np.exp(-np.sum((way - centre) ** 2 / (2 * NOISE_MULTIPLIERS**2))) for way in ways)
            for centre in (-1, 1)
        }
        assert found[trial] == pytest.approx(np.log(likelihood[-1] / likelihood[1]), rel=1e-6)


def test_contraction_at_full_size_violates_merged_trajectory_alone() -> None:
    scenario, oracle = SCENARIOS["contraction"], affine_chains.unequal_contractions()
    assert scenario.trials >= 10**6
    estimate = scenario.estimate(trials=None, confidence=0.99, seed=0)
    claims = scenario.claims()
    mus = {claim.by: claim.mu for claim in claims}
    assert mus["merged_trajectory"] == pytest.approx(oracle.merged_trajectory, rel=1e-9)
    assert mus["joint_release"] == pytest.approx(oracle.joint_release, rel=1e-9)
    assert mus["hidden_state"] == pytest.approx(7.155, abs=5e-4)
    for claim in claims:
        assert claim.value is not None
        assert (estimate.bound > claim.value) == claim.false_here == (claim.by == "merged_trajectory")
    mu = estimate.mu
    assert mu is not None
    assert mu.low < oracle.truth < mu.high
    assert mu.high - mu.low < 0.02
    assert linear_mu(contracted_parts(), CONTRACTIONS) == pytest.approx(oracle.truth, rel=1e-12)
    assert f"the true μ is {oracle.truth:.2f}" in scenario.note


def test_contraction_by_counting_alone_violates_merged_trajectory() -> None:
    """Nothing is assumed of the law of the scores."""
    scenario = SCENARIOS["contraction"]
    attack = replace(scenario.attack(), gaussian=False)
    counted = estimate_epsilon(attack, delta=DELTA, trials=200_000, confidence=0.95, seed=0)
    [claim] = [claim for claim in scenario.claims() if claim.by == "merged_trajectory"]
    assert claim.value is not None
    assert claim.value < counted.bound < float(gaussian_mp.epsilon(affine_chains.unequal_contractions().truth, DELTA))
