"""What the entries of a ledger add up to: runs, high-water marks, locks, keys, pending releases, caps.

Guarantees: the state is a fold of the entries and of nothing else; the same entries always give the same state.
Refuses (LedgerBroken): entries that do not follow one another, whose hash is not theirs, or that contradict the ones
before them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from dpmerge.documents import validated
from dpmerge.errors import InvalidInput, LedgerBroken
from dpmerge.ledger.entries import BEFORE_THE_FIRST, KINDS, Book, Entry, canonical
from dpmerge.ledger.pricing import Prices, joined, raise_mark
from dpmerge.ledger.request import Charged, Output, Status, charged
from dpmerge.planning.terms import Terms
from dpmerge.portfolio.statement import RunStatement


@dataclass(frozen=True)
class KnownRun:
    """A run a book has heard of: its statement names parents by identity, so that it means the same everywhere."""

    identity: str
    name: str
    statement: Mapping[str, Any]
    mark: str | None


@dataclass
class Release:
    """One charge and what became of it."""

    entry: Entry
    exposures: tuple[dict[str, int], ...]
    status: Status = "pending"
    output: Output | None = None
    """Once it is sealed: what will be, or was, published."""
    draw_number: int | None = None
    """How often these candidates were drawn from, this one included; None where nothing is drawn."""

    @property
    def id(self) -> str:
        return str(self.entry.body["release"])

    @cached_property
    def terms(self) -> Terms:
        """Validated as any document, whatever was stored."""
        return validated(Terms, self.entry.body["terms"], f"the terms of entry {self.entry.seq}")

    @property
    def exposed(self) -> dict[str, int]:
        """What is known to have left: of the drawn candidate, or of every one if nobody knows which."""
        index = self.entry.body["index"]
        return joined(*self.exposures) if index is None else self.exposures[index]

    def charged(self, ledger: str, *, already: bool = False) -> Charged:
        return charged(
            self.entry, ledger, status=self.status, output=self.output, draw_number=self.draw_number, already=already
        )


@dataclass
class BookState:
    """All that is known of one book."""

    book: Book
    prices: Prices
    runs: dict[str, KnownRun] = field(default_factory=dict)
    releases: dict[str, Release] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    draws: dict[str, int] = field(default_factory=dict)
    """Candidates → how often they were drawn from."""
    high_water: dict[str, int] = field(default_factory=dict)
    """Of everything that is counted as joint release."""
    exposed: dict[str, int] = field(default_factory=dict)
    """Of everything, releases counted by their own theorem included."""
    seen_in: dict[str, str] = field(default_factory=dict)
    """Run → the release that first exposed it."""
    locks: dict[str, str] = field(default_factory=dict)
    finals: dict[str, frozenset[str]] = field(default_factory=dict)
    """Releases counted by their own theorem → the runs they locked."""
    cap: dict[str, Any] | None = None
    spent: float = 0.0
    """In the currency of the cap's rule, what does not follow from the high-water mark."""
    uncharged: list[str] = field(default_factory=list)
    """Releases whose cost does not cover how they were chosen."""
    validation: float = 0.0
    """Σ ε of private validations whose people may be in the training set too."""
    validation_apart: float = 0.0
    """Σ ε of those of which somebody vouches that they are not."""
    accepted: int = 0
    """How often somebody vouched that the ledger is whole, after it was seen that it was not."""
    conflict: str | None = None
    """Why the cap can no longer be vouched for, after a restored backup."""

    @classmethod
    def of(cls, book: Book) -> BookState:
        return cls(book, Prices(book.adjacency))

    def considering(self, runs: Iterable[tuple[str, Mapping[str, Any], str | None]]) -> BookState:
        """The book with further runs known to it, so that they can be priced; this one stays as it is."""
        wider = replace(self, runs=dict(self.runs), prices=self.prices.considering())
        for identity, statement, mark in runs:
            wider._know(identity, statement, mark)
        return wider

    def everything(self) -> list[dict[str, Any]]:
        """Every run of the book in its whole length, as an entry states it."""
        return [
            {
                "identity": identity,
                "step": self.prices.mechanism(identity).steps,
                "statement": dict(known.statement),
                "mark": known.mark,
            }
            for identity, known in sorted(self.runs.items())
        ]

    def apply(self, entry: Entry) -> None:
        body = entry.body
        if entry.kind == "cap":
            for run in body["ceiling"]:
                self._know(run["identity"], run["statement"], run["mark"])
            self.cap, self.spent = body, body["spentBefore"]
        elif entry.kind in ("release", "adopted"):
            self._charge(entry)
        elif entry.kind in ("sealed", "completed"):
            release = self._pending(body["release"], entry)
            output = Output(body["files"], body["certificate"], body["where"])
            if release.output is not None and (entry.kind == "sealed" or release.output != output):
                raise LedgerBroken(f"entry {entry.seq}: {entry.kind} of {release.id}, which was sealed otherwise")
            release.output = output
            release.status = "completed" if entry.kind == "completed" else release.status
        elif entry.kind == "abandoned":
            self._pending(body["release"], entry).status = "abandoned"
        elif entry.kind == "accepted":
            self.accepted += 1

    def _pending(self, release_id: str, entry: Entry) -> Release:
        release = self.releases.get(release_id)
        if release is None or release.status != "pending":
            raise LedgerBroken(f"entry {entry.seq}: {entry.kind} of {release_id}, which is not pending")
        return release

    def _know(self, identity: str, statement: Mapping[str, Any], mark: str | None) -> None:
        known = self.runs.get(identity)
        if known is None:
            self.runs[identity] = KnownRun(identity, statement["run"], statement, mark)
            self.prices.state(identity, RunStatement.model_validate(dict(statement)))
        elif known.mark is None and mark is not None:
            self.runs[identity] = KnownRun(identity, known.name, known.statement, mark)

    def _charge(self, entry: Entry) -> None:
        body = entry.body
        release = Release(entry, left_by(body), draw_number=self.next_draw(body))
        if release.id in self.releases:
            raise LedgerBroken(f"entry {entry.seq}: release {release.id} was charged before")
        for identity, statement, mark in stated(body):
            self._know(identity, statement, mark)
        touched = frozenset(joined(*release.exposures))
        self._void(touched, entry)
        again = sorted(touched & self.exposed.keys()) if body["final"] else []
        if again:
            self.conflict = f"final release {release.id} is of runs that were seen before"
        left = release.exposed
        if body["counted"] == "theorem" and body["index"] is not None and not again and not touched & self.locks.keys():
            self.finals[release.id] = touched
        else:
            raise_mark(self.high_water, left)
        raise_mark(self.exposed, left)
        for identity in left:
            self.seen_in.setdefault(identity, release.id)
        if body["final"]:
            for identity in joined(*exposures(body["terms"], body["identities"])):
                self.locks.setdefault(identity, release.id)
        self.releases[release.id] = release
        if body["key"] is not None:
            self.keys.setdefault(body["key"], release.id)
        if body["cost"] is None:
            self.conflict = f"release {release.id} was adopted, and its rule has no number for it"
        else:
            self.spent += body["cost"]
        self._count_choice(release, body["terms"])
        if entry.kind == "adopted":
            release.status = "completed"
            release.output = Output(body["files"], body["certificate"], body["where"])

    def next_draw(self, body: Mapping[str, Any]) -> int | None:
        """Which draw from its candidates a release is; one candidate alone is not drawn."""
        return None if len(body["terms"]["candidates"]) == 1 else self.draws.get(candidates_key(body), 0) + 1

    def _count_choice(self, release: Release, terms: Mapping[str, Any]) -> None:
        if release.draw_number is not None:
            self.draws[candidates_key(release.entry.body)] = release.draw_number
        if terms["choice"]["kind"] == "uncharged":
            self.uncharged.append(release.id)
        if validation := terms.get("validation"):
            if validation.get("disjointVouchedBy") is None:
                self.validation += validation["epsilon"]
            else:
                self.validation_apart += validation["epsilon"]

    def _void(self, touched: frozenset[str], entry: Entry) -> None:
        """A theorem whose runs were seen again says nothing any more: what it priced counts as joint release."""
        for final, runs in list(self.finals.items()):
            if touched & runs:
                del self.finals[final]
                raise_mark(self.high_water, self.releases[final].exposed)
                self.conflict = f"runs that release {final} had locked were seen again in entry {entry.seq}"


@dataclass
class State:
    """A whole ledger, up to its head."""

    ledger: str
    head: tuple[int, str] = (0, BEFORE_THE_FIRST)
    books: dict[str, BookState] = field(default_factory=dict)
    releases: dict[str, BookState] = field(default_factory=dict)
    """Release → its book."""

    def apply(self, entry: Entry) -> None:
        """The next entry, its seal checked."""
        require_next(self.ledger, self.head, entry)
        try:
            self._apply(entry)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, InvalidInput) as error:
            raise LedgerBroken(f"entry {entry.seq}: its body is not what its kind has ({error!r})") from None
        self.head = (entry.seq, entry.hash)

    def _apply(self, entry: Entry) -> None:
        if entry.kind == "opened":
            book = Book(**entry.body)
            if book.id != entry.book or book.id in self.books:
                raise LedgerBroken(f"entry {entry.seq}: opens a book that is open, or another one than it says")
            self.books[book.id] = BookState.of(book)
            return
        if entry.book not in self.books:
            raise LedgerBroken(f"entry {entry.seq}: of a book that was never opened")
        state = self.books[entry.book]
        if entry.kind in ("release", "adopted"):
            if entry.body["release"] in self.releases:
                raise LedgerBroken(f"entry {entry.seq}: release {entry.body['release']} was charged before")
            terms = entry.body["terms"]
            if Book(terms["dataset"], terms["unit"], terms["adjacency"]) != state.book:
                raise LedgerBroken(f"entry {entry.seq}: its terms are of another book")
        state.apply(entry)
        if entry.kind in ("release", "adopted"):
            self.releases[entry.body["release"]] = state

    def find(self, release_id: str) -> Release | None:
        book = self.releases.get(release_id)
        return None if book is None else book.releases[release_id]

    def pending(self) -> Iterator[Release]:
        for book in self.books.values():
            yield from (release for release in book.releases.values() if release.status == "pending")


def require_next(ledger: str, head: tuple[int, str], entry: Entry) -> None:
    """Refuse an entry that does not follow the head."""
    if entry.kind not in KINDS:
        raise LedgerBroken(f"entry {entry.seq}: of an unknown kind {entry.kind!r}")
    if entry.seq != head[0] + 1:
        raise LedgerBroken(f"entry {head[0] + 1}: missing; entry {entry.seq} comes after {head[0]}")
    if entry.previous != head[1]:
        raise LedgerBroken(f"entry {entry.seq}: does not follow the entry before it")
    if entry.sealed_by(ledger) != entry.hash:
        raise LedgerBroken(f"entry {entry.seq}: was changed; its hash is of other content")


def fold(ledger: str, entries: Iterable[Entry]) -> State:
    state = State(ledger)
    for entry in entries:
        state.apply(entry)
    return state


def exposures(terms: Mapping[str, Any], identities: Mapping[str, str]) -> tuple[dict[str, int], ...]:
    """What each candidate exposes, by identity.

    Where models were looked at to choose, the choice among candidates tells of all of them: each exposes what any does.
    """
    each = tuple({identities[seen["run"]]: seen["step"] for seen in c["seen"]} for c in terms["candidates"])
    return each if terms["choice"]["kind"] == "data_independent" else (joined(*each),) * len(each)


def left_by(body: Mapping[str, Any]) -> tuple[dict[str, int], ...]:
    """What each candidate exposes as it is counted: of what was adopted with no signature, everything there was."""
    own = exposures(body["terms"], body["identities"])
    if "everything" not in body:
        return own
    everything = {run["identity"]: run["step"] for run in body["everything"]}
    return (joined(everything, *own),) * len(own)


def candidates_key(body: Mapping[str, Any]) -> str:
    """The same for all draws from the same candidates, whatever their order, probabilities and names."""
    names: Mapping[str, str] = body["identities"]
    return canonical(
        sorted(
            sorted([names[part["run"]], part["step"], part["weight"]] for part in candidate["parts"])
            for candidate in body["terms"]["candidates"]
        )
    )


def stated(body: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any], str | None]]:
    """Identity, statement and noise mark of every run of a release, parents named by identity."""
    names: Mapping[str, str] = body["identities"]
    for statement in body["terms"]["runs"]:
        name = statement["run"]
        yield names[name], by_identity(statement, names), body["marks"][name]
    for run in body.get("everything", ()):
        yield run["identity"], run["statement"], run["mark"]


def by_identity(statement: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """A statement whose parent goes by its identity."""
    ancestry = dict(statement["ancestry"])
    if "run" in ancestry:
        ancestry["run"] = names[ancestry["run"]]
    return {**statement, "ancestry": ancestry}
