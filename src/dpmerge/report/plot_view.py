"""What of a plot can be seen: which points, how far their errors reach, and the axes around them.

Guarantees: one decision for the page, the picture and the terminal; a point that an axis cannot show, such as zero on a
logarithmic one, is a gap; a point that no line reaches bears a mark.
Refuses: a series of which x, y and error are not of one length.
"""

from __future__ import annotations

import math
import textwrap
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from dpmerge.accounting.validation import Array
from dpmerge.errors import InvalidInputError, printable
from dpmerge.report.axes import TINY, Axis
from dpmerge.report.plots import Plot, Series

MOST_MARKS = 12
"""About so many marks lie on a line of many points; more would hide it."""

MOST_TICKS = 9
LEAST_RATIO = 10.0
"""Below it, 1, 2, 5, 10, … are too few numbers for a logarithmic axis."""


@dataclass(frozen=True)
class Visible:
    """A series as it is drawn: NaN where there is a gap, or no error."""

    x: Array
    y: Array
    low: Array  # ends of the error
    high: Array
    alone: npt.NDArray[np.bool_]  # points without a neighbour to draw a line to
    marked: npt.NDArray[np.bool_]

    @property
    def stretches(self) -> list[slice]:
        """Two or more points in a row with errors: there a band can be drawn."""
        inside = np.isfinite(self.low) & np.isfinite(self.high)
        ends = np.flatnonzero(np.diff(np.concatenate(([False], inside, [False])).astype(int)))
        return [slice(int(begin), int(end)) for begin, end in ends.reshape(-1, 2) if end - begin > 1]

    @property
    def barred(self) -> npt.NDArray[np.bool_]:
        """Points whose error is a bar, for a band has no width there."""
        return self.alone & np.isfinite(self.low)


@dataclass(frozen=True)
class View:
    """A plot as it is drawn."""

    across: Axis
    up: Axis
    series: tuple[Visible, ...]


def view(plot: Plot) -> View:
    """All that is visible, and axes around it. An axis asked to be logarithmic is so unless it shows a single value."""
    seen = [_visible(series, plot) for series in plot.series]
    if plot.x_range is None:
        across = Axis.of((s.x for s in seen), wide=1.0 if plot.log_x else math.inf)
    else:
        across = Axis(*plot.x_range, log=plot.log_x)
    if not plot.log_y:
        up = Axis.of((ends for s in seen for ends in (s.y, s.low, s.high)), wide=math.inf)
        return View(across, up, tuple(seen))
    # An error that reaches zero, or nearly, would stretch a logarithmic axis without end: it is shown for a decade.
    up = Axis.of((ends for s in seen for ends in (s.y, np.maximum(s.low, s.y / 10), s.high)), wide=1.0)
    return View(across, up, tuple(replace(s, low=np.maximum(s.low, up.low)) for s in seen))


def ticks(axis: Axis) -> dict[float, str]:
    """The numbers at an axis, and how they are written: few enough to be read, and more than one.

    >>> list(ticks(Axis(90.0, 420.0, log=True)).values()), list(ticks(Axis(1e-6, 2e9, log=True)).values())
    (['100', '200', '300', '400'], ['1e-6', '0.0001', '0.01', '1', '100', '10,000', '1e6', '1e8'])
    """
    if axis.log and axis.high < LEAST_RATIO * axis.low:
        found = Axis(axis.low, axis.high, log=False).round_ticks()
    else:
        found = axis.round_ticks(most=MOST_TICKS)
    return {tick: _written(tick) for tick in found[:: -(-len(found) // MOST_TICKS)]}


def lines(text: str, width: int) -> list[str]:
    """Words to be drawn: in as few lines as this width allows, and these of like length.

    >>> lines("accuracy on the test images (%)", 28)
    ['accuracy on the', 'test images (%)']
    """
    shown = printable(text)
    count = len(textwrap.wrap(shown, width))
    return next(found for w in range(1, width + 1) if len(found := textwrap.wrap(shown, w)) == count)


def _written(value: float) -> str:
    """In full, unless that is long."""
    if 1e-4 <= abs(value) < 1e6 or value == 0:
        return f"{value:,.10g}"
    digits, _, power = f"{value:.4g}".partition("e")
    return f"{digits}e{int(power)}" if power else digits


def _visible(series: Series, plot: Plot) -> Visible:
    x, y = (np.array(values, dtype=float) for values in (series.x, series.y))
    error = np.full(y.shape, np.nan) if series.error is None else np.array(series.error, dtype=float)
    if not x.shape == y.shape == error.shape == (x.size,):
        found = f"{x.shape}, {y.shape} and {error.shape}"
        raise InvalidInputError(f"series {series.name}", series, "x, y and error of one length", found=found)
    shown = _on(x, log=plot.log_x) & _on(y, log=plot.log_y)
    x[~shown] = y[~shown] = np.nan
    error[~np.isfinite(error)] = np.nan
    padded = np.concatenate(([False], shown, [False]))
    alone = shown & ~padded[:-2] & ~padded[2:] if series.line else shown
    every = np.arange(x.size) % max(1, x.size // MOST_MARKS) == 0
    marked = alone | (shown & every & (series.marks != "none"))
    return Visible(x, y, y - error, y + error, alone, marked)


def _on(values: Array, *, log: bool) -> npt.NDArray[np.bool_]:
    """Which values an axis can show."""
    return np.isfinite(values) & ((values > TINY) if log else True)
