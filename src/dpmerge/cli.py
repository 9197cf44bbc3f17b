"""The command line: thin, one function a verb.

Exit codes: 0 done, 1 no such guarantee, 2 bad input. Errors are one line on standard error, never a traceback.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from dpmerge import __version__
from dpmerge.errors import DpmergeError

app = typer.Typer(
    name="dpmerge",
    help="A model for any privacy level, from the differentially private models you already have.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dpmerge {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[  # noqa: ARG001
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """A model for any privacy level, from the differentially private models you already have."""
    _tolerate_narrow_encodings()


def _tolerate_narrow_encodings() -> None:
    """Print a question mark for what an old terminal cannot show, instead of failing at the first ε."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


@contextmanager
def _one_line_errors() -> Iterator[None]:
    try:
        yield
    except DpmergeError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        raise typer.Exit(2) from None


@app.command()
def account(
    spec: Annotated[
        Path, typer.Argument(metavar="SPEC.json", help="Runs and how they are merged; `-` reads standard input.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print every figure at full precision as JSON.")] = False,
) -> None:
    """What do these runs cost, released alone, drawn at random, or combined?

    SPEC.json lists the runs (steps, noise multiplier, clip norm, effective learning rates), the adjacency and δ, and
    optionally `probabilities` (release one, drawn at random) and `weights` (release the weighted average).

    For a combination all theorems are shown side by side. **proof here?** says whether a figure is proved for *these*
    runs: the paper's `merged_trajectory`, for one, does not hold for ordinary DP-SGD.

    Example: `{"adjacency": "replace_one", "delta": 1e-5, "runs": [{"blocks": [{"steps": 20, "noise_multiplier": 32,
    "clip_norm": 2, "learning_rate": 4}]}]}`
    """
    with _one_line_errors():
        from dpmerge.account.figures import account as compute
        from dpmerge.account.spec import Spec

        parsed = Spec.parse(sys.stdin.buffer.read()) if str(spec) == "-" else Spec.read(spec)
        result = compute(parsed)
    if as_json:
        typer.echo(json.dumps(result.document(), indent=2, allow_nan=False))
        return
    from rich.console import Console

    from dpmerge.account.table import print_account

    console = Console()
    # A terminal narrower than the tables wraps lines; an ε with its last digits cut off would be rounded down.
    print_account(result, Console(width=max(console.width, 80)))
