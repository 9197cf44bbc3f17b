"""A ledger that is read from a snapshot answers, charges and refuses as one that is read from its first entry."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from dpmerge.errors import CapExceededError, LedgerBrokenError, RunsLockedError
from dpmerge.ledger import Cap, Charge, Ledger
from dpmerge.ledger import ledger_writer as ledger_module
from dpmerge.ledger.entries import canonical, seal
from dpmerge.ledger.snapshots import snapshot_text
from dpmerge.ledger.state import fold
from dpmerge.terms.candidate_terms import Validation
from ledger.releases import SCOPE, child, drawing, first, request, run, seeded

A, B, C = run("a", 40.0), run("b", 20.0), run("c", 10.0)
D, E = child("d", "a", 2, 30.0), seeded("e", 7, 25.0)
EVERY = 4


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "EVERY", EVERY)


def asked(chance: random.Random, key: str | None) -> Charge:
    step = chance.randint(1, 6)
    choices = [
        lambda: request([A, B, C], f"a@{step}", key=key),
        lambda: request([A, B, C], f"b@{step}", f"c@{step}", key=key),
        lambda: request([A, B, C], {f"a@{step}": 0.5, "c@2": 0.5}, key=key),
        lambda: request([A, D], f"d@{step}", key=key),
        lambda: request([E], f"e@{step}", key=key),
        lambda: request([A], "a@1", kind="uncharged", key=key),
        lambda: request([B], "b@1", validation=_validation(chance.random() < 0.5), key=key),
        lambda: request([C], f"c@{step}", final=True, theorem="last_step", seen={"c": step}, key=key),
    ]
    return chance.choice(choices)()


def _validation(apart: bool) -> Validation:
    return Validation(
        dataset="held-out", unit="record", epsilon=0.25, records=1000, disjoint_vouched_by="Ann" if apart else None
    )


def played(path: Path, seed: int, steps: int) -> list[Any]:
    """A random sequence, each step by a ledger opened anew, as another process would; what came of each."""
    chance, outcome, charged = random.Random(seed), list[Any](), list[Charge]()  # noqa: S311
    for step in range(steps):
        with Ledger.open(path) as ledger:
            try:
                if step == 2 and chance.random() < 0.5:
                    ledger.set_cap(SCOPE, Cap(epsilon=4.0, delta=1e-5, rule="renyi_filter", order=8.0))
                elif charged and chance.random() < 0.4:
                    done = chance.choice(charged)
                    output = {"files": {"m": "0" * 64}, "certificate": "1" * 64, "where": f"/out/{done.release_id}"}
                    kind = chance.choice(["seal", "complete", "abandon"])
                    if kind == "abandon":
                        ledger.abandon(done.release_id, "chance")
                    else:
                        getattr(ledger, kind)(done.release_id, **output)
                else:
                    key = f"k{chance.randint(0, 5)}" if chance.random() < 0.3 else None
                    index = chance.randint(0, 1)
                    proposed = asked(chance, key)
                    units = len(proposed.terms.candidates)
                    made = ledger.charge(proposed, drawing(index % units), release_id=f"{chance.getrandbits(128):032x}")
                    charged.append(made)
                    outcome.append((made.release_id, made.index, made.draw_number, made.already, made.body["cost"]))
            except Exception as error:  # refusals belong to what is compared
                outcome.append((type(error).__name__, str(error)))
    return outcome


def without_times(path: Path) -> list[tuple[str, dict[str, Any]]]:
    with Ledger.open(path) as ledger:
        return [(entry.kind, entry.body) for entry in ledger.entries() if entry.kind != "snapshot"]


@pytest.mark.parametrize("seed", range(12))
def test_snapshots_change_no_answer(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "with").mkdir()
    (tmp_path / "without").mkdir()
    with_them = played(tmp_path / "with" / "ledger.db", seed, 40)
    monkeypatch.setattr(ledger_module, "EVERY", 10**9)
    assert played(tmp_path / "without" / "ledger.db", seed, 40) == with_them
    assert without_times(tmp_path / "with" / "ledger.db") == without_times(tmp_path / "without" / "ledger.db")
    with Ledger.open(tmp_path / "with" / "ledger.db") as one, Ledger.open(tmp_path / "without" / "ledger.db") as other:
        kinds = [entry.kind for entry in one.entries()]
        assert kinds.count("snapshot") >= len(kinds) // (EVERY + 2) - 1
        assert one.verify().ok
        reports = [each.budget_report(SCOPE, 1e-5) for each in (one, other)]
        assert reports[0].epsilon == pytest.approx(reports[1].epsilon, rel=1e-12)
        assert (reports[0].runs, reports[0].caveats, reports[0].left) == (
            reports[1].runs, reports[1].caveats, reports[1].left
        )  # fmt: skip
        lines = [[(r.release_id, r.status, r.recipe, r.where, r.key) for r in report.releases] for report in reports]
        assert lines[0] == lines[1]
        assert [c.release_id for c in one.pending()] == [c.release_id for c in other.pending()]
        assert [c.output for c in one.pending()] == [c.output for c in other.pending()]


def filled(path: Path, count: int = 9) -> list[Charge]:
    with Ledger.open(path) as ledger:
        return [ledger.charge(request([A, B], f"a@{1 + n % 5}", key=f"key {n}"), first) for n in range(count)]


def rows(path: Path, statement: str, *values: object) -> list[Any]:
    connection = sqlite3.connect(path)
    with connection:
        found = connection.execute(statement, values).fetchall()
    connection.close()
    return found


def test_one_snapshot_is_kept_and_the_chain_holds_the_digests_of_all(tmp_path: Path) -> None:
    filled(path := tmp_path / "ledger.db", 20)
    [(seq, text)] = rows(path, "SELECT seq, text FROM dpmerge_snapshots")
    with Ledger.open(path) as ledger:
        entries = list(ledger.entries())
        sealed = [entry for entry in entries if entry.kind == "snapshot"]
        assert len(sealed) >= 3
        assert sealed[-1].seq == seq
        assert text == snapshot_text(fold(ledger.id, entries[: seq - 1]))


def test_a_ledger_reads_no_entry_before_its_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(path := tmp_path / "ledger.db", 30)
    applied = list[int]()
    from dpmerge.ledger.state import State

    apply = State.apply
    monkeypatch.setattr(State, "apply", lambda state, entry: (applied.append(entry.seq), apply(state, entry))[1])
    with Ledger.open(path) as ledger:
        head = ledger.charge(request([A], "a@1"), first).entry.seq
    assert 0 < len(applied) <= EVERY + 1
    assert min(applied) > head - EVERY - 3


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE dpmerge_snapshots SET text = replace(text, '\"a\"', '\"b\"')",
        "UPDATE dpmerge_snapshots SET text = 'no JSON'",
        "UPDATE dpmerge_snapshots SET seq = 2",
        "UPDATE dpmerge_snapshots SET seq = 999999",
        "DELETE FROM dpmerge_snapshots",
    ],
)
def test_a_damaged_snapshot_is_left_aside(damage: str, tmp_path: Path) -> None:
    charged = filled(path := tmp_path / "ledger.db")
    with Ledger.open(path) as ledger:
        before = ledger.budget_report(SCOPE, 1e-5)
    rows(path, damage)
    with Ledger.open(path) as ledger:
        assert ledger.budget_report(SCOPE, 1e-5) == before
        assert ledger.by_key(SCOPE, "key 0") == ledger.release(charged[0].release_id)
        assert ledger.verify().ok


def test_a_snapshot_that_forgets_a_charge_is_found_by_verify_although_its_entry_fits_the_chain(tmp_path: Path) -> None:
    """Whoever can write the chain can seal any state; `verify` counts again."""
    path = tmp_path / "ledger.db"
    filled(path, 3)
    with Ledger.open(path) as ledger:
        [ledger_id, head] = [ledger.id, ledger.head()]
        forged = snapshot_text(fold(ledger_id, list(ledger.entries())[:1])).replace("[1,", f"[{head[0]},")
    from dpmerge.ledger.entries import sha256

    body = canonical({"format": 1, "state": sha256(forged)})
    seq, time, zeros = head[0] + 1, "2026-01-01T00:00:00.000Z", "0" * 64
    digest = seal(ledger_id, seq, head[1], time, "snapshot", zeros, body)
    insert = "INSERT INTO dpmerge_entries VALUES (?, ?, ?, ?, ?, ?, ?)"
    rows(path, insert, seq, head[1], digest, time, "snapshot", zeros, body)
    rows(path, "UPDATE dpmerge_ledger SET head_seq = ?, head_hash = ?", seq, digest)
    with Ledger.open(path) as ledger:
        verdict = ledger.verify()
    assert not verdict.ok
    assert verdict.broken == seq
    assert "seals a state that the entries before it do not give" in str(verdict.why)


def test_an_entry_that_was_changed_before_the_snapshot_is_noticed_when_it_is_read(tmp_path: Path) -> None:
    charged = filled(path := tmp_path / "ledger.db")
    seq = charged[0].entry.seq
    rows(path, "UPDATE dpmerge_entries SET text = replace(text, 'key 0', 'key 9') WHERE seq = ?", seq)
    with Ledger.open(path) as ledger:
        with pytest.raises(LedgerBrokenError, match=f"entry {seq}: is gone or changed"):
            ledger.release(charged[0].release_id)
        assert ledger.verify().broken == seq


def test_releases_are_read_together(tmp_path: Path) -> None:
    """Of twenty thousand, one at a time would be twenty thousand transactions."""
    charged = filled(path := tmp_path / "ledger.db", 20)
    with Ledger.open(path) as ledger:
        asked = list[int]()
        read = ledger._database.read
        ledger._database.read = lambda work: (asked.append(1), read(work))[1]  # type: ignore[method-assign]
        lines = ledger.budget_report(SCOPE, 1e-5).releases
        assert [line.release_id for line in lines] == [charge.release_id for charge in charged]
        assert len(asked) <= 3


def test_locks_and_caps_hold_across_a_snapshot(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with Ledger.open(path) as ledger:
        ledger.set_cap(SCOPE, Cap(epsilon=1.0, delta=1e-5, rule="gaussian_filter"))
        ledger.charge(request([C], "c@1", final=True, theorem="last_step", seen={"c": 1}), first)
    filled(path, 6)
    with Ledger.open(path) as ledger:
        assert "snapshot" in [entry.kind for entry in ledger.entries()]
        with pytest.raises(RunsLockedError, match="c "):
            ledger.charge(request([C], "c@2"), first)
        with pytest.raises(CapExceededError):
            ledger.charge(request([run("f", 0.5)], "f@5"), first)
