"""What pages are made of: the frame, a section for each figure, tables.

Guarantees: one file that loads nothing from anywhere and may load nothing; all that comes from data is text on it.
Refuses: tables with rows of different lengths.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources
from string import Template
from typing import Any

import numpy as np

from dpmerge.errors import InvalidInputError, printable
from dpmerge.planning.analysis import Panel
from dpmerge.report import wording
from dpmerge.report.axes import Axis
from dpmerge.report.heatmap_rows import heatmap_rows, listed
from dpmerge.report.panel_charts import panel_chart
from dpmerge.report.plot_charts import Chart, plot_chart
from dpmerge.report.plots import Drawing, Heatmaps, Panels, Series, Table, lettered
from dpmerge.report.styles import COSTS

_SWATCHES = {
    "none": "",
    "dots": '<circle cx="15" cy="7" r="4.5" fill="{}"/>',
    "diamonds": '<path d="M15 2 l5 5 l-5 5 l-5 -5 z" fill="{}"/>',
    "squares": '<path d="M11 3 h8 v8 h-8 z" fill="{}"/>',
}


def framed(
    title: str,
    subtitle: str,
    introduction: Iterable[str],
    main: str,
    charts: Sequence[Chart],
    *,
    banner: str = "",
    script: str = "drawCharts();",
    **data: Any,
) -> str:
    """A page of HTML with all that it needs inside: our style and script, plotly.js and the charts.

    Args:
        title: Its first heading.
        subtitle: What stands below that.
        introduction: One paragraph a string.
        main: Sections, as HTML.
        charts: What is drawn in them.
        banner: What stands above all else.
        script: JavaScript that calls `drawCharts` of charts.js.
        data: What the script finds in `report`, besides `charts`.

    Returns:
        The page.

    """
    drawn = {chart.id: {"data": chart.data, "layout": chart.layout, "costs": chart.costs} for chart in charts}
    return Template(part("page.html")).substitute(
        title=as_text(title),
        subtitle=as_text(subtitle),
        introduction="\n".join(f"<p>{as_text(paragraph)}</p>" for paragraph in introduction),
        banner=f'<p class="banner" role="note">{as_text(banner)}</p>' if banner else "",
        main=main,
        style=part("page.css"),
        data=_embedded({"charts": drawn, **data}),
        plotly=_plotly_script(),
        script=part("charts.js") + script,
    )


def figure(drawing: Drawing, name: str, target: float | None = None) -> tuple[str, list[Chart]]:
    """The section of a figure, as HTML, and what is drawn in it.

    Args:
        drawing: The figure.
        name: The id of its element.
        target: An ε that the page marks, and can move.

    Returns:
        Heading, words, note and where the charts go; and the charts.
    """
    if isinstance(drawing, Heatmaps):
        content, charts = _triangles(drawing, name, target)
    elif isinstance(drawing, Panels):
        content, charts = _panels(drawing, name, target)
    else:
        charts = [plot_chart(drawing, name, target)]
        content = _chart(charts[0])
    note = f'<p class="note">{as_text(drawing.note)}</p>\n' if drawing.note else ""
    return section(drawing.heading, f"<p>{as_text(drawing.words)}</p>\n{note}{content}"), charts


def section(heading: str, content: str) -> str:
    """A heading and what stands below it, which is HTML."""
    return f"<section>\n<h2>{as_text(heading)}</h2>\n{content}\n</section>"


def table(content: Table) -> str:
    """Each cell repeats its heading: a phone sets a row as a list.

    Args:
        content: What stands in it; its heading is for the caller to set.

    Returns:
        The table as HTML.

    Raises:
        InvalidInputError: Rows are of other lengths than the head.
    """
    if any(len(row) != len(content.head) for row in content.rows):
        found = "rows of other lengths"
        raise InvalidInputError(f"table {content.heading}", content, "a cell for every column of the head", found=found)
    names = [as_text(name) for name in content.head]
    rows = [["<br>".join(map(as_text, cell.split("\n"))) for cell in row] for row in content.rows]
    heads = "".join(f'<th scope="col">{name}</th>' for name in names)
    body = "".join(
        "".join(["<tr>", *(f'<td data-head="{n}">{c}</td>' for n, c in zip(names, row, strict=True)), "</tr>"])
        for row in rows
    )
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"


def as_text(text: str) -> str:
    """Anything, as HTML that shows it."""
    return escape(printable(text))


def part(name: str) -> str:
    """A file that comes with this package."""
    return resources.files("dpmerge.report").joinpath(name).read_text(encoding="utf-8")


def _plotly_script() -> str:
    """The part of plotly.js that draws lines, heatmaps and contours: docs/decisions/0015-plotly-in-the-wheel.md."""
    return part("plotly-cartesian.min.js")


def _embedded(data: Any) -> str:
    """JSON that cannot end the script it stands in."""
    plain = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return plain.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _chart(chart: Chart) -> str:
    """Where it is drawn, and below that a legend whose lines switch their traces on and off."""
    buttons = "".join(
        f'<li><button type="button" aria-pressed="true" data-trace="{" ".join(map(str, each.traces))}">'
        f'<svg width="30" height="14" aria-hidden="true">{_swatch(each.series)}</svg>'
        f"<span>{escape(each.series.label)}</span></button></li>"
        for each in chart.legend
    )
    return f'<div class="chart" id="{chart.id}"></div>\n<ul class="legend" data-chart="{chart.id}">{buttons}</ul>'


def _swatch(series: Series) -> str:
    """A line or a mark, as the legend shows it."""
    colour = escape(series.colour)
    marks = _SWATCHES["dots" if series.marks == "none" and not series.line else series.marks].format(colour)
    pattern = {(True, False): "7 4", (False, True): "2 2", (True, True): "9 3 2 3"}.get((series.dashed, series.dotted))
    dashes = f' stroke-dasharray="{pattern}"' if pattern else ""
    return (
        f'<path d="M0 7 H30" stroke="{colour}" stroke-width="{1.5 if series.thin else 4}"{dashes}/>'
        if series.line
        else ""
    ) + marks


def _panels(drawing: Panels, name: str, target: float | None) -> tuple[str, list[Chart]]:
    """One below the other, each with its letter, and what is to be known of it alone."""
    charts = [plot_chart(plot, f"{name}-{place}", target) for place, plot in enumerate(drawing.plots)]
    parts = []
    for (caption, note), chart in zip(drawing.captions, charts, strict=True):
        said = f'<p class="note">{as_text(note)}</p>\n' if note else ""
        parts.append(f"<h3>{as_text(caption)}</h3>\n{said}{_chart(chart)}")
    return "\n".join(parts), charts


def _triangles(drawing: Heatmaps, name: str, target: float | None) -> tuple[str, list[Chart]]:
    """Small multiples: as many side by side as fit, over a scale of colours for each row; and what is drawn."""
    parts: list[str] = []
    charts: list[Chart] = []
    place = 0
    told = target is None  # what the red line is: once
    for row in heatmap_rows(drawing.face):
        figures = []
        for panel in row.panels:
            letter = f"{lettered(place)} " if len(drawing.face.panels) > 1 else ""
            caption = f"<figcaption>{letter}{escape(wording.label(panel))}</figcaption>"
            if row.axis is None:
                names = tuple(wording.short(model) for model in drawing.face.names)
                shown = table(Table("", ("who has a share", "ε"), listed(panel, names)))  # type: ignore[arg-type]
                note = "One figure wherever all three have a share: there is nothing to colour."
                figures.append(f'<figure>{caption}{shown}<p class="share">{note}</p></figure>')
            else:
                chart = panel_chart(drawing, panel, row.axis, f"{name}-{place}", target)
                share = "" if target is None else f'<p class="share" data-panel="{chart.id}"></p>'
                figures.append(f'<figure>{caption}<div class="panel" id="{chart.id}"></div>{share}</figure>')
                charts.append(chart)
            place += 1
        scale = "" if row.axis is None else _scale(row.axis, row.panels, targeted=not told)
        told |= row.axis is not None
        wide = " wide-row" if len(row.panels) > 1 else ""
        parts.append(f'<div class="row{wide}">{scale}<div class="panels">{"".join(figures)}</div></div>')
    return f'<div class="rows" id="{name}">{"".join(parts)}</div>', charts


def _scale(axis: Axis, panels: Sequence[Panel], *, targeted: bool) -> str:
    """What the colours of a row mean."""
    ticks = [wording.epsilon(value) for value in axis.ticks(5)]
    below = any(np.nanmin(panel.epsilons, initial=math.inf) < axis.low * (1 - 1e-9) for panel in panels)
    shown = "".join(f"<span>{tick}</span>" for tick in [("≤ " if below else "") + ticks[0], *ticks[1:]])
    said = [
        *(["equal steps are equal ratios"] if axis.log else []),
        *(["grey has no finite ε"] if any(map(_has_no_number, panels)) else []),
        *(["the red line and the faded part show where ε is at, and above, the target"] if targeted else []),
    ]
    remarks = f" ({'; '.join(said)})" if said else ""
    return (
        f'<div class="scale"><div class="bar" style="background:linear-gradient(to right,{",".join(COSTS)})"></div>'
        f'<div class="ticks">{shown}</div><p>ε{remarks}</p></div>'
    )


def _has_no_number(panel: Panel) -> bool:
    """Whether some point of the triangle has no finite ε."""
    size = len(panel.epsilons)
    inside = np.add.outer(np.arange(size), np.arange(size)) < size
    return bool(np.any(~np.isfinite(panel.epsilons[inside])))
