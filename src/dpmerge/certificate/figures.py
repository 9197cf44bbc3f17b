"""Figures as a certificate prints them: six significant digits, rounded up.

Guarantees: a printed figure is never below the computed one. Machines that compute it a little differently print the
same figure, or the one next to it, and verification knows which those are.
"""

from __future__ import annotations

import math
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
