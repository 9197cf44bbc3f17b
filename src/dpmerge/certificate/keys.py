"""Keys that certificates are signed with: ed25519, as PEM files.

Guarantees: a private key is written for its owner alone, and never over another; what is read is an ed25519 key.
Refuses: any other kind of key, keys with a passphrase, a private key where a public one is meant.
"""

from __future__ import annotations

import os
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from securesystemslib.signer import CryptoSigner, SSlibKey

from dpmerge.documents import read_bytes
from dpmerge.errors import CannotWrite, InvalidInput
from dpmerge.portfolio.manifest import sync_folder

_LARGEST_KEY = 10_000


def generate(path: Path) -> tuple[Path, str]:
    """A new key pair: the private key in `path`, the public one beside it; where that is, and its id."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    key = Ed25519PrivateKey.generate()
    signer = CryptoSigner(key)
    public = path.with_name(path.name + ".pub")
    for file in (path, public):
        if file.exists() or file.is_symlink():
            raise CannotWrite("output", str(file), "a file that is not there yet: no key is ever overwritten")
    _write(path, signer.private_bytes, 0o600)
    _write(public, key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo), 0o644)
    return public, str(signer.public_key.keyid)


def _write(path: Path, content: bytes, mode: int) -> None:
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        sync_folder(path.parent)
    except OSError as error:
        raise CannotWrite(
            "output", str(path), "a file that can be written", found=f"an error: {error.strerror}"
        ) from None


def read_private(path: Path) -> CryptoSigner:
    """The key to sign with."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    accepted = "an ed25519 private key without a passphrase, as `dpmerge keygen` makes it"
    content = read_bytes(path, _LARGEST_KEY, accepted)
    if b"PUBLIC KEY" in content:
        raise InvalidInput("key", str(path), accepted, found="a public key")
    try:
        key = load_pem_private_key(content, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise InvalidInput("key", str(path), accepted, found=f"{path}, which is none") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise InvalidInput("key", str(path), accepted, found="another kind of key")
    return CryptoSigner(key)


def read_public(path: Path) -> SSlibKey:
    """The key to check signatures with."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    accepted = "an ed25519 public key, the .pub file that `dpmerge keygen` makes"
    content = read_bytes(path, _LARGEST_KEY, accepted)
    if b"PRIVATE KEY" in content:
        raise InvalidInput("key", str(path), accepted, found="a private key")
    try:
        key = load_pem_public_key(content)
    except (ValueError, UnsupportedAlgorithm):
        raise InvalidInput("key", str(path), accepted, found=f"{path}, which is none") from None
    if not isinstance(key, Ed25519PublicKey):
        raise InvalidInput("key", str(path), accepted, found="another kind of key")
    return SSlibKey.from_crypto(key)
