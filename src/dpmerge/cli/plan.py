"""`dpmerge plan`: from a target to what should be released."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
    INSECURE,
    JOBS,
    LEDGER,
    PORTFOLIO,
    REHASH,
    WORKERS_PER_NODE,
    loaded_portfolio,
    numbers,
    opened_executor,
    require_writable,
    to_go_on,
)
from dpmerge.cli.terminal import AsJson, one_line_errors, print_json, say, wide_console
from dpmerge.errors import CannotWriteError, InvalidInputError
from dpmerge.remote.remote_path import location

if TYPE_CHECKING:
    from dpmerge.planning.objectives import Objective
    from dpmerge.planning.private_selection import PrivateValidation
    from dpmerge.planning.public_selection import PublicEvaluation


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
            help="What is best: least predicted `noise`, `saturate` the budget, a `prior`, `public_evaluation` (the "
            "default with --evaluator), or `private_validation`."
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
    conversion: CONVERSION = None,
    checkpoints: CHECKPOINTS = "all",
    prior: Annotated[
        str | None, typer.Option(metavar="RUN@STEP=U,…", help="Utilities you state, without having looked.")
    ] = None,
    evaluator: EVALUATOR = None,
    tuning: Annotated[
        str, typer.Option(help="`charged`, or `uncharged`: looking is not paid for, and the plan says so.")
    ] = "charged",
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
    records_per_unit: Annotated[
        int | None, typer.Option(help="How many validation records one unit of privacy has, at most.")
    ] = None,
    cache: CACHE = None,
    jobs: JOBS = 1,
    executor: EXECUTOR = None,
    workers_per_node: WORKERS_PER_NODE = None,
    non_private: Annotated[
        list[str] | None, typer.Option(metavar="RUN", help="A run without privacy that may be drawn, rarely.")
    ] = None,
    allow: ALLOW = None,
    headers_only: HEADERS_ONLY = False,
    rehash: REHASH = False,
    suggest: Annotated[
        bool, typer.Option("--suggest", help="Say what one more run or checkpoint would save; takes a few plans more.")
    ] = False,
    ledger: LEDGER = None,
    insecure_permissions: INSECURE = False,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Save the plan as JSON.")] = None,
    as_json: AsJson = False,
) -> None:
    """Which release of these models meets (ε, δ), and is best?

    A plan says which checkpoints are averaged with which weights (and how much noise is added), or drawn with which
    probabilities; what that costs, by which theorem, and who vouches for its premises. No model is looked at unless
    `--objective public_evaluation` or `private_validation` asks for it; then every model that could have been looked at
    is paid for.

    A note says if the ledger would refuse to charge it: its runs are locked, or it would pass the cap on this data.

    Exit code 1: nothing in this portfolio meets the target; the message names the smallest ε that something does.

    Example: `dpmerge plan examples/mnist --epsilon 0.8 --delta 1e-5`
    """
    with one_line_errors(to_go_on(cache, evaluator, private=objective == "private_validation")):
        from dpmerge.planning.planner import plan as compute
        from dpmerge.planning.private_selection import PrivateValidation
        from dpmerge.planning.public_selection import PublicEvaluation
        from dpmerge.releasing.chargeable import why_not_chargeable
        from dpmerge.terms.guarantee import Guarantee

        target = Guarantee(epsilon=epsilon, delta=delta)
        target.require_target()
        output = None if output is None else location(output, "output")
        require_writable("output", output)
        chosen = _objective(
            objective,
            prior=prior,
            evaluator=evaluator,
            tuning=tuning,
            look=look,
            evaluations=evaluations,
            validation_epsilon=validation_epsilon,
            disjoint=disjoint,
            records_per_unit=records_per_unit,
            cache=cache,
            jobs=jobs,
            executor=executor,
        )
        loaded = loaded_portfolio(portfolio, headers_only, allow, rehash=rehash)
        with opened_executor(executor, workers_per_node, jobs=jobs, gpus=True) as workers:
            if isinstance(chosen, PublicEvaluation | PrivateValidation):
                chosen = replace(chosen, executor=workers)
            result = compute(
                loaded,
                target,
                method=method,  # type: ignore[arg-type]
                objective=chosen,
                theorem=theorem,  # type: ignore[arg-type]
                accounting=accounting,  # type: ignore[arg-type]
                conversion=conversion,  # type: ignore[arg-type]
                checkpoints=checkpoints,
                non_private=non_private or (),
            )
        refused = why_not_chargeable(result, ledger, insecure_permissions=insecure_permissions)
        if refused is not None:
            say(f"note: {refused}", err=True)
        document = result.document()
        if output is not None:
            _save(output, document)
        suggested = result.suggestions() if suggest else None
        if as_json:
            further = {} if suggested is None else {"suggestions": [asdict(one) for one in suggested]}
            print_json(document | further)
            return
        from dpmerge.planning.plan_table import print_plan

        print_plan(result, suggested, wide_console())
    if output is not None:
        say("", f"Saved to {output}.")


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
    records_per_unit: int | None,
    cache: Path | None,
    jobs: int,
    executor: str | None,
) -> Objective | PublicEvaluation | PrivateValidation:
    """The objective of that name; options that belong to another one are refused, not ignored."""
    from dpmerge.evaluation.evaluators import load_evaluator
    from dpmerge.planning.objectives import OBJECTIVES, Prior
    from dpmerge.planning.private_selection import PrivateValidation
    from dpmerge.planning.public_selection import PublicEvaluation

    names = (*OBJECTIVES, "prior", "public_evaluation", "private_validation")
    if name not in names:
        raise InvalidInputError("objective", name, ", ".join(names))
    if name == "noise" and evaluator is not None:
        name = "public_evaluation"  # whoever names an evaluator wants it used
    looking = ("public_evaluation", "private_validation")
    belongs: dict[str, tuple[Any, tuple[str, ...]]] = {
        "--prior": (prior, ("prior",)),
        "--evaluator": (evaluator, looking),
        "--look": (look, looking),
        "--cache": (cache, ("public_evaluation",)),
        "--evaluations": (evaluations, looking),
        "--jobs": (jobs if jobs != 1 else None, looking),
        "--executor": (executor, looking),
        "--tuning uncharged": (tuning != "charged" or None, ("public_evaluation",)),
        "--validation-epsilon": (validation_epsilon, ("private_validation",)),
        "--disjoint": (disjoint, ("private_validation",)),
        "--records-per-unit": (records_per_unit, ("private_validation",)),
    }
    for option, (value, owners) in belongs.items():
        if value is not None and name not in owners:
            raise InvalidInputError("objective", name, f"{' or '.join(owners)} where {option} is given")
    if name == "prior":
        return Prior(numbers("prior", prior))
    if name not in looking:
        return OBJECTIVES[name]()
    if evaluator is None:
        accepted = f"module:function, linear:FILE.npz or lm_eval:TASK, for {name}"
        raise InvalidInputError("evaluator", None, accepted, found="nothing")
    scorer, seen = load_evaluator(evaluator), None if look is None else [part.strip() for part in look.split(",")]
    if name == "public_evaluation":
        return PublicEvaluation(
            evaluator=scorer,
            tuning=tuning,  # type: ignore[arg-type]
            look=seen,
            evaluations=500 if evaluations is None else evaluations,
            cache=cache,
        )
    if validation_epsilon is None:
        raise InvalidInputError(
            "validation-epsilon", None, "a finite number > 0 for private_validation", found="nothing"
        )
    return PrivateValidation(
        evaluator=scorer,
        epsilon=validation_epsilon,
        look=seen,
        evaluations=50 if evaluations is None else evaluations,
        disjoint_vouched_by=disjoint,
        records_per_unit=records_per_unit,
    )


def _save(file: Path, document: dict[str, Any]) -> None:
    from dpmerge.portfolio.run_files import require_replaceable, write_atomically

    require_replaceable(file, document["schema"])
    try:
        write_atomically(file, (json.dumps(document, indent=2, allow_nan=False) + "\n").encode())
    except OSError as error:
        accepted = "a file that can be written"
        raise CannotWriteError.from_os(error, field="output", path=file, accepted=accepted) from None
