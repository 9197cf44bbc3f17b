"""What every verb does at the edges: one-line errors, JSON, a console wide enough for its tables."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpmerge.errors import DeltaOutOfReach, DpmergeError, NoGuarantee

if TYPE_CHECKING:
    from rich.console import Console

AsJson = Annotated[bool, typer.Option("--json", help="Print every figure at full precision as JSON.")]


def tolerate_narrow_encodings() -> None:
    """Print a question mark for what an old terminal cannot show, instead of failing at the first ε."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


@contextmanager
def one_line_errors(when_interrupted: str = "") -> Iterator[None]:
    """Say what was wrong in one line on standard error; exit with 1 if there is no such guarantee, else with 2."""
    try:
        yield
    except DpmergeError as error:
        for line in (f"error: {error}", *getattr(error, "__notes__", ())):
            print(" ".join(line.split()), file=sys.stderr)
        no_such_guarantee = isinstance(error, NoGuarantee) and not isinstance(error, DeltaOutOfReach)
        raise typer.Exit(1 if no_such_guarantee else 2) from None
    except KeyboardInterrupt:
        print(f"interrupted{'; ' + when_interrupted if when_interrupted else ''}", file=sys.stderr)
        raise typer.Exit(130) from None


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


def print_json(document: Any) -> None:
    typer.echo(json.dumps(document, indent=2, allow_nan=False))


def wide_console() -> Console:
    """A terminal narrower than the tables wraps lines; an ε with its last digits cut off would be rounded down."""
    from rich.console import Console

    return Console(width=max(Console().width, 80))
