"""`dpmerge ledger show` for a person: what was released, what it cost, what is left."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dpmerge.accounting.rounding import format_up
from dpmerge.ledger.budget_report import BudgetReport


def cost_line(report: BudgetReport) -> str:
    """What everything costs together, in one line."""
    cost = f"ε = {format_up(report.epsilon)} at δ = {report.delta:g}" if report.epsilon is not None else "no number"
    why = f" ({report.why})" if report.why else ""
    return f"{report.scope}: {cost}{why}; {_cap(report)}"


def print_budget(report: BudgetReport, console: Console) -> None:
    """Print one budget scope of a ledger."""
    console.print(Text(cost_line(report), style="bold"))
    if report.releases:
        console.print(_releases(report))
        if (before := report.release_count - len(report.releases)) > 0:
            console.print(f"and {before:,} before these: --all lists them")
    elif report.release_count == 0:
        console.print("Nothing has been released yet.")
    if report.runs:
        console.print(_runs(report))
    for caveat in report.caveats:
        console.print(Text(f"- {caveat}", style="yellow"))


def _cap(report: BudgetReport) -> str:
    if report.cap is None or report.left is None:
        return "no cap"
    cap, left = report.cap, report.left
    if cap.rule == "ceiling":
        steps = f"{left.left:g} of its {left.limit:g} steps not looked at yet; all within it is free"
        return f"cap ε = {cap.epsilon:g} at δ = {cap.delta:g} by ceiling ({steps})"
    fits = "" if left.epsilon is None else f"; of runs not seen yet, ε up to about {left.epsilon:.4g} fits"
    return (
        f"cap ε = {cap.epsilon:g} at δ = {cap.delta:g} by {cap.rule}, "
        f"{left.left:.4g} of {left.limit:.4g} left ({left.currency}){fits}"
    )


def _releases(report: BudgetReport) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("entry", justify="right", no_wrap=True)
    table.add_column("charged", no_wrap=True)
    table.add_column("release", no_wrap=True)
    table.add_column("status", no_wrap=True)
    table.add_column("what")
    for line in report.releases:
        marks = ["final"] if line.final else []
        marks += [f"1 of {line.candidates} drawn"] if line.candidates > 1 else []
        marks += ["adopted"] if line.adopted else []
        what = line.recipe if len(line.recipe) <= 120 else line.recipe[:119] + "…"
        table.add_row(
            str(line.seq),
            line.time[:16].replace("T", " "),
            line.release_id[:12],
            line.status,
            f"{what} ({', '.join([line.theorem, *marks])})",
        )
    return table


def _runs(report: BudgetReport) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("run")
    table.add_column("looked at up to step", justify="right")
    ceilings = any(run.ceiling is not None for run in report.runs)
    if ceilings:
        table.add_column("ceiling", justify="right")
    table.add_column("locked by")
    for run in report.runs:
        limit = ["–" if run.ceiling is None else str(run.ceiling)] if ceilings else []
        table.add_row(run.name, str(run.step), *limit, (run.locked_by or "")[:12])
    return table
