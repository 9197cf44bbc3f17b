"""Digests of files that several threads read or write in pieces.

Guarantees: pieces enter a digest in the order in which their tickets were drawn, whichever thread is done first; while
one thread hashes a piece of one file another can hash a piece of another.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from dpmerge.portfolio.file_digests import FileDigests, FileHash


class HashStoppedError(Exception):
    """Another thread has failed: there is nothing left to wait for."""


class OrderedHash:
    """One file's digests, SHA-256 unless told otherwise, fed in order.

    Tickets are drawn by one thread at a time; each must be used.
    """

    def __init__(self, start: bytes = b"", *, into: FileHash | None = None) -> None:
        self._digest = FileHash(blake3=False) if into is None else into
        self._digest.update(start)
        self._drawn = 0
        self._turn = 0
        self._stopped = False
        self._turned = threading.Condition()

    def ticket(self) -> int:
        """The place of the next piece."""
        self._drawn += 1
        return self._drawn - 1

    def feed(self, ticket: int, piece: memoryview | bytes) -> None:
        """Wait until all pieces before this one are in, then put it in."""
        with self._turned:
            while self._turn != ticket:
                if self._stopped:
                    raise HashStoppedError
                self._turned.wait()
        self._digest.update(piece)  # without the lock of the interpreter; nobody else has this ticket
        with self._turned:
            self._turn += 1
            self._turned.notify_all()

    def stop(self) -> None:
        """Let those who wait go, with `HashStoppedError`."""
        with self._turned:
            self._stopped = True
            self._turned.notify_all()

    def digests(self) -> FileDigests:
        return self._digest.digests()

    def hexdigest(self) -> str:
        """SHA-256, where it was asked for."""
        found = self._digest.digests().sha256
        assert found is not None, "somebody who wants it takes it"
        return found


def stop_all(hashes: Iterable[OrderedHash]) -> None:
    for each in hashes:
        each.stop()
