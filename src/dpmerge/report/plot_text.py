"""Figures for a terminal: a plot in letters, one mark a series.

Guarantees: no row is longer than asked for, if that leaves 20 columns; a banner comes first; every series is named
beside its mark, and one that is not proved says so; where lines meet, the first is seen, and marks without a line above
them all.
"""

from __future__ import annotations

import math
import string
import textwrap
from collections.abc import Iterator, Sequence

from dpmerge.errors import printable
from dpmerge.report.plot_view import View, Visible, lines, view
from dpmerge.report.plots import Plot, Series

ROWS = 13
MARGIN = 6
"""Characters for the numbers at the left, at least."""

FEWEST_COLUMNS = 20
_MEETING = {("·", "●"): "◉"}
"""Marks that show also what is under them."""


def text_rows(plot: Plot, width: int) -> Iterator[str]:
    """The plot in letters.

    Args:
        plot: What is drawn.
        width: Characters in a row.

    Yields:
        The banner, if there is one; the plot; the numbers and title of its x axis; the legend; the note.

    Raises:
        InvalidInputError: A series has x, y and error of different lengths.
    """
    seen = view(plot)
    names = {_row(seen.up.place(tick)): f"{tick:.4g}" for tick in seen.up.round_ticks()}
    margin = max(MARGIN, *map(len, names.values()))
    columns = max(width - margin - 2, FEWEST_COLUMNS)
    indent = " " * (margin + 2)
    yield from lines(plot.banner, width)
    for row, cells in enumerate(_cells(plot, seen, columns)):
        yield f"{names.get(row, ''):>{margin}} {'┤' if row in names else '│'}{''.join(cells)}".rstrip()
    base, numbers = seen.across.drawn(columns)
    yield f"{'':>{margin}} └{base}"
    yield f"{indent}{numbers}".rstrip()
    title = plot.across + (", logarithmic" if seen.across.log else "")
    yield from (f"{indent}{line:^{columns}}".rstrip() for line in lines(title, columns))
    legend = [f"{mark} {series.label}" for series, mark in zip(plot.series, _marks(plot), strict=True)]
    for line in _side_by_side(legend, columns):
        yield from textwrap.wrap(line, width, initial_indent=indent, subsequent_indent=indent, drop_whitespace=False)
    for part in plot.note.splitlines():
        yield from textwrap.wrap(printable(part), width, initial_indent=indent, subsequent_indent=indent)


def _marks(plot: Plot) -> list[str]:
    """The letter of each series, or one that no other has."""
    taken = {series.letter for series in plot.series}
    free = (letter for letter in string.ascii_letters if letter not in taken)
    return [series.letter or next(free, "*") for series in plot.series]


def _cells(plot: Plot, seen: View, columns: int) -> list[list[str]]:
    """Lines first, the first of them last, so that it is seen; then marks without a line."""
    cells = [[" "] * columns for _ in range(ROWS)]
    drawn = sorted(zip(plot.series, seen.series, _marks(plot), strict=True), key=lambda each: each[0].line)
    for series, points, mark in reversed(drawn):
        for column, place in _places(series, points, seen, columns):
            if 0 <= column < columns:
                row = cells[_row(place)]
                row[column] = _MEETING.get((row[column], mark), mark)
    return cells


def _places(series: Series, points: Visible, seen: View, columns: int) -> Iterator[tuple[int, float]]:
    """The columns of a series and how high it is there, from 0 to 1: its points, and what lies between neighbours."""
    before: tuple[int, float] | None = None
    for x, y in zip(points.x.tolist(), points.y.tolist(), strict=True):
        if not math.isfinite(x):
            before = None
            continue
        column, place = round(seen.across.place(x) * (columns - 1)), seen.up.place(y)
        if before is not None and series.line:
            begin, height = before
            for between in range(min(begin, column) + 1, max(begin, column)):
                share = 0.0 if series.steps else (between - begin) / (column - begin)
                yield between, height + share * (place - height)
        yield column, place
        before = column, place


def _row(place: float) -> int:
    return round((1 - place) * (ROWS - 1))


def _side_by_side(parts: Sequence[str], width: int) -> list[str]:
    """As many in a row as fit."""
    rows: list[str] = []
    for part in parts:
        joined = f"{rows[-1]}   {part}" if rows else part
        if rows and len(joined) <= width:
            rows[-1] = joined
        else:
            rows.append(part)
    return rows
