"""Ghost clipping computes gradient norms from what passes through the layers, and nothing else.

Guarantees: while a run is recorded, every path from its loss to a trained parameter leads through a layer whose
per-example gradients are measured.
Refuses: a penalty on the weights in the loss. No layer sees it, so its gradient is not clipped, yet it enters every
record's share of the sum. (With the other modes of Opacus it is ignored, which is safe.)
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from typing import Any

import torch
from opacus.optimizers import DPOptimizer
from opacus.utils.fast_gradient_clipping_utils import DPTensorFastGradientClipping as GhostLoss

from dpmerge.errors import CannotRecord


def refuse_penalties(attached: ExitStack, optimizer: DPOptimizer) -> None:
    """Look through the losses of this optimizer before each backward pass, until the stack is closed."""
    backward = GhostLoss.backward

    def checked(loss: Any) -> Any:
        if loss.optimizer is optimizer:
            _require_only_layers(loss.loss_per_sample, optimizer.params)
        return backward(loss)

    GhostLoss.backward = checked
    attached.callback(setattr, GhostLoss, "backward", backward)


def _require_only_layers(loss: torch.Tensor, parameters: list[torch.nn.Parameter]) -> None:
    """Each parameter may be used as often as Opacus saw its layer called, and not once more."""
    used = _uses(loss)
    for parameter in parameters:
        if used[id(parameter)] > parameter._forward_counter:  # type: ignore[attr-defined]
            raise CannotRecord(
                "criterion: the loss depends on the weights by another way than through the layers (a penalty?); ghost "
                "clipping does not see it, so it would not be clipped; use the optimizer's weight_decay instead"
            )


def _uses(loss: torch.Tensor) -> Counter[int]:
    """How often each leaf is used in the graph of a loss."""
    uses: Counter[int] = Counter()
    seen, waiting = set[Any](), [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        for following, _ in node.next_functions:
            variable = getattr(following, "variable", None)
            if variable is not None:
                uses[id(variable)] += 1
            else:
                waiting.append(following)
    return uses
