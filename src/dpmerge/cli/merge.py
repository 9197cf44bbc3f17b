"""`dpmerge merge`: plan, charge, draw, merge, certify."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dpmerge.cli.options import (
    ALLOW,
    INSECURE,
    LEDGER,
    PORTFOLIO,
    asked_passphrase,
    ledger_place,
    loaded_portfolio,
    numbers,
    require_jobs,
)
from dpmerge.cli.terminal import AsJson, bytes_shown, one_line_errors, print_json, say, wide_console
from dpmerge.errors import InvalidInput, NoGuarantee, TargetOutOfReach

if TYPE_CHECKING:
    from dpmerge.planning.plan import Plan
    from dpmerge.planning.planned import Planned
    from dpmerge.planning.target import Guarantee
    from dpmerge.portfolio.portfolio import Portfolio

LONGEST_WORDS = 500
"""Characters of what was asked for that are written down with a charge."""

WORTH_A_HINT = 0.9
"""The share of the noise that a final release must leave for it to be mentioned."""

INTERRUPTED = "nothing was published; if it had been charged, `dpmerge ledger recover PORTFOLIO` finishes it"


def merge(
    portfolio: PORTFOLIO,
    output: Annotated[Path, typer.Option("-o", "--output", help="The folder to make.")],
    epsilon: Annotated[float | None, typer.Option(help="The ε to meet.")] = None,
    delta: Annotated[float | None, typer.Option(help="The δ to meet it at.")] = None,
    plan_file: Annotated[
        Path | None, typer.Option("--plan", help="Make this plan (`dpmerge plan -o FILE`), priced again.")
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(metavar="RUN@STEP=W,…", help="Make this average; the weights must not come from looking."),
    ] = None,
    method: Annotated[str | None, typer.Option(help="`select`, `combine`, `mix` or `auto`, as for `plan`.")] = None,
    objective: Annotated[
        str | None, typer.Option(help="`noise` or `saturate`; for the others save a plan and give it by `--plan`.")
    ] = None,
    theorem: Annotated[
        str | None,
        typer.Option(
            help="`auto`, `joint_release`; with `--final` also `last_step`, `hidden_state`, `merged_trajectory`."
        ),
    ] = None,
    final: Annotated[
        bool,
        typer.Option("--final", help="Nothing else of these runs will ever be released: they are locked for it."),
    ] = False,
    key: Annotated[Path | None, typer.Option(help="Sign with this private key (`dpmerge keygen`).")] = None,
    ledger: LEDGER = None,
    request_key: Annotated[
        str | None, typer.Option(help="A name for this request: asked again, it returns the same draw and output.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what is in the output folder.")] = False,
    reveal_draw: Annotated[
        bool, typer.Option("--reveal-draw", help="Say in the certificate which candidate was drawn, and its own ε.")
    ] = False,
    donor: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="Whose config and tokenizer are copied; default: the largest weight."),
    ] = None,
    adapters: Annotated[
        str, typer.Option(help="LoRA adapters: averaged `as_trained`, or `concatenated` (exactly Σ λ ΔW).")
    ] = "as_trained",
    audit: Annotated[
        bool,
        typer.Option("--audit", help="Attack the simulated release first; the certificate says what that showed."),
    ] = False,
    jobs: Annotated[int, typer.Option(help="Threads that read, add up, hash and write.")] = 2,
    allow: ALLOW = None,
    insecure_permissions: INSECURE = False,
    as_json: AsJson = False,
) -> None:
    """Make a model that meets (ε, δ), with a certificate of it.

    Plans (or takes the plan or the weights given), charges the ledger, draws where the plan has a draw, merges,
    certifies. The output folder appears whole, with `privacy-certificate.json` and a model card, or not at all. What
    has been charged and did not get finished is finished by `dpmerge ledger recover`.

    Without `--final` the release is priced so that others may follow it (as a joint release). Exit code 1: nothing
    meets the target, or the cap on this data is reached; then nothing is charged and nothing written. Exit code 2: bad
    input, or a failure; if something was charged by then, a note says so.

    Example: `dpmerge merge examples/mnist --epsilon 0.8 --delta 1e-5 -o merged`
    """
    with one_line_errors(INTERRUPTED):
        from dpmerge.releasing.again import asked_before
        from dpmerge.releasing.release import noting, release

        require_jobs(jobs)
        loaded = loaded_portfolio(portfolio, headers_only=True, allow=allow)
        place = ledger_place(portfolio, ledger)
        if plan_file is not None:
            options = {"--epsilon": epsilon, "--delta": delta, "--weights": weights, "--theorem": theorem}
            _refuse_beside("--plan", {**options, "--method": method, "--objective": objective})
        asked = _asked(
            epsilon=epsilon,
            delta=delta,
            plan=plan_file,
            weights=weights,
            method=method,
            objective=objective,
            theorem=theorem,
            final=final or None,
        )
        planned = asked_before(loaded, place, request_key, asked, insecure_permissions)
        if planned is None:
            planned = _planned(
                loaded,
                epsilon,
                delta,
                plan_file,
                weights,
                method,
                objective,
                theorem,
                final,
                place,
                insecure_permissions,
            )
            planned = replace(planned, asked=asked)
        shown = None
        if audit:
            from dpmerge.audit.releases import audited

            terms = (planned if final else planned.lasting()).terms
            shown = audited(terms, delta=planned.target.delta)
        with bytes_shown("merging") as progress:
            made = release(
                planned,
                out=output,
                ledger=place,
                final=final,
                key=key,
                request_key=request_key,
                overwrite=overwrite,
                reveal_draw=reveal_draw,
                donor=donor,
                adapters=adapters,  # type: ignore[arg-type]
                audit=shown,
                jobs=jobs,
                progress=progress,
                passphrase=asked_passphrase,
                insecure_permissions=insecure_permissions,
            )
        with noting(f"release {made.release_id} is out, in {output}: it is charged and complete", output):
            if audit and made.already:
                say("note: not audited again; it is what was released before", err=True)
            if as_json:
                print_json(made.document())
            else:
                from dpmerge.releasing.release_table import print_release

                print_release(made, wide_console())
            sys.stdout.flush()


def _asked(**options: object) -> dict[str, str]:
    """What was asked for, in words: asked again with the same key, it is the same release, however it was planned."""
    given = {name: value for name, value in options.items() if value is not None}
    if isinstance(file := given.get("plan"), Path):
        from dpmerge.documents import read_bytes

        given["plan"] = sha256(read_bytes(file)).hexdigest()
    words = {name: str(value) for name, value in given.items()}
    # Written down as one line of text; what is longer, or none, is known by its digest.
    return {name: text if _fits(text) else sha256(os.fsencode(text)).hexdigest() for name, text in words.items()}


def _fits(text: str) -> bool:
    return len(text) <= LONGEST_WORDS and text.isprintable()


def _planned(
    portfolio: Portfolio,
    epsilon: float | None,
    delta: float | None,
    plan_file: Path | None,
    weights: str | None,
    method: str | None,
    objective: str | None,
    theorem: str | None,
    final: bool,
    ledger: str | Path,
    insecure_permissions: bool,
) -> Planned:
    """What is to be made, from whichever of the three ways of saying it was used."""
    from dpmerge.certificate.figures import down
    from dpmerge.planning.planned import Planned, read_planned, stated_weights
    from dpmerge.planning.planner import plan
    from dpmerge.planning.target import Guarantee

    if plan_file is not None:
        return read_planned(plan_file, portfolio)
    if epsilon is None or delta is None:
        missing = " and ".join(n for n, v in (("--epsilon", epsilon), ("--delta", delta)) if v is None)
        raise InvalidInput("target", None, "--epsilon and --delta, or --plan FILE", found=f"no {missing}")
    Guarantee(epsilon=epsilon, delta=delta).require_target()
    # What is certified is rounded up to six digits: aimed for is what that leaves within the target.
    target = Guarantee(epsilon=down(epsilon), delta=delta)
    if theorem not in (None, "auto", "joint_release") and not final:
        accepted = "auto or joint_release, or --final: other theorems hold only for the last release of these runs"
        raise InvalidInput("theorem", theorem, accepted)
    chosen = theorem or ("auto" if final else "joint_release")
    if chosen == "auto" and not final:
        chosen = "joint_release"
    if weights is not None:
        _refuse_beside("--weights", {"--method": method, "--objective": objective})
        return stated_weights(portfolio, numbers("weights", weights), target, theorem=chosen)  # type: ignore[arg-type]
    if objective not in (None, "noise", "saturate"):
        accepted = "noise or saturate; plan with the others first (`dpmerge plan … -o FILE`) and give --plan FILE"
        raise InvalidInput("objective", objective, accepted)
    rule: Literal["noise", "saturate"] = "saturate" if objective == "saturate" else "noise"
    from dpmerge.releasing.available import available

    left = available(portfolio, ledger, final=final, delta=delta, insecure_permissions=insecure_permissions)
    _note_left_out(portfolio, left, final)
    try:
        wanted = plan(
            left,
            target,
            method=method or "auto",  # type: ignore[arg-type]
            objective=rule,
            theorem="auto" if method == "select" else chosen,  # type: ignore[arg-type]
        )
    except TargetOutOfReach as error:
        raise error if final or theorem is not None else _met_by_a_final_one(error, left, target, rule) from None
    if not final and method in (None, "auto") and theorem is None:
        _hint_at_final(wanted, rule)
    return Planned.of(wanted)


def _met_by_a_final_one(
    error: TargetOutOfReach, portfolio: Portfolio, target: Guarantee, objective: Literal["noise", "saturate"]
) -> TargetOutOfReach:
    """The same refusal, with the way out if there is one by the same rule: of imported runs no noise is known."""
    from dpmerge.planning.planner import plan

    try:
        plan(portfolio, target, objective=objective)
    except NoGuarantee:
        return error
    hint = "a final release (--final), which locks its runs, meets it"
    return TargetOutOfReach(error.epsilon, error.delta, error.smallest, error.candidate, hint)


def _note_left_out(whole: Portfolio, left: Portfolio, final: bool) -> None:
    """Say which runs are planned around, and why."""
    kept = {run.id: len(run.checkpoints) for run in left.runs}
    gone = [run.id for run in whole.runs if kept.get(run.id, 0) < len(run.checkpoints)]
    if gone:
        why = "released from before, locked, or beyond the ceiling" if final else "locked, or beyond the ceiling"
        say(f"note: planned without {', '.join(gone)} ({why}; `dpmerge ledger show` says which)", err=True)


def _hint_at_final(lasting: Plan, objective: Literal["noise", "saturate"]) -> None:
    """Say what a final release would gain, while nothing is charged: runs that were seen cannot have one any more."""
    from dpmerge.planning.planner import plan

    if lasting.noise_to_signal is None:  # nothing to compare with
        return
    best = plan(lasting.portfolio, lasting.target, objective=objective)
    ours, theirs = lasting.noise_to_signal, best.noise_to_signal
    if best.is_final and ours and theirs is not None and theirs < WORTH_A_HINT * ours:
        less = 1 - theirs / ours
        say(
            f"note: as the last release of its runs (--final) this would carry {less:.0%} less noise; a run that was "
            "released from before cannot be in one",
            err=True,
        )


def _refuse_beside(option: str, others: Mapping[str, object]) -> None:
    for name, value in others.items():
        if value is not None:
            raise InvalidInput(name.removeprefix("--"), value, f"nothing beside {option}, which says it already")
