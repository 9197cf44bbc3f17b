"""`dpmerge account` from the outside: the JSON it prints, the table it shows."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dpmerge.accounting.rounding import format_up
from dpmerge.cli import app

EXAMPLES = Path(__file__).parents[2] / "examples"
FIGURES = ("mu", "epsilon", "epsilon_rdp_classic", "epsilon_rdp_improved")
THEOREMS = ("joint_release", "last_step", "merged_trajectory", "merged_trajectory_prepended", "hidden_state")


def run(spec: dict[str, Any], *arguments: str) -> Any:
    result = CliRunner().invoke(app, ["account", "-", *arguments], input=json.dumps(spec))
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout) if "--json" in arguments else result.stdout


def block(steps: int = 1, noise: float = 2.0, **facts: Any) -> dict[str, Any]:
    return {"steps": steps, "noise_multiplier": noise, "clip_norm": 1.0, "learning_rate": 1.0, **facts}


def spec(*runs: dict[str, Any], adjacency: str = "replace_one", **facts: Any) -> dict[str, Any]:
    return {"adjacency": adjacency, "delta": 1e-5, "runs": list(runs), **facts}


@pytest.mark.parametrize("number", range(3))
def test_account_gives_the_fifty_digit_reference_values(gaussian_values: dict[str, Any], number: int) -> None:
    case = gaussian_values["cases"][number]
    base = {name: case[name] for name in ("adjacency", "delta", "rdp_orders", "runs")}
    vectors = [("probabilities", e["probabilities"], e) for e in case["random_selection"]]
    vectors += [("weights", e["weights"], e) for e in case["linear_combination"]]
    for field, vector, expected in vectors:
        printed = run({**base, field: vector}, "--json")
        for single, reference in zip(printed["single"], case["single"], strict=True):
            for name in FIGURES:
                assert single[name] == pytest.approx(reference[name], rel=1e-8)
        if field == "probabilities":
            assert "linear_combination" not in printed
            for name in ("epsilon_pld", "epsilon_rdp_classic", "epsilon_rdp_improved"):
                assert printed["random_selection"][name] == pytest.approx(expected[name], rel=1e-8)
            continue
        assert "random_selection" not in printed
        for theorem in THEOREMS[:4]:
            for name, value in expected[theorem].items():
                assert printed["linear_combination"][theorem][name] == pytest.approx(value, rel=1e-8)
        assert printed["linear_combination"]["hidden_state"]["epsilon"] is None
        assert printed["linear_combination"]["hidden_state"]["certifies"] is False


def test_account_gives_the_reference_values_of_hidden_state(hidden_state_values: list[dict[str, Any]]) -> None:
    for case in hidden_state_values:
        runs = [
            {
                "blocks": [
                    {
                        "steps": len(rates),
                        "noise_multiplier": noise,
                        "clip_norm": clip,
                        "learning_rate": rates,
                    }
                ],
                "lipschitz": factor,
            }
            for rates, noise, clip, factor in zip(
                case["learning_rates"], case["noise_multipliers"], case["clip_norms"], case["lipschitz"], strict=True
            )
        ]
        adjacency = "replace_one" if case["k"] == 2 else "add_remove"
        printed = run(
            {
                "adjacency": adjacency,
                "delta": case["delta"],
                "runs": runs,
                "weights": case["weights"],
                "release_noise": case["release_noise"],
            },
            "--json",
        )
        figures = printed["linear_combination"]["hidden_state"]
        assert figures["certifies"] is True
        assert figures["mu"] == pytest.approx(case["mu"], rel=1e-6)
        assert figures["epsilon"] == pytest.approx(case["epsilon"], rel=1e-6)
        assert printed["linear_combination"]["last_step"]["mu"] == pytest.approx(case["mu_last_step"], rel=1e-8)
        assert printed["auto"]["theorem"] in ("hidden_state", "joint_release")


def test_the_json_of_account_has_every_theorem_with_its_premises() -> None:
    printed = run(spec({"blocks": [block()]}, {"blocks": [block()]}, weights=[0.5, 0.5]), "--json")
    assert set(printed) == {"adjacency", "delta", "single", "linear_combination", "auto"}
    assert tuple(printed["linear_combination"]) == THEOREMS
    for figures in printed["linear_combination"].values():
        assert set(figures) == {*FIGURES, "certifies", "premises"}
        for premise in figures["premises"]:
            assert set(premise) == {"name", "holds", "vouched_by"}
    assert set(printed["auto"]) == {"theorem", "epsilon"}
    auto = printed["auto"]
    assert auto["epsilon"] == printed["linear_combination"][auto["theorem"]]["epsilon"]


def test_one_step_certifies_the_merged_trajectory_but_ties_go_to_the_last_step() -> None:
    printed = run(spec({"blocks": [block()]}, {"blocks": [block(noise=0.5)]}, weights=[0.9, 0.1]), "--json")
    combination = printed["linear_combination"]
    assert combination["merged_trajectory"]["certifies"] is True
    assert combination["merged_trajectory"]["epsilon"] == pytest.approx(combination["last_step"]["epsilon"], rel=1e-12)
    assert printed["auto"]["theorem"] == "last_step"


def test_aggregate_clipping_certifies_the_tighter_alignment() -> None:
    runs = [
        {"blocks": [block(5, 1.5)], "clipping": "aggregate"},
        {
            "blocks": [{**block(9, 3), "learning_rate": [0.3, 0.3, 0.3, 0.3, 0.2, 0.1, 0.1, 0.1, 0.05]}],
            "clipping": "aggregate",
        },
    ]
    printed = run(spec(*runs, adjacency="add_remove", weights=[0.2, 0.8]), "--json")
    combination = printed["linear_combination"]
    tightest = min(("merged_trajectory", "merged_trajectory_prepended"), key=lambda name: combination[name]["epsilon"])
    assert combination[tightest]["certifies"] is True
    assert printed["auto"] == {"theorem": tightest, "epsilon": combination[tightest]["epsilon"]}


def test_shared_affine_is_taken_at_its_word_for_equal_lengths_only() -> None:
    equal = [{"blocks": [block(4)]}, {"blocks": [block(4, 1)]}]
    printed = run(spec(*equal, weights=[0.5, 0.5], shared_affine=True), "--json")
    assert printed["linear_combination"]["merged_trajectory"]["certifies"] is True
    unequal = [{"blocks": [block(4)]}, {"blocks": [block(5, 1)]}]
    printed = run(spec(*unequal, weights=[0.5, 0.5], shared_affine=True), "--json")
    assert printed["linear_combination"]["merged_trajectory"]["certifies"] is False


def test_a_run_without_noise_is_infinite_and_printed_as_text() -> None:
    printed = run(spec({"blocks": [block(noise=0)]}, {"blocks": [block()]}, probabilities=[0.5, 0.5]), "--json")
    assert printed["single"][0] == dict.fromkeys(FIGURES, "inf")
    assert set(printed["random_selection"].values()) == {"inf"}
    assert "∞" in run(spec({"blocks": [block(noise=0)]}))


def test_a_non_private_candidate_within_delta_is_finite() -> None:
    runs = ({"blocks": [block(noise=0)]}, {"blocks": [block(noise=4)]})
    printed = run(spec(*runs, probabilities=[5e-6, 1 - 5e-6]), "--json")
    assert math.isfinite(printed["random_selection"]["epsilon_pld"])
    assert printed["random_selection"]["epsilon_rdp_improved"] == "inf"


def test_zero_weight_runs_do_not_spoil_a_premise() -> None:
    sampled = {"blocks": [block(sampling_rate=0.1)]}
    full = {"blocks": [block(3)]}
    printed = run(spec(sampled, full, adjacency="add_remove", weights=[0, 1]), "--json")
    assert printed["linear_combination"]["last_step"]["certifies"] is True
    printed = run(spec(sampled, full, adjacency="add_remove", weights=[0.5, 0.5]), "--json")
    assert printed["linear_combination"]["last_step"]["certifies"] is True
    printed = run(spec(sampled, full, adjacency="replace_one", weights=[0.5, 0.5]), "--json")
    last_step = printed["linear_combination"]["last_step"]
    assert last_step["epsilon"] is None
    assert last_step["certifies"] is False
    assert [p["name"] for p in last_step["premises"] if not p["holds"]] == ["full_batch"]


def test_a_poisson_sampled_run_costs_the_reference_value() -> None:
    printed = run(spec({"blocks": [block(1000, 1.0, sampling_rate=0.01)]}, adjacency="add_remove"), "--json")
    single = printed["single"][0]
    assert single["mu"] is None
    assert single["epsilon"] == pytest.approx(1.8282, abs=1e-4)
    assert single["epsilon_rdp_improved"] == pytest.approx(2.1014, abs=2e-3)


def test_poisson_under_replace_one_has_no_renyi_figures() -> None:
    printed = run(spec({"blocks": [block(1000, 1.0, sampling_rate=0.01)]}), "--json")
    single = printed["single"][0]
    assert single["epsilon"] == pytest.approx(2.84, abs=5e-3)
    assert single["epsilon_rdp_classic"] is None
    assert single["epsilon_rdp_improved"] is None


def test_poisson_with_a_clipped_total_under_replace_one_has_no_figure_alone() -> None:
    runs = [{"blocks": [block(10, sampling_rate=0.1)], "clipping": "aggregate"}] * 2
    printed = run(spec(*runs, weights=[0.5, 0.5]), "--json")
    assert printed["single"][0]["epsilon"] is None
    assert printed["linear_combination"]["joint_release"]["epsilon"] is None
    assert printed["linear_combination"]["joint_release"]["certifies"] is False
    # Merged, every step costs its full-batch value: 10 steps of (Σ λ·2)²/Σ (λ·2)² = 2.
    assert printed["linear_combination"]["merged_trajectory"]["mu"] == pytest.approx(math.sqrt(20))
    assert printed["auto"]["theorem"] == "merged_trajectory"
    assert "aggregate clipping under replace_one" in run(spec(*runs))


def test_two_sampled_single_steps_merge_as_a_mixture() -> None:
    runs = [{"blocks": [block(1, 1.0, sampling_rate=0.1)]}, {"blocks": [block(1, 0.5, sampling_rate=0.2)]}]
    printed = run(spec(*runs, adjacency="add_remove", weights=[0.7, 0.3]), "--json")
    merged = printed["linear_combination"]["merged_trajectory"]
    assert merged["certifies"] is True
    assert merged["mu"] is None
    assert merged["epsilon"] < printed["linear_combination"]["joint_release"]["epsilon"]
    last_step = printed["linear_combination"]["last_step"]
    assert last_step["epsilon"] == pytest.approx(merged["epsilon"], rel=1e-9), "of single steps both say the same"
    assert printed["auto"]["theorem"] == "last_step", "the simpler premise"


def test_release_noise_enters_last_step_and_hidden_state_only() -> None:
    runs = [{"blocks": [block(5)], "lipschitz": 1}, {"blocks": [block(5, 1)], "lipschitz": 1}]
    plain = run(spec(*runs, weights=[0.5, 0.5]), "--json")["linear_combination"]
    noised = run(spec(*runs, weights=[0.5, 0.5], release_noise=1.0), "--json")["linear_combination"]
    for theorem in ("joint_release", "merged_trajectory", "merged_trajectory_prepended"):
        assert plain[theorem] == noised[theorem]
    for theorem in ("last_step", "hidden_state"):
        assert noised[theorem]["epsilon"] < plain[theorem]["epsilon"]


@pytest.mark.parametrize(
    ("facts", "failing"),
    [
        (
            {"smoothness": {"kind": "softmax", "feature_bound": 1, "batch_size": 9}},
            "clip_norm_at_least_sqrt2_feature_bound",
        ),
        ({"smoothness": {"kind": "logistic", "batch_size": 9}}, "features_bounded"),
        ({"smoothness": {"kind": "logistic", "feature_bound": 1}}, "number_of_records_bounded"),
        ({"lipschitz": 1, "momentum": 0.9, "nesterov": False, "dampening": 0}, "sgd_without_momentum"),
        ({"lipschitz": 1, "sampling": "shuffled", "steps_per_epoch": 2}, "full_batch"),
        ({}, "smoothness_known"),
    ],
)
def test_hidden_state_names_the_failing_premise(facts: dict[str, Any], failing: str) -> None:
    printed = run(spec({"blocks": [block(5)], **facts}, weights=[1.0]), "--json")["linear_combination"]["hidden_state"]
    assert printed["epsilon"] is None
    assert printed["certifies"] is False
    assert failing in [premise["name"] for premise in printed["premises"] if not premise["holds"]]


def test_a_rate_that_expands_is_allowed_and_priced() -> None:
    smooth = {"kind": "squared", "feature_bound": 1, "batch_size": 10}
    calm = run(spec({"blocks": [{**block(5), "learning_rate": 0.15}], "smoothness": smooth}, weights=[1.0]), "--json")
    wild = run(spec({"blocks": [{**block(5), "learning_rate": 0.25}], "smoothness": smooth}, weights=[1.0]), "--json")
    assert calm["linear_combination"]["hidden_state"]["certifies"] is True
    assert wild["linear_combination"]["hidden_state"]["certifies"] is True
    assert wild["linear_combination"]["hidden_state"]["mu"] >= calm["linear_combination"]["hidden_state"]["mu"]


def test_the_shipped_example_shows_every_theorem_within_80_columns() -> None:
    result = CliRunner().invoke(app, ["account", str(EXAMPLES / "two_models.json")], env={"COLUMNS": "80"})
    assert result.exit_code == 0
    for theorem in ("joint_release", "last_step", "merged_trajectory", "hidden_state"):
        assert theorem in result.stdout
    assert "prepended" not in result.stdout, "equal lengths: both alignments are the same"
    assert "merged_trajectory is no proof here." in result.stdout
    assert "Certified: ε = 0.42" in result.stdout
    assert max(len(line) for line in result.stdout.splitlines()) <= 80


def test_runs_of_unequal_length_show_both_alignments() -> None:
    falling = {**block(3, 1), "learning_rate": [3, 2, 1]}
    printed = run(spec({"blocks": [block(2)]}, {"blocks": [falling]}, weights=[0.5, 0.5]))
    assert "merged_trajectory_prepended" in printed


def test_printed_figures_are_rounded_up() -> None:
    printed = run(spec({"blocks": [block()]}))
    assert "4.3772" in printed  # 4.37717809…


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "–"),
        (float("inf"), "∞"),
        (0.0, "0.0000"),
        (1.00001, "1.0001"),
        (0.5, "0.5000"),
        (2000300123.0, "2.001E+9"),
        (1234567.0, "1.235E+6"),
    ],
)
def test_figures_are_never_printed_too_small(value: float | None, expected: str) -> None:
    assert format_up(value) == expected


def test_the_certificate_line_says_what_it_rests_on() -> None:
    smooth = {"kind": "logistic", "feature_bound": 1, "batch_size": 10, "vouched_by": "the data team"}
    runs = [{"blocks": [{**block(5, noise), "learning_rate": 0.1}], "smoothness": smooth} for noise in (2, 4)]
    printed = " ".join(run(spec(*runs, weights=[0.3, 0.7])).split())
    assert "nothing else of these runs is ever released" in printed
    assert "not chosen by" in printed
    assert "the data team" in printed
    assert "the spec and its defaults" in printed


def test_joint_release_covers_any_rule_that_chose_the_weights() -> None:
    printed = run(spec({"blocks": [block(5)]}, weights=[1.0]))
    assert "by joint_release" in printed
    assert "whatever rule chose the weights" in printed


def test_a_narrow_terminal_or_a_long_schedule_cuts_no_figure() -> None:
    blocks = [block(1, 10 + i / 7) for i in range(12)]
    result = CliRunner().invoke(
        app, ["account", "-"], input=json.dumps(spec({"blocks": blocks}, weights=[1.0])), env={"COLUMNS": "40"}
    )
    assert "…" not in result.stdout
    assert "10–11.6" in result.stdout
    exact = run(spec({"blocks": blocks}), "--json")["single"][0]["epsilon"]
    assert format_up(exact) in result.stdout


def test_missing_facts_are_all_named_with_what_would_state_them() -> None:
    printed = run(spec({"blocks": [block(3)], "smoothness": {"kind": "logistic"}}, weights=[1.0]))
    text = " ".join(printed.split())
    assert "number of records bounded [give smoothness.batch_size]" in text
    assert "features bounded [give smoothness.feature_bound]" in text
    small = {"kind": "softmax", "feature_bound": 1, "batch_size": 9}
    text = " ".join(run(spec({"blocks": [block(3)], "smoothness": small}, weights=[1.0])).split())
    assert "clip norm 1, needed 1.41422" in text


def test_an_old_terminal_gets_question_marks_instead_of_a_traceback() -> None:
    command = [sys.executable, "-c", "from dpmerge.cli import app; app()", "account", str(EXAMPLES / "two_models.json")]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    result = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert "Certified: ? = 0.4272" in result.stdout


def test_weight_decay_contracts_by_rate_times_batch_size() -> None:
    """L = max(|1 − ηm|, |1 − η(β + m)|), η = learning_rate × batch_size."""
    smooth = {"kind": "logistic", "feature_bound": 1, "batch_size": 10}
    made = {"blocks": [{**block(30), "learning_rate": 0.1}], "smoothness": smooth, "weight_decay": 0.2}
    declared = {"blocks": [{**block(30), "learning_rate": 0.1}], "lipschitz": 0.8, "weight_decay": 0.2}
    figures = [run(spec(r, weights=[1.0]), "--json")["linear_combination"]["hidden_state"] for r in (made, declared)]
    assert figures[0]["mu"] == pytest.approx(figures[1]["mu"], rel=1e-12)


def test_the_help_of_account_explains_its_fields_with_an_example() -> None:
    text = CliRunner().invoke(app, ["account", "--help"]).stdout
    for fragment in ("weights", "probabilities", "Example", "merged_trajectory"):
        assert fragment in text
