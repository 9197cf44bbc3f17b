"""Errors after a charge: whatever fails says what has become of the release."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dpmerge.errors import CannotWriteError, DpmergeError


@contextmanager
def noting(words: str | None, out: Path) -> Iterator[None]:
    """Whatever fails says what has become of the release; what the system complains of is an error of ours."""
    try:
        yield
    except BrokenPipeError as error:  # standard output: there is nothing to mend
        if words is not None:
            note_charge(error, words)
        raise
    except OSError as error:
        if isinstance(error, DpmergeError):
            if words is not None:
                note_charge(error, words)
            raise
        failed = cannot_go_on(out, error)
        if words is not None:
            note_charge(failed, words)
        raise failed from error
    except BaseException as error:
        if words is not None:
            note_charge(error, words)
        raise


def cannot_go_on(out: Path, error: OSError) -> CannotWriteError:
    accepted = "files and folders that can be read and written"
    path = out if error.filename is None else error.filename
    return CannotWriteError.from_os(error, field="output", path=path, accepted=accepted, failed="cannot go on with")


def note_charge(error: BaseException, words: str) -> None:
    """Add to an error, whatever it is, that a release stays charged."""
    error.add_note(words)
    error.__dict__["charged"] = True


def is_charged(error: BaseException) -> bool:
    """Whether a release stays charged although this was raised."""
    return "charged" in error.__dict__
