"""`dpmerge audit`, and `dpmerge merge --audit`, from outside: verdicts, exit codes, JSON, words that fit a terminal."""

from __future__ import annotations

import base64
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import dpmerge as dpm
from dpmerge.accounting import mechanisms
from dpmerge.auditing import findings, installed_scenarios
from dpmerge.certificate import audited
from dpmerge.certificate.dsse import CERTIFICATE_NAME
from dpmerge.cli import app
from entry_points import declared_scenarios

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a portfolio from which something may be released."""
    shutil.copytree(EXAMPLES / "mnist", tmp_path / "mnist")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DPMERGE_LEDGER", raising=False)
    return tmp_path


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two plans beside their portfolio, and a release."""
    folder = tmp_path_factory.mktemp("plans")
    (folder / "mnist").symlink_to(EXAMPLES / "mnist")
    for method in ("combine", "select"):
        planned(EXAMPLES / "mnist", folder / f"{method}.json", "--method", method)
    shutil.copytree(EXAMPLES / "mnist", folder / "copy")
    made = ran("merge", folder / "copy", "--epsilon", 0.8, "--delta", "1e-5", "-o", folder / "out")
    assert made.exit_code == 0, made.output
    return folder


def restated(file: Path, copy: Path, guarantee: object) -> Path:
    """A certificate that states something else."""
    envelope = json.loads(file.read_text())
    statement = json.loads(base64.b64decode(envelope["payload"]))
    statement["predicate"]["guarantee"] = guarantee
    envelope["payload"] = base64.b64encode(json.dumps(statement).encode()).decode()
    copy.write_text(json.dumps(envelope))
    return copy


@pytest.fixture
def beside(plans: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(plans)
    return plans


def ran(*arguments: object) -> Result:
    return CliRunner().invoke(app, [*map(str, arguments)], env={"COLUMNS": "80"})


def planned(portfolio: Path, plan: Path, *arguments: object) -> None:
    result = ran("plan", portfolio, "--epsilon", 0.8, "--delta", "1e-5", "-o", plan, *arguments)
    assert result.exit_code == 0, result.output


def audit(plan: str, *arguments: object) -> Result:
    return ran("audit", plan, "--portfolio", "mnist", *arguments)


def document(result: Result) -> Any:
    assert result.exit_code in (0, 1), result.output
    return json.loads(result.stdout)


class TestAuditsOfPlans:
    def test_an_audit_prints_what_is_certified_what_is_shown_and_the_verdict(self, beside: Path) -> None:
        result = audit("combine.json")
        assert result.exit_code == 0, result.output
        assert max(len(line) for line in result.stdout.splitlines()) <= 80
        for words in ("certified  ε = 0.7997 at δ = 1e-05 by joint_release", "shown      ε ≥ 0.7", "tightness  0.9"):
            assert words in result.stdout
        assert "verdict    tight" in result.stdout
        assert "● true alarms   · the most that joint release allows" in result.stdout

    def test_the_json_of_an_audit_has_every_figure(self, beside: Path) -> None:
        found = document(audit("select.json", "--seed", 7, "--json"))
        assert found["schema"] == "dpmerge/audit/v1"
        assert found["verdict"] == "tight"
        assert found["claimed_by"] == "random_selection"
        assert found["claimed"] == pytest.approx(0.8, rel=1e-6)
        assert 0.72 <= found["lower_bound"] <= found["claimed"]
        assert found["tightness"] == found["lower_bound"] / found["claimed"]
        assert (found["trials"], found["confidence"], found["seed"]) == (100_000, 0.95, 7)

    def test_the_same_seed_gives_the_same_result_and_another_seed_another(self, beside: Path) -> None:
        first, again, other = (
            document(audit("combine.json", "--trials", 1000, "--seed", seed, "--json")) for seed in (1, 1, 2)
        )
        assert first == again
        assert first["lower_bound"] != other["lower_bound"]

    def test_power_says_how_many_trials_are_needed(self, beside: Path) -> None:
        found = document(audit("combine.json", "--power", 0.9, "--json"))
        assert 20_000 < found["trials"] < 80_000
        fewer = document(audit("combine.json", "--power", 0.5, "--json"))
        assert fewer["trials"] < found["trials"]

    def test_the_picture_of_an_audit_is_written_as_png(self, beside: Path, tmp_path: Path) -> None:
        assert audit("combine.json", "--trials", 1000, "--picture", tmp_path / "roc.png").exit_code == 0
        assert (tmp_path / "roc.png").read_bytes().startswith(b"\x89PNG")

    def test_accounting_with_a_bug_is_found_and_exits_with_1(
        self, beside: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """One record of replace_one moves a sum by two clip norms; who counts one certifies half of μ."""
        monkeypatch.setattr(mechanisms.DpSgd, "sensitivity", property(lambda self: 1))
        result = audit("combine.json", "--trials", 20_000)
        assert result.exit_code == 1
        assert "verdict    violated: the attack shows more than is claimed" in result.stdout


class TestAuditsOfReleases:
    def test_a_release_is_audited_with_nothing_but_its_certificate(self, here: Path) -> None:
        assert ran("merge", "mnist", "--epsilon", 0.8, "--delta", "1e-5", "-o", "out").exit_code == 0
        shutil.rmtree("mnist")
        folder, file = (document(ran("audit", p, "--json")) for p in ("out", f"out/{CERTIFICATE_NAME}"))
        assert folder["verdict"] == "tight"
        assert folder["claimed"] == 0.799697
        assert {**folder, "subject": ""} == {**file, "subject": ""}

    def test_the_certificate_of_a_release_with_audit_carries_its_result(self, here: Path) -> None:
        made = document(ran("merge", "mnist", "--epsilon", 0.8, "--delta", "1e-5", "-o", "out", "--audit", "--json"))
        carried = made["audit"]
        assert 0.72 < carried["lowerBound"] < 0.8
        assert dpm.verify("out", portfolio="mnist").verified
        assert f"shows ε ≥ {carried['lowerBound']}" in Path("out/README.md").read_text()
        again = document(ran("audit", "out", "--seed", carried["seed"], "--trials", carried["trials"], "--json"))
        assert again["lower_bound"] == pytest.approx(carried["lowerBound"], rel=1e-5)

    def test_a_certificate_under_any_file_name_is_audited_as_one(self, here: Path) -> None:
        assert ran("merge", "mnist", "--epsilon", 0.8, "--delta", "1e-5", "-o", "out").exit_code == 0
        shutil.copy(f"out/{CERTIFICATE_NAME}", "anything.json")
        assert document(ran("audit", "anything.json", "--trials", 1000, "--json"))["claimed"] == 0.799697
        result = ran("audit", "out", "--portfolio", "mnist")
        assert result.exit_code == 2
        assert "a certificate says itself what it was made of" in result.stderr

    @pytest.mark.parametrize(
        "guarantee",
        [
            {"epsilon": float("nan"), "delta": 1e-5},
            {"epsilon": -1, "delta": 1e-5},
            {"epsilon": "abc", "delta": 1e-5},
            {"epsilon": None, "delta": 1e-5},
            {"epsilon": True, "delta": 1e-5},
            {"epsilon": 0.799697, "delta": 1e-12},
            {"epsilon": 0.799697},
            [1],
            None,
        ],
        ids=str,
    )
    def test_a_certificate_that_states_no_figure_is_refused(self, plans: Path, tmp_path: Path, guarantee: Any) -> None:
        file = restated(plans / "out" / CERTIFICATE_NAME, tmp_path / "c.json", guarantee)
        result = ran("audit", file)
        assert result.exit_code == 2
        assert len(result.stderr.splitlines()) == 1
        assert str(file) in result.stderr

    @pytest.mark.parametrize(("stated", "verdict"), [(0.3, "violated"), (100.0, "consistent")])
    def test_a_stated_epsilon_other_than_the_terms_give_is_warned_of_and_attacked(
        self, plans: Path, tmp_path: Path, stated: float, verdict: str
    ) -> None:
        file = restated(plans / "out" / CERTIFICATE_NAME, tmp_path / "c.json", {"epsilon": stated, "delta": 1e-5})
        result = ran("audit", file, "--trials", 20_000, "--json")
        assert f"states ε = {stated:g}, and its terms give 0.799697" in " ".join(result.stderr.split())
        found = document(result)
        assert (found["verdict"], found["claimed"]) == (verdict, stated)
        assert found["attacks"] == (2 if verdict == "violated" else 1)
        assert found["mu"]["claimed"] is None

    def test_a_release_made_before_is_not_audited_again(self, here: Path) -> None:
        asked = ("merge", "mnist", "--epsilon", 0.8, "--delta", "1e-5", "--request-key", "a")
        assert ran(*asked, "-o", "one").exit_code == 0
        again = ran(*asked, "--audit", "-o", "two")
        assert again.exit_code == 0
        assert "not audited again; it is what was released before" in again.stderr

    def test_a_release_without_audit_carries_none(self, here: Path) -> None:
        made = document(ran("merge", "mnist", "--epsilon", 0.8, "--delta", "1e-5", "-o", "out", "--json"))
        assert made["audit"] is None
        assert "Attacked" not in Path("out/README.md").read_text()

    def test_a_release_that_its_audit_refutes_is_not_made_or_charged(
        self, here: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(mechanisms.DpSgd, "sensitivity", property(lambda self: 1))
        result = ran("merge", "mnist", "--epsilon", 0.8, "--delta", "1e-5", "-o", "out", "--audit")
        assert result.exit_code == 1
        assert "an attack on the simulated release shows ε ≥" in result.stderr
        assert "nothing was charged or written" in result.stderr
        assert not Path("out").exists()

    def test_certificates_and_audits_share_the_threshold_of_tight(self) -> None:
        assert audited.TIGHT == findings.TIGHT


class TestScenarios:
    @pytest.fixture(autouse=True)
    def _installed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The scenarios that pyproject.toml declares, whatever else is installed here."""
        monkeypatch.setattr(installed_scenarios, "entry_points", lambda group: declared_scenarios())

    def test_the_scenarios_of_the_package_are_listed(self) -> None:
        result = ran("audit", "--scenario", "list")
        assert result.exit_code == 0
        names = {line.split()[0] for line in result.stdout.splitlines() if line[:1].strip()}
        assert names == set(json.loads(ran("audit", "--scenario", "list", "--json").stdout)["scenarios"])
        assert names == {"logistic", "logistic_total_clipped", "logistic_without_noise"}

    def test_a_scenario_is_printed_with_the_verdict_of_every_claim(self) -> None:
        result = ran("audit", "--scenario", "logistic", "--trials", 20_000)
        assert result.exit_code == 0, result.output
        assert max(len(line) for line in result.stdout.splitlines()) <= 80
        lines = [line.strip() for line in result.stdout.splitlines() if line.strip()]
        rows = {line.split("  ")[0]: line.split()[-1] for line in lines}
        assert rows["merged trajectory"] == "violated"
        assert rows["hidden state"] == rows["last step"] == rows["joint release"] == "consistent"

    @pytest.mark.parametrize("name", ["contraction", "canary_single", "anything"])
    def test_a_scenario_that_is_not_installed_is_refused_with_where_it_is(self, name: str) -> None:
        result = ran("audit", "--scenario", name)
        assert result.exit_code == 2
        assert len(result.stderr.splitlines()) == 1
        assert "the paper's others are in the repository: python -m reproduction audit --scenario" in result.stderr

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["combine.json", "--scenario", "logistic"], "got both"),
            (["--scenario", "x"], "list, all, or one of logistic"),
            (["--scenario", "logistik"], "did you mean logistic?"),
            (["--scenario", "logistic", "--power", 0.9], "nothing beside --scenario"),
            (["--scenario", "logistic", "--portfolio", "mnist"], "nothing beside --scenario"),
            (["--scenario", "logistic", "--trials", 10], "an integer from 100 to 50000000"),
            (["--scenario", "all", "--picture", "x.png"], "one scenario"),
            (["--scenario", "list", "--picture", "x.png"], "one scenario"),
        ],
    )
    def test_bad_input_is_refused_in_one_line(self, arguments: list[object], words: str) -> None:
        result = ran("audit", *arguments)
        assert result.exit_code == 2
        assert words in result.stderr
        assert len(result.stderr.splitlines()) == 1


def test_the_removed_verb_reproduce_says_where_the_experiments_are() -> None:
    for arguments in ((), ("mnist", "-o", "results", "--preset", "small"), ("all", "--redraw")):
        result = ran("reproduce", *arguments)
        assert result.exit_code == 2
        assert result.stdout == ""
        assert "python -m reproduction" in result.stderr
        assert len(result.stderr.splitlines()) == 2


BAD = {
    "neither a release nor a scenario": ([], "accepted: a plan or a release, or --scenario NAME"),
    "a plan without its portfolio": (
        ["combine.json"],
        "a plan names runs, and does not say how they were trained; say where they are (--portfolio DIR)",
    ),
    "a folder without a certificate": (["mnist"], "a release's folder or its certificate"),
    "a file that is not there": (["nowhere.json", "--portfolio", "mnist"], "No such file"),
    "too few trials": (["combine.json", "--portfolio", "mnist", "--trials", 10], "an integer from 100 to 50000000"),
    "too many trials": (["combine.json", "--portfolio", "mnist", "--trials", 10**10], "an integer from 100 to"),
    "a confidence of 1": (["combine.json", "--portfolio", "mnist", "--confidence", 1], "a number in [0.5, 1)"),
    "a negative seed": (["combine.json", "--portfolio", "mnist", "--seed", -1], "from 0 to 4294967295"),
    "a power of 1": (["combine.json", "--portfolio", "mnist", "--power", 1], "power"),
    "power beside trials": (
        ["combine.json", "--portfolio", "mnist", "--power", 0.9, "--trials", 1000],
        "the number of trials is given already",
    ),
    "a picture nobody can draw": (["combine.json", "--portfolio", "mnist", "--picture", "x.gif"], "ends in .png"),
    "a picture in no folder": (
        ["combine.json", "--portfolio", "mnist", "--picture", "no/x.png"],
        "no is no folder that can be written to",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_refused_in_one_line(beside: Path, what: str) -> None:
    arguments, words = BAD[what]
    result = ran("audit", *arguments)
    assert result.exit_code == 2
    assert words in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not Path("x.gif").exists()
