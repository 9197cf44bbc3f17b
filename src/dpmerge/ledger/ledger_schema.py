"""A ledger as `dpmerge ledger export` writes it: for its JSON Schema, and for whoever reads one elsewhere."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from dpmerge.ledger.entries import Kind
from dpmerge.terms.documents import Strict, schema_of
from dpmerge.terms.release_terms import ReleaseTerms

Hex256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
LEDGER_SCHEMA = "dpmerge/ledger/v2"


class LedgerHead(Strict):
    """The last entry."""

    seq: int = Field(ge=0, description="an integer ≥ 0")
    hash: Hex256 = Field(description="64 hexadecimal digits")


class ChargeBody(Strict):
    """The body of an entry that charges a release (kind `release`)."""

    release: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")] = Field(description="32 hexadecimal digits")
    terms: ReleaseTerms = Field(description="the terms of the release")
    identities: dict[str, Hex256] = Field(description="an object: run and its identity")
    marks: dict[str, Hex256 | None] = Field(description="an object: run and the mark of its seeded noise")
    final: bool = Field(description="true or false")
    key: str | None = Field(description="text: the request key, or null")
    counted: Literal["theorem", "joint"] = Field(description='"theorem" or "joint"')
    cost: float = Field(description="a number: what it cost in the currency of the cap's filter")
    index: int = Field(ge=0, description="an integer ≥ 0: the candidate that was drawn")
    details: dict[str, Any] = Field(description="an object: how it is made, for whoever finishes it")
    by: dict[str, str | None] | None = Field(
        default=None, description="an object: who did it: the database's role, and the actor that was stated"
    )


class ExportedEntry(Strict):
    """One entry, sealed to the one before it."""

    seq: int = Field(ge=1, description="an integer ≥ 1")
    previous: Hex256 = Field(description="64 hexadecimal digits: the hash of the entry before")
    hash: Hex256 = Field(description="64 hexadecimal digits: of everything else, and of the ledger's id")
    time: str = Field(description="an RFC 3339 time in UTC")
    kind: Kind = Field(description="opened, cap, release, sealed, completed, abandoned, adopted, accepted or snapshot")
    book: Hex256 = Field(description="64 hexadecimal digits: the budget scope it belongs to")
    body: ChargeBody | dict[str, Any] = Field(description="an object; of a release, its terms and the draw")


class LedgerExport(Strict):
    """Everything in a ledger."""

    schema_: Literal["dpmerge/ledger/v2"] = Field(alias="schema", description=f'"{LEDGER_SCHEMA}"')
    banner: str = Field(description="text: not for release")
    ledger: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")] = Field(description="32 hexadecimal digits")
    head: LedgerHead = Field(description="an object with seq and hash")
    entries: list[ExportedEntry] = Field(description="a list of entries, in order")


def ledger_schema() -> dict[str, Any]:
    """The published JSON Schema of an exported ledger."""
    return schema_of(LedgerExport, LEDGER_SCHEMA, "A privacy ledger: every release of a data set")
