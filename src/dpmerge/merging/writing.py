"""Files as they are written: allocated first, hashed on the way, never half a file that looks whole.

Guarantees: a digest is that of the bytes handed to the operating system, in the file's order.
Refuses: a disk that is full or cannot be written, before any weights are read where that can be known.
"""

from __future__ import annotations

import errno
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from dpmerge.errors import CannotWriteError
from dpmerge.merging.layout import OutputFile
from dpmerge.merging.ordered_hash import OrderedHash

_CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_NOT_OFFERED = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


@dataclass(frozen=True)
class WrittenFile:
    """A file of an output. Its digest is empty where nobody asked for it."""

    name: str
    sha256: str
    size: int


class OutputWriter:
    """A file of weights that several threads write."""

    def __init__(self, folder: Path, file: OutputFile, *, hashing: bool) -> None:
        self.file = file
        self.hash: OrderedHash | None = OrderedHash(file.header) if hashing else None
        self._path = folder / file.name
        self._descriptor: int | None = create(self._path)
        try:
            allocate(self._path, self._descriptor, file.size)
            write_all(self._path, self._descriptor, memoryview(file.header), 0)
        except BaseException:
            self.close()
            raise

    def write(self, content: memoryview, offset: int) -> None:
        assert self._descriptor is not None
        write_all(self._path, self._descriptor, content, offset)

    def flush(self) -> None:
        """See to it that what was written is on the disk, where others look for it."""
        assert self._descriptor is not None
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise cannot_write(self._path, error) from None

    def finished(self) -> WrittenFile:
        """The file, after everything was written to it."""
        digest = self.hash.hexdigest() if self.hash is not None else ""
        return WrittenFile(self.file.name, digest, self.file.size)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def write_small(folder: Path, name: str, content: bytes, *, hashing: bool = True) -> WrittenFile:
    """A file that is in memory."""
    path = folder / name
    descriptor = create(path)
    try:
        write_all(path, descriptor, memoryview(content), 0)
    finally:
        os.close(descriptor)
    return WrittenFile(name, hashlib.sha256(content).hexdigest() if hashing else "", len(content))


def create(path: Path) -> int:
    """A new file; none may be there."""
    try:
        return os.open(path, _CREATE, 0o644)
    except OSError as error:
        raise cannot_write(path, error) from None


def allocate(path: Path, descriptor: int, size: int) -> None:
    """Take the space for a file, so that it cannot run out later."""
    if not size:
        return
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        if error.errno not in _NOT_OFFERED:
            raise cannot_write(path, error, size) from None
        os.ftruncate(descriptor, size)


def write_all(path: Path, descriptor: int, content: memoryview, offset: int) -> None:
    """Write every byte, or say why not."""
    while content:
        try:
            count = os.pwrite(descriptor, content, offset)
        except OSError as error:
            raise cannot_write(path, error) from None
        content, offset = content[count:], offset + count


def cannot_write(path: Path, error: OSError, size: int | None = None) -> CannotWriteError:
    accepted = "a folder that can be written to" if size is None else f"a place with room for {size:,} bytes"
    return CannotWriteError.from_os(error, field="output", path=path, accepted=accepted)
