"""The tables of a ledger, and how older ones become what they are today.

Guarantees: each migration and the record of it happen in one transaction or not at all; entries are never rewritten.
Refuses (LedgerError): tables made by a newer version, and databases that are something else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import BigInteger, Column, Connection, Integer, MetaData, Table, Text, func, insert, inspect, select

from dpmerge.errors import LedgerError
from dpmerge.ledger.entries import now

METADATA = MetaData()
LEDGER = Table(
    "dpmerge_ledger",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("created", Text, nullable=False),
    Column("head_seq", BigInteger, nullable=False),
    Column("head_hash", Text, nullable=False),
)
ENTRIES = Table(
    "dpmerge_entries",
    METADATA,
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("previous", Text, nullable=False, unique=True),
    Column("hash", Text, nullable=False, unique=True),
    Column("time", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("book", Text, nullable=False),
    Column("text", Text, nullable=False),
)
SNAPSHOTS = Table(
    "dpmerge_snapshots", METADATA, Column("seq", BigInteger, primary_key=True), Column("text", Text, nullable=False)
)
APPLIED = Table(
    "dpmerge_migrations", METADATA, Column("number", Integer, primary_key=True), Column("time", Text, nullable=False)
)


@dataclass(frozen=True)
class Migration:
    """Statements that lead from the version before to this one, for every database alike."""

    number: int
    statements: tuple[str, ...]


MIGRATIONS: tuple[Migration, ...] = (
    Migration(
        1,
        (
            "CREATE TABLE dpmerge_migrations (number INTEGER PRIMARY KEY, time TEXT NOT NULL)",
            "CREATE TABLE dpmerge_ledger (id TEXT PRIMARY KEY, created TEXT NOT NULL, "
            "head_seq BIGINT NOT NULL, head_hash TEXT NOT NULL)",
            # No two entries can follow the same one: the chain cannot fork even if a lock failed.
            "CREATE TABLE dpmerge_entries (seq BIGINT PRIMARY KEY, previous TEXT NOT NULL UNIQUE, "
            "hash TEXT NOT NULL UNIQUE, time TEXT NOT NULL, kind TEXT NOT NULL, book TEXT NOT NULL, "
            "text TEXT NOT NULL)",
        ),
    ),
    Migration(2, ("CREATE TABLE dpmerge_snapshots (seq BIGINT PRIMARY KEY, text TEXT NOT NULL)",)),
)


def version(connection: Connection) -> int:
    """The last migration that was applied; 0 for a database without tables of ours."""
    if not inspect(connection).has_table(APPLIED.name):
        return 0
    return int(connection.execute(select(func.max(APPLIED.c.number))).scalar() or 0)


def require_known(found: int, migrations: Sequence[Migration] = MIGRATIONS) -> None:
    if found > migrations[-1].number:
        raise LedgerError(
            f"the ledger has schema version {found}, made by a newer dpmerge; this one knows up to "
            f"{migrations[-1].number}: install the newer one"
        )


def migrate(connection: Connection, migrations: Sequence[Migration] = MIGRATIONS) -> None:
    """Apply what is missing, inside the transaction of the caller, who has locked the database."""
    found = version(connection)
    require_known(found, migrations)
    for migration in migrations:
        if migration.number > found:
            for statement in migration.statements:
                connection.exec_driver_sql(statement)
            connection.execute(insert(APPLIED).values(number=migration.number, time=now()))
