"""Figures as they are printed: rounded up, so that what is printed still holds.

Guarantees: a printed figure is never below the computed one. Machines that compute it a little differently print the
same figure, or the one next to it, and verification knows which those are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal

DIGITS = 6
LEAST_DELTA = 1e-12
"""A smaller δ is printed as this one: below, different machines differ in rounding alone."""


def up(value: float) -> float | str:
    """Rounded up to six digits; JSON has no infinity, the string "inf" stands for it."""
    return "inf" if math.isinf(value) else _rounded(value, ROUND_CEILING)


def down(value: float) -> float:
    """Rounded down to six digits: what to aim for so that the figure printed is within `value`."""
    return _rounded(value, ROUND_FLOOR)


def _rounded(value: float, rounding: str) -> float:
    # From the digits that name the float: 0.2 is not a little more than 0.2.
    return float(Context(prec=DIGITS, rounding=rounding).create_decimal(Decimal(repr(float(value)))))


def format_up(value: float | None, digits: int = 4) -> str:
    """For a person: so many decimals, rounded up; "–" for no figure.

    >>> format_up(0.05043), format_up(2.0), format_up(None)
    ('0.0505', '2.0000', '–')
    """
    if value is None:
        return "–"
    if math.isinf(value):
        return "∞"
    exact = Decimal(repr(float(value)))
    if value < 1e6:
        return str(exact.quantize(Decimal(1).scaleb(-digits), rounding=ROUND_CEILING))
    return f"{Context(prec=digits, rounding=ROUND_CEILING).create_decimal(exact):E}"


def value_range(values: Iterable[float]) -> str:
    """One value, or the ends of several.

    >>> value_range([32, 64, 32]), value_range([32, 32])
    ('32–64', '32')
    """
    ordered = sorted(set(values))
    return f"{ordered[0]:.4g}" if len(ordered) == 1 else f"{ordered[0]:.3g}–{ordered[-1]:.3g}"


def json_number(value: float | None) -> float | str | None:
    """JSON has no infinity: the string "inf" stands for it."""
    return "inf" if value is not None and math.isinf(value) else value
