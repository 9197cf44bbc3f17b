"""Axes: from where to where, and whether logarithmic. One decision for the page, the pictures and the terminal.

Guarantees: an axis is finite and not empty whatever is drawn on it; what is not finite is left out of the decision.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from dpmerge.accounting.validation import Array

WIDE = 20.0
"""Largest over smallest value above which small ones would be squeezed together on a linear axis."""

TINY = 1e-100
"""Below it, margins and ratios leave the range of a float."""


@dataclass(frozen=True)
class Axis:
    """What is visible, from `low` to `high`."""

    low: float
    high: float
    log: bool

    @classmethod
    def of(cls, values: Iterable[Array], *, wide: float = WIDE, padding: float = 0.04) -> Axis:
        """Around these values, logarithmic if they are positive and spread over more than a factor `wide`.

        >>> Axis.of([np.array([0.5, 2.0, np.inf])], padding=0)
        Axis(low=0.5, high=2.0, log=False)
        """
        together = np.concatenate([np.zeros(0), *(np.ravel(v) for v in values)])
        finite = together[np.isfinite(together)]
        if not finite.size:
            return cls(0.0, 1.0, log=False)
        low, high = float(finite.min()), float(finite.max())
        if low > TINY and high / low > wide:
            grown = (high / low) ** padding
            return cls(low / grown, high * grown, log=True)
        margin = padding * (high - low) if high > low else 0.1 * abs(high) or 1.0
        below = low - margin
        return cls(max(below, 0.0) if low >= 0 else below, high + margin, log=False)

    def scaled(self, value: float) -> float:
        """The value as an axis draws it."""
        return math.log10(value) if self.log else value

    @property
    def ends(self) -> tuple[float, float]:
        return self.scaled(self.low), self.scaled(self.high)

    def place(self, value: float) -> float:
        """0 at the low end, 1 at the high one."""
        low, high = self.ends
        return (self.scaled(value) - low) / (high - low)

    def places(self, values: Array) -> Array:
        """The same of many values; NaN where there is no number, or none that this axis can show."""
        low, high = self.ends
        with np.errstate(invalid="ignore", divide="ignore"):
            scaled = np.log10(np.where(values > 0, values, np.nan)) if self.log else values
            return np.asarray((scaled - low) / (high - low))

    def values(self, places: Array) -> Array:
        """What is drawn at these places.

        >>> Axis(1.0, 100.0, log=True).values(np.array([0, 0.5]))
        array([ 1., 10.])
        """
        low, high = self.ends
        scaled = low + places * (high - low)
        return np.asarray(10**scaled if self.log else scaled)

    def ticks(self, count: int) -> list[float]:
        """Values at equal distances, ends included."""
        places = np.linspace(*self.ends, count)
        return [float(10**place if self.log else place) for place in places]

    def drawn(self, columns: int) -> tuple[str, str]:
        """The axis and its numbers in letters, for a terminal.

        >>> print("\\n".join(Axis(0.0, 1.0, log=False).drawn(21)))
        ┬───┬───┬───┬───┬───┬
        0  0.2 0.4 0.6 0.8  1
        """
        base, numbers = ["─"] * columns, [" "] * columns
        for tick in self.round_ticks():
            column, name = round(self.place(tick) * (columns - 1)), f"{tick:.4g}"
            base[column] = "┬"
            start = min(max(column - len(name) // 2, 0), columns - len(name))
            numbers[start : start + len(name)] = name
        return "".join(base), "".join(numbers)

    def round_ticks(self, most: int = 5) -> list[float]:
        """Values that are easily said, or the ends; on a logarithmic axis 1, 2, 5, 10, … unless those are too many.

        >>> Axis(0.27, 1.44, log=False).round_ticks(), Axis(0.04, 9.0, log=True).round_ticks()
        ([0.4, 0.6, 0.8, 1.0, 1.2, 1.4], [0.1, 1.0])
        """
        if self.log:
            found = _decimals(self.low, self.high, (1, 2, 5))
            return found if 1 < len(found) <= most else _decimals(self.low, self.high, (1,)) or self.ticks(2)
        step = 10.0 ** math.floor(math.log10((self.high - self.low) / 3))
        step = max(step * factor for factor in (1, 2, 5) if step * factor <= (self.high - self.low) / 3)
        numbers = range(math.ceil(self.low / step), math.floor(self.high / step) + 1)
        return [float(f"{number * step:.6g}") for number in numbers] or self.ticks(2)


def _decimals(low: float, high: float, digits: tuple[int, ...]) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [value for power in powers for digit in digits if low <= (value := float(f"{digit}e{power}")) <= high]
