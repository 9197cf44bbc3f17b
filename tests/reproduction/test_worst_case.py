"""The worst case by its construction, against fifty digits and a plain sum over a grid of both tensors."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from dpmerge.report.plots import Panels, values
from oracle import gaussian_mp
from reproduction import worst_case
from reproduction.presets import DELTA
from reproduction.run_store import RunStore
from tiny_experiments import roundtrip

Numbers = dict[str, Any]


@pytest.fixture(scope="module")
def numbers(store: RunStore) -> Numbers:
    return roundtrip(worst_case.measure(store))


def test_the_average_of_tensors_of_their_own_costs_joint_release_at_every_weight(numbers: Numbers) -> None:
    for case, (first, second) in zip(numbers["cases"], worst_case.CASES.values(), strict=True):
        truth = float(gaussian_mp.epsilon(float(np.hypot(1 / first, 1 / second)), DELTA))
        assert case["joint release"] == pytest.approx(truth, rel=1e-8)
        assert values(case["own tensors"]) == pytest.approx(truth, rel=1e-8)
        for share, averaged in zip(case["shares"], case["one tensor"], strict=True):
            mu = 1 / np.hypot((1 - share) * first, share * second)
            assert averaged == pytest.approx(float(gaussian_mp.epsilon(float(mu), DELTA)), rel=1e-8)
            assert averaged <= truth * (1 + 1e-9)


def test_the_integral_is_a_sum_over_both_tensors() -> None:
    """The densities of the average themselves, at every point of a grid."""
    deviations, weights, epsilon = (1.0, 0.25), (0.7, 0.3), 1.5
    axes = [w * np.linspace(0.5 - 9 * s, 0.5 + 9 * s, 1501) for s, w in zip(deviations, weights, strict=True)]

    def density(present: bool) -> np.ndarray:
        one, other = (
            np.exp(-(((axis - w * present) / (w * s)) ** 2) / 2) / (w * s * np.sqrt(2 * np.pi))
            for axis, s, w in zip(axes, deviations, weights, strict=True)
        )
        return np.asarray(np.outer(one, other))

    cell = np.prod([axis[1] - axis[0] for axis in axes])
    expected = np.maximum(density(True) - np.exp(epsilon) * density(False), 0).sum() * cell
    assert worst_case.merged_delta(deviations, weights, epsilon) == pytest.approx(float(expected), rel=1e-5)


def test_the_attack_shows_more_than_one_tensor_would_allow_and_no_more_than_joint_release(numbers: Numbers) -> None:
    found = numbers["attacked"]
    assert found["one tensor"] < found["shown"] < found["joint release"]
    scores = [worst_case.scores(np.random.default_rng(1), 50_000, there) for there in (False, True)]
    mu = np.hypot(1, 4)  # a log-likelihood ratio of Gaussians has mean ∓μ²/2 and deviation μ
    for score, mean in zip(scores, (-(mu**2) / 2, mu**2 / 2), strict=True):
        assert score.mean() == pytest.approx(mean, abs=0.1)
        assert score.std() == pytest.approx(mu, abs=0.05)


def test_the_worst_case_is_told_with_its_figures(numbers: Numbers) -> None:
    equal, shown = worst_case.statements(numbers)
    assert (equal.verdict, shown.verdict) == ("agrees", "agrees")
    assert "joint release 4.9833, the average 4.9833 to 4.9833" in equal.measured
    assert "joint release 25.40" in shown.measured
    other = copy.deepcopy(numbers)
    other["cases"][0]["own tensors"][1] *= 1.001
    other["attacked"]["shown"] = 30.0
    assert [s.verdict for s in worst_case.statements(other)] == ["disagrees", "disagrees"]


def test_the_worst_case_is_drawn_beside_the_average_in_one_tensor(numbers: Numbers) -> None:
    [drawing] = worst_case.drawings(numbers)
    assert isinstance(drawing, Panels)
    assert [plot.caption for plot in drawing.plots] == [case["name"] for case in numbers["cases"]]
    for plot in drawing.plots:
        assert [len(series.x) for series in plot.series] == [3, 3, 3]


def test_the_settings_of_the_worst_case_name_what_was_attacked(store: RunStore) -> None:
    assert worst_case.settings(store)["attacked"] == "noise 1 and 0.25, weight 0.1 of the second"
