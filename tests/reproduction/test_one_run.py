"""One run with many canaries: exact probabilities of guessing, a linear program for f-DP, and another auditor."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog
from scipy.special import ndtr, ndtri
from scipy.stats import binom

from dpmerge.auditing.gaussian_estimator import gaussian_epsilon
from dpmerge.errors import InvalidInputError
from reproduction.one_run import (
    one_run_epsilon,
    one_run_f_dp_epsilon,
    one_run_guesses,
    one_run_mu,
    one_run_p_value,
)

OTHER = json.loads((Path(__file__).parents[1] / "data" / "jax_privacy_values.json").read_text())["samples"]
CASES = [
    (name, case["significance"], case["delta"], at)
    for name, sample in OTHER.items()
    for case in sample["cases"]
    if case["delta"] > 0
    for at in case["at"]
]


@st.composite
def guessed(draw: st.DrawFn) -> tuple[int, int, int]:
    canaries = draw(st.integers(1, 120))
    guesses = draw(st.integers(1, canaries))
    return guesses, draw(st.integers(0, guesses)), canaries


# Another auditor


@pytest.mark.parametrize(("name", "significance", "delta", "at"), CASES)
def test_both_bounds_agree_with_another_auditor(
    name: str, significance: float, delta: float, at: dict[str, Any]
) -> None:
    """It searches to 1e-6 where we do to 1e-9, so that they agree to a little more than the former."""
    absent, present = OTHER[name]["absent"], OTHER[name]["present"]
    correct = sum(score >= at["threshold"] for score in present)
    guesses = correct + sum(score >= at["threshold"] for score in absent)
    counts = guesses, correct, len(absent) + len(present)
    terms = {"delta": delta, "confidence": 1 - significance}
    assert float(one_run_epsilon(*counts, **terms)) == pytest.approx(at["one run"], abs=3e-6)
    assert float(one_run_f_dp_epsilon(*counts, **terms)) == pytest.approx(at["one run, f-DP"], abs=3e-6)


def test_another_auditor_shows_epsilon_in_more_than_15_of_the_compared_cases() -> None:
    assert sum(at["one run"] > 0.1 for *_, at in CASES) > 15


# (ε, δ)


@pytest.mark.parametrize(("guesses", "correct", "canaries"), [(10, 10, 10), (50, 40, 100), (200, 120, 200), (7, 0, 9)])
@pytest.mark.parametrize("delta", [0.0, 1e-5, 0.003])
def test_the_p_value_is_that_of_the_theorem(guesses: int, correct: int, canaries: int, delta: float) -> None:
    for epsilon in (0.0, 0.5, 2.0):
        chance = math.exp(epsilon) / (1 + math.exp(epsilon))
        mass = [math.comb(guesses, k) * chance**k * (1 - chance) ** (guesses - k) for k in range(guesses + 1)]
        pure = math.fsum(mass[correct:])
        slopes = [math.fsum(mass[max(0, correct - i) : correct]) / i for i in range(1, canaries + 1)]
        expected = min(1.0, pure + 2 * canaries * delta * max(slopes))
        found = one_run_p_value(guesses, correct, canaries, epsilon=epsilon, delta=delta)
        assert float(found) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("epsilon", [0.0, 0.7, 3.0])
@pytest.mark.parametrize("guesses", [5, 60, 400])
def test_bounds_are_right_exactly_as_often_as_stated_for_randomised_response(epsilon: float, guesses: int) -> None:
    """Each canary answered with odds e^ε: the worst that ε-DP allows. Over all outcomes, not over samples.

    One more outcome would make the bound wrong more often than stated, so that none is given away.
    """
    chance = math.exp(epsilon) / (1 + math.exp(epsilon))
    correct = np.arange(guesses + 1)
    bounds = one_run_epsilon(guesses, correct, guesses, delta=0.0, confidence=0.9)
    wrong = bounds > epsilon
    mass = binom.pmf(correct, guesses, chance)
    assert mass[wrong].sum() <= 0.1
    largest_right = correct[~wrong].max()
    assert binom.sf(largest_right - 1, guesses, chance) > 0.1


@pytest.mark.parametrize("delta", [1e-4, 0.01])
def test_bounds_are_right_as_often_as_stated_for_answers_that_are_sometimes_sure(delta: float) -> None:
    """Two mechanisms that are (ε, δ)-DP: sure of one canary at a time, or of all of them at once."""
    epsilon, canaries = 1.0, 100
    chance = math.exp(epsilon) / (1 + math.exp(epsilon))
    correct = np.arange(canaries + 1)
    bounds = one_run_epsilon(canaries, correct, canaries, delta=delta, confidence=0.95)
    singly = binom.pmf(correct, canaries, delta + (1 - delta) * chance)
    at_once = (1 - delta) * binom.pmf(correct, canaries, chance) + delta * (correct == canaries)
    for mass in (singly, at_once):
        assert mass[bounds > epsilon].sum() <= 0.05


def test_bounds_on_drawn_runs_are_right_as_often_as_stated() -> None:
    """The whole way, from scores and tosses: of 400 runs at most 5 %, and their chance, are above the truth."""
    rng = np.random.default_rng(11)
    epsilon, canaries = 1.5, 150
    honest = 1 / (1 + math.exp(-epsilon))
    counts = []
    for _ in range(400):
        included = rng.random(canaries) < 0.5
        answers = np.where(rng.random(canaries) < honest, included, ~included)
        counts.append(one_run_guesses(answers + 0.1 * rng.random(canaries), included, most_in=50, most_out=50))
    guesses, correct = np.array(counts).T
    bounds = one_run_epsilon(guesses, correct, canaries, delta=1e-6, confidence=0.95)
    assert np.count_nonzero(bounds > epsilon) <= binom.ppf(0.999, 400, 0.05)
    assert np.median(bounds) > 0.7 * epsilon


@given(guessed(), st.sampled_from([0.0, 1e-5, 1e-2]), st.sampled_from([(0.5, 0.9), (0.9, 0.99)]))
def test_the_bound_falls_with_confidence_and_delta_and_grows_with_right_guesses(
    case: tuple[int, int, int], delta: float, confidences: tuple[float, float]
) -> None:
    guesses, correct, canaries = case
    less, more = (float(one_run_epsilon(*case, delta=delta, confidence=c)) for c in confidences)
    assert 0 <= more <= less < math.inf
    assert less >= float(one_run_epsilon(*case, delta=delta + 1e-3, confidence=confidences[0]))
    better = float(one_run_epsilon(guesses, min(correct + 1, guesses), canaries, delta=0.0, confidence=0.9))
    assert better >= float(one_run_epsilon(*case, delta=0.0, confidence=0.9))
    if correct < guesses and correct * 2 > guesses:
        assert more <= math.log(correct / (guesses - correct)), "above what is seen"


# f-DP


def likeliest(guesses: int, correct: int, canaries: int, mu: float) -> float:
    """The largest P[right guesses ≥ correct] that the theorem of Mahloujifar et al. leaves open, by a linear program.

    Variables are the probabilities p_k of k right guesses. For every i: Σ_{k ≥ i} k p_k / m ≤ F(Σ_{k ≥ i} (c − k + 1)
    p_{k−1} / m), F(x) = Φ(Φ⁻¹(x) + μ). F is concave, the least of its tangents, and each tangent is linear.
    """
    k = np.arange(guesses + 1)
    rows, limits = [], []
    for touching in ndtr(np.linspace(-7, 4, 400)):
        slope = math.exp(-mu * ndtri(touching) - mu * mu / 2)
        height = float(ndtr(ndtri(touching) + mu)) - slope * touching
        for i in range(1, guesses + 1):
            right = np.where(k >= i, k, 0) / canaries
            wrong = np.where(k >= i - 1, guesses - k, 0) / canaries
            # The p_{k−1} with k ≥ i are the p_j with j ≥ i − 1, each with c − j wrong guesses.
            rows.append(right - slope * wrong)
            limits.append(height)
    found = linprog(-(k >= correct).astype(float), rows, limits, np.ones((1, guesses + 1)), [1.0], method="highs")
    return float(-found.fun)


@pytest.mark.parametrize(
    ("guesses", "correct", "canaries", "mu"),
    [(6, 6, 6, 0.5), (6, 5, 6, 1.0), (8, 8, 20, 1.0), (5, 5, 50, 2.0), (10, 8, 10, 0.3), (7, 6, 90, 0.4)],
)
def test_the_bound_on_mu_inverts_the_program_of_the_likeliest_guesses(
    guesses: int, correct: int, canaries: int, mu: float
) -> None:
    """At the confidence that the program leaves to so many right guesses, the bound on μ is that very μ."""
    chance = likeliest(guesses, correct, canaries, mu)
    assert 0 < chance < 1
    assert float(one_run_mu(guesses, correct, canaries, confidence=1 - chance)) == pytest.approx(mu, abs=2e-3)


@pytest.mark.parametrize(("most_in", "most_out"), [(150, 150), (20, 20), (30, 0)])
def test_bounds_on_gaussian_runs_are_right_and_show_more_by_f_dp(most_in: int, most_out: int) -> None:
    """Each canary in its own N(0, 1) or N(μ, 1): what is μ-GDP for each of them, whatever the others do."""
    rng = np.random.default_rng(3)
    mu, canaries = 1.2, 300
    included = rng.random((200, canaries)) < 0.5
    scores = rng.standard_normal((200, canaries)) + mu * included
    counts = [one_run_guesses(s, i, most_in=most_in, most_out=most_out) for s, i in zip(scores, included, strict=True)]
    guesses, correct = np.array(counts).T
    bounds = one_run_mu(guesses, correct, canaries, confidence=0.95)
    assert np.count_nonzero(bounds > mu) <= binom.ppf(0.999, 200, 0.05)
    assert np.median(bounds) > 0.3 * mu
    shown = one_run_f_dp_epsilon(guesses, correct, canaries, delta=1e-5, confidence=0.95)
    assert np.median(shown) > 1.2 * np.median(one_run_epsilon(guesses, correct, canaries, delta=1e-5, confidence=0.95))
    assert float(shown[0]) == pytest.approx(gaussian_epsilon(float(bounds[0]), 1e-5))


@given(guessed(), st.sampled_from([(0.5, 0.9), (0.9, 0.99)]))
def test_the_bound_on_mu_falls_with_confidence_and_grows_with_right_guesses(
    case: tuple[int, int, int], confidences: tuple[float, float]
) -> None:
    guesses, correct, canaries = case
    less, more = (float(one_run_mu(*case, confidence=c)) for c in confidences)
    assert 0 <= more <= less < 30
    better = float(one_run_mu(guesses, min(correct + 1, guesses), canaries, confidence=0.9))
    assert better >= float(one_run_mu(*case, confidence=0.9)) - 1e-9
    if 2 * correct <= guesses:
        assert more == 0, "half of all guesses are right by chance"


# From scores to guesses


def test_the_highest_and_lowest_scores_are_guessed() -> None:
    included = np.array([True, False, True, False, False, True])
    scores = [5.0, 4.0, 3.0, 2.0, 1.0, 0.0]
    assert one_run_guesses(scores, included, most_in=2, most_out=0) == (2, 1)
    assert one_run_guesses(scores, included, most_in=0, most_out=2) == (2, 1)
    assert one_run_guesses(scores, included, most_in=3, most_out=3) == (6, 4)
    assert one_run_guesses(scores, included, most_in=6, most_out=0) == (6, 3)


def test_arrays_of_counts_give_the_bounds_of_single_counts() -> None:
    """Arrays give what single counts give, in their shape."""
    correct = np.array([[60, 75], [90, 100]])
    both = one_run_epsilon(100, correct, 500, delta=1e-5, confidence=0.95)
    assert both.shape == (2, 2)
    for bound, count in zip(both.flat, correct.flat, strict=True):
        assert bound == one_run_epsilon(100, int(count), 500, delta=1e-5, confidence=0.95)
    assert one_run_mu(100, correct, 500, confidence=0.95).shape == (2, 2)
    assert one_run_p_value(100, correct, 500, epsilon=1.0, delta=1e-5).shape == (2, 2)


def test_ten_thousand_guesses_show_epsilon_closely_and_mu_from_below() -> None:
    """Six in ten of 10,000: ε is close to log 1.5. Of independent canaries μ would be 0.5067, where Φ(μ/2) = 0.6.

    The bound on μ stays far below, as it must: canaries that share their noise may all be guessed at once.
    """
    assert float(one_run_epsilon(10_000, 6000, 10_000, delta=0.0, confidence=0.95)) == pytest.approx(0.405, abs=0.04)
    assert 0.15 < float(one_run_mu(10_000, 6000, 10_000, confidence=0.95)) < 0.5067


# What is refused


@pytest.mark.parametrize(
    ("counts", "field"),
    [
        ((0, 0, 5), "guesses"),
        ((6, 3, 5), "guesses"),
        ((4, 5, 5), "correct"),
        ((4, -1, 5), "correct"),
        ((4.0, 3, 5), "guesses"),
        ((4, 2.5, 5), "correct"),
        ((4, 2, 5.5), "canaries"),
    ],
)
def test_invalid_counts_are_refused_by_the_name_of_the_field(counts: tuple[Any, Any, Any], field: str) -> None:
    for bound in (
        lambda: one_run_epsilon(*counts, delta=1e-5, confidence=0.95),
        lambda: one_run_mu(*counts, confidence=0.95),
        lambda: one_run_p_value(*counts, epsilon=1.0, delta=1e-5),
    ):
        with pytest.raises(InvalidInputError) as error:
            bound()
        assert error.value.field == field


def test_invalid_terms_are_refused_by_the_name_of_the_field() -> None:
    for field, bound in (
        ("confidence", lambda: one_run_epsilon(4, 3, 5, delta=1e-5, confidence=1.0)),
        ("confidence", lambda: one_run_mu(4, 3, 5, confidence=0.0)),
        ("delta", lambda: one_run_epsilon(4, 3, 5, delta=-1.0, confidence=0.95)),
        ("delta", lambda: one_run_f_dp_epsilon(4, 3, 5, delta=0.0, confidence=0.95)),
        ("epsilon", lambda: one_run_p_value(4, 3, 5, epsilon=-1.0, delta=0.0)),
        ("epsilon", lambda: one_run_p_value(4, 3, 5, epsilon=math.inf, delta=0.0)),
    ):
        with pytest.raises(InvalidInputError) as error:
            bound()
        assert error.value.field == field


@pytest.mark.parametrize(
    ("scores", "included", "most", "field"),
    [
        ([], np.array([], dtype=bool), (1, 0), "scores"),
        ([1.0, math.nan], np.array([True, False]), (1, 0), "scores"),
        ([1.0, 2.0], np.array([True]), (1, 0), "included"),
        ([1.0, 2.0], np.array([1, 0]), (1, 0), "included"),
        ([1.0, 2.0], np.array([True, False]), (2, 1), "most_in + most_out"),
        ([1.0, 2.0], np.array([True, False]), (0, 0), "most_in + most_out"),
        ([1.0, 2.0], np.array([True, False]), (-1, 2), "most_in + most_out"),
    ],
)
def test_invalid_scores_are_refused_by_the_name_of_the_field(
    scores: Any, included: Any, most: tuple[int, int], field: str
) -> None:
    with pytest.raises(InvalidInputError) as error:
        one_run_guesses(scores, included, most_in=most[0], most_out=most[1])
    assert error.value.field == field
