"""Commitments: unreleased checkpoints named in public without giving them away, and bound to one certificate.

Guarantees: without the salt a commitment says nothing (HMAC-SHA256 under 256 random bits); with it, it fits one
checkpoint of one run as recorded and no other. The plain digest of a model nobody has seen would let anybody test
whether a record was in its training data (theory 7). The salt stays with the portfolio, and is never renewed.
The binding is a MAC of all that a certificate declares and of every file it is about: nobody without the salt can make
one, so commitments that were copied into other terms, or beside other files, open to nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from dpmerge.terms.checkpoint_reference import CheckpointReference
from dpmerge.terms.run_record import RunRecord


class CertifiedFile(NamedTuple):
    """What a certificate says of a file; version 1 says nothing of its size."""

    sha256: str
    size: int | None


def release_salt(salt: bytes, release: str) -> bytes:
    """The salt of one release: shown to an auditor it opens that release's commitments and no others."""
    return hmac.new(salt, f"dpmerge release {release}".encode(), hashlib.sha256).digest()


def commitment(
    checkpoint: CheckpointReference,
    record: RunRecord,
    *,
    file_digests: Iterable[str],
    weights: str | None,
    salt: bytes,
) -> str:
    """Of a checkpoint: its files and weights as recorded, and what its run states."""
    content: list[Any] = [checkpoint.run, checkpoint.step, sorted(file_digests), weights, record.document()]
    return _mac(salt, "", content)


def binding(declared: Mapping[str, Any], files: Mapping[str, CertifiedFile], salt: bytes) -> str:
    """Of everything that is declared (terms, ledger entry, commitments, …) and of every file: name, digest and size."""
    subjects = [[name, *file] for name, file in sorted(files.items())]
    return _mac(salt, "dpmerge binding 2\n", [dict(declared), subjects])


def _mac(salt: bytes, purpose: str, content: list[Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hmac.new(salt, (purpose + text).encode(), hashlib.sha256).hexdigest()
