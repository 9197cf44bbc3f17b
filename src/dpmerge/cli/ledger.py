"""`dpmerge ledger …`: what was released of the data, what it has cost, and the cap on it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpmerge.cli import approvals
from dpmerge.cli.options import (
    ALLOW,
    EXECUTOR,
    INSECURE,
    LEDGER,
    LEDGER_OF,
    REQUESTER_KEY,
    WORKERS_PER_NODE,
    asked_passphrase,
    opened_executor,
    opened_ledger,
)
from dpmerge.cli.terminal import WAITING, AsJson, bytes_shown, one_line_errors, print_json, say, wide_console
from dpmerge.errors import printable

if TYPE_CHECKING:
    from dpmerge.ledger.budget_report import BudgetReport

app = typer.Typer(
    help="What was released of the data, what it has cost together, and the cap on it.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

NEWEST = 50
"""So many releases are listed; more than that nobody reads."""
AT_DELTA = Annotated[float, typer.Option(help="The δ at which ε is given.")]


@app.command()
def show(
    portfolio: LEDGER_OF = None,
    ledger: LEDGER = None,
    delta: AT_DELTA = 1e-5,
    everything: Annotated[
        bool, typer.Option("--all", help=f"List every release, and not only the newest {NEWEST}; --json always does.")
    ] = False,
    insecure_permissions: INSECURE = False,
    as_json: AsJson = False,
) -> None:
    """List the releases, how far each run was looked at, what it has cost together, the cap, and what waits.

    Example: `dpmerge ledger show examples/mnist`
    """
    with one_line_errors(), opened_ledger(portfolio, ledger, insecure_permissions) as opened:
        reports = opened.reports(delta=delta, newest=None if everything or as_json else NEWEST)
        doubt, policy, requests = opened.doubt, opened.policy(), opened.requests()
        _warn(doubt)
        if as_json:
            document = {"ledger": opened.id, "doubt": doubt, "scopes": [_document(each) for each in reports]}
            waiting = [approvals.request_document(each) for each in requests]
            print_json({**document, "policy": policy.body(), "requests": waiting})
            return
        from dpmerge.cli.ledger_table import print_budget
        from dpmerge.ledger.waiting_requests import described_policy

        console = wide_console()
        if not reports:
            console.print(f"{printable(opened.where)}: nothing has been released or capped yet")
        for each in reports:
            print_budget(each, console)
        if policy.needs_others:
            say(described_policy(policy))
        for request in requests:
            say(*approvals.request_lines(request))


@app.command()
def spent(
    portfolio: LEDGER_OF = None,
    ledger: LEDGER = None,
    delta: AT_DELTA = 1e-5,
    insecure_permissions: INSECURE = False,
    as_json: AsJson = False,
) -> None:
    """Print what all releases cost together: one line for each data set, unit and adjacency.

    Example: `dpmerge ledger spent examples/mnist --delta 1e-5`
    """
    with one_line_errors(), opened_ledger(portfolio, ledger, insecure_permissions) as opened:
        reports = opened.reports(delta=delta, newest=0)
        _warn(opened.doubt)
        if as_json:
            names = ("scope", "delta", "epsilon", "why", "cap", "left", "caveats")
            print_json([{name: _document(each)[name] for name in names} for each in reports])
            return
        from dpmerge.cli.ledger_table import cost_line

        for each in reports:
            say(cost_line(each))
        if not reports:
            say("ε = 0: nothing has been released")


@app.command()
def cap(
    portfolio: Annotated[Path, typer.Argument(metavar="PORTFOLIO", help="Runs on the data to be protected.")],
    epsilon: Annotated[float, typer.Option(help="The ε that all releases together may cost …")],
    delta: Annotated[float, typer.Option(help="… at this δ.")],
    privacy_filter: Annotated[
        str,
        typer.Option(
            "--filter",
            "--rule",
            help="The privacy filter that decides whether a release fits: `ceiling` (how far each run may ever be "
            "looked at is fixed now), `gaussian_filter` (full-batch runs) or `renyi_filter` (also random draws and "
            "sampled batches). `--rule` is its name in version 0.1.",
        ),
    ] = "ceiling",
    ceiling: Annotated[
        str | None,
        typer.Option(
            metavar="RUN@STEP,…",
            help="For `ceiling`: the last step of each run that may ever be looked at; default: what fits.",
        ),
    ] = None,
    order: Annotated[
        float | None, typer.Option(help="For `renyi_filter`: the one Rényi order; default: the best for Gaussians.")
    ] = None,
    ledger: LEDGER = None,
    allow: ALLOW = None,
    requester_key: REQUESTER_KEY = None,
    insecure_permissions: INSECURE = False,
    as_json: AsJson = False,
) -> None:
    """Promise that all releases of this data together, now and later, keep within (ε, δ).

    The privacy filter is fixed with the cap. A release that would pass the cap is refused (exit code 1) and not
    charged. Set the cap before the first release: set later, it holds only if whoever set it did not look at what had
    been released. Exit code 3: a second person has to approve it, and nothing was capped.

    Example: `dpmerge ledger cap examples/mnist --epsilon 2 --delta 1e-5 --filter gaussian_filter`
    """
    with one_line_errors(as_json=as_json):
        from dpmerge.releasing.portfolio_ledger import PortfolioLedger

        report = PortfolioLedger.cap(
            portfolio,
            epsilon=epsilon,
            delta=delta,
            privacy_filter=privacy_filter,  # type: ignore[arg-type]
            ceiling=None if ceiling is None else [part.strip() for part in ceiling.split(",")],
            order=order,
            ledger=ledger,
            allow=allow or (),  # type: ignore[arg-type]
            requester_key=requester_key,
            passphrase=asked_passphrase,
            insecure_permissions=insecure_permissions,
        )
        if as_json:
            print_json(_document(report))
            return
        from dpmerge.cli.ledger_table import print_budget

        print_budget(report, wide_console())


@app.command()
def recover(
    portfolio: LEDGER_OF = None,
    ledger: LEDGER = None,
    abandon: Annotated[
        list[str] | None,
        typer.Option(metavar="RELEASE", help="Give up this pending release (the start of its id); it stays charged."),
    ] = None,
    adopt: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="OUT", help="Count this output, whose entry the ledger has lost (it was restored from a backup)."
        ),
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option(
            help="The public key that adopted outputs are signed with; without it every run counts as released whole."
        ),
    ] = None,
    accept: Annotated[
        bool,
        typer.Option(
            "--accept", help="Vouch that every output whose entry is missing was adopted; the ledger records it."
        ),
    ] = False,
    jobs: Annotated[int, typer.Option(help="Threads for merging.")] = 2,
    executor: EXECUTOR = None,
    workers_per_node: WORKERS_PER_NODE = None,
    requester_key: REQUESTER_KEY = None,
    insecure_permissions: INSECURE = False,
    as_json: AsJson = False,
) -> None:
    """Finish releases that were charged and interrupted; or count what a ledger from a backup has lost.

    A release that was killed after it was charged is pending. It is finished now, with the draw it was charged with, or
    given up with `--abandon` (it stays charged: nobody can prove that it was not published). Locks and half-written
    files that killed processes left are removed, and listed. After a ledger was restored from an older backup, name
    every output made since with `--adopt`, and confirm with `--accept` that there are no others. A certificate without
    a signature may be forged: without `--key` all that any run holds counts as released. Exit code 3: a second person
    has to approve `--abandon` or `--accept`; that was requested, and not done.

    Example: `dpmerge ledger recover examples/mnist`
    """
    with (
        one_line_errors("what is not finished stays pending"),
        opened_ledger(portfolio, ledger, insecure_permissions) as opened,
        opened_executor(executor, workers_per_node) as workers,
        bytes_shown("merging") as progress,
    ):
        done = opened.recover(
            abandon=abandon or (),
            adopt=adopt or (),
            key=key,
            accept=accept,
            jobs=jobs,
            executor=workers,
            requester_key=requester_key,
            passphrase=asked_passphrase,
            progress=progress,
        )
    names = ("release", "out", "request", "removed", "outcome")
    lines = [{name: getattr(each, name) for name in names} for each in done]
    told = [{name: value for name, value in line.items() if value is not None} for line in lines]
    if as_json:
        print_json(told)
    else:
        for line in told:
            say(_recovered(line))
        if all("removed" in line for line in told):
            say("Nothing is pending.")
    if any(each.request is not None for each in done):
        raise typer.Exit(WAITING)
    if any(each.unsolved for each in done):
        raise typer.Exit(2)


@app.command()
def verify(
    portfolio: LEDGER_OF = None, ledger: LEDGER = None, insecure_permissions: INSECURE = False, as_json: AsJson = False
) -> None:
    """Check that no entry was changed or lost, and count every cost again.

    Exit code 1 if something is wrong: the first entry that does not hold is named, or what is missing.

    Example: `dpmerge ledger verify examples/mnist`
    """
    with one_line_errors(), opened_ledger(portfolio, ledger, insecure_permissions) as opened:
        verdict = opened.verify()
    if as_json:
        print_json(dataclasses.asdict(verdict))
    elif verdict.broken is not None:
        say(f"entry {verdict.broken}: {verdict.why}", err=True)
    elif verdict.doubt is not None:
        _warn(verdict.doubt)
    else:
        say(f"{verdict.count} entries, each sealed to the one before; every cost comes out as charged")
    if not verdict.ok:
        raise typer.Exit(1)


@app.command()
def export(
    portfolio: LEDGER_OF = None,
    ledger: LEDGER = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="A file; default: standard output.")] = None,
    insecure_permissions: INSECURE = False,
) -> None:
    """Write every entry as JSON. Keep it private: it names runs that have not been released.

    Example: `dpmerge ledger export examples/mnist -o ledger.json`
    """
    with one_line_errors(), opened_ledger(portfolio, ledger, insecure_permissions) as opened:
        document = opened.export(output)
        if output is None:
            print_json(document)


def _recovered(line: dict[str, str]) -> str:
    """One thing that was done, for a person."""
    if "request" in line:
        return line["outcome"]
    return f"removed {line['removed']}" if "removed" in line else " ".join(line.values())


for _verb in (approvals.policy, approvals.approve, approvals.deny):
    app.command()(_verb)


def _warn(doubt: str | None) -> None:
    if doubt is not None:
        say(f"warning: {' '.join(doubt.split())}", err=True)


def _document(report: BudgetReport) -> dict[str, Any]:
    document = dataclasses.asdict(report)
    if report.cap is not None:
        document["cap"] = {name: document["cap"][name] for name in ("epsilon", "delta", "rule", "order")}
        document["cap"]["ceiling"] = {run.name: run.ceiling for run in report.runs if run.ceiling is not None}
    return document
