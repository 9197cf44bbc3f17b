"""The draw of a random selection: exact integers, and randomness of the operating system.

Guarantees: index i is drawn with probability units[i] / Σ units exactly; only the caller is told which.
Refuses: negative or fractional units, no units. (That probabilities are whole units, `terms.release_terms` checks.)
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence

from dpmerge.errors import InvalidInputError


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
