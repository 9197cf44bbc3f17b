"""Whether each record has a loss of its own, read from the graph of the loss before its gradients are computed.

Guarantees: where `separate` is true, the loss is a sum, or a mean over a multiple of the records, of numbers each of
which depends on one record's outputs and targets (cross-entropy, squared error and their like, or `per_record_loss`).
Refuses means whose divisor depends on other records: over the targets that are not to be ignored, with class weights,
over a number of tokens that is no multiple of the records. Each record's gradient is then scaled by what the others
are, before it is clipped, and one record changes all of them.
Says why it cannot be told (`doubts`) of everything else: a product or a quotient may be one record's own, or not.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from dpmerge.errors import RecordingError

_MEAN = 1  # torch's number for reduction="mean"
# Each number comes from one number, or they are added up.
_LINEAR = frozenset(
    {
        "Add",
        "Alias",
        "BackwardHookFunction",
        "Clone",
        "Mean",
        "Neg",
        "NllLoss",
        "NllLoss2D",
        "Permute",  # not of records, as below
        "ReshapeAlias",
        "Select",
        "Slice",
        "Squeeze",
        "Sub",
        "Sum",
        "ToCopy",
        "Transpose",
        "UnsafeView",
        "Unsqueeze",
        "View",
    }
)
_BY_ELEMENT = frozenset(
    {
        "Abs",
        "BinaryCrossEntropy",
        "BinaryCrossEntropyWithLogits",
        "Exp",
        "HuberLoss",
        "Log",
        "LogSigmoid",
        "MseLoss",
        "Pow",
        "Sigmoid",
        "SmoothL1Loss",
        "SoftMarginLoss",
    }
)
_BY_ROW = frozenset({"LogSoftmax", "Softmax"})  # over classes
_MOST_NODES = 10_000
"""More are a whole model, whose loss is not computed of its outputs."""
_UNCHANGED = "dpmerge: divided by one"
_REDUCTIONS = frozenset({"Sum", "Mean"})


class OwnLosses(torch.autograd.Function):
    """A mark in the graph: what goes through here is one loss a record, each computed of that record alone."""

    @staticmethod
    def forward(_: Any, losses: Tensor) -> Tensor:
        return losses.view_as(losses)

    @staticmethod
    def backward(_: Any, *gradients: Any) -> Any:
        return gradients[0]


@dataclass
class LossGraph:
    """What was seen between a loss and the model's outputs."""

    means: list[int] = field(default_factory=list)  # over how many numbers
    ignored: list[Tensor] = field(default_factory=list)  # which targets of a mean are
    quotients: list[float] = field(default_factory=list)  # divisors of sums
    shapes: list[tuple[int, ...]] = field(default_factory=list)  # that numbers were given
    of_totals: bool = False  # a function of the loss of the whole batch
    returned: bool = False  # by the model itself, which is asked again
    weighted: bool = False
    unknown: set[str] = field(default_factory=set)  # what else may mix records, in words
    closed: bool = True  # no path to a trained tensor but through the model's outputs
    reached: set[Any] = field(default_factory=set)  # the outputs it is computed of

    def separate(self, rows: int, *, mean: bool) -> bool:
        """Whether each of so many records has a loss of its own; refused where it surely has not."""
        self._require_unmixed(rows, mean=mean)
        return not self.doubts(rows, mean=mean)

    def _require_unmixed(self, rows: int, *, mean: bool) -> None:
        if self.weighted:
            raise _mixed("a mean with class weights divides by the weights of all records' classes")
        for ignored in self.ignored:
            if rows and ignored.numel() % rows == 0:
                used = (~ignored).reshape(rows, -1).sum(1)
                low, high = int(used.min()), int(used.max())
                if low != high:
                    raise _mixed(
                        f"a mean over all targets of the batch that are not to be ignored, of which a record has {low} "
                        f"to {high}"
                    )
        for number in [*self.means, *(self.quotients if mean else [])]:
            if rows and number > 1 and number % rows:
                raise _mixed(f"a mean over {number:g} numbers for {rows} records")

    def doubts(self, rows: int, *, mean: bool) -> list[str]:
        """Why it cannot be told whether each of so many records has a loss of its own; empty if it has."""
        torn = any(math.prod(shape) > 1 and shape[0] % max(1, rows) for shape in self.shapes)
        other_reduction = mean != bool(self.means) and not self.returned
        expected, found = ("mean", "no mean") if mean else ("sum", "a mean")
        reasons = {
            "a function of the loss of the whole batch": rows > 1 and self.of_totals,
            f"{found} over records, where the optimizer expects a {expected}": rows > 1 and other_reduction,
            "numbers of several records reshaped into one": torn,
            "targets that are ignored, equally many in each record": bool(self.ignored),
            "a sum that is divided by a number": bool(self.quotients),
            "trained weights in the loss, beside the model's outputs": not self.closed,
        }
        return [reason for reason, holds in reasons.items() if holds] + sorted(self.unknown)


def loss_graph(losses: Iterable[Tensor], outputs: Collection[Any], trained: Collection[int]) -> LossGraph:
    """Look at all that lies between losses and the nodes of the model's outputs; `trained` are ids of parameters."""
    found = LossGraph()
    waiting = [(loss.grad_fn, True, False) for loss in losses]
    found.returned = any(node in outputs for node, _, _ in waiting)
    seen = set[tuple[Any, bool, bool]]()
    while waiting:
        # Is all between here and the loss linear? Is it marked as one loss a record?
        node, linear, own = place = waiting.pop()
        if node is None or place in seen:
            continue
        seen.add(place)
        if len(seen) > _MOST_NODES:
            found.unknown.add(f"a graph of more than {_MOST_NODES} nodes")
            return found
        if node in outputs:
            found.reached.add(node)
            continue
        if id(getattr(node, "variable", None)) in trained:
            found.closed = False
            continue
        name = node.name().removesuffix("Backward0").removesuffix("Backward1").removesuffix("Backward")
        own |= name == OwnLosses.__name__
        unchanged = _UNCHANGED in getattr(node, "metadata", ())
        if not own and not unchanged:
            _note(found, name, node, linear)
        linear &= unchanged or name in _LINEAR
        waiting += [(following, linear, own) for following, _ in node.next_functions]
    return found


def divided_by_one(loss: Tensor) -> None:
    """Say of a loss that a framework has divided it by its number of accumulated batches, which is 1.

    Only the framework knows that: a divisor that is 1 now may be another one for other records.
    """
    node: Any = loss.grad_fn
    if node is not None and node.name().startswith("Div") and float(node._saved_other) == 1:
        node.metadata[_UNCHANGED] = True


def _note(found: LossGraph, name: str, node: Any, linear: bool) -> None:
    """What one node between the loss and the outputs says."""
    averaged = getattr(node, "_saved_reduction", None) == _MEAN
    if name in ("NllLoss", "NllLoss2D") and averaged:
        found.weighted |= node._saved_weight is not None
        ignored = node._saved_target == node._saved_ignore_index
        if bool(ignored.any()):
            found.ignored.append(ignored)
        found.means.append(node._saved_target.numel())
    elif name == "Mean":
        found.means.append(_averaged_over(node))
    elif averaged:
        found.means.append(node._saved_self.numel())
    elif name == "Div" and node.next_functions[0][0] is not None:
        divisor = node._saved_other
        above_sum = node.next_functions[0][0].name().startswith("Sum")
        if above_sum and (isinstance(divisor, int | float) or (divisor is not None and divisor.numel() == 1)):
            found.quotients.append(float(divisor))
    _note_operands(found, name, node)
    if name in _REDUCTIONS and not linear:
        found.unknown.add(f"{name} within the loss")
    elif name in _BY_ROW and _dimension(node) == 0:
        found.unknown.add(f"{name} over dimension 0")
    elif name not in _LINEAR | _BY_ELEMENT | _BY_ROW:
        found.unknown.add(f"the operation {name}")


def _note_operands(found: LossGraph, name: str, node: Any) -> None:
    """What a node computes with beside the numbers it is computed of, and how it orders them."""
    if name in ("Add", "Sub") and not _of_equal_shapes(node):
        found.unknown.add(f"{name} of unequal shapes, which compares every record with every other")
    if name in ("Add", "Sub") and any(following is None for following, _ in node.next_functions):
        found.unknown.add(f"{name} of something that is computed elsewhere")
    if any(getattr(node, f"_saved_{name}", None) is not None for name in ("weight", "pos_weight")):
        found.unknown.add(f"{name} with weights")
    if name in _BY_ELEMENT and _input_shape(node).numel() == 1:
        found.of_totals = True
    if name in ("View", "ReshapeAlias", "UnsafeView"):
        found.shapes.append(tuple(node._input_metadata[0].shape))
    if name in ("Permute", "Transpose") and _moves_records(name, node):
        found.unknown.add(f"{name} of records")


def _input_shape(node: Any) -> torch.Size:
    """Of what a node is computed of."""
    following, place = node.next_functions[0]
    return torch.Size([2]) if following is None else torch.Size(following._input_metadata[place].shape)


def _moves_records(name: str, node: Any) -> bool:
    dimensions = node._saved_dims if name == "Permute" else (node._saved_dim0, node._saved_dim1)
    places = [_signed(each) % max(1, len(node._input_metadata[0].shape)) for each in dimensions]
    return places[0] != 0 if name == "Permute" else 0 in places


def _of_equal_shapes(node: Any) -> bool:
    inputs = [following._input_metadata[place] for following, place in node.next_functions if following is not None]
    return all(each.shape == node._input_metadata[0].shape for each in inputs)


def _averaged_over(node: Any) -> int:
    """How many numbers a mean is of; one over other dimensions than the first is within records."""
    sizes, dimensions = node._saved_self_sym_sizes, getattr(node, "_saved_dim", None)
    if dimensions is None or not sizes:
        return int(node._saved_self_sym_numel)
    places = {_signed(place) % len(sizes) for place in dimensions} or set(range(len(sizes)))
    return int(torch.Size([sizes[place] for place in places]).numel()) if 0 in places else 1


def _dimension(node: Any) -> int:
    dimension, result = _signed(node._saved_dim), node._saved_result
    return int(dimension % max(1, result.dim()))


def _signed(number: int) -> int:
    """torch shows −1 as 2⁶⁴ − 1."""
    return number - 2**64 if number >= 2**63 else number


def _mixed(what: str) -> RecordingError:
    return RecordingError(
        f"criterion: {what}, so each record's gradient is scaled by the others before it is clipped; give each record "
        "a loss of its own: dpmerge.training.per_record_loss(logits, labels) for language models, otherwise "
        "reduction='none' and a mean over records"
    )
