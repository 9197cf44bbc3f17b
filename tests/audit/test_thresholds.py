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

from audit.mechanisms import gaussian, laplace, randomised_response, scores
from dpmerge.auditing import thresholds
from dpmerge.auditing.counting_estimator import clopper_pearson, epsilon_from_rates
from dpmerge.auditing.thresholds import (
    all_thresholds,
    all_thresholds_delta,
    best_threshold,
    best_threshold_delta,
    fixed_threshold,
    fixed_threshold_delta,
    split_threshold,
    split_threshold_delta,
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
def test_all_thresholds_show_no_more_than_those_of_another_auditor(name: str, case: dict[str, Any]) -> None:
    """It divides the error among the thresholds on the hull of the ROC curve, which the scores themselves pick.

    With its thresholds and its share of the error ours give its number. Our own pays for a ladder that is fixed
    before, which the proof needs; on these samples, whose hulls have few corners, that makes the bound no larger.
    """
    sample = OTHER[name]
    worlds = sample["absent"], sample["present"]
    share = 1 - case["significance"] / sample["thresholds kept"]
    bounds = [fixed_threshold(*worlds, cut, delta=case["delta"], confidence=share) for cut in sample["finite ones"]]
    assert max(bounds) == pytest.approx(case["all thresholds"], abs=1e-6)
    ours = all_thresholds(*worlds, delta=case["delta"], confidence=1 - case["significance"])
    assert ours <= case["all thresholds"] + 1e-9
    if case["all thresholds"] > 1:
        assert ours >= 0.7 * case["all thresholds"]


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
    assert all_thresholds(*worlds, delta=0.0, confidence=0.9) > 1


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


# All thresholds, and a split


@given(few_scores, few_scores, deltas)
def test_all_thresholds_ignore_the_scale_of_scores(absent: list[float], present: list[float], delta: float) -> None:
    plain = all_thresholds(absent, present, delta=delta, confidence=0.8)
    bent = all_thresholds(np.exp(absent), np.exp(present), delta=delta, confidence=0.8)
    assert plain == bent


@given(few_scores, few_scores, deltas)
def test_all_thresholds_show_no_more_than_the_best_of_them(
    absent: list[float], present: list[float], delta: float
) -> None:
    cuts = sorted({*absent, *present})
    best = max(fixed_threshold(absent, present, cut, delta=delta, confidence=0.8) for cut in cuts)
    assert 0 <= all_thresholds(absent, present, delta=delta, confidence=0.8) <= best
    shown = max(fixed_threshold_delta(absent, present, cut, epsilon=0.5, confidence=0.8) for cut in cuts)
    assert 0 <= all_thresholds_delta(absent, present, epsilon=0.5, confidence=0.8) <= shown


def test_all_thresholds_tell_worlds_that_are_alike_apart_no_more_often_than_stated() -> None:
    """Two worlds that are alike: something is shown in at most 5 % of samples, at a confidence of 95 %.

    The largest of the uncorrected bounds is no bound, and this same check says so. One world has many more scores than
    the other: were both as uncertain, that both limits fail at once would be too rare to be seen.
    """
    rng = np.random.default_rng(5)
    ours = uncorrected = 0
    for _ in range(200):
        absent, present = np.sort(rng.random(60)), np.sort(rng.random(20_000))
        ours += all_thresholds(absent, present, delta=0.0, confidence=0.95) > 0
        _, false_high = clopper_pearson(np.arange(59, -1, -1), 60, 0.975)
        true_low, _ = clopper_pearson(20_000 - np.searchsorted(present, absent, side="right"), 20_000, 0.975)
        uncorrected += epsilon_from_rates(true_low, false_high, 0.0).max() > 0
    most = 0.05 * 200 + 3 * math.sqrt(0.05 * 0.95 * 200)
    assert ours <= most < uncorrected


@pytest.mark.parametrize("mu", [1.0, 3.0])
def test_all_thresholds_show_more_than_a_bonferroni_correction(mu: float) -> None:
    """Bonferroni's correction over as many thresholds as scores would show less."""
    absent, present = scores(gaussian(mu), 20_000, 8)
    ours = all_thresholds(absent, present, delta=1e-5, confidence=0.95)
    cuts = np.quantile(np.concatenate([absent, present]), np.linspace(0, 1, 2000))
    corrected = 1 - 0.05 / 20_000
    assert ours > max(fixed_threshold(absent, present, cut, delta=1e-5, confidence=corrected) for cut in cuts)


def test_all_thresholds_show_a_leak_in_either_tail() -> None:
    """Turned around, the strong way of a one-sided leak is the other one; the ladder is dense at both ends."""
    rng = np.random.default_rng(2)
    absent = rng.random(4000)
    present = np.where(rng.random(4000) < 0.02, 1 + rng.random(4000), rng.random(4000))
    forward = all_thresholds(absent, present, delta=1e-5, confidence=0.95)
    backward = all_thresholds(-present, -absent, delta=1e-5, confidence=0.95)
    assert forward > 1.5
    assert backward > 1.5


def test_a_split_counts_scores_that_did_not_choose() -> None:
    absent, present = scores(laplace(1.0), 4000, 4)
    terms = {"delta": 1e-5, "confidence": 0.95}
    shown = [split_threshold(absent, present, rng=np.random.default_rng(k), **terms) for k in range(20)]
    assert shown[0] == split_threshold(absent, present, rng=np.random.default_rng(0), **terms)
    assert len(set(shown)) > 5
    assert 0.6 < np.mean(shown) < 1.0
    # The first quarter of each world, once shuffled, chooses; only the rest is counted.
    rng = np.random.default_rng(0)
    without, within = rng.permutation(absent), rng.permutation(present)
    threshold = best_threshold(without[:1000], within[:1000], trials=3000, **terms)
    assert shown[0] == fixed_threshold(without[1000:], within[1000:], threshold, **terms)
    # t − f of a Laplace shifted by 1 is 1 − e^(−1/2) at best.
    shown_delta = split_threshold_delta(absent, present, epsilon=0.0, confidence=0.95, rng=np.random.default_rng(0))
    assert 0.3 < shown_delta < 1 - math.exp(-0.5)


def test_few_scores_give_finite_bounds() -> None:
    for size in range(1, 12):
        worlds = np.zeros(size), np.ones(size)
        for bound in (
            all_thresholds(*worlds, delta=1e-5, confidence=0.95),
            all_thresholds_delta(*worlds, epsilon=1.0, confidence=0.95),
            fixed_threshold(*worlds, best_threshold(*worlds, delta=1e-5, confidence=0.95), delta=0.0, confidence=0.9),
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
        lambda: all_thresholds(absent, present, **terms),
        lambda: split_threshold(absent, present, rng=np.random.default_rng(0), **terms),
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
        ("confidence", lambda: all_thresholds(*worlds, delta=1e-5, confidence=1.0)),
        ("confidence", lambda: best_threshold(*worlds, delta=1e-5, confidence=0.0)),
        ("trials", lambda: best_threshold(*worlds, delta=1e-5, confidence=0.9, trials=0)),
        ("scores", lambda: split_threshold([0.0], [1.0], delta=0.0, confidence=0.9, rng=np.random.default_rng(0))),
    ):
        with pytest.raises(InvalidInputError) as error:
            bound()
        assert error.value.field == field


def test_every_limit_at_every_rung_has_an_equal_share_of_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """K rungs, two limits each: any of them may fail with (1 − confidence) / 2K."""
    asked: list[tuple[int, float]] = []
    exact = thresholds.clopper_pearson

    def seen(hits: Any, trials: int, confidence: float) -> Any:
        asked.append((np.size(hits), confidence))
        return exact(hits, trials, confidence)

    monkeypatch.setattr(thresholds, "clopper_pearson", seen)
    all_thresholds(np.arange(40.0), np.arange(40.0) + 20, delta=1e-5, confidence=0.9)
    (rungs, confidence), (again, same) = asked
    assert rungs == again > 10
    assert confidence == same == pytest.approx(1 - 0.1 / (2 * rungs))


def test_a_split_chooses_and_counts_on_different_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: dict[str, set[float]] = {}

    def best(absent: Any, present: Any, *_: Any) -> float:
        shown["chosen"] = {*absent, *present}
        return 100.0

    def at(_: float, absent: Any, present: Any, *__: Any) -> float:
        shown["counted"] = {*absent, *present}
        return 0.0

    monkeypatch.setattr(thresholds, "_best", best)
    monkeypatch.setattr(thresholds, "_at", at)
    absent, present = np.arange(100.0), np.arange(100.0) + 1000
    split_threshold(absent, present, delta=1e-5, confidence=0.95, rng=np.random.default_rng(0))
    assert (len(shown["chosen"]), len(shown["counted"])) == (50, 150)
    assert not shown["chosen"] & shown["counted"]


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_scores_of_any_size_choose_a_threshold(scale: float) -> None:
    rng = np.random.default_rng(0)
    absent, present = scale * rng.normal(size=1000), scale * (rng.normal(size=1000) + 3)
    threshold = best_threshold(absent, present, delta=1e-5, confidence=0.95)
    assert fixed_threshold(absent, present, threshold, delta=1e-5, confidence=0.95) > 2
