"""Figures of an audit in words: lower bounds rounded down, what is certified rounded up.

Guarantees: a printed violation is one, and no printed guarantee is better than it is.
"""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal

SYMBOLS = {"epsilon": "ε", "delta": "δ"}


def above(value: float | None) -> str:
    """A certified figure, four digits, rounded up."""
    if value is None:
        return "–"
    return "∞" if math.isinf(value) else _rounded(value, ROUND_CEILING)


def below(value: float) -> str:
    """A lower bound, four digits, rounded down."""
    return _rounded(value, ROUND_FLOOR)


def ratio(value: float | None) -> str:
    """Lower bound over claim, never rounded across a verdict."""
    if value is None:
        return "–"
    if math.isinf(value):
        return "∞"
    rounded = _rounded(value, ROUND_FLOOR, digits=3)
    return "1.01" if value > 1 and float(rounded) <= 1 else rounded


def percent(confidence: float) -> str:
    """As many digits as there are nines, and one more: 99.9 % is never called 100 %."""
    digits = max(2, 1 - math.floor(math.log10(1 - confidence)))
    return f"{_rounded(100 * confidence, ROUND_FLOOR, digits=digits + 1)} %"


def _rounded(value: float, rounding: str, digits: int = 4) -> str:
    return f"{float(Context(prec=digits, rounding=rounding).create_decimal(Decimal(repr(float(value))))):.{digits}g}"
