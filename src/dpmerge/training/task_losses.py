"""The losses of Hugging Face models, with one loss a record.

Guarantees: the loss of a record is computed of its own outputs and labels; the mean, or the sum, is over records.
Refuses: outputs and labels that it does not know what to make of.
"""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor
from torch.nn import functional

from dpmerge.errors import InvalidInputError
from dpmerge.training.per_record_losses import per_record_loss

_CAUSAL = ("ForCausalLM", "LMHeadModel")


class TaskLoss:
    """What Trainer calls `compute_loss_func`: of outputs and labels, as the model's own loss would be but for the mean.

    Tokens of a language model or a token classifier: the mean over each record's own; classes: cross-entropy; several
    labels at once: binary cross-entropy; numbers: squared error.

    Args:
        model: whose outputs they are; a causal language model predicts the next token.
        reduction: over records, as the optimizer expects it.
    """

    def __init__(self, model: Any, *, reduction: Literal["mean", "sum"] = "mean") -> None:
        base = getattr(model, "_module", model)
        base = base.get_base_model() if hasattr(base, "get_base_model") else base
        self.shift = type(base).__name__.endswith(_CAUSAL)
        self._regression = getattr(getattr(base, "config", None), "problem_type", None) == "regression"
        self.reduction = reduction

    def __call__(self, outputs: Any, labels: Tensor | None, num_items_in_batch: Any = None) -> Tensor:
        """The loss; the number of items in the batch, which mixes records, is not looked at."""
        del num_items_in_batch
        logits = outputs["logits"] if isinstance(outputs, dict) else outputs[0]
        if labels is not None and logits.dim() == 3 and labels.shape == logits.shape[:2]:
            return per_record_loss(logits, labels, shift=self.shift, reduction=self.reduction)
        numbers = self._regression or logits.shape[-1] == 1
        classes = labels is not None and labels.shape == logits.shape[:1] and not numbers
        fits = labels is not None and (classes or labels.numel() == logits.numel())
        if labels is None or logits.dim() != 2 or len(labels) != len(logits) or not fits:
            shapes = f"{tuple(logits.shape)} and {None if labels is None else tuple(labels.shape)}"
            accepted = (
                "logits of shape [records, tokens, classes] or [records, classes], and labels of each; otherwise "
            )
            raise InvalidInputError("labels", None, accepted + "pass a compute_loss_func", found=shapes)
        if classes:
            return functional.cross_entropy(logits, labels, reduction=self.reduction)
        if numbers:
            return functional.mse_loss(logits.reshape(labels.shape), labels.float(), reduction=self.reduction)
        losses = functional.binary_cross_entropy_with_logits(logits, labels.float(), reduction="none").mean(1)
        return losses.mean() if self.reduction == "mean" else losses.sum()
