"""A witness: what a portfolio remembers of the ledger it was charged to, so that a lost entry is noticed.

Guarantees: a ledger that was put back to an older state, or exchanged for another, is not charged again unnoticed by
whoever keeps the witness; the file only ever moves forward.
Refuses (LedgerBroken): a ledger that lacks the entry that was seen, or is another one.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from dpmerge.documents import Strict, read_bytes, strict_json, validated
from dpmerge.errors import InvalidInput, LedgerBroken, LedgerError
from dpmerge.ledger.ledger import Ledger
from dpmerge.portfolio.manifest import Sha256, write_atomically

LARGEST_WITNESS = 10_000


class Witness(Strict):
    """The newest entry that was seen, and of which ledger."""

    schema_: Literal["dpmerge/witness/v1"] = Field(
        alias="schema", default="dpmerge/witness/v1", description='"dpmerge/witness/v1"'
    )
    ledger: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")] = Field(description="32 hexadecimal digits")
    seq: Annotated[int, Field(ge=0)] = Field(description="an integer ≥ 0")
    hash: Sha256 = Field(description="64 hexadecimal digits")
    where: str = Field(default="", max_length=2000, description="text: where the ledger was")


def read_witness(path: Path) -> Witness | None:
    """None if there is no such file; a broken one is an error, not a missing one."""
    if not path.exists():
        return None
    try:
        return validated(Witness, strict_json(read_bytes(path, LARGEST_WITNESS), "witness"), "witness")
    except InvalidInput as error:
        raise LedgerBroken(f"{path}: {error}") from None


def check_witness(ledger: Ledger, path: Path) -> None:
    """Refuse a ledger that does not have what was seen of it."""
    witness = read_witness(path)
    if witness is None:
        return
    remedy = "bring the right one back, or count each output that has left: dpmerge ledger recover --adopt OUT"
    if witness.ledger != ledger.id:
        raise LedgerBroken(
            f"{ledger.where}: is another ledger than the one {path} was charged to, {witness.where or witness.ledger}; "
            f"accepted: that one (--ledger or DPMERGE_LEDGER)"
        )
    if witness.seq > 0 and not ledger.contains(witness.seq, witness.hash):
        raise LedgerBroken(
            f"{ledger.where}: lacks entry {witness.seq}, which {path} has seen: it was restored from an older backup "
            f"or changed; {remedy}"
        )


def update_witness(ledger: Ledger, path: Path) -> None:
    """Remember the ledger's newest entry, unless a newer one is remembered."""
    while True:
        check_witness(ledger, path)
        seq, digest = ledger.head()
        witness = read_witness(path)
        if witness is not None and witness.seq >= seq:
            return
        # Who was slow may write an older one over a newer: so each looks again after writing.
        content = Witness(ledger=ledger.id, seq=seq, hash=digest, where=ledger.where).model_dump(by_alias=True)
        try:
            write_atomically(path, (json.dumps(content, indent=1) + "\n").encode())
        except OSError as error:
            raise LedgerError(f"{path}: cannot be written ({error.strerror or error})") from None


def replace_witness(ledger: Ledger, path: Path) -> None:
    """After a recovery: what was seen before is given up, and the ledger as it is now is what counts."""
    path.unlink(missing_ok=True)
    update_witness(ledger, path)
