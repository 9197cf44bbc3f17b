"""Which lines and bands of a plot lie on one another: there the lower line is drawn wider, and bands become bars.

Guarantees: what is asked is asked of what is drawn, so that a logarithmic axis counts as it looks; gaps meet nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpmerge.accounting.validation import Array

SAMPLES = np.linspace(0, 1, 201)
"""Places across at which lines are compared."""

NEAR = 0.004
"""Of the height of a plot: lines nearer than this are seen as one."""

COVERED = 0.5
"""The share of a line under another one from which on it is drawn wider."""

MOST_ON_TOP = 2


@dataclass(frozen=True)
class Drawn:
    """A line and its errors in places from 0 to 1, NaN in gaps."""

    across: Array
    up: Array
    low: Array
    high: Array
    steps: bool

    def at(self, places: Array) -> tuple[Array, Array, Array]:
        """Line and errors at these places across; NaN where there is none.

        >>> line = Drawn(np.array([0, 0.5, np.nan, 1]), *3 * (np.array([0, 1, np.nan, 0]),), steps=False)
        >>> line.at(np.array([0.25, 0.75]))[0]
        array([0.5, nan])
        """
        found = np.full((3, places.size), np.nan)
        for run in runs(np.isfinite(self.across)):
            x = self.across[run]
            order = np.argsort(x, kind="stable")
            inside = (places >= x.min()) & (places <= x.max())
            before = np.clip(np.searchsorted(x[order], places[inside], side="right") - 1, 0, x.size - 1)
            for row, values in enumerate((self.up, self.low, self.high)):
                heights = values[run][order]
                found[row, inside] = heights[before] if self.steps else np.interp(places[inside], x[order], heights)
        return found[0], found[1], found[2]


def runs(there: npt.NDArray[np.bool_]) -> list[slice]:
    """Neighbours that are there.

    >>> runs(np.array([True, True, False, True]))
    [slice(0, 2, None), slice(3, 4, None)]
    """
    ends = np.flatnonzero(np.diff(np.concatenate(([False], there, [False])).astype(int)))
    return [slice(int(begin), int(end)) for begin, end in ends.reshape(-1, 2)]


def bands_that_meet(lines: Sequence[Drawn]) -> list[bool]:
    """Of each line whether its band lies on another's: colours would mix to one that no legend has."""
    sampled = [line.at(SAMPLES) for line in lines]
    with np.errstate(invalid="ignore"):
        return [
            any(bool(np.any((low < other[2]) & (other[1] < high))) for n, other in enumerate(sampled) if n != place)
            for place, (_, low, high) in enumerate(sampled)
        ]


def lines_on_top(lines: Sequence[Drawn], colours: Sequence[str]) -> list[int]:
    """Of each line how many of those after it, which are drawn on it in another colour, hide a good part of it."""
    heights = [line.at(SAMPLES)[0] for line in lines]
    counts = []
    for place, height in enumerate(heights):
        seen = np.isfinite(height).sum()
        after = [other for n, other in enumerate(heights) if n > place and colours[n] != colours[place]]
        with np.errstate(invalid="ignore"):
            hidden = [int(np.sum(np.abs(height - other) < NEAR)) for other in after]
        counts.append(min(sum(bool(count > COVERED * seen) for count in hidden), MOST_ON_TOP) if seen else 0)
    return counts
