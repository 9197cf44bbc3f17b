"""Adopting what a restored ledger has lost: a forged certificate never makes the spent ε smaller than it is.

A release of c2-s64@20 and ladder-1@20 (together ε = 0.4948) has left, and its entry is lost. A forger keeps of its
public certificate what concerns ladder-1 (ε = 0.0505), and has that adopted in its place.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typer.testing import CliRunner, Result

import dpmerge as dpm
from attacks.faults import must_notice
from attacks.forging import example_of_0_1, forged
from dpmerge.accounting.exposure import Checkpoint, Exposure
from dpmerge.certificate import keys
from dpmerge.certificate.predicate import Version
from dpmerge.cli import app
from dpmerge.errors import InvalidInputError, RunsLockedError
from dpmerge.ledger import cap_setting
from dpmerge.ledger.cap_setting import adoption_cost
from dpmerge.ledger.caps import Cap
from dpmerge.ledger.chain_verification import verified
from dpmerge.ledger.charge import Charge
from dpmerge.ledger.entries import BudgetScope, Entry, following
from dpmerge.ledger.ledger import Ledger
from dpmerge.ledger.scope_state import ScopeState
from dpmerge.planning.stated_weights import stated_weights
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.releasing.ledger_location import LEDGER_NAME
from dpmerge.releasing.recover import adopt
from dpmerge.releasing.verifying import verify

DELTA = 1e-5
TRUE, CLAIMED, EVERYTHING = 0.4948, 0.0505, 1.6509
SCOPE = BudgetScope("mnist-train", "record", "replace_one")


class Lost(NamedTuple):
    """A portfolio whose ledger is as it was before `out` was released, and the key that `out` is signed with."""

    home: Path
    out: Path
    key: Path

    @property
    def public(self) -> Path:
        return self.key.with_name("key.pub")


def target(epsilon: float) -> dpm.Guarantee:
    return dpm.Guarantee(epsilon=epsilon, delta=DELTA)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Lost:
    folder = tmp_path_factory.mktemp("original")
    home = example_of_0_1("mnist", folder / "mnist")
    portfolio = Portfolio.load(home, contents=False)
    dpm.release(stated_weights(portfolio, {"ladder-1@20": 1.0}, target(2)), out=folder / "first")
    shutil.copy(home / LEDGER_NAME, folder / "backup")
    keys.generate(folder / "key")
    weights = {"c2-s64@20": 0.5, "ladder-1@20": 0.5}
    dpm.release(stated_weights(portfolio, weights, target(2)), out=folder / "out", key=folder / "key")
    assert spent(home) == pytest.approx(TRUE, abs=1e-3)
    shutil.copy(folder / "backup", home / LEDGER_NAME)
    return Lost(home, folder / "out", folder / "key")


def copied(original: Lost, folder: Path) -> Lost:
    return Lost(shutil.copytree(original.home, folder / "mnist"), original.out, original.key)


@pytest.fixture
def lost(original: Lost, tmp_path: Path) -> Lost:
    return copied(original, tmp_path)


def spent(home: Path, scope: BudgetScope = SCOPE) -> float:
    with Ledger.open(home / LEDGER_NAME) as ledger:
        assert ledger.verify().ok
        found = ledger.budget_report(scope, DELTA).epsilon
    assert found is not None
    return found


def only_the_cheap_run(declared: dict[str, Any]) -> None:
    terms = declared["terms"]
    terms["runs"] = [run for run in terms["runs"] if run["run"] == "ladder-1"]
    (candidate,) = terms["candidates"]
    candidate["parts"] = [{"run": "ladder-1", "step": 20, "weight": 1.0}]
    candidate["seen"] = [{"run": "ladder-1", "step": 20}]
    declared["inputs"] = [each for each in declared["inputs"] if each["run"] == "ladder-1"]


def adopted(made: Lost, out: Path, *, key: Path | None = None) -> str:
    with Ledger.open(made.home / LEDGER_NAME) as ledger:
        return adopt(ledger, out, Portfolio.load(made.home, contents=False), key=key)


def ran(*arguments: object) -> Result:
    return CliRunner().invoke(app, [*map(str, arguments)], env={"COLUMNS": "80", "DPMERGE_LEDGER": None})


def cost_of_the_terms_alone(state: ScopeState, charge: Charge) -> float | None:
    """The fault: what else may have been released is not counted."""
    body = {name: value for name, value in charge.body.items() if name != "everything"}
    return adoption_cost(state, Charge(entry=Entry.draft("adopted", charge.scope, body)))


class TestACheapRunNamedForACostlyOne:
    """Claimed: 0.0505 has left. True: 0.4948."""

    def test_adopted_without_a_key_counts_as_everything(self, lost: Lost, tmp_path: Path) -> None:
        fake = forged(lost.out, tmp_path / "fake", only_the_cheap_run, version=1)
        assert verify(fake).content["guarantee"]["epsilon"] == pytest.approx(CLAIMED, abs=1e-4)
        adopted(lost, fake)
        assert spent(lost.home) == pytest.approx(EVERYTHING, abs=1e-3)
        assert spent(lost.home) > TRUE

    def test_adopted_by_the_command_line_counts_as_everything(self, lost: Lost, tmp_path: Path) -> None:
        fake = forged(lost.out, tmp_path / "fake", only_the_cheap_run, version=1)
        result = ran("ledger", "recover", lost.home, "--adopt", fake, "--accept")
        assert result.exit_code == 0, result.output
        assert "every run counts as released to its last step" in " ".join(result.stdout.split())
        assert spent(lost.home) == pytest.approx(EVERYTHING, abs=1e-3)
        assert "adopted with no signature: 1" in " ".join(ran("ledger", "show", lost.home).stdout.split())

    def test_in_a_certificate_without_a_fitting_binding_is_not_adopted(self, lost: Lost, tmp_path: Path) -> None:
        fake = forged(lost.out, tmp_path / "fake", only_the_cheap_run, version=2)
        with pytest.raises(InvalidInputError, match="binding"):
            adopted(lost, fake)
        assert spent(lost.home) == pytest.approx(CLAIMED, abs=1e-4), "as in the backup: nothing was counted"

    def test_fails_verification_by_the_ledger_once_adopted(self, lost: Lost, tmp_path: Path) -> None:
        """The ledger knows of it from itself alone."""
        fake = forged(lost.out, tmp_path / "fake", only_the_cheap_run, version=1)
        adopted(lost, fake)
        result = verify(fake, portfolio=lost.home)
        assert [c.passed for c in result.checks if c.name == "ledger"] == [False]

    @pytest.mark.parametrize("version", [1, 2])
    def test_signed_with_the_forgers_own_key_is_not_adopted(self, lost: Lost, tmp_path: Path, version: Version) -> None:
        keys.generate(tmp_path / "own")
        fake = forged(lost.out, tmp_path / "fake", only_the_cheap_run, version=version, key=tmp_path / "own")
        with pytest.raises(InvalidInputError, match="signature: not made with this key"):
            adopted(lost, fake, key=lost.public)

    @pytest.mark.parametrize(
        ("owner", "name", "fault"),
        [
            (ScopeState, "everything", lambda _: []),
            (cap_setting, "adoption_cost", cost_of_the_terms_alone),
        ],
        ids=["nothing but the terms counts", "the cost is that of the terms"],
    )
    def test_is_noticed_when_the_ledger_does_not_count_everything(
        self, original: Lost, tmp_path: Path, owner: object, name: str, fault: Any
    ) -> None:
        def attack(folder: Path) -> None:
            made = copied(original, folder)
            with Ledger.open(made.home / LEDGER_NAME) as ledger:
                ledger.set_cap(SCOPE, Cap(epsilon=1.0, delta=DELTA, rule="renyi_filter"))
            adopted(made, forged(made.out, folder / "fake", only_the_cheap_run, version=1))
            assert spent(made.home) > TRUE

        must_notice(attack, tmp_path, owner, name, fault)


class TestCountingEverything:
    def test_an_honest_output_with_no_key_counts_as_everything_too(self, lost: Lost) -> None:
        adopted(lost, lost.out)
        assert spent(lost.home) == pytest.approx(EVERYTHING, abs=1e-3)
        (check,) = [c for c in verify(lost.out, portfolio=lost.home).checks if c.name == "ledger"]
        assert check.passed is None

    def test_everything_is_the_runs_of_portfolio_and_ledger_to_their_last_steps(
        self, lost: Lost, tmp_path: Path
    ) -> None:
        """A listing of a few runs, and a ledger that knows others of the same data."""
        probe = Portfolio.load(example_of_0_1("probe", tmp_path / "probe"), contents=False)
        place = lost.home / LEDGER_NAME
        dpm.release(stated_weights(probe, {"s64@1": 1.0}, target(2)), out=tmp_path / "s64", ledger=place)
        listing = lost.home / "few.yaml"
        listing.write_text("schema: dpmerge/portfolio/v1\nruns: [c2-s64, ladder-1, ladder-2]\ncomplete: false\n")
        few = Portfolio.load(listing, contents=False)

        def of_the_listing(declared: dict[str, Any]) -> None:
            only_the_cheap_run(declared)
            declared["portfolio"]["complete"] = False

        fake = forged(lost.out, tmp_path / "fake", of_the_listing, version=1)
        with Ledger.open(place) as ledger:
            adopt(ledger, fake, few)
        whole = [Checkpoint(run.mechanism, run.mechanism.steps) for run in (*few.runs, probe.run("s64"))]
        assert spent(lost.home) == pytest.approx(Exposure.of(whole).profile().epsilon(DELTA), rel=1e-9)

    def test_an_adopted_final_release_locks_its_runs(self, lost: Lost, tmp_path: Path) -> None:
        fake = forged(lost.out, tmp_path / "fake", lambda d: (only_the_cheap_run(d), d.update(final=True)), version=1)
        assert ran("ledger", "recover", lost.home, "--adopt", fake, "--accept").exit_code == 0
        with Ledger.open(lost.home / LEDGER_NAME) as ledger:
            locked = {run.name for run in ledger.budget_report(SCOPE, DELTA).runs if run.locked_by}
        assert locked == {"ladder-1"}
        planned = stated_weights(Portfolio.load(lost.home, contents=False), {"ladder-1@20": 1.0}, target(2))
        with pytest.raises(RunsLockedError):
            dpm.release(planned, out=tmp_path / "again")

    @pytest.mark.parametrize("fault", ["a run less", "a step less", "a key beside it"])
    def test_an_adopted_entry_that_does_not_count_everything_breaks_the_chain(self, lost: Lost, fault: str) -> None:
        """Also in a chain whose hashes were made to fit."""
        adopted(lost, lost.out)
        with Ledger.open(lost.home / LEDGER_NAME) as ledger:
            *before, last = ledger.entries()
            body = dict(last.body)
            assert {run["step"] for run in body["everything"]} == {20}
            assert len(body["everything"]) == 11
            if fault == "a run less":
                body["everything"] = [r for r in body["everything"] if r["statement"]["run"] != "ladder-1"]
            elif fault == "a step less":
                body["everything"] = [{**run, "step": 19} for run in body["everything"]]
            else:
                body["signedBy"] = "0" * 64
            assert verified(ledger.id, [*before, last], (last.seq, last.hash)).ok
            changed = _following(ledger.id, before[-1], last, body)
            verdict = verified(ledger.id, [*before, changed], (changed.seq, changed.hash))
        assert (verdict.ok, verdict.broken) == (False, last.seq)
        assert "does not count everything" in str(verdict.why)


def _following(ledger: str, before: Entry, last: Entry, body: dict[str, Any]) -> Entry:
    return following(ledger, (before.seq, before.hash), kind="adopted", scope=SCOPE, body=body, time=last.time)


class TestAdoptionWithAKey:
    def test_a_signed_output_counts_as_its_certificate_says(self, lost: Lost) -> None:
        release = adopted(lost, lost.out, key=lost.public)
        assert spent(lost.home) == pytest.approx(TRUE, abs=1e-3)
        with Ledger.open(lost.home / LEDGER_NAME) as ledger:
            known = ledger.release(release)
        assert known is not None
        assert known.signed_by == str(keys.read_public(lost.public).keyid)
        result = verify(lost.out, portfolio=lost.home)
        assert [c.passed for c in result.checks if c.name == "ledger"] == [True]

    def test_a_signed_output_of_version_1_counts_as_its_certificate_says(self, lost: Lost, tmp_path: Path) -> None:
        """As 0.1 wrote it: the signature covers all of it."""
        old = forged(lost.out, tmp_path / "old", version=1, key=lost.key)
        adopted(lost, old, key=lost.public)
        assert spent(lost.home) == pytest.approx(TRUE, abs=1e-3)
        assert verify(old, portfolio=lost.home).verified

    def test_an_unsigned_output_is_refused_where_a_key_is_given(self, lost: Lost, tmp_path: Path) -> None:
        unsigned = forged(lost.out, tmp_path / "unsigned")
        with pytest.raises(InvalidInputError, match="not signed, and a key was given"):
            adopted(lost, unsigned, key=lost.public)
