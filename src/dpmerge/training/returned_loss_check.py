"""A loss that the model itself returns: is it made of one loss a record?

Guarantees: the gradient of the loss of the batch is that of two halves of it, chosen by chance, each weighed by its
records.
Refuses losses that do not add up, such as a mean over all tokens of the batch.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from dpmerge.errors import RecordingError
from dpmerge.training.forward_replay import ForwardReplay, UndecidedError, relative_distance
from dpmerge.training.half_precision import computed_in_half

_SAME_LOSS = 1e-3
"""Relative; rounding differs by far less, and one long record of a batch by more."""
_BEYOND_ROUNDING = 0.25
"""The same for gradients in half precision; what lies between is undecided."""


def require_additive_loss(replay: ForwardReplay, rows: int, *, mean: bool) -> None:
    """Refuse a returned loss of so many records, a mean or a sum over them, that is not made of one a record."""
    if rows == 1:
        raise UndecidedError("a loss that the model returns for a single record")
    order = torch.tensor(secrets.SystemRandom().sample(range(rows), rows))
    size = rows // 2  # of halves chosen by chance, one long record shows in any case
    weights = (size / rows, 1 - size / rows) if mean else (1.0, 1.0)
    with replay.unobserved(dropout=False):
        rounded = computed_in_half(replay.outputs(lambda tensor: tensor, autocast=False))
        whole, again, first, second = (
            _loss_gradient(replay, partial(_rows_of, rows=rows, chosen=chosen))
            for chosen in (order, order, order[:size], order[size:])
        )
    complete = whole.numel() and whole.shape == again.shape == first.shape == second.shape
    if not complete or not bool(torch.isfinite(torch.stack([whole, again, first, second])).all()):
        raise UndecidedError("the model returns no finite loss for a part of the batch")
    if relative_distance([whole], [again]) > _SAME_LOSS:
        raise UndecidedError("the model returns another loss when it is given the same batch again")
    apart = relative_distance([whole], [weights[0] * first + weights[1] * second])
    if _SAME_LOSS < apart < _BEYOND_ROUNDING and rounded:
        raise UndecidedError("in half precision, which rounds, the loss that the model returns does not add up")
    if apart > _SAME_LOSS:
        raise RecordingError(
            "model: the loss it returns for a batch is not made of one loss a record (a mean over all tokens of "
            "the batch?), so one record changes every gradient; compute dpmerge.training.per_record_loss of "
            "its logits instead"
        )


def _loss_gradient(replay: ForwardReplay, change: Callable[[Tensor], Tensor]) -> Tensor:
    """What the model returns as single numbers for other inputs, and the gradient of their sum, in one vector.

    The numbers alone would not do: all records have the same loss while the last layer is zero.
    """
    single = [each for each in replay.outputs(change, autocast=False) if each.dim() == 0]
    if not single:
        return torch.zeros(0)
    gradients = torch.autograd.grad(torch.stack(single).sum(), replay.parameters, allow_unused=True)
    flat = [each.flatten().double() for each in gradients if each is not None]
    return torch.cat([torch.stack(single).detach().double(), *flat])


def _rows_of(tensor: Tensor, rows: int, chosen: Tensor) -> Tensor:
    return tensor[chosen.to(tensor.device)] if tensor.dim() and len(tensor) == rows else tensor
