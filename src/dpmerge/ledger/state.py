"""A whole ledger as its entries tell it: the chain they form, and the state of every budget scope.

Guarantees: the state is a fold of the entries and of nothing else; the same entries always give the same state.
Refuses (LedgerBrokenError): entries that do not follow one another, whose hash is not theirs, that contradict the ones
before them, or that lack the approvals which the policy in force asks for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from dpmerge.errors import InvalidInputError, LedgerBrokenError
from dpmerge.ledger.approvals import OF_APPROVALS, Approvals
from dpmerge.ledger.charge import Charge
from dpmerge.ledger.entries import BEFORE_THE_FIRST, KINDS, BudgetScope, Entry
from dpmerge.ledger.scope_state import ScopeState


@dataclass
class State:
    """A whole ledger, up to its head."""

    ledger: str
    head: tuple[int, str] = (0, BEFORE_THE_FIRST)
    scopes: dict[str, ScopeState] = field(default_factory=dict)
    releases: dict[str, ScopeState] = field(default_factory=dict)
    """Release → its scope."""
    snapshot: int = 0
    """The last entry that sealed a snapshot."""
    approvals: Approvals = field(default_factory=Approvals)

    def apply(self, entry: Entry) -> None:
        """The next entry, its seal checked."""
        require_next(self.ledger, self.head, entry)
        try:
            self._apply(entry)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, InvalidInputError) as error:
            raise LedgerBrokenError(f"entry {entry.seq}: its body is not what its kind has ({error!r})") from None
        self.head = (entry.seq, entry.hash)

    def _apply(self, entry: Entry) -> None:
        self.approvals.apply(self.ledger, entry)
        if entry.kind in OF_APPROVALS:
            return
        if entry.kind == "snapshot":
            self.snapshot = entry.seq
            return
        if entry.kind == "opened":
            scope = BudgetScope(*(entry.body[name] for name in ("dataset", "unit", "adjacency")))
            if scope.id != entry.book or scope.id in self.scopes:
                raise LedgerBrokenError(
                    f"entry {entry.seq}: opens a budget scope that is open, or another one than it says"
                )
            self.scopes[scope.id] = ScopeState.of(scope)
            return
        if entry.book not in self.scopes:
            raise LedgerBrokenError(f"entry {entry.seq}: of a budget scope that was never opened")
        state = self.scopes[entry.book]
        if entry.kind in ("release", "adopted"):
            if entry.body["release"] in self.releases:
                raise LedgerBrokenError(f"entry {entry.seq}: release {entry.body['release']} was charged before")
            terms = entry.body["terms"]
            if BudgetScope(terms["dataset"], terms["unit"], terms["adjacency"]) != state.scope:
                raise LedgerBrokenError(f"entry {entry.seq}: its terms are of another budget scope")
        state.apply(entry)
        if entry.kind in ("release", "adopted"):
            self.releases[entry.body["release"]] = state

    def of(self, scope: BudgetScope) -> ScopeState:
        """What is known of a budget scope; of one that was never opened, nothing."""
        return self.scopes.get(scope.id) or ScopeState.of(scope)

    def find(self, release_id: str) -> Charge | None:
        scope = self.releases.get(release_id)
        return None if scope is None else scope.releases[release_id]

    def pending(self) -> Iterator[Charge]:
        for scope in self.scopes.values():
            yield from scope.releases.pending()


def require_next(ledger: str, head: tuple[int, str], entry: Entry) -> None:
    """Refuse an entry that does not follow the head."""
    if entry.kind not in KINDS:
        raise LedgerBrokenError(f"entry {entry.seq}: of an unknown kind {entry.kind!r}")
    if entry.seq != head[0] + 1:
        raise LedgerBrokenError(f"entry {head[0] + 1}: missing; entry {entry.seq} comes after {head[0]}")
    if entry.previous != head[1]:
        raise LedgerBrokenError(f"entry {entry.seq}: does not follow the entry before it")
    if entry.sealed_by(ledger) != entry.hash:
        raise LedgerBrokenError(f"entry {entry.seq}: was changed; its hash is of other content")


def fold(ledger: str, entries: Iterable[Entry]) -> State:
    state = State(ledger)
    for entry in entries:
        state.apply(entry)
    return state
