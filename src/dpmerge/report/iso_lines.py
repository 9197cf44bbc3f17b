"""Lines of equal ε over the simplex of three models, each with a place for its number.

Guarantees: one decision for the page and the pictures; numbers stand on their lines and not on one another; what is
not finite, and the sides of the triangle, where ε may jump, have no lines.
Refuses nothing: where there is no room for a number, its line goes without.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from dpmerge.accounting.validation import Array
from dpmerge.planning.analysis import Panel
from dpmerge.report.axes import Axis
from dpmerge.report.heatmap_rows import inside

WIDE, HIGH = 0.17, 0.08
"""What a number takes of the height of a triangle."""

MOST_LEVELS = 6


@dataclass(frozen=True)
class IsoLine:
    """Where ε has one value: segments, with NaN between them; `place` is where its number stands, if it does."""

    level: float
    x: Array
    y: Array
    place: tuple[float, float] | None

    @property
    def label(self) -> str:
        return f"{self.level:.4g}"


def iso_lines(panel: Panel, axis: Axis) -> list[IsoLine]:
    """Lines at round values of ε within a panel.

    Args:
        panel: ε over the simplex.
        axis: Its scale of colours.

    Returns:
        Lines in shares of the first (x) and of the second model (y).

    >>> shares = np.linspace(0, 1, 21)
    >>> sums = np.add.outer(shares, shares)
    >>> panel = Panel("p", "select", "pld", None, True, np.where(sums <= 1.001, 1 + sums, np.nan))
    >>> [line.label for line in iso_lines(panel, Axis(1.1, 1.9, log=False))]
    ['1.2', '1.4', '1.6', '1.8']
    """
    values = inside(panel)
    if not values.size:
        return []
    low, high = float(np.quantile(values, 0.02)), float(values.max())
    if not low < high:
        return []
    ticks = Axis(low, high, log=axis.log).round_ticks(most=MOST_LEVELS)
    if axis.log and len(ticks) < 2:
        ticks = Axis(low, high, log=False).round_ticks()
    found: list[IsoLine] = []
    taken: list[tuple[float, float]] = []
    for level in ticks[:: -(-len(ticks) // MOST_LEVELS)]:
        x, y = _segments(panel.epsilons, level)
        if x.size:
            place = _free_place(x, y, taken)
            taken += [place] if place else []
            found.append(IsoLine(level, x, y, place))
    return found


def _segments(costs: Array, level: float) -> tuple[Array, Array]:
    """Where planes through the corners of each small triangle have this height."""
    last = len(costs) - 1
    rows, columns = np.mgrid[:last, :last]
    edge = 1 if last >= 4 else 0
    corners = []
    for triangle in (((0, 0), (0, 1), (1, 0)), ((0, 1), (1, 1), (1, 0))):
        at = [(rows + i, columns + j) for i, j in triangle]
        usable = np.all([(i >= edge) & (j >= edge) & (i + j <= last - edge) for i, j in at], axis=0)
        corners.append(np.array([(i[usable], j[usable]) for i, j in at]))
    points = np.concatenate(corners, axis=2)  # corner, row or column, triangle
    with np.errstate(invalid="ignore", divide="ignore"):
        heights = np.where(np.isfinite(costs), costs, np.nan)[points[:, 0], points[:, 1]]
        above = heights >= level
        ends = [_crossing(points, heights, one, other, level) for one, other in pairwise((0, 1, 2, 0))]
    crossed = np.array([above[one] != above[other] for one, other in pairwise((0, 1, 2, 0))])
    crossed &= np.all(np.isfinite(heights), axis=0)
    x: list[Array] = []
    for first, second in ((0, 1), (0, 2), (1, 2)):
        both = crossed[first] & crossed[second]
        gap = np.full((2, int(both.sum())), np.nan)
        x.append(np.stack([ends[first][:, both], ends[second][:, both], gap], axis=-1).reshape(2, -1))
    together = np.concatenate(x, axis=1) / last
    return together[1], together[0]


def _crossing(points: Array, heights: Array, one: int, other: int, level: float) -> Array:
    share = (level - heights[one]) / (heights[other] - heights[one])
    return np.asarray(points[one] + share * (points[other] - points[one]))


def _free_place(x: Array, y: Array, taken: list[tuple[float, float]]) -> tuple[float, float] | None:
    """The middle of a segment, away from numbers that stand already, and near the middle of the triangle."""
    across, up = (x[0::3] + x[1::3]) / 2, (y[0::3] + y[1::3]) / 2
    off = np.hypot(across - 0.36, up - 0.3)
    roomy = (across > WIDE / 4) & (up > HIGH / 2)
    for left, height in taken:
        roomy &= (np.abs(across - left) > WIDE) | (np.abs(up - height) > HIGH)
    if not roomy.any():
        return None
    best = int(np.argmin(np.where(roomy, off, np.inf)))
    return float(across[best]), float(up[best])
