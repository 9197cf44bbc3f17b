"""The scenarios of single runs and draws: tight where scores are Gaussian, and none violated."""

from __future__ import annotations

import math

import pytest

from reproduction.scenarios.runs import SCENARIOS

TIGHT = {
    "single_full_batch",
    "single_many_steps",
    "single_shuffled",
    "single_prefix",
    "selection_visible",
    "selection_of_merges",
    "joint_models",
    "ancestry",
}
# Counted: at least so much of what is certified is shown.
SHARES = {
    "single_poisson": 0.55,
    "single_poisson_replace_one": 0.55,
    "selection_poisson": 0.55,
    "selection_hidden": 0.1,
}
BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}


def test_every_scenario_has_a_name_of_its_own_and_an_expectation() -> None:
    assert len(BY_NAME) == len(SCENARIOS)
    assert set(BY_NAME) == TIGHT | set(SHARES)


@pytest.mark.parametrize("name", BY_NAME)
def test_the_words_of_a_scenario_are_one_sentence(name: str) -> None:
    words = BY_NAME[name].words
    assert words.endswith(".")
    assert words.count(". ") == 0


@pytest.mark.parametrize("name", sorted(TIGHT))
def test_scenarios_with_gaussian_scores_are_tight(name: str) -> None:
    trials = {"single_many_steps": 40_000, "single_full_batch": 200_000}.get(name, 400_000)
    played = BY_NAME[name].play(trials=trials, confidence=0.999, seed=0)
    assert played.as_theory_says
    for finding in played.findings:
        assert finding.claim.proved
        assert finding.estimate.estimator == "gaussian"
        assert finding.verdict == "tight"


@pytest.mark.parametrize("name", sorted(SHARES))
def test_scenarios_that_are_counted_show_at_least_their_expected_share(name: str) -> None:
    played = BY_NAME[name].play(trials=800_000, confidence=0.99, seed=0)
    assert played.as_theory_says
    for finding in played.findings:
        assert finding.estimate.estimator == "counting"
        assert finding.tightness is not None
        assert SHARES[name] < finding.tightness < 1


@pytest.mark.parametrize(
    ("name", "mu"),
    [
        # k = 2: μ² is the sum over steps of (2/σ)².
        ("single_full_batch", 2 * math.sqrt(20 / 32**2)),
        ("single_prefix", 2 * math.sqrt(8 / 16**2)),
        ("single_shuffled", 2 * math.sqrt(3 / 6.2**2)),
        ("joint_models", 2 * math.sqrt(20 / 32**2 + 20 / 64**2 + 10 / 16**2)),
        ("ancestry", 2 * math.sqrt(20 / 48**2 + 10 / 24**2)),
    ],
)
def test_a_scenario_shows_the_mu_that_theory_gives(name: str, mu: float) -> None:
    finding = BY_NAME[name].play(trials=100_000, confidence=1 - 1e-6, seed=2).findings[0]
    assert finding.claim.mu == pytest.approx(mu)
    assert finding.estimate.mu is not None
    assert finding.estimate.mu.low <= mu <= finding.estimate.mu.high
