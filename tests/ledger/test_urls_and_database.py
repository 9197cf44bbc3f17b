"""Where a ledger may be, what is said of places where it may not, and how its tables grow."""

from __future__ import annotations

import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import inspect

from dpmerge.errors import LedgerError, MissingExtraError
from dpmerge.ledger import Ledger, urls
from dpmerge.ledger.database import Database
from dpmerge.ledger.migrations import MIGRATIONS, Migration, version
from ledger.releases import SCOPE, first, request, run

A = run("a")


def not_a_database(folder: Path) -> str:
    (folder / "x").write_bytes(b"certainly not a database " * 100)
    return str(folder / "x")


def something_else(folder: Path) -> str:
    connection = sqlite3.connect(folder / "x")
    connection.execute("CREATE TABLE customers (name TEXT)")
    connection.commit()
    connection.close()
    return str(folder / "x")


BAD: dict[str, tuple[Any, str]] = {
    "no database": (not_a_database, "is not a ledger, or its file is damaged"),
    "another database": (something_else, "is a database of something else .*'customers'"),
    "a folder": (lambda folder: str(folder), "is not a file"),
    "no such folder": (lambda folder: str(folder / "no" / "x"), "cannot be opened as a ledger .No such file"),
    "an unknown scheme": (lambda _: "mysql://somewhere/x", "got scheme 'mysql'; accepted: a path, sqlite:///path or"),
    "a broken address": (lambda _: "postgresql://host:port:port/x", "ledger: got an address of scheme 'postgresql'"),
    "memory": (lambda _: "sqlite:///:memory:", "would be forgotten"),
    "nobody there": (lambda folder: f"postgresql://u:secret@/x?host={folder}", r"postgresql\+psycopg://u:\*\*\*@"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_url_or_file_that_is_no_ledger_is_refused_with_its_reason(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpmerge.ledger.postgresql.RESTART_PATIENCE", 0.2)
    where, expected = BAD[name]
    with pytest.raises(LedgerError, match=expected) as refused:
        Ledger.open(where(tmp_path))
    assert "\n" not in str(refused.value)
    assert "secret" not in str(refused.value)


def test_a_missing_ledger_is_not_created_when_create_is_false(tmp_path: Path, database: str) -> None:
    with pytest.raises(LedgerError, match="there is no ledger"):
        Ledger.open(tmp_path / "x", create=False)
    assert not (tmp_path / "x").exists()
    with pytest.raises(LedgerError, match="there is no ledger"):
        Ledger.open(database, create=False)


def test_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("nfs4", "cifs", "fuse.sshfs"):
        monkeypatch.setattr(urls, "file_system", lambda _, kind=kind: kind)
        with pytest.raises(LedgerError, match=f"is on a network file system .{kind}., where locks cannot be trusted"):
            Ledger.open(tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_the_file_system_is_the_one_of_the_nearest_mount(tmp_path: Path) -> None:
    assert urls.file_system(Path("/proc/x")) == "proc"
    assert urls.file_system(tmp_path / "x") not in (None, "proc")


def test_a_missing_driver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(
        MissingExtraError, match=r'a ledger in PostgreSQL needs psycopg: pip install "dpmerge\[postgres\]"'
    ):
        Ledger.open("postgresql://somewhere/x")


def test_a_locked_sqlite_ledger_fails_after_the_patience(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with Ledger.open(path, patience=0.2) as ledger:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(LedgerError, match="another process has it locked for more than 0.2 s"):
            ledger.charge(request([A], "a@1"), first)
        other.execute("ROLLBACK")
        other.close()
        assert ledger.charge(request([A], "a@1"), first).entry.seq == 2


def test_a_locked_postgresql_ledger_fails_after_the_patience(database: str) -> None:
    with Ledger.open(database, patience=0.3) as one, Ledger.open(database, patience=0.3) as two:

        def while_locked(_: Any) -> int:
            with pytest.raises(LedgerError, match="another process has it locked for more than 0.3 s"):
                two.charge(request([A], "a@1"), first)
            return 0

        assert one.charge(request([A], "a@1"), while_locked).entry.seq == 2
        assert two.head()[0] == 2


def test_a_read_only_ledger_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dpmerge.ledger import database

    path = tmp_path / "x"
    with Ledger.open(path) as ledger:
        ledger.charge(request([A], "a@1"), first)
    prepare = database._prepare_sqlite

    def read_only(connection: sqlite3.Connection, record: Any) -> None:
        prepare(connection, record)
        connection.execute("PRAGMA query_only = ON").close()

    monkeypatch.setattr(database, "_prepare_sqlite", read_only)
    with Ledger.open(path) as ledger:
        assert ledger.head()[0] == 2
        with pytest.raises(LedgerError, match="can be read but not written"):
            ledger.charge(request([A], "a@1"), first)


def test_an_error_while_committing_names_the_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sqlalchemy.engine.default import DefaultDialect
    from sqlalchemy.exc import OperationalError

    with Ledger.open(tmp_path / "x") as ledger:

        def lost(self: Any, connection: Any) -> None:
            connection.commit()
            raise OperationalError("COMMIT", {}, Exception("server closed the connection unexpectedly"))

        with monkeypatch.context() as patched:
            patched.setattr(DefaultDialect, "do_commit", lost)
            with pytest.raises(LedgerError, match=f"whether release {'a' * 32} was charged is not known"):
                ledger.charge(request([A], "a@1"), first, release_id="a" * 32)
        again = ledger.charge(request([A], "a@1"), first, release_id="a" * 32)
        assert (again.already, again.entry.seq) == (True, 2)


# Migrations

NEXT = MIGRATIONS[-1].number + 1
LATER = (*MIGRATIONS, Migration(NEXT, ("ALTER TABLE dpmerge_ledger ADD COLUMN note TEXT",)))
FAILING = (*MIGRATIONS, Migration(NEXT, ("ALTER TABLE dpmerge_ledger ADD COLUMN note TEXT", "SELECT * FROM nowhere")))


def columns(database: Database) -> tuple[int, list[str]]:
    with database.reading() as connection:
        names = [column["name"] for column in inspect(connection).get_columns("dpmerge_ledger")]
        return version(connection), names


def test_an_older_schema_is_migrated(anywhere: str) -> None:
    with Ledger.open(anywhere) as ledger:
        head = ledger.charge(request([A], "a@1"), first).entry
    later = Database.open(anywhere, migrations=LATER)
    assert columns(later)[0] == NEXT
    assert "note" in columns(later)[1]
    later.close()
    with pytest.raises(
        LedgerError, match=f"schema version {NEXT}, made by a newer dpmerge; this one knows up to {NEXT - 1}"
    ):
        Ledger.open(anywhere)
    assert head.seq == 2


def test_a_newer_schema_is_refused_by_who_only_reads(anywhere: str) -> None:
    Database.open(anywhere, migrations=LATER).close()
    with pytest.raises(LedgerError, match=f"schema version {NEXT}, made by a newer dpmerge"):
        Ledger.open(anywhere, create=False)


def test_an_older_ledger_is_read_as_it_is_and_brought_up_to_date_by_who_writes(anywhere: str) -> None:
    older = MIGRATIONS[:1]
    Database.open(anywhere, migrations=older).close()
    with Ledger.open(anywhere, create=False) as ledger:
        assert ledger.verify().ok
        assert ledger.budget_report(SCOPE, 1e-5).release_count == 0
        assert columns(ledger._database)[0] == 1
        ledger.charge(request([A], "a@1"), first)
        assert columns(ledger._database)[0] == MIGRATIONS[-1].number
        assert ledger.verify().ok


def test_reading_an_older_ledger_changes_nothing_of_it(tmp_path: Path) -> None:
    """As an auditor has it, a copy: reading leaves it byte for byte as it was."""
    path = tmp_path / "ledger.db"
    with Ledger.open(path) as ledger:
        ledger.charge(request([A], "a@1"), first)
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TABLE dpmerge_snapshots")
        connection.execute("DELETE FROM dpmerge_migrations WHERE number > 1")
    connection.close()
    before = path.read_bytes()
    with Ledger.open(path, create=False) as ledger:
        assert ledger.verify().ok
        assert ledger.budget_report(SCOPE, 1e-5).release_count == 1
        assert len(ledger.export()["entries"]) == 2
    assert path.read_bytes() == before


def test_a_failed_migration_changes_nothing(anywhere: str) -> None:
    with Ledger.open(anywhere) as ledger:
        ledger.charge(request([A], "a@1"), first)
    with pytest.raises(LedgerError, match="nowhere"):
        Database.open(anywhere, migrations=FAILING)
    database = Database.open(anywhere)
    assert columns(database) == (NEXT - 1, ["id", "created", "head_seq", "head_hash"])
    database.close()
    with Ledger.open(anywhere) as ledger:
        assert ledger.verify().ok
        ledger.charge(request([A], "a@2"), first)
