"""What every verb does at the edges: one-line errors, JSON, a console wide enough for its tables.

Guarantees: nothing a verb says can be taken for something else, whoever chose the names in it; whatever fails ends in
one line on standard error and an exit code that means it, and never with 1 after something was charged.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpmerge.errors import ApprovalNeededError, DeltaOutOfReachError, DpmergeError, NoGuaranteeError, printable
from dpmerge.releasing.charge_notes import is_charged

if TYPE_CHECKING:
    from dpmerge.console import PlainConsole

AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON, every figure at full precision.")]

NO_GUARANTEE, FAILED, WAITING, INTERRUPTED, NOBODY_READS = 1, 2, 3, 130, 141
"""Exit codes, beside 0. The last two are what a shell gives for SIGINT and SIGPIPE."""


def tolerate_narrow_encodings() -> None:
    """Print a question mark for what an old terminal cannot show, instead of failing at the first ε."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


@contextmanager
def one_line_errors(when_interrupted: str = "", *, as_json: bool = False) -> Iterator[None]:
    """Say what was wrong in one line on standard error; exit with 1 if there is no such guarantee, else with 2.

    What waits for approval is no failure: it exits with 3, and `as_json` prints the request.
    """
    try:
        yield
        sys.stdout.flush()  # a full disk is noticed here, or by nobody
    except (typer.Exit, typer.Abort):
        raise
    except KeyboardInterrupt as error:
        _complain(f"interrupted{'; ' + when_interrupted if when_interrupted else ''}", error)
        raise typer.Exit(INTERRUPTED) from None
    except BrokenPipeError as error:
        _forget_output()
        if is_charged(error):
            _complain("error: nobody reads standard output", error)
        raise typer.Exit(NOBODY_READS) from None
    except ApprovalNeededError as error:
        _complain(str(error), error)
        if as_json:
            names = ("request", "what", "missing", "people", "expires", "ledger")
            print_json({"waiting": {name: getattr(error, name) for name in names}})
        raise typer.Exit(WAITING) from None
    except DpmergeError as error:
        _complain(f"error: {error}", error)
        no_such_guarantee = isinstance(error, NoGuaranteeError) and not isinstance(error, DeltaOutOfReachError)
        raise typer.Exit(NO_GUARANTEE if no_such_guarantee and not is_charged(error) else FAILED) from None
    except (OSError, ValueError) as error:
        _complain(f"error: {_told(error)}", error)
        raise typer.Exit(FAILED) from None
    except Exception as error:
        if not is_charged(error):
            raise  # a mistake of ours, before anything was released: its traceback says where
        _complain(f"error: {type(error).__name__}: {error}", error)
        raise typer.Exit(FAILED) from None


def _told(error: OSError | ValueError) -> str:
    """What went wrong, with the file it went wrong with."""
    if isinstance(error, OSError):
        names = [str(name) for name in (error.filename, error.filename2) if name is not None]
        return ": ".join([*names, error.strerror or str(error) or type(error).__name__])
    if isinstance(error, UnicodeError):
        return f"{error.reason if hasattr(error, 'reason') else error}; accepted: names and text in UTF-8"
    return str(error)


def _complain(words: str, error: BaseException) -> None:
    """One line on standard error, and one for each note; somebody who has closed it hears nothing."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        _forget_output()
    with suppress(OSError):
        for line in (words, *getattr(error, "__notes__", ())):
            print(printable(" ".join(line.split())), file=sys.stderr)
        sys.stderr.flush()


def _forget_output() -> None:
    """Nobody reads any more: what is still in a buffer goes nowhere, without a complaint when Python ends."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


@contextmanager
def bytes_shown(what: str) -> Iterator[Callable[[int, int], object] | None]:
    """A bar with bytes and rate on standard error, for who waits at a terminal; None where nobody does."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def say(*lines: str, err: bool = False) -> None:
    """Lines of ours, each with every character it has."""
    for line in lines:
        typer.echo(printable(line), err=err)


def print_json(document: Any) -> None:
    """In ASCII, so that whatever names are in it reaches a terminal as escapes."""
    typer.echo(json.dumps(document, indent=2, allow_nan=False))


def wide_console() -> PlainConsole:
    """A terminal narrower than the tables wraps lines; an ε with its last digits cut off would be rounded down."""
    from dpmerge.console import PlainConsole

    return PlainConsole(width=max(PlainConsole().width, 80))
