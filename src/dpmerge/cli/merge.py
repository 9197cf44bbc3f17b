"""`dpmerge merge`: plan, charge, draw, merge, certify."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from dpmerge.cli.options import (
    ALLOW,
    EXECUTOR,
    INSECURE,
    LEDGER,
    PORTFOLIO,
    REQUESTER_KEY,
    WORKERS_PER_NODE,
    asked_passphrase,
    ledger_place,
    loaded_portfolio,
    numbers,
    opened_executor,
    require_jobs,
)
from dpmerge.cli.terminal import AsJson, bytes_shown, one_line_errors, print_json, say, wide_console
from dpmerge.remote.remote_path import location

INTERRUPTED = "nothing was published; if it had been charged, `dpmerge ledger recover PORTFOLIO` finishes it"


def merge(
    portfolio: PORTFOLIO,
    output: Annotated[Path, typer.Option("-o", "--output", help="The folder to make, or the URL of a prefix.")],
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
    jobs: Annotated[int, typer.Option(help="Threads that read, add up, hash and write; of each worker.")] = 2,
    executor: EXECUTOR = None,
    workers_per_node: WORKERS_PER_NODE = None,
    allow: ALLOW = None,
    requester_key: REQUESTER_KEY = None,
    insecure_permissions: INSECURE = False,
    as_json: AsJson = False,
) -> None:
    """Make a model that meets (ε, δ), with a certificate of it.

    Plans (or takes the plan or the weights given), charges the ledger, draws where the plan has a draw, merges,
    certifies. The output folder appears whole, with `privacy-certificate.json` and a model card, or not at all. What
    has been charged and did not get finished is finished by `dpmerge ledger recover`.

    With `--executor` each file of the output is written by a worker, in a folder that all of them share.

    Without `--final` the release is priced so that others may follow it (as a joint release). Exit code 1: nothing
    meets the target, or the cap on this data is reached; then nothing is charged and nothing written. Exit code 2: bad
    input, or a failure; if something was charged by then, a note says so. Exit code 3: a second person has to approve
    this final release; it was requested, and nothing was charged or drawn.

    Example: `dpmerge merge examples/mnist --epsilon 0.8 --delta 1e-5 -o merged`
    """
    with one_line_errors(INTERRUPTED, as_json=as_json):
        from dpmerge.merging.adapter_starts import allowing_adapter_starts
        from dpmerge.releasing.charge_notes import noting
        from dpmerge.releasing.prepare import prepare
        from dpmerge.releasing.release import release

        require_jobs(jobs)
        output = location(output, "output")
        loaded = loaded_portfolio(portfolio, headers_only=True, allow=allow)
        if adapters == "concatenated":
            loaded = allowing_adapter_starts(loaded)
        place = ledger_place(portfolio, ledger)
        plan = prepare(
            loaded,
            epsilon=epsilon,
            delta=delta,
            plan=plan_file,
            weights=None if weights is None else numbers("weights", weights),
            method=method,
            objective=objective,
            theorem=theorem,
            final=final,
            ledger=place,
            request_key=request_key,
            insecure_permissions=insecure_permissions,
            note=lambda text: say(f"note: {text}", err=True),
        )
        with opened_executor(executor, workers_per_node) as workers, bytes_shown("merging") as progress:
            made = release(
                plan,
                out=output,
                ledger=place,
                final=final,
                key=key,
                request_key=request_key,
                overwrite=overwrite,
                reveal_draw=reveal_draw,
                donor=donor,
                adapters=adapters,  # type: ignore[arg-type]
                audit=audit,
                jobs=jobs,
                executor=workers,
                progress=progress,
                requester_key=requester_key,
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
