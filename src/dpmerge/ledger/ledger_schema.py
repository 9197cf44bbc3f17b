"""A ledger as `dpmerge ledger export` writes it: for its JSON Schema, and for whoever reads one elsewhere."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from dpmerge.ledger.entries import KINDS, Kind
from dpmerge.terms.documents import Strict, schema_of
from dpmerge.terms.release_terms import ReleaseTerms

Hex256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
LEDGER_SCHEMA = "dpmerge/ledger/v2"

By = dict[str, str | None] | None
BY = Field(default=None, description="an object: who did it: the database's role, and the actor that was stated")
Signed = Annotated[str, Field(pattern=r"^[0-9a-f]{128}$")]
SIGNED = Field(
    description="128 hexadecimal digits: ed25519 over the DSSE encoding of the entry, but its hash and this field"
)


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
    request: Hex256 | None = Field(default=None, description="the hash of the approved request, of a final release")
    by: By = BY


class NamedPerson(Strict):
    """Somebody whose word counts under a policy."""

    name: str = Field(description="text: the person's name, in no other entry of the list")
    key: Hex256 = Field(description="64 hexadecimal digits: the id of their key")
    public: Hex256 = Field(description="64 hexadecimal digits: their ed25519 public key")


class PolicyBody(Strict):
    """The body of an entry that says who must agree from then on (kind `policy`)."""

    approvals: int = Field(ge=1, description="an integer ≥ 1: how many people, the one who asks included")
    people: list[NamedPerson] = Field(description="a list: everybody who counts")
    days: int = Field(ge=1, le=90, description="an integer from 1 to 90: for how long a request is open")
    request: Hex256 | None = Field(default=None, description="the hash of the approved request, if one was needed")
    by: By = BY


class RequestBody(Strict):
    """The body of an entry that asks for approval (kind `request`); signed by who asks."""

    kind: Literal["release", "cap", "abandoned", "accepted", "policy"] = Field(description="what is to be entered")
    scope: dict[str, str] | None = Field(description="an object: dataset, unit, adjacency; null for a policy")
    content: dict[str, Any] = Field(description="an object: exactly what is to be entered")
    expires: str = Field(description="an RFC 3339 time in UTC: then it is no longer open")
    key: Hex256 = Field(description="64 hexadecimal digits: the id of the asker's key")
    signature: Signed = SIGNED
    by: By = BY


class ApprovalBody(Strict):
    """The body of an entry that decides on a request (kind `approval`); signed by who decides."""

    request: Hex256 = Field(description="64 hexadecimal digits: the hash of the request's entry")
    decision: Literal["approved", "denied"] = Field(description='"approved" or "denied"')
    key: Hex256 = Field(description="64 hexadecimal digits: the id of the key of who decides")
    signature: Signed = SIGNED
    by: By = BY


class ExportedEntry(Strict):
    """One entry, sealed to the one before it."""

    seq: int = Field(ge=1, description="an integer ≥ 1")
    previous: Hex256 = Field(description="64 hexadecimal digits: the hash of the entry before")
    hash: Hex256 = Field(description="64 hexadecimal digits: of everything else, and of the ledger's id")
    time: str = Field(description="an RFC 3339 time in UTC")
    kind: Kind = Field(description=f"{', '.join(KINDS[:-1])} or {KINDS[-1]}")
    book: Hex256 = Field(description="64 hexadecimal digits: the budget scope it belongs to")
    body: ChargeBody | PolicyBody | RequestBody | ApprovalBody | dict[str, Any] = Field(
        description="an object; of a release, its terms and the draw"
    )


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
