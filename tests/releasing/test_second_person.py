"""A second person, from the outside: the commands ask, wait, are approved, and then do exactly what was approved."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import dpmerge as dpm
from dpmerge.certificate.keys import generate
from dpmerge.cli import app
from dpmerge.errors import ApprovalNeededError
from dpmerge.ledger.ledger_schema import ApprovalBody, ChargeBody, PolicyBody, RequestBody
from dpmerge.releasing.ledger_location import LEDGER_NAME
from dpmerge.terms.documents import validated
from page_commands import blocks, run_command, run_python

EXAMPLE = Path(__file__).parents[2] / "examples" / "mnist"
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "second-person.md"
TARGET = ("--epsilon", "0.12", "--delta", "1e-5")
WAITING = 3


class Team:
    """A portfolio, its ledger, and the keys of three people; the policy asks for two of Ann and Bob."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.models = Path(shutil.copytree(EXAMPLE, folder / "models"))
        for name in ("ann", "bob", "eve"):
            generate(folder / name)
        made = self.ran("ledger", "policy", self.models, "--approvals", 2, *self.people("ann", "bob"))
        assert made.exit_code == 0, made.output

    def key(self, name: str) -> Path:
        return self.folder / name

    def people(self, *names: str) -> Iterator[str]:
        for name in names:
            yield from ("--person", f"{name}={self.key(name)}.pub")

    def ran(self, *arguments: object) -> Result:
        environment = {"COLUMNS": "80", "DPMERGE_LEDGER": None, "DPMERGE_REQUESTER_KEY": None}
        return CliRunner().invoke(app, [str(each) for each in arguments], env=environment)

    def merged(self, *more: object) -> Result:
        return self.ran("merge", self.models, *TARGET, "--final", "-o", self.folder / "out", *more)

    def shown(self) -> dict[str, Any]:
        shown: dict[str, Any] = json.loads(self.ran("ledger", "show", self.models, "--json").stdout)
        return shown

    def waiting(self) -> str:
        """The one request that is open."""
        [request] = self.shown()["requests"]
        return str(request["id"])

    def approve(self, by: str = "bob") -> None:
        approved = self.ran("ledger", "approve", self.waiting()[:16], self.models, "--key", self.key(by), "--yes")
        assert approved.exit_code == 0, approved.output

    def kinds(self) -> list[str]:
        with dpm.Ledger.of(self.models) as ledger:
            assert ledger.verify().ok
            return [entry.kind for entry in ledger.entries()]


@pytest.fixture
def team(tmp_path: Path) -> Team:
    return Team(tmp_path)


def test_a_final_release_waits_for_the_second_person_and_is_made_by_the_same_command(team: Team) -> None:
    asked = team.merged("--requester-key", team.key("ann"))
    assert asked.exit_code == WAITING, asked.output
    assert "waiting for approval, and nothing was done: final release (" in asked.stderr
    assert f"dpmerge ledger approve {team.waiting()[:16]} --ledger " in asked.stderr
    assert team.kinds() == ["policy", "request"]
    assert sorted(path.name for path in team.folder.iterdir() if "out" in path.name) == []
    assert team.merged().exit_code == WAITING
    team.approve()
    done = team.merged()
    assert done.exit_code == 0, done.output
    assert team.kinds() == ["policy", "request", "approval", "opened", "release", "sealed", "completed"]
    assert team.ran("verify", team.folder / "out", "--portfolio", team.models).exit_code == 0
    again = team.merged("-o", team.folder / "again")
    assert again.exit_code == 2, "approved once, made twice"
    assert "got no key to sign the request with" in again.stderr


def used_runs(terms: dict[str, Any]) -> set[str]:
    return {part["run"] for each in terms["candidates"] for part in each["parts"]}


def test_what_is_made_is_what_was_approved_though_a_plan_made_now_would_be_another(team: Team) -> None:
    (team.models / "portfolio.yaml").unlink()  # all runs that are there are the portfolio
    portfolio = dpm.Portfolio.load(team.models)
    best = dpm.prepare(portfolio, epsilon=0.12, delta=1e-5, final=True)
    away = min(used_runs(best.terms.document()))
    shutil.move(team.models / away, team.folder / away)
    assert team.merged("--requester-key", team.key("ann")).exit_code == WAITING
    [request] = team.shown()["requests"]
    assert away not in used_runs(request["content"]["terms"])
    team.approve()
    shutil.move(team.folder / away, team.models / away)
    done = team.merged("--json")
    assert done.exit_code == 0, done.output
    with dpm.Ledger.of(team.models) as ledger:
        charged = ledger.release(json.loads(done.stdout)["release"])
    assert charged is not None
    assert charged.body["terms"] == request["content"]["terms"]
    assert charged.body["details"] == request["content"]["details"]


def test_another_output_or_key_is_another_release_and_was_not_approved(team: Team) -> None:
    assert team.merged("--requester-key", team.key("ann")).exit_code == WAITING
    team.approve()
    for change in (("-o", team.folder / "elsewhere"), ("--reveal-draw",), ("--request-key", "mine")):
        refused = team.merged(*change)
        assert refused.exit_code == 2
        assert "2 people must stand behind this, of ann, bob; got no key" in refused.stderr
    assert "release" not in team.kinds()


def test_the_one_who_asked_a_stranger_and_a_hasty_person_approve_nothing(team: Team) -> None:
    team.merged("--requester-key", team.key("ann"))
    for key, yes, why in (
        ("ann", ["--yes"], "of ann's own: another person has to approve it"),
        ("eve", ["--yes"], "is of nobody whom the policy names (ann, bob)"),
        ("bob.pub", ["--yes"], "got a public key"),
        ("bob", [], "nobody to ask whether that is meant"),
        ("bob", ["--json"], "nobody to ask whether that is meant"),
    ):
        refused = team.ran("ledger", "approve", team.waiting(), team.models, "--key", team.key(key), *yes)
        assert refused.exit_code == 2
        assert why in refused.stderr
    assert team.kinds() == ["policy", "request"]


def test_a_cap_waits_and_its_json_says_for_whom(team: Team) -> None:
    command = ("ledger", "cap", team.models, "--epsilon", 2, "--delta", 1e-5, "--filter", "gaussian_filter")
    asked = team.ran(*command, "--requester-key", team.key("bob"), "--json")
    assert asked.exit_code == WAITING
    waiting = json.loads(asked.stdout)["waiting"]
    assert (waiting["request"], waiting["missing"], waiting["people"]) == (team.waiting(), 1, ["ann"])
    team.approve(by="ann")
    assert team.ran(*command).exit_code == 0
    assert team.kinds() == ["policy", "request", "approval", "opened", "cap"]


def test_denied_and_withdrawn_requests_are_closed(team: Team) -> None:
    for who in ("ann", "bob"):
        team.merged("--requester-key", team.key("ann"))
        denied = team.ran("ledger", "deny", team.waiting(), team.models, "--key", team.key(who), "--yes", "--json")
        assert denied.exit_code == 0, denied.output
        assert team.shown()["requests"] == []
        assert team.merged().exit_code == 2
    assert "release" not in team.kinds()


def test_the_policy_is_changed_by_two_people(team: Team) -> None:
    command = ("ledger", "policy", team.models, "--approvals", 1)
    assert team.ran(*command).exit_code == 2
    assert team.ran(*command, "--requester-key", team.key("eve")).exit_code == 2
    assert team.ran(*command, "--requester-key", team.key("ann")).exit_code == WAITING
    assert team.shown()["policy"]["approvals"] == 2
    team.approve()
    assert team.ran(*command).exit_code == 0
    assert team.shown()["policy"]["approvals"] == 1
    assert team.merged().exit_code == 0


def test_giving_up_waits_and_then_removes_what_was_staged(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr("dpmerge.releasing.publish.build", full)
        failed = team.ran("merge", team.models, *TARGET, "-o", team.folder / "out")
    assert failed.exit_code == 2
    [pending] = [line["release_id"] for line in team.shown()["scopes"][0]["releases"]]
    command = ("ledger", "recover", team.models, "--abandon", pending[:12])
    asked = team.ran(*command, "--requester-key", team.key("ann"), "--json")
    assert asked.exit_code == WAITING, asked.output
    assert json.loads(asked.stdout)[0]["request"] == team.waiting()
    assert "abandoned" not in team.kinds()
    team.approve()
    assert team.ran(*command).exit_code == 0
    assert team.kinds()[-1] == "abandoned"


def test_vouching_for_a_restored_ledger_waits(team: Team) -> None:
    backup = shutil.copy(team.models / LEDGER_NAME, team.folder / "backup.sqlite")
    for number in (1, 2):
        made = team.ran("merge", team.models, *TARGET, "-o", team.folder / f"made-{number}")
        assert made.exit_code == 0, made.output
    shutil.copy(backup, team.models / LEDGER_NAME)
    outputs = [part for number in (1, 2) for part in ("--adopt", team.folder / f"made-{number}")]
    command = ("ledger", "recover", team.models, *outputs, "--accept")
    asked = team.ran(*command, "--requester-key", team.key("ann"))
    assert asked.exit_code == WAITING, asked.output
    with dpm.Ledger.of(team.models) as ledger:
        assert ledger.doubt is not None
    team.approve()
    assert team.ran(*command).exit_code == 0
    assert team.kinds() == ["policy", "opened", "adopted", "adopted", "request", "approval", "accepted"]


def test_a_ledger_put_back_to_before_the_policy_is_noticed(tmp_path: Path) -> None:
    models = Path(shutil.copytree(EXAMPLE, tmp_path / "models"))
    dpm.Ledger.of(models, create=True).close()
    before = shutil.copy(models / LEDGER_NAME, tmp_path / "before.sqlite")
    for name in ("ann", "bob"):
        generate(tmp_path / name)
    with dpm.Ledger.of(models) as ledger:
        people = {name: tmp_path / f"{name}.pub" for name in ("ann", "bob")}
        ledger.change_policy(approvals=2, people=people)
        with pytest.raises(ApprovalNeededError):
            ledger.change_policy(approvals=1, requester_key=tmp_path / "ann")
    shutil.copy(before, models / LEDGER_NAME)
    with dpm.Ledger.of(models) as ledger:
        assert ledger.doubt is not None
        assert not ledger.verify().ok
    arguments = ["merge", models, *TARGET, "--final", "-o", tmp_path / "out"]
    refused = CliRunner().invoke(app, [str(each) for each in arguments], env={"DPMERGE_LEDGER": None})
    assert refused.exit_code == 2
    assert "lacks entry 1" in refused.stderr


def test_policies_requests_and_approvals_are_as_the_schema_says(team: Team) -> None:
    team.merged("--requester-key", team.key("ann"))
    team.approve()
    assert team.merged().exit_code == 0
    with dpm.Ledger.of(team.models) as ledger:
        exported = ledger.export()["entries"]
    models = {"policy": PolicyBody, "request": RequestBody, "approval": ApprovalBody, "release": ChargeBody}
    for entry in exported:
        if entry["kind"] in models:
            validated(models[entry["kind"]], entry["body"], entry["kind"])  # type: ignore[type-var]
    assert {entry["kind"] for entry in exported} >= set(models)


def test_the_page_of_two_people_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(EXAMPLE, tmp_path / "models")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DPMERGE_LEDGER", raising=False)
    for kind, content in blocks(PAGE):
        if kind == "python":
            run_python(content, {}, PAGE)
        for command in content.strip().splitlines() if kind == "sh" else ():
            if "REQUEST" in command:
                [request] = json.loads(run_command("dpmerge ledger show models --json"))["requests"]
                command = command.replace("REQUEST", request["id"])
            run_command(command)
    with dpm.Ledger.of("models") as ledger:
        assert ledger.verify().ok
        assert ledger.policy().days == 14


@pytest.mark.parametrize("person", ["ann", "=file", "ann=", "ann=missing.pub"])
def test_a_person_without_a_key_is_refused(team: Team, person: str) -> None:
    assert team.ran("ledger", "policy", team.models, "--person", person).exit_code == 2
    assert team.kinds() == ["policy"]
