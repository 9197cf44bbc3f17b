"""How objects show themselves in a notebook: the one door from what is planned or released to how it is drawn.

Guarantees: nothing of the report is loaded before something is shown; what is shown escapes every name.
Refuses: to draw or to make a frame without plotly or pandas, in one line that says what to install.

Parts import only what is above them, and `dpmerge.report` is below them all. A class that can show itself calls one of
these functions with itself; the report knows the classes, not the other way round.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


def cell_html(subject: object) -> str:
    """What a notebook shows of it.

    Args:
        subject: A plan, portfolio, release, verification, finding, inspection or analysis.

    Returns:
        A piece of HTML without script or style sheet.

    >>> from dpmerge import Portfolio
    >>> "3 runs on mnist-train" in cell_html(Portfolio.load("examples/probe"))
    True
    """
    return str(import_module("dpmerge.report.notebook_cells").html_of(subject))


def figure(subject: object) -> Any:
    """It as a figure of plotly.

    Args:
        subject: A plan or an analysis.

    Returns:
        A `plotly.graph_objects.Figure`.

    Raises:
        MissingExtraError: plotly is not installed.

    >>> from dpmerge import Portfolio, plan
    >>> made = plan(Portfolio.load("examples/probe"), epsilon=1, delta=1e-5)
    >>> [trace.name for trace in figure(made).data][-1]
    'the target'
    """
    return import_module("dpmerge.report.notebook_figures").figure_of(subject)


def frame(subject: object, **options: Any) -> Any:
    """Its figures as a table.

    Args:
        subject: A portfolio or an inspection (a row a checkpoint), a plan (a row a candidate), or an analysis (a row a
            point of a frontier).
        options: What the table depends on besides: `delta` for a portfolio.

    Returns:
        A `pandas.DataFrame`, in full precision.

    Raises:
        MissingExtraError: pandas is not installed.

    >>> from dpmerge import Portfolio
    >>> frame(Portfolio.load("examples/probe"), delta=1e-5).columns.tolist()[:4]
    ['checkpoint', 'run', 'step', 'settings']
    """
    return import_module("dpmerge.report.frames").frame_of(subject, **options)
