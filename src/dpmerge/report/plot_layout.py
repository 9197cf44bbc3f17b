"""How a figure of plots is laid out: one as wide as a column or as two, or panels in rows, each with its letter.

Guarantees: what a legend takes is added to a figure, so that plots are always of one size; panels whose series are the
same have one legend.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dpmerge.report.plot_axes import SMALL, TEXT, Inside, draw_plot, handle, letters
from dpmerge.report.plot_view import lines
from dpmerge.report.plots import Panels, Plot, Series

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMN, PAGE = 8.5 / 2.54, 17.5 / 2.54
"""Inches: the width of one column of a paper, and of two."""

IN_A_COLUMN = 6
"""A plot of more series is as wide as two columns."""

BESIDE = 44.0
"""Points that an axis takes at the left of what is inside."""

LINE, BETWEEN = 1.22 * SMALL, 3.0
"""Points that a line of a legend takes, and that lie between its entries."""

MARK = 34.0
"""Points that the mark of a legend's entry takes."""


def plot_figure_alone(plot: Plot) -> Figure:
    """One plot, with its legend below.

    Args:
        plot: What is drawn.

    Returns:
        A figure without a heading.
    """
    from matplotlib.figure import Figure

    wide = len(plot.series) > IN_A_COLUMN
    width, height = (PAGE, 3.1) if wide else (COLUMN, 2.25)
    columns = 2 if wide else 1
    names = _wrapped([series.label for series in plot.series], 72 * width / columns)
    figure = Figure(figsize=(width, height + _legend_height(names, columns)), layout="constrained")
    draw_plot(figure.subplots(), plot, Inside(72 * width - BESIDE, 72 * height - 40))
    _add_legend(figure, plot.series, names, columns)
    return figure


def panels_figure(panels: Panels) -> Figure:
    """Plots in rows of two or three, as wide as two columns.

    Args:
        panels: What is drawn.

    Returns:
        A figure without a heading.
    """
    from matplotlib.figure import Figure

    columns = _columns(len(panels.plots))
    rows = -(-len(panels.plots) // columns)
    width, tall = 72 * PAGE / columns, 126.0 if columns < 3 else 104.0
    captions = [_caption(panels, place, width - BESIDE) for place in range(len(panels.plots))]
    shared = _shared([plot.series for plot in panels.plots])
    across = 2 if columns == 2 else 3
    names = _wrapped([series.label for series in shared], 72 * PAGE / across)
    own = [[] if shared else _wrapped([s.label for s in plot.series], width) for plot in panels.plots]
    heights = [
        max(tall + 26 + LINE * (1 + text.count("\n")) + 72 * _legend_height(legend, 1) for text, legend in pairs)
        for pairs in _in_rows(list(zip(captions, own, strict=True)), columns)
    ]
    figure = Figure(figsize=(PAGE, sum(heights) / 72 + _legend_height(names, across)), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, height_ratios=heights)
    for place, axes in enumerate(grid.flat):
        if place >= len(panels.plots):
            axes.set_axis_off()
            continue
        plot = panels.plots[place]
        repeated = place % columns > 0 and panels.plots[place - 1].up == plot.up
        draw_plot(axes, plot, Inside(width - BESIDE, tall), named_up=not repeated)
        axes.set_title(captions[place], loc="left", fontsize=TEXT)
        if own[place]:
            below = -(2.2 * SMALL + LINE * (1 + axes.get_xlabel().count("\n")) + 4)
            _add_legend(axes, plot.series, own[place], 1, below=below)
    if shared:
        _add_legend(figure, shared, names, across)
    return figure


def _columns(count: int) -> int:
    return min(count, 3 if count in (3, 5, 6) else 2)


def _caption(panels: Panels, place: int, width: float) -> str:
    """Broken into lines."""
    return "\n".join(line for part in panels.captions[place] for line in lines(part, letters(width, TEXT)))


def _shared(legends: Sequence[Sequence[Series]]) -> list[Series]:
    """One legend for all panels, if none of them would have much of its own; else none."""
    together: dict[tuple[Any, ...], Series] = {}
    for each in legends:
        for series in each:
            together.setdefault(_look(series), series)
    labels = [series.label for series in together.values()]
    fits = len(set(labels)) == len(labels) and len(together) <= max(map(len, legends), default=0) + 2
    return list(together.values()) if fits else []


def _look(series: Series) -> tuple[Any, ...]:
    how = (series.colour, series.dashed, series.dotted, series.thin, series.marks, series.line)
    return (series.label, *how)


def _in_rows(items: list[Any], columns: int) -> list[list[Any]]:
    return [items[begin : begin + columns] for begin in range(0, len(items), columns)]


def _wrapped(names: Sequence[str], width: float) -> list[str]:
    return ["\n".join(lines(name, letters(width - MARK, SMALL))) for name in names]


def _legend_height(names: Sequence[str], columns: int) -> float:
    """Of the longest of its columns, in inches."""
    if not names:
        return 0.0
    heights = [LINE * (name.count("\n") + 1) + BETWEEN for name in names]
    many = -(-len(names) // columns)
    return max(sum(heights[begin : begin + many]) for begin in range(0, len(heights), many)) / 72 + 0.06


def _add_legend(
    where: Any, series: Sequence[Series], names: Sequence[str], columns: int, *, below: float | None = None
) -> None:
    """Below a figure; or so many points below the axes."""
    from matplotlib.transforms import ScaledTranslation

    if not names:
        return
    how: dict[str, Any] = {"loc": "outside lower center"}
    if below is not None:
        figure = where.get_figure()
        moved = where.transAxes + ScaledTranslation(0, below / 72, figure.dpi_scale_trans)
        how = {"loc": "upper left", "bbox_to_anchor": (0, 0), "bbox_transform": moved}
    # A label that begins with an underscore would be left out, so labels are set afterwards.
    numbers = [str(n) for n in range(len(names))]
    handles: list[Any] = [handle(each) for each in series]
    legend = where.legend(
        handles,
        numbers,
        ncols=columns,
        frameon=False,
        handlelength=3.2,
        labelspacing=BETWEEN / SMALL,
        borderpad=0.1,
        borderaxespad=0.2,
        columnspacing=1.5,
        **how,
    )
    for place, name in zip(legend.get_texts(), names, strict=True):
        place.set_text(name)
