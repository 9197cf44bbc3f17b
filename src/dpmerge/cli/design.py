"""`dpmerge design`: which runs to train for a range of targets."""

from __future__ import annotations

from typing import Annotated

import typer

from dpmerge.cli.options import DELTA
from dpmerge.cli.terminal import AsJson, one_line_errors, print_json, wide_console


def design(
    epsilons: Annotated[
        str,
        typer.Option(
            "--range", metavar="LOW:HIGH", help="The smallest and the largest ε to be able to serve, such as 0.1:2."
        ),
    ],
    delta: DELTA,
    levels: Annotated[int, typer.Option(help="For how many values of ε in the range.")] = 10,
    steps: Annotated[int, typer.Option(help="Full-batch steps of every run.")] = 20,
    runs: Annotated[int | None, typer.Option(help="Train at most this many runs; default: as many as help.")] = None,
    checkpoints: Annotated[
        int | None, typer.Option(help="Checkpoints kept of every run, between half of training and its end.")
    ] = None,
    adjacency: Annotated[
        str,
        typer.Option(help="What neighbouring data sets are: `replace_one`, `add_remove` or `zero_out` of one record."),
    ] = "replace_one",
    as_json: AsJson = False,
) -> None:
    """Which full-batch runs should be trained, so that any ε in a range can be served later?

    Chooses noise multipliers, and the checkpoints to keep, so that for every ε in the range some average of them costs
    just less: its noise is then hardly more than that of a model trained for exactly this ε. The result is compared
    with the same number of equal runs.

    Example: `dpmerge design --range 0.1:2 --delta 1e-5 --levels 10 --steps 20`
    """
    with one_line_errors():
        from dpmerge.design.design import design as compute
        from dpmerge.design.design import parse_range

        low, high = parse_range(epsilons)
        result = compute(
            low, high, delta, levels=levels, steps=steps, runs=runs, checkpoints=checkpoints, adjacency=adjacency
        )
    if as_json:
        print_json(result.document())
        return
    from dpmerge.design.table import print_design

    print_design(result, wide_console())
