"""What `make usefulness` counts and writes: expectations, choices, verdicts, and the committed page."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from dpmerge.errors import InvalidInputError
from usefulness.page import RESULTS, page, read, write_results
from usefulness.scoring import best_by_test, differences, expected, least_private, percent, spread, targets, verdict

DOCS = Path(__file__).parents[2] / "docs"


def test_a_draw_is_expected_to_be_as_good_as_its_candidates_by_their_probabilities() -> None:
    assert expected([1.0], [[0.9, 0.8]]) == [0.9, 0.8]
    assert expected([0.5, 0.5], [[1.0, 0.0], [0.0, 0.5]]) == [0.5, 0.25]
    with pytest.raises(ValueError, match="shorter"):
        expected([0.5, 0.5], [[1.0]])


def test_the_single_model_is_the_least_private_finished_one_within_the_target() -> None:
    costs = {"s1@9": 4.0, "s2@9": 2.0, "s4@9": 0.5}
    assert [least_private(costs, epsilon) for epsilon in (0.5, 1.99, 2.0, 100.0)] == ["s4@9", "s4@9", "s2@9", "s1@9"]


def test_the_oracle_looks_at_every_seed_by_itself_and_at_nothing_above_the_target() -> None:
    costs = {"a@1": 0.5, "a@2": 1.0, "b@2": 3.0}
    accuracies = {"a@1": [0.7, 0.6], "a@2": [0.6, 0.8], "b@2": [0.9, 0.9]}
    assert best_by_test(costs, accuracies, 1.0) == [("a@1", 0.7), ("a@2", 0.8)]


def test_targets_begin_at_the_cheapest_finished_model_and_end_above_the_least_private() -> None:
    found = targets([0.592, 1.1, 4.3])
    assert len(found) == 5
    assert found == sorted(found)
    assert 0.592 <= found[0] < 0.62
    assert found[-1] > 4.3
    assert all(value == float(f"{value:.3g}") for value in found)


def test_the_spread_is_over_seeds_and_of_the_difference_itself() -> None:
    assert spread([0.5]) == 0.0
    assert spread([0.1, 0.2, 0.3]) == pytest.approx(0.1)
    gains = differences([0.51, 0.71, 0.91], [0.5, 0.7, 0.9])
    assert spread(gains) == pytest.approx(0.0, abs=1e-12)
    assert percent(gains, sign=True) == "+1.0 ± 0.0"


@pytest.mark.parametrize(
    ("gains", "word"),
    [((0.1, 0.2), "better"), ((-0.1, -0.2), "worse"), ((0.1, -0.2), "undecided"), ((0.0, 0.1), "undecided")],
)
def test_better_and_worse_are_what_every_seed_says(gains: tuple[float, ...], word: str) -> None:
    assert verdict(gains) == word


# The page


def released(accuracy: list[float], *weights: dict[str, float]) -> dict[str, Any]:
    candidates = [
        {"probability": 1 / len(weights), "weights": each, "release_noise": 0.0, "accuracy": accuracy}
        for each in weights
    ]
    return {"method": "mix", "theorem": "joint_release", "epsilon": 1.0, "candidates": candidates, "accuracy": accuracy}


def measured(auto: list[float]) -> dict[str, Any]:
    single = {"checkpoint": "s2@4", "epsilon": 0.9, "accuracy": [0.8, 0.82]}
    average = {
        "weights": {"s1@4": 0.8, "s2@4": 0.2},
        "epsilon": 2.1,
        "accuracy": [0.5, 0.4],
        "singles": {
            "s1@4": {"epsilon": 2.0, "accuracy": [0.9, 0.9]},
            "s2@4": {"epsilon": 0.9, "accuracy": [0.8, 0.82]},
        },
    }
    row = {
        "epsilon": 1.0,
        "auto": released(auto, {"s2@4": 1.0}, {"s1@2": 0.5, "s2@2": 0.5}),
        "single": single,
        "oracle": {"checkpoints": ["s2@4", "s2@2"], "accuracy": [0.8, 0.83]},
        "mix": released([0.3, 0.4], {"s1@2": 0.5, "s2@2": 0.5}),
        "seconds_to_plan": 1.0,
    }
    return {
        "described": "a network",
        "start": "random",
        "rate": 0.5,
        "steps": 4,
        "seconds_to_train": [1.0, 2.0],
        "checkpoints": {"s1@4": {"epsilon": 2.0, "accuracy": [0.9, 0.9]}},
        "targets": [row],
        "averages": [average],
    }


SCALE = {
    "records": 64,
    "tests": 200,
    "batch": 16,
    "clip_norm": 1.0,
    "noises": [1.0, 2.0],
    "resnet_public": 1,
    "transformer_public": 2,
}


def test_a_row_shows_the_four_accuracies_the_difference_and_what_was_chosen(tmp_path: Path) -> None:
    write_results(tmp_path / "results.json", "mlp", measured([0.7, 0.7]), SCALE, (0, 1), {})
    text = page(read(tmp_path / "results.json"))
    [row] = re.findall(r"^\| mlp \| 1 \|.*$", text, re.M)
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells == [
        "mlp",
        "1",
        "70.0 ± 0.0",
        "81.0 ± 1.4",
        "81.5 ± 2.1",
        "35.0 ± 7.1",
        "−11.0 ± 1.4",
        "**worse**",
        "draw: 0.5 s2@4, 0.5 average of s1@2, s2@2; single: s2@4",
    ]
    assert "better in 0, the same in 0, worse in 1" in text
    assert "−45.0 ± 7.1 | **worse** |" in text, "the average, beside the least private model in it"


def test_portfolios_that_were_measured_otherwise_are_dropped_and_others_kept(tmp_path: Path) -> None:
    file = tmp_path / "there" / "results.json"
    write_results(file, "mlp", measured([0.9, 0.9]), SCALE, (0, 1), {})
    write_results(file, "cnn", measured([0.9, 0.9]), SCALE, (0, 1), {})
    assert list(read(file)["portfolios"]) == ["mlp", "cnn"]
    write_results(file, "cnn", measured([0.9, 0.9]), {**SCALE, "records": 65}, (0, 1), {})
    assert list(read(file)["portfolios"]) == ["cnn"]


def test_other_documents_are_refused(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text(json.dumps({"schema": "something"}))
    for name in ("other.json", "absent.json"):
        with pytest.raises(InvalidInputError, match="results"):
            read(tmp_path / name)


def test_the_committed_page_is_written_from_the_committed_numbers() -> None:
    assert (DOCS / "usefulness.md").read_text() == page(read(DOCS / RESULTS))


def test_every_committed_accuracy_is_the_expectation_over_its_candidates() -> None:
    results = read(DOCS / RESULTS)
    assert set(results["portfolios"]) == {"linear", "mlp", "cnn", "resnet", "lora"}
    for portfolio in results["portfolios"].values():
        costs = {name: facts["epsilon"] for name, facts in portfolio["checkpoints"].items()}
        accuracies = {name: facts["accuracy"] for name, facts in portfolio["checkpoints"].items()}
        finished = {name: cost for name, cost in costs.items() if name.endswith(f"@{portfolio['steps']}")}
        assert [row["epsilon"] for row in portfolio["targets"]] == targets(list(finished.values()))
        for row in portfolio["targets"]:
            for released in (row["auto"], row["mix"]):
                drawn = released["candidates"]
                by_hand = expected([each["probability"] for each in drawn], [each["accuracy"] for each in drawn])
                assert released["accuracy"] == pytest.approx(by_hand, abs=1e-6)
                assert released["epsilon"] <= row["epsilon"]
            assert row["single"]["checkpoint"] == least_private(finished, row["epsilon"])
            assert row["oracle"]["accuracy"] == [value for _, value in best_by_test(costs, accuracies, row["epsilon"])]
