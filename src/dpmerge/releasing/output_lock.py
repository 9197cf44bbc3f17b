"""One process at a time makes a release in a folder: two would draw noise twice.

Guarantees: whoever has the lock has the file that is there, and removes no other's; while it is held, a note in the
portfolio says where, so that what a killed process leaves is found.
Refuses (CannotWriteError): a place where another process is making one, or that cannot be locked.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dpmerge.errors import CannotWriteError
from dpmerge.files import is_at, made_and_locked
from dpmerge.merging.staging import no_locks

NOTE = ".dpmerge-release.{}.lock"
"""In a portfolio's folder: the place where a process is making a release, as text."""


def is_being_made(out: Path) -> bool:
    """Whether a process is making a release in this place at this moment."""
    try:
        descriptor = os.open(lock_of(out), os.O_RDWR)
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


def lock_of(out: Path) -> Path:
    """The file that is locked while a release is made in a place."""
    return out.with_name(f".{out.name}.lock")


@contextmanager
def output_lock(out: Path, noted_in: Path | None = None) -> Iterator[Callable[[], None]]:
    """Let one process make releases in a place: two would draw noise twice. What is yielded removes the lock early.

    `noted_in` is the folder of the portfolio it is made from.
    """
    with _noted(out, noted_in):
        lock = lock_of(out)
        descriptor = _locked(lock, out)

        def let_go() -> None:
            if _is_ours(lock, descriptor):  # after the first time it may be another process's
                _removed(lock)

        try:
            yield let_go
        finally:
            let_go()
            with suppress(OSError):
                os.close(descriptor)


def _locked(lock: Path, out: Path) -> int:
    """The lock's file, opened and locked; opened again if whoever had it has removed it meanwhile."""
    while True:
        try:
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            accepted = "a folder that can be written to"
            raise CannotWriteError.from_os(error, field="output", path=out, accepted=accepted) from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if is_at(lock, descriptor):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            problem = f"output: another process is making a release in {out}"
            raise CannotWriteError("output", str(out), "wait for it, or name another folder", problem=problem) from None
        except OSError as error:
            os.close(descriptor)
            raise no_locks(out, error) from None
        os.close(descriptor)


@contextmanager
def _noted(out: Path, home: Path | None) -> Iterator[None]:
    """Note where a release is made, as long as it is; where the portfolio cannot be written to, nothing is noted."""

    def make() -> tuple[Path, int]:
        assert home is not None
        path = home / NOTE.format(secrets.token_hex(4))
        return path, os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)

    note: tuple[Path, int] | None = None
    if home is not None:
        with suppress(OSError):
            note = made_and_locked(make)
            os.write(note[1], os.fsencode(out))
    try:
        yield
    finally:
        if note is not None:
            _removed(note[0])
            with suppress(OSError):
                os.close(note[1])


def _is_ours(lock: Path, descriptor: int) -> bool:
    try:
        return is_at(lock, descriptor)
    except OSError:  # nobody can tell; it stays
        return False


def _removed(lock: Path) -> None:
    """A file of no lock that stays behind harms nobody; an error here would hide what has happened to the release."""
    with suppress(OSError):
        lock.unlink(missing_ok=True)
