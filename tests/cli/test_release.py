"""`dpmerge merge`, `verify`, `keygen` and `ledger` from outside: exit codes, JSON, words that fit a terminal."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from dpmerge.certificate.dsse import CERTIFICATE_NAME
from dpmerge.cli import app
from dpmerge.ledger.migrations import ENTRIES
from dpmerge.releasing.ledger_location import LEDGER_NAME

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("mnist", "probe"):
        shutil.copytree(EXAMPLES / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DPMERGE_LEDGER", raising=False)
    return tmp_path


def ran(*arguments: object) -> Result:
    return CliRunner().invoke(app, [*map(str, arguments)], env={"COLUMNS": "80"})


def merged(*arguments: object, epsilon: object = 0.8, portfolio: str = "mnist", out: str = "out") -> Result:
    return ran("merge", portfolio, "--epsilon", epsilon, "--delta", "1e-5", "-o", out, *arguments)


def document(result: Result) -> Any:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


class TestPlanBesideALedger:
    def planned(self, *arguments: object) -> Result:
        return ran("plan", "probe", "--epsilon", 1, "--delta", "1e-5", "--theorem", "joint_release", *arguments)

    def test_without_a_ledger_nothing_is_said_and_none_is_made(self, here: Path) -> None:
        assert self.planned().stderr == ""
        assert not (here / "probe" / LEDGER_NAME).exists()

    def test_locked_runs_are_named(self, here: Path) -> None:
        assert merged("--final", portfolio="probe").exit_code == 0
        result = self.planned("--json")
        assert result.exit_code == 0
        assert json.loads(result.stdout)["candidates"]
        assert "note: the ledger would refuse this release: s" in result.stderr
        assert "locked by a final release" in result.stderr

    def test_a_cap_that_would_be_passed_is_told(self, here: Path) -> None:
        capped = ("cap", "probe", "--epsilon", 0.5, "--delta", "1e-5", "--filter", "gaussian_filter")
        assert ran("ledger", *capped).exit_code == 0
        told = "note: the ledger would refuse this release: the privacy filter gaussian_filter has "
        assert told in self.planned().stderr
        assert "ε up to about 0.5 fits" in self.planned().stderr
        assert "ε up to about 0.5 fits" in ran("ledger", "spent", "probe").stdout
        assert self.planned("--ledger", here / "other.sqlite").stderr == ""

    def test_a_ledger_that_cannot_be_asked_does_not_stop_planning(self, here: Path) -> None:
        (here / "probe" / LEDGER_NAME).write_text("no database")
        result = self.planned()
        assert result.exit_code == 0
        assert "note: the ledger cannot be asked: " in result.stderr


class TestMerge:
    def test_merge_prints_what_was_made_and_what_it_costs(self, here: Path) -> None:
        result = merged()
        assert result.exit_code == 0, result.output
        assert max(len(line) for line in result.stdout.splitlines()) <= 80
        for words in ("ε = 0.799697 at δ = 1e-05 per record", "Made of: ", "ledger entry 2", "dpmerge verify out"):
            assert words in result.stdout

    def test_the_json_of_merge_has_guarantee_files_and_ledger_entry(self, here: Path) -> None:
        found = document(merged("--json"))
        assert found["guarantee"] == {"epsilon": 0.799697, "delta": 1e-5}
        assert set(found["files"]) == {"model.safetensors"}
        assert found["ledger"]["entry"] == 2

    def test_the_printed_epsilon_is_not_above_a_target_of_many_digits(self, here: Path) -> None:
        found = document(merged("--json", "--method", "select", epsilon=0.1234567))
        assert found["guarantee"]["epsilon"] <= 0.1234567

    def test_a_target_out_of_reach_is_exit_1_and_nothing_happens(self, here: Path) -> None:
        result = merged(epsilon=0.001)
        assert result.exit_code == 1
        assert "no release meets ε = 0.001 at δ = 1e-05; the smallest is ε = " in result.stderr
        assert not (here / "out").exists()
        assert not (here / "mnist" / LEDGER_NAME).exists()

    def test_a_target_that_only_a_final_release_meets_says_so(self, here: Path) -> None:
        result = merged(portfolio="probe", epsilon=0.05)
        assert result.exit_code == 1
        assert "a final release, final=True (--final), which locks its runs, meets it" in result.stderr

    def test_a_plan_from_a_file_is_released_with_its_draw_revealed(self, here: Path) -> None:
        arguments = ["plan", "mnist", "--epsilon", "0.12", "--delta", "1e-5", "-o", "plan.json"]
        assert ran(*arguments).exit_code == 0
        found = document(ran("merge", "mnist", "--plan", "plan.json", "-o", "out", "--json", "--reveal-draw"))
        assert found["guarantee"]["epsilon"] == 0.12
        assert found["drawn"] in (0, 1)

    def test_stated_weights_are_the_recipe_of_the_release(self, here: Path) -> None:
        found = document(merged("--weights", "c2-s32@12=0.25,c2-s64@20=0.75", "--json", epsilon=2))
        assert found["outcomes"][0]["recipe"] == "0.25 × c2-s32@12 + 0.75 × c2-s64@20"

    def test_weights_above_the_target_are_exit_1(self, here: Path) -> None:
        assert merged("--weights", "c2-s32@20=0.25,c2-s64@20=0.75", epsilon=0.5).exit_code == 1
        assert not (here / "out").exists()

    def test_a_theorem_for_the_last_release_is_refused_without_final(self, here: Path) -> None:
        result = merged("--theorem", "hidden_state", portfolio="probe", epsilon=0.3)
        assert result.exit_code == 2
        assert "others hold only for the last release of these runs, final=True (--final)" in result.stderr
        result = merged("--theorem", "hidden_state", "--final", portfolio="probe", epsilon=0.3)
        assert result.exit_code == 0, result.output
        assert "nothing else of s64 can be released any more" in result.stdout

    def test_what_a_final_release_would_gain_is_said_before_anything_is_charged(self, here: Path) -> None:
        result = merged(portfolio="probe", epsilon=0.12)
        assert "final=True (--final), this would carry" in result.stderr

    def test_locked_runs_are_planned_around(self, here: Path) -> None:
        assert merged("--final", portfolio="probe", epsilon=0.12).exit_code == 0
        result = merged(portfolio="probe", epsilon=1, out="third")
        assert "note: planned without s64 (locked, or beyond the ceiling" in result.stderr
        found = document(merged("--json", portfolio="probe", epsilon=1, out="other"))
        assert "s64" not in found["outcomes"][0]["recipe"]

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--plan", "p.json"], "accepted: nothing beside plan"),
            (["--weights", "a"], "run@step=number"),
            (["--weights", "c2-s32@20=1", "--method", "mix"], "accepted: nothing beside weights"),
            (["--weights", "c2-s32@20=0.4"], "weights"),
            (["--weights", "nobody@20=1"], "nobody@20"),
            (["--method", "wish"], "method: got 'wish'"),
            (["--objective", "public_evaluation"], "give plan=FILE (--plan)"),
            (["--theorem", "wish"], "theorem"),
            (["--jobs", "0"], "jobs: got 0; accepted: an integer ≥ 1"),
            (["--adapters", "glued"], "adapters"),
            (["--key", "nokey"], "nokey"),
            (["--ledger", "mysql://host/db"], "accepted: a path, sqlite:///path or postgresql://"),
            (["--donor", "c4-s32"], "donor: got 'c4-s32'"),
            (["--request-key", "a\nb"], "request-key"),
        ],
    )
    def test_bad_input_is_exit_2_in_one_line(self, here: Path, arguments: list[str], message: str) -> None:
        result = merged(*arguments)
        assert result.exit_code == 2, result.output
        assert len(result.stderr.strip().splitlines()) == 1
        assert message in result.stderr
        assert not (here / "out").exists()
        if (here / "mnist" / LEDGER_NAME).exists():
            assert "release" not in json.loads(ran("ledger", "export", "mnist").stdout)["entries"]

    def test_merge_without_target_or_plan_is_refused(self, here: Path) -> None:
        result = ran("merge", "mnist", "-o", "out")
        assert result.exit_code == 2
        assert "accepted: epsilon and delta, or plan=FILE (--plan)" in result.stderr

    def test_the_progress_bar_is_not_printed_without_a_terminal(self, here: Path) -> None:
        arguments = ["merge", "mnist", "--epsilon", "0.8", "--delta", "1e-5", "-o", "out"]
        command = [sys.executable, "-c", "from dpmerge.cli import app; app()", *arguments]
        result = subprocess.run(command, capture_output=True, text=True, check=True)
        assert result.stderr == ""
        assert "\x1b" not in result.stdout


class TestVerify:
    def test_verify_exits_with_0_and_prints_what_was_checked(self, here: Path) -> None:
        merged()
        result = ran("verify", "out")
        assert result.exit_code == 0
        assert "– signature\n    not signed" in result.stdout
        assert "Verified: ε = 0.799697 at δ = 1e-05 per record (replace_one) by joint_release" in result.stdout

    def test_verify_with_portfolio_and_rebuild_makes_every_check(self, here: Path) -> None:
        merged(epsilon=0.12)
        found = document(ran("verify", "out", "--portfolio", "mnist", "--rebuild", "--json"))
        checks = {check["check"]: check["passed"] for check in found["checks"]}
        assert checks == {
            "form": True, "signature": None, "files": True, "schema": True, "guarantee": True, "model card": True,
            "manifests": True, "commitments": True, "binding": True, "rebuild": True, "ledger": True,
        }  # fmt: skip

    def test_a_signed_output_verifies_with_its_key_and_not_with_another(self, here: Path) -> None:
        assert ran("keygen", "-o", "key").exit_code == 0
        merged("--key", "key")
        assert ran("verify", "out", "--key", "key.pub").exit_code == 0
        assert "signed, but no key was given" in ran("verify", "out").stdout
        ran("keygen", "-o", "other")
        assert ran("verify", "out", "--key", "other.pub").exit_code == 1

    def test_verify_exits_with_1_and_lists_every_reason(self, here: Path) -> None:
        merged()
        (here / "out" / "model.safetensors").write_bytes(b"x")
        (here / "out" / "README.md").write_text("x")
        result = ran("verify", "out", "--json")
        assert result.exit_code == 1
        assert len(json.loads(result.stdout)["problems"]) == 2
        assert "NOT VERIFIED: 2 reasons" in ran("verify", "out").stdout

    def test_verify_exits_with_2_where_it_could_not_run(self, here: Path) -> None:
        assert ran("verify", "mnist").exit_code == 2
        merged()
        assert ran("verify", "out", "--rebuild").exit_code == 2
        assert ran("verify", "out", "--key", "none").exit_code == 2
        assert ran("verify", "out", "--portfolio", "none").exit_code == 2

    def test_an_output_charged_in_another_ledger_fails_verification_beside_the_portfolio(self, here: Path) -> None:
        merged()
        (here / "mnist" / LEDGER_NAME).unlink()
        for witness in (here / "mnist").rglob(".ledger-witness"):
            witness.unlink()
        result = ran("verify", "out", "--portfolio", "mnist")
        assert "– ledger\n    there is no ledger beside the portfolio" in result.stdout
        merged(out="other")
        result = ran("verify", "out", "--portfolio", "mnist")
        assert result.exit_code == 1
        assert "charged in another one" in " ".join(result.stdout.split())

    def test_ones_own_ledger_is_not_asked_about_a_strangers_output(
        self, here: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        merged(out="theirs")
        monkeypatch.setenv("DPMERGE_LEDGER", str(here / "mine.sqlite"))
        merged(portfolio="probe", epsilon=1, out="mine")
        assert ran("verify", "theirs").exit_code == 0
        assert ran("verify", "theirs", "--ledger", "mine.sqlite").exit_code == 1
        assert ran("verify", "theirs", "--portfolio", "mnist").exit_code == 1
        assert ran("verify", "mine", "--portfolio", "probe").exit_code == 0

    def test_content_that_is_not_certified_fails_verification_unless_allowed_by_name(self, here: Path) -> None:
        merged()
        (here / "out" / "docs").mkdir()
        (here / "out" / "docs" / "notes.txt").write_text("x")
        (here / "out" / ".gitattributes").write_text("x")
        assert ran("verify", "out").exit_code == 1
        assert ran("verify", "out", "--allow-extra", "docs").exit_code == 1
        assert ran("verify", "out", "--allow-extra", "docs", "--allow-extra", ".gitattributes").exit_code == 0
        result = ran("verify", "out", "--allow-extra", "../elsewhere")
        assert result.exit_code == 2
        assert "accepted: the name of a file or folder inside the output" in result.stderr


class TestLedger:
    def test_show_spent_verify_and_export_agree_on_two_releases(self, here: Path) -> None:
        merged(epsilon=0.12, out="one")
        merged(epsilon=0.8, out="two")
        for verb in ("show", "spent", "verify"):
            result = ran("ledger", verb, "mnist")
            assert result.exit_code == 0, result.output
        spent = document(ran("ledger", "spent", "mnist", "--json"))
        assert 0.8 < spent[0]["epsilon"] < 0.81
        shown = document(ran("ledger", "show", "mnist", "--json"))
        assert [line["status"] for line in shown["scopes"][0]["releases"]] == ["completed", "completed"]
        assert document(ran("ledger", "verify", "mnist", "--json"))["ok"] is True
        exported = document(ran("ledger", "export", "mnist"))
        assert "not for release" in exported["banner"]
        assert ran("ledger", "export", "mnist", "-o", "ledger.json").exit_code == 0
        assert json.loads((here / "ledger.json").read_text()) == exported
        assert (here / "ledger.json").stat().st_mode & 0o077 == 0

    @pytest.mark.parametrize("rule", ["ceiling", "gaussian_filter", "renyi_filter"])
    def test_a_release_above_the_cap_is_refused_by_every_rule(self, here: Path, rule: str) -> None:
        assert ran("ledger", "cap", "mnist", "--epsilon", 0.5, "--delta", "1e-5", "--rule", rule).exit_code == 0
        assert merged("--weights", "c2-s32@20=1", epsilon=2).exit_code == 1
        assert not (here / "out").exists()
        result = merged(epsilon=0.2)
        assert result.exit_code == 0, result.output
        assert f"cap ε = 0.5 at δ = 1e-05 by {rule}" in " ".join(ran("ledger", "show", "mnist").stdout.split())

    def test_changing_the_rule_of_a_cap_is_refused(self, here: Path) -> None:
        assert ran("ledger", "cap", "mnist", "--epsilon", 1, "--delta", "1e-5").exit_code == 0
        result = ran("ledger", "cap", "mnist", "--epsilon", 1, "--delta", "1e-5", "--rule", "gaussian_filter")
        assert result.exit_code == 2

    def test_a_stated_ceiling_is_set_or_refused_above_the_cap(self, here: Path) -> None:
        arguments = ["ledger", "cap", "mnist", "--epsilon", 1, "--delta", "1e-5", "--ceiling", "c2-s32@12,ladder-1@20"]
        found = document(ran(*arguments, "--json"))
        assert found["cap"]["ceiling"] == {"c2-s32": 12, "ladder-1": 20}
        assert ran(*arguments[:-1], "c2-s32@20,c4-s32@20").exit_code == 1
        assert document(merged("--json"))["outcomes"][0]["recipe"].count("@") <= 2

    def test_show_lists_the_newest_releases_and_says_how_many_there_were_before(
        self, here: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("dpmerge.cli.ledger.NEWEST", 2)
        for number in range(3):
            assert merged("--theorem", "joint_release", out=f"out{number}").exit_code == 0
        everything = document(ran("ledger", "show", "mnist", "--all", "--json"))["scopes"][0]
        assert (everything["release_count"], len(everything["releases"])) == (3, 3)
        assert document(ran("ledger", "show", "mnist", "--json"))["scopes"][0] == everything, "scripts get all of them"
        newest = ran("ledger", "show", "mnist").stdout
        shown = [release["release_id"][:12] in newest for release in everything["releases"]]
        assert shown == [False, True, True]
        assert "and 1 before these: --all lists them" in newest
        whole = ran("ledger", "show", "mnist", "--all").stdout
        assert all(release["release_id"][:12] in whole for release in everything["releases"])
        assert "before these" not in whole

    def test_a_chain_that_was_broken_is_named(self, here: Path) -> None:
        import sqlite3

        merged()
        with sqlite3.connect(here / "mnist" / LEDGER_NAME) as connection:
            connection.execute(f"UPDATE {ENTRIES.name} SET kind = 'abandoned' WHERE seq = 3")  # noqa: S608
        connection.close()
        result = ran("ledger", "verify", "mnist")
        assert result.exit_code == 1
        assert "entry 3" in result.stderr

    def test_a_restored_ledger_is_doubted_by_every_verb(self, here: Path) -> None:
        merged(epsilon=0.12, out="one")
        shutil.copy(here / "mnist" / LEDGER_NAME, here / "backup")
        merged(epsilon=0.8, out="two")
        shutil.copy(here / "backup", here / "mnist" / LEDGER_NAME)
        for verb, code in (("show", 0), ("spent", 0), ("verify", 1), ("recover", 2)):
            result = ran("ledger", verb, "mnist")
            assert result.exit_code == code, verb
            assert "restored from an older backup" in result.stderr
        assert ran("ledger", "recover", "mnist", "--adopt", "two").exit_code == 0
        assert "the ledger records that somebody said so" in ran("ledger", "recover", "mnist", "--accept").stdout
        assert "somebody vouched that what is counted here is all" in " ".join(
            ran("ledger", "show", "mnist").stdout.split()
        )
        assert "nothing to accept" in ran("ledger", "recover", "mnist", "--accept").stdout
        assert ran("ledger", "verify", "mnist").exit_code == 0

    def test_abandoning_a_release_that_is_not_pending_is_refused(self, here: Path) -> None:
        merged()
        result = ran("ledger", "recover", "mnist", "--abandon", "abc")
        assert result.exit_code == 2
        assert "accepted: a pending release: there is none" in result.stderr

    def test_ledger_verbs_without_a_ledger_are_refused(self, here: Path) -> None:
        for verb in ("show", "spent", "verify", "export", "recover"):
            result = ran("ledger", verb, "mnist")
            assert result.exit_code == 2
            assert "there is no ledger" in result.stderr
        assert ran("ledger", "show").exit_code == 2

    def test_one_ledger_counts_releases_of_several_portfolios_together(
        self, here: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("DPMERGE_LEDGER", str(here / "all.sqlite"))
        merged(epsilon=0.8, out="one")
        before = document(ran("ledger", "spent", "--json"))[0]["epsilon"]
        merged(epsilon=1, portfolio="probe", out="two")
        after = document(ran("ledger", "spent", "--json"))
        assert len(after) == 1, "both are releases of the same data"
        assert after[0]["epsilon"] > before
        assert not (here / "mnist" / LEDGER_NAME).exists()

    def test_recover_without_a_pending_release_says_so(self, here: Path) -> None:
        merged()
        assert ran("ledger", "recover", "mnist").stdout == "Nothing is pending.\n"

    def test_a_restored_ledger_is_refused_until_what_left_is_adopted(self, here: Path) -> None:
        ran("keygen", "-o", "key")
        merged(epsilon=0.12, out="one")
        shutil.copy(here / "mnist" / LEDGER_NAME, here / "backup")
        merged("--key", "key", epsilon=0.8, out="two")
        spent = document(ran("ledger", "spent", "mnist", "--json"))[0]["epsilon"]
        shutil.copy(here / "backup", here / "mnist" / LEDGER_NAME)
        result = merged(epsilon=0.3, out="three")
        assert result.exit_code == 2
        assert "restored from an older backup" in result.stderr
        assert ran("verify", "two", "--portfolio", "mnist").exit_code == 1
        result = ran("ledger", "recover", "mnist", "--adopt", "two", "--key", "key.pub", "--accept")
        assert result.exit_code == 0, result.output
        assert document(ran("ledger", "spent", "mnist", "--json"))[0]["epsilon"] == pytest.approx(spent, rel=1e-12)
        assert ran("verify", "two", "--portfolio", "mnist").exit_code == 0
        assert merged(epsilon=0.3, out="three").exit_code == 0

    def test_an_output_that_does_not_verify_is_not_adopted(self, here: Path) -> None:
        merged()
        (here / "out" / "model.safetensors").write_bytes(b"x")
        result = ran("ledger", "recover", "mnist", "--adopt", "out")
        assert result.exit_code == 2
        assert "does not verify" in result.stderr


def test_keygen_never_overwrites_a_key_pair(here: Path) -> None:
    found = document(ran("keygen", "-o", "key", "--json"))
    assert set(found) == {"private", "public", "keyid"}
    result = ran("keygen", "-o", "key")
    assert result.exit_code == 2
    assert "no key is ever overwritten" in result.stderr


def test_the_certificate_is_json_in_an_envelope(here: Path) -> None:
    merged()
    envelope = json.loads((here / "out" / CERTIFICATE_NAME).read_text())
    assert set(envelope) == {"payload", "payloadType", "signatures"}
    assert envelope["payloadType"] == "application/vnd.in-toto+json"
    assert envelope["signatures"] == []
