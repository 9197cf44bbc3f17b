"""How a line looks: colour for what is released and by which theorem, dots for RDP, dashes for what is not proved.

Guarantees: colours that colour-blind readers can tell apart, the same for the same thing in every figure; no two lines
of one figure look alike as long as there are colours left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

from dpmerge.planning.analysis import Analysis, Curve, Line

# Okabe and Ito's, without the yellow that white paper swallows.
SELECTION = "#0072B2"
MIXTURE = "#009E73"
COMBINATION = "#D55E00"
MODELS = "#444444"
OTHERS = ("#000000", "#8C6D46", "#7F7F7F")
"""For what is no way of merging, and for theorems that are not named below."""

COLOURS = {
    "select": SELECTION,
    "combine": COMBINATION,  # averages, by whichever proof
    "mix": MIXTURE,
    "models": MODELS,
    "merged_trajectory": COMBINATION,
    "joint_release": "#CC79A7",
    "last_step": "#E69F00",
    "hidden_state": "#56B4E9",
}
"""What a method or a theorem looks like in every figure."""

PARAMETERS = ("#440154", "#26828e", "#6ece58")
"""One thing at three values of a parameter: the larger, the lighter."""

TARGET = "#B00020"
NO_NUMBER = "#DDDDDD"
GRID = "#E4E4E4"
COSTS = (
    *("#fde725", "#b5de2b", "#6ece58", "#35b779", "#1f9e89"),
    *("#26828e", "#31688e", "#3e4989", "#482878", "#440154"),
)
"""Viridis, backwards: what is light costs little."""


def on_cost(place: float) -> str:
    """A colour that is seen on that of a cost at this place of the scale, from 0 to 1."""
    return "#222222" if place < 0.5 else "#FFFFFF"


@dataclass(frozen=True)
class Style:
    """Of one line."""

    colour: str
    dashed: bool  # not proved
    dotted: bool  # by RDP


def styles(lines: Sequence[Curve | Line], analysis: Analysis) -> list[Style]:
    """One style a line of a figure."""
    colours = _colours(analysis)
    chosen: list[Style] = []
    for line in lines:
        style = Style(colours[_subject(line)], dashed=not line.proved, dotted=line.accounting == "rdp")
        others = (replace(style, colour=each) for each in (*OTHERS, *dict.fromkeys(COLOURS.values())))
        chosen.append(next((s for s in chain([style], others) if s not in chosen), style))
    return chosen


def pale(colour: str) -> str:
    """Half way to white: the same colour to every eye, and lighter.

    >>> pale("#0072B2")
    '#80b9d9'
    """
    parts = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return "#" + "".join(f"{(part + 256) // 2:02x}" for part in parts)


def _subject(line: Curve | Line) -> str:
    return (line.theorem or "combine") if line.method == "combine" else line.method


def _colours(analysis: Analysis) -> dict[str, str]:
    """Theorems without a colour take one in the order in which they occur, so that they keep it between figures."""
    colours = dict(COLOURS)
    everything: list[Curve | Line] = [*analysis.curves]
    for edge in analysis.edges:
        everything += [*edge.lines, *edge.theorems]
    for line in everything:
        colours.setdefault(_subject(line), OTHERS[(len(colours) - len(COLOURS)) % len(OTHERS)])
    return colours
