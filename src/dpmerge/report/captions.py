"""What stands over each figure: a heading, and what it shows in words that need no paper.
Pictures carry the headings, the page both.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dpmerge.errors import printable
from dpmerge.planning.analysis import Analysis, Edge, Face, Line, Panel
from dpmerge.report.wording import direction, short


@dataclass(frozen=True)
class Caption:
    """Of one figure."""

    heading: str
    words: str


def frontier_caption(analysis: Analysis) -> Caption:
    utility = analysis.utility
    name = printable(utility.name)
    how = "measured" if utility.measured else "predicted from the records of training, not measured"
    return Caption(
        f"Best {name} at each privacy level",
        "ε bounds what a release can reveal about any one person or record: smaller is more private. "
        f"Each line shows the best {name} ({how}; {direction(utility)}) that one way of merging reaches within a "
        "given ε; a diamond is a model as it was trained.",
    )


def face_caption(face: Face) -> Caption:
    first, second, third = (printable(name) for name in face.names)
    return Caption(
        f"Sharing among three models: {_list(*face.names)}",
        "Each point of a triangle divides the whole among three models: as the chances of drawing one of them, or as "
        "their weights in an average. Colour is the ε this costs. "
        f"Lower right is all {first}, upper left all {second}, lower left all {third}. {_accounted(face.panels)}",
    )


def edge_caption(edge: Edge) -> Caption:
    first, second = (printable(name) for name in edge.names)
    return Caption(
        f"Drawing or averaging: {_list(*edge.names)}",
        f"From {first} alone at the left to {second} alone at the right. The share is the chance with which {second} "
        f"is drawn, or its weight in the average; the height is the ε that this costs. {_accounted(edge.lines)}",
    )


def theorems_caption(edge: Edge) -> Caption:
    return Caption(
        f"What each theorem says of averaging {_list(*edge.names)}",
        "The same averages, their ε proved in different ways: the lowest line that is proved is the one that counts. "
        "A dashed line rests on a premise that these runs do not meet, and is no guarantee.",
    )


def _accounted(lines: Iterable[Panel | Line]) -> str:
    """By which theorems averages have the ε they are shown with."""
    theorems = dict.fromkeys(line.theorem for line in lines if line.theorem is not None)
    return f"Averages are accounted for by {' or '.join(theorems)}." if theorems else ""


def _list(*names: str) -> str:
    *most, last = (short(name) for name in names)
    return f"{', '.join(most)} and {last}"
