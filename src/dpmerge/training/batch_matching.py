"""Which batch of the loader entered the model, told by the fingerprints of its rows.

Guarantees: a batch is matched where every tensor that entered the model is one of that batch, row by row; a full batch
also where what entered in the step is, each record once, in any order and in any parts, a tensor of the data set.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch.utils.data import TensorDataset

from dpmerge.training.row_fingerprints import Fingerprints, RowFingerprints

_PASSES_KEPT = 4
"""Of full batches: one that was taken out once, and used ever since, is still the data after an evaluation or two."""


def matching_batch(waiting: Mapping[int, Fingerprints], entered: Fingerprints | None) -> int | None:
    """The number of the waiting batch that entered the model, and nothing else did; None if there is none."""
    return None if entered is None else next((n for n, batch in waiting.items() if entered <= batch), None)


class FullBatches:
    """Batches of the whole data, as they were handed out, and the parts of them that a step has used."""

    def __init__(self, dataset: Any, fingerprints: RowFingerprints) -> None:
        self._dataset, self._fingerprints = dataset, fingerprints
        self._passes: list[list[Fingerprints]] = []  # the last ones, in the parts they were handed out in
        self._used: set[tuple[int, int]] = set()
        self._entered: list[Fingerprints] = []
        self._rows_of_data: list[Any] | None = None  # of each tensor of the data set, its rows' fingerprints, sorted

    def handed_out(self, part: Fingerprints, *, first: bool) -> None:
        """A part of a batch came out of the loader; the first of its pass, or not."""
        if first:
            self._passes = [*self._passes[-_PASSES_KEPT:], []]
        self._passes[-1].append(part)

    def entered(self, entered: Fingerprints | None) -> bool:
        """Whether what entered is a batch of the whole data, or a part of one that this step has not used yet."""
        self._entered.append(entered or frozenset())
        for parts in self._passes[-_PASSES_KEPT:]:
            for number, part in enumerate(parts):
                if entered is not None and entered <= part and (id(parts), number) not in self._used:
                    self._used.add((id(parts), number))
                    return True
        return False

    def is_the_data_set(self) -> bool:
        """Whether what entered in this step is the data set itself, each record once, in any order and any parts."""
        if not isinstance(self._dataset, TensorDataset) or not all(self._entered):
            return False
        if self._rows_of_data is None:
            self._rows_of_data = [_sorted(each) for each in self._fingerprints.handed(self._dataset.tensors)]
        if len(self._entered) == 1:
            entered = self._entered[0]
        elif all(len(part) == 1 for part in self._entered):
            entered = frozenset([b"".join(b"".join(part) for part in self._entered)])
        else:
            return False
        return all(any(np.array_equal(_sorted(each), rows) for rows in self._rows_of_data) for each in entered)

    def step_ends(self) -> None:
        """What enters from now on is another step's."""
        self._used.clear()
        self._entered.clear()


def _sorted(fingerprints: bytes) -> Any:
    return np.sort(np.frombuffer(fingerprints, dtype=np.uint64))
