"""One process at a time makes a release in a folder: two would draw noise twice.

Refuses (CannotWriteError): a place where another process is making one, or that cannot be locked.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dpmerge.errors import CannotWriteError
from dpmerge.merging.staging import no_locks


def is_being_made(out: Path) -> bool:
    """Whether a process is making a release in this place at this moment."""
    try:
        descriptor = os.open(_lock(out), os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False  # nobody can tell; who asks then waits for nobody
    finally:
        os.close(descriptor)
    return False


def _lock(out: Path) -> Path:
    return out.with_name(f".{out.name}.lock")


@contextmanager
def output_lock(out: Path) -> Iterator[Callable[[], None]]:
    """Let one process make releases in a place: two would draw noise twice. What is yielded removes the lock early."""
    lock = _lock(out)
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        accepted = "a folder that can be written to"
        raise CannotWriteError.from_os(error, field="output", path=out, accepted=accepted) from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            problem = f"output: another process is making a release in {out}"
            raise CannotWriteError("output", str(out), "wait for it, or name another folder", problem=problem) from None
        except OSError as error:
            raise no_locks(out, error) from None
        try:
            yield lambda: _removed(lock)
        finally:
            _removed(lock)
    finally:
        with suppress(OSError):
            os.close(descriptor)


def _removed(lock: Path) -> None:
    """A file of no lock that stays behind harms nobody; an error here would hide what has happened to the release."""
    with suppress(OSError):
        lock.unlink(missing_ok=True)
