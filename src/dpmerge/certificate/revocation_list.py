"""A list of revocations: certificates and keys that are no longer to be believed, in a DSSE envelope of its own type.

Guarantees: what is read has each field once, no unknown ones and bounded sizes; the same list gives the same bytes. A
certificate is named by the SHA-256 of its payload, the bytes that are signed: key ids, white space, base64 and further
signatures can be changed by anybody, the payload by nobody without a trusted key.
Refuses: other types, entries that name both a certificate and a key or neither, times that are none.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from securesystemslib.dsse import Envelope
from securesystemslib.signer import CryptoSigner, SSlibKey

from dpmerge.certificate.dsse import Certificate, OneSignature, is_signed_by, unwrapped
from dpmerge.certificate.predicate import Hex256
from dpmerge.errors import InvalidInputError
from dpmerge.terms.documents import Strict, Text, schema_of, strict_json, validated

LIST_TYPE = "urn:dpmerge:revocations:v1"
LIST_PAYLOAD_TYPE = "application/vnd.dpmerge.revocations+json"
LARGEST_LIST = 10_000_000
"""Bytes."""
MOST_ENTRIES = 10_000
CLOCKS_DIFFER = timedelta(minutes=5)
"""By so much the clock of who issued a list may be ahead of the reader's."""

Reason = Literal["epsilon_too_small", "false_statement", "key_compromised", "superseded", "withdrawn"]
Moment = Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?Z$")]
_MOMENT = "an RFC 3339 time in UTC, such as 2026-11-16T12:00:00Z"


class Revocation(Strict):
    """One entry: a certificate or a key, why, and when that was entered."""

    certificate: Hex256 | None = Field(
        default=None,
        description="64 hexadecimal digits: SHA-256 of the certificate's payload, which is signed",
    )
    key: Hex256 | None = Field(default=None, description="64 hexadecimal digits: the id of a key")
    since: Moment | None = Field(
        default=None,
        description=f"{_MOMENT}: what the key signed before then, by a timestamp, stays valid; without it nothing does",
    )
    reason: Reason = Field(
        description='"epsilon_too_small", "false_statement", "key_compromised", "superseded" or "withdrawn"'
    )
    note: Text | None = Field(default=None, description="text: more about the reason, one line")
    revoked_at: Moment = Field(description=f"{_MOMENT}: when this was entered")

    @model_validator(mode="after")
    def _consistent(self) -> Revocation:
        if (self.certificate is None) == (self.key is None):
            raise InvalidInputError(
                "certificate", None, "a certificate or a key, and not both", found="both or neither"
            )
        if self.since is not None and self.key is None:
            raise InvalidInputError("since", self.since, "nothing where a certificate is revoked")
        for field, text in (("since", self.since), ("revokedAt", self.revoked_at)):
            if text is not None:
                moment(text, field)
        return self

    def words(self) -> str:
        """Why, in one line."""
        since = "" if self.since is None else f", since {self.since}"
        return f"{self.reason}{since}{f' ({self.note})' if self.note else ''}, entered {self.revoked_at}"


class Revocations(Strict):
    """What a list says."""

    type_: Literal["urn:dpmerge:revocations:v1"] = Field(alias="_type", description=f'"{LIST_TYPE}"')
    issuer: Hex256 = Field(description="64 hexadecimal digits: the id of the key it is signed with")
    sequence: Annotated[int, Field(ge=1, le=2**53)] = Field(
        description="an integer ≥ 1, which grows each time the list is signed"
    )
    issued: Moment = Field(description=f"{_MOMENT}: when it was signed")
    next_update: Moment = Field(description=f"{_MOMENT}: by then there is a newer list, and this one proves nothing")
    entries: Annotated[list[Revocation], Field(max_length=MOST_ENTRIES)] = Field(
        description=f"a list of at most {MOST_ENTRIES:,} objects with certificate or key, reason and revokedAt"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Revocations:
        if moment(self.next_update, "nextUpdate") <= moment(self.issued, "issued"):
            raise InvalidInputError("nextUpdate", self.next_update, "a time after issued")
        return self


class _EnvelopedList(Strict):
    """A DSSE envelope around a list."""

    payload_type: Literal["application/vnd.dpmerge.revocations+json"] = Field(
        alias="payloadType", description=f'"{LIST_PAYLOAD_TYPE}"'
    )
    payload: str = Field(description="text: the list in base64")
    signatures: Annotated[list[OneSignature], Field(max_length=10)] = Field(
        description="a list of at most 10 objects with keyid and sig"
    )


@dataclass(frozen=True, eq=False)
class RevocationList:
    """A list as it was read; nothing in it is believed before its signature is."""

    payload: bytes
    signatures: tuple[OneSignature, ...]
    content: Revocations

    def signed_by(self, key: SSlibKey) -> bool:
        """Whether it names this key as its issuer, and was signed with its private half."""
        made = is_signed_by(key, self.payload, LIST_PAYLOAD_TYPE, self.signatures)
        return made and self.content.issuer == key.keyid

    def why_not_current(self, now: datetime) -> str | None:
        """Why it says nothing about this moment; None if it does."""
        if now > moment(self.content.next_update, "nextUpdate"):
            return f"stale: a newer one was due by {self.content.next_update}, and this one proves nothing since"
        if moment(self.content.issued, "issued") > now + CLOCKS_DIFFER:
            return f"issued in the future ({self.content.issued}): one of two clocks is wrong"
        return None

    def about(self, certificate: Certificate) -> list[Revocation]:
        """Entries that name this very certificate."""
        digest = payload_digest(certificate)
        return [each for each in self.content.entries if each.certificate == digest]

    def about_key(self, keyid: str) -> list[Revocation]:
        return [each for each in self.content.entries if each.key == keyid]

    def document(self) -> dict[str, Any]:
        return self.content.document("camel")


def payload_digest(certificate: Certificate) -> str:
    """What a list names a certificate by."""
    return hashlib.sha256(certificate.payload).hexdigest()


def moment(text: str, field: str) -> datetime:
    """The time that a field states."""
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInputError(field, text, _MOMENT) from None


def list_bytes(content: Revocations, signer: CryptoSigner) -> bytes:
    """The file of a list, signed."""
    text = json.dumps(content.document("camel"), sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    envelope = Envelope(text.encode(), LIST_PAYLOAD_TYPE, {})
    envelope.sign(signer)
    return (json.dumps(envelope.to_dict(), sort_keys=True, indent=1) + "\n").encode()


def read_list(text: bytes) -> RevocationList:
    """The list in a file's bytes; its form is checked, nothing else."""
    if len(text) > LARGEST_LIST:
        raise InvalidInputError("revocations", None, f"at most {LARGEST_LIST:,} bytes", found="more")
    envelope = validated(_EnvelopedList, strict_json(text, "revocations"), "revocations", case="camel")
    payload = unwrapped("payload", envelope.payload)
    content = validated(Revocations, strict_json(payload, "payload"), "payload", case="camel")
    return RevocationList(payload, tuple(envelope.signatures), content)


def revocations_schema() -> dict[str, Any]:
    """The published JSON Schema of a list: of what is in its envelope."""
    return schema_of(Revocations, LIST_TYPE, "A list of revocations", case="camel")
