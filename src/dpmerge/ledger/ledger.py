"""The ledger: what has left the building, charged before it leaves.

Guarantees: a release is checked, charged, drawn and committed in one transaction before `charge` returns; two
processes can never together pass a cap; asking again with the same key gives the same draw.
Refuses: whatever the rules refuse, and a ledger whose chain does not hold.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from sqlalchemy import Connection

from dpmerge.errors import InvalidInput, LedgerBroken, LedgerError
from dpmerge.ledger.capping import adoption_cost, cap_body
from dpmerge.ledger.caps import Cap
from dpmerge.ledger.database import PATIENCE, Database, append, entries_after, hash_at, ledger_row
from dpmerge.ledger.entries import Book, Entry, Kind, canonical, following
from dpmerge.ledger.request import Charged, ChargeRequest, Output
from dpmerge.ledger.rules import Proposal, admit
from dpmerge.ledger.runs import Stated, require_own_book, require_same_runs, require_unlocked_elsewhere
from dpmerge.ledger.standing import Standing, standing
from dpmerge.ledger.state import BookState, Release, State, left_by, stated
from dpmerge.ledger.verification import Verdict, verified
from dpmerge.planning.terms import Terms

SCHEMA = "dpmerge/ledger/v1"
BANNER = "not for release: it names runs that have not been released"
_SAME = ("terms", "identities", "final")


class Ledger:
    """One ledger, in a file or a database; use it in a `with`, or close it."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.RLock()
        with self._database.reading() as connection:
            self.id, _ = ledger_row(connection)
        self._state = State(self.id)

    @classmethod
    def open(
        cls,
        where: str | Path,
        *,
        create: bool = True,
        patience: float = PATIENCE,
        insecure_permissions: bool = False,
    ) -> Ledger:
        """At a path, sqlite:///… or postgresql://…; made if it is not there, unless `create` is False.

        A file that everybody may write to is refused, unless `insecure_permissions`.
        """
        return cls(Database.open(where, create=create, patience=patience, insecure_permissions=insecure_permissions))

    @property
    def where(self) -> str:
        return self._database.where

    def close(self) -> None:
        self._database.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    # Charging

    def charge(
        self, request: ChargeRequest, draw: Callable[[Sequence[int]], int], *, release_id: str | None = None
    ) -> Charged:
        """Check, charge, draw and commit. With a `release_id` of one's own the outcome can be asked for by it.

        If the connection is lost while committing, ask `release(release_id)` or `by_key`, or charge again with the
        same id or key: what was charged is returned, not charged twice.
        """
        release_id = release_id or secrets.token_hex(16)
        entry: Entry | None = None
        try:
            with self._lock, self._database.writing() as connection:
                known, entry = self._charged(connection, request, draw, release_id)
        except LedgerError as error:
            if entry is None:
                raise
            told = f"whether release {release_id} was charged is not known: ask for it, or ask again with the same key"
            raise LedgerError(f"{error}; {told}") from None
        return known.charged(self.id, already=entry is None)

    def _charged(
        self,
        connection: Connection,
        request: ChargeRequest,
        draw: Callable[[Sequence[int]], int],
        release_id: str,
    ) -> tuple[Release, Entry | None]:
        """The release that was known already, or a new one and its entry."""
        state = self._current(connection)
        book = state.books.get(request.book.id) or BookState.of(request.book)
        if (known := self._known(state, book, request, release_id)) is not None:
            return known, None
        body = request.body()
        runs = list(stated(body))
        require_own_book(state, request.book, runs)
        require_same_runs(book, runs)
        proposal = Proposal(request.terms, left_by(body), request.final)
        require_unlocked_elsewhere(state, request.book, proposal.exposures, final=request.final)
        admitted = admit(book.considering(runs), proposal)
        body |= {"release": release_id, "counted": admitted.counted, "cost": admitted.cost}
        body["index"] = _drawn(draw, request.terms.units)
        entry = self._append(connection, state, request.book, "release", body)
        return Release(entry, (), draw_number=book.next_draw(body)), entry

    def _known(self, state: State, book: BookState, request: ChargeRequest, release_id: str) -> Release | None:
        by_id = state.find(release_id)
        by_key = None if request.key is None else book.keys.get(request.key)
        found = by_id or (None if by_key is None else book.releases[by_key])
        if found is None:
            return None
        asked, before = request.body(), found.entry.body
        if differing := [name for name in _SAME if canonical(asked[name]) != canonical(before[name])]:
            field, value = ("request-key", request.key) if by_id is None else ("release", release_id)
            accepted = "another one for another release; this one was used before"
            raise InvalidInput(field, value, accepted, found=f"{value!r} with other {differing[0]}")
        return found

    def seal(self, release_id: str, *, files: Mapping[str, str], certificate: str, where: str) -> None:
        """Note what is about to be published: from now on this release is these bytes, and no others."""
        self._note("sealed", release_id, Output(dict(files), certificate, where))

    def complete(self, release_id: str, *, files: Mapping[str, str], certificate: str, where: str) -> None:
        """Note what was published; saying the same again changes nothing."""
        self._note("completed", release_id, Output(dict(files), certificate, where))

    def _note(self, kind: Kind, release_id: str, output: Output) -> None:
        with self._lock, self._database.writing() as connection:
            state = self._current(connection)
            release = _required(state, release_id)
            noted = release.output is not None and (kind == "sealed" or release.status == "completed")
            if noted and release.output == output:
                return
            if release.status != "pending" or (release.output is not None and release.output != output):
                accepted = "a pending release, or the same output again"
                found = f"{release_id}, which is {'sealed' if release.status == 'pending' else release.status}"
                raise InvalidInput("release", release_id, accepted, found=found)
            body = {
                "release": release_id,
                "files": dict(output.files),
                "certificate": output.certificate,
                "where": output.where,
            }
            self._append(connection, state, state.releases[release_id].book, kind, body)

    def abandon(self, release_id: str, reason: str) -> None:
        """Note that nothing will be written; it stays charged."""
        with self._lock, self._database.writing() as connection:
            state = self._current(connection)
            release = _required(state, release_id)
            if release.status == "abandoned":
                return
            if release.status != "pending":
                found = f"{release_id}, which is {release.status}"
                raise InvalidInput("release", release_id, "a pending release", found=found)
            body = {"release": release_id, "reason": reason}
            self._append(connection, state, state.releases[release_id].book, "abandoned", body)

    def adopt(
        self,
        release_id: str,
        *,
        terms: Terms,
        final: bool,
        identities: Mapping[str, str],
        marks: Mapping[str, str | None],
        index: int | None,
        entry: tuple[int, str],
        files: Mapping[str, str],
        certificate: str,
        signed_by: str | None,
        held: Iterable[Stated] = (),
        where: str = "",
    ) -> None:
        """Count a release whose output proves that it has left, after entries were lost. It is counted even if it
        passes the cap or breaks a lock; without an index every candidate counts as released.

        `signed_by` is the key whose owner vouches for the terms. Without one a certificate may be anybody's, and name a
        cheap run for a costly one that has left: what counts is the joint release of all that is `held` (the runs of
        the portfolio) and of every run of the book, each to its last step.
        """
        request = ChargeRequest(terms=terms, identities=identities, marks=marks, final=final, key=None, details={})
        if index is not None and not 0 <= index < len(terms.candidates):
            raise InvalidInput("index", index, f"an integer from 0 to {len(terms.candidates) - 1}, or None")
        body = request.body()
        with self._lock, self._database.writing() as connection:
            state = self._current(connection)
            known = state.find(release_id)
            if known is not None:
                if any(canonical(body[name]) != canonical(known.entry.body[name]) for name in _SAME):
                    raise LedgerBroken(f"release {release_id} is in the ledger with other terms than its certificate's")
                return
            book = state.books.get(request.book.id) or BookState.of(request.book)
            runs = list(stated(body)) + ([] if signed_by is not None else list(held))
            require_own_book(state, request.book, runs)
            require_same_runs(book, runs)
            if signed_by is not None:
                body["signedBy"] = signed_by
            else:
                index, body["everything"] = None, book.considering(runs).everything()
            proposal = Proposal(terms, left_by(body), final)
            by_theorem = proposal.bounds is not None and index is not None
            body |= {
                "release": release_id,
                "index": index,
                "counted": "theorem" if by_theorem else "joint",
                "cost": 0.0,
            }
            body |= {"entry": list(entry), "files": dict(files), "certificate": certificate, "where": where}
            if book.cap is not None:
                draft = following(self.id, state.head, kind="adopted", book=request.book, body=body)
                release = Release(draft, tuple(map(dict, proposal.exposures)))
                body["cost"] = adoption_cost(book, release)
            self._append(connection, state, request.book, "adopted", body)

    def accept(self, book: Book, why: str) -> None:
        """Note that somebody vouches for this ledger being whole, although it was known to lack entries."""
        with self._lock, self._database.writing() as connection:
            state = self._current(connection)
            self._append(connection, state, book, "accepted", {"why": why})

    def set_cap(self, book: Book, cap: Cap) -> None:
        """Promise that everything that ever leaves of this book keeps within (ε, δ)."""
        with self._lock, self._database.writing() as connection:
            state = self._current(connection)
            found = state.books.get(book.id) or BookState.of(book)
            require_own_book(state, book, [])
            body = cap_body(found, cap)
            self._append(connection, state, book, "cap", body)

    # Asking

    def release(self, release_id: str) -> Charged | None:
        found = self._read().find(release_id)
        return None if found is None else found.charged(self.id)

    def by_key(self, book: Book, key: str) -> Charged | None:
        state = self._read().books.get(book.id)
        if state is None or key not in state.keys:
            return None
        return state.releases[state.keys[key]].charged(self.id)

    def pending(self) -> list[Charged]:
        return [release.charged(self.id) for release in self._read().pending()]

    def books(self) -> list[Book]:
        return [state.book for state in self._read().books.values()]

    def standing(self, book: Book, delta: float) -> Standing:
        """What has left of a book, what it has cost and what is left under its cap."""
        state = self._read()
        others = [other.book for other in state.books.values() if other.book != book]
        found = state.books.get(book.id) or BookState.of(book)
        return standing(found, delta, others)

    def is_capped(self, book: Book) -> bool:
        """Whether something was promised about everything that ever leaves of a book."""
        state = self._read().books.get(book.id)
        return state is not None and state.cap is not None

    def head(self) -> tuple[int, str]:
        """Number and hash of the last entry."""
        return self._read().head

    def contains(self, seq: int, digest: str) -> bool:
        """Whether the ledger has this very entry."""
        with self._database.reading() as connection:
            return hash_at(connection, seq) == digest

    def entries(self) -> Iterator[Entry]:
        with self._database.reading() as connection:
            yield from list(entries_after(connection, 0))

    def verify(self) -> Verdict:
        """Read every entry again, and count every cost again."""
        with self._database.reading() as connection:
            ledger, head = ledger_row(connection)
            entries = list(entries_after(connection, 0))
        return verified(ledger, entries, head)

    def export(self) -> dict[str, Any]:
        """Everything, as JSON values."""
        with self._database.reading() as connection:
            ledger, head = ledger_row(connection)
            entries = [entry.document() for entry in entries_after(connection, 0)]
        return {
            "schema": SCHEMA,
            "banner": BANNER,
            "ledger": ledger,
            "head": {"seq": head[0], "hash": head[1]},
            "entries": entries,
        }

    # The state is kept between calls and only ever caught up, from entries whose chain was checked.

    def _read(self) -> State:
        with self._lock, self._database.reading() as connection:
            return self._current(connection)

    def _current(self, connection: Connection) -> State:
        ledger, head = ledger_row(connection)
        seq, digest = self._state.head
        if ledger != self.id or (seq > 0 and hash_at(connection, seq) != digest):
            raise LedgerBroken(f"{self.where}: entry {seq}, which was there before, is gone or changed")
        try:
            for entry in entries_after(connection, seq):
                self._state.apply(entry)
        except BaseException:
            self._state = State(self.id)
            raise
        if self._state.head != head:
            missing = self._state.head[0] + 1
            self._state = State(self.id)
            raise LedgerBroken(f"{self.where}: entry {missing} is missing; the ledger says that its last is {head[0]}")
        return self._state

    def _append(self, connection: Connection, state: State, book: Book, kind: Kind, body: Mapping[str, Any]) -> Entry:
        """The entry, after one that opens its book if that is new. The state catches up once they are committed."""
        entries: list[Entry] = []
        if book.id not in state.books:
            entries.append(following(self.id, state.head, kind="opened", book=book, body=book.document()))
        head = (entries[-1].seq, entries[-1].hash) if entries else state.head
        entries.append(following(self.id, head, kind=kind, book=book, body=body))
        append(connection, entries)
        return entries[-1]


def _required(state: State, release_id: str) -> Release:
    release = state.find(release_id)
    if release is None:
        raise InvalidInput("release", release_id, "the id of a release in this ledger")
    return release


def _drawn(draw: Callable[[Sequence[int]], int], units: Sequence[int]) -> int:
    index = draw(units)
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < len(units):
        raise LedgerError(f"the draw gave {index!r}; accepted: an integer from 0 to {len(units) - 1}")
    return index
