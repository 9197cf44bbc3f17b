"""A figure as plain data: lines, steps, bands, marks and heatmaps, described once and drawn three times.

`plot_charts` draws it on a page, `plot_pictures` in files, `plot_text` in a terminal: docs/decisions/0013-figures.md.

Guarantees: what is drawn is in the figure and nowhere else; a figure says in words how it is to be read; the label of
what is not proved says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dpmerge.accounting.validation import Array
from dpmerge.planning.analysis import Face
from dpmerge.report import wording
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
    thin: bool = False  # what another line beside it says better
    marks: Literal["none", "dots", "diamonds", "squares"] = "none"
    line: bool = True
    steps: bool = False  # a frontier: what one target reaches, the next does
    points: tuple[str, ...] = ()  # the name of every point
    letter: str = ""  # its mark in a terminal; one is chosen where there is none

    @property
    def proved(self) -> bool:
        return not self.dashed

    @property
    def label(self) -> str:
        """What a legend calls it.

        >>> empty = np.zeros(0)
        >>> Series(name="paper", x=empty, y=empty, colour="#000000", dashed=True).label
        'paper (not proved here)'
        """
        return wording.label(self)


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
    x_range: tuple[float, float] | None = None  # around what is drawn, unless given
    epsilon: Literal["x", "y"] | None = None  # the axis of an ε, which is rounded up where it is printed
    note: str = ""  # what every reader must know of the setting, such as a smaller network
    banner: str = ""  # what stands above all else, such as that it is not for release


@dataclass(frozen=True, kw_only=True)
class Heatmaps:
    """ε over the simplex of three models, in rows that have a scale each."""

    name: str
    heading: str
    words: str
    face: Face
    corners: tuple[str, str, str] = ("", "", "")  # how each model was trained, as its owner knows it
    note: str = ""
    banner: str = ""


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
