"""`dpmerge example`: a portfolio to try the other verbs on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpmerge.cli.terminal import AsJson, one_line_errors, print_json, say


def example(
    name: Annotated[str, typer.Argument(metavar="NAME", help="`mnist`: eight runs of logistic regression.")],
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="DIR", help="Where it goes: a new folder, or an empty one.")
    ],
    as_json: AsJson = False,
) -> None:
    """Write a small portfolio that ships with dpmerge.

    Eight full-batch DP-SGD runs on MNIST, ε = 0.0505 each at δ = 1e-5. None of them costs 0.12; averages of four or
    five of them do, about. Something to plan, merge and verify before there are models of your own. The noise is
    seeded, so that anybody can train them again; real runs must not be.

    Example: `dpmerge example mnist -o models`
    """
    with one_line_errors():
        from dpmerge.examples import write_example

        runs = write_example(name, output)
        if as_json:
            print_json({"example": name, "output": str(output), "runs": list(runs)})
            return
    say(
        f"Wrote {output}: {len(runs)} runs, {runs[0]} to {runs[-1]}.",
        f"Next: dpmerge plan {output} --epsilon 0.12 --delta 1e-5",
    )
