"""The layers of a model in shards, and by which ways a loss depends on their parameters.

While a layer runs, FSDP puts its whole parameters in the place of its shards; the graph of a loss leads to those.
Guarantees: each whole parameter that a loss depends on is that of a layer which Opacus saw called, as often as it was.
Refuses: penalties on shards or on whole parameters, layers in evaluation mode whose gradients would not be measured.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from torch import Tensor, nn

from dpmerge.errors import RecordingError
from dpmerge.training.hooks import hook_of


class LayerParameters:
    """The whole parameters of each layer, as it was last called with them."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        # Each with its parameter, so that no other one gets its number.
        self._known: dict[int, tuple[Tensor, nn.Module]] = {}

    def attach(self, attached: ExitStack) -> None:
        """Observe until the stack is closed."""
        for layer in self._module.modules():
            if any(parameter.requires_grad for parameter in layer.parameters(recurse=False)):
                attached.callback(layer.register_forward_pre_hook(hook_of(layer, self._called)).remove)

    def _called(self, layer: nn.Module, _: Any) -> None:
        for parameter in layer.parameters(recurse=False):
            self._known[id(parameter)] = parameter, layer

    def require_only_layers(self, leaves: Sequence[Tensor]) -> None:
        """Refuse a loss that depends on parameters, these being its leaves, otherwise than through the layers."""
        uses = Counter(id(leaf) for leaf in leaves)
        for leaf in leaves:
            _, layer = self._known.get(id(leaf), (None, None))
            through = getattr(layer, "_forward_counter", 0)
            if isinstance(leaf, nn.Parameter) and uses[id(leaf)] > through:
                raise RecordingError(
                    "criterion: the loss depends on the weights by another way than through the layers (a penalty?) or "
                    "through a layer in evaluation mode; ghost clipping does not see it, so it would not be clipped; "
                    "use the optimizer's weight_decay instead"
                )
