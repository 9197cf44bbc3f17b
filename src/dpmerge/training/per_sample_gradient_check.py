"""Is what was clipped as a record's gradient its own? One record of some batches is asked about again.

At the first, second, fourth, … step, and at others chosen by chance, the model is run again on the batch with every
record but one replaced by one other, under the same random numbers. Guarantees, of the steps looked at: the one
record's outputs are the same among other records, and the gradient clipped as its own (with ghost clipping: its norm)
is the gradient of those outputs under the loss's own derivative. A model that returns its loss is asked for the loss of
two parts of the batch, which must add up (returned_loss_check).
Refuses models that mix records, layers whose gradients are those of time steps.
Says that it cannot be told (`UndecidedError`) where outputs are not one a record, or a pass cannot be repeated,
as that of a model in shards, which all processes run together.
"""

from __future__ import annotations

import secrets
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from opacus.optimizers import DPOptimizer
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from dpmerge.errors import RecordingError
from dpmerge.training.forward_replay import ForwardReplay, UndecidedError, differentiable, relative_distance
from dpmerge.training.half_precision import computed_in_half
from dpmerge.training.hooks import OBSERVES_ONLY, hook_of
from dpmerge.training.loss_graph import LossGraph
from dpmerge.training.model_inputs import ModelInputs
from dpmerge.training.returned_loss_check import require_additive_loss

ASK_ABOUT_EVERY = 256
"""Steps: the first, second, fourth, … are looked at, and each other one with a chance of one in so many."""
FIRST_QUESTIONS = 8
"""Of batches of a single record, which say little, so many are looked at."""
_SAME_OUTPUT, _SAME_GRADIENT = 1e-4, 1e-2
"""Relative; rounding differs by far less, and another record's share in a batch of a thousand by more."""
_SAME_IN_HALF, _BEYOND_ROUNDING = 0.05, 0.5
"""The same for gradients in half precision: up to the first they are the record's, from the second on they are not."""


class PerSampleGradientCheck:
    """Sees the passes of a model, and asks again about one record of some of them."""

    def __init__(
        self, model: Any, module: nn.Module, optimizer: DPOptimizer, *, ghost: bool, inputs: ModelInputs
    ) -> None:
        self._module, self._ghost = module, ghost
        self._inputs = inputs
        self._sharded = isinstance(module, FSDPModule)
        self._replay = ForwardReplay(model, module, optimizer, inputs)
        self._mean = optimizer.loss_reduction == "mean"
        self._left = FIRST_QUESTIONS
        self._begun = 0
        self._padding = {
            id(layer.weight): layer.padding_idx
            for layer in module.modules()
            if isinstance(layer, nn.Embedding) and layer.padding_idx is not None
        }
        self.clear()

    def clear(self) -> None:
        """Another physical batch begins."""
        self._passes = 0
        self._replay.forget()
        self.outputs: list[Tensor] = []
        self._gradients: dict[int, Tensor] = {}

    @property
    def asking(self) -> bool:
        """Whether this physical batch will be asked about."""
        return self._replay.remembered

    def attach(self, attached: ExitStack) -> None:
        """Observe until the stack is closed."""
        module = self._module
        attached.callback(module.register_forward_pre_hook(hook_of(module, self._begins), with_kwargs=True).remove)
        attached.callback(module.register_forward_hook(hook_of(module, self._ends)).remove)

    def _begins(self, _: nn.Module, args: Any, kwargs: Any) -> None:
        if not self._inputs.counts():
            return
        self._passes += 1
        self._replay.forget()
        self._begun += self._passes == 1
        # Often at first: where weights start at zero, the first steps say little.
        early = self._begun & (self._begun - 1) == 0
        if self._sharded:
            return
        if self._passes == 1 and (self._left or early or secrets.randbelow(ASK_ABOUT_EVERY) == 0):
            self._replay.remember(args, kwargs)

    def _ends(self, _: nn.Module, __: Any, result: Any) -> None:
        if not self._inputs.counts():
            return
        came_out = differentiable(result)
        self.outputs += came_out
        if self.asking:
            for place, output in enumerate(came_out):
                look = partial(self._note, place)
                setattr(look, OBSERVES_ONLY, True)
                output.register_hook(look)  # type: ignore[no-untyped-call]

    def _note(self, place: int, gradient: Tensor) -> None:
        self._gradients.setdefault(place, gradient.detach())  # of ghost clipping's two passes, the first

    def check(self, rows: int, graph: LossGraph | None) -> bool:
        """Refuse a gradient that is not its record's own; False if this batch is not asked about."""
        if self._sharded and rows:
            raise UndecidedError("the model is in shards, so that no process can run a record again by itself")
        if rows == 0 or (not self.asking and not self._left):
            return False
        self._left = max(0, self._left - 1) if rows == 1 else 0
        if not self.asking:
            raise UndecidedError(f"the model was called {self._passes} times for one batch")
        if graph is None:
            raise UndecidedError("the backward pass of the loss was not seen")
        returned = any(self.outputs[place].dim() == 0 for place in self._gradients)
        if returned:
            require_additive_loss(self._replay, rows, mean=self._mean)
        used = [place for place in self._gradients if self.outputs[place].grad_fn in graph.reached]
        if not used:
            if not returned:
                raise UndecidedError("the loss is not computed of the model's outputs")
            return True
        if any(len(self.outputs[place]) != rows for place in used):
            raise UndecidedError("the model's outputs are not one a record")
        if _one_within_another(graph.reached):
            raise UndecidedError("one of the model's outputs is computed of another")
        self._require_own(rows, used, closed=graph.closed)
        return True

    def _require_own(self, rows: int, used: list[int], *, closed: bool) -> None:
        """Of one record chosen by chance: its outputs without the others, and the gradient that was clipped as its."""
        one = secrets.randbelow(rows)
        if not self._replay.takes_rows(rows):
            raise UndecidedError("the model's inputs are not one a record")
        with self._replay.unobserved():
            after = self._outputs_alone(rows, used, one)
            scale = rows if self._mean else 1
            wanted = [scale * self._gradients[place][one] for place in used]
            own = torch.autograd.grad(after, self._replay.parameters, wanted, allow_unused=True)
        clipped = [self._clipped(parameter, one) for parameter in self._replay.parameters]
        expected = [torch.zeros_like(p) if g is None else g for p, g in zip(self._replay.parameters, own, strict=True)]
        if self._ghost:
            expected = [gradient.norm() for gradient in expected]
        if any(found is None for found in clipped):
            raise UndecidedError("Opacus does not show every parameter's gradient of one record")
        if not closed:
            raise UndecidedError("the loss depends on trained weights by another way than the model's outputs")
        apart = relative_distance(expected, clipped)  # type: ignore[arg-type]
        rounded = apart > _SAME_GRADIENT and computed_in_half(after)
        if rounded and _SAME_IN_HALF < apart < _BEYOND_ROUNDING:
            raise UndecidedError("in half precision, which rounds, one record's gradient cannot be told from another")
        if apart > (_SAME_IN_HALF if rounded else _SAME_GRADIENT):
            raise RecordingError(
                "model: what was clipped as one record's gradient is not that record's (time steps before records? "
                "channels_last, packed or oddly padded layers, of which Opacus' own gradients are wrong?); let records "
                "come first in every layer, tell make_private batch_first=False, or use grad_sample_mode='functorch'"
            )

    def _outputs_alone(self, rows: int, used: list[int], one: int) -> list[Tensor]:
        """The outputs of one record among others than before; refused if they are others."""
        outputs = self._replay.outputs(partial(_others_replaced, rows=rows, one=one))
        if len(outputs) != len(self.outputs):
            raise UndecidedError("the model cannot be run again with other records in the batch")
        before, after = ([made[place][one] for place in used] for made in (self.outputs, outputs))
        if relative_distance(before, after) > _SAME_OUTPUT:
            same = self._replay.outputs(lambda tensor: tensor)
            if relative_distance(before, [same[place][one] for place in used]) > _SAME_OUTPUT:
                raise UndecidedError("the model gives other outputs when it is given the same batch again")
            raise RecordingError(
                "model: a record's outputs depend on the other records of the batch (statistics of the batch?), so "
                "one record changes every gradient; let the model see each record by itself"
            )
        return after

    def _clipped(self, parameter: nn.Parameter, one: int) -> Tensor | None:
        """What Opacus has as this record's gradient, or as its norm."""
        found = getattr(parameter, "_norm_sample" if self._ghost else "grad_sample", None)
        if isinstance(found, list):
            found = found[0] if len(found) == 1 else None
        if found is None or (self._ghost and id(parameter) in self._padding):
            return None
        gradient: Tensor = found[one].detach()
        if id(parameter) in self._padding:  # Opacus clips its gradient with the others, torch leaves it out
            gradient = gradient.clone()
            gradient[self._padding[id(parameter)]] = 0
        return gradient


def _one_within_another(nodes: set[Any]) -> bool:
    """Whether one output is computed of another; the gradient of the one then holds that of the other."""
    waiting = [following for node in nodes for following, _ in node.next_functions]
    seen = set[Any]()
    while waiting:
        node = waiting.pop()
        if node in nodes:
            return True
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [following for following, _ in node.next_functions]
    return False


def _others_replaced(tensor: Tensor, rows: int, one: int) -> Tensor:
    """All records but one are one other: statistics of the batch change a lot by that, in a large batch too."""
    if tensor.dim() == 0 or len(tensor) != rows:
        return tensor
    changed = tensor[(one + 1) % rows].expand_as(tensor).clone()
    changed[one] = tensor[one]
    return changed
