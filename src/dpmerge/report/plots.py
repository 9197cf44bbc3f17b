"""A figure as plain data: lines, steps, errors, marks, heatmaps and panels, described once and drawn three times.

`plot_charts` draws it on a page, `plot_pictures` in files, `plot_text` in a terminal: docs/decisions/0013-figures.md.

Guarantees: what is drawn is in the figure and nowhere else; a figure says in words how it is to be read; the label of
what is not proved says so.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dpmerge.accounting.validation import Array
from dpmerge.planning.analysis import Face
from dpmerge.report import styles, wording

COLOURS = styles.COLOURS
"""What a method or a theorem looks like in every plot."""


@dataclass(frozen=True, kw_only=True)
class Series:
    """A line (or marks) through points; NaN is a gap, and a jump if x is NaN there too (`jumps`).

    `error` is half the height of a band, or of bars where bands would lie on one another.
    """

    name: str
    x: Array
    y: Array
    colour: str
    error: Array | None = None
    dashed: bool = False  # what is not proved
    dotted: bool = False  # by RDP, which overstates; dots between dashes where it is not proved either
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
    """One drawing: `name` is its file's, `heading` stands above, `words` explain it to who has not read the paper.

    As one of several panels it has a `caption` of a few words instead of the heading.
    """

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
    caption: str = ""


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


@dataclass(frozen=True, kw_only=True)
class Panels:
    """Plots side by side as one figure, lettered (a), (b), …"""

    name: str
    heading: str
    words: str
    plots: tuple[Plot, ...]
    banner: str = ""

    @property
    def note(self) -> str:
        """What holds for all panels; where they differ, each has its own."""
        notes = {plot.note for plot in self.plots}
        return notes.pop() if len(notes) == 1 else ""

    @property
    def captions(self) -> list[tuple[str, str]]:
        """Of each panel its letter and a few words, and what is to be known of it alone."""
        found = []
        for place, plot in enumerate(self.plots):
            letter = f"{lettered(place)} " if len(self.plots) > 1 else ""
            words, note = plot.caption or plot.heading, "" if self.note else plot.note
            # What a note says in full is not said twice.
            found.append((letter + note, "") if note.startswith(words) else (letter + words, note))
        return found


Drawing = Plot | Heatmaps | Panels


def lettered(place: int) -> str:
    """How a panel is called in a text.

    >>> lettered(0), lettered(2)
    ('(a)', '(c)')
    """
    return f"({string.ascii_lowercase[place]})"


@dataclass(frozen=True)
class Table:
    """Words and figures in rows; each row has a cell for every column of the head."""

    heading: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


def values(numbers: object) -> Array:
    """A list read from JSON, as an array of floats."""
    return np.asarray(numbers, dtype=float)
