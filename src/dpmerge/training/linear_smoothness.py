"""Smoothness facts, derived for the models for which they are theorems: one trained linear layer, a known loss.

Guarantees: what is derived follows from the layer, the loss and the bound on its input; bias included.
Refuses, by saying what is in the way: anything but a single linear layer, weighted or unknown losses.
That the loop then uses this loss is seen to by `stated_loss_check`.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
from torch import nn

from dpmerge.accounting import validation
from dpmerge.accounting.smoothness import Smoothness
from dpmerge.errors import InvalidInputError, RecordingError
from dpmerge.terms.mechanism_schema import SmoothnessFacts
from dpmerge.training.feature_bounds import BoundFeatures
from dpmerge.training.user_warnings import warn_user


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
    linear, built_in = linear_layer(model)
    bound = built_in if feature_bound is None else validation.magnitude("feature_bound", feature_bound, zero=False)
    if criterion is None and feature_bound is None:
        return None
    if built_in is not None and bound is not None and bound < built_in:
        raise InvalidInputError(
            "feature_bound", bound, f"at least {built_in:g}, which the bound_features layer lets through"
        )
    if criterion is None:
        raise RecordingError("feature_bound: the loss is not known; pass criterion= too, or leave the bound out")
    if bound is None:
        raise RecordingError(
            "criterion: features are not bounded; put bound_features(R) before the linear layer or pass feature_bound="
        )
    if linear is None:
        raise RecordingError(
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
        warn_user(
            f"clip norm {clip_norm:g} is below √2 × {facts.feature_bound:.6g} + 2e-6 = {needed:.7g}, so clipping may "
            "act on a softmax loss; the run is recorded, but hidden_state will not cover it"
        )


def linear_layer(model: nn.Module) -> tuple[nn.Linear | None, float | None]:
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
        raise RecordingError("criterion: not a loss module; pass one, such as nn.CrossEntropyLoss()")
    name = type(criterion).__name__
    reduction = getattr(criterion, "reduction", None)
    if reduction not in reductions:
        raise RecordingError(
            f"criterion: {name} reduces by {reduction!r}; the optimizer expects {' or '.join(reductions)}"
        )
    if getattr(criterion, "weight", None) is not None or getattr(criterion, "pos_weight", None) is not None:
        raise RecordingError(f"criterion: {name} with class weights; smoothness is derived for unweighted losses")
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
    raise RecordingError(
        f"criterion: {name} with {outputs} outputs; smoothness is derived for CrossEntropyLoss with two or more, and "
        "BCEWithLogitsLoss, MSELoss, HuberLoss and SmoothL1Loss with one"
    )
