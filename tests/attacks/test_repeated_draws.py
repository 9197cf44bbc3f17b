"""The same random selection drawn again and again: each certificate says which draw it is.

Claimed is ε = 0.12 for a draw between two averages whose own ε are 0.108169 and 0.122212. Who draws until the second
comes has released that, at 0.122212; the certificates of all draws looked alike, and now count.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import dpmerge as dpm
from attacks.faults import must_notice
from attacks.forging import certificate_in, forged
from dpmerge.certificate.checks import Verification
from dpmerge.certificate.commitments import release_salt
from dpmerge.certificate.model_card import CARD_NAME
from dpmerge.certificate.predicate import Predicate
from dpmerge.ledger.charge import Charge
from dpmerge.ledger.entries import Entry
from dpmerge.ledger.ledger import Ledger
from dpmerge.ledger.scope_state import ScopeState
from dpmerge.planning.plan import Plan
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.releasing import publish
from dpmerge.releasing.commitment_salt import salt_of
from dpmerge.releasing.ledger_location import default_ledger
from dpmerge.releasing.recover import abandon
from dpmerge.releasing.release import Release, release
from dpmerge.releasing.verifying import verify
from dpmerge.terms.documents import validated
from dpmerge.terms.release_terms import ReleaseTerms
from ledger.releases import SCOPE, first, request, run

EXAMPLES = Path(__file__).parents[2] / "examples"
DELTA = 1e-5
CLAIMED, TRUE = 0.12, 0.122212
TARGET = dpm.Guarantee(epsilon=CLAIMED, delta=DELTA)


@pytest.fixture
def mnist(tmp_path: Path) -> Portfolio:
    return portfolio_in(tmp_path)


def portfolio_in(folder: Path) -> Portfolio:
    """The runs that are drawn from, and no others: each release writes to the folder of every run."""
    for number in range(1, 6):
        shutil.copytree(EXAMPLES / "mnist" / f"ladder-{number}", folder / "mnist" / f"ladder-{number}")
    return Portfolio.load(folder / "mnist", contents=False)


def drawn(portfolio: Portfolio, out: Path, **how: Any) -> Release:
    return release(dpm.plan(portfolio, TARGET), out=out, **how)


def counted(made: Release) -> tuple[int | None, list[str]]:
    texts = [caveat["text"] for caveat in made.content["caveats"] if caveat["name"] == "repeated_draw"]
    return made.content.get("drawNumber"), [text.split(":")[0] for text in texts]


def ledger_check(result: Verification) -> bool | None:
    return {check.name: check.passed for check in result.checks}["ledger"]


def test_the_second_and_third_draw_carry_their_number_as_a_caveat(mnist: Portfolio, tmp_path: Path) -> None:
    outs = [tmp_path / name for name in ("one", "two", "three")]
    made = [drawn(mnist, out) for out in outs]
    assert [each.content["guarantee"]["epsilon"] for each in made] == [CLAIMED] * 3
    assert max(outcome["epsilon"] for outcome in made[0].content["outcomes"]) == TRUE
    expected = [(1, []), (2, ["draw 2 of these terms"]), (3, ["draw 3 of these terms"])]
    assert [counted(each) for each in made] == expected
    for out, (number, _) in zip(outs, expected, strict=True):
        assert (f"draw {number} of these terms" in (out / CARD_NAME).read_text()) == (number > 1)
        assert ledger_check(verify(out, portfolio=mnist)) is True


def test_an_abandoned_draw_counts_as_drawn(mnist: Portfolio, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looked at and abandoned is drawn all the same."""

    def stopped(*_: object, **__: object) -> None:
        raise dpm.errors.CannotWriteError("output", None, "nothing today")

    with monkeypatch.context() as patch:
        patch.setattr(publish, "build", stopped)
        with pytest.raises(dpm.errors.CannotWriteError):
            drawn(mnist, tmp_path / "one")
    with Ledger.open(default_ledger(mnist)) as ledger:
        (pending,) = ledger.pending()
        assert pending.draw_number == 1
        abandon(ledger, pending.release_id)
    assert counted(drawn(mnist, tmp_path / "two"))[0] == 2


def test_asking_again_with_the_same_key_is_the_same_draw(mnist: Portfolio, tmp_path: Path) -> None:
    one = drawn(mnist, tmp_path / "one", request_key="k")
    again = drawn(mnist, tmp_path / "again", request_key="k")
    assert counted(one) == counted(again) == (1, [])


def test_a_release_of_one_candidate_has_no_draw_number(mnist: Portfolio, tmp_path: Path) -> None:
    plan = dpm.plan(mnist, dpm.Guarantee(epsilon=0.8, delta=DELTA), method="combine")
    for name in ("one", "two"):
        assert counted(release(plan, out=tmp_path / name)) == (None, [])


class TestDrawNumbers:
    """In a ledger alone: what counts as drawing again."""

    A, B, C = run("a"), run("b", 4.0), run("c", 6.0)

    def numbers(self, path: Path, *asked: tuple[Sequence[Any], dict[str, Any]]) -> list[int | None]:
        with Ledger.open(path / "ledger.db") as ledger:
            made = [ledger.charge(request(*given, **how), first).draw_number for given, how in asked]
            assert ledger.verify().ok
            kept = ledger.budget_report(SCOPE, DELTA).releases
            assert [ledger.release(line.release_id).draw_number for line in kept] == made  # type: ignore[union-attr]
        return made

    @pytest.mark.parametrize(
        ("again", "how"),
        [
            (([A, B], "a@3", "b@2"), {}),
            (([A, B], "b@2", "a@3"), {}),
            (([A, B], "a@3", "b@2"), {"probabilities": [0.25, 0.75]}),
            (([A, B, C], "a@3", "b@2"), {}),
        ],
        ids=["as before", "in another order", "with other probabilities", "beside other runs"],
    )
    def test_the_same_candidates_again_are_the_second_draw(
        self, tmp_path: Path, again: Sequence[Any], how: dict[str, Any]
    ) -> None:
        assert self.numbers(tmp_path, (([self.A, self.B], "a@3", "b@2"), {}), (again, how)) == [1, 2]

    @pytest.mark.parametrize(
        "other",
        [([A, B], "a@3", "b@3"), ([A, C], "a@3", "c@2"), ([A, B, C], "a@3", "b@2", "c@2"), ([A], "a@3")],
        ids=["another step", "another run", "a third candidate", "no draw"],
    )
    def test_other_candidates_are_a_first_draw_or_none(self, tmp_path: Path, other: Sequence[Any]) -> None:
        one, two = self.numbers(tmp_path, (([self.A, self.B], "a@3", "b@2"), {}), (other, {}))
        assert (one, two) == (1, None if len(other) == 2 else 1)


class TestVerification:
    """The number is compared with the ledger's, and cannot be changed without the salt."""

    @staticmethod
    def call_it_the_first(out: Path, portfolio: Portfolio, fake: Path, *, salt: bool) -> Path:
        """Claimed: draw 1. True: draw 2. With the salt whoever keeps the runs can make a binding that fits."""

        def first_draw(declared: dict[str, Any]) -> None:
            declared["drawNumber"] = 1
            if salt:
                key = release_salt(salt_of(portfolio), declared["release"])
                files = certificate_in(out).subjects
                declared["binding"] = validated(Predicate, declared, "again", case="camel").bound(files, key).binding

        return forged(out, fake, first_draw)

    def test_a_forged_draw_number_fails_binding_and_ledger(self, mnist: Portfolio, tmp_path: Path) -> None:
        drawn(mnist, tmp_path / "one")
        drawn(mnist, tmp_path / "two")
        fake = self.call_it_the_first(tmp_path / "two", mnist, tmp_path / "fake", salt=False)
        assert verify(fake).verified
        problems = verify(fake, portfolio=mnist).problems
        assert [problem.split(":")[0] for problem in problems] == ["binding", "ledger"]

    def test_a_forged_draw_number_bound_with_the_salt_fails_the_ledger(self, mnist: Portfolio, tmp_path: Path) -> None:
        drawn(mnist, tmp_path / "one")
        drawn(mnist, tmp_path / "two")
        fake = self.call_it_the_first(tmp_path / "two", mnist, tmp_path / "fake", salt=True)
        assert verify(fake, portfolio=mnist).problems == [
            "ledger: counts this as draw 2 of these terms, and the certificate as 1"
        ]

    @pytest.mark.parametrize("number", [0, None, 1.5])
    def test_a_certificate_with_an_impossible_draw_number_is_refused(
        self, mnist: Portfolio, tmp_path: Path, number: object
    ) -> None:
        drawn(mnist, tmp_path / "one")
        with pytest.raises(dpm.errors.InvalidInputError, match="drawNumber"):
            forged(tmp_path / "one", tmp_path / "fake", lambda declared: declared.update(drawNumber=number))

    def test_tests_notice_when_draws_are_not_counted(self, tmp_path: Path) -> None:
        charged = ScopeState.charged

        def uncounted(state: ScopeState, entry: Entry) -> Charge:
            return replace(charged(state, entry), draw_number=1)

        def attack(folder: Path) -> None:
            portfolio = portfolio_in(folder)
            drawn(portfolio, folder / "one")
            assert counted(drawn(portfolio, folder / "two"))[0] == 2

        must_notice(attack, tmp_path, ScopeState, "charged", uncounted)


def test_a_plan_saved_and_edited_a_little_is_still_counted(mnist: Portfolio, tmp_path: Path) -> None:
    """Probabilities a hair apart are other terms, and the same candidates."""
    drawn(mnist, tmp_path / "one")
    planned = dpm.plan(mnist, TARGET)
    document = json.loads(json.dumps(planned.terms.document()))
    document["probabilities"] = [document["probabilities"][0] + 2**-53, document["probabilities"][1] - 2**-53]
    other = Plan.of_terms(mnist, validated(ReleaseTerms, document, "terms"), TARGET)
    assert counted(release(other, out=tmp_path / "two"))[0] == 2
