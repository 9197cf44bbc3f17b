"""Features of bounded norm, whatever the data.

Guarantees: after `bound_features(R)` no record's feature vector is longer than R, and each record was rescaled by
itself. Nothing stops or complains about a large record: that would tell that there is one.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dpmerge.accounting import validation
from dpmerge.errors import InvalidInputError

_MARGIN = 1e-12
"""Relative: more than the rounding of a norm in double precision."""


class BoundFeatures(nn.Module):
    """A layer without parameters: rescales each record of a batch (dimension 0) to norm at most `bound`.

    Values that are not finite count as zero (NaN) or the largest number (infinity): they too must not stand out.

    Args:
        bound: the largest norm a record keeps, above 0.

    Raises:
        InvalidInputError: a bound that is not positive; when called, features that are no floats.

    Example:
        >>> BoundFeatures(5.0)(torch.tensor([[30.0, 40.0], [float("nan"), 1.0]]))
        tensor([[3.0000, 4.0000],
                [0.0000, 1.0000]])
    """

    def __init__(self, bound: float) -> None:
        super().__init__()
        self.bound = validation.magnitude("bound", bound, zero=False)

    def forward(self, batch: Tensor) -> Tensor:
        if not batch.is_floating_point():
            raise InvalidInputError("features", batch.dtype, "a floating-point tensor", found=str(batch.dtype))
        if batch.numel() == 0:
            return batch
        kept = torch.nan_to_num(batch)
        flat = kept.reshape(len(kept), -1).double()
        length = _lengths(flat)
        room = self.bound * (1 - max(4 * torch.finfo(kept.dtype).eps, 2 * _MARGIN))
        factor = torch.where(length > room, room / length, torch.ones_like(length))
        bounded = (flat * factor).to(kept.dtype)
        # Rounding to the features' own precision must not lead back over the bound; tiny numbers round coarsely.
        while bool((over := _lengths(bounded.double()) > self.bound * (1 - _MARGIN)).any()):
            factor = torch.where(over, factor / 2, factor)
            bounded = (flat * factor).to(kept.dtype)
        return bounded.reshape(kept.shape)

    def record(self, features: Tensor) -> Tensor:
        """The same for one record, as a dataset's transform."""
        bounded: Tensor = self.forward(features.unsqueeze(0))
        return bounded.squeeze(0)

    def extra_repr(self) -> str:
        return f"bound={self.bound:g}"


def _lengths(rows: Tensor) -> Tensor:
    """The norm of each row, without overflow or underflow on the way."""
    largest = rows.abs().amax(dim=1, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)
    lengths: Tensor = largest * (rows / largest).norm(dim=1, keepdim=True)
    return lengths


def bound_features(bound: float) -> BoundFeatures:
    """A transform after which every record's features have norm at most `bound`.

    Args:
        bound: the largest norm a record keeps, above 0.

    Returns:
        A layer, to put before a linear one; its method `record` does the same to one record of a data set.

    Raises:
        InvalidInputError: a bound that is not positive.

    Example:
        >>> bound_features(1.0)(torch.tensor([[3.0, 4.0], [0.3, 0.4]]))
        tensor([[0.6000, 0.8000],
                [0.3000, 0.4000]])
    """
    return BoundFeatures(bound)
