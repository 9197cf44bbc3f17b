"""Ghost clipping computes gradient norms from what passes through the layers, and nothing else.

Guarantees: while a run is recorded, whatever is added to its loss has no gradient of its own.
Refuses: a penalty on the weights in the loss. No layer sees it, so its gradient is not clipped, yet it enters every
record's share of the sum. (With the other modes of Opacus it is ignored, which is safe.)
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from opacus.utils.fast_gradient_clipping_utils import DPTensorFastGradientClipping as GhostLoss

from dpmerge.errors import CannotRecord

_OPERATIONS = ("__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__", "__truediv__")


def refuse_penalties(attached: ExitStack) -> None:
    """Watch the arithmetic of ghost losses until the stack is closed."""
    for name in _OPERATIONS:
        operation = vars(GhostLoss).get(name)
        if operation is not None:
            setattr(GhostLoss, name, _watched(operation))
            attached.callback(setattr, GhostLoss, name, operation)


def _watched(operation: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def checked(loss: Any, other: Any) -> Any:
        if isinstance(other, torch.Tensor) and other.requires_grad:
            raise CannotRecord(
                "criterion: something with a gradient of its own (a penalty on the weights?) was added to the loss; "
                "ghost clipping does not see it, so it would not be clipped; use the optimizer's weight_decay instead"
            )
        return operation(loss, other)

    return checked
