"""The tables of an analysis, for the page and for the terminal: its plans, its models, ε between two models.

Guarantees: every ε is rounded up; a line that is not proved says so.
"""

from __future__ import annotations

import numpy as np

from dpmerge.errors import printable
from dpmerge.planning.analysis import Analysis, Edge
from dpmerge.report import wording
from dpmerge.report.plots import Table

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)


def plans_table(analysis: Analysis) -> Table:
    """What to release for each target, what that costs, what to expect of it; one line an outcome."""
    head = ("target ε", "achieved ε", printable(analysis.utility.name), "released", "theorem")
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
    return Table("Recommended plans", head, rows)


def models_table(analysis: Analysis) -> Table:
    """What each model costs and is worth, released by itself."""
    rows = [(printable(m.name), wording.epsilon(m.epsilon), wording.utility(m.utility)) for m in analysis.models]
    return Table("Models as they were trained", ("model", "ε", printable(analysis.utility.name)), rows)


def edge_table(edge: Edge) -> Table:
    """ε at a few shares of the second model, by every line and every theorem."""
    first, second = (printable(name) for name in edge.names)
    places = [int(np.argmin(np.abs(edge.weights - share))) for share in SHARES] if edge.weights.size else []
    places = list(dict.fromkeys(places))
    rows = [
        (f"{kind}{wording.label(line)}", *(wording.epsilon(float(line.epsilons[place])) for place in places))
        for lines, kind in ((edge.lines, ""), (edge.theorems, "by "))
        for line in lines
    ]
    head = ("share of the second", *(f"{edge.weights[place]:.3g}" for place in places))
    return Table(f"ε between {first} (share 0) and {second} (share 1)", head, rows)
