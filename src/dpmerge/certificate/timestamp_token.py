"""RFC 3161 timestamps of a certificate: a token of the SHA-256 of the certificate's file, checked offline.

Guarantees: a token that passes is of these very bytes, signatures included; was granted; is signed, by sha256 or
better, with a certificate whose one critical purpose is timestamping, which the token names, and which chains to a
given root at the token's own time. Signature, purpose and chain are checked by rfc3161-client (OpenSSL), the rest here.
Refuses: everything else. It needs the extra `timestamps`, and loads only where roots are given.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ObjectIdentifier

from dpmerge.certificate.signed_attributes import request_nonce, signer_statement
from dpmerge.errors import InvalidInputError
from dpmerge.extras import needs_extra
from dpmerge.files import read_bytes

LARGEST_ROOTS = 1_000_000
LARGEST_REQUEST = 10_000
_SHA256 = ObjectIdentifier("2.16.840.1.101.3.4.2.1")
_GRANTED = 0
_HASHES = ("sha256", "sha384", "sha512")


@dataclass(frozen=True, kw_only=True)
class Stamp:
    """What a token proves: the certificate existed by this time, according to this authority."""

    existed_by: datetime
    authority: str


def read_roots(file: Path) -> tuple[x509.Certificate, ...]:
    """The roots of a PEM file, and intermediate certificates where there are any."""
    accepted = "certificates as PEM, those of authorities whose timestamps are believed"
    content = read_bytes(file, LARGEST_ROOTS, accepted)
    try:
        found = x509.load_pem_x509_certificates(content)
    except ValueError:
        found = []
    if not any(each.issuer == each.subject for each in found):
        what = "no certificate" if not found else "no root: none of them is issued by itself"
        raise InvalidInputError("timestamp-roots", str(file), accepted, found=f"{file}, which holds {what}")
    return tuple(dict.fromkeys(found))


def new_request(certificate: bytes) -> bytes:
    """A request for a token of a certificate's file, with a nonce, asking for the authority's certificate."""
    with needs_extra("timestamps", by="a timestamp request"):
        from rfc3161_client import HashAlgorithm, TimestampRequestBuilder
    built = TimestampRequestBuilder().data(certificate).hash_algorithm(HashAlgorithm.SHA256)
    return bytes(built.cert_request(cert_request=True).nonce(nonce=True).build().as_bytes())


def nonce_of(request: bytes) -> int:
    """The nonce of a request that `new_request` or another tool has made."""
    try:
        found = request_nonce(request)
    except (ValueError, IndexError):
        raise InvalidInputError("request", None, "a timestamp request (.tsq)", found="something else") from None
    if found is None or found < 0:
        raise InvalidInputError("request", None, "a timestamp request with a nonce", found="one without")
    return found


def checked(
    response: bytes, certificate: bytes, roots: Sequence[x509.Certificate], *, nonce: int | None = None
) -> Stamp:
    """What a response proves of a certificate's bytes.

    Raises:
        InvalidInputError: It proves nothing, and why.
        MissingExtraError: rfc3161-client is not installed.
    """
    with needs_extra("timestamps", by="checking a timestamp"):
        import rfc3161_client  # noqa: F401
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what is odd about a stranger's certificate is no news to who verifies
            return _proved(response, certificate, roots, nonce)
    except InvalidInputError:
        raise
    except Exception as error:  # whatever a parser of strange bytes raises, they prove nothing
        raise _refused(f"it cannot be read as a timestamp response ({error})") from None


def _proved(response: bytes, certificate: bytes, roots: Sequence[x509.Certificate], nonce: int | None) -> Stamp:
    from rfc3161_client import VerificationError, VerifierBuilder, decode_timestamp_response

    found = decode_timestamp_response(response)
    if found.status != _GRANTED:
        raise _refused(f"it was not granted (status {found.status})")
    _require_imprint(found.tst_info.message_imprint, certificate)
    signer = _signer(found)
    verifier = VerifierBuilder(
        roots=[each for each in roots if each.issuer == each.subject],
        intermediates=[each for each in roots if each.issuer != each.subject],
        nonce=nonce,
    ).build()
    try:
        verifier.verify(found, hashlib.sha256(certificate).digest())
    except VerificationError as error:
        raise _refused(_in_words(str(error), found.tst_info.gen_time)) from None
    return Stamp(existed_by=_latest(found.tst_info), authority=signer.subject.rfc4514_string())


def _refused(why: str) -> InvalidInputError:
    remedy = "needed: an authority's answer to a request for this certificate (`dpmerge timestamp request`)"
    return InvalidInputError("timestamp", None, remedy, problem=f"the timestamp proves nothing: {why}")


def _require_imprint(imprint: Any, certificate: bytes) -> None:
    if imprint.hash_algorithm != _SHA256:
        raise _refused("it is of a digest other than sha256")
    if imprint.message != hashlib.sha256(certificate).digest():
        raise _refused("it is of something else than this certificate")


def _signer(response: Any) -> x509.Certificate:
    """The authority's certificate, which must be in the token once, and be named by it."""
    held = [x509.load_der_x509_certificate(each) for each in sorted(response.signed_data.certificates)]
    if len(response.signed_data.signer_infos) != 1:
        raise _refused("it has not one signer")
    [info] = response.signed_data.signer_infos
    # Of two certificates with one name and number, OpenSSL and others could each take another.
    found = [each for each in held if (each.issuer, each.serial_number) == (info.issuer, info.serial_number)]
    if len(found) != 1:
        raise _refused("the certificate of its signer is not in it, or more than once")
    [signer] = found
    for each in held:
        if each.issuer != each.subject and not _is_strong(each):
            raise _refused("a certificate in it is signed by an algorithm that is not accepted")
    stated = signer_statement(response.time_stamp_token())
    if stated.digest not in _HASHES:
        raise _refused("it is signed by an algorithm that is not accepted: sha256, sha384 and sha512 are")
    if not stated.bound_to:
        raise _refused("it has no signing certificate attribute")
    content = signer.public_bytes(Encoding.DER)
    if any(not name or hashlib.new(name, content).digest() != digest for name, digest in stated.bound_to):
        raise _refused("its signing certificate attribute names another certificate")
    return signer


def _is_strong(certificate: x509.Certificate) -> bool:
    algorithm = certificate.signature_hash_algorithm
    return algorithm is None or algorithm.name in _HASHES  # None: ed25519 and its like, which have their own


def _latest(info: Any) -> datetime:
    """The end of the time in which it was made, by its own accuracy."""
    made: datetime = info.gen_time.astimezone(UTC)
    accuracy = info.accuracy
    if accuracy is None:
        return made
    parts = {"seconds": accuracy.seconds, "milliseconds": accuracy.millis, "microseconds": accuracy.micros}
    return made + timedelta(**{name: int(value or 0) for name, value in parts.items()})


def _in_words(error: str, made: datetime) -> str:
    """What the library says, without OpenSSL's file names."""
    for sign, words in (
        ("certificate has expired", f"a certificate of its chain was not valid at its time, {made.isoformat()}"),
        ("certificate is not yet valid", f"a certificate of its chain was not valid at its time, {made.isoformat()}"),
        ("unable to get", "it does not lead to one of the given roots"),
        ("certificate signature failure", "it does not lead to one of the given roots"),
        ("self-signed", "it does not lead to one of the given roots"),
        ("self signed", "it does not lead to one of the given roots"),
        ("unsuitable certificate purpose", "a certificate of its chain is not for timestamping"),
        ("Nonce", "it answers another request: the nonce is not the one that was sent"),
    ):
        if sign in error:
            return words
    return "its signature does not hold" if "pkcs7" in error else error
