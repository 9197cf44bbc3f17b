"""What no merger can do without knowing how the models were trained (the paper's no-free-lunch proposition).

Guarantees: a merger that ignores the training mechanisms and moves by more than this limit, in total variation,
when only the less private model changes cannot be (ε′, δ′)-DP for every pair of mechanisms.
Refuses: a target that is not below the other model's ε.
"""

from __future__ import annotations

import numpy as np

from dpmerge.accounting import validation
from dpmerge.errors import InvalidInputError


def no_free_lunch(*, epsilon_target: float, epsilon_other: float, delta: float, delta_target: float) -> float:
    """(δ′ + e^{ε′} − 1)(e^{ε₂} + 1) / (e^{ε₂+ε′} + δe^{ε′} + δ − 1), at most one (theory 8).

    Args:
        epsilon_target: ε′ of the merger.
        epsilon_other: ε₂ of the less private model.
        delta: Of both models.
        delta_target: δ′ of the merger.

    Returns:
        The most a merger that ignores the training mechanisms may move, in total variation.

    Raises:
        InvalidInputError: A target that is not below the other model's ε, or a value outside its domain.

    >>> round(no_free_lunch(epsilon_target=0.5, epsilon_other=4, delta=1e-5, delta_target=1e-5), 12)
    0.405183218786
    """
    target = validation.non_negative("epsilon_target", epsilon_target)
    other = validation.non_negative("epsilon_other", epsilon_other)
    delta = validation.fraction("delta", delta, zero=True)
    delta_target = validation.fraction("delta_target", delta_target, zero=True)
    if not target < other:
        raise InvalidInputError("epsilon_target", epsilon_target, f"a number below epsilon_other = {other:g}")
    # Divided through by e^{ε₂}, so that large ε₂ do not overflow.
    small = np.exp(-other)
    numerator = (delta_target + np.expm1(target)) * (1 + small)
    denominator = np.exp(target) + (delta * np.exp(target) + delta - 1) * small
    return float(min(1.0, numerator / denominator))
