"""A ledger that was tampered with says so, and names the first entry that does not hold."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dpmerge.errors import LedgerBrokenError
from dpmerge.ledger import Cap, Ledger, Output
from dpmerge.ledger.entries import Entry, canonical, seal
from ledger.releases import SCOPE, drawing, first, request, run

A, B = run("a", 40.0), run("b", 20.0)
KINDS = ["opened", "cap", "release", "completed", "release", "abandoned", "release", "adopted", "cap", "sealed"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A ledger with every kind of entry."""
    path = tmp_path / "ledger.db"
    with Ledger.open(path) as ledger:
        ledger.set_cap(SCOPE, Cap(epsilon=2.0, delta=1e-5, rule="renyi_filter", order=8.0))
        one = ledger.charge(request([A, B], "a@2", "b@1", key="k"), drawing(1))
        ledger.complete(one.release_id, files={"m": "0" * 64}, certificate="1" * 64, where="/out")
        two = ledger.charge(request([A], "a@3"), first)
        ledger.abandon(two.release_id, "no reason")
        three = ledger.charge(request([A], "a@1", "a@5"), first)
        lost = request([A, B], "a@4")
        ledger.adopt(
            "f" * 32,
            lost,
            output=Output({}, "3" * 64, ""),
            entry=(9, "2" * 64),
            index=0,
            signed_by="6" * 64,
        )
        ledger.set_cap(SCOPE, Cap(epsilon=2.5, delta=1e-5, rule="renyi_filter", order=8.0))
        ledger.seal(three.release_id, files={"m": "4" * 64}, certificate="5" * 64, where="/three")
        assert [entry.kind for entry in ledger.entries()] == KINDS
        assert ledger.verify().ok
    return path


def change(path: Path, statement: str, *values: object) -> None:
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(statement, values)
    connection.close()


def broken_at(path: Path) -> tuple[int | None, str]:
    with Ledger.open(path) as ledger:
        verdict = ledger.verify()
        assert verdict.ok == (verdict.broken is None)
        if not verdict.ok:
            with pytest.raises(LedgerBrokenError):
                ledger.charge(request([A], "a@1"), first)
        return verdict.broken, str(verdict.why)


@pytest.mark.parametrize("seq", range(1, len(KINDS) + 1), ids=KINDS)
@pytest.mark.parametrize("column", ["seq", "previous", "hash", "time", "kind", "book", "text"])
def test_a_change_in_any_column_of_any_entry_fails_verification(path: Path, seq: int, column: str) -> None:
    changed: dict[str, object] = {
        "seq": seq + 100,
        "previous": "e" * 64,
        "hash": "d" * 64,
        "time": "2001-01-01T00:00:00.000Z",
        "kind": "abandoned" if KINDS[seq - 1] != "abandoned" else "completed",
        "book": "c" * 64,
    }
    if column == "text":
        change(path, "UPDATE dpmerge_entries SET text = text || ' ' WHERE seq = ?", seq)
    else:
        change(path, f"UPDATE dpmerge_entries SET {column} = ? WHERE seq = ?", changed[column], seq)  # noqa: S608
    assert broken_at(path)[0] == seq


@pytest.mark.parametrize("seq", range(1, len(KINDS) + 1))
def test_a_deleted_entry_fails_verification(path: Path, seq: int) -> None:
    change(path, "DELETE FROM dpmerge_entries WHERE seq = ?", seq)
    assert broken_at(path)[0] == seq


def test_swapped_entries_fail_verification(path: Path) -> None:
    for old, new in ((5, 500), (3, 5), (500, 3)):
        change(path, "UPDATE dpmerge_entries SET seq = ? WHERE seq = ?", new, old)
    assert broken_at(path)[0] == 3


def test_an_inserted_entry_fails_verification(path: Path) -> None:
    columns = "previous, hash, time, kind, book, text"
    change(
        path,
        f"INSERT INTO dpmerge_entries (seq, {columns}) "  # noqa: S608
        "SELECT 11, hash, 'x' || substr(hash, 2), time, kind, book, text FROM dpmerge_entries WHERE seq = 10",
    )
    assert broken_at(path)[0] == 11


def test_another_ledger_id_breaks_the_first_entry(path: Path) -> None:
    change(path, "UPDATE dpmerge_ledger SET id = ?", "0" * 32)
    assert broken_at(path)[0] == 1


def test_a_head_put_back_to_an_older_entry_fails_verification(path: Path) -> None:
    change(path, "UPDATE dpmerge_ledger SET head_seq = 8")
    broken, why = broken_at(path)
    assert broken is not None
    assert "its last entry is 8" in why


# Whoever can compute hashes can seal again; the costs are counted again all the same.


def sealed_again(path: Path, edit: Callable[[int, dict[str, Any]], None]) -> None:
    """Edit bodies and make the chain whole again, as somebody with the code could."""
    with Ledger.open(path) as ledger:
        entries, identity = list(ledger.entries()), ledger.id
    previous = entries[0].previous
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("DELETE FROM dpmerge_entries")
        for entry in entries:
            body = json.loads(entry.text)
            edit(entry.seq, body)
            made = _resealed(identity, entry, previous, canonical(body))
            row = (made.seq, made.previous, made.hash, made.time, made.kind, made.book, made.text)
            connection.execute("INSERT INTO dpmerge_entries VALUES (?, ?, ?, ?, ?, ?, ?)", row)
            previous = made.hash
        connection.execute("UPDATE dpmerge_ledger SET head_hash = ?", (previous,))
    connection.close()


def _resealed(ledger: str, entry: Entry, previous: str, text: str) -> Entry:
    digest = seal(ledger, entry.seq, previous, entry.time, entry.kind, entry.book, text)
    columns = {"seq": entry.seq, "time": entry.time, "kind": entry.kind, "book": entry.book}
    return Entry(**columns, previous=previous, hash=digest, text=text)


def edits() -> dict[str, tuple[int, Callable[[dict[str, Any]], None]]]:
    def halved(body: dict[str, Any]) -> None:
        body["cost"] /= 2

    def nothing_spent(body: dict[str, Any]) -> None:
        body["spent_before"] = 0.0

    def by_theorem(body: dict[str, Any]) -> None:
        body["counted"] = "theorem"

    def less_seen(body: dict[str, Any]) -> None:
        body["terms"]["candidates"][0]["seen"][0]["step"] = 1

    def quieter(body: dict[str, Any]) -> None:
        body["terms"]["runs"][0]["mechanism"]["blocks"][0]["noise_multiplier"] = 4000.0

    def beyond(body: dict[str, Any]) -> None:
        body["index"] = 7

    def looser(body: dict[str, Any]) -> None:
        body["order"] = 9.0

    def earlier(body: dict[str, Any]) -> None:
        body["releases_before"] = 0

    def dearer(body: dict[str, Any]) -> None:
        body["terms"]["runs"][0]["mechanism"]["blocks"][0]["noise_multiplier"] = 0.5

    def spent_twice(body: dict[str, Any]) -> None:
        body["spentBefore"] = 0.0

    def noise_twice(body: dict[str, Any]) -> None:
        body["terms"]["candidates"][0]["releaseNoise"] = 1.0

    return {
        "what was spent before, in two spellings": (9, spent_twice),
        "release noise in two spellings": (5, noise_twice),
        "a smaller cost": (3, halved),
        "a smaller cost of what was adopted": (8, halved),
        "nothing spent before the cap": (9, nothing_spent),
        "another way of counting": (3, by_theorem),
        "less seen than it is made of": (5, less_seen),
        "another record of the run": (5, quieter),
        "a candidate that is not there": (5, beyond),
        "another order": (9, looser),
        "fewer releases before": (9, earlier),
        "a release that passes the cap": (3, dearer),
    }


@pytest.mark.parametrize("name", edits())
def test_a_wrong_figure_in_a_resealed_chain_fails_verification(path: Path, name: str) -> None:
    seq, edit = edits()[name]
    sealed_again(path, lambda number, body: edit(body) if number == seq else None)
    with Ledger.open(path) as ledger:
        assert ledger.verify().broken == seq


def test_a_chain_resealed_without_edits_verifies(path: Path) -> None:
    sealed_again(path, lambda number, body: None)
    with Ledger.open(path) as ledger:
        assert ledger.verify().ok


def test_the_hash_of_an_entry_is_the_documented_formula(path: Path) -> None:
    import hashlib

    with Ledger.open(path) as ledger:
        exported = ledger.export()
    for entry in exported["entries"]:
        content = [exported["ledger"], *(entry[c] for c in ("seq", "previous", "time", "kind", "book", "body"))]
        text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        assert hashlib.sha256(text.encode()).hexdigest() == entry["hash"]
