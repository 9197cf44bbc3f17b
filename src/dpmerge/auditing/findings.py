"""What an audit found: a claim, a lower bound, their ratio, and a verdict.

Guarantees: `violated` is said only where the lower bound, at its confidence, is above what is claimed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from dpmerge import notebook
from dpmerge.auditing.attacks import Array
from dpmerge.auditing.printed_figures import SYMBOLS, above, below
from dpmerge.errors import printable

Verdict = Literal["violated", "tight", "consistent"]
Quantity = Literal["epsilon", "delta"]
Estimator = Literal["gaussian", "counting", "one_run", "one_run_f_dp"]

TIGHT = 0.9
"""A lower bound of at least so much of what is claimed shows that little is given away."""


@dataclass(frozen=True)
class Interval:
    """An estimate and the limits of its confidence interval."""

    estimate: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class Roc:
    """How often the attack says the record is there: when it is not (`false`), and when it is (`true`)."""

    false: Array
    true: Array


@dataclass(frozen=True, kw_only=True, eq=False)
class Estimate:
    """A lower bound that an attack has shown: ε at a given δ, or δ at a given ε."""

    quantity: Quantity
    bound: float
    given: float  # the δ of an ε, the ε of a δ
    estimator: Estimator
    trials: int  # in each world
    confidence: float
    attacks: int = 1  # two where an alarm was confirmed, and the smaller bound is this one
    mu: Interval | None = None  # where the release is Gaussian
    roc: Roc | None = None


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What somebody says a release costs: `value` is ε at δ, or δ at ε, or None where nothing is promised.

    `false_here` is what theory says: the claim does not hold for what is attacked. It is never used for a verdict.
    """

    by: str
    value: float | None
    proved: bool
    false_here: bool = False
    mu: float | None = None
    deltas: Callable[[float], float] | None = field(default=None, repr=False, compare=False)  # δ at each ε


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A claim beside what an attack has shown."""

    subject: str
    claim: Claim
    estimate: Estimate

    def __repr__(self) -> str:
        symbol = SYMBOLS[self.estimate.quantity]
        claimed = f"{symbol} = {above(self.claim.value)} by {self.claim.by}"
        shown = f"{symbol} ≥ {below(self.estimate.bound)} shown"
        return printable(f"Finding({self.subject}: {self.verdict}; {shown}, {claimed})")

    def _repr_html_(self) -> str:
        """In a notebook."""
        return notebook.cell_html(self)

    @property
    def tightness(self) -> float | None:
        """Lower bound over claim; None where there is nothing to compare with."""
        value = self.claim.value
        if value is None or math.isinf(value):
            return None
        if value == 0:
            return math.inf if self.estimate.bound > 0 else None
        return self.estimate.bound / value

    @property
    def verdict(self) -> Verdict:
        ratio = self.tightness
        if ratio is None:
            return "consistent"
        if ratio > 1:
            return "violated"
        return "tight" if ratio >= TIGHT else "consistent"

    def document(self) -> dict[str, Any]:
        """As JSON values."""
        claim, estimate = self.claim, self.estimate
        value = claim.value if claim.value is None or math.isfinite(claim.value) else None
        ratio = self.tightness
        return {
            "subject": self.subject,
            "claimed_by": claim.by,
            "proved": claim.proved,
            "quantity": estimate.quantity,
            "given": estimate.given,
            "claimed": value,
            "lower_bound": estimate.bound,
            "tightness": ratio if ratio is None or math.isfinite(ratio) else None,
            "verdict": self.verdict,
            "estimator": estimate.estimator,
            "trials": estimate.trials,
            "confidence": estimate.confidence,
            "attacks": estimate.attacks,
            "mu": None
            if estimate.mu is None
            else {
                "claimed": claim.mu,
                "estimate": estimate.mu.estimate,
                "low": estimate.mu.low,
                "high": estimate.mu.high,
            },
        }
