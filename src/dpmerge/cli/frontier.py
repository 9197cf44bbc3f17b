"""`dpmerge frontier`: what each privacy level costs in utility, as a page, pictures, numbers or text."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpmerge.cli.options import (
    ALLOW,
    CACHE,
    CHECKPOINTS,
    CONVERSION,
    DELTA,
    EVALUATOR,
    EXECUTOR,
    HEADERS_ONLY,
    JOBS,
    PORTFOLIO,
    REHASH,
    WORKERS_PER_NODE,
    loaded_portfolio,
    opened_executor,
    require_folder,
    require_writable,
    to_go_on,
)
from dpmerge.cli.terminal import AsJson, one_line_errors, print_json, say, wide_console

if TYPE_CHECKING:
    from dpmerge.planning.analysis import Analysis


def frontier(
    portfolio: PORTFOLIO,
    delta: DELTA = 1e-5,
    evaluator: EVALUATOR = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="REPORT.html", help="Write the report as one self-contained HTML page."),
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Write the figures as PNG and SVG, and the numbers as CSV and JSON, to this folder."
        ),
    ] = None,
    plain: Annotated[
        bool,
        typer.Option("--plain", help="Print the report in the terminal (the default without `-o` and `--figures`)."),
    ] = (False),
    face: Annotated[
        list[str] | None,
        typer.Option(metavar="RUN@STEP,…", help="Two or three checkpoints whose averages are drawn; repeatable."),
    ] = None,
    theorem: Annotated[
        str, typer.Option(help="The theorem by which heatmaps price averages; `auto`: the tightest that is proved.")
    ] = "auto",
    conversion: CONVERSION = None,
    checkpoints: CHECKPOINTS = "all",
    paper: Annotated[
        bool,
        typer.Option(
            "--paper", help="Exactly the paper's workflow, on three models and a test set; what is not proved says so."
        ),
    ] = False,
    targets: Annotated[int, typer.Option(help="For how many values of ε a plan is recommended.")] = 24,
    evaluations: Annotated[
        int, typer.Option(help="How many merged models may be scored, besides the recommended plans.")
    ] = 600,
    cache: CACHE = None,
    jobs: JOBS = 1,
    executor: EXECUTOR = None,
    workers_per_node: WORKERS_PER_NODE = None,
    allow: ALLOW = None,
    headers_only: HEADERS_ONLY = False,
    rehash: REHASH = False,
    as_json: AsJson = False,
) -> None:
    """What does each privacy level cost in utility, by which method?

    Draws utility against ε for random selection and for averages, accounted for exactly and by Rényi divergence;
    heatmaps of ε over the weights of three models; what each theorem says; and the plan to use for any ε. Without
    `--evaluator` the utility is the noise predicted from the runs' records; with it, the score of merged models on
    public data.

    Keep the report private: it shows models that have not been released. The plans it recommends were chosen without
    looking at any model.

    Example: `dpmerge frontier examples/mnist --evaluator linear:examples/mnist/public.npz -o report.html`
    """
    with one_line_errors(to_go_on(cache, evaluator)):
        from dpmerge.evaluation.evaluation_progress import show_progress
        from dpmerge.planning.frontier import frontier as compute

        require_writable("output", output)
        if figures is not None:
            require_folder("figures", figures if os.path.exists(figures) else figures.parent)
        loaded = loaded_portfolio(portfolio, headers_only, allow, rehash=rehash)
        with (
            opened_executor(executor, workers_per_node, jobs=jobs, gpus=True) as workers,
            show_progress(None, "planning") as progress,
        ):
            analysis = compute(
                loaded,
                delta,
                evaluator=evaluator,
                evaluations=evaluations,
                cache=cache,
                executor=workers,
                theorem=theorem,  # type: ignore[arg-type]
                conversion=conversion,  # type: ignore[arg-type]
                checkpoints=checkpoints,
                paper=paper,
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
    from dpmerge.report.analysis_page import write_page
    from dpmerge.report.analysis_plots import analysis_plots
    from dpmerge.report.numbers import write_numbers
    from dpmerge.report.plot_pictures import write_plot_pictures

    written = []
    if page is not None:
        write_page(analysis, page)
        written.append(page)
    if figures is not None:
        figures.mkdir(exist_ok=True)
        drawings = [replace(drawing, banner=analysis.banner) for drawing in analysis_plots(analysis)]
        written += write_plot_pictures(drawings, figures, kinds=("png", "svg"))
        written += write_numbers(analysis, figures)
    return written
