"""The form of a certificate: an in-toto Statement v1 about the output's files, in a DSSE envelope.

Guarantees: the same release gives the same bytes; what is read has each field once and no unknown ones. Version 2 has
the size of every file beside its digest, and binds all it says; version 1 is read, and written where it was ordered.
Refuses: other statement, predicate and payload types; envelopes that are not what they should be.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field
from securesystemslib.dsse import Envelope
from securesystemslib.exceptions import UnverifiedSignatureError
from securesystemslib.signer import CryptoSigner, Signature, SSlibKey

from dpmerge.certificate.commitments import CertifiedFile
from dpmerge.certificate.predicate import PREDICATE_TYPES, Hex256, Predicate, Version, predicate
from dpmerge.errors import InvalidInputError
from dpmerge.terms.documents import Strict, strict_json, validated

CERTIFICATE_NAME = "privacy-certificate.json"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"


class Digests(Strict):
    sha256: Hex256 = Field(description="64 hexadecimal digits")


class Annotations(Strict):
    size: Annotated[int, Field(ge=0)] = Field(description="an integer ≥ 0: the file's size in bytes")


class Subject(Strict):
    """One file of the output: an in-toto ResourceDescriptor."""

    name: Annotated[str, Field(min_length=1, max_length=1000)] = Field(description="the name of a file")
    digest: Digests = Field(description="an object with sha256")
    annotations: Annotations | None = Field(default=None, description="an object with size, since version 2")

    @property
    def file(self) -> CertifiedFile:
        return CertifiedFile(self.digest.sha256, None if self.annotations is None else self.annotations.size)


class Statement(Strict):
    """An in-toto statement about files."""

    type_: Literal["https://in-toto.io/Statement/v1"] = Field(alias="_type", description=f'"{STATEMENT_TYPE}"')
    subject: list[Subject] = Field(min_length=1, description="a non-empty list of files with their digests")
    predicate_type: Literal[
        "urn:dpmerge:privacy-certificate:v1",
        "urn:dpmerge:privacy-certificate:v2",
        "urn:dpmerge:privacy-certificate:v3",
    ] = Field(alias="predicateType", description=" or ".join(f'"{name}"' for name in PREDICATE_TYPES.values()))
    predicate: dict[str, Any] = Field(description="an object")


class OneSignature(Strict):
    keyid: Annotated[str, Field(max_length=200)] = Field(description="text: the key's id")
    sig: Annotated[str, Field(max_length=1000)] = Field(description="text: the signature in base64")


class Enveloped(Strict):
    """A DSSE envelope."""

    payload_type: Literal["application/vnd.in-toto+json"] = Field(alias="payloadType", description=f'"{PAYLOAD_TYPE}"')
    payload: str = Field(description="text: the statement in base64")
    signatures: list[OneSignature] = Field(description="a list of objects with keyid and sig")


@dataclass(frozen=True, eq=False)
class Certificate:
    """A certificate as it was read: what it is about, what it says, who signed it."""

    payload: bytes
    signatures: tuple[OneSignature, ...]
    version: Version
    subjects: Mapping[str, CertifiedFile]
    content: Mapping[str, Any]  # the predicate as stored; nothing in it is believed yet

    @property
    def files(self) -> dict[str, str]:
        """Name → sha256."""
        return {name: file.sha256 for name, file in self.subjects.items()}

    @property
    def is_signed(self) -> bool:
        return bool(self.signatures)

    def signed_by(self, key: SSlibKey) -> bool:
        """Whether one of its signatures was made with the private half of this key."""
        return is_signed_by(key, self.payload, PAYLOAD_TYPE, self.signatures)


def is_signed_by(key: SSlibKey, payload: bytes, payload_type: str, signatures: Iterable[OneSignature]) -> bool:
    """Whether one of the signatures is of this payload, as of this type, by the private half of this key."""
    signed = Envelope(payload, payload_type, {}).pae()
    for each in signatures:
        if each.keyid == key.keyid:
            try:
                key.verify_signature(Signature(each.keyid, unwrapped("sig", each.sig).hex()), signed)
            except UnverifiedSignatureError:
                continue
            return True
    return False


def certificate_bytes(
    declared: Predicate, files: Mapping[str, CertifiedFile], signer: CryptoSigner | None, version: Version
) -> bytes:
    """The certificate file of a release of these files."""
    statement = {
        "_type": STATEMENT_TYPE,
        "subject": [_subject(name, file, version) for name, file in sorted(files.items())],
        "predicateType": PREDICATE_TYPES[version],
        "predicate": predicate(declared, version),
    }
    payload = json.dumps(statement, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    envelope = Envelope(payload, PAYLOAD_TYPE, {})
    if signer is not None:
        envelope.sign(signer)
    return (json.dumps(envelope.to_dict(), sort_keys=True, indent=1) + "\n").encode()


def _subject(name: str, file: CertifiedFile, version: Version) -> dict[str, Any]:
    described: dict[str, Any] = {"name": name, "digest": {"sha256": file.sha256}}
    return described if version == 1 else {**described, "annotations": {"size": file.size}}


def read_certificate(text: bytes) -> Certificate:
    """The certificate in a file's bytes; its form is checked, nothing else."""
    envelope = validated(Enveloped, strict_json(text, "certificate"), "certificate", case="camel")
    payload = unwrapped("payload", envelope.payload)
    statement = validated(Statement, strict_json(payload, "payload"), "payload", case="camel")
    version = next(number for number, name in PREDICATE_TYPES.items() if name == statement.predicate_type)
    subjects = {subject.name: subject.file for subject in statement.subject}
    if len(subjects) != len(statement.subject):
        raise InvalidInputError("subject", None, "each file once", found="a file twice")
    for name, file in subjects.items():
        if (file.size is None) != (version == 1):
            accepted = "the size of every file since version 2, and none in version 1"
            raise InvalidInputError("subject.annotations", name, accepted, found=repr(file.size))
    return Certificate(payload, tuple(envelope.signatures), version, subjects, statement.predicate)


def unwrapped(field: str, text: str) -> bytes:
    """The bytes that a field holds in base64."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidInputError(field, text, "base64") from None
