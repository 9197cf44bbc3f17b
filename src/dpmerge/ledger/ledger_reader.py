"""Reading a ledger: what was released, what it has cost, whether it holds.

Guarantees: whatever is answered follows from entries whose chain was checked; a ledger that was changed or cut short
while it was open is noticed when it is asked next.
Refuses (LedgerBrokenError): a ledger whose chain does not hold.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sqlalchemy import Connection

from dpmerge.errors import InvalidInputError, LedgerBrokenError
from dpmerge.ledger.approval_policy import Policy
from dpmerge.ledger.approvals import Request
from dpmerge.ledger.budget_report import BudgetReport, budget_report
from dpmerge.ledger.chain_verification import Verdict, verified
from dpmerge.ledger.charge import Charge
from dpmerge.ledger.database import (
    PATIENCE,
    Database,
    entries_after,
    entries_at,
    entries_of,
    hash_at,
    ledger_row,
    snapshot,
)
from dpmerge.ledger.entries import BudgetScope, Entry, now
from dpmerge.ledger.ledger_schema import LEDGER_SCHEMA
from dpmerge.ledger.snapshots import restored
from dpmerge.ledger.state import State
from dpmerge.ledger.waiting_requests import SHOWN, WaitingRequest

BANNER = "not for release: it names runs that have not been released"
LEAST_DIGITS = 12
"""Of a request's id: fewer could be met on purpose by another request."""


class LedgerReader:
    """One ledger, in a file or a database, and what can be asked of it; use it in a `with`, or close it."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.RLock()
        self.id, _ = self._database.read(ledger_row)
        self._state = State(self.id)

    @classmethod
    def open(
        cls,
        where: str | Path,
        *,
        create: bool = True,
        patience: float = PATIENCE,
        insecure_permissions: bool = False,
    ) -> Self:
        """At a path, sqlite:///… or postgresql://…; made if it is not there, unless `create` is False.

        A file that everybody may write to is refused, unless `insecure_permissions`.
        """
        return cls(Database.open(where, create=create, patience=patience, insecure_permissions=insecure_permissions))

    @property
    def where(self) -> str:
        return self._database.where

    def close(self) -> None:
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def release(self, release_id: str) -> Charge | None:
        found = self._read().find(release_id)
        return None if found is None else replace(found, ledger=self.id)

    def by_key(self, scope: BudgetScope, key: str) -> Charge | None:
        state = self._read().of(scope)
        return replace(state.releases[state.keys[key]], ledger=self.id) if key in state.keys else None

    def pending(self) -> list[Charge]:
        return [replace(charge, ledger=self.id) for charge in self._read().pending()]

    def places(self) -> set[str]:
        """Where outputs were, or were about to be, published."""
        entries = self._database.read(lambda connection: list(entries_of(connection, ("sealed", "completed"))))
        pending = (charge.details.get("out") for charge in self.pending())
        return {str(entry.body["where"]) for entry in entries} | {str(out) for out in pending if out is not None}

    def scopes(self) -> list[BudgetScope]:
        return [each.scope for each in self._read().scopes.values()]

    def budget_report(self, scope: BudgetScope, delta: float, *, newest: int | None = None) -> BudgetReport:
        """What was released in a scope (so many of the newest, or all), what it has cost, what is left of its cap."""
        state = self._read()
        others = [other.scope for other in state.scopes.values() if other.scope != scope]
        return budget_report(state.of(scope), delta, others, newest=newest)

    def policy(self) -> Policy:
        """Who must agree to what cannot be taken back; one that asks for nobody if none was set."""
        return self._read().approvals.policy

    def requests(self) -> list[WaitingRequest]:
        """What is open: it waits for approval, or to be carried out."""
        approvals = self._read().approvals
        found = [each for each in approvals.open.values() if not approvals.is_expired(each, now())]
        entries = self._entries_at([each.seq for each in found]) if found else {}
        return [WaitingRequest.of(approvals, each, entries[each.seq]) for each in found]

    def request(self, start: str) -> WaitingRequest:
        """One that is open, by the beginning of its id."""
        state = self._read()
        found = open_request(state, start)
        return WaitingRequest.of(state.approvals, found, self._entries_at([found.seq])[found.seq])

    def is_capped(self, scope: BudgetScope) -> bool:
        """Whether something was promised about everything that is ever released in a scope."""
        return self._read().of(scope).cap is not None

    def head(self) -> tuple[int, str]:
        """Number and hash of the last entry."""
        return self._read().head

    def contains(self, seq: int, digest: str) -> bool:
        """Whether the ledger has this very entry."""
        return self._database.read(lambda connection: hash_at(connection, seq)) == digest

    def entries(self) -> Iterator[Entry]:
        yield from self._everything()[2]

    def verify(self) -> Verdict:
        """Read every entry again, and count every cost again."""
        ledger, head, entries = self._everything()
        return verified(ledger, entries, head)

    def export(self) -> dict[str, Any]:
        """Everything, as JSON values."""
        ledger, head, entries = self._everything()
        return {
            "schema": LEDGER_SCHEMA,
            "banner": BANNER,
            "ledger": ledger,
            "head": {"seq": head[0], "hash": head[1]},
            "entries": [entry.document() for entry in entries],
        }

    def _everything(self) -> tuple[str, tuple[int, str], list[Entry]]:
        """The ledger's id, its head and all entries, at one moment."""
        return self._database.read(lambda connection: (*ledger_row(connection), list(entries_after(connection, 0))))

    # The state is kept between calls and only ever caught up, from entries whose chain was checked.

    def _read(self) -> State:
        with self._lock:
            return self._database.read(self._current)

    def _from_snapshot(self, connection: Connection) -> State | None:
        """The state as the newest snapshot has it; None where every entry has to be read."""
        found = snapshot(connection) if self._database.is_current else None
        if found is None:
            return None
        seq, text = found
        try:
            return restored(self.id, entries_at(connection, self.id, [seq])[seq], text, self._entries_at)
        except LedgerBrokenError:
            return None  # reading every entry says what is wrong

    def _entries_at(self, numbers: Sequence[int]) -> dict[int, Entry]:
        return self._database.read(lambda connection: entries_at(connection, self.id, numbers))

    def _current(self, connection: Connection) -> State:
        ledger, head = ledger_row(connection)
        seq, digest = self._state.head
        if ledger != self.id or (seq > 0 and hash_at(connection, seq) != digest):
            raise LedgerBrokenError(f"{self.where}: entry {seq}, which was there before, is gone or changed")
        if seq == 0 and (known := self._from_snapshot(connection)) is not None:
            self._state, seq = known, known.head[0]
        try:
            for entry in entries_after(connection, seq):
                self._state.apply(entry)
        except BaseException:
            self._state = State(self.id)
            raise
        if self._state.head != head:
            missing = self._state.head[0] + 1
            self._state = State(self.id)
            raise LedgerBrokenError(
                f"{self.where}: entry {missing} is missing; the ledger says that its last is {head[0]}"
            )
        return self._state


def open_request(state: State, start: str) -> Request:
    """The open request whose id begins so."""
    found = [each for each in state.approvals.open.values() if each.hash.startswith(start)]
    if len(start) < LEAST_DIGITS or len(found) != 1:
        ids = ", ".join(each[:SHOWN] for each in state.approvals.open) or "there is none"
        raise InvalidInputError("request", start, f"{LEAST_DIGITS} digits or more of an open request: {ids}")
    return found[0]
