"""Bounds from scores: what they must not depend on, how they move, and what another auditor says of the same scores."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from audit.mechanisms import gaussian, randomised_response, scores
from dpmerge.auditing.thresholds import (
    best_threshold,
    best_threshold_delta,
    fixed_threshold,
    fixed_threshold_delta,
)
from dpmerge.errors import InvalidInputError

OTHER = json.loads((Path(__file__).parents[1] / "data" / "jax_privacy_values.json").read_text())["samples"]
CASES = [(name, case) for name, sample in OTHER.items() for case in sample["cases"]]
NAMES = [f"{name}, {case['significance']:g}, {case['delta']:g}" for name, case in CASES]

few_scores = st.lists(st.integers(-4, 4).map(float), min_size=1, max_size=60)
deltas = st.sampled_from([0.0, 1e-5, 0.01, 0.2])


# Another auditor


@pytest.mark.parametrize(("name", "case"), CASES, ids=NAMES)
def test_a_fixed_threshold_agrees_with_another_auditor(name: str, case: dict[str, Any]) -> None:
    worlds = OTHER[name]["absent"], OTHER[name]["present"]
    terms = {"delta": case["delta"], "confidence": 1 - case["significance"]}
    for at in case["at"]:
        bound = fixed_threshold(*worlds, at["threshold"], **terms)
        assert bound == pytest.approx(at["both ways"], abs=1e-6)
        assert bound >= at["one way"] - 1e-6  # the limits that serve one way serve the other too, at no cost


@pytest.mark.parametrize(("name", "case"), CASES, ids=NAMES)
def test_the_best_of_another_auditors_thresholds_agrees_with_it(name: str, case: dict[str, Any]) -> None:
    """It divides the error among the thresholds on the hull of the ROC curve, which the scores themselves pick."""
    sample = OTHER[name]
    worlds = sample["absent"], sample["present"]
    share = 1 - case["significance"] / sample["thresholds kept"]
    bounds = [fixed_threshold(*worlds, cut, delta=case["delta"], confidence=share) for cut in sample["finite ones"]]
    assert max(bounds) == pytest.approx(case["all thresholds"], abs=1e-6)


# A fixed threshold


@given(few_scores, few_scores, st.floats(-5, 5), deltas, st.floats(0.5, 0.999), st.floats(0.5, 0.999))
def test_bounds_are_below_what_is_seen_and_fall_with_confidence(
    absent: list[float], present: list[float], cut: float, delta: float, one: float, other: float
) -> None:
    false, true = np.mean(np.array(absent) >= cut), np.mean(np.array(present) >= cut)
    less, more = sorted((one, other))
    lower, upper = (fixed_threshold(absent, present, cut, delta=delta, confidence=c) for c in (more, less))
    assert 0 <= lower <= upper
    seen = [0.0]
    if true > delta:
        seen.append(math.inf if false == 0 else math.log((true - delta) / false))
    if 1 - false > delta:
        seen.append(math.inf if true == 1 else math.log((1 - false - delta) / (1 - true)))
    assert upper <= max(seen)
    assert math.isfinite(upper)


@given(few_scores, few_scores, st.floats(-5, 5))
def test_bounds_fall_with_delta_and_with_epsilon(absent: list[float], present: list[float], cut: float) -> None:
    epsilons = [fixed_threshold(absent, present, cut, delta=d, confidence=0.9) for d in (0.0, 1e-5, 0.1, 0.5)]
    assert all(a >= b for a, b in pairwise(epsilons))
    shown = [fixed_threshold_delta(absent, present, cut, epsilon=e, confidence=0.9) for e in (0.0, 0.5, 2.0, 9.0)]
    assert all(a >= b for a, b in pairwise(shown))
    assert all(0 <= value <= 1 for value in shown)


@given(few_scores, few_scores, st.integers(-4, 4), deltas)
def test_worlds_and_scores_turned_around_show_the_same(
    absent: list[float], present: list[float], cut: int, delta: float
) -> None:
    """Seen from the other world, with scores turned around, the same is shown."""
    turned = [-x for x in present], [-x for x in absent]
    one = fixed_threshold(absent, present, cut - 0.5, delta=delta, confidence=0.9)
    assert one == pytest.approx(fixed_threshold(*turned, 0.5 - cut, delta=delta, confidence=0.9), rel=1e-9)


def test_a_score_at_the_threshold_counts() -> None:
    worlds = [0.0] * 50, [1.0] * 50
    at, above = (fixed_threshold(*worlds, cut, delta=0.0, confidence=0.9) for cut in (1.0, math.nextafter(1.0, 2)))
    assert at > 2
    assert above == 0


def test_infinite_scores_are_counted() -> None:
    worlds = [-math.inf] * 30 + [0.0] * 30, [math.inf] * 30 + [0.0] * 30
    cut = best_threshold(*worlds, delta=0.0, confidence=0.9)
    assert fixed_threshold(*worlds, cut, delta=0.0, confidence=0.9) > 1.5


# A threshold that is chosen


def test_the_best_threshold_of_two_answers_lies_between_them() -> None:
    absent, present = scores(randomised_response(2.0), 500, 1)
    assert best_threshold(absent, present, delta=1e-5, confidence=0.95) == 0
    assert best_threshold_delta(absent, present, epsilon=1.0, confidence=0.95) == 0


def test_where_nothing_can_be_shown_a_threshold_is_where_the_worlds_differ() -> None:
    worlds = [0.0, 1.0, 2.0, 3.0], [2.0, 3.0, 4.0, 5.0]
    assert 1 < best_threshold(*worlds, delta=0.1, confidence=0.99) <= 4


@pytest.mark.parametrize("mu", [0.5, 1.0, 4.0])
def test_the_best_threshold_shows_nearly_what_the_best_of_all_would(mu: float) -> None:
    """At a threshold from 5,000 pilot scores, on average, 88 % of the largest, which has the luck of its sample."""
    trials, found = 20_000, []
    for seed in range(10):
        absent, present = scores(gaussian(mu), 5000, seed)
        found.append(best_threshold(absent, present, delta=1e-5, confidence=0.95, trials=trials))
    absent, present = scores(gaussian(mu), trials, 99)

    def shown(cut: float) -> float:
        return fixed_threshold(absent, present, cut, delta=1e-5, confidence=0.95)

    best = max(map(shown, np.quantile(np.concatenate([absent, present]), np.linspace(0.001, 0.999, 300))))
    assert np.mean([shown(cut) for cut in found]) >= 0.88 * best


def test_a_threshold_looks_as_far_out_as_the_trials_do() -> None:
    absent, present = scores(gaussian(4.0), 2000, 3)
    near, far = (best_threshold(absent, present, delta=1e-5, confidence=0.95, trials=n) for n in (2000, 10**6))
    assert far > near
    assert far > absent.max()


def test_few_scores_give_finite_bounds() -> None:
    for size in range(1, 12):
        worlds = np.zeros(size), np.ones(size)
        for bound in (
            fixed_threshold(*worlds, best_threshold(*worlds, delta=1e-5, confidence=0.95), delta=0.0, confidence=0.9),
            fixed_threshold_delta(
                *worlds, best_threshold_delta(*worlds, epsilon=1.0, confidence=0.95), epsilon=1.0, confidence=0.9
            ),
        ):
            assert 0 <= bound < math.inf


# What is refused


@pytest.mark.parametrize(
    ("absent", "present", "field"),
    [
        ([], [1.0], "absent"),
        ([1.0], [], "present"),
        ([1.0, math.nan], [1.0], "absent"),
        ([1.0], [[1.0]], "present"),
    ],
)
def test_invalid_scores_are_refused_by_the_name_of_the_field(absent: Any, present: Any, field: str) -> None:
    terms = {"delta": 1e-5, "confidence": 0.95}
    for bound in (
        lambda: fixed_threshold(absent, present, 0.0, **terms),
        lambda: best_threshold(absent, present, **terms),
    ):
        with pytest.raises(InvalidInputError) as error:
            bound()
        assert error.value.field == field


def test_invalid_terms_are_refused_by_the_name_of_the_field() -> None:
    worlds = [0.0, 1.0], [1.0, 2.0]
    for field, bound in (
        ("threshold", lambda: fixed_threshold(*worlds, math.nan, delta=1e-5, confidence=0.95)),
        ("delta", lambda: fixed_threshold(*worlds, 0.0, delta=1.0, confidence=0.95)),
        ("epsilon", lambda: fixed_threshold_delta(*worlds, 0.0, epsilon=-1.0, confidence=0.95)),
        ("confidence", lambda: fixed_threshold(*worlds, 0.0, delta=1e-5, confidence=1.0)),
        ("confidence", lambda: best_threshold(*worlds, delta=1e-5, confidence=0.0)),
        ("trials", lambda: best_threshold(*worlds, delta=1e-5, confidence=0.9, trials=0)),
    ):
        with pytest.raises(InvalidInputError) as error:
            bound()
        assert error.value.field == field


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_scores_of_any_size_choose_a_threshold(scale: float) -> None:
    rng = np.random.default_rng(0)
    absent, present = scale * rng.normal(size=1000), scale * (rng.normal(size=1000) + 3)
    threshold = best_threshold(absent, present, delta=1e-5, confidence=0.95)
    assert fixed_threshold(absent, present, threshold, delta=1e-5, confidence=0.95) > 2
