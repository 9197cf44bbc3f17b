"""A plot as plain data: lines, bands, marks and heatmaps, to be drawn as a picture or on a page.

Guarantees: what is drawn is in the plot and nowhere else; a plot says in words how it is to be read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dpmerge.planning.analysis import Face
from dpmerge.privacy.domain import Array
from dpmerge.report.styles import MIXTURE, MODELS, SELECTION, THEOREMS

COLOURS = {"select": SELECTION, "combine": THEOREMS[0], "mix": MIXTURE, "models": MODELS}
"""What a method looks like in every plot; further colours are styles.THEOREMS[1:]."""


@dataclass(frozen=True, kw_only=True)
class Series:
    """A line (or marks) through points; NaN is a gap. `error` is half the height of a band, or of error bars."""

    name: str
    x: Array
    y: Array
    colour: str
    error: Array | None = None
    dashed: bool = False  # what is not proved
    marks: Literal["none", "dots", "diamonds", "squares"] = "none"
    line: bool = True
    steps: bool = False  # a frontier: what one target reaches, the next does


@dataclass(frozen=True, kw_only=True)
class Plot:
    """One drawing: `name` is its file's, `heading` stands above, `words` explain it to who has not read the paper."""

    name: str
    heading: str
    words: str
    across: str  # title of the x axis
    up: str  # title of the y axis
    series: tuple[Series, ...]
    log_x: bool = False
    log_y: bool = False
    note: str = ""  # what every reader must know of the setting, such as a smaller network


@dataclass(frozen=True, kw_only=True)
class Heatmaps:
    """ε over the simplex of three models, several panels on one scale."""

    name: str
    heading: str
    words: str
    face: Face
    note: str = ""


Drawing = Plot | Heatmaps


@dataclass(frozen=True)
class Table:
    """Words and figures in rows; each row has a cell for every column of the head."""

    heading: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


def values(numbers: object) -> Array:
    """A list read from JSON, as an array of floats."""
    return np.asarray(numbers, dtype=float)
