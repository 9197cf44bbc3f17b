"""The figures of the page, as plotly.js takes them: plain dictionaries, no plotly needed to make them.

Guarantees: what is not finite becomes a gap; names stand where plotly reads text, escaped, never where it reads a
template; the target ε is the first shape, or the last two traces of a panel, so that the page can move it.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpmerge.errors import printable
from dpmerge.planning.analysis import Analysis, Curve, Edge, Face, Line, Panel
from dpmerge.privacy.domain import Array
from dpmerge.report import styles, wording
from dpmerge.report.axes import Axis, edge_axis, face_axis, frontier_axes

Trace = dict[str, Any]

FADED = "rgba(255,255,255,0.72)"
INVISIBLE = "rgba(255,255,255,0)"
FONT = {"family": "system-ui, sans-serif", "size": 13, "color": "#222"}


@dataclass(frozen=True)
class Entry:
    """A line of the legend, which switches one trace on and off."""

    label: str
    style: styles.Style | None
    trace: int


@dataclass(frozen=True)
class Chart:
    """One drawing: what plotly draws, and a legend that the page sets as text, so that it wraps like text."""

    id: str
    data: list[Trace]
    layout: dict[str, Any]
    legend: tuple[Entry, ...] = ()


def frontier_chart(analysis: Analysis, target: float) -> Chart:
    """Utility against ε: a line a curve, a mark a model, and the plan for the target."""
    across, up = frontier_axes(analysis)
    curves, looks = analysis.curves, styles.styles(analysis.curves, analysis)
    unit = f"{literal(analysis.utility.name)} = %{{y:.4g}}"
    data = [
        _line(curve, look, curve.epsilons, curve.utilities, unit, shape="hv")
        for curve, look in zip(curves, looks, strict=True)
    ]
    legend = [
        Entry(wording.label(curve), look, place) for place, (curve, look) in enumerate(zip(curves, looks, strict=True))
    ]
    models = analysis.models
    data.append(
        {
            "type": "scatter",
            "mode": "markers",
            "x": numbers([m.epsilon for m in models]),
            "y": numbers([m.utility for m in models]),
            "text": [escaped(m.name) for m in models],
            "customdata": [wording.epsilon(m.epsilon) for m in models],
            "marker": {"symbol": "diamond", "size": 9, "color": styles.MODELS, "line": {"color": "#fff", "width": 1}},
            "hovertemplate": f"%{{text}}<br>ε = %{{customdata}}<br>{unit}<extra></extra>",
        }
    )
    legend.append(Entry("a model as it was trained", None, len(data) - 1))
    data.append(
        {
            "type": "scatter",
            "mode": "markers",
            "x": [],
            "y": [],
            "marker": {"symbol": "circle-open", "size": 17, "color": styles.TARGET, "line": {"width": 3}},
            "hoverinfo": "skip",
        }
    )
    drawn = layout(
        chart_axis(across, f"ε at δ = {analysis.delta:g}"),
        chart_axis(up, f"{escaped(wording.short(analysis.utility.name, 20))} ({wording.direction(analysis.utility)})"),
    )
    drawn["shapes"] = [_target({"x0": target, "x1": target, "y0": 0, "y1": 1, "yref": "paper"})]
    return Chart("frontier", data, drawn, tuple(legend))


def edge_chart(analysis: Analysis, edge: Edge, lines: Sequence[Line], name: str, target: float) -> Chart:
    """ε against the share of the second model."""
    looks = styles.styles(lines, analysis)
    share = "share %{x:.3g}"
    data = [_line(line, look, edge.weights, line.epsilons, share) for line, look in zip(lines, looks, strict=True)]
    legend = tuple(
        Entry(wording.label(line), look, place) for place, (line, look) in enumerate(zip(lines, looks, strict=True))
    )
    across = {"title": {"text": f"share of {escaped(wording.short(edge.names[1]))}"}, "range": [-0.02, 1.02]}
    drawn = layout(across, chart_axis(edge_axis(edge, lines), f"ε at δ = {analysis.delta:g}"))
    drawn["shapes"] = [_target({"y0": target, "y1": target, "x0": 0, "x1": 1, "xref": "paper"})]
    return Chart(name, data, drawn, legend)


def costs_chart(face: Face, panel: Panel, name: str) -> Chart:
    """ε over the simplex in the colours that all panels share."""
    axis = face_axis(face)
    shares = np.linspace(0, 1, len(panel.epsilons))
    with np.errstate(divide="ignore", invalid="ignore"):
        values = np.log10(panel.epsilons) if axis.log else panel.epsilons
    colours = [
        [place, colour] for place, colour in zip(np.linspace(0, 1, len(styles.COSTS)), styles.COSTS, strict=True)
    ]
    first, second, third = (wording.short(n) for n in face.names)
    costs = {
        "type": "heatmap",
        "z": [numbers(row) for row in values],
        "x": numbers(shares),
        "y": numbers(shares),
        "showscale": False,
        "zmin": axis.ends[0],
        "zmax": axis.ends[1],
        "colorscale": colours,
        "text": [[wording.epsilon(value) for value in row] for row in panel.epsilons],
        "customdata": [[max(0.0, round(1 - a - b, 9)) for a in shares] for b in shares],
        "hovertemplate": (
            f"ε = %{{text}}<br>%{{x:.3g}} {literal(first)}<br>%{{y:.3g}} {literal(second)}"
            f"<br>%{{customdata:.3g}} {literal(third)}<extra></extra>"
        ),
        "hoverongaps": False,
    }
    drawn = layout(
        {"title": {"text": f"share of {escaped(first)}"}, "range": [-0.03, 1.03], "dtick": 0.25},
        {"title": {"text": f"share of {escaped(second)}"}, "range": [-0.03, 1.03], "dtick": 0.25},
    )
    drawn["meta"] = {"log": axis.log}
    ground = {"type": "path", "path": "M 0,0 L 1,0 L 0,1 Z", "fillcolor": styles.NO_NUMBER, "line": {"width": 0}}
    drawn["shapes"] = [{**ground, "layer": "below"}]
    return Chart(name, [costs], drawn)


def panel_chart(face: Face, panel: Panel, name: str, target: float) -> Chart:
    """The colours, a veil over what costs more than the target, and the border between."""
    axis = face_axis(face)
    level = axis.scaled(target) if target > 0 else axis.ends[0]
    chart = costs_chart(face, panel, name)
    (costs,) = chart.data
    heights = costs["z"]
    where = {key: costs[key] for key in ("x", "y", "showscale")}
    veil = {
        "type": "heatmap",
        "z": [[None if z is None else float(z > level) for z in row] for row in heights],
        **where,
        "zmin": 0,
        "zmax": 1,
        "colorscale": [[0, INVISIBLE], [1, FADED]],
        "hoverinfo": "skip",
    }
    border = {
        "type": "contour",
        "z": heights,
        **where,
        "autocontour": False,
        "contours": {"start": level, "end": level, "size": 1, "coloring": "none"},
        "line": {"color": styles.TARGET, "width": 2.5, "smoothing": 0.5},
        "hoverinfo": "skip",
    }
    return Chart(name, [costs, veil, border], chart.layout)


def has_no_number(panel: Panel) -> bool:
    """Whether some point of the triangle has no finite ε."""
    size = len(panel.epsilons)
    inside = np.add.outer(np.arange(size), np.arange(size)) < size
    return bool(np.any(~np.isfinite(panel.epsilons[inside])))


def _line(line: Curve | Line, look: styles.Style, x: Array, y: Array, other: str, shape: str = "linear") -> Trace:
    """`other` is what hovering says besides ε. A frontier is steps ("hv"): what one target reaches, the next does."""
    return {
        "type": "scatter",
        "mode": "lines+markers" if look.marked or len(x) == 1 else "lines",
        "name": escaped(wording.label(line)),
        "x": numbers(x),
        "y": numbers(y),
        "customdata": [wording.epsilon(value) for value in line.epsilons],
        "line": {"color": look.colour, "width": 2.5, "dash": "dash" if look.dashed else "solid", "shape": shape},
        "marker": {"symbol": "circle", "size": 6, "color": look.colour, "maxdisplayed": 12},
        "hovertemplate": f"%{{fullData.name}}<br>ε = %{{customdata}}<br>{other}<extra></extra>",
        "connectgaps": False,
    }


def layout(across: dict[str, Any], up: dict[str, Any]) -> dict[str, Any]:
    """What all charts have in common, around two axes."""
    common = {"gridcolor": styles.GRID, "zeroline": False, "linecolor": "#888", "ticks": "outside", "tickcolor": "#888"}
    return {
        "xaxis": {**common, "automargin": True, **across},
        "yaxis": {**common, "automargin": True, **up},
        "font": FONT,
        "margin": {"l": 56, "r": 16, "t": 24, "b": 48},
        "showlegend": False,
        "hovermode": "closest",
        "hoverlabel": {"bgcolor": "#fff", "font": FONT},
        "paper_bgcolor": "#fff",
        "plot_bgcolor": "#fff",
    }


def chart_axis(axis: Axis, title: str, ticks: Mapping[float, str] | None = None) -> dict[str, Any]:
    """From where to where; a logarithmic axis has plain numbers, or these, as they are written here."""
    drawn: dict[str, Any] = {"title": {"text": title}, "range": list(axis.ends)}
    if axis.log:
        ticks = {tick: f"{tick:g}" for tick in axis.round_ticks(most=9)} if ticks is None else ticks
        drawn |= {"type": "log", "tickvals": list(ticks), "ticktext": list(ticks.values())}
    return drawn


def _target(place: dict[str, Any]) -> dict[str, Any]:
    line = {"color": styles.TARGET, "width": 2, "dash": "dot"}
    font = {"color": styles.TARGET, "size": 12}
    label = {"text": "target ε", "textposition": "end", "textangle": 0, "yanchor": "bottom", "font": font}
    label["xanchor"] = "right" if "xref" in place else "center"
    return {"type": "line", "line": line, "label": label, **place}


def numbers(values: Iterable[float]) -> list[float | None]:
    """Seven digits are more than a screen shows; what is printed is rounded up from the full figure."""
    return [float(f"{value:.7g}") if math.isfinite(value) else None for value in map(float, values)]


def escaped(text: str) -> str:
    """Plotly reads a little HTML in every text."""
    return html.escape(printable(text), quote=False)


def literal(text: str) -> str:
    """Inside a template: a name with %{…} in it would be read as one."""
    return escaped(text).replace("%{", "%\u200b{")
