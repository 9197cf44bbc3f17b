"""The report as one page: figures that answer to a target ε, the plans behind them, and what to beware of.

Guarantees: those of `page_parts`; the banner of the analysis stands above the page.
Refuses: folders that do not exist.
"""

from __future__ import annotations

import math
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from dpmerge.errors import printable
from dpmerge.planning.analysis import Analysis, Recommendation
from dpmerge.report import wording
from dpmerge.report.analysis_plots import analysis_plots
from dpmerge.report.analysis_tables import models_table, plans_table
from dpmerge.report.page_parts import as_text, figure, framed, part, table
from dpmerge.report.whole_files import existing_folder, write_whole

DEFAULT_TARGET = 1.0


def write_page(analysis: Analysis, file: Path) -> None:
    """Write the page, whole or not at all.

    Args:
        analysis: What `dpmerge.planning.frontier.analyse` found.
        file: Where to; its folder must exist.

    Raises:
        InvalidInputError: The folder is missing.
    """
    existing_folder(file.parent)
    write_whole(file, page(analysis).encode())


def page(analysis: Analysis) -> str:
    """The page as HTML; arguments and errors as `write_page`."""
    target = default_target(analysis)
    figures = [figure(drawing, drawing.name, target) for drawing in analysis_plots(analysis)]
    main = Template(part("analysis.html")).substitute(
        target=f"{target:g}",
        figures="\n".join(html for html, _ in figures),
        plans=_falls(analysis) + table(plans_table(analysis))
        if analysis.recommendations
        else "<p>No plan was found.</p>",
        models=table(models_table(analysis)),
        caveats=_caveats(analysis),
    )
    return framed(
        analysis.title,
        analysis.subtitle,
        [_joint(analysis)],
        main,
        [chart for _, charts in figures for chart in charts],
        banner=analysis.banner,
        script=part("analysis.js"),
        utility=printable(analysis.utility.name),
        plans=[_plan(analysis, plan) for plan in analysis.recommendations],
        smallest=_smallest(analysis),
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


def _plan(analysis: Analysis, plan: Recommendation) -> dict[str, Any]:
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
        "command": wording.command(analysis, plan),
        "falls": wording.falls(analysis, plan),
        "outcomes": [
            {"probability": wording.percent(probability), "recipe": printable(recipe)}
            for probability, recipe in plan.outcomes
        ],
    }


def _smallest(analysis: Analysis) -> str | None:
    costs = [plan.epsilon for plan in analysis.recommendations if math.isfinite(plan.epsilon)]
    return wording.epsilon(min(costs)) if costs else None


def _falls(analysis: Analysis) -> str:
    words = wording.falls(analysis)
    return f"<p>{as_text(words)}</p>" if words else ""


def _joint(analysis: Analysis) -> str:
    if not math.isfinite(analysis.joint_epsilon):
        return "There is no figure for releasing everything at once."
    cost = wording.epsilon(analysis.joint_epsilon)
    return f"Releasing everything at once, whatever is done with it, costs ε = {cost}."


def _caveats(analysis: Analysis) -> str:
    if not analysis.caveats:
        return "<p>None were found.</p>"
    return "<ul>" + "".join(f"<li>{as_text(caveat)}</li>" for caveat in analysis.caveats) + "</ul>"
