"""Is what arrived on a rank the sum of what the ranks sent?

Guarantees: a secret linear function of the gradients, the same on all ranks, is as large for what arrived as for all
that was sent together, up to rounding: something added to a sum, left out of it, or divided by another number than the
world's size, shows there unless it is shorter than a ten-thousandth of the gradients.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

_ROUNDING = 1e-4
"""Relative to the lengths of what was sent: sums in single precision, in another order."""


class GradientProjection:
    """A linear function of all gradients: for each tensor a product of a random row and a random column."""

    def __init__(self, key: int, parameters: Sequence[Tensor]) -> None:
        generator = torch.Generator().manual_seed(key % 2**63)
        self._sides = []
        for parameter in parameters:
            height = len(parameter) if parameter.dim() else 1
            width = parameter.numel() // max(height, 1)
            left, right = (torch.randn(size, generator=generator) for size in (height, width))
            self._sides.append((left.to(parameter), right.to(parameter)))

    def of(self, gradients: Sequence[Tensor]) -> float:
        """The function's value; not a number if a gradient is none."""
        values = []
        with torch.no_grad():
            for gradient, (left, right) in zip(gradients, self._sides, strict=True):
                values.append(left @ (gradient.reshape(len(left), len(right)) @ right))
            return float(torch.stack(values).double().sum()) if values else 0.0

    def agrees(self, arrived: Sequence[Tensor], *, divisor: float, sent: Sequence[float], length: float) -> bool:
        """Whether what arrived, times the divisor, is what was sent, whose lengths add up to `length`."""
        apart = divisor * self.of(arrived) - math.fsum(sent)
        # A model that has gone astray (NaN) is refused where it would be saved.
        return not math.isfinite(length) or abs(apart) <= _ROUNDING * length
