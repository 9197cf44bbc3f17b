"""The result of an audit that a certificate carries: what an attack on the simulated release has shown.

Guarantees: a verdict follows from the stated lower bound and the certified ε, when the certificate is made and again
when it is verified. Anybody can repeat the attack: `dpmerge audit` on the certificate, with the seed stated.
Refuses: a lower bound above what is certified.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import Field

from dpmerge.errors import InvalidInputError
from dpmerge.terms.documents import Strict

TIGHT = 0.9
"""The share of the certified ε from which on an attack shows that little is given away."""


class Audited(Strict):
    """What an audit was, and the lower bound on ε that it showed at the certificate's δ."""

    lower_bound: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(description="a finite number ≥ 0")
    estimator: Literal["gaussian", "counting"] = Field(description='"gaussian" or "counting"')
    trials: Annotated[int, Field(ge=100, le=10**9)] = Field(
        description="an integer from 100 to 10⁹: simulated releases with the record, and as many without"
    )
    confidence: Annotated[float, Field(ge=0.5, lt=1)] = Field(description="a number in [0.5, 1)")
    seed: Annotated[int, Field(ge=0)] = Field(description="an integer ≥ 0: of the simulation, not of any model")

    def judged(self, epsilon: float) -> dict[str, Any]:
        """What follows from it, beside the ε that is certified."""
        if self.lower_bound > epsilon:
            accepted = f"a lower bound of at most the certified ε, {epsilon:g}"
            raise InvalidInputError("audit.lowerBound", self.lower_bound, accepted)
        ratio = self.lower_bound / epsilon if epsilon > 0 else 0.0  # of ε = 0 there is nothing to show
        return {"verdict": "tight" if ratio >= TIGHT else "consistent", "tightness": math.floor(100 * ratio) / 100}
