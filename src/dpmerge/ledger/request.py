"""A release as it is asked for, and as it was charged.

Guarantees: a request names the identity of every run its terms state, and each identity once; what was charged can be
finished after a crash from what is kept here.
Refuses: terms without the identities of their runs, details that JSON cannot hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from dpmerge.documents import validated
from dpmerge.errors import InvalidInput, NoGuarantee
from dpmerge.ledger.entries import Book, Entry, canonical
from dpmerge.planning.terms import Terms

Status = Literal["pending", "completed", "abandoned"]
LONGEST_KEY = 200


@dataclass(frozen=True, kw_only=True)
class ChargeRequest:
    """What is to be released; `key` makes asking again return the same draw."""

    terms: Terms
    identities: Mapping[str, str]
    marks: Mapping[str, str | None]
    final: bool = False
    key: str | None = None
    details: Mapping[str, Any]

    def __post_init__(self) -> None:
        if self.key is not None and not (self.key.isprintable() and 0 < len(self.key) <= LONGEST_KEY):
            raise InvalidInput("request-key", self.key, f"1 to {LONGEST_KEY} printable characters")
        names = sorted(self.terms.statements)
        for field, given in (("identities", self.identities), ("marks", self.marks)):
            if missing := [name for name in names if name not in given]:
                raise InvalidInput(field, missing, "one for every run of the terms")
        owners: dict[str, str] = {}
        for name in names:
            other = owners.setdefault(self.identities[name], name)
            if other != name:
                raise NoGuarantee(f"{name} and {other} are one run under two names: their noise is not independent")
        canonical(dict(self.details))

    @property
    def book(self) -> Book:
        return book_of(self.terms)

    def body(self) -> dict[str, Any]:
        """The part of the entry that the request determines."""
        names = sorted(self.terms.statements)
        return {
            "terms": self.terms.document(),
            "identities": {name: self.identities[name] for name in names},
            "marks": {name: self.marks[name] for name in names},
            "final": self.final,
            "key": self.key,
            "details": dict(self.details),
        }


@dataclass(frozen=True)
class Place:
    """Where in which ledger something stands."""

    seq: int
    hash: str
    time: str
    ledger: str


@dataclass(frozen=True)
class Output:
    """What was written: file name → sha256, the certificate's sha256, where."""

    files: Mapping[str, str]
    certificate: str
    where: str


@dataclass(frozen=True, kw_only=True)
class Charged:
    """A release that has been paid for; `index` is the candidate that was drawn (None: adopted, and nobody knows).

    `output` is known once it is sealed: while the release is pending it may or may not have been published.
    `draw_number` counts how often these candidates were drawn from, this one included; None where nothing is drawn.
    `signed_by` is the key that vouched for what was adopted.
    """

    release_id: str
    index: int | None
    final: bool
    key: str | None
    details: Mapping[str, Any]
    identities: Mapping[str, str]
    marks: Mapping[str, str | None]
    entry: Place
    status: Status
    output: Output | None
    adopted: bool
    already: bool
    draw_number: int | None
    signed_by: str | None
    terms_document: Mapping[str, Any]

    @cached_property
    def terms(self) -> Terms:
        return validated(Terms, dict(self.terms_document), f"the terms of entry {self.entry.seq}")

    @property
    def book(self) -> Book:
        return book_of(self.terms)


def charged(
    entry: Entry, ledger: str, *, status: Status, output: Output | None, draw_number: int | None, already: bool = False
) -> Charged:
    """What an entry of kind release or adopted says."""
    body = entry.body
    return Charged(
        release_id=body["release"],
        index=body["index"],
        final=body["final"],
        key=body["key"],
        details=body["details"],
        identities=body["identities"],
        marks=body["marks"],
        entry=Place(entry.seq, entry.hash, entry.time, ledger),
        status=status,
        output=output,
        adopted=entry.kind == "adopted",
        already=already,
        draw_number=draw_number,
        signed_by=body.get("signedBy"),
        terms_document=body["terms"],
    )


def book_of(terms: Terms) -> Book:
    return Book(terms.dataset, terms.unit, terms.adjacency)
