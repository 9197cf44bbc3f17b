"""A forward pass run again, on changed inputs and under the same random numbers, while nobody keeps its gradients.

Guarantees: training goes on as if nothing had happened: Opacus' hooks and the recorder's are switched off meanwhile,
no gradient is kept, and the random numbers go on afterwards where they were.
Says that it cannot be told (`UndecidedError`) where hooks cannot be switched off, or a pass gives other outputs when it
is repeated.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from opacus.optimizers import DPOptimizer
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from dpmerge.training.half_precision import autocast_state
from dpmerge.training.model_inputs import ModelInputs
from dpmerge.training.row_fingerprints import tensors_in


class UndecidedError(Exception):
    """It cannot be told whether a record is alone with its gradient; the message says why."""


class ForwardReplay:
    """One pass of a model, remembered so that it can be run again."""

    def __init__(self, model: Any, module: nn.Module, optimizer: DPOptimizer, inputs: ModelInputs) -> None:
        self._model, self._module, self._inputs = model, module, inputs
        self.parameters: list[nn.Parameter] = list(optimizer.params)
        self._given: tuple[Any, Any] | None = None
        self._random: list[Any] = []
        self._autocast: dict[str, Any] = {}

    def remember(self, args: Any, kwargs: Any) -> None:
        """The pass that begins now is the one."""
        self._given = tree_map(_copied, (args, kwargs))
        self._random = self._random_state()
        self._autocast = autocast_state(self._device)

    def forget(self) -> None:
        self._given, self._random = None, []

    @property
    def remembered(self) -> bool:
        return self._given is not None

    def takes_rows(self, rows: int) -> bool:
        """Whether an input of the pass has so many rows."""
        return any(tensor.dim() and len(tensor) == rows for tensor in tensors_in(self._given))

    def outputs(self, change: Callable[[Tensor], Tensor], *, autocast: bool = True) -> list[Tensor]:
        """The differentiable outputs for changed inputs; none if the model does not take them.

        In the precision of the pass itself, or without autocast.
        """
        assert self._given is not None
        self._set_random_state(self._random)
        args, kwargs = tree_map(lambda part: change(part) if isinstance(part, Tensor) else part, self._given)
        precision = self._autocast | ({} if autocast else {"enabled": False})
        try:
            with torch.autocast(**precision, cache_enabled=False):
                return differentiable(self._module(*args, **kwargs))
        except (RuntimeError, ValueError, IndexError):
            return []

    @contextmanager
    def unobserved(self, *, dropout: bool = True) -> Iterator[None]:
        """Opacus and the recorder look away; without dropout, layers are in evaluation mode."""
        hooked = getattr(self._model, "hooks_enabled", None)
        if hooked is None and hasattr(self._module, "autograd_grad_sample_hooks"):
            raise UndecidedError("the model's hooks cannot be switched off, so no record can be run again by itself")
        state = self._random_state()
        training = [(layer, layer.training) for layer in self._module.modules()]
        if hooked:
            self._model.disable_hooks()
        try:
            self._inputs.quiet = True
            if not dropout:
                self._module.eval()
            with torch.enable_grad():
                yield
        finally:
            for layer, was in training if not dropout else ():
                layer.training = was
            self._inputs.quiet = False
            if hooked:
                self._model.enable_hooks()
            self._set_random_state(state)

    @property
    def _device(self) -> torch.device:
        return self.parameters[0].device

    def _random_state(self) -> list[Any]:
        on_device = [torch.cuda.get_rng_state(self._device)] if self._device.type == "cuda" else []
        return [random.getstate(), np.random.get_state(), torch.get_rng_state(), *on_device]

    def _set_random_state(self, state: list[Any]) -> None:
        random.setstate(state[0])
        np.random.set_state(state[1])
        torch.set_rng_state(state[2])
        if len(state) > 3:
            torch.cuda.set_rng_state(state[3], self._device)


def differentiable(result: Any) -> list[Tensor]:
    """The outputs of a model of which gradients can be computed."""
    return [tensor for tensor in tensors_in(result) if tensor.requires_grad]


def relative_distance(expected: Sequence[Tensor], found: Sequence[Tensor]) -> float:
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


def _copied(part: Any) -> Any:
    return part.detach().clone() if isinstance(part, Tensor) else part
