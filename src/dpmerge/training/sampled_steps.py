"""At which steps the costlier looks are taken: all of the first ones, and later ones by chance.

Guarantees: nobody can tell beforehand which steps are looked at. A loop that does something at every step is found out
within a few; one that does it once may be missed, with the probability stated.
"""

from __future__ import annotations

import secrets

FIRST_STEPS, ONE_IN = 16, 4
"""So many steps are looked at one after the other, and of the later ones one in so many."""


class SampledSteps:
    """Counts steps, and says of each whether to look."""

    def __init__(self) -> None:
        self._asked = 0

    def look(self) -> bool:
        self._asked += 1
        return self._asked <= FIRST_STEPS or secrets.randbelow(ONE_IN) == 0
