"""What the operating system does with folders in one step: exchange two, put files on the disk for good."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator
from pathlib import Path

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_NOT_OFFERED = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP)


def exchange(one: Path, other: Path) -> bool:
    """Swap two folders in one step; False where the system cannot."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is None:
        return False
    if call(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in _NOT_OFFERED:
        return False
    raise OSError(number, os.strerror(number))


def files_in(folder: Path) -> Iterator[Path]:
    """All ordinary files below a folder."""
    yield from (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def flush(file: Path, mode: int) -> None:
    """Give a file its permissions, and see to it that it is on the disk."""
    descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fchmod(descriptor, mode)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
