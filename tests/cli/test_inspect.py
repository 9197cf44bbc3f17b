"""`dpmerge inspect` from outside."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from dpmerge.cli import app
from dpmerge.errors import InvalidInputError
from dpmerge.portfolio import Portfolio, inspect

EXAMPLES = Path(__file__).parents[2] / "examples"


def inspected(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["inspect", *map(str, arguments)], env={"COLUMNS": "80"})


def test_inspect_tables_fit_80_columns_and_round_epsilon_up() -> None:
    result = inspected(EXAMPLES / "mnist")
    assert result.exit_code == 0
    assert max(len(line) for line in result.stdout.splitlines()) <= 80
    assert (
        "Everything at once, whatever is done with it: ε = 1.6509 (μ = 0.4222)" in result.stdout
    )  # 1.65085…, 0.42216…
    assert "all 11 runs at step 20" in result.stdout


def test_inspect_json_has_every_figure_at_full_precision() -> None:
    document = json.loads(inspected(EXAMPLES / "probe", "--json", "--delta", "1e-6").stdout)
    assert document["delta"] == 1e-6
    assert [run["run"] for run in document["runs"]] == ["s16", "s32", "s64"]
    assert set(document["averaging"][0]["theorems"]) == {
        "joint_release", "last_step", "hidden_state", "merged_trajectory",
    }  # fmt: skip
    epsilons = [checkpoint["epsilon"] for checkpoint in document["runs"][0]["checkpoints"]]
    assert epsilons == sorted(epsilons)
    assert document["joint_release_of_everything"]["epsilon"] > max(epsilons)


def test_one_run_s_folder_is_inspected_as_a_portfolio() -> None:
    document = json.loads(inspected(EXAMPLES / "probe" / "s16", "--json").stdout)
    assert [run["run"] for run in document["runs"]] == ["s16"]
    assert "completeness_unknown" in {caveat["name"] for caveat in document["caveats"]}


def test_headers_only_is_a_caveat_and_skips_digests(tmp_path: Path) -> None:
    folder = shutil.copytree(EXAMPLES / "probe", tmp_path / "probe")
    file = folder / "s16" / "step-20.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    result = inspected(folder, "--headers-only", "--json")
    assert "contents_not_read" in {caveat["name"] for caveat in json.loads(result.stdout)["caveats"]}
    result = inspected(folder)
    assert result.exit_code == 2
    assert "checkpoints[2].files[0].sha256" in result.stderr


def test_runs_that_must_not_be_averaged_are_in_separate_groups_until_allowed(tmp_path: Path) -> None:
    folder = shutil.copytree(EXAMPLES / "probe", tmp_path / "probe")
    file = folder / "s64" / "privacy.json"
    content = json.loads(file.read_text())
    content["initial_weights"] = "0" * 64
    file.write_text(json.dumps(content))
    groups = [group["runs"] for group in json.loads(inspected(folder, "--json").stdout)["averaging"]]
    assert groups == [["s16", "s32"], ["s64"]]
    assert "among s16, s32" in inspected(folder).stdout
    allowed = inspected(folder, "--json", "--allow", "different_initial_weights")
    assert [group["runs"] for group in json.loads(allowed.stdout)["averaging"]] == [["s16", "s32", "s64"]]


def test_a_run_without_a_number_is_shown_with_the_reason(tmp_path: Path) -> None:
    folder = shutil.copytree(EXAMPLES / "probe", tmp_path / "probe")
    file = folder / "s64" / "privacy.json"
    content = json.loads(file.read_text())
    content["ancestry"] = {"start": "unknown"}
    file.write_text(json.dumps(content))
    result = inspected(folder)
    assert result.exit_code == 0
    assert "no figure: s64: what it started from is not recorded" in " ".join(result.stdout.split())
    document = json.loads(inspected(folder, "--json").stdout)
    assert document["joint_release_of_everything"]["epsilon"] is None
    assert document["averaging"][0]["theorems"]["joint_release"]["applies_to"] == ["s16@20", "s32@20"]


def test_sampled_runs_show_every_prefix(tmp_path: Path) -> None:
    folder = shutil.copytree(EXAMPLES / "probe" / "s16", tmp_path / "s16")
    file = folder / "privacy.json"
    content = json.loads(file.read_text())
    content["mechanism"]["sampling"] = "poisson"
    content["mechanism"]["blocks"][0] |= {"sampling_rate": 0.01, "noise_multiplier": 1.0}
    file.write_text(json.dumps(content))
    document = json.loads(inspected(folder, "--json").stdout)
    epsilons = [checkpoint["epsilon"] for checkpoint in document["runs"][0]["checkpoints"]]
    assert epsilons == sorted(epsilons)
    assert document["joint_release_of_everything"]["epsilon"] == pytest.approx(epsilons[-1], rel=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere: there is no such folder; needed: a folder of runs, or a portfolio.yaml"),
        ([EXAMPLES / "probe", "--delta", "2"], "delta: got 2.0; accepted: a number strictly between 0 and 1"),
        ([EXAMPLES / "probe", "--allow", "all"], "allow: got 'all'; accepted: different_initial_weights"),
    ],
)
def test_bad_arguments_of_inspect_are_refused_in_one_line(arguments: list[object], message: str) -> None:
    result = inspected(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_inspect_in_python_does_what_the_command_does() -> None:
    found = inspect(EXAMPLES / "probe", delta=1e-6, headers_only=True, allow=["different_frozen_tensors"])
    options = ("--delta", "1e-6", "--headers-only", "--allow", "different_frozen_tensors")
    assert json.loads(inspected(EXAMPLES / "probe", "--json", *options).stdout) == json.loads(
        json.dumps(found.document())
    )
    loaded = Portfolio.load(EXAMPLES / "probe", contents=False, allow=["different_frozen_tensors"])
    assert inspect(loaded, 1e-6).document() == found.document()


def test_the_text_of_an_inspection_is_its_tables() -> None:
    text = str(inspect(EXAMPLES / "mnist"))
    assert "Everything at once, whatever is done with it: ε = 1.6509 (μ = 0.4222)" in text
    assert max(map(len, text.splitlines())) <= 100


def test_a_loaded_portfolio_is_not_loaded_otherwise_by_inspect() -> None:
    loaded = Portfolio.load(EXAMPLES / "probe", contents=False)
    with pytest.raises(InvalidInputError, match="it is loaded already, with headers_only and allow of its own"):
        inspect(loaded, headers_only=True)
    with pytest.raises(InvalidInputError, match="it is loaded already, with headers_only and allow of its own"):
        inspect(loaded, allow=["different_frozen_tensors"])
