"""Logistic regression in two steps: the paper's number is violated with each gradient clipped, not with their total."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from dpmerge.auditing import logistic_scenarios
from dpmerge.auditing.logistic_scenarios import FlippedLabel
from dpmerge.auditing.scenario import DELTA
from oracle import logistic_steps

CLAIMED = 1.19
ROWS = {(101, (10.0, 0.5)): 2.94, (301, (10.0, 0.5)): 3.86, (1001, (10.0, 0.25)): 11.1}
"""Records and noise multipliers → the true ε at δ = 1e-5, which merged_trajectory claims is 1.19."""
TOTAL_CLIPPED = 0.50


@pytest.mark.parametrize(("case", "true"), ROWS.items(), ids=str)
def test_the_true_epsilon_of_flipped_labels_is_above_the_merged_trajectory(
    case: tuple[int, tuple[float, float]], true: float
) -> None:
    records, noises = case
    game = FlippedLabel(records=records, noise_multipliers=noises)
    found = game.law().epsilon(DELTA)
    assert found == pytest.approx(true, abs=5e-3 if true < 10 else 5e-2)
    assert found == pytest.approx(
        logistic_steps.epsilon(*logistic_steps.flipped_label(records, noises), DELTA), abs=5e-4
    )
    claims = {claim.by: claim for claim in game.claims()}
    assert claims["merged_trajectory"].value == pytest.approx(CLAIMED, abs=5e-3)
    assert not claims["merged_trajectory"].proved
    for name in ("joint_release", "last_step", "hidden_state"):
        value = claims[name].value
        assert claims[name].proved
        assert value is not None
        assert value > found


@pytest.mark.parametrize("case", [*ROWS, (3, (10.0, 0.5)), (1001, (10.0, 0.0))], ids=str)
def test_with_the_total_clipped_the_true_epsilon_is_a_half_in_every_row(case: tuple[int, tuple[float, float]]) -> None:
    records, noises = case
    game = FlippedLabel(records=records, noise_multipliers=noises, total_clipped=True)
    found = game.law().epsilon(DELTA)
    assert found == pytest.approx(TOTAL_CLIPPED, abs=5e-3)
    laws = logistic_steps.flipped_label(records, noises, total=True)
    assert found == pytest.approx(logistic_steps.epsilon(*laws, DELTA), abs=5e-4)
    [claim] = [claim for claim in game.claims() if claim.by == "merged_trajectory"]
    assert claim.proved
    assert claim.value == pytest.approx(CLAIMED, abs=5e-3)


def test_with_three_records_the_true_epsilon_is_below_the_claim() -> None:
    found = FlippedLabel(records=3, noise_multipliers=(10.0, 0.5)).law().epsilon(DELTA)
    assert found == pytest.approx(0.78, abs=5e-3)
    assert found < CLAIMED


def test_a_second_model_without_noise_costs_more_than_thirty() -> None:
    law, laws = logistic_scenarios.WITHOUT_NOISE.law(), logistic_steps.flipped_label(1001, (10.0, 0.0))
    assert law.delta(30.0) == pytest.approx(0.523, abs=1e-3)
    for epsilon in (5.0, 30.0):
        assert law.delta(epsilon) == pytest.approx(logistic_steps.delta(*laws, epsilon), abs=1e-4)
    [claim] = [claim for claim in logistic_scenarios.WITHOUT_NOISE.claims() if claim.by == "merged_trajectory"]
    assert claim.value == pytest.approx(CLAIMED, abs=5e-3)


@pytest.mark.parametrize("total", [False, True])
@pytest.mark.parametrize("label", [1, -1])
def test_the_game_trains_as_the_gradients_of_every_record_say(label: int, total: bool) -> None:
    """Step by step with the gradient of every record, the same noise."""
    game = FlippedLabel(records=21, noise_multipliers=(10.0, 0.5), total_clipped=total)
    merged = game.trained(np.random.default_rng(1), 40, label)
    rng, labels = np.random.default_rng(1), [*[1, -1] * 10, label]
    expected = np.zeros(40)
    for noise, weight in zip((10.0, 0.5), (0.9, 0.1), strict=True):
        state = np.zeros(40)
        for _ in range(2):
            state = state - logistic_steps.gradient_sum(state, 200.0, labels, 1.0, total) + noise * rng.normal(size=40)
        expected += weight * state
    assert merged == pytest.approx(expected, abs=1e-9)


def test_models_that_are_trained_follow_the_computed_law() -> None:
    law, trials = logistic_scenarios.PLAIN.law(), 200_000
    for label, points in ((1, law.points), (-1, -law.points)):
        drawn = np.sort(logistic_scenarios.PLAIN.trained(np.random.default_rng(2), trials, label))
        chances = np.exp(law.log_density) * (law.points[1] - law.points[0])
        order = np.argsort(points)
        below = np.interp(drawn, points[order], np.cumsum(chances[order]) - chances[order] / 2)
        seen = (np.arange(trials) + 0.5) / trials
        assert np.abs(below - seen).max() < 3 / np.sqrt(trials)  # a chance of 1 in 10⁷


@pytest.mark.parametrize("name", ["logistic", "logistic_total_clipped", "logistic_without_noise"])
def test_the_attack_at_full_size_finds_the_verdicts_of_the_theory(name: str) -> None:
    [scenario] = [each for each in logistic_scenarios.SCENARIOS if each.name == name]
    assert scenario.trials >= 10**6
    found = scenario.play(trials=None, confidence=0.95, seed=0)
    assert found.as_theory_says
    estimate = found.findings[0].estimate
    assert estimate.estimator == "counting"
    verdicts = {finding.claim.by: finding.verdict for finding in found.findings}
    assert verdicts["merged_trajectory"] == ("consistent" if name == "logistic_total_clipped" else "violated")
    least, most = {"logistic": (3.6, 3.87), "logistic_total_clipped": (0.3, 0.5)}.get(name, (11.0, 15.0))
    assert least < estimate.bound < most


def test_the_table_of_the_theory_has_these_figures() -> None:
    page = (Path(__file__).parents[2] / "docs" / "theory" / "index.md").read_text()
    rows = re.findall(
        r"^\| ([\d,]+) \| ([\d.]+), ([\d.]+) \| ([\d.]+) \| \**(above )?([\d.]+)\** \| ([\d.]+) \|$", page, re.M
    )
    stated = {(int(n.replace(",", "")), (float(a), float(b))): (c, bool(over), e, t) for n, a, b, c, over, e, t in rows}
    assert set(stated) == {*ROWS, (3, (10.0, 0.5)), (1001, (10.0, 0.0))}
    for (records, noises), (claimed, over, true, clipped) in stated.items():
        each, total = (
            FlippedLabel(records=records, noise_multipliers=noises, total_clipped=clipping).law()
            for clipping in (False, True)
        )
        assert claimed == "1.19"
        assert clipped == f"{total.epsilon(DELTA):.2f}"
        assert each.delta(float(true)) > DELTA if over else true == f"{each.epsilon(DELTA):.3g}"
