"""Figures for a page, as plotly.js takes them: plain dictionaries, no plotly needed to make them.

Guarantees: what is not finite becomes a gap; names stand where plotly reads text, escaped, never where it reads a
template; the target ε is the first shape, so that the page can move it. Heatmaps are in `panel_charts`.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpmerge.errors import printable
from dpmerge.report import styles, wording
from dpmerge.report.axes import Axis
from dpmerge.report.error_bars import Bars
from dpmerge.report.plot_view import Visible, lines, ticks, view
from dpmerge.report.plots import Plot, Series

Trace = dict[str, Any]

ACROSS, UP, NAME = 42, 32, 40
"""Characters of a title of an axis, and of a name that is pointed at, on one line: they fit a phone."""

FONT = {"family": "system-ui, sans-serif", "size": 13, "color": "#222"}

TARGET_NAME = {
    **{"text": "┄ target ε", "font": {"color": styles.TARGET, "size": 12}, "showarrow": False},
    **{"x": 1, "y": 1, "xref": "paper", "yref": "paper", "xanchor": "right", "yanchor": "bottom"},
}
"""Above the plot, where it covers nothing wherever the line is moved."""

_SYMBOLS = {"none": "circle", "dots": "circle", "diamonds": "diamond", "squares": "square"}
_SIZES = {"none": 7, "dots": 7, "diamonds": 10, "squares": 8}


@dataclass(frozen=True)
class Legend:
    """A line of the legend, which switches the traces of one series on and off."""

    series: Series
    traces: tuple[int, ...]


@dataclass(frozen=True)
class Chart:
    """One drawing: what plotly draws, and a legend that the page sets as text, so that it wraps like text."""

    id: str
    data: list[Trace]
    layout: dict[str, Any]
    legend: tuple[Legend, ...] = ()
    costs: tuple[str, ...] = ()  # of a heatmap: ε in rows, which the page spreads over its traces


def plot_chart(plot: Plot, name: str, target: float | None = None) -> Chart:
    """Lines, bands, bars and marks. Bands and bars come first, so that they cover no line.

    Args:
        plot: What is drawn.
        name: The id of the element it is drawn in.
        target: An ε to be marked by a line; where ε lies across, an empty last trace is for the plan that meets it.

    Returns:
        What plotly draws, with a line of the legend for each series.

    Raises:
        InvalidInputError: A series has x, y and error of different lengths.
    """
    seen = view(plot)
    pairs = list(zip(plot.series, seen.series, strict=True))
    below = [(place, trace) for place, pair in enumerate(pairs) for trace in _below(*pair)]
    data = [*(trace for _, trace in below), *(_line(plot, *pair) for pair in pairs)]
    legend = tuple(
        Legend(series, (*(n for n, (of, _) in enumerate(below) if of == place), len(below) + place))
        for place, series in enumerate(plot.series)
    )
    drawn = layout(_axis(seen.across, plot.across, ACROSS), _axis(seen.up, plot.up, UP))
    drawn["margin"]["r"] = 24  # for the half of a long number
    drawn["xaxis"]["autotickangles"] = [0, -45, -90]  # turned so that it stays inside
    if target is not None:
        drawn["shapes"] = [_target(plot, target)]
        drawn["annotations"] = [TARGET_NAME]
        if plot.epsilon == "x":
            ring = {"symbol": "circle-open", "size": 17, "color": styles.TARGET, "line": {"width": 3}}
            data.append({"type": "scatter", "mode": "markers", "x": [], "y": [], "marker": ring, "hoverinfo": "skip"})
    return Chart(name, data, drawn, legend)


def numbers(values: Iterable[float]) -> list[float | None]:
    """Seven digits are more than a screen shows; what is printed is rounded up from the full figure."""
    return [float(f"{value:.7g}") if math.isfinite(value) else None for value in map(float, values)]


def _line(plot: Plot, series: Series, points: Visible) -> Trace:
    trace: Trace = {
        "type": "scatter",
        "mode": ("lines+markers" if points.marked.any() else "lines") if series.line else "markers",
        "name": escaped(series.label),
        "x": numbers(points.x),
        "y": numbers(points.y),
        "customdata": [
            [_number(plot, "x", x), _number(plot, "y", y) + (f" ± {error:.2g}" if np.isfinite(error) else "")]
            for x, y, error in zip(series.x, series.y, points.high - points.y, strict=True)
        ],
        "hovertemplate": [_told(plot, name) for name in series.points] or _told(plot, series.label),
        "line": {"color": series.colour, "width": 1.5 if series.thin else 3, **_stroke(series)},
        "marker": {
            "symbol": [_SYMBOLS[series.marks] + "-open" * bool(end) for end in points.open],
            "size": [int(size) for size in np.where(points.marked, _SIZES[series.marks], 0)],
            "opacity": 1,
            "color": series.colour,
            "line": {"color": "#fff", "width": 0 if series.marks in ("none", "dots") else 1},
        },
        "connectgaps": False,
        "cliponaxis": False,
    }
    if points.barred.any():
        above, below = (np.where(points.barred, end, np.nan) for end in (points.high - points.y, points.y - points.low))
        reach = {"type": "data", "symmetric": False, "array": numbers(above), "arrayminus": numbers(below)}
        trace["error_y"] = {**reach, "color": series.colour, "thickness": 1.5, "width": 4}
    return trace


def _stroke(series: Series) -> dict[str, str]:
    dash = {(False, False): "solid", (True, False): "dash", (False, True): "2px,3px", (True, True): "9px,3px,2px,3px"}
    return {"dash": dash[series.dashed, series.dotted], "shape": "hv" if series.steps else "linear"}


def _below(series: Series, points: Visible) -> Iterator[Trace]:
    """What is drawn before all lines. Of a line under another one nothing: the legend switches that off."""
    if series.line and points.stretches:
        yield _band(series, points)
    if points.bars is not None:
        yield _bars(series, points.bars)


def _bars(series: Series, bars: Bars) -> Trace:
    """On a point of the line, which hides it."""
    reach = {"array": numbers(bars.high - bars.y), "arrayminus": numbers(bars.y - bars.low)}
    return {
        "type": "scatter",
        "mode": "markers",
        "x": numbers(bars.x),
        "y": numbers(bars.y),
        "marker": {"size": 2, "color": series.colour},
        "error_y": {"type": "data", "symmetric": False, **reach, "color": series.colour, "thickness": 1.5, "width": 3},
        "hoverinfo": "skip",
    }


def _band(series: Series, points: Visible) -> Trace:
    """Between the ends of the errors, there along the upper and back along the lower: one outline a stretch."""
    x: list[float | None] = []
    y: list[float | None] = []
    for stretch in points.stretches:
        across, low, high = (ends[stretch] for ends in (points.x, points.low, points.high))
        if series.steps:
            across, low, high = np.repeat(across, 2)[1:], np.repeat(low, 2)[:-1], np.repeat(high, 2)[:-1]
        gap: list[float | None] = [None] if x else []
        x += [*gap, *numbers(across), *numbers(across[::-1])]
        y += [*gap, *numbers(high), *numbers(low[::-1])]
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


def _target(plot: Plot, target: float) -> dict[str, Any]:
    """A line across the whole plot."""
    free, fixed = ("y", "x") if plot.epsilon == "x" else ("x", "y")
    return {
        "type": "line",
        "line": {"color": styles.TARGET, "width": 2, "dash": "dot"},
        **{f"{fixed}0": target, f"{fixed}1": target, f"{free}0": 0, f"{free}1": 1, f"{free}ref": "paper"},
    }


def layout(across: dict[str, Any], up: dict[str, Any]) -> dict[str, Any]:
    """What all charts have in common, around two axes."""
    common = {"gridcolor": styles.GRID, "zeroline": False, "linecolor": "#888", "ticks": "outside", "tickcolor": "#888"}
    return {
        "xaxis": {**common, "automargin": True, **across},
        "yaxis": {**common, "automargin": True, **up},
        "font": FONT,
        "margin": {"l": 56, "r": 16, "t": 24, "b": 48},
        "showlegend": False,
        "hovermode": "closest",
        "hoverlabel": {"bgcolor": "#fff", "font": FONT, "align": "left"},
        "paper_bgcolor": "#fff",
        "plot_bgcolor": "#fff",
    }


def _axis(axis: Axis, title: str, width: int) -> dict[str, Any]:
    """From where to where; a logarithmic axis has plain numbers."""
    words = "<br>".join(map(escaped, lines(title, width)))
    drawn: dict[str, Any] = {"title": {"text": words, "font": FONT}, "range": list(axis.ends)}
    if axis.log:
        written = ticks(axis)
        drawn |= {"type": "log", "tickvals": list(written), "ticktext": list(written.values())}
    return drawn


def _number(plot: Plot, axis: str, value: float) -> str:
    return wording.epsilon(value) if plot.epsilon == axis else f"{value:.4g}"


def _told(plot: Plot, name: str) -> str:
    """What is said of a point when it is pointed at."""
    called = "<br>".join(f"<b>{literal(line)}</b>" for line in lines(name, NAME))
    across, up = ("<br>".join(map(literal, lines(title, NAME))) for title in (plot.across, plot.up))
    return f"{called}<br>{across}: %{{customdata[0]}}<br>{up}: %{{customdata[1]}}<extra></extra>"


def escaped(text: str) -> str:
    """Plotly reads a little HTML in every text."""
    return html.escape(printable(text), quote=False)


def literal(text: str) -> str:
    """Inside a template: a name with %{…} in it would be read as one."""
    return escaped(text).replace("%{", "%\u200b{")
