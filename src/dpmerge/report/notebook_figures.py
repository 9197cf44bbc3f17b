"""Plans and analyses as figures of plotly, drawn from the description that pages and pictures are drawn from.

Guarantees: those of `plot_charts`; the banner of an analysis stands above its figure.
Refuses: to be made without plotly, in one line that says what to install.
"""

from __future__ import annotations

from functools import singledispatch
from typing import Any

import numpy as np

from dpmerge.errors import InvalidInputError
from dpmerge.extras import needs_extra
from dpmerge.planning.analysis import Analysis
from dpmerge.planning.plan import Plan
from dpmerge.report import wording
from dpmerge.report.analysis_plots import frontier_plot
from dpmerge.report.plot_charts import FONT, escaped, plot_chart
from dpmerge.report.plot_view import lines
from dpmerge.report.plots import COLOURS, Plot, Series, values
from dpmerge.report.styles import TARGET, pale

MOST_CANDIDATES = 6
"""Drawn beside the plan: the likeliest."""

SMALLEST = 1e-12
"""A δ below it is no longer drawn."""


def figure_of(subject: object) -> Any:
    """A figure of what `dpmerge.notebook.figure` says; arguments and errors as there."""
    plot = _plot(subject)
    with needs_extra("notebook", by="a figure"):
        from plotly.graph_objects import Figure
    chart = plot_chart(plot, plot.name)
    heading = "<br>".join(f"<b>{escaped(line)}</b>" for line in lines(plot.heading, 70))
    banner = f"<br><sup>{escaped(plot.banner)}</sup>" if plot.banner else ""
    drawn = Figure(data=chart.data, layout=chart.layout)
    drawn.update_layout(
        title={"text": heading + banner, "font": {**FONT, "size": 15}},
        showlegend=True,
        legend={"orientation": "h", "yref": "container", "y": 0, "yanchor": "bottom"},
        margin={"t": 80, "b": 120},
        height=520,
    )
    named = {each.traces[-1] for each in chart.legend}
    for place, trace in enumerate(drawn.data):
        trace.showlegend = place in named
    return drawn


@singledispatch
def _plot(subject: object) -> Plot:
    raise InvalidInputError("subject", subject, "a plan or an analysis", found=type(subject).__name__)


@_plot.register
def _(subject: Analysis) -> Plot:
    return frontier_plot(subject)


@_plot.register
def _(subject: Plan) -> Plot:
    """δ at each ε: what it promises, beside what its candidates would by themselves."""
    target = subject.target
    epsilons = np.linspace(0, 2 * target.epsilon, 81)
    cost = wording.epsilon(subject.guarantee.epsilon)
    called = "the plan" if len(subject.candidates) == 1 else "the plan, before the draw"
    series = [_profile(called, subject.profile.delta, epsilons, COLOURS["mix"], dashed=not subject.proved)]
    if len(subject.candidates) > 1:
        likeliest = sorted(zip(subject.probabilities, subject.candidates, strict=True), key=lambda each: -each[0])
        for probability, candidate in likeliest[:MOST_CANDIDATES]:
            name = f"{probability:.4g}: {candidate.recipe}"
            colour = pale(COLOURS["select" if candidate.recipe.is_one_checkpoint else "combine"])
            series.append(
                _profile(name, candidate.profile.delta, epsilons, colour, dashed=not candidate.proved, thin=True)
            )
    at = {"x": values([target.epsilon]), "y": values([target.delta]), "points": ("the target",)}
    series.append(Series(name="the target", **at, colour=TARGET, marks="diamonds", line=False))  # type: ignore[arg-type]
    return Plot(
        name="plan",
        heading=f"What the release promises: ε = {cost} at δ = {target.delta:g}, and elsewhere",
        words="Each line says which δ a release meets at each ε; lower and further left is more private.",
        across="ε (smaller is more private)",
        up="δ (smaller is more private)",
        series=tuple(series),
        log_y=True,
        epsilon="x",
    )


def _profile(name: str, delta: Any, epsilons: Any, colour: str, *, dashed: bool, thin: bool = False) -> Series:
    found = np.array([float(delta(float(epsilon))) for epsilon in epsilons])
    shown = np.where(found >= SMALLEST, found, np.nan)
    return Series(name=name, x=epsilons, y=shown, colour=colour, dashed=dashed, thin=thin)
