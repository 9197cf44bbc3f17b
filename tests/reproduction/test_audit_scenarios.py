"""`python -m reproduction audit` from outside: every scenario of the repository, verdicts, exit codes, wrong input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from dpmerge.auditing import findings, installed_scenarios
from dpmerge.auditing.scenario import Scenario
from entry_points import declared_scenarios
from reproduction.__main__ import audit_app
from reproduction.scenarios import catalogue
from reproduction.scenarios.canary_scenarios import CANARIES
from reproduction.scenarios.catalogue import simulated_scenarios


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed_scenarios, "entry_points", lambda group: declared_scenarios())


def ran(*arguments: object) -> Result:
    return CliRunner().invoke(audit_app, [*map(str, arguments)], env={"COLUMNS": "80"})


def document(result: Result) -> Any:
    assert result.exit_code in (0, 1), result.output
    return json.loads(result.stdout)


def test_every_simulated_scenario_and_canary_is_listed() -> None:
    result = ran("--scenario", "list")
    assert result.exit_code == 0
    names = {line.split()[0] for line in result.stdout.splitlines() if line[:1].strip()}
    assert names == set(json.loads(ran("--scenario", "list", "--json").stdout)["scenarios"])
    assert {"contraction", "revealed_state", "naive_cap", "canary_one_run"} <= names
    assert names == {*simulated_scenarios(), *CANARIES}
    assert {point.name for point in declared_scenarios()} <= names


def test_a_scenario_is_printed_with_the_verdict_of_every_claim() -> None:
    result = ran("--scenario", "contraction", "--trials", 20_000)
    assert result.exit_code == 0, result.output
    assert max(len(line) for line in result.stdout.splitlines()) <= 80
    lines = [line.strip() for line in result.stdout.splitlines() if line.strip()]
    rows = {line.split("  ")[0]: line.split()[-1] for line in lines}
    assert rows["merged trajectory"] == "violated"
    assert rows["hidden state"] == rows["last step"] == rows["joint release"] == "consistent"


def test_the_json_of_a_scenario_says_which_claims_are_false_in_theory() -> None:
    found = document(ran("--scenario", "contraction", "--trials", 20_000, "--json"))
    (played,) = found["scenarios"]
    verdicts = {f["claimed_by"]: (f["verdict"], f["false_here"]) for f in played["findings"]}
    assert verdicts["merged_trajectory"] == ("violated", True)
    assert verdicts["hidden_state"] == ("consistent", False)


def test_all_scenarios_together_share_one_confidence(monkeypatch: pytest.MonkeyPatch) -> None:
    few = {name: simulated_scenarios()[name] for name in ("one_step", "contraction")}
    monkeypatch.setattr(catalogue, "scenarios", lambda data: few)
    monkeypatch.setattr(installed_scenarios, "entry_points", lambda group: [])
    found = document(ran("--scenario", "all", "--trials", 20_000, "--json"))
    assert [played["name"] for played in found["scenarios"]] == ["one_step", "contraction"]
    assert {f["confidence"] for played in found["scenarios"] for f in played["findings"]} == {0.975}
    table = ran("--scenario", "all", "--trials", 20_000)
    assert max(len(line) for line in table.stdout.splitlines()) <= 80
    assert "one_step" in table.stdout


def test_a_violation_that_theory_does_not_expect_exits_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    right = simulated_scenarios()["one_step"]
    wrong = tuple(findings.Claim(by=c.by, value=0.5 * (c.value or 0), proved=True) for c in right.claims())
    broken = Scenario(name="one_step", words="broken", attack=right.attack, claims=lambda: wrong)
    monkeypatch.setattr(catalogue, "scenarios", lambda data: {"one_step": broken})
    result = ran("--scenario", "one_step", "--trials", 20_000)
    assert result.exit_code == 1
    assert "VIOLATED, though theory says it holds: one_step" in result.stdout


def test_a_violation_not_shown_for_lack_of_trials_is_told_apart() -> None:
    result = ran("--scenario", "naive_cap", "--trials", 100)
    assert result.exit_code == 1
    assert "Not shown, though theory says it is violated: naive_cap; more trials" in " ".join(result.stdout.split())
    assert "VIOLATED" not in result.stdout


def test_several_scenarios_asked_for_are_played_in_that_order() -> None:
    asked = ("--scenario", "one_step", "--scenario", "contraction", "--trials", 20_000, "--json")
    assert [p["name"] for p in document(ran(*asked))["scenarios"]] == ["one_step", "contraction"]


BAD = {
    "a scenario nobody knows": (["--scenario", "x"], "list, all, or one of single_full_batch"),
    "a name that is nearly one": (["--scenario", "contractoin"], "did you mean contraction?"),
    "a data folder that is not there": (["--scenario", "canary_single", "--data", "no"], "a folder that exists"),
    "a picture of all": (["--scenario", "all", "--picture", "x.png"], "one scenario"),
    "a picture in no folder": (["--scenario", "one_step", "--picture", "no/x.png"], "no is no folder that can be"),
    "too few trials": (["--scenario", "one_step", "--trials", 10], "an integer from 100 to 50000000"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_refused_in_one_line(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    arguments, words = BAD[what]
    result = ran(*arguments)
    assert result.exit_code == 2
    assert words in result.stderr
    assert len(result.stderr.splitlines()) == 1
