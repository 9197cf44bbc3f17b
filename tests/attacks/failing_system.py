"""A system whose calls fail: one call of one kind, the n-th that concerns a folder, as a bad disk or network would."""

from __future__ import annotations

import errno
import fcntl
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

CALLS: dict[str, tuple[Any, str, int]] = {
    "open": (os, "open", errno.EIO),
    "open a stream": (io, "open", errno.EACCES),
    "stat": (os, "stat", errno.EACCES),
    "fstat": (os, "fstat", errno.EIO),
    "list": (os, "listdir", errno.EACCES),
    "scan": (os, "scandir", errno.EIO),
    "read": (os, "preadv", errno.EIO),
    "write": (os, "pwrite", errno.ENOSPC),
    "allocate": (os, "posix_fallocate", errno.ENOSPC),
    "flush": (os, "fsync", errno.EIO),
    "lock": (fcntl, "flock", errno.ENOLCK),
    "rename": (os, "rename", errno.EIO),
    "replace": (os, "replace", errno.EIO),
    "link": (os, "link", errno.EPERM),
    "remove": (os, "unlink", errno.EROFS),
    "make a folder": (os, "mkdir", errno.ENOSPC),
    "remove a folder": (os, "rmdir", errno.EIO),
    "change the mode": (os, "chmod", errno.EPERM),
    "change an open file's mode": (os, "fchmod", errno.EPERM),
    "ask for room": (os, "statvfs", errno.EIO),
    "close": (os, "close", errno.EIO),
}
"""Kind of call → where it is, and what it answers when it fails."""


@dataclass
class Counted:
    """How many calls of each kind were made, and whether the one that was to fail has failed."""

    calls: dict[str, int]
    failed: bool = False


@contextmanager
def failing(folder: Path, kind: str | None, number: int = 0) -> Iterator[Counted]:
    """Let the call of that kind and number (from 0) that concerns a folder, or an open file, fail; None: only count."""
    counted = Counted(dict.fromkeys(CALLS, 0))
    with pytest.MonkeyPatch.context() as patched:
        for name, (owner, attribute, code) in CALLS.items():
            original = getattr(owner, attribute)
            patched.setattr(owner, attribute, _watched(original, folder, name, code, kind, number, counted))
        yield counted


def _watched(
    original: Callable[..., Any], folder: Path, name: str, code: int, kind: str | None, number: int, counted: Counted
) -> Callable[..., Any]:
    def call(*given: Any, **named: Any) -> Any:
        if not _concerns(given, folder):
            return original(*given, **named)
        counted.calls[name] += 1
        if name == kind and counted.calls[name] == number + 1:
            counted.failed = True
            if name == "close":
                original(*given, **named)
            raise OSError(code, os.strerror(code), None if isinstance(given[0], int) else str(given[0]))
        return original(*given, **named)

    return call


def _concerns(given: tuple[Any, ...], folder: Path) -> bool:
    if not given or isinstance(given[0], int):
        return bool(given)
    try:
        return os.path.abspath(os.fsdecode(given[0])).startswith(str(folder))
    except TypeError:
        return False
