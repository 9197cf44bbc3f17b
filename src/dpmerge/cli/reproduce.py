"""`dpmerge reproduce`: the paper's figures, and ours, with one command."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpmerge.cli.terminal import one_line_errors, print_json, say, wide_console
from dpmerge.errors import InvalidInput

if TYPE_CHECKING:
    from dpmerge.experiments.results import Results


def reproduce(
    experiments: Annotated[
        list[str],
        typer.Argument(
            metavar="EXPERIMENT",
            help="mean, mnist, cifar10, checkpoints, composition, ladder, probe, soundness; or all.",
        ),
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="DIR", help="Where reproduction.md and reproduction/ go.")
    ] = Path("."),
    preset: Annotated[
        str, typer.Option(help="paper: CIFAR-10 as in the paper, for a GPU; small: narrower, fewer images, two cores.")
    ] = "small",
    seed: Annotated[int, typer.Option(help="Every run's noise is a stream of its own, spawned from it.")] = 42,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            envvar="DPMERGE_DATA",
            help="A folder that has the images; otherwise npm fetches them.",
        ),
    ] = None,
    redraw: Annotated[
        bool, typer.Option("--redraw", help="Draw pictures and pages again from results that are there.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print all results as JSON, when everything is done.")
    ] = False,
) -> None:
    """Does the paper's evaluation hold, and what of it is proved?

    Runs the experiments of the paper on the real data (mean estimation, MNIST, CIFAR-10, checkpoints of one run,
    composition), and ours (the ladder, a probe that hidden_state covers, what each theorem says), and writes figures
    (PNG and HTML), a results file and a page for each, and one page with every claim beside what was measured.

    Long work can be interrupted: the same command goes on where it stopped. The noise is seeded, so that anybody can
    repeat it; models trained here are not for release.

    Example: `dpmerge reproduce mean composition -o results`
    """
    with one_line_errors("what was trained is kept; the same command goes on from there"):
        try:
            from dpmerge.experiments.images import ImageFolder
            from dpmerge.experiments.reproduce import preset_named
            from dpmerge.experiments.reproduce import redraw as draw_again
            from dpmerge.experiments.reproduce import reproduce as run

            for name in ("matplotlib", "plotly"):  # before hours of work that end in pictures
                import_module(name)
        except ImportError as missing:
            accepted = 'the extras torch and report: pip install "dpmerge[torch,report]"'
            raise InvalidInput("reproduce", missing.name, accepted, found=f"no {missing.name}") from None

        if data is not None and not data.is_dir():
            raise InvalidInput("data", str(data), "a folder that exists")
        if not 0 <= seed < 2**32:
            raise InvalidInput("seed", seed, "an integer from 0 to 4294967295")
        if redraw:
            found = draw_again(experiments, output)
        else:
            found = run(
                experiments,
                output,
                preset=preset_named(preset),
                images=ImageFolder(data),
                seed=seed,
                tell=lambda line: say(line, err=True),
            )
        documents = []
        for results in found:
            documents.append(results.document())
            if not as_json:
                _print(results, output)
    if as_json:
        print_json(documents)
    else:
        say(f"Wrote {output / 'reproduction.md'}")


def _print(results: Results, output: Path) -> None:
    """What was found, one row a claim."""
    from rich.table import Table
    from rich.text import Text

    from dpmerge.experiments.catalogue import experiment

    made = experiment(results.experiment)
    table = Table(title=made.TITLE, title_justify="left", show_lines=True)
    table.add_column("agrees?")
    table.add_column("claim")
    table.add_column("measured")
    for statement in made.statements(results.numbers):
        table.add_row(*(Text(cell) for cell in (statement.verdict, statement.claim, statement.measured)))
    wide_console().print(table)
    say(f"Wrote {output / 'reproduction' / results.experiment}")
