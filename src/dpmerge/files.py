"""Files, read without trusting them: only regular ones, none waited for, none beyond a limit; or objects of a store.

Guarantees: a pipe, a device or a file of holes is refused before a byte is read; a digest is of exactly the bytes that
were there when it began; of an object every byte is of one version. What is being written is locked: a leftover is
known by a lock that nobody holds.
Refuses (OSError, or InvalidInputError from `read_bytes`): everything else.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import secrets
import stat
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from dpmerge.errors import CannotReadError, InvalidInputError
from dpmerge.remote.remote_path import RemotePath

if TYPE_CHECKING:
    from dpmerge.remote.opened_object import OpenedObject

_PIECE = 2**20

LARGEST_DOCUMENT = 10_000_000
"""Bytes. A document is read whole before anything in it is believed."""

LARGEST_SMALL_FILE = 64_000_000
"""Bytes of what is no weights beside a model. The largest tokenizers have about 30 MB."""

MOSTLY_HOLES = 2**30
"""Bytes above which a file must be on disk by a thousandth at least: weights have no holes."""


def regular_descriptor(path: str | Path) -> int:
    """A descriptor of a regular file, to read from; an OSError for anything else.

    Opened without waiting: a pipe would keep who opens it waiting for a writer, a device could give bytes for ever,
    and so would a file of a few blocks that says it has hundreds of gigabytes.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        # Where no block is counted at all, the file system does not count them.
        if found.st_size > MOSTLY_HOLES and 0 < 512 * found.st_blocks < found.st_size // 1000:
            raise OSError(errno.EINVAL, f"{found.st_size:,} bytes, nearly all of them holes", str(path))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def open_regular(path: str | Path) -> BinaryIO:
    """A regular file, or an object of a store, open for reading; an OSError for anything else."""
    if isinstance(path, RemotePath):
        from dpmerge.remote.opened_object import opened_object

        return opened_object(path)
    return os.fdopen(regular_descriptor(path), "rb")


def size_of(file: BinaryIO) -> int:
    """How many bytes a file that `open_regular` gave has."""
    remote = getattr(file, "raw", None)
    size = getattr(remote, "size", None)
    return os.fstat(file.fileno()).st_size if size is None else int(size)


def require_one_version(file: BinaryIO) -> None:
    """After the last read of what `open_regular` gave: an object of a store was not replaced meanwhile (OSError)."""
    if (check := getattr(getattr(file, "raw", None), "require_unchanged", None)) is not None:
        check()


def file_size(path: Path) -> int:
    """How many bytes a file has; an OSError if there is none."""
    if isinstance(path, RemotePath):
        from dpmerge.remote.stores import store_of

        return store_of(path).state(path).size
    return path.stat().st_size


class OpenFile:
    """A file somewhere: its size, its bytes at any place, and by what a change of it is recognised.

    Several threads may read at a time. Opening it is an OSError for anything but a regular file or an object.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.descriptor: int | None = None
        """Of a file on disk."""
        self._object: OpenedObject | None = None
        if isinstance(path, RemotePath):
            from dpmerge.remote.opened_object import OpenedObject

            self._object = OpenedObject(path)
        else:
            self.descriptor = regular_descriptor(path)

    @property
    def size(self) -> int:
        if self._object is not None:
            return self._object.size
        assert self.descriptor is not None, "it is open"
        return os.fstat(self.descriptor).st_size

    @property
    def identity(self) -> Hashable:
        """Of a file on disk its size, time and inode, as they are now; of an object the version that is being read."""
        if self._object is not None:
            return self._object.identity
        assert self.descriptor is not None, "it is open"
        found = os.fstat(self.descriptor)
        return found.st_size, found.st_mtime_ns, found.st_ino

    def is_still(self, identity: Hashable) -> bool:
        """Whether it is what it was: the file that is open, or the object that is there now."""
        return (self.identity if self._object is None else self._object.now()) == identity

    def read_at(self, into: memoryview, offset: int) -> int:
        """Fill a buffer as far as possible; how many bytes that are, 0 at the end."""
        if self._object is not None:
            return self._object.read_at(into, offset)
        assert self.descriptor is not None, "it is open"
        return os.preadv(self.descriptor, [into], offset)

    def close(self) -> None:
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None


def read_bytes(path: Path, limit: int = LARGEST_DOCUMENT, accepted: str = "a readable JSON file") -> bytes:
    """The file's content, never more than `limit` bytes of it."""
    try:
        with open_regular(path) as file:
            content = file.read(limit + 1)
            require_one_version(file)
    except OSError as error:
        raise CannotReadError.from_os(error, path=path, accepted=accepted) from None
    except ValueError as error:  # a name no file can have
        raise InvalidInputError(str(path), path, accepted, found=f"an error: {error}") from None
    if len(content) > limit:
        raise InvalidInputError(str(path), path, f"at most {limit:,} bytes", found="a larger file")
    return content


def is_file(path: Path) -> bool:
    """Whether there is a file that can be seen; a name no file can have is none. Of a store that fails nobody knows."""
    try:
        return path.is_file()
    except (OSError, ValueError) as error:
        if isinstance(path, RemotePath):
            raise CannotReadError.from_os(_of_the_system(error), path=path, accepted="a store that answers") from None
        return False


def _of_the_system(error: OSError | ValueError) -> OSError:
    return error if isinstance(error, OSError) else OSError(errno.EINVAL, "no name of an object")


def file_digest(file: Path, size: int | None = None) -> str:
    """SHA-256 of a file, which must have `size` bytes where that is known; an OSError if it has not."""
    found = hashlib.sha256()
    feed_file(file, found.update, size)
    return found.hexdigest()


def feed_file(file: Path, update: Callable[[bytes], None], size: int | None = None) -> None:
    """Every byte of a file, which must have `size` where that is known, to a digest; an OSError if it has not."""
    with open_regular(file) as stream:
        left = size_of(stream)
        if size is not None and left != size:
            raise OSError(errno.EFBIG, f"{left:,} bytes where {size:,} were certified", str(file))
        while left and (piece := stream.read(min(left, _PIECE))):
            update(piece)
            left -= len(piece)
        if left or stream.read(1):
            raise OSError(errno.ESTALE, "changed while it was read", str(file))
        require_one_version(stream)


def sync_folder(folder: Path) -> None:
    """Make a rename in this folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def try_lock(descriptor: int) -> bool:
    """Lock a file or folder; False if somebody else has it locked."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_at(path: Path, descriptor: int) -> bool:
    """Whether what was opened is still what is found there."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def made_and_locked(make: Callable[[], tuple[Path, int] | None]) -> tuple[Path, int]:
    """What `make` makes and opens, locked; made again if somebody took it for a dead process's before it was.

    `make` gives None if what it made was gone before it could be opened.

    Where the file system has no locks it is not locked; who looks for leftovers there cannot lock it either.
    """
    while True:
        made = make()
        if made is None:
            continue
        path, descriptor = made
        try:
            if try_lock(descriptor) and is_at(path, descriptor):
                return path, descriptor
        except OSError:
            return path, descriptor
        os.close(descriptor)


@contextmanager
def partial_file(path: Path, mode: int = 0o600) -> Iterator[tuple[Path, BinaryIO]]:
    """A new file beside `path`, for its owner alone unless said otherwise, open and locked; gone unless renamed."""

    def make() -> tuple[Path, int]:
        beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
        return beside, os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)

    beside, descriptor = made_and_locked(make)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield beside, file
    finally:
        with suppress(OSError):  # it would hide what went wrong
            if os.path.lexists(beside):
                beside.unlink()


@contextmanager
def nobodys(path: Path) -> Iterator[int | None]:
    """A file or folder that no living process has locked, locked meanwhile; None if one has, or nobody can tell."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        yield None
        return
    try:
        try:
            dead = try_lock(descriptor) and is_at(path, descriptor)
        except OSError:
            dead = False
        yield descriptor if dead else None
    finally:
        os.close(descriptor)
