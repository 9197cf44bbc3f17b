"""`dpmerge frontier`: what each privacy level costs in utility, as a page, pictures, numbers or text."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpmerge.cli.options import (
    ALLOW,
    CACHE,
    DELTA,
    EVALUATOR,
    HEADERS_ONLY,
    JOBS,
    PORTFOLIO,
    loaded_portfolio,
    require_folder,
    require_writable,
    threads,
    to_go_on,
)
from dpmerge.cli.terminal import AsJson, one_line_errors, print_json, say, wide_console
from dpmerge.errors import InvalidInput

if TYPE_CHECKING:
    from dpmerge.planning.analysis import Analysis


def frontier(
    portfolio: PORTFOLIO,
    delta: DELTA = 1e-5,
    evaluator: EVALUATOR = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="REPORT.html", help="Write one self-contained page.")
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write figures as PNG and SVG, numbers as CSV and JSON."),
    ] = None,
    plain: Annotated[
        bool, typer.Option("--plain", help="Show it in the terminal (the default where no file is asked for).")
    ] = (False),
    face: Annotated[
        list[str] | None,
        typer.Option(metavar="RUN@STEP,…", help="Two or three checkpoints to sweep; may be given several times."),
    ] = None,
    theorem: Annotated[
        str, typer.Option(help="By which theorem heatmaps account for averages; `auto`: the tightest proved.")
    ] = "auto",
    targets: Annotated[int, typer.Option(help="For how many targets plans are recommended.")] = 24,
    evaluations: Annotated[int, typer.Option(help="How many merges may be scored, besides recommended plans.")] = 600,
    cache: CACHE = None,
    jobs: JOBS = 1,
    allow: ALLOW = None,
    headers_only: HEADERS_ONLY = False,
    as_json: AsJson = False,
) -> None:
    """What does each privacy level cost in utility, by which method?

    Draws the frontiers of random selection and linear combination, by Rényi divergence and exactly, heatmaps of ε over
    the weights of three models, what each theorem says, and the plan to use for any target. Without `--evaluator` the
    utility is the noise predicted from the records; with it, the score of merged models on public data.

    The result shows models nobody has released: it is an analysis, *not for release*. The plans it recommends were
    chosen without looking at any model.

    Example: `dpmerge frontier examples/mnist --evaluator linear:examples/mnist/public.npz -o report.html`
    """
    with one_line_errors(to_go_on(cache, evaluator)):
        from dpmerge.evaluation.evaluators import load_evaluator
        from dpmerge.evaluation.progress import shown
        from dpmerge.planning.bench import Scoring
        from dpmerge.planning.frontier import analyse

        require_writable("output", output)
        if figures is not None:
            require_folder("figures", figures if os.path.exists(figures) else figures.parent)
        if cache is not None and evaluator is None:
            raise InvalidInput("cache", str(cache), "no cache without --evaluator")
        scoring = None
        if evaluator is not None:
            scoring = Scoring(
                evaluator=load_evaluator(evaluator), evaluations=evaluations, cache=cache, executor=threads(jobs)
            )
        loaded = loaded_portfolio(portfolio, headers_only, allow)
        with shown(None, "planning") as progress:
            analysis = analyse(
                loaded,
                delta,
                scoring=scoring,
                theorem=theorem,  # type: ignore[arg-type]
                faces=None if face is None else [[name.strip() for name in names.split(",")] for names in face],
                targets=targets,
                progress=progress,
            )
        written = _written(analysis, output, figures)
    if as_json:
        print_json(analysis.document())
        return
    if plain or not written:
        from dpmerge.report.plain import print_analysis

        print_analysis(analysis, wide_console())
    for path in written:
        say(f"Wrote {path}")


def _written(analysis: Analysis, page: Path | None, figures: Path | None) -> list[Path]:
    """The files asked for, which are then there."""
    from dpmerge.report.numbers import write_numbers
    from dpmerge.report.page import write_page
    from dpmerge.report.pictures import write_pictures

    written = []
    if page is not None:
        write_page(analysis, page)
        written.append(page)
    if figures is not None:
        figures.mkdir(exist_ok=True)
        written += [*write_pictures(analysis, figures), *write_numbers(analysis, figures)]
    return written
