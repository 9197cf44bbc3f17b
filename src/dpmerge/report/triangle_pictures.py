"""ε over the simplex of three models as triangles, for files: the heatmaps of `plot_pictures`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from dpmerge.planning.analysis import Face, Panel
from dpmerge.report import styles, wording
from dpmerge.report.plot_view import face_axis, lines

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def triangles(face: Face) -> Figure:
    """Equilateral ones, two in a row, over one scale of colours.

    Args:
        face: Three models and the panels over their simplex.

    Returns:
        A figure without a heading.
    """
    from matplotlib.colors import LinearSegmentedColormap, LogNorm, Normalize
    from matplotlib.figure import Figure
    from matplotlib.ticker import StrMethodFormatter

    columns = min(2, len(face.panels)) or 1
    rows = -(-len(face.panels) // columns) or 1
    figure = Figure(figsize=(4.1 * columns + 1, 3.5 * rows + 0.9), layout="constrained")
    axis = face_axis(face)
    norm = (LogNorm if axis.log else Normalize)(axis.low, axis.high)
    colours = LinearSegmentedColormap.from_list("costs", styles.COSTS).with_extremes(bad=styles.NO_NUMBER)
    grid = figure.subplots(rows, columns, squeeze=False)
    drawn = None
    for place, axes in enumerate(grid.flat):
        axes.set_axis_off()
        if place < len(face.panels):
            drawn = _draw_panel(axes, face, face.panels[place], norm, colours)
    if drawn is not None:
        name = "ε (logarithmic)" if axis.log else "ε"
        bar = figure.colorbar(drawn, ax=grid, label=name, shrink=0.75, format=StrMethodFormatter("{x:g}"))
        if axis.log:
            bar.set_ticks(axis.round_ticks(most=9))
            bar.minorticks_off()
    return figure


def _draw_panel(axes: Axes, face: Face, panel: Panel, norm: Any, colours: Any) -> Any:
    """The third model at the lower left, the first at the lower right, the second on top."""
    from matplotlib.collections import PolyCollection

    height = math.sqrt(3) / 2
    axes.set_aspect("equal")
    axes.set_xlim(-0.2, 1.2)
    axes.set_ylim(-0.16, height + 0.13)
    axes.set_title("\n".join(lines(wording.label(panel), 40)), fontsize=10)
    first, second, third = (wording.short(name, 20) for name in face.names)
    for x, y, name, vertical in (
        (1, -0.03, first, "top"),
        (0.5, height + 0.03, second, "bottom"),
        (0, -0.03, third, "top"),
    ):
        axes.text(x, y, name, ha="center", va=vertical, fontsize=9)
    # A cell a point, as they were computed: on the sides of the triangle, where a model drops out, ε often jumps.
    size = len(panel.epsilons)
    rows, columns = np.nonzero(np.add.outer(np.arange(size), np.arange(size)) < size)
    step = 1 / max(size - 1, 1)
    corners = step / math.sqrt(3) * np.exp(1j * math.pi * (np.arange(6) / 3 + 1 / 6))
    centres = step * (columns + rows * np.exp(1j * math.pi / 3))
    cells = centres[:, None] + corners
    costs = np.ma.masked_invalid(panel.epsilons[rows, columns])
    # As one image also in SVG: thousands of cells would show their seams.
    drawn = PolyCollection(np.stack([cells.real, cells.imag], axis=-1), norm=norm, cmap=colours, rasterized=True)  # type: ignore[arg-type]
    drawn.set_array(costs)
    drawn.set_edgecolor("face")
    drawn.set_linewidth(0.3)
    axes.add_collection(drawn)
    return drawn
