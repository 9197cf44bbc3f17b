"""Files, read without trusting them: only regular ones, none waited for, none beyond a limit.

Guarantees: a pipe, a device or a file of holes is refused before a byte is read; a digest is of exactly the bytes that
were there when it began.
Refuses (OSError, or InvalidInputError from `read_bytes`): everything else.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
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
