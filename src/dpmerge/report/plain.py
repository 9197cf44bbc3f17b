"""The report for a terminal: a small plot of the frontier, the plans, the models, what each theorem costs, caveats.

Guarantees: no line is wider than the console; every ε is rounded up; what is not proved is not drawn and says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dpmerge.errors import printable
from dpmerge.planning.analysis import BANNER, Analysis, Curve, Edge
from dpmerge.report import wording
from dpmerge.report.axes import Axis, frontier_axes

ROWS = 13
WIDEST_PLOT = 100
MARKS = {"mix": "m", "combine": "c", "select": "s"}  # the simplest is drawn last and seen
METHODS = {"select": "random selection", "combine": "linear combination", "mix": "mixture"}
MODEL = "◆"
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)


def print_analysis(analysis: Analysis, console: Console) -> None:
    """Print what a page would show, as far as letters can."""
    console.print(Text(BANNER, style="bold yellow"))
    console.print(Text(f"\n{printable(analysis.title)}", style="bold"))
    console.print(Text(printable(analysis.subtitle)))
    utility = printable(analysis.utility.name)
    console.print(Text(f"\nBest {utility} at each ε ({wording.direction(analysis.utility)})", style="bold"))
    for row in _plot(analysis, min(console.width, WIDEST_PLOT)):
        console.print(Text(row), no_wrap=True, overflow="crop")
    console.print(_legend(analysis))
    console.print(Text("\nRecommended plans (a plan also meets every larger target)", style="bold"))
    console.print(_recommendations(analysis) if analysis.recommendations else Text("No plan was found."))
    console.print(Text("Models as they were trained", style="bold"))
    console.print(_models(analysis))
    if math.isfinite(analysis.joint_epsilon):
        cost = wording.epsilon(analysis.joint_epsilon)
        console.print(Text(f"Everything at once, whatever is done with it: ε = {cost}"))
    for edge in analysis.edges:
        _print_edge(edge, console)
    if analysis.caveats:
        console.print(Text("\nCaveats", style="bold"))
        grid = Table.grid(padding=(0, 1))
        for caveat in analysis.caveats:
            grid.add_row("-", Text(printable(caveat), overflow="fold"))
        console.print(grid)


def _plot(analysis: Analysis, width: int) -> Iterator[str]:
    """Rows of utility over columns of ε."""
    across, up = frontier_axes(analysis)
    names = {round((1 - up.place(value)) * (ROWS - 1)): f"{value:.4g}" for value in up.round_ticks()}
    margin = max(len(name) for name in names.values())
    columns = max(width - margin - 3, 20)
    cells = [[" "] * columns for _ in range(ROWS)]
    for method, mark in MARKS.items():
        curves = [curve for curve in analysis.curves if curve.method == method and curve.proved]
        for column, epsilon in enumerate(across.ticks(columns)):
            value = _best(curves, epsilon, higher=analysis.utility.higher_is_better)
            _put(cells, up, column, value, mark)
    for model in analysis.models:
        if math.isfinite(model.epsilon) and math.isfinite(model.utility):
            _put(cells, up, round(across.place(model.epsilon) * (columns - 1)), model.utility, MODEL)
    for row, line in enumerate(cells):
        yield f"{names.get(row, ''):>{margin}} {'┤' if row in names else '│'}{''.join(line)}".rstrip()
    base, ticks = across.drawn(columns)
    scale = " (logarithmic)" if across.log else ""
    yield f"{'':>{margin}} └{base}"
    yield f"{'':>{margin}}  {ticks}".rstrip()
    yield f"{'':>{margin}}  {f'ε at δ = {analysis.delta:g}{scale}':^{columns}}".rstrip()


def _best(curves: Sequence[Curve], epsilon: float, *, higher: bool) -> float:
    """What a method reaches within ε; NaN if nothing. Between two targets it is what the smaller one reaches."""
    reached = [curve.utilities[curve.epsilons <= epsilon] for curve in curves]
    values = np.concatenate([np.zeros(0), *reached])
    values = values[np.isfinite(values)]
    if not values.size:
        return math.nan
    return float(values.max() if higher else values.min())


def _put(cells: list[list[str]], up: Axis, column: int, value: float, mark: str) -> None:
    if math.isfinite(value):
        cells[round((1 - up.place(value)) * (ROWS - 1))][column] = mark


def _legend(analysis: Analysis) -> Text:
    used = [method for method in reversed(MARKS) if any(c.method == method and c.proved for c in analysis.curves)]
    legend = Text(f"{MODEL} a model as trained")
    for method in used:
        legend.append(f"   {MARKS[method]} {METHODS[method]}")
    if len(used) > 1:
        legend.append("\nwhere methods agree, the simplest is drawn")
    omitted = [wording.label(curve) for curve in analysis.curves if not curve.proved]
    if omitted:
        legend.append(f"\nnot drawn: {'; '.join(omitted)}")
    return legend


def _recommendations(analysis: Analysis) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("target", "ε"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column(_heading(analysis), justify="right", max_width=15, overflow="fold")
    table.add_column(Text("released"), overflow="fold")
    table.add_column(Text("by"), overflow="fold", max_width=18)
    for plan in analysis.recommendations:
        table.add_row(
            f"{plan.target:g}",
            wording.epsilon(plan.epsilon),
            wording.utility(plan.utility),
            Text(wording.released(plan)),
            Text(wording.accounted(plan)),
        )
    return table


def _models(analysis: Analysis) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("model", overflow="fold")
    table.add_column("ε", justify="right", no_wrap=True)
    table.add_column(_heading(analysis), justify="right", max_width=20, overflow="fold")
    for model in analysis.models:
        name = Text(printable(model.name))
        table.add_row(name, wording.epsilon(model.epsilon), wording.utility(model.utility))
    return table


def _heading(analysis: Analysis) -> Text:
    return Text(printable(analysis.utility.name))


def _print_edge(edge: Edge, console: Console) -> None:
    """ε at a few shares, every line and every theorem."""
    first, second = (printable(name) for name in edge.names)
    console.print(Text(f"\nε between {first} (share 0) and {second} (share 1)", style="bold"))
    places = [int(np.argmin(np.abs(edge.weights - share))) for share in SHARES] if edge.weights.size else []
    places = list(dict.fromkeys(places))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(Text("share of the second"), overflow="fold")
    for place in places:
        table.add_column(f"{edge.weights[place]:.3g}", justify="right", no_wrap=True)
    for lines, kind in ((edge.lines, ""), (edge.theorems, "by ")):
        for line in lines:
            style = "" if line.proved else "yellow"
            costs = [wording.epsilon(float(line.epsilons[place])) for place in places]
            table.add_row(Text(f"{kind}{wording.label(line)}"), *costs, style=style)
        table.add_section()
    console.print(table)
