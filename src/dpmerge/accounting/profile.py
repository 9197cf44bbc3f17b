"""What every privacy guarantee is: a profile ε ↦ (δ₊(ε), δ₋(ε)), the hockey-stick divergences both ways.

Guarantees: `epsilon(delta)` returns a number at which both divergences are at most δ, or infinity.
Refuses: δ outside (0, 1), and δ below `least_delta`, the floor of what the representation can promise.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import numpy.typing as npt

from dpmerge.accounting import validation
from dpmerge.accounting.epsilon_solver import smallest_epsilon
from dpmerge.accounting.validation import Array
from dpmerge.errors import DeltaOutOfReachError

SUM_ROUNDING = 1 + 4e-15
"""By this a sum of a few products of divergences is rounded up, so that a mass of exactly δ at infinity is not lost."""


class PrivacyProfile(ABC):
    """A proved upper bound on the hockey-stick divergences of a mechanism between neighbouring datasets.

    Under add_remove "+" is the removal of a record and "−" its addition, for every profile alike, and under zero_out
    likewise, of a record that is made null; under replace_one both are equal. Values hold for every pair of neighbours
    (theory 1).

    >>> from dpmerge.accounting import GaussianProfile
    >>> profile = GaussianProfile(1.0)
    >>> round(profile.delta(4.0), 9), round(profile.epsilon(1e-5), 6)
    (4.7122e-05, 4.377178)
    """

    @abstractmethod
    def deltas(self, epsilon: npt.ArrayLike) -> tuple[Array, Array]:
        """(δ₊, δ₋) at each ε; ε may be negative (needed by composition) and of any shape."""

    @abstractmethod
    def renyi_divergence(self, orders: Array) -> Array | None:
        """The Rényi curve at the given orders, larger of both directions; None where no formula is proved."""

    @property
    def least_delta(self) -> float:
        """The smallest δ for which `epsilon` may be asked."""
        return 0.0

    def delta(self, epsilon: float) -> float:
        """The certified δ at ε: the larger of both directions.

        Args:
            epsilon: Any real number.

        Returns:
            δ, in [0, 1].
        """
        plus, minus = self.deltas(np.asarray(validation.number("epsilon", epsilon), dtype=float))
        return float(np.maximum(plus, minus))

    def epsilon(self, delta: float) -> float:
        """The smallest ε ≥ 0 (to solver precision, from above) with both divergences at most δ.

        Args:
            delta: Strictly between 0 and 1.

        Returns:
            ε, or infinity.

        Raises:
            DeltaOutOfReachError: δ is below what this representation can promise.
            InvalidInputError: δ outside (0, 1).
        """
        self.check_delta(delta)
        return float(smallest_epsilon(lambda e, _: np.maximum(*self.deltas(e)), np.array([delta]))[0])

    def check_delta(self, delta: float) -> None:
        """Raise unless δ is in (0, 1) and not below the floor of this profile."""
        validation.delta("delta", delta)
        if delta < self.least_delta:
            raise DeltaOutOfReachError(delta, self.least_delta)


class NonPrivateProfile(PrivacyProfile):
    """A model trained without privacy: anything may be told apart, δ = 1 at every ε.

    >>> NonPrivateProfile().epsilon(1e-5)
    inf
    """

    def deltas(self, epsilon: npt.ArrayLike) -> tuple[Array, Array]:
        ones = np.ones_like(np.asarray(epsilon, dtype=float))
        return ones, ones

    def renyi_divergence(self, orders: Array) -> Array:
        return np.full_like(orders, np.inf)

    def __repr__(self) -> str:
        return "NonPrivateProfile()"


def reflected(epsilon: Array, opposite_delta: Array) -> Array:
    """δ₊(−ε) = 1 − e^{−ε}(1 − δ₋(ε)) for ε ≥ 0: one direction below zero from the other above it."""
    return np.asarray(-np.expm1(-epsilon) + np.exp(-epsilon) * opposite_delta)
