"""What of a plot can be seen: which points, how far their errors reach, and the axes around them.

Guarantees: one decision for the page, the picture and the terminal; a point that an axis cannot show, such as zero on a
logarithmic one, is a gap; a point that no line reaches bears a mark; where a line jumps, its end is an open circle;
bands that would lie on one another are bars beside each other.
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
from dpmerge.report.error_bars import Bars, bars
from dpmerge.report.overlaps import SAMPLES, Drawn, bands_that_meet, hidden_stretches, runs
from dpmerge.report.plots import Plot, Series

MOST_MARKS = 12
"""About so many marks lie on a line of many points; more would hide it."""

MOST_TICKS = 9
LEAST_RATIO = 10.0
"""Below it, 1, 2, 5, 10, … are too few numbers for a logarithmic axis."""


@dataclass(frozen=True)
class Hidden:
    """Stretches of a line that others hide, which are drawn wider below them; NaN between."""

    x: Array
    y: Array
    depth: int  # how many lie on it


@dataclass(frozen=True)
class Visible:
    """A series as it is drawn: NaN where there is a gap, or no error."""

    x: Array
    y: Array
    low: Array  # ends of the error
    high: Array
    alone: npt.NDArray[np.bool_]  # points without a neighbour to draw a line to
    marked: npt.NDArray[np.bool_]
    open: npt.NDArray[np.bool_]  # ends of a line at a jump, whose value is that of the point beyond
    bars: Bars | None = None  # instead of a band
    hidden: Hidden | None = None  # where other lines lie on this one

    @property
    def stretches(self) -> list[slice]:
        """Two or more points in a row with errors: there a band is drawn, unless there are bars."""
        inside = np.isfinite(self.low) & np.isfinite(self.high)
        return [run for run in runs(inside) if run.stop - run.start > 1] if self.bars is None else []

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
        return _arranged(plot, across, up, seen)
    # An error that reaches zero, or nearly, would stretch a logarithmic axis without end: it is shown for a decade.
    up = Axis.of((ends for s in seen for ends in (s.y, np.maximum(s.low, s.y / 10), s.high)), wide=1.0)
    return _arranged(plot, across, up, [replace(s, low=np.maximum(s.low, up.low)) for s in seen])


def _arranged(plot: Plot, across: Axis, up: Axis, seen: list[Visible]) -> View:
    """With bars for bands that would lie on one another, and what is known of lines that do."""
    lines = [_drawn(series, s, across, up) for series, s in zip(plot.series, seen, strict=True)]
    lined = [place for place, series in enumerate(plot.series) if series.line]
    banded = [place for place in lined if seen[place].stretches]
    solid = [place for place in lined if not (plot.series[place].dashed or plot.series[place].dotted)]
    stretches = hidden_stretches([lines[place] for place in solid], [plot.series[place].colour for place in solid])
    for place, (heights, depth) in zip(solid, stretches, strict=True):
        if depth:
            seen[place] = replace(seen[place], hidden=Hidden(across.values(SAMPLES), up.values(heights), depth))
    meeting = bands_that_meet([lines[place] for place in banded])
    barred = [place for place, meets in zip(banded, meeting, strict=True) if meets]
    for rank, place in enumerate(barred):
        seen[place] = replace(seen[place], bars=bars(lines[place], rank, len(barred)).on(across, up))
    return View(across, up, tuple(seen))


def _drawn(series: Series, seen: Visible, across: Axis, up: Axis) -> Drawn:
    """With the errors of points on a line only: a point alone has its own bar."""
    low, high = (up.places(np.where(seen.alone, np.nan, ends)) for ends in (seen.low, seen.high))
    return Drawn(across.places(seen.x), up.places(seen.y), low, high, steps=series.steps)


def ticks(axis: Axis, most: int = MOST_TICKS) -> dict[float, str]:
    """The numbers at an axis, and how they are written: few enough to be read, and more than one.

    >>> list(ticks(Axis(90.0, 420.0, log=True)).values()), list(ticks(Axis(1e-6, 2e9, log=True)).values())
    (['100', '200', '300', '400'], ['1e-6', '0.0001', '0.01', '1', '100', '10,000', '1e6', '1e8'])
    """
    if axis.log and axis.high < LEAST_RATIO * axis.low:
        found = Axis(axis.low, axis.high, log=False).round_ticks()
    else:
        found = axis.round_ticks(most=most)
    return {tick: _written(tick) for tick in found[:: -(-len(found) // max(most, 2))]}


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
    jumps = np.concatenate(([False], np.isnan(x), [False]))
    x[~shown] = y[~shown] = np.nan
    error[~np.isfinite(error)] = np.nan
    padded = np.concatenate(([False], shown, [False]))
    alone = shown & ~padded[:-2] & ~padded[2:] if series.line else shown
    every = np.arange(x.size) % max(1, x.size // MOST_MARKS) == 0
    open_ends = shown & ~alone & (jumps[:-2] | jumps[2:]) & (series.line and not series.steps)
    marked = alone | open_ends | (shown & every & (series.marks != "none"))
    return Visible(x, y, y - error, y + error, alone, marked, open_ends)


def _on(values: Array, *, log: bool) -> npt.NDArray[np.bool_]:
    """Which values an axis can show."""
    return np.isfinite(values) & ((values > TINY) if log else True)
