"""Where bars stand that show the errors of lines: few on each line, and those of different lines beside each other.

Guarantees: no bar stands on that of another line, as long as there is room; a line of few points has a bar for each,
moved a little aside; a line of many has them where they fall between those of the others.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpmerge.accounting.validation import Array
from dpmerge.report.axes import Axis
from dpmerge.report.overlaps import Drawn

FEW = 9
"""Points of a line that have a bar each."""

ON_A_LINE = 5
"""Bars of a line that goes from end to end."""

ASIDE = 0.011
"""Of the width of a plot: how far apart bars of points at one place stand."""


@dataclass(frozen=True)
class Bars:
    """Where they stand, and the line and the ends of its error there."""

    x: Array
    y: Array
    low: Array
    high: Array

    def on(self, across: Axis, up: Axis) -> Bars:
        """Places from 0 to 1 as values of these axes."""
        return Bars(across.values(self.x), *(up.values(each) for each in (self.y, self.low, self.high)))


def bars(line: Drawn, place: int, count: int) -> Bars:
    """The bars of one line.

    Args:
        line: What is drawn.
        place: Which it is of the lines with bars.
        count: How many they are.

    Returns:
        Bars where its error is finite, in places from 0 to 1.
    """
    errors = np.isfinite(line.low) & np.isfinite(line.high)
    if errors.sum() <= FEW:
        aside = ASIDE * (place - (count - 1) / 2)
        return Bars(line.across[errors] + aside, line.up[errors], line.low[errors], line.high[errors])
    across = (np.arange(ON_A_LINE) + (place + 0.5) / count) / ON_A_LINE
    up, low, high = line.at(across)
    there = np.isfinite(low) & np.isfinite(high)
    return Bars(across[there], up[there], low[there], high[there])
