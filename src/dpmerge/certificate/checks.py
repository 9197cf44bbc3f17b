"""What a verification found: one check for each thing that was looked at.

Guarantees: verified means that nothing failed; what could not be looked at says so.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dpmerge.certificate.envelope import Certificate
from dpmerge.certificate.predicate import Declared
from dpmerge.documents import LARGEST_SMALL_FILE, open_regular
from dpmerge.errors import InvalidInput, printable
from dpmerge.portfolio.tensors import read_header

_PIECE = 2**20
_SHOWN = ("guarantee", "proved", "theorem", "choice", "tuning", "final", "caveats")
"""Of the certificate, what a reader of the guarantee must not miss."""


@dataclass(frozen=True)
class Check:
    """One thing that was looked at: `passed` is None where it could not be, and `found` says why or what is wrong."""

    name: str
    passed: bool | None
    found: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        return {"check": self.name, "passed": self.passed, "found": list(self.found)}


@dataclass(frozen=True, eq=False)
class Verification:
    """What a verification found. `declared` is None if the certificate cannot be read as one."""

    path: Path
    checks: tuple[Check, ...]
    declared: Declared | None
    content: Mapping[str, Any]
    files: Mapping[str, str]  # name → sha256, as certified
    certificate: Certificate | None = None  # None if it cannot be read at all

    def __repr__(self) -> str:
        found = "verified" if self.verified else f"not verified: {'; '.join(self.problems)}"
        return f"Verification({str(self.path)!r}: {printable(found)})"

    @property
    def version(self) -> int | None:
        """Of the certificate."""
        return None if self.certificate is None else self.certificate.version

    @property
    def verified(self) -> bool:
        return all(check.passed is not False for check in self.checks)

    @property
    def problems(self) -> list[str]:
        """Every reason why it is not verified."""
        return [f"{check.name}: {reason}" for check in self.checks if check.passed is False for reason in check.found]

    def with_check(self, check: Check) -> Verification:
        return replace(self, checks=(*self.checks, check))

    def document(self) -> dict[str, Any]:
        return {
            "path": str(self.path),
            "verified": self.verified,
            "version": self.version,
            **{name: self.content.get(name) if self.verified else None for name in _SHOWN},
            "checks": [check.document() for check in self.checks],
            "problems": self.problems,
        }


def file_digest(file: Path, size: int | None = None) -> str:
    """SHA-256 of a file, which must have that many bytes; an OSError if it has not, or cannot be read.

    Where no size is known, what could not be a file of a release is not read to its end.
    """
    found = hashlib.sha256()
    with open_regular(file) as stream:
        left = os.fstat(stream.fileno()).st_size
        if size is None:
            _require_plausible(file, left)
        elif left != size:
            raise OSError(errno.EFBIG, f"{left:,} bytes where {size:,} were certified", str(file))
        while left and (piece := stream.read(min(left, _PIECE))):
            found.update(piece)
            left -= len(piece)
        if left or stream.read(1):
            raise OSError(errno.ESTALE, "changed while it was read", str(file))
    return found.hexdigest()


def _require_plausible(file: Path, size: int) -> None:
    """Weights say in their header how long they are; all other files of a release are small."""
    if size <= LARGEST_SMALL_FILE:
        return
    if file.suffix != ".safetensors":
        raise OSError(errno.EFBIG, f"{size:,} bytes, more than a release has in such a file", str(file))
    try:
        read_header(file)
    except InvalidInput:
        raise OSError(errno.EFBIG, f"{size:,} bytes, which is not what its header says", str(file)) from None
