"""Curves that jump, drawn as jumps: a gap, and the value at the end as a point of its own.

Guarantees: a line joins two points only where ε passes through what lies between them, as far as the points can tell.
"""

from __future__ import annotations

import numpy as np

from dpmerge.accounting.validation import Array

CLOSE = 1e-9
"""Shares nearer than this are neighbours in every respect but for a jump."""

SEEN = 5e-3
"""Of the height of a figure, what can be seen."""

STEEP = 20.0
"""How many times the next step a first one has to be, where points are far apart."""


def with_jumps(x: Array, y: Array) -> tuple[Array, Array]:
    """The points, with a gap wherever there is a jump between two.

    Args:
        x: Shares, increasing.
        y: What they cost.

    Returns:
        Both, longer by one NaN for each jump.

    >>> x, y = with_jumps(np.array([0, 1e-12, 0.5, 1]), np.array([1.0, 3.0, 3.1, 3.2]))
    >>> y.tolist()
    [1.0, nan, 3.0, 3.1, 3.2]
    """
    finite = y[np.isfinite(y)]
    if finite.size < 3:
        return x, y
    with np.errstate(invalid="ignore"):
        steps = np.abs(np.diff(y))
    seen = steps > SEEN * (finite.max() - finite.min())
    jumps = np.zeros(steps.size, dtype=bool)
    for end, inner in ((0, 1), (-1, -2)):  # a model drops out at an end, and only there
        jumps[end] = seen[end] and (np.diff(x)[end] <= CLOSE or steps[end] > STEEP * steps[inner])
    places = np.flatnonzero(jumps) + 1
    return np.insert(x, places, np.nan), np.insert(y, places, np.nan)
