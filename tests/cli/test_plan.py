"""`dpmerge plan`, `design` and `frontier` from outside."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from dpmerge.cli import app
from portfolio.portfolios import DP_SGD, add_remove, manifest, write_portfolio

EXAMPLES = Path(__file__).parents[2] / "examples"
MNIST = EXAMPLES / "mnist"
PUBLIC = f"linear:{MNIST / 'public.npz'}"


def ran(*arguments: object) -> Result:
    return CliRunner().invoke(app, [*map(str, arguments)], env={"COLUMNS": "80"})


def planned(*arguments: object, portfolio: Path = MNIST, epsilon: float = 0.8) -> Result:
    return ran("plan", portfolio, "--epsilon", epsilon, "--delta", "1e-5", *arguments)


def document(*arguments: object, **where: Any) -> Any:
    result = planned("--json", *arguments, **where)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_the_json_of_a_plan_has_the_documented_fields() -> None:
    found = document()
    promised = {
        "guarantee", "target", "method", "theorem", "candidates", "probabilities", "chosen_by", "premises", "exposure",
    }  # fmt: skip
    assert promised <= set(found)
    assert set(found["guarantee"]) == {"epsilon", "delta"}
    assert found["guarantee"]["epsilon"] <= found["target"]["epsilon"]


@pytest.mark.parametrize("epsilon", [0.1, 0.3, 0.8, 2.0])
@pytest.mark.parametrize("method", ["auto", "select", "combine", "mix"])
def test_the_explanation_of_a_plan_fits_80_columns(method: str, epsilon: float) -> None:
    result = planned("--method", method, epsilon=epsilon)
    assert result.exit_code == 0
    assert max(len(line) for line in result.stdout.splitlines()) <= 80
    for words in ("It costs ε = ", "Predicted noise-to-signal", "Chosen by", "Premises", "Caveats"):
        assert words in result.stdout


def test_a_target_above_the_joint_release_says_so() -> None:
    result = planned(epsilon=5)
    assert "above the joint release of the whole portfolio (ε = 1.6509)" in " ".join(result.stdout.split())
    found = document(epsilon=5)
    assert found["above_joint_release"] is True
    assert found["exposure"] == {run.name: 20 for run in sorted(MNIST.iterdir()) if run.is_dir()} | {}


def test_an_impossible_target_names_the_smallest() -> None:
    result = planned(epsilon=0.01)
    assert result.exit_code == 1
    assert result.stderr == (
        "error: no release meets ε = 0.01 at δ = 1e-05; the smallest is ε = 0.050509 (ladder-1@20)\n"
    )
    again = planned(epsilon=0.050509)
    assert again.exit_code == 0


def test_suggest_says_what_one_more_run_or_checkpoint_would_save() -> None:
    text = " ".join(planned("--suggest", epsilon=1.0).stdout.split())
    assert "One more run with the settings of c2-s64 would allow 5% less noise." in text
    assert "One more checkpoint, c2-s32@14, would allow 2% less noise." in text
    assert "would save less than 1 % of it" in " ".join(planned("--suggest", epsilon=0.8).stdout.split())
    assert "One more" not in planned(epsilon=1.0).stdout
    found = json.loads(planned("--suggest", "--json", epsilon=1.0).stdout)
    assert [round(one["saves"], 2) for one in found["suggestions"]] == [0.05, 0.02]
    assert "suggestions" not in document(epsilon=1.0)


def test_a_plan_by_merged_trajectory_without_its_premise_is_marked_as_no_proof() -> None:
    found = document("--theorem", "merged_trajectory")
    assert found["proved"] is False
    assert "assumed" in {caveat["name"] for caveat in found["caveats"]}
    assert [p["name"] for p in found["premises"] if not p["holds"]] == ["update_bounded_for_any_two_hidden_states"]
    assert "NO GUARANTEE: these runs do not meet a premise" in planned("--theorem", "merged_trajectory").stdout


@pytest.mark.parametrize("theorem", ["joint_release", "last_step"])
def test_a_plan_uses_the_theorem_asked_for_by_name(theorem: str) -> None:
    found = document("--theorem", theorem, "--method", "combine")
    assert found["theorem"] == theorem
    assert found["proved"] is True


def test_a_target_below_the_most_private_model_is_met_with_release_noise() -> None:
    found = document(portfolio=EXAMPLES / "probe", epsilon=0.02)
    assert found["theorem"] == "hidden_state"
    assert found["candidates"][0]["release_noise"] > 0
    assert found["final"] is True
    hint = planned("--method", "select", portfolio=EXAMPLES / "probe", epsilon=0.02)
    assert hint.exit_code == 1
    assert "method combine or mix reaches any ε here" in hint.stderr


def test_saturate_spends_the_whole_target_and_prior_uses_the_preferred_checkpoints() -> None:
    spent = document("--objective", "saturate", "--method", "select", epsilon=0.7)
    assert spent["guarantee"]["epsilon"] == pytest.approx(0.7, rel=1e-6)
    liked = document("--objective", "prior", "--prior", "c4-s32@20=0.9,ladder-1@20=0.1", epsilon=0.7)
    assert {name for c in liked["candidates"] for name in c["weights"]} == {"c4-s32@20", "ladder-1@20"}
    assert {
        "name": "utilities_stated_without_looking_at_the_models",
        "holds": True,
        "vouched_by": "whoever stated them",
    } in (liked["premises"])


def test_rdp_costs_more_than_pld() -> None:
    by_rdp, by_pld = (document("--accounting", a, "--method", "mix", epsilon=0.5) for a in ("rdp", "pld"))
    assert by_rdp["noise_to_signal"] > by_pld["noise_to_signal"]
    assert by_rdp["guarantee"]["epsilon"] <= 0.5


def test_a_plan_is_saved_whole_and_is_the_same_again(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    assert planned("-o", file).exit_code == 0
    assert json.loads(file.read_text()) == document()
    assert file.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]


def test_a_module_in_the_folder_is_used_as_evaluator_and_its_scores_are_cached(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def score(tensors):\n    return -float(abs(tensors['bias']).sum())\n")
    for _ in range(2):
        result = in_folder(tmp_path, "mine:score", "--evaluations", "20", "--json", "--cache", "scores.jsonl")
        assert json.loads(result.stdout)["chosen_by"]["kind"] == "public_evaluation"
    assert len((tmp_path / "scores.jsonl").read_text().splitlines()) == 21


def in_folder(folder: Path, evaluator: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command as typed in a folder with one's own module in it."""
    command = ["plan", str(MNIST), "--epsilon", "0.8", "--delta", "1e-5", "--objective", "public_evaluation"]
    script = f"from dpmerge.cli import app; app({[*command, '--evaluator', evaluator, *arguments]!r})"
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=folder, check=False)


def poisson(home: Path) -> Path:
    """Two Poisson-sampled runs under add_remove: below some δ their loss distributions are not computed."""
    block = {"steps": 4, "noise_multiplier": 1.0, "clip_norm": 1.0, "learning_rate": 0.01, "sampling_rate": 0.1}
    documents = {
        name: add_remove(manifest(name, mechanism={**DP_SGD, "blocks": [block], "sampling": "poisson"}))
        for name in "ab"
    }
    return write_portfolio(home, runs="ab", manifests=documents)


def test_a_plan_of_sampled_runs_meets_its_target_without_a_mu(tmp_path: Path) -> None:
    home = poisson(tmp_path)
    result = ran("plan", home, "--epsilon", 3, "--delta", "1e-5", "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["guarantee"]["epsilon"] <= 3
    assert found["candidates"][0]["mu"] is None


BAD: dict[str, tuple[tuple[object, ...], int, str]] = {
    "an unknown method": (("--method", "average"), 2, "method: got 'average'; accepted: auto, select, combine, mix"),
    "an unknown objective": (("--objective", "accuracy"), 2, "objective: got 'accuracy'; accepted: noise, sat"),
    "an unknown theorem": (("--theorem", "magic"), 2, "theorem: got 'magic'; accepted: auto, joint_release"),
    "an unknown accounting": (("--accounting", "gdp"), 2, "accounting: got 'gdp'; accepted: pld, rdp"),
    "a theorem for a selection": (("--method", "select", "--theorem", "last_step"), 2, "theorem: got 'last_step'"),
    "a theorem that covers nothing": (("--theorem", "hidden_state"), 1, "(c2-s32 lacks: smoothness known)"),
    "no evaluator": (("--objective", "public_evaluation"), 2, "evaluator: got nothing; accepted: module:function"),
    "an evaluator nobody has": (
        ("--objective", "public_evaluation", "--evaluator", "nobody.knows:this"), 2, "evaluator: got",
    ),
    "an evaluator that is not used": (
        ("--objective", "saturate", "--evaluator", PUBLIC), 2, "public_evaluation or private_validation",
    ),
    "an evaluator without a name": (("--objective", "public_evaluation", "--evaluator", "json"), 2, "module:function"),
    "an npz that is not there": (
        ("--objective", "public_evaluation", "--evaluator", "linear:nowhere.npz"), 2, "nowhere.npz",
    ),
    "a prior without objective": (("--prior", "c2-s32@20=1"), 2, "objective: got 'noise'; accepted: prior"),
    "an objective without prior": (("--objective", "prior"), 2, "prior: got nothing"),
    "a prior that is no number": (("--objective", "prior", "--prior", "c2-s32@20=high"), 2, "prior: got"),
    "a prior that is not finite": (("--objective", "prior", "--prior", "c2-s32@20=nan"), 2, "prior of c2-s32@20"),
    "a prior for nobody": (("--objective", "prior", "--prior", "c9@20=1"), 2, "checkpoint: got 'c9@20'"),
    "tuning of the data-independent": (("--tuning", "uncharged"), 2, "public_evaluation"),
    "an unknown tuning": (
        ("--objective", "public_evaluation", "--evaluator", PUBLIC, "--tuning", "free"), 2, "tuning: got 'free'",
    ),
    "a look at nobody": (
        ("--objective", "public_evaluation", "--evaluator", PUBLIC, "--look", "c9@1"), 2, "checkpoint: got 'c9@1'",
    ),
    "a look set too dear": (
        ("--objective", "public_evaluation", "--evaluator", PUBLIC, "--look", "c2-s32@20"), 1, "the look set c2-s32@20",
    ),
    "no evaluations": (
        ("--objective", "public_evaluation", "--evaluator", PUBLIC, "--evaluations", "0"), 2, "evaluations: got 0",
    ),
    "validation without its ε": (
        ("--objective", "private_validation", "--evaluator", PUBLIC), 2, "validation-epsilon: got nothing",
    ),
    "validation dearer than the target": (
        ("--objective", "private_validation", "--evaluator", PUBLIC, "--validation-epsilon", "1"), 2, "less than the",
    ),
    "validation by no count": (
        ("--objective", "private_validation", "--evaluator", "math:prod", "--validation-epsilon", ".1"), 2, "not shown",
    ),
    "a plan into nowhere": (("-o", "nowhere/plan.json"), 2, "output: nowhere is no folder that can be written to"),
    "a voucher without a name": (
        ("--objective", "private_validation", "--evaluator", PUBLIC, "--validation-epsilon", ".1", "--disjoint", ""),
        2, "disjoint: got ''",
    ),
    "a plan over a device": (("-o", "/dev/null"), 2, "is no ordinary file; name another"),
    "a plan with an endless name": (("-o", "a" * 300), 2, "output: cannot write"),
    "an evaluation too many": (("--evaluations", "5"), 2, "--evaluations is given"),
    "no thread": (
        ("--objective", "public_evaluation", "--evaluator", PUBLIC, "--jobs", "0"), 2, "jobs: got 0",
    ),
    "a non-private run nobody has": (("--non-private", "c9"), 2, "run: got 'c9'"),
    "an unknown allowance": (("--allow", "everything"), 2, "allow: got 'everything'"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_of_plan_is_refused_in_one_line(case: str) -> None:
    arguments, code, words = BAD[case]
    result = planned(*arguments)
    assert result.exit_code == code, result.output
    assert words in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


BAD_TARGETS = {
    "δ above one": (0.8, 1.5, 2, "delta: got 1.5; accepted: a number strictly between 0 and 1"),
    "δ of zero": (0.8, 0, 2, "delta: got 0.0"),
    "a negative ε": (-1, 1e-5, 2, "epsilon: got -1.0; accepted: a finite number ≥ 0"),
    "an ε of zero": (0, 1e-5, 2, "epsilon: got 0.0"),
    "an infinite ε": ("inf", 1e-5, 2, "epsilon: got inf"),
    "an ε that is no number": ("nan", 1e-5, 2, "epsilon: got nan"),
}


@pytest.mark.parametrize("case", BAD_TARGETS)
def test_a_bad_target_is_refused_by_the_name_of_the_field(case: str) -> None:
    epsilon, delta, code, words = BAD_TARGETS[case]
    result = ran("plan", MNIST, "--epsilon", epsilon, "--delta", delta)
    assert result.exit_code == code
    assert words in result.stderr


def test_a_plan_of_an_empty_portfolio_is_refused(tmp_path: Path) -> None:
    result = planned(portfolio=tmp_path)
    assert result.exit_code == 2
    assert "a folder without any run" in result.stderr


def test_a_plan_of_a_portfolio_without_checkpoints_is_refused(tmp_path: Path) -> None:
    home = write_portfolio(tmp_path, runs="a", models={"a": {}})
    result = planned(portfolio=home)
    assert result.exit_code == 2
    assert "no checkpoint was kept" in result.stderr


def test_a_delta_below_the_floor_of_sampled_runs_is_refused(tmp_path: Path) -> None:
    result = ran("plan", poisson(tmp_path), "--epsilon", 3, "--delta", "1e-14")
    assert result.exit_code == 2
    assert "delta: got 1e-14; accepted: at least" in result.stderr


def test_an_evaluator_that_returns_nan_is_named_with_its_recipe(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("def score(tensors):\n    return float('nan')\n")
    result = in_folder(tmp_path, "broken:score")
    assert result.returncode == 2
    assert "nan" in result.stderr
    assert "@" in result.stderr
    assert "Traceback" not in result.stderr


def test_design_prints_or_gives_as_json_a_design_better_than_the_ladder() -> None:
    result = ran("design", "--range", "0.1:2", "--delta", "1e-5", "--levels", 6, "--steps", 20)
    assert result.exit_code == 0
    assert max(len(line) for line in result.stdout.splitlines()) <= 80
    found = json.loads(ran("design", "--range", "0.1:2", "--delta", "1e-5", "--levels", 6, "--json").stdout)
    assert found["worst_excess"] < found["ladder"]["worst_excess"]
    assert all(level["epsilon"] <= level["target"] for level in found["levels"])
    wrong = ran("design", "--range", "2:0.1", "--delta", "1e-5")
    assert wrong.exit_code == 2
    assert "range" in wrong.stderr


def test_frontier_writes_the_page_and_the_figures_asked_for(tmp_path: Path) -> None:
    page, figures = tmp_path / "report.html", tmp_path / "figures"
    result = ran(
        "frontier", EXAMPLES / "probe", "--evaluator", f"linear:{EXAMPLES / 'probe' / 'public.npz'}", "--targets", 4,
        "--evaluations", 60, "-o", page, "--figures", figures,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "not for release" in page.read_text()
    written = {file.name for file in figures.iterdir()}
    assert {"frontier.png", "frontier.svg", "frontier.csv", "analysis.json", "face-0.png", "theorems-0.svg"} <= written
    names = [line.removeprefix("Wrote ") for line in result.stdout.splitlines() if line.startswith("Wrote ")]
    assert {Path(name).name for name in names} == {*written, "report.html"}


def test_frontier_prints_within_80_columns_and_its_json_has_every_curve() -> None:
    result = ran("frontier", EXAMPLES / "probe", "--plain", "--targets", 4)
    assert result.exit_code == 0
    assert "not for release" in result.stdout
    assert max(len(line) for line in result.stdout.splitlines()) <= 80
    found = json.loads(ran("frontier", EXAMPLES / "probe", "--json", "--targets", 4).stdout)
    curves = {curve["name"]: curve for curve in found["curves"]}
    assert {
        "random selection, RDP",
        "random selection, PLD",
        "linear combination, RDP",
        "linear combination, PLD",
        "mixture of both, PLD",
    } <= set(curves)
    assert curves["linear combination by merged_trajectory"]["proved"] is False
    for method in ("random selection", "linear combination"):
        by = [np.array(curves[f"{method}, {a}"]["utilities"], dtype=float) for a in ("RDP", "PLD")]
        worse = by[0] < by[1] * (1 - 1e-9)
        assert not worse[~np.isnan(by[0])].any()


BAD_FRONTIERS = {
    "one checkpoint to sweep": (("--face", "s16@20"), "two or three different checkpoints"),
    "the same checkpoint twice": (("--face", "s16@20,s16@20"), "two or three different checkpoints"),
    "a checkpoint nobody has": (("--face", "s16@20,s99@1"), "checkpoint: got 's99@1'"),
    "an unknown theorem": (("--theorem", "magic"), "theorem: got 'magic'"),
    "a page into nowhere": (("-o", "nowhere/report.html"), "output: nowhere is no folder"),
    "a cache of nothing": (("--cache", "scores.jsonl"), "no cache without an evaluator"),
    "no targets": (("--targets", "0"), "targets: got 0"),
}


@pytest.mark.parametrize("case", BAD_FRONTIERS)
def test_bad_input_of_frontier_is_refused(case: str) -> None:
    arguments, words = BAD_FRONTIERS[case]
    result = ran("frontier", EXAMPLES / "probe", *arguments)
    assert result.exit_code == 2, result.output
    assert words in result.stderr


def test_a_design_that_does_not_serve_its_range_says_so_first() -> None:
    lines = ran("design", "--range", "0.1:2", "--delta", "1e-5", "--runs", 1, "--levels", 3).stdout.splitlines()
    assert lines[3] == "Too few runs for this range: up to 119× noise. Train more, or narrow the range."
    assert "Too few runs" not in ran("design", "--range", "0.1:2", "--delta", "1e-5").stdout
