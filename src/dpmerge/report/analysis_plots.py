"""The figures of an analysis: its frontier, heatmaps over three models, sweeps between two, each with its words.

Guarantees: every figure bears the banner of the analysis; the label of what is not proved says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from dpmerge.accounting.validation import Array
from dpmerge.errors import printable
from dpmerge.planning.analysis import Analysis, Curve, Edge, Face, Line, Panel
from dpmerge.report import wording
from dpmerge.report.axes import Axis
from dpmerge.report.jumps import with_jumps
from dpmerge.report.plots import Drawing, Heatmaps, Plot, Series, values
from dpmerge.report.styles import MODELS, styles

DOTTED = "A dotted line is by RDP, which overstates ε; the others are exact (PLD)."


def analysis_plots(analysis: Analysis) -> list[Drawing]:
    """All figures of an analysis, in the order of the page.

    Args:
        analysis: What `dpmerge.planning.frontier.analyse` found.

    Returns:
        `frontier`; `face-N` for each three models swept; `edge-N` and `theorems-N` for each two.
    """
    drawings: list[Drawing] = [frontier_plot(analysis)]
    drawings += [_heatmaps(analysis, face, f"face-{n}") for n, face in enumerate(analysis.faces) if face.panels]
    for number, edge in enumerate(analysis.edges):
        drawings += _edge_plots(analysis, edge, number)
    return drawings


def frontier_plot(analysis: Analysis) -> Plot:
    """Utility against ε: steps for each curve, a mark for each model.

    Args:
        analysis: What `dpmerge.planning.frontier.analyse` found.

    Returns:
        A plot whose last series are the models as they were trained.
    """
    curves, utility, name = analysis.curves, analysis.utility, printable(analysis.utility.name)
    how = "measured" if utility.measured else "predicted from the records of training, not measured"
    series = [
        *_series(analysis, curves, [curve.epsilons for curve in curves], [curve.utilities for curve in curves]),
        Series(
            name="a model as it was trained",
            x=values([model.epsilon for model in analysis.models]),
            y=values([model.utility for model in analysis.models]),
            points=tuple(model.name for model in analysis.models),
            colour=MODELS,
            marks="diamonds",
            line=False,
            letter="◆",
        ),
    ]
    shown = [np.isfinite(each.x) & np.isfinite(each.y) for each in series]
    # A loss that goes towards zero is told apart by its ratios.
    wide = math.inf if utility.higher_is_better else 1.0
    return Plot(
        name="frontier",
        heading=f"Best {name} at each privacy level",
        words=(
            "ε bounds what a release can reveal about any one person or record: smaller is more private. "
            f"Each line shows the best {name} ({how}; {wording.direction(utility)}) that one way of merging reaches "
            f"within a given ε; a diamond is a model as it was trained. {DOTTED}"
        ),
        across=f"ε at δ = {analysis.delta:g} (smaller is more private)",
        up=f"{wording.short(utility.name)} ({wording.direction(utility)})",
        series=tuple(series),
        log_x=Axis.of(each.x[seen] for each, seen in zip(series, shown, strict=True)).log,
        log_y=Axis.of((each.y[seen] for each, seen in zip(series, shown, strict=True)), wide=wide).log,
        epsilon="x",
        banner=analysis.banner,
    )


def _heatmaps(analysis: Analysis, face: Face, name: str) -> Heatmaps:
    first, second, third = (printable(model) for model in face.names)
    known = {model.name: printable(model.settings) for model in analysis.models}
    return Heatmaps(
        name=name,
        heading=f"Sharing among three models: {_list(face.names)}",
        words=(
            "Each point of a triangle divides the whole among three models: as the chances of drawing one of them, or "
            "as their weights in an average. Colour is the ε this costs; along a line with a number it is that. "
            f"The corners are the models alone: {first} at one end of the base, {third} at the other, {second} on top. "
            f"Each row of triangles has a scale of its own. {_accounted(face.panels)}"
        ),
        face=face,
        corners=tuple(known.get(model, "") for model in face.names),  # type: ignore[arg-type]
        banner=analysis.banner,
    )


def _edge_plots(analysis: Analysis, edge: Edge, number: int) -> Iterator[Plot]:
    """Selection beside combination, and what each theorem says of the combination, if there are lines for it."""
    first, second = (printable(model) for model in edge.names)
    for name, lines, heading, words in (
        (
            "edge",
            edge.lines,
            f"Drawing or averaging: {_list(edge.names)}",
            f"From {first} alone at the left to {second} alone at the right. The share is the chance with which "
            f"{second} is drawn, or its weight in the average; the height is the ε that this costs. "
            f"An open circle is where a line jumps: there a model drops out. {DOTTED} {_accounted(edge.lines)}",
        ),
        (
            "theorems",
            edge.theorems,
            f"What each theorem says of averaging {_list(edge.names)}",
            "The same averages, their ε proved in different ways: the lowest line that is proved is the one that "
            "counts. A dashed line rests on a premise that these runs do not meet, and is no guarantee.",
        ),
    ):
        if lines:
            broken = [with_jumps(edge.weights, line.epsilons) for line in lines]
            yield Plot(
                name=f"{name}-{number}",
                heading=heading,
                words=words,
                across=f"share of {wording.short(edge.names[1])} (rest: {wording.short(edge.names[0])})",
                up=f"ε at δ = {analysis.delta:g}",
                series=tuple(_series(analysis, lines, *zip(*broken, strict=True))),
                x_range=(-0.02, 1.02),
                log_y=Axis.of(line.epsilons for line in lines).log,
                epsilon="y",
                banner=analysis.banner,
            )


def _series(
    analysis: Analysis, lines: Sequence[Curve | Line], xs: Iterable[Array], ys: Iterable[Array]
) -> list[Series]:
    return [
        Series(
            name=line.name,
            x=x,
            y=y,
            colour=style.colour,
            dashed=style.dashed,
            dotted=style.dotted,
            steps=isinstance(line, Curve),
        )
        for line, style, x, y in zip(lines, styles(lines, analysis), xs, ys, strict=True)
    ]


def _accounted(lines: Iterable[Panel | Line]) -> str:
    """By which theorems averages have the ε they are shown with."""
    theorems = dict.fromkeys(line.theorem for line in lines if line.theorem is not None)
    return f"Averages are accounted for by {' or '.join(theorems)}." if theorems else ""


def _list(names: Iterable[str]) -> str:
    *most, last = map(wording.short, names)
    return f"{', '.join(most)} and {last}"
