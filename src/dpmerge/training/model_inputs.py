"""What enters the model, in the passes whose gradients are clipped.

Guarantees: a pass counts if Opacus would keep its gradients row by row, and if it is not the recorder itself that runs
the model again.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from dpmerge.training.hooks import hook_of
from dpmerge.training.row_fingerprints import Fingerprints, RowFingerprints


class ModelInputs:
    """What enters the model in the passes whose gradients are clipped."""

    def __init__(self, module: nn.Module, fingerprints: RowFingerprints) -> None:
        self._module, self._fingerprints = module, fingerprints
        self._trained = [layer for layer in module.modules() if any(p.requires_grad for p in layer.parameters(False))]
        self._entered: list[Fingerprints] = []
        self.quiet = False  # the recorder itself is asking
        self.before_pass: Callable[[], None] | None = None

    def attach(self, attached: ExitStack) -> None:
        """Observe until the stack is closed."""
        hook = hook_of(self._module, self._enters)
        attached.callback(self._module.register_forward_pre_hook(hook, with_kwargs=True).remove)

    def counts(self) -> bool:
        """Whether a pass that begins now is one whose gradients are kept row by row, as Opacus decides it."""
        return not self.quiet and torch.is_grad_enabled() and any(layer.training for layer in self._trained)

    def _enters(self, _: nn.Module, args: Any, kwargs: Any) -> None:
        if self.counts():
            if self.before_pass is not None:
                self.before_pass()
            self._entered.append(self._fingerprints.entered((args, kwargs)))

    def taken(self) -> Fingerprints | None:
        """All that entered since this was last asked; None if nothing did."""
        entered, self._entered = self._entered, []
        return frozenset().union(*entered) if any(entered) else None
