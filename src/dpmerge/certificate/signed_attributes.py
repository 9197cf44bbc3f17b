"""What a timestamp says of its signer, read from its DER: the digest algorithm, and which certificate it is bound to.

Guarantees: only DER of definite, shortest lengths is read, to its last byte. It serves checks made beside those of the
library, which does not look at the signing certificate attribute (RFC 3161, 2.4.2; RFC 5816 for version 2).
Refuses (ValueError): anything else, and tokens of several signers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

INTEGER, OCTETS, OID, SEQUENCE, SET, FIRST = 0x02, 0x04, 0x06, 0x30, 0x31, 0xA0

_SIGNED_DATA = bytes.fromhex("2a864886f70d010702")
_TST_INFO = bytes.fromhex("2a864886f70d0109100104")
_SIGNING_CERTIFICATE = bytes.fromhex("2a864886f70d010910020c")
_SIGNING_CERTIFICATE_2 = bytes.fromhex("2a864886f70d010910022f")
DIGESTS = {
    bytes.fromhex("608648016503040201"): "sha256",
    bytes.fromhex("608648016503040202"): "sha384",
    bytes.fromhex("608648016503040203"): "sha512",
}
"""What a signature may be of. SHA-1 is not: two contents of one digest can be made."""


@dataclass(frozen=True)
class Item:
    """One element: its tag, and what is in it."""

    tag: int
    content: bytes

    def items(self) -> list[Item]:
        return list(_items(self.content))

    def require(self, tag: int) -> Item:
        if self.tag != tag:
            raise ValueError(f"tag {self.tag:#04x} where {tag:#04x} belongs")
        return self


@dataclass(frozen=True)
class SignerStatement:
    """By which algorithm a token was signed, and for which certificates (algorithm, digest); "" is none accepted."""

    digest: str
    bound_to: tuple[tuple[str, bytes], ...]


def parsed(content: bytes, tag: int = SEQUENCE) -> Item:
    """The one element that the bytes are."""
    found = list(_items(content))
    if len(found) != 1:
        raise ValueError("not one element")
    return found[0].require(tag)


def _items(content: bytes) -> Iterator[Item]:
    place = 0
    while place < len(content):
        if len(content) - place < 2 or content[place] & 0x1F == 0x1F:
            raise ValueError("no element that a token has")
        tag, length, place = content[place], content[place + 1], place + 2
        if length >= 0x80:
            count = length - 0x80
            size = content[place : place + count]
            if not 1 <= count <= 4 or len(size) != count or size[0] == 0:
                raise ValueError("a length that is not DER")
            length, place = int.from_bytes(size), place + count
            if length < 0x80:
                raise ValueError("a length that is not DER")
        if length > len(content) - place:
            raise ValueError("an element that ends after its content")
        yield Item(tag, content[place : place + length])
        place += length


def signer_statement(token: bytes) -> SignerStatement:
    """What the one signer of a token states; a token is a ContentInfo of SignedData of TSTInfo."""
    kind, wrapped = parsed(token).items()
    if kind.require(OID).content != _SIGNED_DATA:
        raise ValueError("no signed data")
    signed = parsed(wrapped.require(FIRST).content).items()
    enclosed = signed[2].require(SEQUENCE).items()
    if enclosed[0].require(OID).content != _TST_INFO:
        raise ValueError("signed data of something else")
    [signer] = signed[-1].require(SET).items()
    _, _, digest, attributes, *_ = signer.require(SEQUENCE).items()
    return SignerStatement(_algorithm(digest), tuple(_bound_to(attributes.require(FIRST).items())))


def _algorithm(item: Item) -> str:
    return DIGESTS.get(item.require(SEQUENCE).items()[0].require(OID).content, "")


def _bound_to(attributes: list[Item]) -> Iterator[tuple[str, bytes]]:
    """The first certificate of each signing certificate attribute: that is the signer's own."""
    for attribute in attributes:
        name, values = attribute.require(SEQUENCE).items()
        if name.require(OID).content not in (_SIGNING_CERTIFICATE, _SIGNING_CERTIFICATE_2):
            continue
        [value] = values.require(SET).items()
        first = value.require(SEQUENCE).items()[0].require(SEQUENCE).items()[0].require(SEQUENCE).items()
        if name.content == _SIGNING_CERTIFICATE:
            # Version 1 has no other: here SHA-1 names a certificate that its chain has to prove anyway.
            yield "sha1", first[0].require(OCTETS).content
        elif first[0].tag == OCTETS:
            yield "sha256", first[0].content
        else:
            yield _algorithm(first[0]), first[1].require(OCTETS).content


def request_nonce(request: bytes) -> int | None:
    """The nonce of a timestamp request, if it has one."""
    _, imprint, *rest = parsed(request).items()
    imprint.require(SEQUENCE)
    found = [int.from_bytes(item.content, signed=True) for item in rest if item.tag == INTEGER]
    return found[0] if found else None
