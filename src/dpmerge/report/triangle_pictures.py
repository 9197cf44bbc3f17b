"""ε over the simplex of three models as triangles, for files: the heatmaps of `plot_pictures`.

Guarantees: a scale of colours for each row, lines of equal ε with their numbers, corners with what is known of them.
"""

from __future__ import annotations

import math
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from dpmerge.planning.analysis import Panel
from dpmerge.report import styles, wording
from dpmerge.report.axes import Axis
from dpmerge.report.heatmap_rows import heatmap_rows, listed
from dpmerge.report.iso_lines import iso_lines
from dpmerge.report.plot_axes import SMALL, TEXT
from dpmerge.report.plot_layout import COLUMN, PAGE
from dpmerge.report.plot_view import lines
from dpmerge.report.plots import Heatmaps, lettered

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HEIGHT = math.sqrt(3) / 2
"""Of a triangle whose base is 1."""


def triangles(drawing: Heatmaps) -> Figure:
    """Equilateral ones, two in a row, beside the scale of their row.

    Args:
        drawing: Three models and the panels over their simplex.

    Returns:
        A figure without a heading.
    """
    from matplotlib.figure import Figure

    panels = drawing.face.panels
    columns = min(2, len(panels)) or 1
    height = -(-len(panels) // columns) or 1
    figure = Figure(figsize=(PAGE if columns > 1 else COLUMN, 2.4 * height), layout="constrained")
    grid = figure.subplots(height, columns, squeeze=False)
    free = iter(grid.flat)
    place = count()
    for row in heatmap_rows(drawing.face):
        places = [next(free) for _ in row.panels]
        for axes, panel in zip(places, row.panels, strict=True):
            letter = f"{lettered(next(place))} " if len(panels) > 1 else ""
            axes.set_title("\n".join(lines(letter + wording.label(panel), 40)), fontsize=TEXT)
        if row.axis is None:
            for axes, panel in zip(places, row.panels, strict=True):
                _list_panel(axes, drawing, panel)
            continue
        drawn = [_draw_panel(axes, drawing, p, row.axis) for axes, p in zip(places, row.panels, strict=True)]
        _add_scale(figure, drawn[-1], places, row.axis)
    for axes in grid.flat:
        axes.set_axis_off()
    return figure


def _add_scale(figure: Figure, drawn: Any, places: list[Axes], axis: Axis) -> None:
    from matplotlib.ticker import StrMethodFormatter

    name = "ε (logarithmic)" if axis.log else "ε"
    bar = figure.colorbar(drawn, ax=places, label=name, shrink=0.75, extend="min", format=StrMethodFormatter("{x:g}"))
    if axis.log:
        bar.set_ticks(axis.round_ticks(most=9))
        bar.minorticks_off()


def _list_panel(axes: Axes, drawing: Heatmaps, panel: Panel) -> None:
    """What has one ε all over its inside, in words."""
    first, second, third = (wording.short(name, 14) for name in drawing.face.names)
    rows = listed(panel, (first, second, third))
    axes.text(0.0, 0.9, "\n".join(name for name, _ in rows), transform=axes.transAxes, va="top", fontsize=SMALL)
    costs = "\n".join(f"ε = {cost}" for _, cost in rows)
    axes.text(1.0, 0.9, costs, transform=axes.transAxes, va="top", ha="right", fontsize=SMALL)


def _draw_panel(axes: Axes, drawing: Heatmaps, panel: Panel, axis: Axis) -> Any:
    """The third model at the lower left, the first at the lower right, the second on top."""
    from matplotlib.collections import PolyCollection
    from matplotlib.colors import LinearSegmentedColormap, LogNorm, Normalize
    from matplotlib.patches import Polygon

    axes.set_aspect("equal")
    axes.set_xlim(-0.2, 1.2)
    room = 0.02 + 0.075 * max(1 + bool(known) for known in drawing.corners)
    axes.set_ylim(-room, HEIGHT + room)
    _name_corners(axes, drawing)
    # A cell a point, as they were computed: on the sides of the triangle, where a model drops out, ε often jumps.
    size = len(panel.epsilons)
    rows, columns = np.nonzero(np.add.outer(np.arange(size), np.arange(size)) < size)
    step = 1 / max(size - 1, 1)
    corners = step / math.sqrt(3) * np.exp(1j * math.pi * (np.arange(6) / 3 + 1 / 6))
    centres = step * (columns + rows * np.exp(1j * math.pi / 3))
    cells = centres[:, None] + corners
    costs = np.ma.masked_invalid(panel.epsilons[rows, columns])
    norm = (LogNorm if axis.log else Normalize)(axis.low, axis.high)
    colours = LinearSegmentedColormap.from_list("costs", styles.COSTS).with_extremes(bad=styles.NO_NUMBER)
    # As one image also in SVG: thousands of cells would show their seams.
    drawn = PolyCollection(np.stack([cells.real, cells.imag], axis=-1), norm=norm, cmap=colours, rasterized=True)  # type: ignore[arg-type]
    drawn.set_array(costs)
    drawn.set_edgecolor("face")
    drawn.set_linewidth(0.3)
    axes.add_collection(drawn)
    triangle = Polygon([(0, 0), (1, 0), (0.5, HEIGHT)], closed=True, transform=axes.transData)
    drawn.set_clip_path(triangle)
    _draw_iso_lines(axes, panel, axis)
    return drawn


def _name_corners(axes: Axes, drawing: Heatmaps) -> None:
    first, second, third = (
        "\n".join(filter(None, (wording.short(name, 20), known)))
        for name, known in zip(drawing.face.names, drawing.corners, strict=True)
    )
    for x, y, name, vertical in (
        (1, -0.03, first, "top"),
        (0.5, HEIGHT + 0.03, second, "bottom"),
        (0, -0.03, third, "top"),
    ):
        axes.text(x, y, name, ha="center", va=vertical, fontsize=SMALL)


def _draw_iso_lines(axes: Axes, panel: Panel, axis: Axis) -> None:
    for line in iso_lines(panel, axis):
        colour = styles.on_cost(axis.place(line.level))
        axes.plot(line.x + line.y / 2, HEIGHT * line.y, color=colour, linewidth=0.8, zorder=3)
        if line.place is not None:
            x, y = line.place
            box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 0.8}
            axes.text(x + y / 2, HEIGHT * y, line.label, ha="center", va="center", fontsize=SMALL, bbox=box, zorder=4)
