"""A head checkpoint: the last entry of its ledger that a portfolio has seen, so that a lost entry is noticed.

Guarantees: a ledger that was put back to an older state, or exchanged for another, is not charged again unnoticed by
whoever keeps the checkpoint; the file only ever moves forward.
Refuses (LedgerBrokenError): a ledger that lacks the entry that was seen, or is another one.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from dpmerge.errors import InvalidInputError, LedgerBrokenError, LedgerUnavailableError
from dpmerge.files import read_bytes
from dpmerge.ledger.ledger import Ledger
from dpmerge.portfolio.manifest import Sha256, write_atomically
from dpmerge.terms.documents import Strict, strict_json, validated

LARGEST_CHECKPOINT = 10_000


class HeadCheckpoint(Strict):
    """The newest entry that was seen, and of which ledger."""

    schema_: Literal["dpmerge/witness/v1"] = Field(
        alias="schema", default="dpmerge/witness/v1", description='"dpmerge/witness/v1"'
    )
    ledger: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")] = Field(description="32 hexadecimal digits")
    seq: Annotated[int, Field(ge=0)] = Field(description="an integer ≥ 0")
    hash: Sha256 = Field(description="64 hexadecimal digits")
    where: str = Field(default="", max_length=2000, description="text: where the ledger was")


def read_head_checkpoint(path: Path) -> HeadCheckpoint | None:
    """None if there is no such file; a broken one is an error, not a missing one."""
    if not path.exists():
        return None
    try:
        content = strict_json(read_bytes(path, LARGEST_CHECKPOINT), "head checkpoint")
        return validated(HeadCheckpoint, content, "head checkpoint")
    except InvalidInputError as error:
        raise LedgerBrokenError(f"{path}: {error}") from None


def check_head_checkpoint(ledger: Ledger, path: Path) -> None:
    """Refuse a ledger that does not have what was seen of it."""
    seen = read_head_checkpoint(path)
    if seen is None:
        return
    remedy = "bring the right one back, or count each output that was released: dpmerge ledger recover --adopt OUT"
    if seen.ledger != ledger.id:
        raise LedgerBrokenError(
            f"{ledger.where}: is another ledger than the one {path} was charged to, {seen.where or seen.ledger}; "
            "name that one, ledger=… (--ledger or DPMERGE_LEDGER)"
        )
    if seen.seq > 0 and not ledger.contains(seen.seq, seen.hash):
        raise LedgerBrokenError(
            f"{ledger.where}: lacks entry {seen.seq}, which {path} has seen: it was restored from an older backup "
            f"or changed; {remedy}"
        )


def update_head_checkpoint(ledger: Ledger, path: Path) -> None:
    """Remember the ledger's newest entry, unless a newer one is remembered."""
    while True:
        check_head_checkpoint(ledger, path)
        seq, digest = ledger.head()
        seen = read_head_checkpoint(path)
        if seen is not None and seen.seq >= seq:
            return
        # Who was slow may write an older one over a newer: so each looks again after writing.
        content = HeadCheckpoint(ledger=ledger.id, seq=seq, hash=digest, where=ledger.where).document()
        try:
            write_atomically(path, (json.dumps(content, indent=1) + "\n").encode())
        except OSError as error:
            raise LedgerUnavailableError.from_os(error, path=path, failed="cannot be written") from None


def replace_head_checkpoint(ledger: Ledger, path: Path) -> None:
    """After a recovery: what was seen before is given up, and the ledger as it is now is what counts."""
    path.unlink(missing_ok=True)
    update_head_checkpoint(ledger, path)
