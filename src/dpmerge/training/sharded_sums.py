"""The sum of all ranks' clipped gradients where each rank gets its shard of it: FSDP's reduce-scatter, observed.

Guarantees: what a rank sends in the backward pass of clipped losses is no longer than so many clipped gradients can be,
and the shards that arrive are together the sum of what all ranks sent, divided by their number: a secret linear
function, the same on all ranks, is as large for the ones as for the others. Something added, left out, or divided by
another number (`set_gradient_divide_factor`) shows there.
Refuses: gradients that were not seen as they were sent, and sums in half precision.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor
from torch.distributed.fsdp._fully_shard import _fsdp_param_group

from dpmerge.errors import RecordingError
from dpmerge.training.sharded_models import first_row, local
from dpmerge.training.step_reader import require_single_precision

_ROUNDING = 1e-4
"""Relative to the lengths of what was sent: sums in single precision, in another order."""
_SUM_ERROR = 1e-4
"""Relative: by so much the sum of a batch's clipped gradients may be too long by rounding."""


class ShardedSum:
    """One step's gradients, as this rank sends them and as its shard of their sum arrives."""

    def __init__(self, key: int, parameters: Sequence[Tensor]) -> None:
        self._parameters = list(parameters)
        self._places = {id(parameter): place for place, parameter in enumerate(parameters)}
        generator = torch.Generator().manual_seed(key % 2**63)
        self._sides = []
        for parameter in parameters:
            rows = len(parameter)
            lengths = rows, parameter.numel() // max(1, rows)
            sides = (torch.randn(length, generator=generator) for length in lengths)
            self._sides.append(tuple(side.to(parameter.device, parameter.dtype) for side in sides))
        self._first_rows = [first_row(parameter) for parameter in parameters]
        self._sent: dict[int, tuple[float, float]] = {}
        self._open, self._twice = False, False

    def attach(self, attached: ExitStack) -> None:
        """See what this rank sends until the stack is closed."""
        fsdp: Any = _fsdp_param_group  # which calls it by this name
        reduce = fsdp.foreach_reduce

        def observed(fsdp_params: Any, unsharded_grads: Any, *args: Any, **kwargs: Any) -> Any:
            self._note([each.sharded_param for each in fsdp_params], unsharded_grads)
            given = [*args, *kwargs.values()]
            require_single_precision(each for each in given if isinstance(each, torch.dtype))
            return reduce(fsdp_params, unsharded_grads, *args, **kwargs)

        fsdp.foreach_reduce = observed
        attached.callback(setattr, fsdp, "foreach_reduce", reduce)

    def begin(self) -> None:
        """The clip factors of a batch are known: what is sent from now on is clipped."""
        self._sent, self._open, self._twice = {}, True, False

    def _note(self, parameters: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
        require_single_precision(gradient.dtype for gradient in gradients)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            place = self._places.get(id(parameter))
            if place is not None and self._open:
                self._twice |= place in self._sent
                self._sent[place] = self._projection(place, gradient, 0), float(gradient.norm())

    def sent(self, rows: int, clip_norm: float) -> tuple[float, float]:
        """The function's value of what this rank sent for so many records, and its length, which is bounded."""
        self._open = False
        if self._twice or len(self._sent) < len(self._parameters):
            raise RecordingError(
                "model: the gradients of a step were not seen once each as FSDP summed them over the ranks; call "
                "backward() once a step, with every trained layer in it, under a release of torch that is tested"
            )
        length = math.hypot(*(length for _, length in self._sent.values()))
        if length > rows * clip_norm * (1 + _SUM_ERROR):
            raise RecordingError(
                f"optimizer: the sum of {rows} clipped gradients is {length:.6g} long, longer than {rows} × the clip "
                f"norm {clip_norm:g}; something was added to it that was not clipped: leave gradients alone"
            )
        return math.fsum(value for value, _ in self._sent.values()), length

    def arrived(self, shards: Sequence[Tensor]) -> float:
        """The function's value of this rank's shard of the sum, before the noise."""
        places = enumerate(zip(shards, self._first_rows, strict=True))
        return math.fsum(self._projection(place, local(shard), first) for place, (shard, first) in places)

    def _projection(self, place: int, rows: Tensor, first: int) -> float:
        if not rows.numel():
            return 0.0
        left, right = self._sides[place]
        with torch.no_grad():
            return float(left[first : first + len(rows)] @ (rows.reshape(len(rows), -1) @ right))


def agree(*, sent: Sequence[float], arrived: Sequence[float], lengths: Sequence[float]) -> bool:
    """Whether the shards of all ranks are together the mean of what they sent, whose lengths these are."""
    length = sum(lengths)
    # A model that has gone astray (NaN) is refused where it would be saved.
    return not math.isfinite(length) or abs(len(sent) * math.fsum(arrived) - math.fsum(sent)) <= _ROUNDING * length
