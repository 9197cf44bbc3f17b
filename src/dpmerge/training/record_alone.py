"""One record, asked again: is what was clipped as its gradient its own?

At the first, second, fourth, … step, and at others chosen by chance, the model is run again on the batch with every
record but one replaced by one other, under the same random numbers. Guarantees, of the steps looked at: the one
record's outputs are the same among other records, and the gradient clipped as its own (with ghost clipping: its norm)
is the gradient of those outputs under the loss's own derivative. A model that returns its loss is asked for the loss of
two parts of the batch, which must add up.
Refuses models that mix records, layers whose gradients are those of time steps, losses that do not add up.
Says "not known" where outputs are not one a record, or a pass cannot be repeated. Training goes on as if nothing had
happened: no gradient is kept, and the random numbers are put back.
"""

from __future__ import annotations

import math
import random
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from opacus.optimizers import DPOptimizer
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from dpmerge.errors import CannotRecord
from dpmerge.training.loss_graph import LossGraph
from dpmerge.training.row_prints import LOOKS_ONLY, ModelInputs, own_hook, tensors_in

ASK_ABOUT_EVERY = 256
"""Steps: the first, second, fourth, … are looked at, and each other one with a chance of one in so many."""
FIRST_QUESTIONS = 8
"""Of batches of a single record, which say little, so many are looked at."""
_SAME_OUTPUT, _SAME_GRADIENT, _SAME_LOSS = 1e-4, 1e-2, 1e-3
"""Relative; rounding differs by far less, and another record's share in a batch of a thousand by more."""


class RecordAlone:
    """Watches the passes of a model, and asks again about one record of some of them."""

    def __init__(
        self, model: Any, module: nn.Module, optimizer: DPOptimizer, *, ghost: bool, inputs: ModelInputs
    ) -> None:
        self._model, self._module, self._optimizer, self._ghost = model, module, optimizer, ghost
        self._inputs = inputs
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
        self._given: tuple[Any, Any] | None = None
        self._random: list[Any] = []
        self.outputs: list[Tensor] = []
        self._gradients: dict[int, Tensor] = {}

    @property
    def asking(self) -> bool:
        """Whether this physical batch will be asked about."""
        return self._given is not None

    def attach(self, attached: ExitStack) -> None:
        """Watch until the stack is closed."""
        module = self._module
        attached.callback(module.register_forward_pre_hook(own_hook(module, self._begins), with_kwargs=True).remove)
        attached.callback(module.register_forward_hook(own_hook(module, self._ends)).remove)

    def _begins(self, _: nn.Module, args: Any, kwargs: Any) -> None:
        if not self._inputs.counts():
            return
        self._passes += 1
        self._given = None
        self._begun += self._passes == 1
        # Often at first: where weights start at zero, the first steps say little.
        early = self._begun & (self._begun - 1) == 0
        if self._passes == 1 and (self._left or early or secrets.randbelow(ASK_ABOUT_EVERY) == 0):
            self._given = tree_map(_copied, (args, kwargs))
            self._random = self._random_state()

    def _ends(self, _: nn.Module, __: Any, result: Any) -> None:
        if not self._inputs.counts():
            return
        came_out = _differentiable(result)
        self.outputs += came_out
        if self._given is not None:
            for place, output in enumerate(came_out):
                look = partial(self._note, place)
                setattr(look, LOOKS_ONLY, True)
                output.register_hook(look)  # type: ignore[no-untyped-call]

    def _note(self, place: int, gradient: Tensor) -> None:
        self._gradients.setdefault(place, gradient.detach())  # of ghost clipping's two passes, the first

    def ask(self, rows: int, graph: LossGraph | None) -> bool | None:
        """True: the record is alone. False: nobody can say. None: not asked about this time."""
        if rows == 0 or (self._given is None and not self._left):
            return None
        self._left = max(0, self._left - 1) if rows == 1 else 0
        if self._given is None or graph is None:
            return False
        returned = any(self.outputs[place].dim() == 0 for place in self._gradients)
        if returned and not self._loss_adds_up(rows):
            return False
        used = [place for place in self._gradients if self.outputs[place].grad_fn in graph.reached]
        if not used:
            return returned
        if any(len(self.outputs[place]) != rows for place in used) or _one_within_another(graph.reached):
            return False
        return self._alone(rows, used, closed=graph.closed)

    def _alone(self, rows: int, used: list[int], *, closed: bool) -> bool:
        one = secrets.randbelow(rows)
        if not any(tensor.dim() and len(tensor) == rows for tensor in tensors_in(self._given)):
            return False
        with self._asking() as asking:
            if not asking:
                return False
            outputs = _differentiable(self._again(partial(_others_replaced, rows=rows, one=one)))
            if len(outputs) != len(self.outputs):
                return False
            before, after = ([made[place][one] for place in used] for made in (self.outputs, outputs))
            if _distance(before, after) > _SAME_OUTPUT:
                same = _differentiable(self._again(lambda tensor: tensor))
                if _distance(before, [same[place][one] for place in used]) > _SAME_OUTPUT:
                    return False  # a pass that cannot be repeated
                raise CannotRecord(
                    "model: a record's outputs depend on the other records of the batch (statistics of the batch?), so "
                    "one record changes every gradient; let the model see each record by itself"
                )
            scale = rows if self._mean else 1
            wanted = [scale * self._gradients[place][one] for place in used]
            parameters = list(self._optimizer.params)
            own = torch.autograd.grad(after, parameters, wanted, allow_unused=True)
        clipped = [self._clipped(parameter, one) for parameter in parameters]
        expected = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, own, strict=True)]
        if self._ghost:
            expected = [gradient.norm() for gradient in expected]
        if any(found is None for found in clipped) or not closed:
            return False
        if _distance(expected, clipped) > _SAME_GRADIENT:  # type: ignore[arg-type]
            raise CannotRecord(
                "model: what was clipped as one record's gradient is not that record's (time steps before records? "
                "channels_last, packed or oddly padded layers, of which Opacus' own gradients are wrong?); let records "
                "come first in every layer, tell make_private batch_first=False, or use grad_sample_mode='functorch'"
            )
        return True

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

    def _loss_adds_up(self, rows: int) -> bool:
        """The loss of the batch is that of two halves of it, each weighed by its records."""
        if rows == 1:
            return False
        order = torch.tensor(secrets.SystemRandom().sample(range(rows), rows))
        size = rows // 2  # of halves chosen by chance, one long record shows in any case
        weights = (size / rows, 1 - size / rows) if self._mean else (1.0, 1.0)
        with self._asking() as asking, _without_dropout(self._module):
            if not asking:
                return False
            whole, again, first, second = (
                self._loss_gradient(partial(_some, rows=rows, chosen=chosen))
                for chosen in (order, order, order[:size], order[size:])
            )
        complete = whole.numel() and whole.shape == again.shape == first.shape == second.shape
        if not complete or not bool(torch.isfinite(torch.stack([whole, again, first, second])).all()):
            return False
        if _distance([whole], [again]) > _SAME_LOSS:
            return False  # a pass that cannot be repeated
        if _distance([whole], [weights[0] * first + weights[1] * second]) > _SAME_LOSS:
            raise CannotRecord(
                "model: the loss it returns for a batch is not made of one loss a record (a mean over all tokens of "
                "the batch?), so one record changes every gradient; compute dpmerge.training.per_record_loss of "
                "its logits instead"
            )
        return True

    def _loss_gradient(self, change: Callable[[Tensor], Tensor]) -> Tensor:
        """What the model returns as single numbers for other inputs, and the gradient of their sum, in one vector.

        The numbers alone would not do: all records have the same loss while the last layer is zero.
        """
        single = [each for each in _differentiable(self._again(change)) if each.dim() == 0]
        if not single:
            return torch.zeros(0)
        parameters = list(self._optimizer.params)
        gradients = torch.autograd.grad(torch.stack(single).sum(), parameters, allow_unused=True)
        flat = [each.flatten().double() for each in gradients if each is not None]
        return torch.cat([torch.stack(single).detach().double(), *flat])

    def _again(self, change: Callable[[Tensor], Tensor]) -> list[Tensor]:
        """The outputs for other inputs, under the same random numbers; none if the model does not take them."""
        assert self._given is not None
        self._set_random_state(self._random)
        args, kwargs = tree_map(lambda part: change(part) if isinstance(part, Tensor) else part, self._given)
        try:
            result = self._module(*args, **kwargs)
        except (RuntimeError, ValueError, IndexError):
            return []
        return list(tensors_in(result))

    @contextmanager
    def _asking(self) -> Iterator[bool]:
        """Opacus and the recorder look away, and the random numbers go on afterwards where they were."""
        hooked = getattr(self._model, "hooks_enabled", None)
        if hooked is None and hasattr(self._module, "autograd_grad_sample_hooks"):
            yield False  # hooks that cannot be switched off from here
            return
        state = self._random_state()
        if hooked:
            self._model.disable_hooks()
        try:
            self._inputs.quiet = True
            with torch.enable_grad():
                yield True
        finally:
            self._inputs.quiet = False
            if hooked:
                self._model.enable_hooks()
            self._set_random_state(state)

    def _device(self) -> torch.device:
        device: torch.device = next(iter(self._optimizer.params)).device
        return device

    def _random_state(self) -> list[Any]:
        on_device = [torch.cuda.get_rng_state(self._device())] if self._device().type == "cuda" else []
        return [random.getstate(), np.random.get_state(), torch.get_rng_state(), *on_device]

    def _set_random_state(self, state: list[Any]) -> None:
        random.setstate(state[0])
        np.random.set_state(state[1])
        torch.set_rng_state(state[2])
        if len(state) > 3:
            torch.cuda.set_rng_state(state[3], self._device())


@contextmanager
def _without_dropout(module: nn.Module) -> Iterator[None]:
    training = [(layer, layer.training) for layer in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for layer, was in training:
            layer.training = was


def _copied(part: Any) -> Any:
    return part.detach().clone() if isinstance(part, Tensor) else part


def _differentiable(result: Any) -> list[Tensor]:
    return [tensor for tensor in tensors_in(result) if tensor.requires_grad]


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


def _some(tensor: Tensor, rows: int, chosen: Tensor) -> Tensor:
    return tensor[chosen.to(tensor.device)] if tensor.dim() and len(tensor) == rows else tensor


def _distance(expected: list[Tensor], found: list[Tensor]) -> float:
    """Relative to the longer of the two; 0 where nothing is expected or what is there is no number."""
    with torch.no_grad():
        pairs = [
            (a.detach().double().flatten(), b.detach().double().flatten()) for a, b in zip(expected, found, strict=True)
        ]
        if any(a.shape != b.shape for a, b in pairs):
            return float("inf")
        apart = sum(float((a - b).square().sum()) for a, b in pairs)
        size = max(sum(float(side.square().sum()) for side in sides) for sides in zip(*pairs, strict=True))
    return (apart / size) ** 0.5 if size > 0 and not math.isnan(apart) else 0.0
