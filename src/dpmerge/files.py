"""Files, read without trusting them: only regular ones, none waited for, none beyond a limit.

Guarantees: a pipe, a device or a file of holes is refused before a byte is read; a digest is of exactly the bytes that
were there when it began. What is being written is locked: a leftover is known by a lock that nobody holds.
Refuses (OSError, or InvalidInputError from `read_bytes`): everything else.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from dpmerge.errors import CannotReadError, InvalidInputError

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
    """A regular file, open for reading; an OSError for anything else."""
    return os.fdopen(regular_descriptor(path), "rb")


def read_bytes(path: Path, limit: int = LARGEST_DOCUMENT, accepted: str = "a readable JSON file") -> bytes:
    """The file's content, never more than `limit` bytes of it."""
    try:
        with open_regular(path) as file:
            content = file.read(limit + 1)
    except OSError as error:
        raise CannotReadError.from_os(error, path=path, accepted=accepted) from None
    except ValueError as error:  # a name no file can have
        raise InvalidInputError(str(path), path, accepted, found=f"an error: {error}") from None
    if len(content) > limit:
        raise InvalidInputError(str(path), path, f"at most {limit:,} bytes", found="a larger file")
    return content


def is_file(path: Path) -> bool:
    """Whether there is a file that can be seen; a name no file can have is none."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def file_digest(file: Path, size: int | None = None) -> str:
    """SHA-256 of a file, which must have `size` bytes where that is known; an OSError if it has not."""
    found = hashlib.sha256()
    with open_regular(file) as stream:
        left = os.fstat(stream.fileno()).st_size
        if size is not None and left != size:
            raise OSError(errno.EFBIG, f"{left:,} bytes where {size:,} were certified", str(file))
        while left and (piece := stream.read(min(left, _PIECE))):
            found.update(piece)
            left -= len(piece)
        if left or stream.read(1):
            raise OSError(errno.ESTALE, "changed while it was read", str(file))
    return found.hexdigest()


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
