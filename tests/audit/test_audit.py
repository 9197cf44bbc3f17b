"""`dpm.audit` does what `dpmerge audit` does, for plans, plans' files, releases and certificates."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import dpmerge as dpm
from dpmerge.auditing.audit import audit
from dpmerge.certificate.dsse import CERTIFICATE_NAME
from dpmerge.cli import app

EXAMPLE = Path(__file__).parents[2] / "examples" / "mnist"
TRIALS = 2000


@pytest.fixture(scope="module")
def portfolio(tmp_path_factory: pytest.TempPathFactory) -> dpm.Portfolio:
    """A copy, for a release leaves its marks beside the runs."""
    return dpm.Portfolio.load(shutil.copytree(EXAMPLE, tmp_path_factory.mktemp("portfolio") / "mnist"))


@pytest.fixture(scope="module")
def plan(portfolio: dpm.Portfolio) -> dpm.Plan:
    return dpm.plan(portfolio, dpm.Guarantee(epsilon=0.8, delta=1e-5))


@pytest.fixture(scope="module")
def made(plan: dpm.Plan, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan's file, and a release of it."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "plan.json").write_text(json.dumps(plan.document()))
    dpm.release(plan, out=folder / "out", ledger=folder / "ledger.sqlite")
    return folder


def told(*arguments: object) -> Any:
    result = CliRunner().invoke(app, ["audit", *map(str, arguments), "--json"])
    assert result.exit_code in (0, 1), result.output
    document = json.loads(result.stdout)
    return {name: value for name, value in document.items() if name not in ("schema", "seed")}


def test_audit_in_python_finds_what_the_command_finds(made: Path) -> None:
    out, file = made / "out", made / "plan.json"
    assert audit(out, trials=TRIALS, seed=3).document() == told(out, "--trials", TRIALS, "--seed", 3)
    assert audit(str(file), portfolio=EXAMPLE, power=0.5, confidence=0.9).document() == told(
        file, "--portfolio", EXAMPLE, "--power", 0.5, "--confidence", 0.9
    )


def test_a_plan_and_its_file_are_attacked_alike(made: Path, plan: dpm.Plan, portfolio: dpm.Portfolio) -> None:
    direct = audit(plan, trials=TRIALS).document()
    loaded = audit(made / "plan.json", portfolio=portfolio, trials=TRIALS).document()
    assert {**direct, "subject": ""} == {**loaded, "subject": ""}
    assert loaded["subject"] == str(made / "plan.json")


def test_a_certificate_and_its_release_are_attacked_alike(made: Path) -> None:
    folder, file = (audit(path, trials=TRIALS).document() for path in (made / "out", made / "out" / CERTIFICATE_NAME))
    assert {**folder, "subject": ""} == {**file, "subject": ""}


def test_an_audit_that_takes_long_says_so_beforehand(plan: dpm.Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    audit(plan, trials=TRIALS, tell=lines.append)
    assert lines == []
    monkeypatch.setattr("dpmerge.auditing.audit.PATIENCE", 0.0)
    audit(plan, trials=TRIALS, tell=lines.append)
    assert lines == [f"{TRIALS:,} trials in each world, about 0 s"]


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "too few trials": ({"trials": 10}, "an integer from 100 to 50000000"),
    "a confidence of 1": ({"confidence": 1.0}, r"a number in \[0.5, 1\)"),
    "a negative seed": ({"seed": -1}, "an integer from 0 to 4294967295"),
    "power beside trials": ({"power": 0.9, "trials": TRIALS}, "the number of trials is given already"),
    "a power of 1": ({"power": 1.0}, "power"),
    "a portfolio beside a plan": ({"portfolio": EXAMPLE}, "a plan knows the portfolio it was made of"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_settings_are_refused(what: str, plan: dpm.Plan) -> None:
    settings, words = BAD[what]
    with pytest.raises(dpm.errors.InvalidInputError, match=words):
        audit(plan, **settings)


def test_a_plans_file_needs_its_portfolio_and_a_release_none(made: Path) -> None:
    with pytest.raises(dpm.errors.InvalidInputError, match="a plan names runs, and does not say how they were trained"):
        audit(made / "plan.json")
    with pytest.raises(dpm.errors.InvalidInputError, match="a certificate says itself what it was made of"):
        audit(made / "out", portfolio=EXAMPLE)
