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

from dpmerge.errors import InvalidInput, printable
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
    target = default_target(analysis)
    charts: list[Chart] = []
    figures = "\n".join(_figures(analysis, target, charts))
    drawn = {chart.id: {"data": chart.data, "layout": chart.layout} for chart in charts}
    plans = [_plan(plan) for plan in analysis.recommendations]
    return filled(
        "page.html",
        "page.js",
        {
            "utility": printable(analysis.utility.name),
            "charts": drawn,
            "plans": plans,
            "smallest": _smallest(analysis),
            "delta": f"{analysis.delta:g}",
        },
        title=as_text(analysis.title),
        subtitle=as_text(analysis.subtitle),
        banner=escape(BANNER),
        joint=_joint(analysis),
        target=f"{target:g}",
        figures=figures,
        recommendations=_recommendations(analysis),
        models=_models(analysis),
        caveats=_caveats(analysis),
    )


def filled(template: str, script: str, data: Any, **parts: str) -> str:
    """A page of HTML with all that it needs inside: our style and script, plotly.js, the data, and these parts."""
    return Template(_part(template)).substitute(
        parts, style=_part("page.css"), data=_embedded(data), plotly=_plotly_script(), script=_part(script)
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


def as_text(text: str) -> str:
    """Anything, as HTML that shows it."""
    return escape(printable(text))


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
            {"probability": wording.percent(probability), "recipe": printable(recipe)}
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
    yield section(frontier_caption(analysis), _drawing(charts[-1]))
    for number, face in enumerate(analysis.faces):
        panels = [panel_chart(face, panel, f"face-{number}-{place}", target) for place, panel in enumerate(face.panels)]
        charts += panels
        yield section(face_caption(face), _panels(face, panels, f"face-{number}"))
    for number, edge in enumerate(analysis.edges):
        for caption, lines, name in (
            (edge_caption(edge), edge.lines, f"edge-{number}"),
            (theorems_caption(edge), edge.theorems, f"theorems-{number}"),
        ):
            if lines:
                charts.append(edge_chart(analysis, edge, lines, name, target))
                yield section(caption, _drawing(charts[-1]))


def section(caption: Caption, content: str) -> str:
    """A heading, words and what they are about, which is HTML."""
    return f"<section>\n<h2>{escape(caption.heading)}</h2>\n<p>{escape(caption.words)}</p>\n{content}\n</section>"


def _drawing(chart: Chart) -> str:
    return drawing(chart.id, (legend_button(entry.label, _swatch(entry), f"{entry.trace}") for entry in chart.legend))


def drawing(name: str, buttons: Iterable[str]) -> str:
    """Where the chart of this name is drawn, and below it its legend."""
    return f'<div class="chart" id="{name}"></div>\n<ul class="legend" data-chart="{name}">{"".join(buttons)}</ul>'


def legend_button(label: str, swatch: str, traces: str) -> str:
    """What switches traces on and off; the swatch is SVG, 30 wide and 14 high."""
    icon = f'<svg width="30" height="14" aria-hidden="true">{swatch}</svg>'
    return (
        f'<li><button type="button" aria-pressed="true" data-trace="{traces}">'
        f"{icon}<span>{escape(label)}</span></button></li>"
    )


def _swatch(entry: Entry) -> str:
    if entry.style is None:
        return mark_swatch("diamonds", MODELS)
    marks = mark_swatch("dots", entry.style.colour) if entry.style.marked else ""
    return line_swatch(entry.style.colour, dashed=entry.style.dashed) + marks


def line_swatch(colour: str, *, dashed: bool) -> str:
    """A line, as a legend shows it."""
    dashes = ' stroke-dasharray="7 4"' if dashed else ""
    return f'<path d="M0 7 H30" stroke="{colour}" stroke-width="3"{dashes}/>'


def mark_swatch(marks: str, colour: str) -> str:
    """A mark, as a legend shows it."""
    return {
        "dots": f'<circle cx="15" cy="7" r="4.5" fill="{colour}"/>',
        "diamonds": f'<path d="M15 2 l5 5 l-5 5 l-5 -5 z" fill="{colour}"/>',
        "squares": f'<path d="M11 3 h8 v8 h-8 z" fill="{colour}"/>',
    }[marks]


def _panels(face: Face, charts: Sequence[Chart], name: str) -> str:
    reading = "the red line and the faded part show where ε is at, and above, the target"
    return panel_grid(face, charts, name, reading, '<p class="share" data-panel="{}"></p>')


def panel_grid(face: Face, charts: Sequence[Chart], name: str, reading: str = "", below: str = "") -> str:
    """Small multiples: as many side by side as fit, one scale of colours for all.

    `reading` is said of the scale besides; `below` is HTML under each panel, its {} the panel's id.
    """
    axis = face_axis(face)
    ticks = "".join(f"<span>{wording.epsilon(value)}</span>" for value in axis.ticks(5))
    spacing = "equal steps are equal ratios" if axis.log else ""
    grey = "grey has no finite ε" if any(has_no_number(panel) for panel in face.panels) else ""
    remarks = "; ".join(remark for remark in (spacing, grey, reading) if remark)
    drawn = "".join(
        f'<figure><figcaption>{escape(wording.label(panel))}</figcaption><div class="panel" id="{chart.id}"></div>'
        f"{below.format(chart.id)}</figure>"
        for panel, chart in zip(face.panels, charts, strict=True)
    )
    return (
        f'<div class="scale"><div class="bar" style="background:linear-gradient(to right,{",".join(COSTS)})"></div>'
        f'<div class="ticks">{ticks}</div><p>{f"ε ({remarks})" if remarks else "ε"}</p></div>\n'
        f'<div class="panels" id="{name}">{drawn}</div>'
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
    return table(("target ε", "achieved ε", printable(analysis.utility.name), "released", "theorem"), rows)


def _models(analysis: Analysis) -> str:
    rows = [
        (printable(model.name), wording.epsilon(model.epsilon), wording.utility(model.utility))
        for model in analysis.models
    ]
    return table(("model", "ε", printable(analysis.utility.name)), rows)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
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
    return "<ul>" + "".join(f"<li>{as_text(caveat)}</li>" for caveat in analysis.caveats) + "</ul>"
