"""The values each quantity may take, checked in one place.

Guarantees: a number that passed is finite where it must be and inside its domain; NaN never passes.
Refuses by raising InvalidInputError with the field, the value and what is accepted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt

from dpmerge.errors import InvalidInputError

Array = npt.NDArray[np.float64]

SMALLEST, LARGEST = 1e-30, 1e30
"""Sizes outside would underflow or overflow when squared, and an underflow would make a cost vanish."""

LARGEST_ORDER = 1e5
"""Of a Rényi curve. Nothing is gained beyond, and a subsampled curve takes time in proportion."""

SIMPLEX_TOLERANCE = 1e-9
"""How far a vector of weights or probabilities may be off the simplex before it is refused."""


def number(field: str, value: Any, accepted: str = "a number") -> float:
    """The value as a float; booleans, text and NaN are refused."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InvalidInputError(field, value, accepted)
    try:
        result = float(value)
    except OverflowError:
        raise InvalidInputError(field, value, accepted, found="a number beyond all doubles") from None
    if np.isnan(result):
        raise InvalidInputError(field, value, accepted)
    return result


def non_negative(field: str, value: Any, *, infinite: bool = False) -> float:
    """A number in [0, ∞), or [0, ∞] where infinity has a meaning."""
    accepted = "a number ≥ 0" if infinite else "a finite number ≥ 0"
    result = number(field, value, accepted)
    if result < 0 or (np.isinf(result) and not infinite):
        raise InvalidInputError(field, value, accepted)
    return result


def positive(field: str, value: Any) -> float:
    """A number in (0, ∞)."""
    accepted = "a finite number > 0"
    result = number(field, value, accepted)
    if not 0 < result < np.inf:
        raise InvalidInputError(field, value, accepted)
    return result


def magnitude(field: str, value: Any, *, zero: bool) -> float:
    """A size whose square, and the square of a product of several, is an ordinary double; or zero where allowed."""
    accepted = f"{'0, or ' if zero else ''}a number from {SMALLEST:g} to {LARGEST:g}"
    result = number(field, value, accepted)
    if not (SMALLEST <= result <= LARGEST or (zero and result == 0)):
        raise InvalidInputError(field, value, accepted)
    return result


def integer(field: str, value: Any, *, least: int, most: int | None = None) -> int:
    """An integer of at least `least`, and at most `most` where that is given."""
    accepted = f"an integer ≥ {least}" if most is None else f"an integer from {least} to {most}"
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise InvalidInputError(field, value, accepted)
    if value < least or (most is not None and value > most):
        raise InvalidInputError(field, value, accepted)
    return int(value)


def delta(field: str, value: Any) -> float:
    """δ in (0, 1)."""
    accepted = "a number strictly between 0 and 1"
    result = number(field, value, accepted)
    if not 0 < result < 1:
        raise InvalidInputError(field, value, accepted)
    return result


def fraction(field: str, value: Any, *, zero: bool) -> float:
    """A number in [0, 1], or (0, 1] where zero has no meaning."""
    accepted = "a number in [0, 1]" if zero else "a number in (0, 1]"
    result = number(field, value, accepted)
    if not 0 <= result <= 1 or (result == 0 and not zero):
        raise InvalidInputError(field, value, accepted)
    return result


def simplex(field: str, values: Iterable[float], length: int) -> Array:
    """A vector of `length` numbers ≥ 0 that sum to 1 within SIMPLEX_TOLERANCE, returned exactly normalised."""
    accepted = f"{length} numbers ≥ 0 that sum to 1 (within {SIMPLEX_TOLERANCE:g})"
    try:
        vector = np.asarray([number(field, value, accepted) for value in values], dtype=float)
    except TypeError:
        raise InvalidInputError(field, values, accepted) from None
    shown = vector.tolist()
    if vector.shape != (length,) or not np.all(np.isfinite(vector)) or vector.min() < -SIMPLEX_TOLERANCE:
        raise InvalidInputError(field, shown, accepted)
    if abs(vector.sum() - 1) > SIMPLEX_TOLERANCE:
        raise InvalidInputError(field, shown, accepted, found=f"{shown}, which sum to {float(vector.sum())!r}")
    vector = np.maximum(vector, 0.0)
    return np.asarray(vector / vector.sum())


def simplex_rows(field: str, values: npt.ArrayLike, length: int, *, least: float = 0.0) -> Array:
    """Many vectors of the simplex, one a row; entries are 0 or at least `least`. The first bad row is named."""
    accepted = f"rows of {length} numbers ≥ 0 that sum to 1 (within {SIMPLEX_TOLERANCE:g})"
    if least:
        accepted += f", each 0 or at least {least:g}"
    rows = np.atleast_2d(np.asarray(values, dtype=float))
    if rows.ndim != 2 or rows.shape[1] != length:
        raise InvalidInputError(field, values, accepted, found=f"an array of shape {rows.shape}")
    sums = rows.sum(axis=1)
    good = (np.abs(sums - 1) <= SIMPLEX_TOLERANCE) & np.all((rows == 0) | (rows >= max(least, 0.0)), axis=1)
    if not np.all(good):
        first = int(np.argmin(good))
        found = f"{rows[first].tolist()}, which sum to {float(sums[first])!r}"
        raise InvalidInputError(f"{field}[{first}]", rows[first].tolist(), accepted, found=found)
    return rows


def truth(field: str, value: Any) -> bool:
    """A boolean, and nothing that merely looks like one."""
    if not isinstance(value, bool | np.bool_):
        raise InvalidInputError(field, value, "True or False")
    return bool(value)


def instance(field: str, value: Any, kind: type | tuple[type, ...], accepted: str) -> None:
    """Refuse a value of another type by saying which is wanted."""
    if not isinstance(value, kind):
        raise InvalidInputError(field, value, accepted, found=f"a {type(value).__name__}")


def orders(field: str, values: Sequence[float] | Array) -> Array:
    """A grid of Rényi orders: at least one, each above 1 and at most LARGEST_ORDER, strictly increasing."""
    accepted = f"a non-empty, strictly increasing list of numbers > 1 and at most {LARGEST_ORDER:g}"
    try:
        grid = np.asarray([number(field, value, accepted) for value in values], dtype=float)
    except TypeError:
        raise InvalidInputError(field, values, accepted) from None
    if grid.size == 0 or grid.min() <= 1 or grid.max() > LARGEST_ORDER or np.any(np.diff(grid) <= 0):
        raise InvalidInputError(field, list(values), accepted)
    return grid
