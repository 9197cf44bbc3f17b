"""`dpmerge plan`, `design` and `frontier`: from targets to what should be released, or trained."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpmerge.cli.terminal import AsJson, one_line_errors, print_json, wide_console
from dpmerge.errors import InvalidInput

if TYPE_CHECKING:
    from dpmerge.planning.analysis import Analysis
    from dpmerge.planning.looking import PublicEvaluation
    from dpmerge.planning.objectives import Objective
    from dpmerge.planning.validation import PrivateValidation
    from dpmerge.portfolio.portfolio import Portfolio

PORTFOLIO = Annotated[
    Path, typer.Argument(metavar="PORTFOLIO", help="A folder of runs, one run's folder, or a portfolio.yaml.")
]
DELTA = Annotated[float, typer.Option(help="The δ of every guarantee.")]
EVALUATOR = Annotated[
    str | None,
    typer.Option(metavar="MODULE:FUNCTION", help="Scores merged models; or `linear:FILE.npz` for linear classifiers."),
]
CACHE = Annotated[Path | None, typer.Option(help="Keep scores in this file, to go on after an interrupt.")]
JOBS = Annotated[
    int,
    typer.Option(help="Threads that call the evaluator; more than 1 only if it may be called from several at once."),
]
ALLOW = Annotated[
    list[str] | None,
    typer.Option(help="Average in spite of `different_initial_weights` or `different_frozen_tensors`."),
]
HEADERS_ONLY = Annotated[
    bool, typer.Option("--headers-only", help="Do not read the weights: faster, but digests are not checked.")
]


def plan(
    portfolio: PORTFOLIO,
    epsilon: Annotated[float, typer.Option(help="The ε to meet.")],
    delta: DELTA,
    method: Annotated[
        str, typer.Option(help="`select` (draw one checkpoint), `combine` (average), `mix` (draw either) or `auto`.")
    ] = "auto",
    objective: Annotated[
        str,
        typer.Option(
            help="What is best: least predicted `noise`, `saturate` the budget, a `prior`, `public_evaluation`, or "
            "`private_validation`."
        ),
    ] = "noise",
    theorem: Annotated[
        str,
        typer.Option(
            help="How averages are accounted for: `auto`, `joint_release`, `last_step`, `hidden_state` or "
            "`merged_trajectory`."
        ),
    ] = "auto",
    accounting: Annotated[str, typer.Option(help="`pld` (exact) or `rdp` (Rényi divergence).")] = "pld",
    prior: Annotated[
        str | None, typer.Option(metavar="RUN@STEP=U,…", help="Utilities you state, without having looked.")
    ] = None,
    evaluator: EVALUATOR = None,
    tuning: Annotated[str, typer.Option(help="`charged`, or `uncharged`: look for free, and say so for ever.")] = (
        "charged"
    ),
    look: Annotated[
        str | None, typer.Option(metavar="RUN@STEP,…", help="The models that may be looked at; default: what fits.")
    ] = None,
    evaluations: Annotated[
        int | None, typer.Option(help="How many merges may be scored (default 500; 50 on private data).")
    ] = None,
    validation_epsilon: Annotated[
        float | None, typer.Option(help="What the choice may cost people in a private validation set.")
    ] = None,
    disjoint: Annotated[
        str | None,
        typer.Option(metavar="WHO", help="Who vouches that nobody is in both the training and the validation set."),
    ] = None,
    cache: CACHE = None,
    jobs: JOBS = 1,
    non_private: Annotated[
        list[str] | None, typer.Option(metavar="RUN", help="A run without privacy that may be drawn, rarely.")
    ] = None,
    allow: ALLOW = None,
    headers_only: HEADERS_ONLY = False,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Save the plan as JSON.")] = None,
    as_json: AsJson = False,
) -> None:
    """Which release of these models meets (ε, δ), and is best?

    A plan says which checkpoints are averaged with which weights (and how much noise is added), or drawn with which
    probabilities; what that costs, by which theorem, and who vouches for its premises. No model is looked at unless
    `--objective public_evaluation` or `private_validation` asks for it; then every model that could have been looked at
    is paid for.

    Exit code 1: nothing in this portfolio meets the target; the message says what would be the smallest ε.

    Example: `dpmerge plan examples/mnist --epsilon 0.8 --delta 1e-5`
    """
    with one_line_errors(_to_go_on(cache, evaluator)):
        from dpmerge.planning.planner import plan as compute
        from dpmerge.planning.target import Guarantee

        target = Guarantee(epsilon=epsilon, delta=delta)
        target.require_target()
        _require_writable("output", output)
        chosen = _objective(
            objective,
            prior=prior,
            evaluator=evaluator,
            tuning=tuning,
            look=look,
            evaluations=evaluations,
            validation_epsilon=validation_epsilon,
            disjoint=disjoint,
            cache=cache,
            jobs=jobs,
        )
        loaded = _loaded(portfolio, headers_only, allow)
        result = compute(
            loaded,
            target,
            method=method,  # type: ignore[arg-type]
            objective=chosen,
            theorem=theorem,  # type: ignore[arg-type]
            accounting=accounting,  # type: ignore[arg-type]
            non_private=non_private or (),
        )
        document = result.document()
        if output is not None:
            _save(output, document)
        if as_json:
            print_json(document)
            return
        from dpmerge.planning.advice import suggestions
        from dpmerge.planning.plan_table import print_plan

        print_plan(result, suggestions(result), wide_console())
    if output is not None:
        typer.echo(f"\nSaved to {output}.")


def design(
    epsilons: Annotated[str, typer.Option("--range", metavar="LOW:HIGH", help="The targets to serve, such as 0.1:2.")],
    delta: DELTA,
    levels: Annotated[int, typer.Option(help="How many targets in the range to design for.")] = 10,
    steps: Annotated[int, typer.Option(help="Full-batch steps of every run.")] = 20,
    runs: Annotated[int | None, typer.Option(help="At most so many runs; default: as many as are worth it.")] = None,
    checkpoints: Annotated[
        int | None, typer.Option(help="Checkpoints kept of every run, between half of training and its end.")
    ] = None,
    adjacency: Annotated[str, typer.Option(help="`replace_one` or `add_remove`.")] = "replace_one",
    as_json: AsJson = False,
) -> None:
    """Which full-batch runs should be trained, so that any ε in a range can be served later?

    Chooses noise multipliers and the checkpoints to keep so that for every target some average of them costs just less:
    its noise is then hardly more than that of a model trained for exactly this target. Compared with the same number of
    equal runs (the ladder).

    Example: `dpmerge design --range 0.1:2 --delta 1e-5 --levels 10 --steps 20`
    """
    with one_line_errors():
        from dpmerge.design.design import design as compute
        from dpmerge.design.design import parse_range

        low, high = parse_range(epsilons)
        result = compute(
            low, high, delta, levels=levels, steps=steps, runs=runs, checkpoints=checkpoints, adjacency=adjacency
        )
    if as_json:
        print_json(result.document())
        return
    from dpmerge.design.table import print_design

    print_design(result, wide_console())


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
    evaluations: Annotated[int, typer.Option(help="How many merges may be scored.")] = 600,
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
    with one_line_errors(_to_go_on(cache, evaluator)):
        from dpmerge.evaluation.evaluators import load_evaluator
        from dpmerge.evaluation.progress import shown
        from dpmerge.planning.bench import Scoring
        from dpmerge.planning.frontier import analyse

        _require_writable("output", output)
        if figures is not None:
            _require_folder("figures", figures if figures.exists() else figures.parent)
        if cache is not None and evaluator is None:
            raise InvalidInput("cache", str(cache), "no cache without --evaluator")
        scoring = None
        if evaluator is not None:
            scoring = Scoring(
                evaluator=load_evaluator(evaluator), evaluations=evaluations, cache=cache, executor=_threads(jobs)
            )
        loaded = _loaded(portfolio, headers_only, allow)
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
        typer.echo(f"Wrote {path}")


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


def _require_writable(field: str, file: Path | None) -> None:
    """Refuse before hours of work what cannot be written after them."""
    if file is not None and (not file.name or file.is_dir()):
        raise InvalidInput(field, str(file), "the name of a file", found="a folder")
    if file is not None:
        _require_folder(field, file.parent)


def _require_folder(field: str, folder: Path) -> None:
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise InvalidInput(field, str(folder), "a folder that exists and can be written to")


def _loaded(path: Path, headers_only: bool, allow: Iterable[str] | None) -> Portfolio:
    from dpmerge.portfolio.portfolio import Portfolio

    return Portfolio.load(path, contents=not headers_only, allow=tuple(allow or ()))  # type: ignore[arg-type]


def _objective(
    name: str,
    *,
    prior: str | None,
    evaluator: str | None,
    tuning: str,
    look: str | None,
    evaluations: int | None,
    validation_epsilon: float | None,
    disjoint: str | None,
    cache: Path | None,
    jobs: int,
) -> Objective | PublicEvaluation | PrivateValidation:
    """The objective of that name; options that belong to another one are refused, not ignored."""
    from dpmerge.evaluation.evaluators import load_evaluator
    from dpmerge.planning.looking import PublicEvaluation
    from dpmerge.planning.objectives import OBJECTIVES, Prior
    from dpmerge.planning.validation import PrivateValidation

    names = (*OBJECTIVES, "prior", "public_evaluation", "private_validation")
    if name not in names:
        raise InvalidInput("objective", name, ", ".join(names))
    looking = ("public_evaluation", "private_validation")
    belongs: dict[str, tuple[Any, tuple[str, ...]]] = {
        "--prior": (prior, ("prior",)),
        "--evaluator": (evaluator, looking),
        "--look": (look, looking),
        "--cache": (cache, ("public_evaluation",)),
        "--evaluations": (evaluations, looking),
        "--jobs": (jobs if jobs != 1 else None, looking),
        "--tuning uncharged": (tuning != "charged" or None, ("public_evaluation",)),
        "--validation-epsilon": (validation_epsilon, ("private_validation",)),
        "--disjoint": (disjoint, ("private_validation",)),
    }
    for option, (value, owners) in belongs.items():
        if value is not None and name not in owners:
            raise InvalidInput("objective", name, f"{' or '.join(owners)} where {option} is given")
    if name == "prior":
        return Prior(_numbers("prior", prior))
    if name not in looking:
        return OBJECTIVES[name]()
    if evaluator is None:
        raise InvalidInput("evaluator", None, f"module:function, or linear:FILE.npz, for {name}", found="nothing")
    scorer, seen = load_evaluator(evaluator), None if look is None else [part.strip() for part in look.split(",")]
    if name == "public_evaluation":
        return PublicEvaluation(
            evaluator=scorer,
            tuning=tuning,  # type: ignore[arg-type]
            look=seen,
            evaluations=500 if evaluations is None else evaluations,
            cache=cache,
            executor=_threads(jobs),
        )
    if validation_epsilon is None:
        raise InvalidInput("validation-epsilon", None, "a finite number > 0 for private_validation", found="nothing")
    return PrivateValidation(
        evaluator=scorer,
        epsilon=validation_epsilon,
        look=seen,
        evaluations=50 if evaluations is None else evaluations,
        disjoint_vouched_by=disjoint,
        executor=_threads(jobs),
    )


def _threads(jobs: int) -> Executor | None:
    """None: one after the other."""
    if jobs < 1:
        raise InvalidInput("jobs", jobs, "an integer ≥ 1")
    return ThreadPoolExecutor(jobs) if jobs > 1 else None


def _to_go_on(cache: Path | None, evaluator: str | None) -> str:
    """What to say to who interrupts."""
    if evaluator is None:
        return ""
    kept = f"scores so far are in {cache}, the same command goes on from there"
    return kept if cache is not None else "--cache FILE would have kept the scores"


def _numbers(field: str, text: str | None) -> dict[str, float]:
    """name=number, separated by commas."""
    accepted = "run@step=number, separated by commas"
    if text is None:
        raise InvalidInput(field, None, accepted, found="nothing")
    found: dict[str, float] = {}
    for part in text.split(","):
        name, _, number = (piece.strip() for piece in part.rpartition("="))
        try:
            value = float(number)
        except ValueError:
            raise InvalidInput(field, part, accepted) from None
        if not name or name in found:
            raise InvalidInput(field, part, accepted + ", each once")
        found[name] = value
    return found


def _save(file: Path, document: dict[str, Any]) -> None:
    from dpmerge.portfolio.manifest import write_atomically

    try:
        write_atomically(file, (json.dumps(document, indent=2, allow_nan=False) + "\n").encode())
    except OSError as error:
        raise InvalidInput(
            "output", str(file), "a file that can be written", found=f"{file} ({error.strerror})"
        ) from None
