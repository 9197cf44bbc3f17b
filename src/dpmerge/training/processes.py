"""The processes of a run as the recorder sees them, and what it asks of them: nothing, where there is one.

`process_agreement` has those of a run on several.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opacus.optimizers import DPOptimizer
from torch import Tensor

from dpmerge.portfolio.manifest import SavedAs
from dpmerge.training.model_tensors import ModelTensors
from dpmerge.training.noise_generators import RunGenerators

if TYPE_CHECKING:
    from dpmerge.training.manifest_writer import ManifestWriter


class Processes:
    """One process: there is nobody to agree with."""

    rank, world = 0, 1

    @property
    def several(self) -> bool:
        return False

    @property
    def writes(self) -> bool:
        return self.rank == 0

    @property
    def draws_noise(self) -> bool:
        return self.rank == 0

    @property
    def sharded(self) -> bool:
        """Whether each process holds a part of every tensor."""
        return False

    @contextmanager
    def telling(self) -> Iterator[None]:
        """What is raised in this block is told to the other ranks, which would wait for this one."""
        try:
            yield
        except BaseException as error:
            self.tell(error)
            raise

    def tell(self, error: BaseException) -> None:
        """This rank leaves."""

    def agree_on_start(
        self, facts: Mapping[str, Any], optimizer: DPOptimizer, generators: RunGenerators, dataset: Any, records: int
    ) -> None:
        """All ranks were told the same, and draw from streams of their own."""

    def attach(self, attached: ExitStack) -> None:
        """Observe what the processes send each other, until the stack is closed."""

    def factors_computed(self) -> None:
        """With ghost clipping: what backward() sends from now on is clipped."""

    def follow(self, writer: ManifestWriter) -> None:
        """What is found wrong on any rank is taken back in this record."""

    def sum(self, divisor: int) -> None:
        """What is held becomes the sum of what all ranks send, divided."""

    def require_one(self, option: str) -> None:
        """Refuse what is recorded of one process alone."""

    def save(
        self, tensors: ModelTensors, folder: Path, step: int, weights: Mapping[str, Tensor] | None = None
    ) -> SavedAs:
        """Keep the weights after a step: the model's, or those that are to stand for them."""
        return tensors.save(folder, step, weights=weights)

    def hurry(self) -> None:
        """The loop broke off on this rank: the others may never answer."""

    def agree_on_end(self, steps: int) -> None:
        """All ranks have taken as many steps, and end."""

    def close(self) -> None:
        """All is said."""
