"""The theorems that price a linear combination, as one enumeration.

Guarantees: every theorem of `accounting.combination` is here, in the order in which ties are resolved, and each knows
whether it holds only for the last release of its runs (theory 6.2).
"""

from __future__ import annotations

from enum import StrEnum

from dpmerge.accounting.combination import THEOREMS, Bound, LinearCombination


class Theorem(StrEnum):
    """By what a linear combination is priced.

    >>> Theorem("last_step").is_final, Theorem.JOINT_RELEASE.is_final
    (True, False)
    """

    JOINT_RELEASE = "joint_release"
    LAST_STEP = "last_step"
    HIDDEN_STATE = "hidden_state"
    MERGED_TRAJECTORY = "merged_trajectory"
    MERGED_TRAJECTORY_PREPENDED = "merged_trajectory_prepended"

    @property
    def is_final(self) -> bool:
        """Whether it holds only if nothing else of these runs is ever released: two such releases do not add up."""
        return self is not Theorem.JOINT_RELEASE

    def bound(self, combination: LinearCombination) -> Bound:
        """What it says of a combination."""
        return THEOREMS[self.value](combination)


NAMED = (Theorem.JOINT_RELEASE, Theorem.LAST_STEP, Theorem.HIDDEN_STATE, Theorem.MERGED_TRAJECTORY)
"""Those a person asks for by name; `merged_trajectory_prepended` is the same theorem with another alignment of runs."""
