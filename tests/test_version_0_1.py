"""What version 0.1 wrote loads, verifies, releases and stays locked, for ever (tests/data/version_0_1)."""

from __future__ import annotations

import base64
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import dpmerge as dpm
from dpmerge.cli import app

WRITTEN = Path(__file__).parent / "data" / "version_0_1"

# The portfolio of each release, and what its certificate says at δ = 1e-5.
RELEASES = {
    "unsigned": ("full-batch", 0.961096),
    "signed": ("full-batch", 0.961096),
    "drawn": ("full-batch", 1.0),
    "drawn-again": ("full-batch", 1.0),
    "final-noise": ("final", 0.3),
    "sampled": ("sampled", 1.5),
}
# The portfolio of each plan, and what it cost.
PLANS = {
    "select": ("full-batch", 1.0),
    "combine": ("full-batch", 0.961096),
    "mix": ("full-batch", 0.6),
    "noise": ("full-batch", 0.3),
    "last-step": ("full-batch", 1.0),
    "sampled": ("sampled", 2.0),
    "sampled-select": ("sampled", 1.5),
}
FINAL = ("noise", "last-step", "mix")
"""Plans that hold only if nothing else of their runs is ever released."""

SPENT = {"full-batch": 1.244, "final": 0.3, "sampled": 0.7824}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A copy with the permissions it was written with, which git does not keep."""
    copied = shutil.copytree(WRITTEN, tmp_path / "models")
    for path in copied.rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600)
    return copied


def ran(*arguments: object) -> Result:
    return CliRunner().invoke(app, [*map(str, arguments)], env={"COLUMNS": "80", "DPMERGE_LEDGER": None})


def told(*arguments: object) -> Any:
    result = ran(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def forget_ledger(portfolio: Path) -> None:
    """As if nothing had ever been released of it."""
    for file in (portfolio / "privacy-ledger.sqlite", *portfolio.rglob(".ledger-witness")):
        file.unlink()


@pytest.mark.parametrize("portfolio", ["full-batch", "final", "sampled"])
def test_manifests_of_0_1_load(home: Path, portfolio: str) -> None:
    loaded = dpm.Portfolio.load(home / portfolio)
    assert [run.id for run in loaded.runs] == (["history", "p", "q"] if portfolio == "sampled" else list("abcde"))


@pytest.mark.parametrize("release", RELEASES)
def test_certificates_of_0_1_verify_beside_their_portfolio_and_ledger(home: Path, release: str) -> None:
    portfolio, epsilon = RELEASES[release]
    found = told("verify", home / "releases" / release, "--portfolio", home / portfolio)
    assert found["verified"]
    assert found["guarantee"] == {"epsilon": epsilon, "delta": 1e-5}
    checks = {check["check"]: check["passed"] for check in found["checks"]}
    assert checks["ledger"] is True
    assert checks["commitments"] is True


@pytest.mark.parametrize("release", RELEASES)
def test_certificates_of_0_1_verify_alone(home: Path, release: str) -> None:
    found = told("verify", home / "releases" / release)
    assert found["verified"]
    assert found["guarantee"]["epsilon"] == RELEASES[release][1]


def test_a_signature_of_0_1_verifies(home: Path) -> None:
    found = told("verify", home / "releases" / "signed", "--key", home / "signing.pem.pub")
    assert {check["check"]: check["passed"] for check in found["checks"]}["signature"] is True
    unsigned = ran("verify", home / "releases" / "unsigned", "--key", home / "signing.pem.pub")
    assert unsigned.exit_code == 1


@pytest.mark.parametrize("plan", PLANS)
def test_plans_of_0_1_are_released(home: Path, plan: str, tmp_path: Path) -> None:
    portfolio, epsilon = PLANS[plan]
    forget_ledger(home / portfolio)
    final = ["--final"] if plan in FINAL else []
    out = tmp_path / "out"
    made = told("merge", home / portfolio, "--plan", home / "plans" / f"{plan}.json", "-o", out, *final)
    assert made["guarantee"]["epsilon"] <= epsilon
    assert told("verify", out, "--portfolio", home / portfolio)["verified"]


@pytest.mark.parametrize("portfolio", SPENT)
def test_ledgers_of_0_1_are_whole_and_say_what_was_spent(home: Path, portfolio: str) -> None:
    assert told("ledger", "verify", home / portfolio)
    spent = ran("ledger", "spent", home / portfolio)
    assert f"ε = {SPENT[portfolio]:.4f} at δ = 1e-05" in spent.stdout


def test_runs_locked_by_0_1_stay_locked(home: Path, tmp_path: Path) -> None:
    refused = ran("merge", home / "final", "--weights", "d@4=1", *_cheap(), "-o", tmp_path / "out")
    assert refused.exit_code != 0
    assert "d" in refused.output
    assert "locked" in refused.output
    assert not (tmp_path / "out").exists()


def test_a_ledger_of_0_1_is_appended_to_and_its_cap_still_holds(home: Path, tmp_path: Path) -> None:
    full = home / "full-batch"
    before = json.loads(ran("ledger", "export", full).stdout)["entries"]
    beyond = ran("merge", full, "--weights", "a@4=1", *_cheap(), "-o", tmp_path / "beyond")
    assert beyond.exit_code == 1
    assert "gaussian_filter" in beyond.output
    told("merge", full, "--weights", "c@4=1", *_cheap(), "-o", tmp_path / "within")
    assert told("verify", tmp_path / "within", "--portfolio", full)["verified"]
    after = json.loads(ran("ledger", "export", full).stdout)["entries"]
    assert after[: len(before)] == before
    assert len(after) > len(before)


def test_a_release_pending_since_0_1_is_not_drawn_again_until_abandoned(home: Path, tmp_path: Path) -> None:
    out, plan = tmp_path / "out", home / "plans" / "sampled-select.json"
    refused = ran("merge", home / "sampled", "--plan", plan, "-o", out)
    assert refused.exit_code == 2
    assert "charged and not finished" in " ".join(refused.output.split())
    releases = told("ledger", "show", home / "sampled")["scopes"][0]["releases"]
    pending = next(each["release_id"] for each in releases if each["status"] == "pending")
    given_up = ran("ledger", "recover", home / "sampled", "--abandon", pending)
    assert given_up.exit_code == 0, given_up.output
    assert ran("merge", home / "sampled", "--plan", plan, "-o", out).exit_code == 0


def _cheap() -> tuple[str, ...]:
    return ("--epsilon", "8", "--delta", "1e-5")


@pytest.mark.parametrize(
    ("factor", "fails"), [(1.0, False), (1.02, False), (0.999, True), (1.2, True)],
    ids=["as written", "by a coarser grid", "too small", "much too large"],
)  # fmt: skip
def test_a_cost_composed_on_a_coarser_grid_may_be_larger_and_never_smaller(
    home: Path, factor: float, fails: bool
) -> None:
    """Finer grids came later; a cost that is stated a little larger than it comes out claims nothing untrue."""
    file = home / "releases" / "sampled" / "privacy-certificate.json"
    envelope = json.loads(file.read_text())
    statement = json.loads(base64.b64decode(envelope["payload"]))
    point = statement["predicate"]["profile"]["epsilonAtDelta"][3]
    point["epsilon"] = round(point["epsilon"] * factor, 6)
    envelope["payload"] = base64.b64encode(json.dumps(statement).encode()).decode()
    file.write_text(json.dumps(envelope))
    checks = {check.name: check for check in dpm.verify(home / "releases" / "sampled").checks}
    assert (checks["guarantee"].passed is False) == fails
