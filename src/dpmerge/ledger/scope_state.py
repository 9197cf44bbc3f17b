"""What the entries of one budget scope add up to: runs, high-water marks, locks, keys, pending releases, the cap.

Guarantees: the state is a fold of the scope's entries and of nothing else; the same entries always give the same state.
Refuses (LedgerBrokenError): entries that contradict the ones before them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dpmerge.errors import LedgerBrokenError
from dpmerge.ledger.charge import Charge, exposures
from dpmerge.ledger.entries import BudgetScope, Entry
from dpmerge.ledger.releases import Releases, output_in
from dpmerge.ledger.run_costs import RunCosts, raise_mark
from dpmerge.terms.ancestry import highest
from dpmerge.terms.documents import validated
from dpmerge.terms.run_record import RunRecord


@dataclass(frozen=True)
class KnownRun:
    """A run a scope has heard of: its statement names parents by identity, so that it means the same everywhere."""

    identity: str
    name: str
    statement: Mapping[str, Any]
    mark: str | None


@dataclass
class ScopeState:
    """All that is known of one budget scope."""

    scope: BudgetScope
    prices: RunCosts
    runs: dict[str, KnownRun] = field(default_factory=dict)
    releases: Releases = field(default_factory=Releases)
    keys: dict[str, str] = field(default_factory=dict)
    draws: dict[str, int] = field(default_factory=dict)
    """The digest of some candidates → how often they were drawn from."""
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
    def of(cls, scope: BudgetScope) -> ScopeState:
        return cls(scope, RunCosts(scope.adjacency))

    def considering(self, runs: Iterable[tuple[str, Mapping[str, Any], str | None]]) -> ScopeState:
        """The scope with further runs known to it, so that they can be priced; this one stays as it is."""
        wider = replace(self, runs=dict(self.runs), prices=self.prices.considering())
        for identity, statement, mark in runs:
            wider.know(identity, statement, mark)
        return wider

    def everything(self) -> list[dict[str, Any]]:
        """Every run of the scope in its whole length, as an entry states it."""
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
                self.know(run["identity"], run["statement"], run["mark"])
            self.cap, self.spent = body, body["spent_before"]
        elif entry.kind in ("release", "adopted"):
            self._charge(entry)
        elif entry.kind in ("sealed", "completed"):
            self._publish(entry)
        elif entry.kind == "abandoned":
            abandoned = self._pending(body["release"], entry)
            self.releases[abandoned.release_id] = replace(abandoned, status="abandoned")
        elif entry.kind == "accepted":
            self.accepted += 1

    def _publish(self, entry: Entry) -> None:
        """What is about to be published (sealed), or was (completed): the same both times."""
        charge = self._pending(entry.body["release"], entry)
        output = output_in(entry)
        if charge.output is not None and (entry.kind == "sealed" or charge.output != output):
            raise LedgerBrokenError(
                f"entry {entry.seq}: {entry.kind} of {charge.release_id}, which was sealed otherwise"
            )
        status = "completed" if entry.kind == "completed" else charge.status
        self.releases[charge.release_id] = replace(charge, output=output, output_seq=entry.seq, status=status)

    def _pending(self, release_id: str, entry: Entry) -> Charge:
        charge = self.releases.get(release_id)
        if charge is None or charge.status != "pending":
            raise LedgerBrokenError(f"entry {entry.seq}: {entry.kind} of {release_id}, which is not pending")
        return charge

    def know(self, identity: str, statement: Mapping[str, Any], mark: str | None) -> None:
        """A run, by its identity; only what was first stated of it counts."""
        known = self.runs.get(identity)
        if mark is not None and (known is None or known.mark is None):
            self.prices.mark(identity, mark)
        if known is None:
            self.runs[identity] = KnownRun(identity, statement["run"], statement, mark)
            self.prices.state(identity, validated(RunRecord, dict(statement), "statement"))
        elif known.mark is None and mark is not None:
            self.runs[identity] = KnownRun(identity, known.name, known.statement, mark)

    def _charge(self, entry: Entry) -> None:
        charge = self.charged(entry)
        if charge.release_id in self.releases:
            raise LedgerBrokenError(f"entry {entry.seq}: release {charge.release_id} was charged before")
        for identity, record, mark in charge.runs:
            self.know(identity, record, mark)
        touched = frozenset(highest(charge.exposures))
        self._void(touched, entry)
        self._count_exposure(charge, touched)
        self._lock(charge)
        self._count_cost(charge)
        self._count_choice(charge)
        self.releases[charge.release_id] = charge
        if charge.key is not None:
            self.keys.setdefault(charge.key, charge.release_id)

    def charged(self, entry: Entry) -> Charge:
        """The charge that an entry makes, in the order of this scope's draws."""
        draft = Charge(entry=entry)
        key = draft.candidates_key
        number = None if key is None else self.draws.get(key, 0) + 1
        if entry.kind != "adopted":
            return replace(draft, draw_number=number)
        return replace(draft, draw_number=number, status="completed", output=output_in(entry), output_seq=entry.seq)

    def _count_exposure(self, charge: Charge, touched: frozenset[str]) -> None:
        """Raise the high-water mark, or count the release by its own theorem where that still holds."""
        again = charge.final and not touched.isdisjoint(self.exposed)
        if again:
            self.conflict = f"final release {charge.release_id} is of runs that were seen before"
        by_theorem = charge.body["counted"] == "theorem" and charge.index is not None
        if by_theorem and not again and touched.isdisjoint(self.locks):
            self.finals[charge.release_id] = touched
        else:
            raise_mark(self.high_water, charge.exposed)
        raise_mark(self.exposed, charge.exposed)
        for identity in charge.exposed:
            self.seen_in.setdefault(identity, charge.release_id)

    def _lock(self, charge: Charge) -> None:
        if charge.final:
            for identity in highest(exposures(charge.body["terms"], charge.identities)):
                self.locks.setdefault(identity, charge.release_id)

    def _count_cost(self, charge: Charge) -> None:
        if charge.body["cost"] is None:
            self.conflict = f"release {charge.release_id} was adopted, and its rule has no number for it"
        else:
            self.spent += charge.body["cost"]

    def _count_choice(self, charge: Charge) -> None:
        """How often candidates were drawn from, and what choosing cost that no exposure counts."""
        terms = charge.body["terms"]
        if charge.draw_number is not None and charge.candidates_key is not None:
            self.draws[charge.candidates_key] = charge.draw_number
        if terms["choice"]["kind"] == "uncharged":
            self.uncharged.append(charge.release_id)
        if validation := terms.get("validation"):
            if validation.get("disjoint_vouched_by") is None:
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
