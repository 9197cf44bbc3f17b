"""The report for a terminal: a small plot of the frontier, the plans, the models, what each theorem costs, caveats.

Guarantees: no line is wider than the console; every ε is rounded up; what is not proved is not drawn and says so.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from dpmerge.errors import printable
from dpmerge.planning.analysis import Analysis
from dpmerge.report import wording
from dpmerge.report.analysis_plots import frontier_plot
from dpmerge.report.analysis_tables import edge_table, models_table, plans_table
from dpmerge.report.plot_text import text_rows
from dpmerge.report.plots import Plot, Series, Table

WIDEST_PLOT = 100
METHODS = {"select": ("s", "random selection"), "combine": ("c", "linear combination"), "mix": ("m", "mixture")}
"""The letter and the name of each, the simplest first: it is seen where several reach the same."""

NUMBER = re.compile(r"[-+.\de]+|∞|–")


def print_analysis(analysis: Analysis, console: Console) -> None:
    """Print what a page would show, as far as letters can."""
    plot = _frontier(analysis)
    # It is about all that follows, so it comes before all of it.
    console.print(Text(plot.banner, style="bold yellow"))
    console.print(Text(f"\n{printable(analysis.title)}", style="bold"))
    console.print(Text(printable(analysis.subtitle)))
    console.print(Text(f"\n{plot.heading} ({wording.direction(analysis.utility)})", style="bold"))
    for row in text_rows(replace(plot, banner=""), min(console.width, WIDEST_PLOT)):
        console.print(Text(row, overflow="fold"))
    console.print()
    if analysis.recommendations:
        _print_table(plans_table(analysis), console, " (a plan also meets every larger target)")
        if falls := wording.falls(analysis):
            console.print(Text(f"{falls}\n"))
    else:
        console.print(Text("No plan was found."))
    _print_table(models_table(analysis), console)
    if math.isfinite(analysis.joint_epsilon):
        cost = wording.epsilon(analysis.joint_epsilon)
        console.print(Text(f"Everything at once, whatever is done with it: ε = {cost}"))
    for edge in analysis.edges:
        console.print()
        _print_table(edge_table(edge), console)
    if analysis.caveats:
        console.print(Text("\nCaveats", style="bold"))
        grid = RichTable.grid(padding=(0, 1))
        for caveat in analysis.caveats:
            grid.add_row("-", Text(printable(caveat), overflow="fold"))
        console.print(grid)


def _frontier(analysis: Analysis) -> Plot:
    """The frontier as far as it is proved, a mark a method: the best of its curves."""
    plot = frontier_plot(analysis)
    worst, best = (-math.inf, np.maximum) if analysis.utility.higher_is_better else (math.inf, np.minimum)
    drawn = []
    for method, (letter, name) in METHODS.items():
        curves = [curve for curve in analysis.curves if curve.method == method and curve.proved]
        if not curves:
            continue
        x, y = (np.concatenate(v) for v in zip(*((c.epsilons, c.utilities) for c in curves), strict=True))
        order = np.argsort(x)
        # Between two targets it is what the smaller one reaches.
        reached = best.accumulate(np.where(np.isfinite(y), y, worst)[order])
        drawn.append(Series(name=name, x=x[order], y=reached, colour="", letter=letter, steps=True))
    notes = ["where methods agree, the simplest is drawn"] if len(drawn) > 1 else []
    omitted = [wording.label(curve) for curve in analysis.curves if not curve.proved]
    if omitted:
        notes.append(f"not drawn: {'; '.join(omitted)}")
    return replace(plot, series=(*drawn, plot.series[-1]), note="\n".join(notes))


def _print_table(table: Table, console: Console, words: str = "") -> None:
    """Numbers to the right, and never broken."""
    console.print(Text(f"{table.heading}{words}", style="bold"))
    shown = RichTable(box=box.SIMPLE_HEAD, pad_edge=False)
    for place, name in enumerate(table.head):
        cells = [row[place] for row in table.rows]
        if cells and all(NUMBER.fullmatch(cell) for cell in cells):
            width = max(map(len, cells))
            shown.add_column(Text(name), justify="right", min_width=width, max_width=max(width, 8), overflow="fold")
        else:
            shown.add_column(Text(name), overflow="fold")
    for row in table.rows:
        shown.add_row(*map(Text, row), style="yellow" if wording.NOT_PROVED in row[0] else "")
    console.print(shown)
