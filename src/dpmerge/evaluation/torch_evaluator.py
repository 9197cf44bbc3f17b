"""Evaluators for models of PyTorch (extra `torch`).

Guarantees: each thread has a module of its own, in evaluation mode, without gradients, with exactly the merged tensors.
Refuses, as load_state_dict does: tensors the module lacks, tensors it has and the merge does not, other shapes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, SupportsFloat

from dpmerge.evaluation.merged_model import Tensors
from dpmerge.extras import needs_extra

with needs_extra("torch", by="dpmerge.evaluation.torch_evaluator"):
    import torch
    from torch import nn


class ModuleEvaluator:
    """Loads merged tensors into a module and scores it; picklable if `factory` and `score` are."""

    def __init__(
        self, factory: Callable[[], nn.Module], score: Callable[[nn.Module], SupportsFloat], identity: str | None = None
    ) -> None:
        self.factory = factory
        self.score = score
        self.identity = identity
        self._of_thread = threading.local()

    def __call__(self, tensors: Tensors) -> SupportsFloat:
        module: nn.Module | None = getattr(self._of_thread, "module", None)
        if module is None:
            module = self._of_thread.module = self.factory()
        with torch.no_grad():
            module.load_state_dict({name: torch.from_numpy(tensor) for name, tensor in tensors.items()}, strict=True)
            return self.score(module.eval())

    def __reduce__(self) -> tuple[Any, ...]:
        return ModuleEvaluator, (self.factory, self.score, self.identity)


def module_evaluator(
    factory: Callable[[], nn.Module], score: Callable[[nn.Module], SupportsFloat], *, identity: str | None = None
) -> ModuleEvaluator:
    """An evaluator of modules, for a file `mine.py` beside the portfolio, named on the command line `mine:evaluator`.

    A lambda is fine there, since the evaluator travels to other processes by its name. One made in a program and
    given to a process pool needs functions that pickle finds.

    Args:
        factory: builds a module, into which merged tensors are loaded.
        score: gives the number, of which more is better.
        identity: what stands for the evaluator in a file of scores; without it they are kept in memory only.

    Returns:
        The evaluator.

    Example:
        >>> import numpy as np
        >>> images, labels = torch.eye(3), torch.arange(3)
        >>> def accuracy(module):
        ...     return (module(images).argmax(1) == labels).double().mean().item()
        >>> evaluator = module_evaluator(lambda: nn.Linear(3, 3, bias=False), accuracy)
        >>> evaluator({"weight": np.eye(3, dtype=np.float32)})
        1.0
    """
    return ModuleEvaluator(factory, score, identity)
