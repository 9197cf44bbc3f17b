"""What is asked for: an (ε, δ) that a release must meet."""

from __future__ import annotations

from dataclasses import dataclass

from dpmerge.accounting import validation
from dpmerge.accounting.epsilon_solver import LARGEST_EPSILON
from dpmerge.errors import InvalidInputError


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """(ε, δ)-differential privacy, for the unit and adjacency of the portfolio it is asked of.

    (theory 1.)

    Args:
        epsilon: ε ≥ 0.
        delta: Strictly between 0 and 1.

    Raises:
        InvalidInputError: A value outside its domain.

    >>> Guarantee(epsilon=0.8, delta=1e-5)
    Guarantee(epsilon=0.8, delta=1e-05)
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", validation.non_negative("epsilon", self.epsilon))
        object.__setattr__(self, "delta", validation.delta("delta", self.delta))

    def require_target(self) -> None:
        """Refuse what can be achieved but not asked for: perfect privacy, and an ε that promises nothing."""
        if not 0 < self.epsilon <= LARGEST_EPSILON:
            raise InvalidInputError("epsilon", self.epsilon, f"a number > 0 and at most {LARGEST_EPSILON:.3g}")
