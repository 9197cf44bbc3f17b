"""A charge: one release as a ledger counts it, from the moment it is proposed until it is published or given up.

Guarantees: a charge is its entry, and what became of it; whatever is asked of it follows from the entry's body. It
names the identity of every run its terms state, each identity once; it can be finished after a crash from what is here.
Refuses: terms without the identities of their runs, details that JSON cannot hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from dpmerge.errors import InvalidInputError, NoGuaranteeError
from dpmerge.ledger.entries import BudgetScope, Entry, canonical, sha256
from dpmerge.terms.ancestry import highest
from dpmerge.terms.documents import validated
from dpmerge.terms.release_terms import ReleaseTerms

Status = Literal["proposed", "pending", "completed", "abandoned"]
LONGEST_KEY = 200


@dataclass(frozen=True)
class Output:
    """What was written: file name → sha256, the certificate's sha256, where."""

    files: Mapping[str, str]
    certificate: str
    where: str


@dataclass(frozen=True, kw_only=True)
class Charge:
    """A release and its entry; before it is charged the entry has no place in a ledger, and nothing was drawn.

    `output` is known once it is sealed: while the release is pending it may or may not have been published.
    `output_seq` is the number of the entry that says so.
    `draw_number` counts how often these candidates were drawn from, this one included; None where nothing is drawn.
    `already` tells that it was charged before it was asked for. `ledger` is the ledger's id.
    """

    entry: Entry
    status: Status = "pending"
    output: Output | None = None
    output_seq: int | None = None
    draw_number: int | None = None
    ledger: str = ""
    already: bool = False

    @classmethod
    def proposed(
        cls,
        *,
        terms: ReleaseTerms,
        identities: Mapping[str, str],
        marks: Mapping[str, str | None],
        details: Mapping[str, Any],
        final: bool = False,
        key: str | None = None,
    ) -> Charge:
        """What is to be released.

        Args:
            terms: what it is and costs.
            identities: of every run of the terms, by name.
            marks: what seeded noise each has in common with others, by name.
            details: how it is to be made, for whoever has to finish it.
            final: whether nothing else of these runs will ever be released.
            key: asked again with the same key, a ledger returns the same draw.

        Raises:
            InvalidInputError: something of the runs is missing, the key is no text, or JSON cannot hold the details.
            NoGuaranteeError: two of the runs are one.
        """
        if key is not None and not (key.isprintable() and 0 < len(key) <= LONGEST_KEY):
            raise InvalidInputError("request-key", key, f"1 to {LONGEST_KEY} printable characters")
        names = sorted(terms.statements)
        for field, given in (("identities", identities), ("marks", marks)):
            if missing := [name for name in names if name not in given]:
                raise InvalidInputError(field, missing, "one for every run of the terms")
        owners: dict[str, str] = {}
        for name in names:
            other = owners.setdefault(identities[name], name)
            if other != name:
                raise NoGuaranteeError(
                    f"{name} and {other} are one run under two names: their noise is not independent"
                )
        body = {
            "terms": terms.document(),
            "identities": {name: identities[name] for name in names},
            "marks": {name: marks[name] for name in names},
            "final": final,
            "key": key,
            "details": dict(details),
        }
        charge = cls(entry=Entry.draft("release", scope_of(terms), body), status="proposed")
        charge.__dict__["terms"] = terms  # as they are: reading them again would give the same
        return charge

    @property
    def body(self) -> dict[str, Any]:
        return self.entry.body

    @property
    def release_id(self) -> str:
        return str(self.body["release"])

    @property
    def index(self) -> int | None:
        """The candidate that was drawn; None if it was adopted and nobody knows."""
        index: int | None = self.body["index"]
        return index

    @property
    def final(self) -> bool:
        return bool(self.body["final"])

    @property
    def key(self) -> str | None:
        key: str | None = self.body["key"]
        return key

    @property
    def details(self) -> Mapping[str, Any]:
        details: Mapping[str, Any] = self.body["details"]
        return details

    @property
    def identities(self) -> Mapping[str, str]:
        identities: Mapping[str, str] = self.body["identities"]
        return identities

    @property
    def marks(self) -> Mapping[str, str | None]:
        marks: Mapping[str, str | None] = self.body["marks"]
        return marks

    @property
    def adopted(self) -> bool:
        """Whether it was entered from its certificate, after its own entry was lost."""
        return self.entry.kind == "adopted"

    @property
    def signed_by(self) -> str | None:
        """The key that vouched for what was adopted."""
        return self.body.get("signed_by")

    @cached_property
    def terms(self) -> ReleaseTerms:
        """Validated as any document, whatever was stored."""
        return validated(ReleaseTerms, self.body["terms"], f"the terms of entry {self.entry.seq}")

    @property
    def scope(self) -> BudgetScope:
        return scope_of(self.terms)

    @cached_property
    def exposures(self) -> tuple[dict[str, int], ...]:
        """What each candidate exposes as it is counted: of what was adopted with no signature, everything there was."""
        own = exposures(self.body["terms"], self.identities)
        if "everything" not in self.body:
            return own
        everything = {run["identity"]: run["step"] for run in self.body["everything"]}
        return (highest([everything, *own]),) * len(own)

    @property
    def exposed(self) -> dict[str, int]:
        """What is known to have been released: of the drawn candidate, or of every one if nobody knows which."""
        return highest(self.exposures) if self.index is None else self.exposures[self.index]

    @property
    def runs(self) -> Iterator[tuple[str, dict[str, Any], str | None]]:
        """Identity, record and noise mark of every run, parents named by identity."""
        for record in self.body["terms"]["runs"]:
            name = record["run"]
            yield self.identities[name], by_identity(record, self.identities), self.marks[name]
        for run in self.body.get("everything", ()):
            yield run["identity"], run["statement"], run["mark"]

    @property
    def candidates_key(self) -> str | None:
        """A digest, the same for all draws from the same candidates, whatever their order, probabilities and names.

        None where there is one candidate, and so no draw.
        """
        candidates, names = self.body["terms"]["candidates"], self.identities
        if len(candidates) == 1:
            return None
        parts = (
            sorted([names[part["run"]], part["step"], part["weight"]] for part in candidate["parts"])
            for candidate in candidates
        )
        return sha256(canonical(sorted(parts)))


def scope_of(terms: ReleaseTerms) -> BudgetScope:
    return BudgetScope(terms.dataset, terms.unit, terms.adjacency)


def exposures(terms: Mapping[str, Any], identities: Mapping[str, str]) -> tuple[dict[str, int], ...]:
    """What each candidate exposes, by identity.

    Where models were looked at to choose, the choice among candidates tells of all of them: each exposes what any does.
    """
    each = tuple({identities[seen["run"]]: seen["step"] for seen in c["seen"]} for c in terms["candidates"])
    return each if terms["choice"]["kind"] == "data_independent" else (highest(each),) * len(each)


def by_identity(record: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """A run record whose parent goes by its identity."""
    ancestry = dict(record["ancestry"])
    if "run" in ancestry:
        ancestry["run"] = names[ancestry["run"]]
    return {**record, "ancestry": ancestry}
