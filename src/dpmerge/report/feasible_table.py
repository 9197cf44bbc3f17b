"""A feasible set as a CSV file: a column a checkpoint, its ε, and whether it meets the target.

Guarantees: full precision, so that what is read is what was written; the banner of a set that is not proved is the
first line, after a #; no text that a spreadsheet would run as a formula.
Refuses: grids of more than four models.
"""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dpmerge.accounting.validation import Array
from dpmerge.errors import NoGuaranteeError
from dpmerge.evaluation.evaluation_progress import Progressed
from dpmerge.planning.feasible_set import MOST_GRIDDED, FeasibleSet
from dpmerge.report.numbers import FORMULA_STARTS
from dpmerge.report.whole_files import write_whole

SAMPLED = 1000
"""Weights in the table of more models than a grid is laid over."""


@dataclass(frozen=True, eq=False)
class FeasibleTable:
    """Points of the simplex, what each costs, and which meet the target."""

    found: FeasibleSet
    rows: Array
    epsilons: Array
    feasible: npt.NDArray[np.bool_]
    points: str  # what was tabulated, in words

    @classmethod
    def of(cls, found: FeasibleSet, grid: float | None = None, progress: Progressed | None = None) -> FeasibleTable:
        """The whole grid of up to four models; of more, the corners of a selection or a sample of weights.

        Args:
            found: What `feasible_set` returns.
            grid: Between points; 0.01 unless given.
            progress: Called with how many points are done, and of how many.

        Returns:
            The table.

        Raises:
            InvalidInputError: A grid of more than four models.
        """
        if grid is not None or len(found.models) <= MOST_GRIDDED:
            step = 0.01 if grid is None else grid
            rows, points = found.grid(step), f"multiples of {step:g}"
        elif found.method == "select":
            rows, points = found.vertices, "corners of the set"
        else:
            rows, points = singles_and_sample(found, SAMPLED), "single models, and a sample of weights"
        epsilons = found.epsilons(rows, progress=progress)
        return cls(found, rows, epsilons, np.asarray(epsilons <= found.target.epsilon), points)

    def csv(self) -> str:
        """As text."""
        stream = io.StringIO()
        if self.found.banner:
            stream.write(f"# {self.found.banner}\n")
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow([*map(_safe, self.found.names), "epsilon", "feasible"])
        for row, epsilon, feasible in zip(self.rows.tolist(), self.epsilons.tolist(), self.feasible, strict=True):
            writer.writerow([*map(repr, row), repr(epsilon), "true" if feasible else "false"])
        return stream.getvalue()

    def write(self, file: Path) -> Path:
        """To a file, whole or not at all."""
        return write_whole(file, self.csv().encode())


def singles_and_sample(found: FeasibleSet, count: int) -> Array:
    """Every model by itself, whether it meets the target or not; then members, if drawing finds as many."""
    alone = np.eye(len(found.models))
    try:
        return np.vstack([alone, found.sample(count)])
    except NoGuaranteeError:
        return alone


def _safe(name: str) -> str:
    return f"'{name}" if name.lstrip(" ")[:1] in tuple(FORMULA_STARTS) else name
