"""Are these weights near those, by more than chance and more than a common start explains?

Guarantees: two tests on samples of tensors, each indifferent to scale, to an offset and to a few wild values.
`agreement` compares movements: how often what sets a start apart from another run's start has the sign of that run's
movement. Of values that have nothing to do with each other it is 0 on average, and by Hoeffding's inequality passes
8/√n, n values compared, with a probability below 10⁻¹³. `distance` compares weights where a start is not known.

Before signs are compared, the start's own multiple is taken off both sides (least absolute deviations): so weight
decay, which moves every run towards zero and away from its start, is no resemblance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dpmerge.portfolio.samples import Array

AGREEMENT = 0.25
"""Signs that agree, less those that do not, as a share. A parent's movement with Gaussian noise of up to 2.4 times its
size on top, or the mean of up to six parents that moved independently, is above: (2/π)·asin(1/√(1 + 2.4²)) = 0.25."""
DEVIATIONS = 8.0
DISTANCE = 0.25
"""Of what a tensor's values differ by among themselves."""
LEAST_COMPARED = 64
LEAST_OF_A_TENSOR = 16
_DUST = 1e-6
"""Relative: what single precision makes of a product."""


@dataclass(frozen=True)
class Agreement:
    """Signs that agree less signs that do not, of how many."""

    balance: float = 0.0
    compared: int = 0

    def __add__(self, other: Agreement) -> Agreement:
        return Agreement(self.balance + other.balance, self.compared + other.compared)

    @property
    def share(self) -> float:
        return self.balance / self.compared if self.compared else 0.0

    @property
    def suspicious(self) -> bool:
        """Far above chance, and strong enough to be a parent."""
        return self.compared > 0 and self.share >= max(AGREEMENT, DEVIATIONS / math.sqrt(self.compared))


def set_apart(values: Array, base: Array) -> Array:
    """The signs of what is left of some weights when a multiple of others, and an offset, are taken off."""
    if not len(values):
        return values
    rest = values - _coefficient(values, base) * base
    rest[np.abs(rest) <= _DUST * np.abs(values)] = 0.0
    rest = rest - np.median(rest)
    rest[np.abs(rest) <= _DUST * np.abs(values)] = 0.0
    return np.sign(rest)


def agreement(first: Array, second: Array) -> Agreement:
    """Of two arrays of signs."""
    both = first * second
    return Agreement(float(both.sum()), int(np.count_nonzero(both)))


def distance(values: Array, others: Array) -> float:
    """How far weights are from a multiple of others, as a share of their own spread; 1 if there are too few."""
    if len(values) < LEAST_OF_A_TENSOR:
        return 1.0
    mine, theirs = values - np.median(values), others - np.median(others)
    spread = float(np.abs(mine).mean())
    if spread == 0:
        return 1.0
    return float(np.abs(mine - _coefficient(mine, theirs) * theirs).mean()) / spread


def _coefficient(values: Array, base: Array) -> float:
    """The multiple of `base` nearest to `values`, in the sum of absolute deviations: a weighted median of ratios."""
    used = base != 0
    if not used.any():
        return 0.0
    with np.errstate(over="ignore"):
        ratios = values[used] / base[used]
    order = np.argsort(ratios)
    weight = np.cumsum(np.abs(base[used])[order])
    found = float(ratios[order[np.searchsorted(weight, weight[-1] / 2)]])
    return found if math.isfinite(found) else 0.0
