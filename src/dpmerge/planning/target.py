"""What is asked for: an (ε, δ) that a release must meet."""

from __future__ import annotations

from dataclasses import dataclass

from dpmerge.privacy import domain


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """(ε, δ)-differential privacy, for the unit and adjacency of the portfolio it is asked of.

    >>> Guarantee(epsilon=0.8, delta=1e-5)
    Guarantee(epsilon=0.8, delta=1e-05)
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", domain.positive("epsilon", self.epsilon))
        object.__setattr__(self, "delta", domain.delta("delta", self.delta))
