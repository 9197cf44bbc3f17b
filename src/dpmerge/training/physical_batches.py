"""Logical batches in parts that fit into memory, for trainers that count the batches of a loader.

BatchMemoryManager's loader hands out parts, and nobody knows beforehand how many: trainers stop a pass after as many as
they expect, in the middle of a draw. Here a batch is the list of the parts of one draw, and there are as many as draws.

Guarantees: the parts are BatchMemoryManager's, each draw's together and in order, and the optimizer has been told which
of them ends the step.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from opacus.optimizers import DPOptimizer
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch.utils.data import DataLoader

from dpmerge.accounting import validation


class PhysicalBatches:
    """The batches of a private loader, each as a list of parts; take one `optimizer.step()` for each part.

    Args:
        data_loader: what `make_private` returned.
        optimizer: likewise.
        size: how many records a part has at most.
    """

    def __init__(self, data_loader: DataLoader[Any], optimizer: DPOptimizer, *, size: int) -> None:
        self.data_loader, self.dataset = data_loader, data_loader.dataset
        self._optimizer = optimizer
        self._size = validation.integer("size", size, least=1)

    def __len__(self) -> int:
        return len(self.data_loader)

    def __iter__(self) -> Iterator[list[Any]]:
        optimizer = self._optimizer
        manager = BatchMemoryManager(
            data_loader=self.data_loader, max_physical_batch_size=self._size, optimizer=optimizer
        )
        with manager as split:
            parts: list[Any] = []
            for part in split:
                parts.append(part)
                # Workers draw ahead: what was said of this part is not what was said last.
                if not optimizer._step_skip_queue[len(parts) - 1]:
                    yield parts
                    parts = []
