"""Plots and heatmaps as pictures, PNG, in the look of the other pictures.

Guarantees: the same drawings give the same bytes with the same matplotlib; no global state of pyplot is touched;
a legend stands below what is drawn and never on it.
Refuses: to be made without matplotlib; folders that do not exist; two drawings of one name.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpmerge.errors import InvalidInput, printable
from dpmerge.report import styles
from dpmerge.report.files import existing_folder
from dpmerge.report.pictures import (
    LEGEND_WIDTH,
    face_figure,
    legend_below,
    set_axis,
    settings,
    stroke,
    wrapped,
    write_figure,
)
from dpmerge.report.plot_view import Visible, lines, ticks, view
from dpmerge.report.plots import Drawing, Heatmaps, Plot, Series

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BAND = 0.18
"""How much of its colour a band has: lines and other bands are seen through it."""

_MARKERS: dict[str, dict[str, Any]] = {
    "none": {"marker": "o", "markersize": 5},  # where a point has no line to be seen by
    "dots": {"marker": "o", "markersize": 5},
    "diamonds": {"marker": "D", "markersize": 7, "markeredgecolor": "white"},
    "squares": {"marker": "s", "markersize": 6, "markeredgecolor": "white"},
}


def write_plot_pictures(drawings: Sequence[Drawing], folder: Path) -> list[Path]:
    """Write every drawing as NAME.png, and say where."""
    names = [drawing.name for drawing in drawings]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidInput("drawings", names, "a name of its own for every drawing", found=f"{twice} twice")
    with settings():
        existing_folder(folder)
        return [write_figure(plot_figure(drawing), folder / f"{drawing.name}.png") for drawing in drawings]


def plot_figure(drawing: Drawing) -> Figure:
    """One drawing as a figure of matplotlib, to be made within `pictures.settings`."""
    figure = face_figure(drawing.face) if isinstance(drawing, Heatmaps) else _plot(drawing)
    _head(figure, drawing)
    return figure


def _plot(plot: Plot) -> Figure:
    from matplotlib.figure import Figure

    names = [printable(series.name) for series in plot.series]
    # What the legend takes is added, so that the plot itself is always of one size.
    figure = Figure(figsize=(7.5, 4.3 + _legend_height(names)), layout="constrained")
    axes = figure.subplots()
    seen = view(plot)
    for series, points in zip(plot.series, seen.series, strict=True):
        _draw(axes, series, points)
    set_axis(axes, "x", seen.across, "\n".join(lines(plot.across, 80)), ticks(seen.across))
    set_axis(axes, "y", seen.up, "\n".join(lines(plot.up, 48)), ticks(seen.up))
    if names:
        legend_below(figure, [_handle(series) for series in plot.series], names)
    return figure


def _legend_height(names: Sequence[str]) -> float:
    """Of the longer of its columns, in inches."""
    heights = [0.06 + 0.15 * (wrapped(name, LEGEND_WIDTH).count("\n") + 1) for name in names]
    half = -(-len(names) // 2) if len(names) > 2 else len(names)
    return max(sum(heights[:half]), sum(heights[half:]))


def _head(figure: Figure, drawing: Drawing) -> None:
    """Heading and note, above all else; the figure grows by what they take."""
    width, height = figure.get_size_inches()
    heading, note = lines(drawing.heading, int(9.6 * width)), lines(drawing.note, int(12.5 * width))
    head = 0.2 * len(heading)
    taller = height + head + 0.17 * len(note) + 0.1
    figure.set_size_inches(width, taller)
    figure.set_layout_engine("constrained", w_pad=0.1, rect=(0, 0, 1, (height - 0.05) / taller))
    figure.text(0.5, 1 - 0.08 / taller, "\n".join(heading), ha="center", va="top", fontweight="bold", fontsize=11)
    figure.text(0.5, 1 - (0.12 + head) / taller, "\n".join(note), ha="center", va="top", fontsize=8.5, color="#666")


def _look(series: Series) -> styles.Style:
    return styles.Style(series.colour, series.dashed, marked=series.marks != "none")


def _draw(axes: Axes, series: Series, points: Visible) -> None:
    x, y = points.x, points.y
    if not np.isfinite(x).any():
        return
    strokes = stroke(_look(series)) if series.line else {"color": series.colour, "linestyle": "none"}
    axes.plot(
        x,
        y,
        **strokes,
        **_MARKERS[series.marks],
        markevery=points.marked.nonzero()[0].tolist(),
        drawstyle="steps-post" if series.steps else "default",
        zorder=3 if series.line else 4,
        in_layout=False,
        clip_on=False,  # the axes are around all points, and a mark at their edge is seen whole
    )
    for stretch in points.stretches if series.line else ():
        axes.fill_between(
            x[stretch],
            points.low[stretch],
            points.high[stretch],
            step="post" if series.steps else None,
            color=series.colour,
            alpha=BAND,
            linewidth=0,
            zorder=2,
        )
    bars = points.barred
    if bars.any():
        reach = np.stack([y - points.low, points.high - y])[:, bars]
        axes.errorbar(x[bars], y[bars], reach, fmt="none", ecolor=series.colour, elinewidth=1.2, capsize=3, zorder=3)


def _handle(series: Series) -> tuple[Artist, ...]:
    """What stands for a series in the legend: its band or bar, and its line or mark on it."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    marks = _MARKERS[series.marks] if series.marks != "none" or not series.line else {}
    how = stroke(_look(series)) if series.line else {"color": series.colour, "linestyle": "none"}
    line = Line2D([], [], **how, **marks)
    if series.error is None or not series.line:
        return (line,)
    return Patch(color=series.colour, alpha=BAND, linewidth=0), line
