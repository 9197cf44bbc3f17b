"""Ghost clipping computes gradient norms from what passes through the layers, and nothing else.

Guarantees: while a run is recorded, a step's gradients are those of one backward pass through Opacus' own loss, one
loss a record, each path of which to a trained parameter leads through a layer whose gradients are measured.
Refuses: a penalty on the weights in the loss (no layer sees it, so its gradient is not clipped, yet it enters every
record's share of the sum; the other modes of Opacus ignore it, which is safe); losses of shape (n, 1), which Opacus
multiplies with its n clip factors to an n × n table; backward passes of one's own.
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from typing import Any

import torch
from opacus.optimizers import DPOptimizer
from opacus.utils.fast_gradient_clipping_utils import DPTensorFastGradientClipping as GhostLoss

from dpmerge.errors import RecordingError
from dpmerge.training.half_precision import HALF, gradient_dtypes, graph_nodes
from dpmerge.training.sharded_layers import LayerParameters
from dpmerge.training.sharded_models import SHARDED, local
from dpmerge.training.stated_loss_check import StatedLossCheck
from dpmerge.training.step_reader import require_single_precision


def check_ghost_losses(
    attached: ExitStack, optimizer: DPOptimizer, watch: StatedLossCheck | None, model: Any
) -> GhostGradients:
    """Look at the losses of this optimizer before each backward pass, and at its gradients after, until the end."""
    backward, gradients = GhostLoss.backward, GhostGradients(optimizer)
    layers = LayerParameters(model._module) if type(optimizer) in SHARDED else None
    if layers is not None:
        layers.attach(attached)

    def checked(loss: Any) -> Any:
        if loss.optimizer is not optimizer:
            return backward(loss)
        if loss.loss_per_sample.dim() != 1:
            raise RecordingError(
                f"criterion: losses of shape {tuple(loss.loss_per_sample.shape)}, which Opacus does not clip; there "
                "must be one number a record, so squeeze the model's outputs and the targets"
            )
        if watch is not None:
            watch.require_own(loss.loss_per_sample)
        leaves = _leaves(loss.loss_per_sample)
        if layers is not None:
            layers.require_only_layers(leaves)
        else:
            _require_only_layers(leaves, optimizer.params)
        if torch.is_autocast_enabled(optimizer.params[0].device.type):
            require_single_precision([torch.get_autocast_dtype(optimizer.params[0].device.type)])
        result = backward(loss)
        gradients.note()
        return result

    GhostLoss.backward = checked
    attached.callback(setattr, GhostLoss, "backward", backward)
    return gradients


class GhostGradients:
    """The gradients as Opacus' backward pass left them."""

    def __init__(self, optimizer: DPOptimizer) -> None:
        self._optimizer = optimizer
        self._noted: list[tuple[int, int]] = []

    def note(self) -> None:
        self._noted = self._now()

    def require_untouched(self) -> None:
        """Refuse gradients to which something was added: it is not clipped."""
        if any(getattr(parameter, "_post_accumulate_grad_hooks", None) for parameter in self._optimizer.params):
            raise RecordingError(
                "model: a hook on a parameter's gradient (register_post_accumulate_grad_hook) acts after ghost "
                "clipping; remove it, or use grad_sample_mode='hooks'"
            )
        if self._noted != self._now():
            raise RecordingError(
                "criterion: gradients were added after the backward pass of the criterion that make_private returned; "
                "they would not be clipped: call backward() once a batch, on what that criterion gives"
            )

    def _now(self) -> list[tuple[int, int]]:
        found = [None if p.grad is None else local(p.grad) for p in self._optimizer.params]
        return [(id(gradient), -1 if gradient is None else gradient._version) for gradient in found]


def _require_only_layers(leaves: list[torch.Tensor], parameters: list[torch.nn.Parameter]) -> None:
    """Each parameter may be used as often as Opacus saw its layer called, and not once more."""
    used = Counter(id(leaf) for leaf in leaves)
    for parameter in parameters:
        if used[id(parameter)] > parameter._forward_counter:  # type: ignore[attr-defined]
            raise RecordingError(
                "criterion: the loss depends on the weights by another way than through the layers (a penalty?); ghost "
                "clipping does not see it, so it would not be clipped; use the optimizer's weight_decay instead"
            )


def _leaves(loss: torch.Tensor) -> list[torch.Tensor]:
    """The leaves of the graph of a loss, each as often as it is used, all of it in single precision."""
    leaves: list[torch.Tensor] = []
    for node in graph_nodes([loss]):
        # Rounding is another one in the second pass, whose losses are multiplied by clip factors.
        require_single_precision(dtype for dtype in gradient_dtypes(node) if dtype in HALF)
        leaves += (following.variable for following, _ in node.next_functions if hasattr(following, "variable"))
    return leaves
