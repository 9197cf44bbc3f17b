"""The ladder in seconds: ε by an independent formula, models averaged by hand, and statements that can fail."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from scipy.optimize import brentq
from scipy.special import ndtr

from dpmerge.report.plots import Panels
from reproduction import ladder, ladder_findings
from reproduction.presets import PRESETS
from reproduction.run_store import RunStore
from reproduction.statements import Statement
from tiny_experiments import TINY, TinyImages, roundtrip

MNIST = ladder.ladders(TINY)["mnist"]
CIFAR = ladder.ladders(TINY)["cifar10"]


@pytest.fixture(scope="module")
def numbers(store: RunStore) -> dict[str, Any]:
    return roundtrip(ladder.measure(store))


def gaussian(mu: float, epsilon: float) -> float:
    return float(ndtr(-epsilon / mu + mu / 2) - math.exp(epsilon) * ndtr(-epsilon / mu - mu / 2))


def epsilon_of(mu: float) -> float:
    """ε at δ = 1e-5 of μ-GDP, by a root of the textbook formula."""
    return float(brentq(lambda epsilon: gaussian(mu, epsilon) - 1e-5, 0.0, 100.0, xtol=1e-14))


def mu_of(steps: float, noise: float) -> float:
    """One record replaced: each full-batch step has sensitivity 2C."""
    return math.sqrt(steps) * 2 / noise


def about(numbers: dict[str, Any], words: str, data: str = "MNIST") -> Statement:
    [found] = [s for s in ladder.statements(numbers) if s.claim.startswith(f"{data}:") and words in s.claim]
    return found


def altered(numbers: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The numbers of MNIST alone, some of them others."""
    return {"mnist": {**copy.deepcopy(numbers["mnist"]), **changes}}


def models(store: RunStore, name: str, repeat: int) -> dict[str, np.ndarray]:
    [file] = Path(store.folder).glob(f"mnist-ladder-*/{repeat}/*/{name}/*{MNIST.steps}*.safetensors")
    return load_file(file)


def averaged(store: RunStore, k: int, repeat: int) -> dict[str, np.ndarray]:
    every = [models(store, f"rung-{number:02}", repeat) for number in range(1, k + 1)]
    return {tensor: np.mean([m[tensor] for m in every], axis=0, dtype=np.float64) for tensor in every[0]}


def test_epsilon_is_that_of_k_runs_composed(numbers: dict[str, Any]) -> None:
    for found, made in ((numbers["mnist"], MNIST), (numbers["cifar10"], CIFAR)):
        wanted = [epsilon_of(mu_of(k * made.steps, made.noise_multiplier)) for k in found["averaged"]]
        assert found["epsilons"] == pytest.approx(wanted, rel=1e-7)
        assert found["retrained_mus"] == pytest.approx(found["mus"], rel=1e-9)


def test_theory_s_epsilons_are_those_of_the_full_ladder() -> None:
    made = ladder.ladders(PRESETS["small"])["mnist"]
    assert (made.runs, made.noise_multiplier, made.steps, made.clip_norm) == (12, 512.0, 20, 2.0)
    assert made.averaged == tuple(ladder_findings.THEORY)
    for k, (epsilon, _) in ladder_findings.THEORY.items():
        assert round(epsilon_of(mu_of(k * made.steps, made.noise_multiplier)), 3) == epsilon
        assert made.setups().get(f"retrained-{k}", made.setups()["rung-01"]).noise_multiplier == 512 / math.sqrt(k)
    assert made.prefix_steps == [1, 3, 6, 13, 20]
    assert made.setups()["retrained-12"].keep == (1, 3, 6, 13)


def test_a_shorter_run_is_the_longest_within_the_epsilon(numbers: dict[str, Any]) -> None:
    for found, made in ((numbers["mnist"], MNIST), (numbers["cifar10"], CIFAR)):
        noise = made.noise_multiplier / math.sqrt(made.runs)
        for step, epsilon, target in zip(
            found["prefix_steps"], found["prefix_epsilons"], found["epsilons"], strict=True
        ):
            assert epsilon == pytest.approx(epsilon_of(mu_of(step, noise)), rel=1e-7)
            assert epsilon <= target * (1 + 1e-9) < epsilon_of(mu_of(step + 1, noise))


def test_draws_are_the_best_within_the_epsilon_they_stand_in_for(numbers: dict[str, Any]) -> None:
    """By brute force: every pair of the other rungs, with as much of the dearer as δ allows."""
    found = numbers["mnist"]
    for name, of in (("rungs", "averages"), ("models", "retrained")):
        accuracies = np.array(found["accuracies"][of])
        for place, epsilon in enumerate(found["epsilons"]):
            chances = np.array(found["chances"][name][place])
            costs = np.array([gaussian(mu, epsilon) for mu in found["mus"]])
            if place == 0:  # nothing else is as cheap
                assert np.isnan(chances).all()
                continue
            assert chances[place] == 0
            assert chances.sum() == pytest.approx(1)
            assert chances @ costs <= 1e-5 * (1 + 1e-6)
            others = [other for other in range(len(costs)) if other != place]
            best = 0.0
            for low in others:
                for high in others:
                    if costs[low] <= 1e-5:
                        dearer = min(1.0, (1e-5 - costs[low]) / (costs[high] - costs[low])) if costs[high] > 1e-5 else 1
                        mixed = (1 - dearer) * accuracies[:, low] + dearer * accuracies[:, high]
                        best = max(best, float(mixed.mean()))
            drawn = np.array(found["accuracies"][f"selected {name}"])[:, place]
            np.testing.assert_allclose(drawn, accuracies @ chances, rtol=1e-9)
            assert drawn.mean() == pytest.approx(best, abs=1e-6)


def accuracy_of(model: dict[str, np.ndarray]) -> float:
    images = TinyImages().mnist()
    shown = (images.test.astype(float) / 255 - 0.1307) / 0.3081
    [weight], [bias] = ([t for t in model.values() if t.ndim == dimension] for dimension in (2, 1))
    return float(np.mean((shown @ weight.T + bias).argmax(axis=1) == images.test_labels))


def test_averages_score_as_when_averaged_by_hand(store: RunStore, numbers: dict[str, Any]) -> None:
    found = numbers["mnist"]
    for repeat in range(TINY.mnist.seeds):
        for place, k in enumerate(MNIST.averaged):
            accuracy = accuracy_of(averaged(store, k, repeat))
            assert found["accuracies"]["averages"][repeat][place] == pytest.approx(accuracy, abs=1e-9)
        alone = [accuracy_of(models(store, name, repeat)) for name in MNIST.equal_runs]
        assert found["single_runs"][repeat] == pytest.approx(alone, abs=1e-9)


def test_deviations_between_repetitions_are_those_of_the_averaged_weights(
    store: RunStore, numbers: dict[str, Any]
) -> None:
    found = numbers["mnist"]
    for place, k in enumerate(MNIST.averaged):
        every = [averaged(store, k, repeat) for repeat in range(TINY.mnist.seeds)]
        flat = np.array([np.concatenate([t.ravel() for t in model.values()]) for model in every])
        wanted = np.sqrt(flat.var(axis=0, ddof=1).mean())
        assert found["deviations"]["averages"][place] == pytest.approx(wanted, rel=1e-5)
        mean = {tensor: np.mean([model[tensor] for model in every], axis=0) for tensor in every[0]}
        assert found["overall"]["averages"][place] == pytest.approx(accuracy_of(mean), abs=0.0051)  # one image of 200
    assert found["deviations"]["retrained"][1:] == pytest.approx(found["deviations"]["averages"][1:], rel=0.1)


@pytest.mark.parametrize("data", ["MNIST", "CIFAR-10"])
@pytest.mark.parametrize("words", ["μ grows", "noise of a weight", "joint release proves", "the planner"])
def test_statements_that_are_known_of_every_ladder_agree(numbers: dict[str, Any], data: str, words: str) -> None:
    assert about(numbers, words, data).verdict == "agrees"


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        ("μ grows", {"mus": [0.1, 0.15, 0.2]}),
        ("μ grows", {"retrained_mus": [0.1, 0.15, 0.2]}),
        ("joint release proves", {"proved": [True, False, True]}),
        ("joint release proves", {"assumed_mus": [0.1, 0.1, 0.1]}),
        ("the planner", {"planned_average": [True, False, True]}),
        ("noise of a weight", {"deviations": {"averages": [1.0, 0.9, 0.8], "retrained": [1.0, 0.7, 0.5]}}),
    ],
)
def test_statements_that_are_known_of_every_ladder_fail_on_altered_numbers(
    numbers: dict[str, Any], words: str, changes: dict[str, Any]
) -> None:
    assert about(altered(numbers), words).verdict == "agrees"
    assert about(altered(numbers, **changes), words).verdict in ("agrees in part", "disagrees")


def full(numbers: dict[str, Any]) -> dict[str, Any]:
    """As the full ladder would be if theory's figures were met exactly."""
    epsilons, accuracies = (list(column) for column in zip(*ladder_findings.THEORY.values(), strict=True))
    scores = {"averages": [accuracies] * 3}
    found = numbers["mnist"] | {"records": 60_000, "noise_multiplier": 512.0, "steps": 20}
    found |= {"averaged": list(ladder_findings.THEORY), "epsilons": epsilons, "accuracies": scores}
    found["single_runs"] = [[0.76, 0.78], [0.77, 0.77]]
    return copy.deepcopy(found)


def test_theory_s_figures_are_compared_in_their_own_setting_only(numbers: dict[str, Any]) -> None:
    assert not [s for s in ladder.statements(numbers) if "σ = 512" in s.claim]
    whole = full(numbers)
    met = ladder_findings.theory_statement(whole)
    assert met.verdict == "agrees"
    assert "0.051, 0.074, 0.108, 0.158, 0.197 and accuracy 0.785" in met.measured
    assert "single runs have 0.770 with a standard deviation of 0.007, from 0.760 to 0.780" in met.why
    assert "accuracy" not in ladder_findings.theory_statement(whole | {"records": 800}).measured
    off = copy.deepcopy(whole)
    off["epsilons"][2] = 0.109
    assert ladder_findings.theory_statement(off).verdict == "agrees in part"
    off = copy.deepcopy(whole)
    off["accuracies"]["averages"][0][1] += 0.04  # 0.013 of the mean of three
    assert ladder_findings.theory_statement(off).verdict == "agrees in part"


def scored(numbers: dict[str, Any], other: str, gains: list[list[float]]) -> dict[str, Any]:
    """Averages that are better than something by these gains, [repetition][k]."""
    accuracies = copy.deepcopy(numbers["mnist"]["accuracies"])
    accuracies[other] = (np.array(accuracies["averages"]) - np.array(gains)).tolist()
    return altered(numbers, accuracies=accuracies)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ("selected rungs", "the best draw among the other averages"),
        ("selected models", "the best draw among models trained"),
        ("prefixes", "stopped at its ε"),
    ],
)
def test_comparisons_of_ladders_are_decided_by_the_repetitions(numbers: dict[str, Any], other: str, words: str) -> None:
    better = about(scored(numbers, other, [[0.02, 0.02, 0], [0.021, 0.021, 0], [0.019, 0.019, 0]]), words)
    assert better.verdict == "agrees"
    assert "k = 2: +2.00 ± 0.25 points" in better.measured  # 4.303 · 0.1 / √3
    worse = about(scored(numbers, other, [[-0.02, -0.02, 0], [-0.021, -0.021, 0], [-0.019, -0.019, 0]]), words)
    assert worse.verdict == "disagrees"
    unclear = about(scored(numbers, other, [[0.02, 0.02, 0], [-0.03, -0.03, 0], [0.03, 0.03, 0]]), words)
    assert unclear.verdict == "within noise"


def test_the_comparison_with_one_run_may_agree_in_whole_in_part_or_within_noise(numbers: dict[str, Any]) -> None:
    words = "as accurate as one run"
    same = about(scored(numbers, "retrained", [[0, 0.01, -0.01], [0, -0.01, 0.01], [0, 0.005, 0.0]]), words)
    assert same.verdict == "within noise"
    better = about(scored(numbers, "retrained", [[0, 0.01, 0.01], [0, 0.011, 0.01], [0, 0.009, 0.011]]), words)
    assert better.verdict == "agrees"
    worse = about(scored(numbers, "retrained", [[0, -0.01, 0.01], [0, -0.011, -0.01], [0, -0.009, 0.0]]), words)
    assert worse.verdict == "agrees in part"


def test_the_reason_names_what_differs_without_noise_only_where_it_does(numbers: dict[str, Any]) -> None:
    words = "as accurate as one run"
    worse = altered(numbers, overall={"averages": [0.5, 0.6, 0.7], "retrained": [0.5, 0.61, 0.72]})
    assert "the two have 0.600, 0.700 and 0.610, 0.720 (k = 2, 4): noise also changes" in about(worse, words).why
    equal = altered(numbers, overall={"averages": [0.5, 0.6, 0.7], "retrained": [0.5, 0.6, 0.72]})
    assert "noise also changes" not in about(equal, words).why


def test_without_repetitions_nothing_is_said_of_noise(numbers: dict[str, Any]) -> None:
    alone = altered(numbers, deviations={"averages": [math.nan] * 3, "retrained": [math.nan] * 3})
    alone["mnist"]["accuracies"] = {name: rows[:1] for name, rows in alone["mnist"]["accuracies"].items()}
    assert not [s for s in ladder.statements(alone) if "noise of a weight" in s.claim]
    assert about(alone, "stopped at its ε").verdict == "not tested at this size", "one repetition tests nothing"
    [panels] = ladder.drawings(alone)
    assert isinstance(panels, Panels)
    [plot] = panels.plots
    assert all(series.error is None for series in plot.series)


def test_drawings_hold_the_mean_of_every_line(numbers: dict[str, Any]) -> None:
    [panels] = ladder.drawings(numbers)
    assert isinstance(panels, Panels)
    for plot, (name, found) in zip(panels.plots, numbers.items(), strict=True):
        assert plot.name == f"ladder-{name}"
        assert plot.note == found["described"]
        assert plot.log_x
        assert not any(series.dashed for series in plot.series)  # everything here is proved
        assert len({(series.colour, series.marks) for series in plot.series}) == len(plot.series) == 5
        for series, rows in zip(plot.series, found["accuracies"].values(), strict=True):
            np.testing.assert_allclose(series.y, np.mean(rows, axis=0))
            assert series.error is not None
        np.testing.assert_allclose(plot.series[0].x, found["epsilons"])
        np.testing.assert_allclose(plot.series[-1].x, found["prefix_epsilons"])


def test_the_settings_of_the_ladder_hold_noise_rates_and_delta(store: RunStore) -> None:
    stated = json.loads(json.dumps(ladder.settings(store)))
    assert stated["mnist"]["noise_multiplier"] == 512 / 16
    assert stated["cifar10"]["rates"] == [0.1] * TINY.cifar.steps
    assert stated["delta"] == 1e-5
