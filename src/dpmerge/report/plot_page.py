"""Plots, heatmaps and tables as one page: figures that say what they show when pointed at, their words, then tables.

Guarantees: one file that loads nothing from anywhere and may load nothing; all that comes from data is text on it.
Refuses: to be made without plotly, whose JavaScript it carries; tables with rows of different lengths.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

import numpy as np

from dpmerge.errors import InvalidInput, printable
from dpmerge.privacy.domain import Array
from dpmerge.report.captions import Caption
from dpmerge.report.charts import FONT, Chart, Trace, chart_axis, costs_chart, escaped, layout, literal, numbers
from dpmerge.report.files import existing_folder, write_whole
from dpmerge.report.page import (
    as_text,
    drawing,
    filled,
    legend_button,
    line_swatch,
    mark_swatch,
    panel_grid,
    section,
    table,
)
from dpmerge.report.plot_view import Visible, lines, ticks, view
from dpmerge.report.plots import Drawing, Heatmaps, Plot, Series, Table

ACROSS, UP, NAME = 42, 32, 40
"""Characters of a title of an axis, and of a name that is pointed at, on one line: they fit a phone."""

_SYMBOLS = {"none": "circle", "dots": "circle", "diamonds": "diamond", "squares": "square"}
_SIZES = {"none": 7, "dots": 7, "diamonds": 10, "squares": 8}


def write_plot_page(
    title: str,
    subtitle: str,
    introduction: Sequence[str],
    drawings: Sequence[Drawing],
    tables: Sequence[Table],
    file: Path,
) -> None:
    """Write the page, whole or not at all."""
    existing_folder(file.parent)
    write_whole(file, plot_page(title, subtitle, introduction, drawings, tables).encode())


def plot_page(
    title: str,
    subtitle: str,
    introduction: Sequence[str],
    drawings: Sequence[Drawing],
    tables: Sequence[Table],
) -> str:
    """The page as HTML; the introduction is one paragraph a string."""
    charts: list[Chart] = []
    figures = "\n".join(_figures(drawings, charts))
    return filled(
        "plot_page.html",
        "plot_page.js",
        {"charts": {chart.id: {"data": chart.data, "layout": chart.layout} for chart in charts}},
        title=as_text(title),
        subtitle=as_text(subtitle),
        introduction="\n".join(f"<p>{as_text(paragraph)}</p>" for paragraph in introduction),
        figures=figures,
        tables="\n".join(map(_table, tables)),
    )


def _figures(drawings: Sequence[Drawing], charts: list[Chart]) -> Iterator[str]:
    """The sections, in order; what they need drawn goes to `charts`."""
    for number, each in enumerate(drawings):
        name = f"plot-{number}"
        if isinstance(each, Heatmaps):
            panels = [costs_chart(each.face, p, f"{name}-{place}") for place, p in enumerate(each.face.panels)]
            charts += panels
            content = panel_grid(each.face, panels, name)
        else:
            chart, traces = _chart(each, name)
            charts.append(chart)
            buttons = [
                legend_button(printable(series.name), _swatch(series), " ".join(map(str, places)))
                for series, places in zip(each.series, traces, strict=True)
            ]
            content = drawing(name, buttons)
        note = f'<p class="note">{as_text(each.note)}</p>\n' if each.note else ""
        yield section(Caption(printable(each.heading), printable(each.words)), note + content)


def _table(content: Table) -> str:
    if any(len(row) != len(content.head) for row in content.rows):
        found = "rows of other lengths"
        raise InvalidInput(f"table {content.heading}", content, "a cell for every column of the head", found=found)
    rows = [["\n".join(map(printable, cell.split("\n"))) for cell in row] for row in content.rows]
    drawn = table([printable(name) for name in content.head], rows)
    return f'<section>\n<h2>{as_text(content.heading)}</h2>\n<div class="table">{drawn}</div>\n</section>'


def _chart(plot: Plot, name: str) -> tuple[Chart, list[list[int]]]:
    """What plotly draws, and which traces each series is made of. Bands come first, so that they cover no line."""
    seen = view(plot)
    bands: list[Trace] = []
    traces: list[list[int]] = []
    strokes = [_line(plot, series, points) for series, points in zip(plot.series, seen.series, strict=True)]
    for series, points in zip(plot.series, seen.series, strict=True):
        banded = series.line and bool(points.stretches)
        traces.append([len(bands)] if banded else [])
        if banded:
            bands.append(_band(series, points))
    for place, of_series in enumerate(traces):
        of_series.append(len(bands) + place)
    drawn = layout(
        chart_axis(seen.across, "<br>".join(map(escaped, lines(plot.across, ACROSS))), ticks(seen.across)),
        chart_axis(seen.up, "<br>".join(map(escaped, lines(plot.up, UP))), ticks(seen.up)),
    )
    for axis in (drawn["xaxis"], drawn["yaxis"]):
        axis["title"]["font"] = FONT
    drawn["hoverlabel"]["align"] = "left"
    drawn["margin"]["r"] = 24  # for the half of a long number
    drawn["xaxis"]["autotickangles"] = [0, -45, -90]  # turned so that it stays inside
    return Chart(name, bands + strokes, drawn), traces


def _line(plot: Plot, series: Series, points: Visible) -> Trace:
    marked = np.where(points.marked, _SIZES[series.marks], 0)
    trace: Trace = {
        "type": "scatter",
        "mode": ("lines+markers" if points.marked.any() else "lines") if series.line else "markers",
        "name": escaped(series.name),
        "x": numbers(points.x),
        "y": numbers(points.y),
        "customdata": [
            [f"{x:.4g}", f"{y:.4g}" + (f" ± {error:.2g}" if np.isfinite(error) else "")]
            for x, y, error in zip(points.x, points.y, points.high - points.y, strict=True)
        ],
        "hovertemplate": (
            "<br>".join(f"<b>{literal(line)}</b>" for line in lines(series.name, NAME))
            + f"<br>{'<br>'.join(map(literal, lines(plot.across, NAME)))}: %{{customdata[0]}}"
            + f"<br>{'<br>'.join(map(literal, lines(plot.up, NAME)))}: %{{customdata[1]}}<extra></extra>"
        ),
        "line": {
            "color": series.colour,
            "width": 2.5,
            "dash": "dash" if series.dashed else "solid",
            "shape": "hv" if series.steps else "linear",
        },
        "marker": {
            "symbol": _SYMBOLS[series.marks],
            "size": [int(size) for size in marked],
            "opacity": 1,
            "color": series.colour,
            "line": {"color": "#fff", "width": 0 if series.marks in ("none", "dots") else 1},
        },
        "connectgaps": False,
        "cliponaxis": False,
    }
    if points.barred.any():
        trace["error_y"] = {
            "type": "data",
            "symmetric": False,
            "array": numbers(np.where(points.barred, points.high - points.y, np.nan)),
            "arrayminus": numbers(np.where(points.barred, points.y - points.low, np.nan)),
            "color": series.colour,
            "thickness": 1.5,
            "width": 4,
        }
    return trace


def _band(series: Series, points: Visible) -> Trace:
    """Between the ends of the errors, there along the upper and back along the lower: one outline a stretch."""
    x: list[float | None] = []
    y: list[float | None] = []
    for stretch in points.stretches:
        across, low, high = (ends[stretch] for ends in (points.x, points.low, points.high))
        if series.steps:
            across, low, high = np.repeat(across, 2)[1:], np.repeat(low, 2)[:-1], np.repeat(high, 2)[:-1]
        gap: list[float | None] = [None] if x else []
        x += gap + numbers(_there_and_back(across, across))
        y += gap + numbers(_there_and_back(high, low))
    return {
        "type": "scatter",
        "mode": "lines",
        "x": x,
        "y": y,
        "fill": "toself",
        "fillcolor": series.colour,
        "opacity": 0.18,
        "line": {"width": 0, "color": series.colour},
        "hoverinfo": "skip",
    }


def _there_and_back(there: Array, back: Array) -> Array:
    return np.concatenate([there, back[::-1]])


def _swatch(series: Series) -> str:
    colour = escape(series.colour)
    marks = "dots" if series.marks == "none" and not series.line else series.marks
    line = line_swatch(colour, dashed=series.dashed) if series.line else ""
    return line + (mark_swatch(marks, colour) if marks != "none" else "")
