"""A feasible set as a figure: a line of two models, a triangle of three, members one beside the other of any number.

Guarantees: what does not meet the target has no colour; the banner of a set that is not proved stands on the figure.
Refuses: plotly figures without plotly, pictures without matplotlib.
"""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

import numpy as np

from dpmerge.errors import printable
from dpmerge.extras import needs_extra
from dpmerge.planning.analysis import Face, Panel
from dpmerge.planning.feasible_set import FeasibleSet
from dpmerge.report import wording
from dpmerge.report.axes import Axis
from dpmerge.report.feasible_table import singles_and_sample
from dpmerge.report.heatmap_rows import heatmap_rows
from dpmerge.report.panel_charts import panel_chart
from dpmerge.report.plot_charts import Chart, plot_chart
from dpmerge.report.plot_pictures import write_plot_pictures
from dpmerge.report.plots import COLOURS, Heatmaps, Plot, Series
from dpmerge.report.styles import TARGET
from dpmerge.report.trade_off import require_png

MEMBERS = 200
"""Drawn, where a set is too wide for a line or a triangle."""


def feasible_drawing(found: FeasibleSet, *, grid: float | None = None, name: str = "feasible") -> Plot | Heatmaps:
    """The set as it is drawn on a page, in a picture or in a terminal.

    Args:
        found: What `feasible_set` returns.
        grid: Between points, of two or three models; 0.01 unless given.
        name: Of the file it is drawn in.

    Returns:
        A plot, or the heatmap of a triangle.
    """
    if len(found.models) == 2:
        return _line(found, 0.01 if grid is None else grid, name)
    if len(found.models) == 3:
        return _triangle(found, 0.01 if grid is None else grid, name)
    return _members(found, name)


def plotly_figure(found: FeasibleSet, *, grid: float | None = None) -> Any:
    """The set as a figure of plotly.

    Args:
        found: What `feasible_set` returns.
        grid: As for `feasible_drawing`.

    Returns:
        A `plotly.graph_objects.Figure`.

    Raises:
        MissingExtraError: plotly is not installed.
    """
    with needs_extra("notebook", by="a plot"):
        from plotly.graph_objects import Figure
    drawing = feasible_drawing(found, grid=grid)
    chart = _chart(drawing, found)
    words = [html.escape(printable(text), quote=False) for text in (drawing.banner, drawing.heading) if text]
    title = {"text": "<br>".join(words), "font": {"color": TARGET} if drawing.banner else {}}
    margin = {**chart.layout["margin"], "t": 40 + 24 * len(words)}
    return Figure(data=chart.data, layout={**chart.layout, "title": title, "margin": margin})


def write_feasible_picture(found: FeasibleSet, file: Path, *, grid: float | None = None) -> Path:
    """The set as a PNG file."""
    require_png(file)
    (written,) = write_plot_pictures([feasible_drawing(found, grid=grid, name=file.stem)], file.parent)
    return written


def _chart(drawing: Plot | Heatmaps, found: FeasibleSet) -> Chart:
    if isinstance(drawing, Plot):
        return plot_chart(drawing, drawing.name, found.target.epsilon if drawing.epsilon else None)
    (row,) = heatmap_rows(drawing.face)
    (panel,) = row.panels
    axis = row.axis or Axis.of([panel.epsilons[np.isfinite(panel.epsilons)]])  # one colour is still a region
    return panel_chart(drawing, panel, axis, drawing.name)


def _line(found: FeasibleSet, grid: float, name: str) -> Plot:
    rows = found.grid(grid)
    costs = found.epsilons(rows)
    inside = costs <= found.target.epsilon
    first, second = (wording.short(each) for each in found.names)
    sides = (
        ("meets the target", np.where(inside, costs, np.nan), COLOURS[found.method]),
        ("costs more", np.where(inside, np.nan, costs), COLOURS["models"]),
    )
    series = tuple(
        Series(name=side, x=rows[:, 1], y=shown, colour=colour, marks="dots", dashed=not found.proved)
        for side, shown, colour in sides
    )
    return Plot(
        name=name,
        heading=heading(found),
        words=f"From {first} alone at the left to {second} alone at the right; the height is the ε that this costs.",
        across=f"share of {second} (rest: {first})",
        up=f"ε at δ = {found.target.delta:g}",
        series=series,
        x_range=(-0.02, 1.02),
        epsilon="y",
        banner=found.banner,
    )


def _triangle(found: FeasibleSet, grid: float, name: str) -> Heatmaps:
    rows = found.grid(grid)
    parts = round(1 / grid)
    costs = found.epsilons(rows)
    costs = np.where(costs <= found.target.epsilon, costs, np.nan)
    panel = np.full((parts + 1, parts + 1), np.nan)
    place = np.rint(rows * parts).astype(int)
    panel[place[:, 1], place[:, 0]] = costs
    first, second, third = found.names
    theorem = None if found.method == "select" else found.theorem
    only = Panel(_by(found), found.method, found.accounting, theorem, found.proved, panel)
    return Heatmaps(
        name=name,
        heading=heading(found),
        words="What has a colour meets the target: the ε that these shares of three models cost.",
        face=Face((first, second, third), parts, (only,)),
        banner=found.banner,
    )


def _members(found: FeasibleSet, name: str) -> Plot:
    rows = singles_and_sample(found, MEMBERS)
    rows = rows[found.contains(rows)]
    corners = found.vertices if found.method == "select" else rows
    places = np.arange(1.0, len(found.models) + 1)
    most = "the most it may have" if found.method == "select" else "the most of these"
    shown = (
        ("its share in a member", np.tile(places, len(rows)), rows.ravel(), COLOURS[found.method], "dots"),
        (most, places, corners.max(axis=0), COLOURS["models"], "squares"),
    )
    series = tuple(
        Series(name=label, x=x, y=y, colour=colour, marks=marks, line=False, dashed=not found.proved)  # type: ignore[arg-type]
        for label, x, y, colour, marks in shown
    )
    return Plot(
        name=name,
        heading=heading(found),
        words="A column a model: what share it has in members of the set drawn at random, and the most it may have.",
        across="model: " + ", ".join(f"{place} {wording.short(each)}" for place, each in enumerate(found.names, 1)),
        up="share",
        series=series,
        banner=found.banner,
    )


def heading(found: FeasibleSet) -> str:
    """What the set is of, in words."""
    what = "Probabilities" if found.method == "select" else "Weights"
    return f"{what} that meet ε = {found.target.epsilon:g} at δ = {found.target.delta:g}, by {_by(found)}"


def _by(found: FeasibleSet) -> str:
    converted = f" ({found.conversion} conversion)" if found.accounting == "rdp" else ""
    theorem = f", {found.theorem}" if found.method == "combine" else ""
    return f"{found.accounting.upper()}{converted}{theorem}"
