"""Which SHA-256 goes with which BLAKE3: pairs of digests that one pass over some file gave, remembered.

Guarantees: a pair is known only if this user's own process computed both of the same bytes; a manifest that says so is
not enough. So what has the BLAKE3 of a known pair has its SHA-256, which ledgers and certificates hold it to. Whether
files were touched, moved or copied meanwhile does not matter: a pair speaks of bytes. Kept for its owner alone.
Refuses: nothing; what is not known, or cannot be kept, is hashed both ways again.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path

from dpmerge.errors import DpmergeError
from dpmerge.portfolio.file_digests import FileDigests
from dpmerge.private_home import private_folder

LEAST = 2**24
"""Bytes of a file whose pair is worth remembering: smaller ones are hashed both ways in a moment."""


def seen_together(digests: FileDigests) -> bool:
    """Whether both digests are of the same bytes, as far as this user has seen."""
    with suppress(DpmergeError, OSError):
        return digests.sha256 is not None and digests.blake3 is not None and _mark(digests).is_file()
    return False


def remember_pair(found: FileDigests) -> None:
    """Keep what a pass over a file's bytes gave, if it gave both digests."""
    if found.sha256 is not None and found.blake3 is not None and found.size >= LEAST:
        with suppress(DpmergeError, OSError):
            _mark(found).touch(0o600)


def _mark(digests: FileDigests) -> Path:
    """An empty file that is there if the pair is known: nothing in it can be half written, or misread."""
    pair = f"sha256:{digests.sha256} blake3:{digests.blake3}"
    return private_folder("digest-pairs") / hashlib.sha256(pair.encode()).hexdigest()
