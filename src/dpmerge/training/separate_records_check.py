"""Each clipped gradient is that of one record of the batch drawn, by a loss of its own: what is seen of it.

Guarantees: `checked` is true only where, at each step looked at, the graph of the loss shows one loss a record, and
each record asked about was alone with its gradient; otherwise `doubts` says why.
Refuses what surely mixes records (loss_graph, per_sample_gradient_check).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Literal

import torch
from opacus.optimizers import DPOptimizer
from torch import Tensor, nn

from dpmerge.errors import RecordingError
from dpmerge.training.forward_replay import UndecidedError
from dpmerge.training.hooks import OBSERVES_ONLY
from dpmerge.training.loss_graph import LossGraph, loss_graph
from dpmerge.training.model_inputs import ModelInputs
from dpmerge.training.per_sample_gradient_check import PerSampleGradientCheck
from dpmerge.training.row_fingerprints import Fingerprints, RowFingerprints
from dpmerge.training.spot_checks import SpotChecks


class SeparateRecordsCheck:
    """Observes a model and its losses from `attach` on."""

    def __init__(
        self, model: Any, module: nn.Module, optimizer: DPOptimizer, fingerprints: RowFingerprints, *, ghost: bool
    ) -> None:
        self._optimizer = optimizer
        self._inputs = ModelInputs(module, fingerprints)
        self._gradients = PerSampleGradientCheck(model, module, optimizer, ghost=ghost, inputs=self._inputs)
        self._mean = optimizer.loss_reduction == "mean"
        self._trained = {id(parameter) for parameter in optimizer.params}
        self._graph: LossGraph | None = None
        self._spot_checks, self._looking = SpotChecks(), True
        self._asked = False
        self._doubts: dict[str, None] = {}  # in the order in which they arose

    def attach(self, attached: ExitStack) -> None:
        """Observe until the stack is closed."""
        self._inputs.attach(attached)
        self._gradients.attach(attached)
        backward = torch.autograd.backward

        def noted(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> Any:
            losses = [tensors] if isinstance(tensors, Tensor) else list(tensors)
            self._look_at(losses)
            if self._graph is not None and (grad_tensors is not None or any(map(_has_hooks, losses))):
                self._graph.unknown.add("a loss that is scaled as its gradients are computed")
            return backward(tensors, grad_tensors, *args, **kwargs)

        # Tensor.backward() calls it by this name.
        torch.autograd.backward = noted
        attached.callback(setattr, torch.autograd, "backward", backward)

    def _look_at(self, losses: list[Tensor]) -> None:
        if not (self._looking or self._gradients.asking):
            return
        outputs = {output.grad_fn for output in self._gradients.outputs if output.dim()}
        # Ghost clipping's second pass is the first one, with factors.
        if self._gradients.outputs and self._graph is None:
            graph = loss_graph(losses, outputs, self._trained)
            if graph.reached or not graph.closed:  # not another model's loss
                self._graph = graph

    def before_each_pass(self, look: Callable[[], None]) -> None:
        """Call this before each pass whose gradients are kept."""
        self._inputs.before_pass = look

    def entered(self) -> Fingerprints | None:
        """What entered the model since this was last asked."""
        return self._inputs.taken()

    def require_separate(self, rows: int, *, batches: int = 1) -> None:
        """A physical batch of so many gradients is about to be added: refuse what surely is not one a record."""
        graph, self._graph = self._graph, None
        looked, self._looking = self._looking or self._gradients.asking, self._spot_checks.due()
        try:
            if batches != 1:  # refused when the step is taken
                self._doubt("gradients of several batches in one step")
                return
            # A loss that mixes records is refused of any batch, also where nothing else is looked at.
            separate = graph is not None and graph.separate(rows, mean=self._mean)
            if not looked:
                return
            if rows and graph is None:
                self._doubt("the backward pass of the loss was not seen")
            elif rows and graph is not None and not separate:
                self._doubt(*graph.doubts(rows, mean=self._mean))
            self._asked |= self._gradients.check(rows, graph)
        except UndecidedError as reason:
            self._doubt(str(reason))
        except RecordingError:
            self._doubt("records were found mixed later in the run")  # nobody knows since when
            raise
        finally:
            self._gradients.clear()

    def _doubt(self, *reasons: str) -> None:
        self._doubts.update(dict.fromkeys(reasons))

    @property
    def doubts(self) -> list[str]:
        """Why nobody can say that each record had a loss of its own; empty where that was checked."""
        return list(self._doubts) if self._asked else [*self._doubts, "no batch with records in it was checked"]

    @property
    def doubted(self) -> bool:
        """Whether there was a batch of which nobody could say it."""
        return bool(self._doubts)

    @property
    def checked(self) -> bool:
        return not self.doubts

    def record_losses(self, *, linked: bool, vouched: bool) -> Literal["checked", "vouched", "unknown"]:
        """What the manifest says of it; `linked` is whether the rows were those drawn."""
        return "checked" if self.checked and linked else "vouched" if vouched else "unknown"


def _has_hooks(loss: Tensor) -> bool:
    """Whether somebody else hangs on to the gradient of a loss."""
    return any(not hasattr(hook, OBSERVES_ONLY) for hook in (loss._backward_hooks or {}).values())
