"""The report as one page: figures that answer to a target ε, the plans behind them, and what to beware of.

Guarantees: one file that loads nothing from anywhere and may load nothing; all that comes from data is text on it.
Refuses: to be made without plotly, whose JavaScript it carries.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from dpmerge.errors import InvalidInput
from dpmerge.planning.analysis import BANNER, Analysis, Face, Recommendation
from dpmerge.report import wording
from dpmerge.report.axes import face_axis
from dpmerge.report.captions import Caption, edge_caption, face_caption, frontier_caption, theorems_caption
from dpmerge.report.charts import Chart, Entry, edge_chart, frontier_chart, has_no_number, panel_chart
from dpmerge.report.files import existing_folder, write_whole
from dpmerge.report.styles import COSTS, MODELS

DEFAULT_TARGET = 1.0


def write_page(analysis: Analysis, file: Path) -> None:
    """Write the page, whole or not at all."""
    existing_folder(file.parent)
    write_whole(file, page(analysis).encode())


def page(analysis: Analysis) -> str:
    """The page as HTML."""
    script = _plotly_script()
    target = default_target(analysis)
    charts: list[Chart] = []
    figures = "\n".join(_figures(analysis, target, charts))
    drawn = {chart.id: {"data": chart.data, "layout": chart.layout} for chart in charts}
    plans = [_plan(plan) for plan in analysis.recommendations]
    return Template(_part("page.html")).substitute(
        title=_text(analysis.title),
        subtitle=_text(analysis.subtitle),
        banner=escape(BANNER),
        joint=_joint(analysis),
        target=f"{target:g}",
        figures=figures,
        recommendations=_recommendations(analysis),
        models=_models(analysis),
        caveats=_caveats(analysis),
        style=_part("page.css"),
        data=_embedded(
            {
                "utility": wording.printable(analysis.utility.name),
                "charts": drawn,
                "plans": plans,
                "smallest": _smallest(analysis),
                "delta": f"{analysis.delta:g}",
            }
        ),
        plotly=script,
        script=_part("page.js"),
    )


def default_target(analysis: Analysis) -> float:
    """What the page opens with: a plan that divides the first heatmap, or else the middle one."""
    plans = analysis.recommendations
    if plans:
        panels = [panel.epsilons.ravel() for face in analysis.faces[:1] for panel in face.panels]
        swept = np.concatenate([np.zeros(0), *panels])
        finite = swept[np.isfinite(swept)]
        within = [plan.target for plan in plans if finite.size and plan.target <= np.median(finite)]
        return within[-1] if within else plans[len(plans) // 2].target
    costs = [model.epsilon for model in analysis.models if math.isfinite(model.epsilon) and model.epsilon > 0]
    return float(f"{np.median(costs):.2g}") if costs else DEFAULT_TARGET


def _plotly_script() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise InvalidInput(
            "report", "plotly", 'plotly installed: pip install "dpmerge[report]"', found="no plotly"
        ) from None
    return str(get_plotlyjs())


def _part(name: str) -> str:
    return resources.files("dpmerge.report").joinpath(name).read_text(encoding="utf-8")


def _text(text: str) -> str:
    return escape(wording.printable(text))


def _embedded(data: Any) -> str:
    """JSON that cannot end the script it stands in."""
    plain = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return plain.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _plan(plan: Recommendation) -> dict[str, Any]:
    """Figures as numbers to compare and draw, and in words to show."""
    return {
        "target": plan.target,
        "targetShown": f"{plan.target:g}",
        "epsilon": plan.epsilon if math.isfinite(plan.epsilon) else None,
        "epsilonShown": wording.epsilon(plan.epsilon),
        "utility": plan.utility if math.isfinite(plan.utility) else None,
        "utilityShown": wording.utility(plan.utility),
        "theorem": wording.accounted(plan),
        "final": plan.final,
        "outcomes": [
            {"probability": wording.percent(probability), "recipe": wording.printable(recipe)}
            for probability, recipe in plan.outcomes
        ],
    }


def _smallest(analysis: Analysis) -> str | None:
    costs = [plan.epsilon for plan in analysis.recommendations if math.isfinite(plan.epsilon)]
    return wording.epsilon(min(costs)) if costs else None


def _joint(analysis: Analysis) -> str:
    if not math.isfinite(analysis.joint_epsilon):
        return "There is no figure for releasing everything at once."
    cost = wording.epsilon(analysis.joint_epsilon)
    return f"Releasing everything at once, whatever is done with it, costs ε = {cost}."


def _figures(analysis: Analysis, target: float, charts: list[Chart]) -> Iterable[str]:
    """The sections, in order; what they need drawn goes to `charts`."""
    charts.append(frontier_chart(analysis, target))
    yield _section(frontier_caption(analysis), _drawing(charts[-1]))
    for number, face in enumerate(analysis.faces):
        panels = [panel_chart(face, panel, f"face-{number}-{place}", target) for place, panel in enumerate(face.panels)]
        charts += panels
        yield _section(face_caption(face), _panels(face, panels, f"face-{number}"))
    for number, edge in enumerate(analysis.edges):
        for caption, lines, name in (
            (edge_caption(edge), edge.lines, f"edge-{number}"),
            (theorems_caption(edge), edge.theorems, f"theorems-{number}"),
        ):
            if lines:
                charts.append(edge_chart(analysis, edge, lines, name, target))
                yield _section(caption, _drawing(charts[-1]))


def _section(caption: Caption, drawing: str) -> str:
    return f"<section>\n<h2>{escape(caption.heading)}</h2>\n<p>{escape(caption.words)}</p>\n{drawing}\n</section>"


def _drawing(chart: Chart) -> str:
    return f'<div class="chart" id="{chart.id}"></div>\n{_legend(chart)}'


def _legend(chart: Chart) -> str:
    entries = "".join(_entry(entry) for entry in chart.legend)
    return f'<ul class="legend" data-chart="{chart.id}">{entries}</ul>'


def _entry(entry: Entry) -> str:
    if entry.style is None:
        swatch = f'<path d="M15 2 l5 5 l-5 5 l-5 -5 z" fill="{MODELS}"/>'
    else:
        dashes = ' stroke-dasharray="7 4"' if entry.style.dashed else ""
        swatch = f'<path d="M0 7 H30" stroke="{entry.style.colour}" stroke-width="3"{dashes}/>'
        if entry.style.marked:
            swatch += f'<circle cx="15" cy="7" r="4.5" fill="{entry.style.colour}"/>'
    icon = f'<svg width="30" height="14" aria-hidden="true">{swatch}</svg>'
    return (
        f'<li><button type="button" aria-pressed="true" data-trace="{entry.trace}">'
        f"{icon}<span>{escape(entry.label)}</span></button></li>"
    )


def _panels(face: Face, charts: Sequence[Chart], name: str) -> str:
    """Small multiples: as many side by side as fit, one scale of colours for all."""
    axis = face_axis(face)
    ticks = "".join(f"<span>{wording.epsilon(value)}</span>" for value in axis.ticks(5))
    spacing = "equal steps are equal ratios; " if axis.log else ""
    grey = "grey has no finite ε; " if any(has_no_number(panel) for panel in face.panels) else ""
    panels = "".join(
        f'<figure><figcaption>{escape(wording.label(panel))}</figcaption><div class="panel" id="{chart.id}"></div>'
        f'<p class="share" data-panel="{chart.id}"></p></figure>'
        for panel, chart in zip(face.panels, charts, strict=True)
    )
    return (
        f'<div class="scale"><div class="bar" style="background:linear-gradient(to right,{",".join(COSTS)})"></div>'
        f'<div class="ticks">{ticks}</div><p>ε ({spacing}{grey}the red line and the faded part show where ε is '
        f'at, and above, the target)</p></div>\n<div class="panels" id="{name}">{panels}</div>'
    )


def _recommendations(analysis: Analysis) -> str:
    if not analysis.recommendations:
        return "<p>No plan was found.</p>"
    rows = [
        (
            f"{plan.target:g}",
            wording.epsilon(plan.epsilon),
            wording.utility(plan.utility),
            wording.released(plan),
            wording.accounted(plan),
        )
        for plan in analysis.recommendations
    ]
    return _table(("target ε", "achieved ε", wording.printable(analysis.utility.name), "released", "theorem"), rows)


def _models(analysis: Analysis) -> str:
    rows = [
        (wording.printable(model.name), wording.epsilon(model.epsilon), wording.utility(model.utility))
        for model in analysis.models
    ]
    return _table(("model", "ε", wording.printable(analysis.utility.name)), rows)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Each cell repeats its heading: a phone sets a row as a list."""
    heads = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    body = "".join(
        "<tr>"
        + "".join(
            f'<td data-head="{escape(name)}">{escape(cell).replace(chr(10), "<br>")}</td>'
            for name, cell in zip(head, row, strict=True)
        )
        + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"


def _caveats(analysis: Analysis) -> str:
    if not analysis.caveats:
        return "<p>None were found.</p>"
    return "<ul>" + "".join(f"<li>{_text(caveat)}</li>" for caveat in analysis.caveats) + "</ul>"
