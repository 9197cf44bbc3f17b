"""Figures as files, PNG and SVG, for papers and slides.

Guarantees: the same drawings give the same bytes with the same matplotlib; no global state of pyplot is touched;
a legend stands below what is drawn and never on it; a banner stands above all else.
Refuses: to be made without matplotlib; folders that do not exist; two drawings of one name.
"""

from __future__ import annotations

import io
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpmerge.errors import InvalidInputError
from dpmerge.extras import needs_extra
from dpmerge.report import styles, wording
from dpmerge.report.axes import Axis
from dpmerge.report.plot_view import View, Visible, lines, ticks, view
from dpmerge.report.plots import Drawing, Heatmaps, Plot, Series
from dpmerge.report.triangle_pictures import triangles
from dpmerge.report.whole_files import existing_folder, write_whole

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 160
LEGEND_WIDTH = 44
"""Characters of a name in a legend, on one line."""

MOST_NAMES = 12
"""Points named beside their marks; more would cover the lines."""

POINTS_ACROSS, POINTS_UP, LETTER = 450.0, 230.0, 5.2
"""About the size of what is inside the axes, and of a letter of a name, in points."""

Box = tuple[float, float, float, float]
"""Left, below, right, above."""

BAND = 0.18
"""How much of its colour a band has: lines and other bands are seen through it."""

_MARKERS: dict[str, dict[str, Any]] = {
    "none": {"marker": "o", "markersize": 5},  # where a point has no line to be seen by
    "dots": {"marker": "o", "markersize": 5},
    "diamonds": {"marker": "D", "markersize": 7, "markeredgecolor": "white"},
    "squares": {"marker": "s", "markersize": 6, "markeredgecolor": "white"},
}

_SETTINGS: dict[Any, Any] = {
    "svg.hashsalt": "dpmerge",
    "svg.fonttype": "path",
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": styles.GRID,
    "text.parse_math": False,  # a dollar in a name is a dollar
    "text.usetex": False,
}


def write_plot_pictures(drawings: Sequence[Drawing], folder: Path, kinds: Sequence[str] = ("png",)) -> list[Path]:
    """Write every drawing as NAME.png, or as other kinds, and say where.

    Args:
        drawings: What is drawn, each under a name of its own.
        folder: Where to; it must exist.
        kinds: What the files' names end in: `png`, `svg` or both.

    Returns:
        The files, in the order of the drawings.

    Raises:
        InvalidInputError: matplotlib or the folder is missing, or two drawings have one name.
    """
    names = [drawing.name for drawing in drawings]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidInputError("drawings", names, "a name of its own for every drawing", found=f"{twice} twice")
    written = []
    with settings():
        existing_folder(folder)
        for drawing in drawings:
            figure = plot_figure(drawing)
            written += [_write(figure, folder / f"{drawing.name}.{kind}", kind) for kind in kinds]
    return written


@contextmanager
def settings() -> Iterator[None]:
    """Within it figures are made and written; afterwards matplotlib is as it was."""
    with needs_extra("report", by="a picture"):
        import matplotlib
    with matplotlib.rc_context(_SETTINGS), warnings.catch_warnings():
        # A name in a script that the font lacks is drawn as boxes; that is no reason to fail.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def plot_figure(drawing: Drawing) -> Figure:
    """One drawing as a figure of matplotlib, to be made within `settings`.

    Args:
        drawing: What is drawn.

    Returns:
        A figure that pyplot does not know of.

    Raises:
        InvalidInputError: A series has x, y and error of different lengths.
    """
    figure = triangles(drawing) if isinstance(drawing, Heatmaps) else _plot(drawing)
    _head(figure, drawing)
    return figure


def _write(figure: Figure, file: Path, kind: str) -> Path:
    """Without a date: the same figure gives the same bytes."""
    stream = io.BytesIO()
    figure.savefig(stream, format=kind, dpi=DPI, metadata={"Date": None} if kind == "svg" else {})
    return write_whole(file, stream.getvalue())


def _head(figure: Figure, drawing: Drawing) -> None:
    """Banner, heading and note, above all else; the figure grows by what they take."""
    width, height = figure.get_size_inches()
    parts: list[tuple[list[str], float, dict[str, Any]]] = [
        (lines(drawing.banner, int(13 * width)), 0.2, {"fontsize": 8, "color": styles.TARGET}),
        (lines(drawing.heading, int(9.6 * width)), 0.2, {"fontsize": 11, "fontweight": "bold"}),
        (lines(drawing.note, int(12.5 * width)), 0.17, {"fontsize": 8.5, "color": "#666"}),
    ]
    taller = height + sum(len(text) * line for text, line, _ in parts) + 0.1
    figure.set_size_inches(width, taller)
    figure.set_layout_engine("constrained", w_pad=0.1, rect=(0, 0, 1, (height - 0.05) / taller))
    top = 0.08
    for text, line, how in parts:
        if text:
            figure.text(0.5, 1 - top / taller, "\n".join(text), ha="center", va="top", **how)
            top += len(text) * line + 0.04


def _plot(plot: Plot) -> Figure:
    from matplotlib.figure import Figure

    names = ["\n".join(textwrap.wrap(series.label, LEGEND_WIDTH)) for series in plot.series]
    # What the legend takes is added, so that the plot itself is always of one size.
    figure = Figure(figsize=(7.5, 4.3 + _legend_height(names)), layout="constrained")
    axes = figure.subplots()
    seen = view(plot)
    for series, points in zip(plot.series, seen.series, strict=True):
        _draw(axes, series, points)
        _name_points(axes, series, points, seen)
    _set_axis(axes, "x", seen.across, "\n".join(lines(plot.across, 80)))
    _set_axis(axes, "y", seen.up, "\n".join(lines(plot.up, 48)))
    if names:
        # A label that begins with an underscore would be left out, so labels are set afterwards.
        numbers = [str(n) for n in range(len(names))]
        columns = 2 if len(names) > 2 else 1
        handles: list[Any] = [_handle(series) for series in plot.series]
        legend = figure.legend(handles, numbers, loc="outside lower center", ncols=columns, frameon=False, fontsize=9)
        for place, name in zip(legend.get_texts(), names, strict=True):
            place.set_text(name)
    return figure


def _legend_height(names: Sequence[str]) -> float:
    """Of the longer of its columns, in inches."""
    heights = [0.06 + 0.15 * (name.count("\n") + 1) for name in names]
    half = -(-len(names) // 2) if len(names) > 2 else len(names)
    return max(sum(heights[:half]), sum(heights[half:]))


def _stroke(series: Series) -> dict[str, Any]:
    if not series.line:
        return {"color": series.colour, "linestyle": "none"}
    return {
        "color": series.colour,
        "linewidth": 1.1 if series.thin else 2.0,
        "linestyle": (0, (5, 3)) if series.dashed else "-",
    }


def _draw(axes: Axes, series: Series, points: Visible) -> None:
    x, y = points.x, points.y
    if not np.isfinite(x).any():
        return
    axes.plot(
        x,
        y,
        **_stroke(series),
        **_MARKERS[series.marks],
        markevery=points.marked.nonzero()[0].tolist(),
        drawstyle="steps-post" if series.steps else "default",
        zorder=(2.5 if series.thin else 3) if series.line else 4,
        in_layout=False,
        clip_on=False,  # the axes are around all points, and a mark at their edge is seen whole
    )
    for stretch in points.stretches if series.line else ():
        how: dict[str, Any] = {"color": series.colour, "alpha": BAND, "linewidth": 0, "zorder": 2}
        ends = points.low[stretch], points.high[stretch]
        axes.fill_between(x[stretch], *ends, step="post" if series.steps else None, **how)
    bars = points.barred
    if bars.any():
        reach = np.stack([y - points.low, points.high - y])[:, bars]
        axes.errorbar(x[bars], y[bars], reach, fmt="none", ecolor=series.colour, elinewidth=1.2, capsize=3, zorder=3)


def _name_points(axes: Axes, series: Series, points: Visible, seen: View) -> None:
    """Beside its mark, where that covers no other name and no other mark; unless they are many."""
    named = [(n, x, y) for n, x, y in zip(series.points, points.x, points.y, strict=False) if np.isfinite(x)]
    marks = [(POINTS_ACROSS * seen.across.place(x), POINTS_UP * seen.up.place(y)) for _, x, y in named]
    taken = [(x - 4, y - 4, x + 4, y + 4) for x, y in marks]
    for (name, x, y), mark in zip(named, marks, strict=True) if len(named) <= MOST_NAMES else ():
        text = wording.short(name)
        found = next((at for at in _beside(mark, len(text)) if not any(_meet(at[1], box) for box in taken)), None)
        if found is None:
            continue  # the tables have it
        (right, up), box = found
        taken.append(box)
        axes.annotate(
            text,
            (x, y),
            (8 if right else -8, up),
            textcoords="offset points",
            ha="left" if right else "right",
            va="center",
            fontsize=8,
            color=series.colour,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.5},
            zorder=6,
        )


def _beside(mark: tuple[float, float], length: int) -> Iterator[tuple[tuple[bool, int], Box]]:
    """Where a name may stand, and what it takes: left of the middle at the right of its mark first; never outside."""
    x, y = mark
    wide = LETTER * length
    for right in (x < POINTS_ACROSS / 2, x >= POINTS_ACROSS / 2):
        for up in (-9, 9, -20, 20, 0):
            left = x + 8 if right else x - 8 - wide
            box = (left, y + up - 6, left + wide, y + up + 6)
            if box[0] >= 0 and box[2] <= POINTS_ACROSS and box[1] >= 0:
                yield (right, up), box


def _meet(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _handle(series: Series) -> tuple[Artist, ...]:
    """What stands for a series in the legend: its band or bar, and its line or mark on it."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    marks = _MARKERS[series.marks] if series.marks != "none" or not series.line else {}
    line = Line2D([], [], **_stroke(series), **marks)
    if series.error is None or not series.line:
        return (line,)
    return Patch(color=series.colour, alpha=BAND, linewidth=0), line


def _set_axis(axes: Axes, which: str, axis: Axis, name: str) -> None:
    """From where to where; a logarithmic axis has plain numbers."""
    from matplotlib.ticker import FixedFormatter, FixedLocator, NullFormatter

    side = axes.xaxis if which == "x" else axes.yaxis
    if axis.log:
        written = ticks(axis)
        (axes.set_xscale if which == "x" else axes.set_yscale)("log")
        side.set_major_locator(FixedLocator(list(written)))
        side.set_major_formatter(FixedFormatter(list(written.values())))
        side.set_minor_formatter(NullFormatter())
    (axes.set_xlim if which == "x" else axes.set_ylim)(axis.low, axis.high)
    side.set_label_text(name)
