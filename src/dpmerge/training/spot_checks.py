"""Spot checks: the costlier checks are made at all of the first steps, and at later ones by chance.

Guarantees: nobody can tell beforehand which steps are checked. A loop that does something at every step is found out
within a few; one that does it once may be missed, with the probability stated.
"""

from __future__ import annotations

import os

FIRST_STEPS, ONE_IN = 16, 4
"""So many steps are checked one after the other, and of the later ones one in so many, a power of two up to 256."""


class SpotChecks:
    """Counts steps, and says of each whether to check it."""

    def __init__(self) -> None:
        self._steps = 0

    def due(self) -> bool:
        """Whether the step that is next is checked."""
        self._steps += 1
        return self._steps <= FIRST_STEPS or os.urandom(1)[0] % ONE_IN == 0
