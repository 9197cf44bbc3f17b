"""Heatmaps for a page, as plotly.js takes them: colours, lines of equal ε with their numbers, corners with their names.

Guarantees: those of `plot_charts`; every ε is rounded up; the page spreads `costs` over the first three traces (the
colours, a veil over what costs more than the target, the border between), so that each figure is sent once.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dpmerge.accounting.rounding import up
from dpmerge.planning.analysis import Panel
from dpmerge.report import styles, wording
from dpmerge.report.axes import Axis
from dpmerge.report.iso_lines import IsoLine, iso_lines
from dpmerge.report.plot_charts import FONT, Chart, Trace, escaped, layout, literal
from dpmerge.report.plots import Heatmaps

FADED = "rgba(255,255,255,0.72)"
INVISIBLE = "rgba(255,255,255,0)"
LABEL = {"showarrow": False, "font": {**FONT, "size": 11}}
CORNER = 20
"""Characters of a name at a corner: two stand side by side on a phone."""


def panel_chart(drawing: Heatmaps, panel: Panel, axis: Axis, name: str, target: float | None = None) -> Chart:
    """ε over the simplex, in the colours of its row.

    Args:
        drawing: The three models, and all panels.
        panel: The one to be drawn.
        axis: The scale of its row.
        name: The id of the element it is drawn in.
        target: An ε; there is a veil over what costs more, and a border between.

    Returns:
        What plotly draws; its layout says whether the colours are of the logarithm of ε.
    """
    size = len(panel.epsilons)
    shares = [float(f"{share:.6g}") for share in np.linspace(0, 1, size)]
    first, second, third = (wording.short(model) for model in drawing.face.names)
    where: Trace = {"x": shares, "y": shares, "z": [], "showscale": False}
    costs: Trace = {
        "type": "heatmap",
        **where,
        "zmin": axis.ends[0],
        "zmax": axis.ends[1],
        "colorscale": [[n / (len(styles.COSTS) - 1), colour] for n, colour in enumerate(styles.COSTS)],
        "hovertemplate": (
            f"ε = %{{text}}<br>%{{x:.3g}} {literal(first)}<br>%{{y:.3g}} {literal(second)}"
            f"<br>%{{customdata:.3g}} {literal(third)}<extra></extra>"
        ),
        "hoverongaps": False,
    }
    found = iso_lines(panel, axis)
    drawn = layout(*({"range": [-0.03, 1.03], "dtick": 0.25} for _ in "xy"))
    drawn["meta"] = {"log": axis.log}
    drawn["margin"] = {"l": 40, "r": 16, "t": 48, "b": 76}
    ground = {"type": "path", "path": "M 0,0 L 1,0 L 0,1 Z", "fillcolor": styles.NO_NUMBER, "line": {"width": 0}}
    drawn["shapes"] = [{**ground, "layer": "below"}]
    drawn["annotations"] = [*_corners(drawing), *(_number(line) for line in found if line.place)]
    target_traces = [] if target is None else [_veil(where), _border(where, axis.scaled(target) if target > 0 else 0.0)]
    rows = tuple(" ".join(_cost(value) for value in panel.epsilons[i, : size - i]) for i in range(size))
    return Chart(name, [costs, *target_traces, *(_line(line, axis) for line in found)], drawn, costs=rows)


def _cost(value: float) -> str:
    """One figure, rounded up to six digits; a dash where there is none."""
    if math.isnan(value):
        return "–"
    return "∞" if math.isinf(value) else f"{up(float(value)):.6g}"


def _veil(where: Trace) -> Trace:
    colours = [[0, INVISIBLE], [1, FADED]]
    return {"type": "heatmap", **where, "zmin": 0, "zmax": 1, "colorscale": colours, "hoverinfo": "skip"}


def _border(where: Trace, level: float) -> Trace:
    return {
        "type": "contour",
        **where,
        "autocontour": False,
        "contours": {"start": level, "end": level, "size": 1, "coloring": "none"},
        "line": {"color": styles.TARGET, "width": 2.5, "smoothing": 0.5},
        "hoverinfo": "skip",
    }


def _line(line: IsoLine, axis: Axis) -> Trace:
    """Dark where the colours are light, and the other way round; the page has another colour for it under the veil."""
    colour = styles.on_cost(axis.place(line.level))
    return {
        "type": "scatter",
        "mode": "lines",
        "x": [None if math.isnan(x) else round(float(x), 4) for x in line.x],
        "y": [None if math.isnan(y) else round(float(y), 4) for y in line.y],
        "line": {"color": colour, "width": 1.2},
        "meta": {"level": line.level, "colour": colour},
        "hoverinfo": "skip",
    }


def _number(line: IsoLine) -> dict[str, Any]:
    assert line.place is not None
    x, y = line.place
    return {**LABEL, "x": x, "y": y, "text": line.label, "bgcolor": "rgba(255,255,255,0.85)", "borderpad": 1}


def _corners(drawing: Heatmaps) -> list[dict[str, Any]]:
    """The first model at the lower right, the second on top, the third at the lower left."""
    places: tuple[dict[str, Any], ...] = (
        {"x": 1, "y": 0, "xanchor": "right", "yanchor": "top", "yshift": -36, "align": "right"},
        {"x": 0, "y": 1, "xanchor": "left", "yanchor": "bottom", "yshift": 8, "align": "left"},
        {"x": 0, "y": 0, "xanchor": "left", "yanchor": "top", "yshift": -36, "align": "left"},
    )
    return [
        {**LABEL, **place, "text": "<br>".join(map(escaped, filter(None, (wording.short(name, CORNER), known))))}
        for name, known, place in zip(drawing.face.names, drawing.corners, places, strict=True)
    ]
