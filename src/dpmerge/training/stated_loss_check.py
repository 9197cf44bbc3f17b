"""Is the loss of a recorded run the one that smoothness was derived from?

Guarantees: at every step the gradients of some records, chosen at random by the operating system, are those of the
stated loss at the features that went into the linear layer, and these are no longer than their bound. A hook, outputs
scaled in place, a second loss, a layer changed later: all of them show in a gradient, whatever they are.
Refuses (RecordingError): everything else. Smoothness is for losses that are used as they are.
"""

from __future__ import annotations

import random
from contextlib import ExitStack
from typing import Any

import torch
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
from torch import nn

from dpmerge.errors import RecordingError
from dpmerge.training.half_precision import HALF
from dpmerge.training.hooks import OBSERVES_ONLY, hook_of
from dpmerge.training.linear_smoothness import linear_layer
from dpmerge.training.loss_derivatives import LossDerivative
from dpmerge.training.step_reader import grad_samples

RECORDS_COMPARED = 8
"""A step; a loop that changes a share s of its records' gradients passes unseen with probability (1 − s)⁸."""
BOUND_ERROR = 1e-5
"""Relative: of a norm in single precision."""

_chooser = random.SystemRandom()


class StatedLossCheck:
    """Refuses another loss than the one smoothness was derived from: of the layer's outputs, once, as it is."""

    def __init__(self, model: nn.Module, criterion: Any) -> None:
        linear, self._bound = linear_layer(model)
        assert linear is not None
        self._linear = linear
        ghost = isinstance(criterion, DPLossFastGradientClipping)
        self._loss: nn.Module = criterion.criterion if ghost else criterion
        self._stated = LossDerivative.of(self._loss)
        self._features: torch.Tensor | None = None
        self._targets: torch.Tensor | None = None
        self._outputs: torch.Tensor | None = None
        self._result: torch.Tensor | None = None
        self._calls = 0

    def attach(self, attached: ExitStack) -> None:
        """Observe until the stack is closed."""
        layer, loss = self._linear, self._loss
        attached.callback(layer.register_forward_pre_hook(hook_of(layer, self._one_vector)).remove)
        attached.callback(layer.register_forward_hook(hook_of(layer, self._came_out)).remove)
        attached.callback(loss.register_forward_pre_hook(hook_of(loss, self._goes_in)).remove)
        attached.callback(loss.register_forward_hook(hook_of(loss, self._computed)).remove)

    def require_used(self) -> None:
        """A physical batch is being added: its loss was computed by the criterion, once."""
        calls, self._calls = self._calls, 0
        if calls != 1:
            raise RecordingError(
                f"criterion: called {calls} times for one batch; smoothness is derived for a loss that is computed by "
                "the criterion that was given, once; for other losses leave criterion and feature_bound out"
            )

    def require_stated(self, clip_norm: float, *, ghost: bool) -> None:
        """A physical batch is being added: its gradients are those of the stated loss at its features and targets.

        Compared record by record for some chosen at random; under ghost clipping, which has no gradients of records,
        their norms are, and the clipped sum of all.
        """
        features, targets = self._features, self._targets
        self._features = self._targets = None
        if features is None or targets is None or len(features) != len(targets):
            raise RecordingError("criterion: not computed of one feature vector and one target a record; give it those")
        if not len(features):
            return
        self._require_bounded(features)
        compared = len(features) if ghost else min(RECORDS_COMPARED, len(features))
        rows = torch.tensor(_chooser.sample(range(len(features)), compared), device=features.device)
        x, y = features.index_select(0, rows), targets.index_select(0, rows)
        expected = self._stated.expected(self._linear, x, y)
        error = self._stated.tolerance(self._linear, x, expected)
        lengths = x.double().norm(dim=1)
        if ghost:
            agrees = self._norms_agree(rows, expected, lengths, error) and self._sum_agrees(
                x, expected, error, clip_norm
            )
        else:
            agrees = self._rows_agree(rows, x, expected, lengths, error)
        if not agrees:
            raise RecordingError(
                "criterion: gradients are not those of the stated loss at the layer's features (a hook, outputs or "
                "features that were changed, another loss?); use the loss as it is, or leave criterion and "
                "feature_bound out"
            )

    def _require_bounded(self, features: torch.Tensor) -> None:
        """Behind a bound_features layer nothing is longer than its bound was when the record began."""
        if self._bound is not None and float(features.norm(dim=1).max()) > self._bound * (1 + BOUND_ERROR):
            raise RecordingError(
                f"feature_bound: features behind the bound_features layer are longer than its bound {self._bound:g}; "
                "leave the layer as it was when the record began"
            )

    def _rows_agree(
        self, rows: torch.Tensor, x: torch.Tensor, expected: torch.Tensor, lengths: torch.Tensor, error: torch.Tensor
    ) -> bool:
        """Of some records: the gradients that wait to be clipped, b xᵀ for the weights and b for the bias."""
        samples = _waiting(self._linear.weight)
        if len(samples) <= int(rows.max()):
            return False
        found = samples.index_select(0, rows).double()
        wrong = (found - expected.unsqueeze(2) * x.double().unsqueeze(1)).flatten(1).norm(dim=1)
        agrees = bool((wrong <= error * (lengths + 1)).all())
        if agrees and self._linear.bias is not None:
            bias = _waiting(self._linear.bias).index_select(0, rows).double()
            agrees = bool(((bias - expected).norm(dim=1) <= error).all())
        return agrees

    def _norms_agree(
        self, rows: torch.Tensor, expected: torch.Tensor, lengths: torch.Tensor, error: torch.Tensor
    ) -> bool:
        """Ghost clipping: the norms by which records are clipped."""
        size = expected.norm(dim=1)
        found = _norms(self._linear.weight)
        if len(found) != len(rows):
            return False
        agrees = bool(((found[rows] - size * lengths).abs() <= error * (lengths + 1)).all())
        if agrees and self._linear.bias is not None:
            agrees = bool(((_norms(self._linear.bias)[rows] - size).abs() <= error).all())
        return agrees

    def _sum_agrees(self, x: torch.Tensor, expected: torch.Tensor, error: torch.Tensor, clip_norm: float) -> bool:
        """Ghost clipping: the sum of the batch's clipped gradients."""
        ones = self._linear.bias is not None
        lengths = (x.double().square().sum(dim=1) + float(ones)).sqrt()
        factors = (clip_norm / (expected.norm(dim=1) * lengths + 1e-6)).clamp(max=1.0)
        clipped = expected * factors.unsqueeze(1)
        wrong = [self._linear.weight.grad.double() - clipped.T @ x.double()]  # type: ignore[union-attr]
        if ones:
            wrong.append(self._linear.bias.grad.double() - clipped.sum(dim=0))  # type: ignore[union-attr]
        return float(torch.stack([each.norm() for each in wrong]).norm()) <= 2 * float((error * (lengths + 1)).sum())

    def require_own(self, losses: torch.Tensor) -> None:
        """Ghost clipping: these are the criterion's results, and nothing was made of them."""
        if losses is not self._result:
            raise _not_as_it_is()

    def _one_vector(self, _: nn.Module, inputs: tuple[Any, ...]) -> None:
        if inputs[0].dim() != 2:
            shape = tuple(inputs[0].shape[1:])
            raise RecordingError(
                f"feature_bound: a record is {shape}, not one feature vector; flatten it or leave it out"
            )

    def _came_out(self, _: nn.Module, inputs: tuple[Any, ...], outputs: torch.Tensor) -> None:
        if outputs.dtype in HALF:
            raise RecordingError(
                f"criterion: outputs in {outputs.dtype} (autocast?), of which the loss jumps and is not smooth; train "
                "in float32, or leave criterion and feature_bound out"
            )
        self._outputs = outputs
        if outputs.requires_grad:
            self._features = inputs[0].detach()

    def _goes_in(self, _: nn.Module, inputs: tuple[Any, ...]) -> None:
        outputs, targets = inputs[0], inputs[1]
        if not outputs.requires_grad:
            return  # an evaluation
        self._targets = targets.detach()
        if self._outputs is None or outputs.data_ptr() != self._outputs.data_ptr():
            raise RecordingError("criterion: computed of something else than the linear layer's outputs; give it those")
        if type(self._loss) is nn.CrossEntropyLoss:
            self._require_classes(targets)
        elif outputs.shape != targets.shape:
            raise RecordingError(
                f"criterion: outputs of shape {tuple(outputs.shape)} and targets of shape {tuple(targets.shape)}; of "
                "unequal shapes torch compares every record with every other"
            )

    def _require_classes(self, targets: torch.Tensor) -> None:
        if targets.is_floating_point():
            raise RecordingError(
                "criterion: targets that weigh classes; smoothness is derived for class numbers, so use those or leave "
                "criterion and feature_bound out"
            )
        ignored = torch.eq(targets, float(self._loss.ignore_index))  # type: ignore[arg-type]
        if self._loss.reduction == "mean" and bool(ignored.any()):
            raise RecordingError(
                "criterion: targets to be ignored; a mean then divides by what the other records are, so leave those "
                "records out of the data set"
            )

    def _computed(self, _: nn.Module, __: Any, result: torch.Tensor) -> None:
        if result.requires_grad:
            self._calls += 1
            self._result = result
            if result.dim() == 0:
                result.register_hook(_require_one)  # type: ignore[no-untyped-call]


def _require_one(gradient: torch.Tensor) -> None:
    if float(gradient) != 1.0:
        raise _not_as_it_is()


setattr(_require_one, OBSERVES_ONLY, True)


def _not_as_it_is() -> RecordingError:
    return RecordingError(
        "criterion: its result was scaled or added to; smoothness is derived for the loss as it is, so use it as it is "
        "or leave criterion and feature_bound out"
    )


def _waiting(parameter: torch.Tensor) -> torch.Tensor:
    """The gradients, row by row, that wait to be clipped."""
    samples = grad_samples(parameter)
    return samples[0] if len(samples) == 1 else torch.cat(samples)


def _norms(parameter: torch.Tensor) -> torch.Tensor:
    """Ghost clipping: the norm of each row's gradient."""
    norms: torch.Tensor = parameter._norm_sample  # type: ignore[attr-defined]
    return norms.double()
