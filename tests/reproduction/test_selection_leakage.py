"""Choosing by accuracy: the two scenarios against the exact distribution of what they release."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from dpmerge.auditing.estimate import estimate_epsilon
from dpmerge.auditing.findings import Finding
from dpmerge.auditing.scenario import DELTA, Scenario
from dpmerge.planning.planner import plan
from dpmerge.planning.public_selection import PublicEvaluation
from dpmerge.portfolio import Portfolio
from dpmerge.terms.guarantee import Guarantee
from portfolio.portfolios import DP_SGD, add_remove, manifest, model, replaced, write_portfolio
from reproduction.scenarios import selection_leakage

BY_NAME = {scenario.name: scenario for scenario in selection_leakage.SCENARIOS}
MU, RUNS = 0.5, 10


def findings(scenario: Scenario, trials: int) -> dict[str, Finding]:
    found = estimate_epsilon(scenario.attack(), delta=scenario.given, trials=trials, confidence=0.999, seed=1)
    return {claim.by: Finding(subject=scenario.name, claim=claim, estimate=found) for claim in scenario.claims()}


@pytest.mark.parametrize("name", BY_NAME)
def test_what_theory_calls_false_is_violated_and_nothing_else(name: str) -> None:
    found = findings(BY_NAME[name], 500_000)
    assert {by for by, each in found.items() if each.verdict == "violated"} == {by for by in found if "not ours" in by}
    assert all((each.verdict == "violated") == each.claim.false_here for each in found.values())
    assert all(each.claim.proved != each.claim.false_here for each in found.values())


# The largest of ten


def log_ratio_of_the_largest(x: float) -> float:
    """From the distribution function Φ(x)^10, differentiated numerically."""
    step = 1e-5

    def density(shift: float) -> float:
        return float(norm.cdf(x + step - shift) ** RUNS - norm.cdf(x - step - shift) ** RUNS)

    return math.log(density(MU) / density(0.0))


def epsilon_of_the_largest() -> float:
    """The ratio of densities grows with x, so the best event is a tail; the larger ε of the two."""

    def below(epsilon: float) -> float:
        x = brentq(lambda x: log_ratio_of_the_largest(x) + epsilon, -4, 4)
        return float(norm.cdf(x) ** RUNS - math.exp(epsilon) * norm.cdf(x - MU) ** RUNS)

    def above(epsilon: float) -> float:
        x = brentq(lambda x: log_ratio_of_the_largest(x) - epsilon, 0, 6)
        return float((1 - norm.cdf(x - MU) ** RUNS) - math.exp(epsilon) * (1 - norm.cdf(x) ** RUNS))

    low = brentq(lambda epsilon: below(epsilon) - DELTA, 1, 8)
    high = brentq(lambda epsilon: above(epsilon) - DELTA, 1, 2.5)
    return float(max(low, high))


def test_the_best_of_ten_costs_more_than_one_and_less_than_all() -> None:
    found = findings(BY_NAME["best_of_ten"], 1_000_000)
    alone, charged = found["the winner's own ε (not ours)"], found["public_evaluation, charged"]
    exact = epsilon_of_the_largest()
    assert exact == pytest.approx(5.80, abs=0.005)
    assert alone.claim.value == pytest.approx(1.99, abs=0.005)
    assert charged.claim.value == pytest.approx(7.51, abs=0.005)
    assert 3.0 < alone.estimate.bound < exact


def test_the_scores_of_the_winner_are_its_likelihood_ratios() -> None:
    attack, trials = BY_NAME["best_of_ten"].attack(), 200_000
    for present in (False, True):
        scores = attack.play(np.random.default_rng(3), trials, present).scores
        for x in (0.0, 0.7, 1.5, 2.2, 3.0):
            expected = norm.cdf(x - MU * present) ** RUNS
            spread = math.sqrt(expected * (1 - expected) / trials)
            assert abs(np.mean(scores <= log_ratio_of_the_largest(x)) - expected) < 4 * spread


def test_the_planner_charges_what_is_claimed(tmp_path: Path) -> None:
    """Ten runs on disk, the best by a public score: the plan costs the look set."""
    block = {"steps": 25, "noise_multiplier": 10.0, "clip_norm": 1.0, "learning_rate": 1.0}
    names = [f"run-{place}" for place in range(1, RUNS + 1)]
    mechanism = replaced(DP_SGD, "blocks", to=[block])
    documents = {name: add_remove(manifest(name, mechanism=mechanism)) for name in names}
    models = {name: {25: model(place)} for place, name in enumerate(names)}
    home = write_portfolio(tmp_path, runs=names, manifests=documents, models=models)
    objective = PublicEvaluation(evaluator=lambda t: float(np.sum(t["weight"])), look=[f"{name}@25" for name in names])
    made = plan(Portfolio.load(home), Guarantee(epsilon=8.0, delta=DELTA), method="select", objective=objective)
    claims = {claim.by: claim for claim in BY_NAME["best_of_ten"].claims()}
    assert made.guarantee.epsilon == pytest.approx(claims["public_evaluation, charged"].value, rel=1e-9)


# Weights that follow an accuracy


def joint_density(side: float) -> tuple[np.ndarray, float]:
    """Of the average (rows) and the choice (columns), on a grid: the second model is summed out."""
    average, second = np.linspace(-14, 14, 2801), np.linspace(-5, 5, 4001)
    step = (average[1] - average[0], second[1] - second[0])
    density = np.zeros((len(average), 2))
    for chosen, weights in enumerate((selection_leakage.USUAL, selection_leakage.TRUSTING)):
        inside = second > selection_leakage.LEVEL if chosen else second <= selection_leakage.LEVEL
        first = (average[:, None] - weights[1] * second[None, inside]) / weights[0]
        both = norm.pdf(first, side, 2.0) / weights[0] * norm.pdf(second[None, inside], side, 0.5)
        density[:, chosen] = both.sum(axis=1) * step[1]
    return density, float(step[0])


@pytest.fixture(scope="module")
def densities() -> tuple[np.ndarray, np.ndarray, float]:
    (without, step), (within, _) = joint_density(-1.0), joint_density(1.0)
    assert without.sum() * step == pytest.approx(1, abs=1e-3)
    return without, within, step


def test_one_bit_carries_more_than_is_claimed_for_all() -> None:
    within, without = norm.sf(selection_leakage.LEVEL, 1, 0.5), norm.sf(selection_leakage.LEVEL, -1, 0.5)
    bit = math.log((within - DELTA) / without)
    uncharged = [claim.value for claim in BY_NAME["weights_by_accuracy"].claims() if claim.false_here]
    assert len(uncharged) == 2
    assert uncharged == pytest.approx([4.48, 4.48], abs=0.005)
    assert bit > 2 * max(each for each in uncharged if each is not None)


def test_weights_by_accuracy_stay_below_their_exact_cost(densities: tuple[np.ndarray, np.ndarray, float]) -> None:
    without, within, step = densities

    def delta(epsilon: float) -> float:
        one = np.maximum(within - math.exp(epsilon) * without, 0).sum() * step
        other = np.maximum(without - math.exp(epsilon) * within, 0).sum() * step
        return float(max(one, other))

    exact = brentq(lambda epsilon: delta(epsilon) - DELTA, 1, 30)
    found = findings(BY_NAME["weights_by_accuracy"], 1_000_000)["public_evaluation, charged"]
    assert found.claim.value == pytest.approx(25.4, abs=0.01)
    assert 9.0 < found.estimate.bound < exact < found.claim.value


def test_the_scores_of_weights_are_likelihood_ratios(densities: tuple[np.ndarray, np.ndarray, float]) -> None:
    without, within, step = densities
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.log(within / without)
    attack, trials = BY_NAME["weights_by_accuracy"].attack(), 200_000
    for present, density in ((False, without), (True, within)):
        scores = attack.play(np.random.default_rng(4), trials, present).scores
        for cut in (-2.0, -0.5, 0.5, 2.0, 9.0, 10.0):
            expected = float(density[ratio > cut].sum() * step)
            allowance = 4 * math.sqrt(expected * (1 - expected) / trials) + 2e-3  # of the grid
            assert abs(np.mean(scores > cut) - expected) < allowance
