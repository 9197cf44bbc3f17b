"""The database of a ledger: transactions that exclude one another, and commits that last.

Guarantees: of two writers one waits for the other before it reads, so that neither decides on what the other is about
to change; when a transaction ends without an error it is on disk. SQLite and PostgreSQL behave alike.
Refuses (LedgerError): everything a database can complain of, in one line that names the place.
"""

from __future__ import annotations

import secrets
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, NullPool, create_engine, delete, event, insert, inspect, select, text, update
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError

from dpmerge.errors import LedgerBrokenError, LedgerError, LedgerUnavailableError
from dpmerge.ledger import postgresql
from dpmerge.ledger.entries import BEFORE_THE_FIRST, Entry, now, written
from dpmerge.ledger.migrations import ENTRIES, LEDGER, MIGRATIONS, SNAPSHOTS, Migration, migrate, require_known, version
from dpmerge.ledger.urls import address

PATIENCE = 120.0
"""Seconds to wait for another writer."""

_ADVISORY_LOCK = 0x6470_6D65_7267_65  # "dpmerge": held while tables are made
_WRITES = "dpmerge_writes"
_AT_ONCE = 500  # entries asked for in one statement
_LOCK_SLICE = 5.0
"""Seconds for which one statement waits for another writer."""

Made = TypeVar("Made")


class Database:
    """One ledger's tables, wherever they are."""

    def __init__(self, engine: Engine, where: str, patience: float) -> None:
        self._engine = engine
        self.where = where
        self._patience = patience
        self._missing: Callable[[], None] | None = None  # brings tables of an older version up to date

    @classmethod
    def open(
        cls,
        where: str | Path,
        *,
        create: bool = True,
        patience: float = PATIENCE,
        migrations: Sequence[Migration] = MIGRATIONS,
        insecure_permissions: bool = False,
    ) -> Database:
        url = address(where, create=create, insecure_permissions=insecure_permissions)
        local = url.get_backend_name() == "sqlite"
        # A connection for each transaction: nothing is shared after a fork, and no file stays open.
        if local:
            engine = create_engine(url, poolclass=NullPool, connect_args={"timeout": patience})
            event.listen(engine, "connect", _prepare_sqlite)
            event.listen(engine, "begin", _begin_sqlite)
        else:
            engine = postgresql.engine_of(url)
        shown = url.database if local and url.database else url.render_as_string(hide_password=True)
        database = cls(engine, shown, patience)
        database._prepare(create=create, migrations=migrations)
        return database

    def close(self) -> None:
        self._engine.dispose()

    @property
    def is_sqlite(self) -> bool:
        return self._engine.dialect.name == "sqlite"

    def _prepare(self, *, create: bool, migrations: Sequence[Migration]) -> None:
        def is_current(connection: Connection) -> bool:
            found = version(connection)
            require_known(found, migrations)
            if found == 0 and not create:
                raise LedgerError(f"{self.where}: there is no ledger; name the place of one")
            if found == 0 and self.is_sqlite and (others := inspect(connection).get_table_names()):
                raise LedgerError(f"{self.where}: is a database of something else (it has a table {others[0]!r})")
            return found == migrations[-1].number

        def make_current(connection: Connection) -> None:
            if not self.is_sqlite:
                connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _ADVISORY_LOCK})
            migrate(connection, migrations)
            if connection.execute(select(LEDGER.c.id)).first() is None:
                identity = secrets.token_hex(16)
                first = {"head_seq": 0, "head_hash": BEFORE_THE_FIRST}
                connection.execute(insert(LEDGER).values(id=identity, created=now(), **first))

        def bring_up_to_date() -> None:
            self._again_if_lost(lambda: self._transaction(writes=True), make_current)

        if self.read(is_current):
            return
        if create:
            bring_up_to_date()
        else:  # who only reads may have no right to more, and changes nothing under those who use an older version
            self._missing = bring_up_to_date

    @property
    def is_current(self) -> bool:
        """Whether the tables are those of this version; older ones can be read, and lack snapshots."""
        return self._missing is None

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        with self._transaction(writes=False) as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction that no other writer can be in at the same time; durable when it ends."""
        if self._missing is not None:
            self._missing()
            self._missing = None
        with self._transaction(writes=True) as connection:
            if not self.is_sqlite:
                # Locked before anything is read: what is read afterwards is what the writer before has left.
                self._lock_postgresql(connection)
            yield connection

    def _lock_postgresql(self, connection: Connection) -> None:
        """Wait for other writers, asking anew every few seconds: a wait is not a server that does not answer."""
        deadline = time.monotonic() + self._patience
        while True:
            left = max(0.001, deadline - time.monotonic())
            connection.execute(text(f"SET LOCAL lock_timeout = {int(1000 * min(left, _LOCK_SLICE)) or 1}"))
            try:
                with connection.begin_nested():
                    connection.execute(text("SELECT id FROM dpmerge_ledger FOR UPDATE"))
                return
            except DBAPIError as error:
                if not _is_busy(error) or time.monotonic() > deadline:
                    raise

    def attempt(self, work: Callable[[Connection], Made]) -> Made:
        """Do something in a transaction of a writer, again if the server went away while it was done.

        For what has the same effect done twice as once: it may have been committed the first time.
        """
        return self._again_if_lost(self.writing, work)

    def read(self, work: Callable[[Connection], Made]) -> Made:
        """Read something at one moment, again if the server went away meanwhile."""
        return self._again_if_lost(self.reading, work)

    def _again_if_lost(
        self, transaction: Callable[[], AbstractContextManager[Connection]], work: Callable[[Connection], Made]
    ) -> Made:
        deadline = time.monotonic() + postgresql.RESTART_PATIENCE
        while True:
            try:
                with transaction() as connection:
                    return work(connection)
            except LedgerUnavailableError as error:
                if not error.lost or time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    @contextmanager
    def _transaction(self, *, writes: bool) -> Iterator[Connection]:
        info: dict[Any, Any] = {}
        made = False
        try:
            with self._engine.connect() if self.is_sqlite else postgresql.connected(self._engine) as plain:
                info, made = plain.info, True
                options: dict[str, Any] = {_WRITES: writes}
                if not self.is_sqlite:
                    # A reader sees one moment; a writer, once it has the lock, sees what the writer before has left.
                    options["isolation_level"] = "READ COMMITTED" if writes else "REPEATABLE READ"
                connection = plain.execution_options(**options)
                with self._begun(connection):
                    if writes and not self.is_sqlite:
                        _prepare_postgresql(connection)
                    yield connection
        except SQLAlchemyError as error:
            explained = self._explained(error, silent=bool(info.get(postgresql.SILENT)))
            # Of a server that takes no connection, `connected` has waited long enough.
            if isinstance(explained, LedgerUnavailableError):
                explained.lost &= made
            raise explained from None

    @contextmanager
    def _begun(self, connection: Connection) -> Iterator[None]:
        deadline = time.monotonic() + self._patience
        while True:
            try:
                transaction = connection.begin()
                break
            except DBAPIError as error:
                # SQLite gives up at once where waiting could be a deadlock, such as beside a crashed writer's journal.
                if not _is_busy(error) or time.monotonic() > deadline:
                    raise
                connection.rollback()
                time.sleep(0.01)
        with transaction:
            yield

    def _explained(self, error: SQLAlchemyError, *, silent: bool = False) -> LedgerError:
        said = " ".join(str(getattr(error, "orig", None) or error).split())[:300]
        if silent:
            return LedgerUnavailableError(
                f"{self.where}: did not answer for {postgresql.ANSWER_TIMEOUT} s; see whether the server is well, then "
                "ask the ledger what it has"
            )
        if isinstance(error, IntegrityError):
            return LedgerBrokenError(f"{self.where}: an entry would fork the chain ({said})")
        if isinstance(error, DBAPIError) and _is_busy(error):
            locked = f"another process has it locked for more than {self._patience:g} s; try again when it is done"
            return LedgerUnavailableError(f"{self.where}: {locked}")
        if "readonly" in said or "read-only" in said:
            return LedgerUnavailableError(
                f"{self.where}: can be read but not written; a release must be charged before it is made"
            )
        if "not a database" in said or "malformed" in said:
            return LedgerError(f"{self.where}: is not a ledger, or its file is damaged ({said})")
        if "permission denied" in said or "row-level security" in said:
            return LedgerUnavailableError(
                f"{self.where}: this database role may not do that ({said}); docs/how-to/team-ledger.md says which may"
            )
        unavailable = LedgerUnavailableError(f"{self.where}: {said}")
        unavailable.lost = isinstance(error, DBAPIError) and not self.is_sqlite and postgresql.is_restarting(error)
        return unavailable


def role_of(connection: Connection) -> str | None:
    """Who has logged in, by the database's own word; None where there is no such thing."""
    if connection.dialect.name == "sqlite":
        return None
    return str(connection.execute(text("SELECT session_user")).scalar())


def time_of(connection: Connection) -> str:
    """Now: by the server's clock where there is one, which nobody who writes to the ledger can put back."""
    if connection.dialect.name == "sqlite":
        return now()
    found: datetime = connection.execute(text("SELECT clock_timestamp()")).scalar_one()
    return written(found)


def ledger_row(connection: Connection) -> tuple[str, tuple[int, str]]:
    """The ledger's id and its head."""
    rows = connection.execute(select(LEDGER.c.id, LEDGER.c.head_seq, LEDGER.c.head_hash)).all()
    if len(rows) != 1:
        raise LedgerBrokenError(f"the ledger says {len(rows)} times what it is, and not once")
    return rows[0][0], (rows[0][1], rows[0][2])


def entries_after(connection: Connection, seq: int) -> Iterator[Entry]:
    """In the order of their numbers."""
    columns = (ENTRIES.c.seq, ENTRIES.c.previous, ENTRIES.c.hash, ENTRIES.c.time, ENTRIES.c.kind, ENTRIES.c.book)
    query = select(*columns, ENTRIES.c.text).where(ENTRIES.c.seq > seq).order_by(ENTRIES.c.seq)
    for row in connection.execute(query):
        yield Entry(**row._mapping)


def entries_of(connection: Connection, kinds: Sequence[str]) -> Iterator[Entry]:
    """Those of some kinds; whether their chain holds is not asked."""
    for row in connection.execute(select(ENTRIES).where(ENTRIES.c.kind.in_(kinds)).order_by(ENTRIES.c.seq)):
        yield Entry(**row._mapping)


def entries_at(connection: Connection, ledger: str, numbers: Sequence[int]) -> dict[int, Entry]:
    """Entries by themselves, each of which has its own hash, and which the next one follows."""
    wanted = sorted({number for each in numbers for number in (each, each + 1)})
    found: dict[int, Entry] = {}
    for begun in range(0, len(wanted), _AT_ONCE):
        query = select(ENTRIES).where(ENTRIES.c.seq.in_(wanted[begun : begun + _AT_ONCE]))
        found |= {row.seq: Entry(**row._mapping) for row in connection.execute(query)}
    head = ledger_row(connection)[1]
    for number in numbers:
        entry = found.get(number)
        if entry is None or entry.sealed_by(ledger) != entry.hash:
            raise LedgerBrokenError(f"entry {number}: is gone or changed")
        after = found.get(number + 1)
        if after.previous != entry.hash if after is not None else head != (number, entry.hash):
            raise LedgerBrokenError(f"entry {number}: the entry after it follows another one")
    return {number: found[number] for number in numbers}


def snapshot(connection: Connection) -> tuple[int, str] | None:
    """The newest snapshot, and the number of the entry that sealed it."""
    row = connection.execute(select(SNAPSHOTS).order_by(SNAPSHOTS.c.seq.desc()).limit(1)).first()
    return None if row is None else (row.seq, row.text)


def keep_snapshot(connection: Connection, seq: int, content: str) -> None:
    """This one, and no other."""
    connection.execute(delete(SNAPSHOTS))
    connection.execute(insert(SNAPSHOTS).values(seq=seq, text=content))


def hash_at(connection: Connection, seq: int) -> str | None:
    return connection.execute(select(ENTRIES.c.hash).where(ENTRIES.c.seq == seq)).scalar()


def append(connection: Connection, entries: Sequence[Entry]) -> None:
    """New entries and the head they make."""
    for entry in entries:
        columns = {name: getattr(entry, name) for name in ("seq", "previous", "hash", "time", "kind", "book", "text")}
        connection.execute(insert(ENTRIES).values(**columns))
    connection.execute(update(LEDGER).values(head_seq=entries[-1].seq, head_hash=entries[-1].hash))


def _prepare_sqlite(connection: sqlite3.Connection, _: Any) -> None:
    # The driver's own transactions begin late and unlocked; ours are begun by hand.
    connection.isolation_level = None
    # EXTRA: the folder is synchronised too, or a power failure could bring a journal back and undo a commit.
    connection.execute("PRAGMA synchronous = EXTRA").close()


def _begin_sqlite(connection: Connection) -> None:
    writes = connection.get_execution_options().get(_WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _prepare_postgresql(connection: Connection) -> None:
    if connection.execute(text("SHOW synchronous_commit")).scalar() in ("off", "local"):
        connection.execute(text("SET LOCAL synchronous_commit = on"))


def _is_busy(error: DBAPIError) -> bool:
    said = str(error.orig)
    return "locked" in said or "lock timeout" in said
