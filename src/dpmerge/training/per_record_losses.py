"""The loss of a language model with one loss a record, as clipping record by record needs it.

The loss that causal language models return is a mean over all tokens of the batch: each record's gradient is scaled by
the others' token counts before it is clipped, so one record changes the gradients of all, and the noise does not hide
it. Here a record's loss is the mean over its own tokens; a record without any counts as 0.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor
from torch.nn import functional

from dpmerge.errors import InvalidInputError
from dpmerge.training.loss_graph import OwnLosses


def per_record_loss(
    logits: Tensor,
    labels: Tensor,
    *,
    shift: bool = True,
    ignore_index: int = -100,
    reduction: Literal["mean", "sum", "none"] = "mean",
) -> Tensor:
    """The cross-entropy of a language model: a mean over each record's own tokens, then over records.

    Args:
        logits: of shape [records, tokens, vocabulary].
        labels: of shape [records, tokens], numbers of the vocabulary.
        shift: a causal model: the logits of a token are compared with the label of the next one.
        ignore_index: the label of padding, or of a prompt, which does not count.
        reduction: over records, as the optimizer expects it; "none" gives one number a record (ghost clipping).

    Returns:
        The loss, of which `record` knows that each record has its own; a record without any token counts as 0.

    Raises:
        InvalidInputError: shapes that do not fit together, another reduction.

    Example:
        >>> import torch
        >>> logits, labels = torch.zeros(2, 3, 4), torch.tensor([[0, 1, 2], [3, 1, -100]])
        >>> per_record_loss(logits, labels, reduction="none")
        tensor([1.3863, 1.3863])
    """
    if logits.dim() != 3 or labels.shape != logits.shape[:2]:
        accepted = "logits of shape [records, tokens, vocabulary] and labels of shape [records, tokens]"
        raise InvalidInputError("labels", None, accepted, found=f"{tuple(logits.shape)} and {tuple(labels.shape)}")
    if reduction not in ("mean", "sum", "none"):
        raise InvalidInputError("reduction", reduction, '"mean", "sum" or "none"')
    if shift:
        logits, labels = logits[:, :-1], labels[:, 1:]
    # Half-precision logits are summed in single precision, as models do it themselves.
    losses = functional.cross_entropy(
        logits.float().transpose(1, 2), labels, ignore_index=ignore_index, reduction="none"
    )
    tokens = (labels != ignore_index).sum(1).clamp(min=1)
    own: Tensor = OwnLosses.apply(losses.sum(1) / tokens)  # type: ignore[no-untyped-call]
    return own if reduction == "none" else own.sum() if reduction == "sum" else own.mean()
