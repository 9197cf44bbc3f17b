"""Each clipped gradient is that of one record of the batch drawn, by a loss of its own: what is seen of it.

Guarantees: `checked` is true only where, at each step so far, the graph of the loss shows one loss a record, and each
record asked about was alone with its gradient. Refuses what surely mixes records (loss_graph, record_alone).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Literal

import torch
from opacus.optimizers import DPOptimizer
from torch import Tensor, nn

from dpmerge.training.loss_graph import LossGraph, loss_graph
from dpmerge.training.record_alone import RecordAlone
from dpmerge.training.row_prints import LOOKS_ONLY, ModelInputs, Prints, RowPrints
from dpmerge.training.sampled_steps import SampledSteps


def _has_hooks(loss: Tensor) -> bool:
    """Whether somebody else hangs on to the gradient of a loss."""
    return any(not hasattr(hook, LOOKS_ONLY) for hook in (loss._backward_hooks or {}).values())


class SeparateRecords:
    """Watches a model and its losses from `attach` on."""

    def __init__(
        self, model: Any, module: nn.Module, optimizer: DPOptimizer, prints: RowPrints, *, ghost: bool
    ) -> None:
        self._optimizer = optimizer
        self._inputs = ModelInputs(module, prints)
        self._alone = RecordAlone(model, module, optimizer, ghost=ghost, inputs=self._inputs)
        self._mean = optimizer.loss_reduction == "mean"
        self._trained = {id(parameter) for parameter in optimizer.params}
        self._graph: LossGraph | None = None
        self._steps, self._looking = SampledSteps(), True
        self._asked = False
        self._unclear = False

    def attach(self, attached: ExitStack) -> None:
        """Watch until the stack is closed."""
        self._inputs.attach(attached)
        self._alone.attach(attached)
        backward = torch.autograd.backward

        def noted(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> Any:
            losses = [tensors] if isinstance(tensors, Tensor) else list(tensors)
            self._looks_at(losses)
            if self._graph is not None and (grad_tensors is not None or any(map(_has_hooks, losses))):
                self._graph.unknown.add("a loss that is scaled as its gradients are computed")
            return backward(tensors, grad_tensors, *args, **kwargs)

        # Tensor.backward() calls it by this name.
        torch.autograd.backward = noted
        attached.callback(setattr, torch.autograd, "backward", backward)

    def _looks_at(self, losses: list[Tensor]) -> None:
        if not (self._looking or self._alone.asking):
            return
        outputs = {output.grad_fn for output in self._alone.outputs if output.dim()}
        if self._alone.outputs and self._graph is None:  # ghost clipping's second pass is the first one, with factors
            graph = loss_graph(losses, outputs, self._trained)
            if graph.reached or not graph.closed:  # not another model's loss
                self._graph = graph

    def before_each_pass(self, look: Callable[[], None]) -> None:
        """Call this before each pass whose gradients are kept."""
        self._inputs.before_pass = look

    def doubt(self) -> None:
        """Records were found mixed: nobody knows since when."""
        self._unclear = True

    def entered(self) -> Prints | None:
        """What entered the model since this was last asked."""
        return self._inputs.taken()

    def require_own(self, rows: int) -> None:
        """A physical batch of so many gradients is about to be added: refuse what surely is not one a record."""
        graph, self._graph = self._graph, None
        looked, self._looking = self._looking or self._alone.asking, self._steps.look()
        if self._optimizer.accumulated_iterations != 1:  # refused when the step is taken
            self._unclear = True
            self._alone.clear()
            return
        try:
            separate = graph is not None and graph.separate(rows, mean=self._mean)
            alone = self._alone.ask(rows, graph) if looked else None
        finally:
            self._alone.clear()
        if rows and looked:
            self._unclear |= not separate or alone is False
            self._asked |= alone is True

    @property
    def checked(self) -> bool:
        return self._asked and not self._unclear

    def record_losses(self, *, linked: bool, vouched: bool) -> Literal["checked", "vouched", "unknown"]:
        """What the manifest says of it; `linked` is whether the rows were those drawn."""
        return "checked" if self.checked and linked else "vouched" if vouched else "unknown"
