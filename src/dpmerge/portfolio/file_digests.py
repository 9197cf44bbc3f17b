"""Digests of a file's bytes: SHA-256, and BLAKE3 beside it where its package (extra `blake3`) is installed.

Guarantees: both are of the same bytes, fed once; without the package there is SHA-256 alone, as if nobody knew BLAKE3.
Every digest that was taken and is recorded is compared, and at least one is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True)
class FileDigests:
    """Of the same bytes, or recorded for them; None where it was not taken, or not recorded."""

    sha256: str | None = None
    blake3: str | None = None
    size: int = field(default=0, compare=False)  # of the bytes it was taken of


def blake3_installed() -> bool:
    """Whether BLAKE3 can be taken here."""
    return _blake3() is not None


def _blake3() -> Callable[[], Any] | None:
    try:
        from blake3 import blake3
    except ImportError:  # nothing needs it
        return None
    # One thread a digest, the package's default: those who read or merge have a thread for every core already.
    return blake3


class FileHash:
    """The digests of bytes that are fed in order. BLAKE3 is left out where it is not installed, SHA-256 never then."""

    def __init__(self, start: bytes = b"", *, sha256: bool = True, blake3: bool = True) -> None:
        fast = _blake3() if blake3 else None
        self._sha256 = hashlib.sha256() if sha256 or fast is None else None
        self._blake3 = None if fast is None else fast()
        self._size = 0
        self.update(start)

    def update(self, piece: bytes | memoryview) -> None:
        """The next bytes; other threads run meanwhile."""
        self._size += len(piece)
        for each in (self._sha256, self._blake3):
            if each is not None:
                each.update(piece)

    def digests(self) -> FileDigests:
        """Of everything fed so far."""
        found = (None if each is None else str(each.hexdigest()) for each in (self._sha256, self._blake3))
        sha256, blake3 = found
        return FileDigests(sha256=sha256, blake3=blake3, size=self._size)


@dataclass(frozen=True, kw_only=True)
class Mismatch:
    """A digest that is not the one that was recorded."""

    kind: Literal["sha256", "blake3"]
    words: str
    remedy: str | None  # where the manifest is at fault, and not the file


def mismatch(found: FileDigests, recorded: FileDigests) -> Mismatch | None:
    """What is wrong with a file of these digests; None if all are as recorded that can be compared.

    >>> wrong = mismatch(FileDigests(sha256="aa", blake3="cc"), FileDigests(sha256="aa", blake3="bb"))
    >>> wrong.kind, wrong.words
    ('blake3', 'has the digest cc, and bb was recorded, beside the right sha256: these are digests of two files')
    """
    pairs = {"sha256": (found.sha256, recorded.sha256), "blake3": (found.blake3, recorded.blake3)}
    same = {kind: is_ == was for kind, (is_, was) in pairs.items() if is_ is not None and was is not None}
    assert same, "a file is compared by some digest"
    words = "has the digest {}, and {} was recorded"
    two = ", beside the right {}: these are digests of two files"
    if not same.get("sha256", True):
        said = words.format(*pairs["sha256"])
        if same.get("blake3"):
            remedy = "bring back the manifest as it was recorded: nobody can tell which of the two files is meant"
            return Mismatch(kind="sha256", words=said + two.format("blake3"), remedy=remedy)
        return Mismatch(kind="sha256", words=said, remedy=None)
    if not same.get("blake3", True):
        said = words.format(*pairs["blake3"])
        if same.get("sha256"):
            remedy = "take the blake3 out of the manifest; dpmerge manifest upgrade computes it anew"
            return Mismatch(kind="blake3", words=said + two.format("sha256"), remedy=remedy)
        return Mismatch(kind="blake3", words=said, remedy=None)
    return None
