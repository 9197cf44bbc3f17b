"""Commitments: unreleased checkpoints named in public without giving them away, and bound to one certificate.

Guarantees: without the salt a commitment says nothing (HMAC-SHA256 under 256 random bits); with it, it fits one
checkpoint of one run as recorded and no other. The plain digest of a model nobody has seen would let anybody test
whether a record was in its training data (docs/theory.md). The salt stays with the portfolio, and is never renewed.
The binding is a MAC of all that a certificate declares and of every file it is about: nobody without the salt can make
one, so commitments that were copied into other terms, or beside other files, open to nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from dpmerge.documents import read_bytes
from dpmerge.errors import BadManifest, CannotWrite, InvalidInput
from dpmerge.portfolio.manifest import sync_folder
from dpmerge.portfolio.portfolio import Portfolio

SALT_NAME = ".commitment-salt"


class CertifiedFile(NamedTuple):
    """What a certificate says of a file; version 1 says nothing of its size."""

    sha256: str
    size: int | None


def salt_of(portfolio: Portfolio, *, create: bool = False) -> bytes:
    """The portfolio's salt, made when it is first needed."""
    path = portfolio.path / SALT_NAME
    if create and not path.exists():
        _make(path)
    try:
        salt = bytes.fromhex(read_bytes(path, 100, "the portfolio's salt, without which no commitment opens").decode())
    except (ValueError, UnicodeDecodeError) as error:
        if isinstance(error, InvalidInput):
            raise
        salt = b""
    if len(salt) != 32:
        raise BadManifest(path, "salt", None, "64 hexadecimal digits", found="something else")
    return salt


def _make(path: Path) -> None:
    beside = path.with_name(f"{SALT_NAME}.{secrets.token_hex(4)}")
    try:
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(32))
            file.flush()
            os.fsync(file.fileno())
        # A link fails where there is one already: of two processes one makes the salt, and both use it.
        os.link(beside, path)
        sync_folder(path.parent)
    except FileExistsError:
        pass
    except OSError as error:
        found = f"an error: {error.strerror or error}"
        raise CannotWrite("portfolio", str(path), "a folder that can be written to", found=found) from None
    finally:
        with suppress(OSError):  # it would hide what went wrong
            beside.unlink(missing_ok=True)


def release_salt(salt: bytes, release: str) -> bytes:
    """The salt of one release: shown to an auditor it opens that release's commitments and no others."""
    return hmac.new(salt, f"dpmerge release {release}".encode(), hashlib.sha256).digest()


def commitment(portfolio: Portfolio, run: str, step: int, salt: bytes) -> str:
    """Of a checkpoint: its files and weights as recorded, and what its run states."""
    saved = portfolio.saved(f"{run}@{step}")
    content: list[Any] = [
        run,
        step,
        sorted(saved.file_digests),
        saved.recorded_weights,
        portfolio.run(run).manifest.statement.model_dump(exclude_none=True),
    ]
    return _mac(salt, "", content)


def binding(declared: Mapping[str, Any], files: Mapping[str, CertifiedFile], salt: bytes) -> str:
    """Of everything that is declared (terms, ledger entry, commitments, …) and of every file: name, digest and size."""
    subjects = [[name, *file] for name, file in sorted(files.items())]
    return _mac(salt, "dpmerge binding 2\n", [dict(declared), subjects])


def _mac(salt: bytes, purpose: str, content: list[Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hmac.new(salt, (purpose + text).encode(), hashlib.sha256).hexdigest()
