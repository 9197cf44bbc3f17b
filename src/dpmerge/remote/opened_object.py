"""An object of a store, opened as a file: it has one size and one version for as long as it is open.

Guarantees: every byte is of the version there was when it was opened, or an error (OSError).
"""

from __future__ import annotations

import errno
import io
from typing import BinaryIO, cast

from dpmerge.remote.remote_path import RemotePath
from dpmerge.remote.stores import store_of

FIRST, MOST = 2**16, 2**23
"""Bytes of a request when a file is read in order: most headers are within the first, and each is twice the last."""


class OpenedObject(io.RawIOBase):
    """Reads at any place are a request each, for several threads; reads in order ask for more at a time, for one."""

    def __init__(self, path: RemotePath) -> None:
        super().__init__()
        self.path = path
        self._store = store_of(path)
        self._state = self._store.state(path)
        self._at = 0
        self._ahead, self._block, self._block_at = FIRST, b"", 0

    @property
    def size(self) -> int:
        return self._state.size

    @property
    def identity(self) -> str:
        return self._state.identity

    def read_at(self, into: memoryview, offset: int) -> int:
        """Fill a buffer as far as there is something; how many bytes that are."""
        end = min(offset + len(into), self.size)
        if end <= offset:
            return 0
        content = self._store.read(self.path, self._state, offset, end)
        if len(content) != end - offset:
            raise OSError(errno.ESTALE, "was changed while it was read", str(self.path))
        into[: len(content)] = content
        return len(content)

    def now(self) -> str:
        """What it is at this moment, which is something else if it was replaced."""
        return self._store.state(self.path).identity

    def require_unchanged(self) -> None:
        """After the last read: where the store could not promise one version, see that there was one."""
        if not self._state.pin and self.now() != self.identity:
            raise OSError(errno.ESTALE, "was changed while it was read", str(self.path))

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        into = memoryview(buffer).cast("B")
        if not self._block_at <= self._at < self._block_at + len(self._block):
            wanted = min(max(len(into), self._ahead), max(self.size - self._at, 0))
            fetched = bytearray(wanted)
            self.read_at(memoryview(fetched), self._at)
            self._block, self._block_at = bytes(fetched), self._at
            self._ahead = min(2 * self._ahead, MOST)
        piece = self._block[self._at - self._block_at :][: len(into)]
        into[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)


def opened_object(path: RemotePath) -> BinaryIO:
    """An object, open for reading from its start."""
    return cast(BinaryIO, io.BufferedReader(OpenedObject(path), FIRST))
