"""A plot drawn into axes of matplotlib: lines, bands, bars, marks and their names; and what a legend shows of them.

Guarantees: solid is proved and exact, dots are RDP, dashes what is not proved, both together dots between dashes; a
line is wider where it lies under another one, so that it is seen. Names of points are in `point_names`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from dpmerge.report.axes import Axis
from dpmerge.report.plot_view import Visible, lines, ticks, view
from dpmerge.report.plots import Plot, Series
from dpmerge.report.point_names import name_points

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

TEXT, SMALL = 7.5, 7.0
"""Sizes in points of titles and captions, and of numbers, names and legends: a paper asks for seven at least."""

LETTER = 0.54
"""Of the size of a text, what a letter takes of a line."""

BAND = 0.18
"""How much of its colour a band has: lines are seen through it."""

STRONG, FINE, EDGE = 1.4, 0.7, 1.2
"""Widths of lines in points, and what a line has more for each that lies on it."""

_DASHES: dict[tuple[bool, bool], Any] = {  # not proved, by RDP
    (False, False): "-",
    (True, False): (0, (5, 2)),
    (False, True): (0, (1, 1.3)),
    (True, True): (0, (5, 1.4, 1, 1.4)),
}

_MARKERS: dict[str, dict[str, Any]] = {
    "none": {"marker": "o", "markersize": 3.5},  # where a point has no line to be seen by
    "dots": {"marker": "o", "markersize": 3.5},
    "diamonds": {"marker": "D", "markersize": 4.8, "markeredgecolor": "white", "markeredgewidth": 0.6},
    "squares": {"marker": "s", "markersize": 4.2, "markeredgecolor": "white", "markeredgewidth": 0.6},
}


@dataclass(frozen=True)
class Inside:
    """About what the axes enclose, in points."""

    across: float
    up: float


def draw_plot(axes: Axes, plot: Plot, inside: Inside, *, named_up: bool = True) -> None:
    """Draw all series, their errors and names, and set both axes.

    Args:
        axes: Empty ones.
        plot: What is drawn.
        inside: How large they will be.
        named_up: Whether the axis at the left is named.

    Raises:
        InvalidInputError: A series has x, y and error of different lengths.
    """
    seen = view(plot)
    for series, points in zip(plot.series, seen.series, strict=True):
        _draw(axes, series, points)
    name_points(axes, plot, seen, inside.across, inside.up)
    across = lines(plot.across, letters(inside.across, TEXT))
    up = lines(plot.up, letters(inside.up, TEXT)) if named_up else []
    _set_axis(axes, "x", seen.across, "\n".join(across), most=int(inside.across / 30))
    _set_axis(axes, "y", seen.up, "\n".join(up), most=9)


def letters(points: float, size: float) -> int:
    """How many of this size stand on one line."""
    return max(8, int(points / (LETTER * size)))


def handle(series: Series) -> tuple[Artist, ...]:
    """What stands for a series in the legend: its line or mark."""
    from matplotlib.lines import Line2D

    marks = _MARKERS[series.marks] if series.marks != "none" or not series.line else {}
    return (Line2D([], [], **_stroke(series), **marks),)


def _stroke(series: Series, below: int = 0) -> dict[str, Any]:
    if not series.line:
        return {"color": series.colour, "linestyle": "none"}
    width = FINE if series.thin else STRONG
    return {
        "color": series.colour,
        "linewidth": width + EDGE * below,
        "linestyle": _DASHES[series.dashed, series.dotted],
        "dash_capstyle": "butt",
    }


def _draw(axes: Axes, series: Series, points: Visible) -> None:
    x, y = points.x, points.y
    if not np.isfinite(x).any():
        return
    # What lies on another line is above it; fine lines are above strong ones, which they would not hide.
    order = (3 + 0.1 * series.thin) if series.line else 4
    # Not clipped: a mark at the edge of the axes is seen whole.
    common: dict[str, Any] = {"zorder": order, "in_layout": False, "clip_on": False}
    shape = "steps-post" if series.steps else "default"
    axes.plot(x, y, **_stroke(series), drawstyle=shape, **common)
    if points.hidden is not None:
        wider = _stroke(series, points.hidden.depth)
        axes.plot(points.hidden.x, points.hidden.y, **wider, drawstyle=shape, **common)
    for which, how in ((points.marked & ~points.open, {}), (points.open, {"markerfacecolor": "white"})):
        if which.any():
            marker = {**_MARKERS[series.marks], **({"markeredgecolor": series.colour} if how else {}), **how}
            axes.plot(x[which], y[which], color=series.colour, linestyle="none", **marker, **{**common, "zorder": 4})
    for stretch in points.stretches if series.line else ():
        ends = points.low[stretch], points.high[stretch]
        step: Literal["post"] | None = "post" if series.steps else None
        axes.fill_between(x[stretch], *ends, step=step, color=series.colour, alpha=BAND, linewidth=0, zorder=2)
    bar: dict[str, Any] = {
        "fmt": "none",
        "ecolor": series.colour,
        "elinewidth": 0.8,
        "capsize": 1.5,
        "capthick": 0.8,
        "zorder": 3.5,
    }
    alone = points.barred
    if alone.any():
        axes.errorbar(x[alone], y[alone], np.stack([y - points.low, points.high - y])[:, alone], **bar)
    if points.bars is not None and points.bars.x.size:
        bars = points.bars
        axes.errorbar(bars.x, bars.y, np.stack([bars.y - bars.low, bars.high - bars.y]), **bar)


def _set_axis(axes: Axes, which: str, axis: Axis, name: str, most: int) -> None:
    """From where to where; a logarithmic axis has plain numbers."""
    from matplotlib.ticker import FixedFormatter, FixedLocator, NullFormatter

    side = axes.xaxis if which == "x" else axes.yaxis
    if axis.log:
        written = ticks(axis, most)
        (axes.set_xscale if which == "x" else axes.set_yscale)("log")
        side.set_major_locator(FixedLocator(list(written)))
        side.set_major_formatter(FixedFormatter(list(written.values())))
        side.set_minor_formatter(NullFormatter())
    (axes.set_xlim if which == "x" else axes.set_ylim)(axis.low, axis.high)
    side.set_label_text(name)
