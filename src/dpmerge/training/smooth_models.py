"""Smoothness facts, derived for the models for which they are theorems: one trained linear layer, a known loss.

Guarantees: what is derived follows from the layer, the loss and the bound on its input; bias included.
Refuses, by saying what is in the way: anything but a single linear layer, weighted or unknown losses.
"""

from __future__ import annotations

import math
import warnings
from contextlib import ExitStack
from itertools import pairwise
from typing import Any

import torch
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
from torch import nn

from dpmerge.errors import CannotRecord, InvalidInput
from dpmerge.portfolio.facts import SmoothnessFacts
from dpmerge.privacy import domain
from dpmerge.privacy.smoothness import Smoothness
from dpmerge.training.features import BoundFeatures


def derived_smoothness(
    model: nn.Module,
    criterion: Any,
    *,
    loss_reduction: str,
    feature_bound: float | None,
    records: int | None,
    ghost: bool = False,
) -> SmoothnessFacts | None:
    """What is known of the loss, or None where no bound on the features is given or built in."""
    linear, built_in = _linear_layer(model)
    bound = built_in if feature_bound is None else domain.magnitude("feature_bound", feature_bound, zero=False)
    if criterion is None and feature_bound is None:
        return None
    if built_in is not None and bound is not None and bound < built_in:
        raise InvalidInput(
            "feature_bound", bound, f"at least {built_in:g}, which the bound_features layer lets through"
        )
    if criterion is None:
        raise CannotRecord("feature_bound: the loss is not known; pass criterion= too, or leave the bound out")
    if bound is None:
        raise CannotRecord(
            "criterion: features are not bounded; put bound_features(R) before the linear layer or pass feature_bound="
        )
    if linear is None:
        raise CannotRecord(
            "feature_bound: smoothness is derived for one trained linear layer (nn.Linear, or an nn.Sequential that "
            "ends in it and trains nothing else); for other models leave criterion and feature_bound out"
        )
    bound = bound if built_in is None else built_in
    # The bias is the weight of a feature that is always 1.
    radius = math.hypot(bound, 1.0) if linear.bias is not None else bound
    if isinstance(criterion, DPLossFastGradientClipping):
        criterion = criterion.criterion
    reductions = (loss_reduction, "none") if ghost else (loss_reduction,)  # ghost clipping reduces by itself
    kind, beta = _loss(criterion, reductions, linear.out_features, radius)
    source = "a bound_features layer" if built_in is not None else "the caller of record()"
    return SmoothnessFacts(
        kind=kind,
        feature_bound=radius,
        beta=beta,
        records=records,
        vouched_by=f"derived by the recorder from {type(criterion).__name__}; features bounded by {source}",
    )


def warn_clipping(clip_norm: float, facts: SmoothnessFacts) -> None:
    """Say before the first step that softmax facts are of no use at this clip norm."""
    needed = Smoothness(kind=facts.kind, feature_bound=facts.feature_bound).least_clip_norm
    if clip_norm < needed:
        warnings.warn(
            f"clip norm {clip_norm:g} is below √2 × {facts.feature_bound:.6g} + 2e-6 = {needed:.7g}, so clipping may "
            "act on a softmax loss; the run is recorded, but hidden_state will not cover it",
            stacklevel=4,
        )


class LossWatch:
    """Sees to it that the loss is the one smoothness was derived from: of the layer's outputs, once, as it is."""

    def __init__(self, model: nn.Module, criterion: Any) -> None:
        linear, _ = _linear_layer(model)
        assert linear is not None
        self._linear = linear
        ghost = isinstance(criterion, DPLossFastGradientClipping)
        self._loss: nn.Module = criterion.criterion if ghost else criterion
        self._outputs: torch.Tensor | None = None
        self._result: torch.Tensor | None = None
        self._calls = 0

    def attach(self, attached: ExitStack) -> None:
        """Watch until the stack is closed."""
        attached.callback(self._linear.register_forward_pre_hook(self._one_vector).remove)
        attached.callback(self._linear.register_forward_hook(self._came_out).remove)
        attached.callback(self._loss.register_forward_pre_hook(self._goes_in).remove)
        attached.callback(self._loss.register_forward_hook(self._computed).remove)

    def require_used(self) -> None:
        """A physical batch is being added: its loss was computed by the criterion, once."""
        calls, self._calls = self._calls, 0
        if calls != 1:
            raise CannotRecord(
                f"criterion: called {calls} times for one batch; smoothness is derived for a loss that is computed by "
                "the criterion that was given, once; for other losses leave criterion and feature_bound out"
            )

    def require_own(self, losses: torch.Tensor) -> None:
        """Ghost clipping: these are the criterion's results, and nothing was made of them."""
        if losses is not self._result:
            raise _not_as_it_is()

    def _one_vector(self, _: nn.Module, inputs: tuple[Any, ...]) -> None:
        if inputs[0].dim() != 2:
            shape = tuple(inputs[0].shape[1:])
            raise CannotRecord(
                f"feature_bound: a record is {shape}, not one feature vector; flatten it or leave it out"
            )

    def _came_out(self, _: nn.Module, __: Any, outputs: torch.Tensor) -> None:
        self._outputs = outputs

    def _goes_in(self, _: nn.Module, inputs: tuple[Any, ...]) -> None:
        outputs, targets = inputs[0], inputs[1]
        if not outputs.requires_grad:
            return  # an evaluation
        if self._outputs is None or outputs.data_ptr() != self._outputs.data_ptr():
            raise CannotRecord("criterion: computed of something else than the linear layer's outputs; give it those")
        if type(self._loss) is nn.CrossEntropyLoss:
            self._require_classes(targets)
        elif outputs.shape != targets.shape:
            raise CannotRecord(
                f"criterion: outputs of shape {tuple(outputs.shape)} and targets of shape {tuple(targets.shape)}; of "
                "unequal shapes torch compares every record with every other"
            )

    def _require_classes(self, targets: torch.Tensor) -> None:
        if targets.is_floating_point():
            raise CannotRecord("criterion: targets that weigh classes; smoothness is derived for class numbers")
        ignored = torch.eq(targets, float(self._loss.ignore_index))  # type: ignore[arg-type]
        if self._loss.reduction == "mean" and bool(ignored.any()):
            raise CannotRecord("criterion: targets to be ignored; a mean then divides by what the other records are")

    def _computed(self, _: nn.Module, __: Any, result: torch.Tensor) -> None:
        if result.requires_grad:
            self._calls += 1
            self._result = result
            if result.dim() == 0:
                result.register_hook(_require_one)  # type: ignore[no-untyped-call]


def _require_one(gradient: torch.Tensor) -> None:
    if float(gradient) != 1.0:
        raise _not_as_it_is()


def _not_as_it_is() -> CannotRecord:
    return CannotRecord(
        "criterion: its result was scaled or added to; smoothness is derived for the loss as it is, so use it as it is "
        "or leave criterion and feature_bound out"
    )


def _linear_layer(model: nn.Module) -> tuple[nn.Linear | None, float | None]:
    """The only trained layer if it is linear, and the bound built in directly before it."""
    if type(model) is nn.Linear:
        return model, None
    if type(model) is not nn.Sequential:
        return None, None
    layers = [layer for layer in model if type(layer) not in (nn.Flatten, nn.Identity)]
    if not layers or type(layers[-1]) is not nn.Linear:
        return None, None
    if any(parameter.requires_grad for layer in layers[:-1] for parameter in layer.parameters()):
        return None, None
    bounds = [before.bound for before, last in pairwise(layers) if last is layers[-1] and type(before) is BoundFeatures]
    return layers[-1], bounds[0] if bounds else None


def _loss(criterion: Any, reductions: tuple[str, ...], outputs: int, radius: float) -> tuple[Any, float | None]:
    """The kind of loss and, where it is steeper than the kind's own, its β."""
    if not isinstance(criterion, nn.Module):
        raise CannotRecord("criterion: not a loss module; pass one, such as nn.CrossEntropyLoss()")
    name = type(criterion).__name__
    reduction = getattr(criterion, "reduction", None)
    if reduction not in reductions:
        raise CannotRecord(
            f"criterion: {name} reduces by {reduction!r}; the optimizer expects {' or '.join(reductions)}"
        )
    if getattr(criterion, "weight", None) is not None or getattr(criterion, "pos_weight", None) is not None:
        raise CannotRecord(f"criterion: {name} with class weights; smoothness is derived for unweighted losses")
    if type(criterion) is nn.CrossEntropyLoss and outputs >= 2:
        return "softmax", None
    if outputs == 1:
        if type(criterion) is nn.BCEWithLogitsLoss:
            return "logistic", None
        if type(criterion) is nn.MSELoss:
            return "squared", 2 * radius**2  # torch's squared error has no ½
        if type(criterion) is nn.HuberLoss:
            return "huber", None
        if type(criterion) is nn.SmoothL1Loss and criterion.beta > 0:
            return "huber", radius**2 / criterion.beta
    raise CannotRecord(
        f"criterion: {name} with {outputs} outputs; smoothness is derived for CrossEntropyLoss with two or more, and "
        "BCEWithLogitsLoss, MSELoss, HuberLoss and SmoothL1Loss with one"
    )
