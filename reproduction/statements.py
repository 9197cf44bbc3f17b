"""What was found, in words computed from the numbers: a claim, what was measured, whether it agrees, and why.

Guarantees: a difference is called one only if it is larger than the noise of the repetitions allows for; where none is
seen at another size than the paper's, or in one repetition, the claim is called not tested.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Verdict = Literal["agrees", "agrees in part", "disagrees", "within noise", "not tested at this size"]

CONFIDENCE = 0.95


@dataclass(frozen=True, kw_only=True)
class Statement:
    """A claim and what became of it."""

    claim: str  # what is said, in a sentence
    source: str  # who says so: "paper, Figure 1", "theory", "ours"
    verdict: Verdict
    measured: str  # what was seen, with the figures
    why: str = ""  # where it does not agree, or agrees for a reason worth knowing

    def document(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Difference:
    """The mean of differences between pairs, one a repetition, and how far it may be off."""

    mean: float
    margin: float  # half the width of the 95 % confidence interval (Student's t); infinite for one repetition

    @property
    def kind(self) -> Literal["higher", "lower", "within noise"]:
        """

        >>> Difference(0.004, 0.001).kind, Difference(0.004, 0.01).kind
        ('higher', 'within noise')
        """
        if self.mean > self.margin:
            return "higher"
        return "lower" if self.mean < -self.margin else "within noise"

    def __str__(self) -> str:
        """In percentage points, as accuracies are compared.

        >>> print(Difference(0.004, 0.001), Difference(0.004, np.inf), sep="; ")
        +0.40 ± 0.10 points; +0.40 points (once)
        """
        if np.isinf(self.margin):
            return f"{100 * self.mean:+.2f} points (once)"
        return f"{100 * self.mean:+.2f} ± {100 * self.margin:.2f} points"


def difference(values: npt.ArrayLike, *, tests: int = 1) -> Difference:
    """Of paired differences, one a repetition (noise that both sides share cancels).

    Where one of several `tests` is enough to decide, the margin is wide enough for all of them (Bonferroni).
    """
    found = np.asarray(values, dtype=float)
    return Difference(float(found.mean()), float(margins(found, tests=tests)))


def margins(repetitions: npt.ArrayLike, *, tests: int = 1) -> npt.NDArray[np.float64]:
    """Half the width of the 95 % confidence interval of the mean over the first axis; infinite for one repetition."""
    from scipy.special import stdtrit

    found = np.asarray(repetitions, dtype=float)
    count = len(found)
    if count < 2:
        return np.full(found.shape[1:], np.inf)
    quantile = stdtrit(count - 1, 1 - (1 - CONFIDENCE) / 2 / tests)
    return np.asarray(quantile * found.std(axis=0, ddof=1) / np.sqrt(count))


def all_hold(conditions: Sequence[bool] | npt.NDArray[np.bool_]) -> Verdict:
    """Agrees where all hold, in part where some do."""
    found = np.asarray(conditions, dtype=bool)
    return "agrees" if found.all() else "agrees in part" if found.any() else "disagrees"


def told_at_size(statements: Sequence[Statement], *, papers: bool, repetitions: int) -> list[Statement]:
    """The same, but nothing seen at another size than the paper's, or in one repetition, is no finding."""
    if papers and repetitions > 1:
        return list(statements)
    return [
        replace(each, verdict="not tested at this size") if each.verdict == "within noise" else each
        for each in statements
    ]
