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

LONG = 8
"""Samples from which on a stretch under another line is drawn wider: a mere crossing is none."""

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


def hidden_stretches(lines: Sequence[Drawn], colours: Sequence[str]) -> list[tuple[Array, int]]:
    """Of each line its heights at SAMPLES where others, drawn after it in another colour, hide it; and how many do.

    >>> flat = Drawn(np.array([0.0, 1.0]), *3 * (np.array([0.5, 0.5]),), steps=False)
    >>> [(int(np.isfinite(heights).sum()), depth) for heights, depth in hidden_stretches([flat, flat], ["red", "blue"])]
    [(201, 1), (0, 0)]
    """
    heights = [line.at(SAMPLES)[0] for line in lines]
    found = []
    for place, height in enumerate(heights):
        after = [other for n, other in enumerate(heights) if n > place and colours[n] != colours[place]]
        with np.errstate(invalid="ignore"):
            hiding = sum((np.abs(height - other) < NEAR for other in after), np.zeros(SAMPLES.size, dtype=int))
        long = np.zeros(SAMPLES.size, dtype=bool)
        for run in runs(hiding > 0):
            long[run] = run.stop - run.start >= LONG
        depth = min(int(hiding[long].max(initial=0)), MOST_ON_TOP)
        found.append((np.where(long, height, np.nan), depth))
    return found
