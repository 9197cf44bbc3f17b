"""The loss that smoothness was derived from, in closed form, to compare a record's gradient with.

Guarantees: `expected` is the gradient of one record's loss with respect to the outputs of a linear layer, computed from
that record's features, its target and the weights alone, in double precision; the settings of the loss are those it had
when the record began. So whatever else had a part in a gradient (hooks, scaled outputs, a second loss) shows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

_UNITS = 64
"""Units in the last place, of sums of as many products as there are features."""
_TENSOR_CORES = 2.0**-9
"""What matrix products in TF32 are precise to, and a factor of two."""


@dataclass(frozen=True)
class LossDerivative:
    """ℓ'(u, y) for outputs u and target y, and the largest |ℓ''|."""

    derivative: Callable[[Tensor, Tensor], Tensor]
    steepness: float

    @classmethod
    def of(cls, criterion: nn.Module) -> LossDerivative:
        """Of a loss for which smoothness was derived."""
        if isinstance(criterion, nn.CrossEntropyLoss):
            smoothing = float(criterion.label_smoothing)

            def cross_entropy(u: Tensor, y: Tensor) -> Tensor:
                told = functional.one_hot(y.long(), u.shape[1]).to(u) * (1 - smoothing) + smoothing / u.shape[1]
                return u.softmax(dim=1) - told

            return cls(cross_entropy, 0.5)
        if isinstance(criterion, nn.BCEWithLogitsLoss):
            return cls(lambda u, y: u.sigmoid() - y.reshape_as(u), 0.25)
        if isinstance(criterion, nn.MSELoss):
            return cls(lambda u, y: 2 * (u - y.reshape_as(u)), 2.0)
        if isinstance(criterion, nn.HuberLoss):
            delta = float(criterion.delta)
            return cls(lambda u, y: (u - y.reshape_as(u)).clamp(-delta, delta), 1.0)
        assert isinstance(criterion, nn.SmoothL1Loss)
        width = float(criterion.beta)
        return cls(lambda u, y: ((u - y.reshape_as(u)) / width).clamp(-1, 1), 1 / width)

    def expected(self, layer: nn.Linear, features: Tensor, targets: Tensor) -> Tensor:
        """Of each record, the gradient of its loss with respect to the layer's outputs: records × outputs."""
        outputs = features.double() @ layer.weight.detach().double().T
        if layer.bias is not None:
            outputs = outputs + layer.bias.detach().double()
        return self.derivative(outputs, targets if targets.dtype == torch.long else targets.double())

    def tolerance(self, layer: nn.Linear, features: Tensor, expected: Tensor) -> Tensor:
        """By how much, for each record, rounding may change `expected`."""
        weight = layer.weight.detach()
        imprecise = weight.device.type == "cuda" and torch.backends.cuda.matmul.allow_tf32
        unit = _TENSOR_CORES if imprecise else _UNITS * torch.finfo(weight.dtype).eps
        reach = features.double().norm(dim=1) * float(weight.norm())
        if layer.bias is not None:
            reach = reach + float(layer.bias.detach().norm())
        error: Tensor = unit * (1 + expected.norm(dim=1) + self.steepness * reach)
        return error
