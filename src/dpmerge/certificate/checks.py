"""What a verification found: one check for each thing that was looked at.

Guarantees: verified means that nothing failed; what could not be looked at says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dpmerge.certificate.dsse import Certificate
from dpmerge.certificate.predicate import Predicate
from dpmerge.errors import printable

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
    declared: Predicate | None
    content: Mapping[str, Any]
    files: Mapping[str, str]  # name → sha256, as certified
    certificate: Certificate | None = None  # None if it cannot be read at all

    def __repr__(self) -> str:
        more = f"; and {len(self.problems) - 3} more" if len(self.problems) > 3 else ""
        found = "verified" if self.verified else f"not verified: {'; '.join(self.problems[:3])}{more}"
        return f"Verification({str(self.path)!r}: {printable(found)})"

    def _repr_html_(self) -> str:
        """In a notebook; who only verifies loads nothing of it."""
        from dpmerge.notebook import cell_html

        return cell_html(self)

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


def not_signed_for(certificate: Certificate) -> Check:
    """What is said of a signature where no key was given to check it with."""
    words = "signed, but no key was given to check it with" if certificate.is_signed else "not signed"
    return Check("signature", None, (words,))
