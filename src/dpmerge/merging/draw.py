"""The draw of a random selection: exact integers, and randomness of the operating system.

Guarantees: index i is drawn with probability units[i] / Σ units exactly; only the caller is told which.
Refuses: probabilities that are not whole numbers of 2⁻⁵³ parts summing to one, negative or fractional units, no units.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence

from dpmerge.errors import InvalidInputError
from dpmerge.terms.release_terms import UNITS


def draw(units: Sequence[int], below: Callable[[int], int] = secrets.randbelow) -> int:
    """Draw an index, each with the probability of its share of all units.

    Args:
        units: whole numbers, not all 0.
        below: gives an integer from 0 to n - 1, each equally likely; by default the operating system does.

    Returns:
        The index that was drawn.

    Raises:
        InvalidInputError: units that are negative, no integers or all 0; a `below` that gives something else.

    Example:
        >>> [draw([1, 0, 2], below=lambda total, n=n: n) for n in range(3)]
        [0, 2, 2]
    """
    for place, count in enumerate(units):
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise InvalidInputError(f"units[{place}]", count, "an integer ≥ 0")
    total = sum(units)
    if not total:
        raise InvalidInputError("units", list(units), "at least one that is positive")
    number = below(total)
    for place, count in enumerate(units):
        if number < count:
            return place
        number -= count
    raise InvalidInputError("below", number, f"a function that gives integers below {total}")


def units_of(probabilities: Sequence[float]) -> tuple[int, ...]:
    """Probabilities as whole numbers of parts, of which there are 2⁵³.

    Args:
        probabilities: numbers from 0 to 1, multiples of 2⁻⁵³ that sum to exactly one.

    Returns:
        How many parts each is.

    Raises:
        InvalidInputError: probabilities that are no such numbers.

    Example:
        >>> units_of([0.75, 0.25]) == (3 * 2**51, 2**51)
        True
    """
    units = []
    for place, probability in enumerate(probabilities):
        field = f"probabilities[{place}]"
        if isinstance(probability, bool) or not isinstance(probability, (int, float)) or not 0 <= probability <= 1:
            raise InvalidInputError(field, probability, "a number from 0 to 1")
        scaled = float(probability) * UNITS  # exact: a power of two
        if not scaled.is_integer():
            raise InvalidInputError(field, probability, "a whole number of 2⁻⁵³ parts")
        units.append(int(scaled))
    if sum(units) != UNITS:
        found = f"a sum that is off by {sum(units) - UNITS} parts of 2⁻⁵³"
        raise InvalidInputError("probabilities", None, "numbers that sum to exactly one", found=found)
    return tuple(units)
