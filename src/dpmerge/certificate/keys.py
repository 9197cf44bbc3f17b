"""Keys that certificates are signed with: ed25519, as PEM files, with a passphrase or without.

Guarantees: a private key is written for its owner alone, and never over another; what is read is an ed25519 key; no
passphrase is ever shown, written or kept.
Refuses: any other kind of key, a private key where a public one is meant, a private key that others may read.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from securesystemslib.signer import CryptoSigner, SSlibKey

from dpmerge.errors import CannotWriteError, InvalidInputError
from dpmerge.files import read_bytes, sync_folder
from dpmerge.permissions import PRIVATE_KEY, too_open

Passphrase = str | Callable[[Path], str] | None
"""Of a private key: as text, or a function that asks for it, called only if the key has one."""

_LARGEST_KEY = 10_000


def generate(path: Path, passphrase: str | None = None) -> tuple[Path, str]:
    """A new key pair: the private key in `path`, the public one beside it; where that is, and its id."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import (
        BestAvailableEncryption,
        Encoding,
        NoEncryption,
        PrivateFormat,
        PublicFormat,
    )

    if passphrase == "":
        raise InvalidInputError("passphrase", None, "at least one character", found="nothing")
    key = Ed25519PrivateKey.generate()
    locked = NoEncryption() if passphrase is None else BestAvailableEncryption(passphrase.encode())
    public = path.with_name(path.name + ".pub")
    for file in (path, public):
        if file.exists() or file.is_symlink():
            problem = f"output: {file} is there already, and no key is ever overwritten"
            raise CannotWriteError("output", str(file), "name another file", problem=problem)
    _write(path, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, locked), 0o600)
    _write(public, key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo), 0o644)
    return public, str(CryptoSigner(key).public_key.keyid)


def _write(path: Path, content: bytes, mode: int) -> None:
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        sync_folder(path.parent)
    except OSError as error:
        accepted = "a file that can be written"
        raise CannotWriteError.from_os(error, field="output", path=path, accepted=accepted) from None


def read_private(path: Path, *, passphrase: Passphrase = None, insecure_permissions: bool = False) -> CryptoSigner:
    """The key to sign with."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    accepted = "an ed25519 private key, as `dpmerge keygen` makes it"
    content = read_bytes(path, _LARGEST_KEY, accepted)
    if b"PUBLIC KEY" in content:
        raise InvalidInputError("key", str(path), accepted, found="a public key")
    found = None if insecure_permissions or b"PRIVATE KEY" not in content else too_open(path, PRIVATE_KEY)
    if found is not None:
        problem = f"the private key is no secret: {found}"
        raise InvalidInputError("key", str(path), "keep it for its owner alone", problem=problem)
    secret = _passphrase(path, passphrase) if b"ENCRYPTED" in content else None
    try:
        key = load_pem_private_key(content, secret)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        if secret is not None:
            problem = f"key: the passphrase is not that of {path}"
            raise InvalidInputError("key", str(path), "give the one it was made with", problem=problem) from None
        raise InvalidInputError("key", str(path), accepted, found=f"{path}, which holds no such key") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise InvalidInputError("key", str(path), accepted, found="another kind of key")
    return CryptoSigner(key)


def _passphrase(path: Path, given: Passphrase) -> bytes:
    if given is None:
        problem = f"key: {path} has a passphrase, and none was given"
        raise InvalidInputError("key", str(path), "give it, passphrase=… (DPMERGE_KEY_PASSPHRASE)", problem=problem)
    return (given if isinstance(given, str) else given(path)).encode()


def read_public(path: Path) -> SSlibKey:
    """The key to check signatures with."""
    accepted = "an ed25519 public key, the .pub file that `dpmerge keygen` makes"
    return public_key(read_bytes(path, _LARGEST_KEY, accepted), str(path))


def public_key(content: bytes, name: str) -> SSlibKey:
    """The public key in PEM text."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    accepted = "an ed25519 public key, the .pub file that `dpmerge keygen` makes"
    if b"PRIVATE KEY" in content:
        raise InvalidInputError("key", name, accepted, found="a private key")
    try:
        key = load_pem_public_key(content)
    except (ValueError, UnsupportedAlgorithm):
        raise InvalidInputError("key", name, accepted, found=f"{name}, which holds no such key") from None
    if not isinstance(key, Ed25519PublicKey):
        raise InvalidInputError("key", name, accepted, found="another kind of key")
    return SSlibKey.from_crypto(key)
