"""Names of points, beside their marks.

Guarantees: a name covers no mark and no other name, and as little of the lines as its place allows; it is inside.
Refuses nothing: where there is no room for a name, or there are many, the tables have it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from dpmerge.accounting.validation import Array
from dpmerge.report import wording
from dpmerge.report.overlaps import SAMPLES, Drawn
from dpmerge.report.plot_view import View
from dpmerge.report.plots import Plot

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIZE = 7.0
"""Of a letter, in points; one takes about two thirds of that of a line."""

MOST_NAMES = 12
"""Points named beside their marks; more would cover the lines."""

Box = tuple[float, float, float, float]
"""Left, below, right, above."""


def name_points(axes: Axes, plot: Plot, seen: View, across: float, up: float) -> None:
    """Write the names of all points that have one.

    Args:
        axes: Where the plot is drawn.
        plot: What is drawn.
        seen: What of it is seen.
        across: About the width of what the axes enclose, in points.
        up: About its height.
    """
    lines = _lines(plot, seen) * (across, up)
    taken: list[Box] = []
    for series, points in zip(plot.series, seen.series, strict=True):
        named = [(n, x, y) for n, x, y in zip(series.points, points.x, points.y, strict=False) if np.isfinite(x)]
        marks = [(across * seen.across.place(x), up * seen.up.place(y)) for _, x, y in named]
        taken += [(x - 4, y - 4, x + 4, y + 4) for x, y in marks]
        for (name, x, y), mark in zip(named, marks, strict=True) if len(named) <= MOST_NAMES else ():
            text = wording.short(name)
            places = _beside(mark, 0.66 * SIZE * len(text), across)
            free = [at for at in places if not any(_meet(at[1], box) for box in taken)]
            if not free:
                continue
            (right, above), box = min(free, key=lambda at: _covered(at[1], lines))
            taken.append(box)
            axes.annotate(
                text,
                (x, y),
                (6 if right else -6, above),
                textcoords="offset points",
                ha="left" if right else "right",
                va="center",
                fontsize=SIZE,
                color=series.colour,
                bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.5},
                zorder=6,
            )


def _lines(plot: Plot, seen: View) -> Array:
    """Points of all lines and bars, in places from 0 to 1."""
    found = [np.zeros((0, 2))]
    for series, points in zip(plot.series, seen.series, strict=True):
        up = seen.up.places(points.y)
        if series.line:
            heights = Drawn(seen.across.places(points.x), up, up, up, steps=series.steps).at(SAMPLES)[0]
            found.append(np.stack([SAMPLES, heights], axis=-1))
        ends = [(points.x[points.barred], points.low[points.barred], points.high[points.barred])]
        ends += [(points.bars.x, points.bars.low, points.bars.high)] if points.bars is not None else []
        for x, low, high in ends:
            heights = np.linspace(seen.up.places(low), seen.up.places(high), 40)
            across = np.broadcast_to(seen.across.places(x), heights.shape)
            found.append(np.stack([across, heights], axis=-1).reshape(-1, 2))
    together = np.concatenate(found)
    return np.asarray(together[np.isfinite(together).all(axis=1)])


def _covered(box: Box, lines: Array) -> int:
    x, y = lines.T
    return int(np.sum((x > box[0]) & (x < box[2]) & (y > box[1]) & (y < box[3])))


def _beside(mark: tuple[float, float], wide: float, across: float) -> Iterator[tuple[tuple[bool, int], Box]]:
    """Where a name may stand, and what it takes: left of the middle at the right of its mark first; never outside."""
    x, y = mark
    for right in (x < across / 2, x >= across / 2):
        for up in (-8, 8, -17, 17, 0):
            left = x + 6 if right else x - 6 - wide
            box = (left, y + up - 6, left + wide, y + up + 6)
            if box[0] >= 0 and box[2] <= across and box[1] >= 0:
                yield (right, up), box


def _meet(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
