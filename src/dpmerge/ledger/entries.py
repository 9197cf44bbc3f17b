"""Entries: what a ledger is made of, each sealed to the one before it.

Guarantees: the hash of an entry covers every column of it, the ledger it belongs to and all entries before it; text is
canonical, so that one content has one hash.
Refuses: values that JSON cannot hold.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Literal, get_args

from dpmerge.errors import InvalidInputError
from dpmerge.ledger.version_1 import in_snake_case

Kind = Literal[
    "opened", "cap", "release", "sealed", "completed", "abandoned", "adopted", "accepted", "snapshot", "policy",
    "request", "approval",
]  # fmt: skip
KINDS: tuple[Kind, ...] = get_args(Kind)
BEFORE_THE_FIRST = "0" * 64
OF_NO_SCOPE = "0" * 64
"""The scope of entries that are of the whole ledger."""


@dataclass(frozen=True)
class BudgetScope:
    """Whose privacy is counted: one data set, one unit, one adjacency, across all portfolios of it."""

    dataset: str
    unit: str
    adjacency: str

    @cached_property
    def id(self) -> str:
        return sha256(canonical([self.dataset, self.unit, self.adjacency]))

    def document(self) -> dict[str, str]:
        return {"dataset": self.dataset, "unit": self.unit, "adjacency": self.adjacency}

    def __str__(self) -> str:
        return f"{self.dataset} (unit {self.unit}, {self.adjacency})"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One row: `text` is its body as canonical JSON, `book` (the sealed column's name) its budget scope's id."""

    seq: int
    previous: str
    hash: str
    time: str
    kind: str
    book: str
    text: str

    @classmethod
    def draft(cls, kind: Kind, scope: BudgetScope, body: Mapping[str, Any]) -> Entry:
        """An entry that has no place in a ledger yet."""
        return cls(seq=0, previous="", hash="", time="", kind=kind, book=scope.id, text=canonical(body))

    @cached_property
    def content(self) -> dict[str, Any]:
        """The body as it was written."""
        content = json.loads(self.text)
        if not isinstance(content, dict):
            raise ValueError("the body is no JSON object")
        return content

    @cached_property
    def body(self) -> dict[str, Any]:
        """The body as it is read, whichever version wrote it."""
        body: dict[str, Any] = in_snake_case(self.content)
        return body

    def sealed_by(self, ledger: str) -> str:
        """The hash that its columns give."""
        return seal(ledger, self.seq, self.previous, self.time, self.kind, self.book, self.text)

    def document(self) -> dict[str, Any]:
        columns = {name: getattr(self, name) for name in ("seq", "previous", "hash", "time", "kind", "book")}
        return {**columns, "body": self.content}


def following(
    ledger: str,
    head: tuple[int, str],
    *,
    kind: Kind,
    scope: BudgetScope | None,
    body: Mapping[str, Any],
    time: str | None = None,
) -> Entry:
    """The entry that comes after `head`; without a scope, of the whole ledger."""
    seq, previous = head[0] + 1, head[1]
    time, text = time or now(), canonical(body)
    book = OF_NO_SCOPE if scope is None else scope.id
    digest = seal(ledger, seq, previous, time, kind, book, text)
    return Entry(seq=seq, previous=previous, hash=digest, time=time, kind=kind, book=book, text=text)


def seal(ledger: str, seq: int, previous: str, time: str, kind: str, book: str, text: str) -> str:
    """sha256 of the canonical JSON of [ledger, seq, previous, time, kind, book, body]."""
    # The body's text is put in as it is: a change that leaves the JSON value alone is a change still.
    return sha256(f"{canonical([ledger, seq, previous, time, kind, book])[:-1]},{text}]")


def canonical(value: Any) -> str:
    """JSON with sorted fields and nothing between them."""
    try:
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInputError("body", value, "values that JSON can hold", found=f"something else ({error})") from None
    return text


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def now() -> str:
    """RFC 3339 in UTC."""
    return written(datetime.now(UTC))


def written(moment: datetime) -> str:
    """A moment as entries state it."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
