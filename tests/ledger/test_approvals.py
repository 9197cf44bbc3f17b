"""A second person: what a policy asks two people for is done by nobody alone, whatever they write into the ledger."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from securesystemslib.signer import CryptoSigner
from soak.kills import Child, at_once

from dpmerge.errors import ApprovalNeededError, InvalidInputError, LedgerBrokenError, RunsLockedError
from dpmerge.ledger import Cap, Charge, Ledger, ledger_writer
from dpmerge.ledger.approval_policy import NOBODY_ELSE, Person, Policy
from dpmerge.ledger.cap_setting import cap_body
from dpmerge.ledger.database import ledger_row
from dpmerge.ledger.entries import OF_NO_SCOPE, Entry, Kind, canonical, following, seal, sha256, written
from dpmerge.ledger.signed_entries import signed_body
from ledger.releases import SCOPE, first, request, run

ANN, BOB, EVE, STRANGER = (
    CryptoSigner(Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32)) for number in range(4)
)
A, B = run("a", 40.0), run("b", 20.0)
CAP, HIGHER = (Cap(epsilon=epsilon, delta=1e-5, rule="gaussian_filter") for epsilon in (2.0, 20.0))


def person(name: str, signer: CryptoSigner) -> Person:
    return Person(name, str(signer.public_key.keyval["public"]))


TWO = Policy(approvals=2, people=(person("Ann", ANN), person("Bob", BOB), person("Eve", EVE)))


def final(step: int = 3, nonce: str = "1") -> Charge:
    """A final release; its nonce is another each time it is asked for, as in `dpmerge merge`."""
    details = {"out": "/out", "target": {"epsilon": 9.0, "delta": 1e-5}, "nonce": nonce}
    return request([A], f"a@{step}", final=True, theorem="last_step", seen={"a": step}, details=details)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """With a policy that asks for two of Ann, Bob and Eve."""
    with Ledger.open(tmp_path / "ledger.db") as opened:
        opened.set_policy(TWO)
        yield opened


def asked(work: Callable[[], object]) -> str:
    """The request that something becomes instead of being done."""
    with pytest.raises(ApprovalNeededError) as waiting:
        work()
    return waiting.value.request


def kinds(ledger: Ledger) -> list[str]:
    assert ledger.verify().ok
    return [entry.kind for entry in ledger.entries()]


def never(_: object) -> int:
    raise AssertionError("drawn before it was approved")


class TestTwoPeople:
    def test_a_final_release_is_charged_and_drawn_once_it_is_approved(self, ledger: Ledger) -> None:
        request_id = asked(lambda: ledger.charge(final(nonce="1"), never, asker=ANN))
        assert asked(lambda: ledger.charge(final(nonce="2"), never)) == request_id
        assert kinds(ledger) == ["policy", "request"]
        ledger.decide(request_id, "approved", BOB)
        charged = ledger.charge(final(nonce="3"), first)
        assert charged.details["nonce"] == "1", "not the very content that was approved"
        assert charged.body["request"] == request_id
        assert kinds(ledger) == ["policy", "request", "approval", "opened", "release"]
        assert ledger.requests() == []

    def test_a_release_that_is_not_final_needs_nobody(self, ledger: Ledger) -> None:
        ledger.charge(request([B], "b@2"), first)
        assert kinds(ledger) == ["policy", "opened", "release"]

    def test_a_cap_is_set_once_it_is_approved(self, ledger: Ledger) -> None:
        request_id = asked(lambda: ledger.set_cap(SCOPE, CAP, asker=ANN))
        assert not ledger.is_capped(SCOPE)
        ledger.decide(request_id, "approved", BOB)
        assert not ledger.is_capped(SCOPE)
        ledger.set_cap(SCOPE, CAP)
        assert ledger.is_capped(SCOPE)
        assert kinds(ledger) == ["policy", "request", "approval", "opened", "cap"]

    def test_giving_up_and_vouching_need_a_second_person(self, ledger: Ledger) -> None:
        charged = ledger.charge(request([B], "b@2"), first)
        for work in (
            lambda: ledger.abandon(charged.release_id, "why", asker=ANN),
            lambda: ledger.accept(SCOPE, "in spite of it", asker=ANN),
        ):
            request_id = asked(work)
            ledger.decide(request_id, "approved", EVE)
            work()
        assert kinds(ledger)[-1] == "accepted"
        found = ledger.release(charged.release_id)
        assert found is not None
        assert found.status == "abandoned"

    def test_three_people_are_three(self, ledger: Ledger) -> None:
        three = Policy(approvals=3, people=TWO.people)
        ledger.decide(asked(lambda: ledger.set_policy(three, asker=ANN)), "approved", BOB)
        ledger.set_policy(three)
        request_id = asked(lambda: ledger.set_cap(SCOPE, CAP, asker=ANN))
        ledger.decide(request_id, "approved", BOB)
        assert asked(lambda: ledger.set_cap(SCOPE, CAP)) == request_id
        assert ledger.request(request_id).may_approve == ("Eve",)
        ledger.decide(request_id, "approved", EVE)
        ledger.set_cap(SCOPE, CAP)
        assert ledger.is_capped(SCOPE)

    def test_a_ledger_without_a_policy_is_as_before(self, tmp_path: Path) -> None:
        with Ledger.open(tmp_path / "plain.db") as plain:
            plain.set_cap(SCOPE, Cap(epsilon=9.0, delta=1e-5, rule="gaussian_filter"))
            charged = plain.charge(final(), first)
            assert "request" not in charged.body
            assert kinds(plain) == ["opened", "cap", "release"]
            assert plain.policy() == NOBODY_ELSE

    def test_what_waits_is_said_in_full(self, ledger: Ledger) -> None:
        request_id = asked(lambda: ledger.charge(final(), never, asker=ANN))
        (waiting,) = ledger.requests()
        assert waiting.id == request_id
        assert (waiting.asked_by, waiting.approved_by, waiting.missing) == ("Ann", (), 1)
        assert waiting.may_approve == ("Bob", "Eve")
        assert "final release (a@3; ε = " in waiting.what
        assert "to /out) of patients-2026 (unit record, replace_one)" in waiting.what
        assert waiting.content["final"] is True


class TestAttacksThroughTheFrontDoor:
    def test_the_one_who_asked_is_no_second_person(self, ledger: Ledger) -> None:
        request_id = asked(lambda: ledger.set_cap(SCOPE, CAP, asker=ANN))
        with pytest.raises(InvalidInputError, match="of Ann's own: another person has to approve it"):
            ledger.decide(request_id, "approved", ANN)

    def test_nobody_approves_twice(self, ledger: Ledger) -> None:
        three = Policy(approvals=3, people=TWO.people)
        ledger.decide(asked(lambda: ledger.set_policy(three, asker=ANN)), "approved", BOB)
        ledger.set_policy(three)
        request_id = asked(lambda: ledger.set_cap(SCOPE, CAP, asker=ANN))
        ledger.decide(request_id, "approved", BOB)
        with pytest.raises(InvalidInputError, match="Bob has approved already, and nobody counts twice"):
            ledger.decide(request_id, "approved", BOB)

    def test_a_key_that_the_policy_does_not_name_neither_asks_nor_approves(self, ledger: Ledger) -> None:
        with pytest.raises(InvalidInputError, match="2 people must stand behind this, of Ann, Bob, Eve"):
            ledger.set_cap(SCOPE, CAP, asker=STRANGER)
        with pytest.raises(InvalidInputError, match="got no key to sign the request with"):
            ledger.set_cap(SCOPE, CAP)
        request_id = asked(lambda: ledger.set_cap(SCOPE, CAP, asker=ANN))
        with pytest.raises(InvalidInputError, match="is of nobody whom the policy names"):
            ledger.decide(request_id, "approved", STRANGER)
        assert kinds(ledger) == ["policy", "request"]

    def test_a_cap_that_was_changed_after_approval_is_another_request(self, ledger: Ledger) -> None:
        request_id = asked(lambda: ledger.set_cap(SCOPE, CAP, asker=ANN))
        ledger.decide(request_id, "approved", BOB)
        other = asked(lambda: ledger.set_cap(SCOPE, HIGHER, asker=ANN))
        assert other != request_id
        assert not ledger.is_capped(SCOPE)

    def test_another_final_release_than_was_approved_is_another_request(self, ledger: Ledger) -> None:
        ledger.decide(asked(lambda: ledger.charge(final(3), never, asker=ANN)), "approved", BOB)
        asked(lambda: ledger.charge(final(4), never, asker=ANN))
        assert "release" not in kinds(ledger)

    def test_an_approval_is_used_once(self, ledger: Ledger) -> None:
        ledger.decide(asked(lambda: ledger.set_cap(SCOPE, CAP, asker=ANN)), "approved", BOB)
        ledger.set_cap(SCOPE, CAP)
        asked(lambda: ledger.set_cap(SCOPE, CAP, asker=ANN))
        assert kinds(ledger).count("cap") == 1

    def test_a_denied_request_is_closed_and_so_is_one_that_was_withdrawn(self, ledger: Ledger) -> None:
        for who in (BOB, ANN):
            request_id = asked(lambda: ledger.set_cap(SCOPE, CAP, asker=ANN))
            ledger.decide(request_id, "approved", EVE)
            ledger.decide(request_id, "denied", who)
            with pytest.raises(InvalidInputError, match="an open request: there is none"):
                ledger.decide(request_id, "approved", EVE)
            assert ledger.requests() == []
        with pytest.raises(InvalidInputError, match="got no key"):
            ledger.set_cap(SCOPE, CAP)
        assert "cap" not in kinds(ledger)

    def test_the_policy_is_not_changed_by_one_person(self, ledger: Ledger) -> None:
        lower = Policy(approvals=1)
        for weaker in (lower, Policy(approvals=2, people=(*TWO.people, person("Mallory", STRANGER)))):
            with pytest.raises(InvalidInputError, match="2 people must stand behind this"):
                ledger.set_policy(weaker)
            asked(lambda weaker=weaker: ledger.set_policy(weaker, asker=ANN))  # type: ignore[misc]
            assert ledger.policy() == TWO
        ledger.decide(asked(lambda: ledger.set_policy(lower, asker=ANN)), "approved", EVE)
        ledger.set_policy(lower)
        assert ledger.policy() == lower
        ledger.set_cap(SCOPE, CAP)
        assert ledger.requests() == []

    def test_an_approval_of_a_key_that_left_the_policy_no_longer_counts(self, ledger: Ledger) -> None:
        request_id = asked(lambda: ledger.set_cap(SCOPE, CAP, asker=ANN))
        ledger.decide(request_id, "approved", BOB)
        without_bob = Policy(approvals=2, people=(person("Ann", ANN), person("Eve", EVE)))
        for policy in (without_bob, TWO):  # and it does not count again when Bob is back
            ledger.decide(asked(lambda policy=policy: ledger.set_policy(policy, asker=ANN)), "approved", EVE)  # type: ignore[misc]
            ledger.set_policy(policy)
            assert asked(lambda: ledger.set_cap(SCOPE, CAP)) == request_id
        ledger.decide(request_id, "approved", EVE)
        ledger.set_cap(SCOPE, CAP)
        assert kinds(ledger)[-1] == "cap"

    def test_a_request_of_a_key_that_left_the_policy_lapses(self, ledger: Ledger) -> None:
        ledger.decide(asked(lambda: ledger.set_cap(SCOPE, CAP, asker=BOB)), "approved", ANN)
        without_bob = Policy(approvals=2, people=(person("Ann", ANN), person("Eve", EVE)))
        ledger.decide(asked(lambda: ledger.set_policy(without_bob, asker=ANN)), "approved", EVE)
        ledger.set_policy(without_bob)
        with pytest.raises(InvalidInputError, match="got no key"):
            ledger.set_cap(SCOPE, CAP)

    def test_an_older_policy_or_cap_that_was_approved_does_not_come_back(self, ledger: Ledger) -> None:
        lower, caps = Policy(approvals=1), (CAP, HIGHER)
        for cap in caps:
            ledger.decide(asked(lambda cap=cap: ledger.set_cap(SCOPE, cap, asker=ANN)), "approved", BOB)  # type: ignore[misc]
        ledger.set_cap(SCOPE, CAP)
        with pytest.raises(InvalidInputError, match="got no key"):
            ledger.set_cap(SCOPE, HIGHER)
        ledger.decide(asked(lambda: ledger.set_policy(lower, asker=ANN)), "approved", BOB)
        three = Policy(approvals=3, people=TWO.people)
        ledger.decide(asked(lambda: ledger.set_policy(three, asker=ANN)), "approved", BOB)
        ledger.set_policy(three)
        with pytest.raises(InvalidInputError, match="got no key"):
            ledger.set_policy(lower)

    def test_too_few_digits_of_a_request_are_not_enough(self, ledger: Ledger) -> None:
        request_id = asked(lambda: ledger.set_cap(SCOPE, CAP, asker=ANN))
        for start in ("", request_id[:11], "f" * 12):
            with pytest.raises(InvalidInputError, match="12 digits or more of an open request"):
                ledger.decide(start, "approved", BOB)


class TestTime:
    @pytest.fixture
    def clock(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
        """Says what day it is from now on."""
        began = datetime.now(UTC)

        def turn(days: float) -> None:
            time = written(began + timedelta(days=days))
            monkeypatch.setattr(ledger_writer, "time_of", lambda _: time)
            monkeypatch.setattr("dpmerge.ledger.ledger.time_of", lambda _: time)
            monkeypatch.setattr("dpmerge.ledger.ledger_reader.now", lambda: time)

        return turn

    def test_an_approval_expires_with_its_request(self, ledger: Ledger, clock: Callable[[float], None]) -> None:
        request_id = asked(lambda: ledger.set_cap(SCOPE, CAP, asker=ANN))
        ledger.decide(request_id, "approved", BOB)
        clock(7.1)
        assert ledger.requests() == []
        with pytest.raises(InvalidInputError, match="got no key"):
            ledger.set_cap(SCOPE, CAP)
        with pytest.raises(InvalidInputError, match="that expired"):
            ledger.decide(request_id, "approved", EVE)
        assert asked(lambda: ledger.set_cap(SCOPE, CAP, asker=ANN)) != request_id

    def test_a_clock_that_is_put_back_makes_nothing_younger(
        self, ledger: Ledger, clock: Callable[[float], None]
    ) -> None:
        ledger.decide(asked(lambda: ledger.set_cap(SCOPE, CAP, asker=ANN)), "approved", BOB)
        clock(8)
        ledger.charge(request([B], "b@2"), first)
        clock(1)
        with pytest.raises(InvalidInputError, match="got no key"):
            ledger.set_cap(SCOPE, CAP)


class Forger:
    """Somebody who can write to the database, and has a client that checks nothing; the chain they leave is whole."""

    def __init__(self, path: Path, ledger: Ledger) -> None:
        self.path, self.ledger = path, ledger

    def append(self, kind: str, book: str, body: dict[str, Any], signer: CryptoSigner | None = None) -> str:
        head, time = self.ledger.head(), written(datetime.now(UTC))
        if signer is not None:
            body = signed_body(self.ledger.id, head, time, kind, body, signer)  # type: ignore[arg-type]
        text = canonical(body)
        digest = seal(self.ledger.id, head[0] + 1, head[1], time, kind, book, text)
        with sqlite3.connect(self.path) as connection:
            row = (head[0] + 1, head[1], digest, time, kind, book, text)
            connection.execute("INSERT INTO dpmerge_entries VALUES (?, ?, ?, ?, ?, ?, ?)", row)
            connection.execute("UPDATE dpmerge_ledger SET head_seq = ?, head_hash = ?", (head[0] + 1, digest))
        connection.close()
        return digest


@pytest.fixture
def forger(tmp_path: Path, ledger: Ledger) -> Forger:
    ledger.charge(request([B], "b@2"), first)  # so that the scope is open
    return Forger(tmp_path / "ledger.db", ledger)


def broken(ledger: Ledger, why: str) -> None:
    """Found by who verifies, and by who wants to go on."""
    last = ledger._database.read(ledger_row)[1][0]
    verdict = ledger.verify()
    assert not verdict.ok
    assert verdict.broken == last
    assert verdict.why is not None
    assert why in verdict.why
    with pytest.raises(LedgerBrokenError, match=why), Ledger.open(ledger.where) as opened:
        opened.charge(request([B], "b@1"), first)


def higher(ledger: Ledger) -> dict[str, Any]:
    """The body of a cap that fits, as an honest client would write it without a policy."""
    return cap_body(ledger._read().of(SCOPE), HIGHER)


class TestForgedEntries:
    def test_a_cap_that_nobody_approved(self, ledger: Ledger, forger: Forger) -> None:
        forger.append("cap", SCOPE.id, higher(ledger))
        broken(ledger, "cap without an approved request, where 2 people must stand behind one")

    def test_a_policy_that_asks_for_nobody(self, ledger: Ledger, forger: Forger) -> None:
        forger.append("policy", OF_NO_SCOPE, Policy(approvals=1).body())
        broken(ledger, "policy without an approved request")

    @pytest.mark.parametrize("kind", ["abandoned", "accepted"])
    def test_a_release_given_up_or_a_vow_by_one_person(self, ledger: Ledger, forger: Forger, kind: str) -> None:
        forger.append(kind, SCOPE.id, {"release": ledger.pending()[0].release_id, "reason": "", "why": ""})
        broken(ledger, f"{kind} without an approved request")

    def test_a_final_release_by_a_client_that_does_not_ask(
        self, ledger: Ledger, forger: Forger, tmp_path: Path
    ) -> None:
        with Ledger.open(tmp_path / "scratch.db") as scratch:
            charged = scratch.charge(final(), first)
        forger.append("release", SCOPE.id, dict(charged.body))
        broken(ledger, "release without an approved request")

    def test_an_entry_that_names_a_request_which_lacks_its_approval(self, ledger: Ledger, forger: Forger) -> None:
        request_id = asked(lambda: ledger.set_cap(SCOPE, HIGHER, asker=ANN))
        forger.append("cap", SCOPE.id, {**higher(ledger), "request": request_id})
        broken(ledger, "lacks 1 approvals")

    def test_an_entry_that_names_the_approved_request_for_something_else(self, ledger: Ledger, forger: Forger) -> None:
        request_id = asked(lambda: ledger.set_cap(SCOPE, CAP, asker=ANN))
        ledger.decide(request_id, "approved", BOB)
        forger.append("cap", SCOPE.id, {**higher(ledger), "request": request_id})
        broken(ledger, "is not what request")

    def test_an_approval_by_the_same_key(self, ledger: Ledger, forger: Forger) -> None:
        request_id = asked(lambda: ledger.set_cap(SCOPE, HIGHER, asker=ANN))
        forger.append("approval", OF_NO_SCOPE, {"request": request_id, "decision": "approved"}, ANN)
        broken(ledger, "of Ann's own: another person has to approve it")

    def test_an_approval_in_the_name_of_somebody_else(self, ledger: Ledger, forger: Forger) -> None:
        request_id = asked(lambda: ledger.set_cap(SCOPE, HIGHER, asker=ANN))
        body = {"request": request_id, "decision": "approved"}
        forged = signed_body(ledger.id, ledger.head(), "2026-01-01T00:00:00.000Z", "approval", body, ANN)
        forger.append("approval", OF_NO_SCOPE, {**forged, "key": BOB.public_key.keyid})
        broken(ledger, "its signature was not made with the key it names")

    def test_a_request_in_the_name_of_somebody_else(self, ledger: Ledger, forger: Forger) -> None:
        """Eve asks in Ann's name, to approve it herself."""
        asked(lambda: ledger.set_cap(SCOPE, HIGHER, asker=ANN))
        body = dict(list(ledger.entries())[-1].content)
        forger.append("request", OF_NO_SCOPE, body)  # Ann's own words and signature, once more
        broken(ledger, "its signature was not made with the key it names, or for another entry")

    def test_an_approval_that_is_replayed_for_another_request(self, ledger: Ledger, forger: Forger) -> None:
        ledger.decide(asked(lambda: ledger.set_cap(SCOPE, CAP, asker=ANN)), "approved", BOB)
        replayed = dict(list(ledger.entries())[-1].content)
        request_id = asked(lambda: ledger.set_cap(SCOPE, HIGHER, asker=ANN))
        forger.append("approval", OF_NO_SCOPE, {**replayed, "request": request_id})
        broken(ledger, "its signature was not made with the key it names, or for another entry")

    def test_an_approval_of_a_stranger(self, ledger: Ledger, forger: Forger) -> None:
        request_id = asked(lambda: ledger.set_cap(SCOPE, HIGHER, asker=ANN))
        forger.append("approval", OF_NO_SCOPE, {"request": request_id, "decision": "approved"}, STRANGER)
        broken(ledger, "signed with a key that the policy in force does not name")

    def test_a_request_that_would_never_expire(self, ledger: Ledger, forger: Forger) -> None:
        asked(lambda: ledger.set_cap(SCOPE, HIGHER, asker=ANN))
        body = {name: list(ledger.entries())[-1].content[name] for name in ("kind", "scope", "content", "by")}
        forger.append("request", OF_NO_SCOPE, {**body, "expires": "2999-01-01T00:00:00.000Z"}, ANN)
        broken(ledger, "would be open for more than 7 days")

    def test_a_snapshot_that_knows_of_no_policy(self, ledger: Ledger, forger: Forger) -> None:
        text = canonical({"format": 1, "head": list(ledger.head()), "scopes": []})
        forger.append("snapshot", OF_NO_SCOPE, {"format": 1, "state": sha256(text)})
        assert "seals a state that the entries before it do not give" in str(ledger.verify().why)


def replayed_elsewhere(ledger: Ledger, other: Ledger) -> list[Entry]:
    """The entries of one ledger as entries of another: sealed anew, their bodies as they were signed."""
    made: list[Entry] = []
    for entry in ledger.entries():
        head = (made[-1].seq, made[-1].hash) if made else other.head()
        kind: Kind = entry.kind  # type: ignore[assignment]
        scope = None if entry.book == OF_NO_SCOPE else SCOPE
        made.append(following(other.id, head, kind=kind, scope=scope, body=entry.content, time=entry.time))
    return made


def test_nothing_signed_for_one_ledger_is_good_in_another(ledger: Ledger, tmp_path: Path) -> None:
    ledger.decide(asked(lambda: ledger.set_cap(SCOPE, CAP, asker=ANN)), "approved", BOB)
    with Ledger.open(tmp_path / "other.db") as other:
        copied = replayed_elsewhere(ledger, other)
        with sqlite3.connect(tmp_path / "other.db") as connection:
            for each in copied:
                row = (each.seq, each.previous, each.hash, each.time, each.kind, each.book, each.text)
                connection.execute("INSERT INTO dpmerge_entries VALUES (?, ?, ?, ?, ?, ?, ?)", row)
            connection.execute("UPDATE dpmerge_ledger SET head_seq = ?, head_hash = ?", (each.seq, each.hash))
        connection.close()
        verdict = other.verify()
    assert (verdict.ok, verdict.broken) == (False, 2)
    assert "its signature was not made with the key it names, or for another entry" in str(verdict.why)


class TestEverywhere:
    def test_snapshots_keep_the_policy_and_what_waits(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ledger_writer, "EVERY", 3)
        path = tmp_path / "ledger.db"
        with Ledger.open(path) as ledger:
            ledger.set_policy(TWO)
            request_id = asked(lambda: ledger.set_cap(SCOPE, CAP, asker=ANN))
            ledger.decide(request_id, "approved", BOB)
        for step in range(1, 6):
            with Ledger.open(path) as ledger:
                ledger.charge(request([B], f"b@{step}"), first)
        with Ledger.open(path) as ledger:
            assert [waiting.id for waiting in ledger.requests()] == [request_id]
            assert ledger._state.snapshot > 5, "nothing was read from a snapshot"
            with pytest.raises(InvalidInputError, match="got no key"):
                ledger.set_cap(SCOPE, HIGHER)
            ledger.set_cap(SCOPE, CAP)
            assert kinds(ledger).count("snapshot") > 1

    def test_it_is_done_once_by_many_at_once(self, anywhere: str) -> None:
        with Ledger.open(anywhere) as ledger:
            ledger.set_policy(TWO)
            ledger.decide(asked(lambda: ledger.charge(final(), never, asker=ANN)), "approved", BOB)
            ledger.decide(asked(lambda: ledger.set_cap(SCOPE, CAP, asker=ANN)), "approved", EVE)

        def carried_out() -> str:
            with Ledger.open(anywhere) as opened:
                try:
                    return opened.charge(final(), first).release_id
                except RunsLockedError:
                    return "locked"

        ended = at_once([carried_out] * 4)
        assert [each.error for each in ended if each.how != "done"] == []
        assert sorted(each.value == "locked" for each in ended) == [False, True, True, True]
        with Ledger.open(anywhere) as ledger:
            ledger.set_cap(SCOPE, CAP)
            assert kinds(ledger) == ["policy", "request", "approval", "request", "approval", "opened", "release", "cap"]

    def test_a_process_killed_after_the_request_leaves_one_that_is_found_again(self, tmp_path: Path) -> None:
        path = tmp_path / "ledger.db"
        with Ledger.open(path) as ledger:
            ledger.set_policy(TWO)

        def ask() -> None:
            with Ledger.open(path) as opened:
                opened.set_cap(SCOPE, CAP, asker=ANN)

        assert "ApprovalNeededError" in Child(ask).ended().error
        with Ledger.open(path) as ledger:
            request_id = asked(lambda: ledger.set_cap(SCOPE, CAP))
            assert [each.id for each in ledger.requests()] == [request_id]


@pytest.mark.parametrize(
    ("why", "policy"),
    [
        ("a whole number from 1 on", lambda: Policy(approvals=0)),
        ("a whole number from 1 on", lambda: Policy(approvals=True)),
        ("a whole number from 1 to 90", lambda: Policy(days=365)),
        ("3 people are asked for, and 2 named", lambda: Policy(approvals=3, people=TWO.people[:2])),
        ("has the key of Ann, and would count twice", lambda: Policy(people=(person("Ann", ANN), person("X", ANN)))),
        ("ann has two keys, and would count twice", lambda: Policy(people=(person("Ann", ANN), person("ann", BOB)))),
        ("printable characters", lambda: Policy(people=(person("Ann\n", ANN),))),
        ("an ed25519 public key", lambda: Policy(people=(Person("Ann", "no key"),))),
    ],
)
def test_a_policy_that_counts_wrongly_is_refused(why: str, policy: Callable[[], Policy]) -> None:
    with pytest.raises(InvalidInputError, match=why):
        policy()
