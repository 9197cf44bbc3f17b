"""Learning rates that divide by the realised size of each Poisson batch.

How many records a batch came out with tells whether one of them was drawn: the amplification that is accounted for is
gone, under every adjacency (docs/concepts/adjacency.md). Opacus divides by the *expected* size, which is a constant,
and a constant that changes is refused by `step_reader`; a loop can still divide by hand, through the rate.

Guarantees: a rate that has been inversely proportional to the realised size at every step so far is refused as soon as
three different sizes have shown it, before the weights move. Other rates that follow the data are the loop's word
(`schedule`).
"""

from __future__ import annotations

import math

from dpmerge.errors import RecordingError

_ENOUGH = 3
"""So many batches of different size: a schedule that has nothing to do with them does not fit that many by chance."""


class RealisedDivisorCheck:
    """Follows the rates of Poisson batches, step by step."""

    def __init__(self) -> None:
        self._product: float | None = None
        self._sizes: set[int] = set()
        self._fits = True

    def require_other(self, rate: float, rows: int) -> None:
        """Refuse a rate that is one constant over the number of records drawn, as all before it were."""
        size = max(rows, 1)  # what is divided by where a batch came out empty
        product = rate * size
        if self._product is None:
            self._product = product
        self._fits &= product > 0 and math.isclose(product, self._product, rel_tol=1e-6)
        self._sizes.add(size)
        if self._fits and len(self._sizes) >= _ENOUGH:
            raise RecordingError(
                f"optimizer: the learning rate times the number of records drawn was {product:g} at every step so far: "
                "the realised size of a Poisson batch is divided by, which tells who was drawn; divide by the expected "
                "size (loss_reduction='mean' does)"
            )
