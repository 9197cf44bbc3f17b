"""What is asked for: an (ε, δ) that a release must meet."""

from __future__ import annotations

from dataclasses import dataclass

from dpmerge.errors import InvalidInput
from dpmerge.privacy import domain
from dpmerge.privacy.profile import LARGEST_EPSILON


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """(ε, δ)-differential privacy, for the unit and adjacency of the portfolio it is asked of.

    >>> Guarantee(epsilon=0.8, delta=1e-5)
    Guarantee(epsilon=0.8, delta=1e-05)
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", domain.non_negative("epsilon", self.epsilon))
        object.__setattr__(self, "delta", domain.delta("delta", self.delta))

    def require_target(self) -> None:
        """Refuse what can be achieved but not asked for: perfect privacy, and an ε that promises nothing."""
        if not 0 < self.epsilon <= LARGEST_EPSILON:
            raise InvalidInput("epsilon", self.epsilon, f"a number > 0 and at most {LARGEST_EPSILON:.3g}")
