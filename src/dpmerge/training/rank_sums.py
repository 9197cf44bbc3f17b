"""The sum of all ranks' gradients, and whether what arrived is the sum of what was sent.

Guarantees: the sum and its division are those of Opacus' `reduce_gradients`, made of all tensors at once (Opacus sends
one after the other, which takes longer than all that the recorder does). A secret linear function of the gradients, the
same on all ranks, is as large for what arrived as for all that was sent together, up to rounding: something added to
the sum, left out of it, or scaled, shows there unless it is shorter than a ten-thousandth of the gradients.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

_ROUNDING = 1e-4
"""Relative to the lengths of what was sent: sums in single precision, in another order."""


class RankSum:
    """One step's gradients: in one piece for each kind of tensor, as they are sent and as they arrive."""

    def __init__(self, key: int, parameters: Sequence[Tensor]) -> None:
        generator = torch.Generator().manual_seed(key % 2**63)
        kinds: dict[tuple[torch.device, torch.dtype], list[int]] = {}
        for place, parameter in enumerate(parameters):
            kinds.setdefault((parameter.device, parameter.dtype), []).append(place)
        self._members = list(kinds.values())
        self._shapes = [parameter.shape for parameter in parameters]
        self._sides, self._pieces = [], list[Tensor]()
        for (device, dtype), members in kinds.items():
            size = sum(parameters[place].numel() for place in members)
            width = max(1, math.isqrt(size))
            sides = (torch.randn(length, generator=generator) for length in (-(-size // width), width))
            self._sides.append(tuple(side.to(device, dtype) for side in sides))

    def hold(self, gradients: Sequence[Tensor]) -> tuple[float, float]:
        """Take what this rank is going to send; return the function's value of it, and its length."""
        self._pieces = []
        for members, (left, right) in zip(self._members, self._sides, strict=True):
            parts = [gradients[place].reshape(-1) for place in members]
            spare = len(left) * len(right) - sum(len(part) for part in parts)
            self._pieces.append(torch.cat([*parts, parts[0].new_zeros(spare)]))
        return self._projection(), math.hypot(*(float(piece.norm()) for piece in self._pieces))

    def gradients(self) -> list[Tensor]:
        """What is held, tensor by tensor, without a copy."""
        found: dict[int, Tensor] = {}
        for members, piece in zip(self._members, self._pieces, strict=True):
            begin = 0
            for place in members:
                end = begin + self._shapes[place].numel()
                found[place] = piece[begin:end].view(self._shapes[place])
                begin = end
        return [found[place] for place in range(len(self._shapes))]

    def reduce(self, divisor: int) -> None:
        """What is held becomes the sum over all ranks, divided."""
        for piece in self._pieces:
            dist.all_reduce(piece, op=dist.ReduceOp.SUM)
            piece.div_(divisor)

    def agrees(self, *, divisor: int, sent: Sequence[float], length: float) -> bool:
        """Whether what is held, times the divisor, is what the ranks sent, whose lengths add up to `length`."""
        apart = divisor * self._projection() - math.fsum(sent)
        # A model that has gone astray (NaN) is refused where it would be saved.
        return not math.isfinite(length) or abs(apart) <= _ROUNDING * length

    def _projection(self) -> float:
        with torch.no_grad():
            pairs = zip(self._pieces, self._sides, strict=True)
            return math.fsum(float(left @ (piece.view(len(left), -1) @ right)) for piece, (left, right) in pairs)
