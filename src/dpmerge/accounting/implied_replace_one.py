"""What a guarantee under zero_out says about replacing a record: leave it empty, then fill it with another.

Guarantees: an ε that holds under replace_one if the profile does under zero_out (docs/concepts/adjacency.md). It is a
figure to read and compare: nothing here is composed, mixed, charged or certified, for adjacencies are never mixed.
Refuses: δ outside (0, 1). Of add_remove a zero_out guarantee says nothing, nor is there a function for it.
"""

from __future__ import annotations

import math

import numpy as np

from dpmerge.accounting import validation
from dpmerge.accounting.gaussian import GaussianProfile
from dpmerge.accounting.profile import PrivacyProfile

_HALVES = np.concatenate([[0.0], np.geomspace(1e-4, 100.0, 600)])


def implied_replace_one_epsilon(profile: PrivacyProfile, delta: float) -> float:
    """ε at δ under replace_one, implied by a profile that holds under zero_out.

    μ-GDP implies 2μ-GDP; any other (ε, δ) implies (2ε, (1 + e^ε)δ). Two zero_out profiles composed would be too small:
    for Gaussian ones that is √2·μ.

    Args:
        profile: Of runs or releases under zero_out.
        delta: Strictly between 0 and 1.

    Returns:
        ε, or infinity where nothing is implied. What the same run costs when accounted for under replace_one itself is
        never more for Gaussian steps, and usually less for sampled ones.

    Raises:
        InvalidInputError: δ outside (0, 1).

    >>> implied_replace_one_epsilon(GaussianProfile(0.5), 1e-5) == GaussianProfile(1.0).epsilon(1e-5)
    True
    """
    validation.delta("delta", delta)
    if isinstance(profile, GaussianProfile):
        return GaussianProfile(2 * profile.mu).epsilon(delta)

    def enough(half: float) -> bool:
        return (1 + math.exp(half)) * profile.delta(half) * (1 + 1e-14) <= delta

    # (1 + e^ε)·δ(ε) need not fall with ε: the first half that is enough is refined, and stays enough.
    found = next((place for place, half in enumerate(_HALVES) if enough(float(half))), None)
    if found is None:
        return math.inf
    high, low = float(_HALVES[found]), float(_HALVES[max(found - 1, 0)])
    while high - low > 1e-10 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return 2 * high
