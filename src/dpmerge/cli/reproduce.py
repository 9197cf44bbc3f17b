"""`dpmerge reproduce`: where the paper's experiments went."""

from __future__ import annotations

from typing import Annotated

import typer

from dpmerge.cli.terminal import FAILED, say


def reproduce(
    arguments: Annotated[  # noqa: ARG001
        list[str] | None, typer.Argument(metavar="EXPERIMENT", help="As for `python -m reproduction`.")
    ] = None,
) -> None:
    """Where are the paper's experiments? In the repository: `python -m reproduction`.

    They are not part of what is installed. In a clone of the repository, with the extras torch and report installed,
    `python -m reproduction all -o results` runs them.
    """
    say("error: the paper's experiments are not installed with dpmerge; they are in its repository.", err=True)
    say("In a clone of it run: python -m reproduction EXPERIMENT … -o DIR (or make reproduce)", err=True)
    raise typer.Exit(FAILED)
