"""Entries that somebody signs: requests, and what others say to them.

Guarantees: a signature is over everything that the entry's hash covers, but the signature itself: the ledger's id, the
entry's number, the entry before it, its time, its kind and its body. So it is good in one place of one ledger only,
and cannot be copied to another.
Refuses (LedgerBrokenError): a signature that was not made with the key it names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from securesystemslib.dsse import Envelope
from securesystemslib.exceptions import UnverifiedSignatureError
from securesystemslib.signer import CryptoSigner, Signature, SSlibKey

from dpmerge.errors import LedgerBrokenError
from dpmerge.ledger.entries import OF_NO_SCOPE, Entry, Kind, canonical

PAYLOAD_TYPE = "application/vnd.dpmerge.ledger-entry+json"


def signed_body(
    ledger: str, head: tuple[int, str], time: str, kind: Kind, body: Mapping[str, Any], signer: CryptoSigner
) -> dict[str, Any]:
    """The body of the entry that is to follow `head`, signed for that place."""
    content = {**body, "key": str(signer.public_key.keyid)}
    signature = signer.sign(_signed(ledger, head[0] + 1, head[1], time, kind, OF_NO_SCOPE, content))
    return {**content, "signature": signature.signature}


def require_signature(ledger: str, entry: Entry, key: SSlibKey) -> None:
    """Refuse an entry that was not signed with this key for this place of this ledger."""
    content = {name: value for name, value in entry.content.items() if name != "signature"}
    signed = _signed(ledger, entry.seq, entry.previous, entry.time, entry.kind, entry.book, content)
    try:
        key.verify_signature(Signature(key.keyid, str(entry.content["signature"])), signed)
    except UnverifiedSignatureError:
        raise LedgerBrokenError(
            f"entry {entry.seq}: its signature was not made with the key it names, or for another entry"
        ) from None


def _signed(ledger: str, seq: int, previous: str, time: str, kind: str, book: str, content: Mapping[str, Any]) -> bytes:
    payload = canonical([ledger, seq, previous, time, kind, book, dict(content)]).encode()
    return bytes(Envelope(payload, PAYLOAD_TYPE, {}).pae())
