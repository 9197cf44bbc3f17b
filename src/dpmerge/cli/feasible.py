"""`dpmerge feasible`: all probabilities or weights that meet a target, as a table, a picture or JSON."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpmerge.cli.audit import require_picture
from dpmerge.cli.options import (
    ALLOW,
    CHECKPOINTS,
    CONVERSION,
    DELTA,
    HEADERS_ONLY,
    PORTFOLIO,
    REHASH,
    loaded_portfolio,
    require_writable,
)
from dpmerge.cli.terminal import AsJson, one_line_errors, print_json, say

if TYPE_CHECKING:
    from dpmerge.report.feasible_table import FeasibleTable

MOST_CORNERS = 20
"""Printed; the rest is in the JSON."""


def feasible(
    portfolio: PORTFOLIO,
    epsilon: Annotated[float, typer.Option(help="The ε to meet.")],
    delta: DELTA,
    method: Annotated[
        str, typer.Option(help="`select` (probabilities of drawing one model) or `combine` (weights of an average).")
    ] = "select",
    accounting: Annotated[str, typer.Option(help="`pld` (exact) or `rdp` (Rényi divergence).")] = "pld",
    conversion: CONVERSION = None,
    theorem: Annotated[
        str, typer.Option(help="With `combine`: the theorem averages are accounted for by; `auto`: whatever is proved.")
    ] = "auto",
    checkpoints: CHECKPOINTS = "final",
    grid: Annotated[
        float | None, typer.Option(help="Between points of the table, for up to four models; 0.01 unless given.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="SET.csv", help="Write every point, its ε, and whether.")
    ] = None,
    picture: Annotated[Path | None, typer.Option(metavar="SET.png", help="Draw the set.")] = None,
    allow: ALLOW = None,
    headers_only: HEADERS_ONLY = False,
    rehash: REHASH = False,
    as_json: AsJson = False,
) -> None:
    """Which probabilities or weights of these models meet (ε, δ)? The paper's Algorithms 1 and 2.

    Prints how much of the simplex meets the target, and the corners of the set where it is a polytope. Nothing is
    looked at but the records, and nothing is charged: to release one of these, use `dpmerge merge`.

    Exit code 1: nothing meets the target; the message names the smallest ε that something does.

    Example: `dpmerge feasible examples/mnist --epsilon 0.9 --delta 1e-5 --checkpoints c2-s32@20,c4-s32@20,c2-s64@20`
    """
    with one_line_errors():
        from dpmerge.evaluation.evaluation_progress import show_progress
        from dpmerge.planning.feasible_set import feasible_set
        from dpmerge.report.feasible_table import FeasibleTable

        require_writable("output", output)
        require_picture(picture)
        found = feasible_set(
            loaded_portfolio(portfolio, headers_only, allow, rehash=rehash),
            epsilon=epsilon,
            delta=delta,
            method=method,  # type: ignore[arg-type]
            accounting=accounting,  # type: ignore[arg-type]
            conversion=conversion,  # type: ignore[arg-type]
            theorem=theorem,  # type: ignore[arg-type]
            checkpoints=checkpoints,
        )
        with show_progress(None, "points") as progress:
            table = FeasibleTable.of(found, grid, progress)
        if output is not None:
            table.write(output)
        if picture is not None:
            from dpmerge.report.feasible_plot import write_feasible_picture

            write_feasible_picture(found, picture, grid=grid)
        if as_json:
            counts = {"points": table.points, "tabulated": len(table.rows), "feasible": int(table.feasible.sum())}
            print_json({**found.document(), "table": counts})
            return
        _print(table)
    for path in (output, picture):
        if path is not None:
            say(f"Wrote {path}")


def _print(table: FeasibleTable) -> None:
    from dpmerge.accounting.rounding import format_up
    from dpmerge.report.feasible_plot import heading

    found = table.found
    if found.banner:
        say(found.banner)
    say(f"{heading(found)}:")
    say(f"  {int(table.feasible.sum())} of {len(table.rows)} points ({table.points}) meet the target")
    for name, model in zip(found.names, found.document()["epsilons"], strict=True):
        say(f"  {name} alone: ε = {format_up(float(model))}")
    if found.is_final:
        say("  what is not by joint_release holds only if nothing else of these runs is ever released")
    if found.method == "combine":
        return
    corners = found.vertices
    parts = f" of {len(found.parts)} polytopes, one a Rényi order" if len(found.parts) > 1 else ""
    say(f"  {len(corners)} corners{parts}")
    for corner in corners[:MOST_CORNERS] if len(found.parts) == 1 else ():
        shares = zip(found.names, corner.tolist(), strict=True)
        say("    " + ", ".join(f"{share:.6g} {name}" for name, share in shares if share > 0))
    if len(found.parts) == 1 and len(corners) > MOST_CORNERS:
        say(f"    and {len(corners) - MOST_CORNERS} more: --json lists them")
