"""Findings for a terminal: what is certified, what an attack has shown, and what that means.

Guarantees: a lower bound is rounded down and a certified figure up, so that a printed violation is one and no printed
guarantee is better than it is.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dpmerge.auditing.findings import Estimate, Finding, Interval
from dpmerge.auditing.printed_figures import SYMBOLS, above, below, percent, ratio

MEANING = {
    "violated": "the attack shows more than is claimed",
    "tight": "the attack shows at least 90 % of what is claimed, and not more",
    "consistent": "nothing contradicts the claim; this attack, with so many trials, does not reach it",
}
STYLES = {"violated": "bold red", "tight": "green", "consistent": ""}


def print_finding(finding: Finding, console: Console) -> None:
    """One claim and one attack, in words."""
    claim, estimate = finding.claim, finding.estimate
    symbol, other = ("ε", "δ") if estimate.quantity == "epsilon" else ("δ", "ε")
    proved = "" if claim.proved else ", not proved for these runs"
    grid = Table.grid(padding=(0, 2))
    grid.add_row(
        "certified" if claim.proved else "claimed",
        f"{symbol} = {above(claim.value)} at {other} = {estimate.given:g} by {claim.by}{proved}",
    )
    grid.add_row(
        "shown",
        f"{symbol} ≥ {below(estimate.bound)} with {percent(estimate.confidence)} confidence ({_effort(estimate)})",
    )
    if estimate.mu is not None:
        certified = "" if claim.mu is None else f"; {'certified' if claim.proved else 'claimed'} {above(claim.mu)}"
        mu = estimate.mu
        grid.add_row("μ", f"{mu.estimate:.4g}, {_between(mu)}{certified}")
    grid.add_row("tightness", ratio(finding.tightness))
    verdict = finding.verdict
    doubt = "" if claim.proved or verdict == "violated" else "; a premise fails for these runs, so nothing is proved"
    grid.add_row("verdict", Text(f"{verdict}: {MEANING[verdict]}{doubt}", style="yellow" if doubt else STYLES[verdict]))
    console.print(grid, highlight=False)


def print_claims(findings: Sequence[Finding], console: Console) -> None:
    """All claims about something, beside the lower bound or bounds."""
    for estimate in dict.fromkeys(finding.estimate for finding in findings):
        subjects = dict.fromkeys(f.subject for f in findings if f.estimate is estimate)
        symbol, other = ("ε", "δ") if estimate.quantity == "epsilon" else ("δ", "ε")
        mu = "" if estimate.mu is None else f"; μ {estimate.mu.estimate:.4g}, {_between(estimate.mu)}"
        console.print(
            Text(
                f"{', '.join(subjects)}: {symbol} ≥ {below(estimate.bound)} at {other} = {estimate.given:g} with "
                f"{percent(estimate.confidence)} confidence ({_effort(estimate)}{mu})"
            )
        )
    console.print(claims_table(findings))


def _between(interval: Interval) -> str:
    return f"between {below(interval.low)} and {above(interval.high)} (two-sided)"


def _effort(estimate: Estimate) -> str:
    if estimate.estimator.startswith("one_run"):
        return f"{estimate.trials:,} canaries in one run, {estimate.estimator} estimator"
    twice = "; made twice, the smaller bound" if estimate.attacks > 1 else ""
    return f"{estimate.trials:,} trials in each world, {estimate.estimator} estimator{twice}"


def claims_table(findings: Sequence[Finding]) -> Table:
    """A row for each finding; the subject is told where there are several."""
    several = len({finding.subject for finding in findings}) > 1
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    if several:
        table.add_column("scenario", overflow="fold")
    table.add_column("claimed by", overflow="fold")
    table.add_column("proved", no_wrap=True)
    for name in ("claimed", "shown", "tightness"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    before = ""
    for finding in findings:
        symbol = SYMBOLS[finding.estimate.quantity]
        cells = [
            finding.claim.by.replace("_", " "),
            "yes" if finding.claim.proved else "no",
            f"{symbol} {above(finding.claim.value)}",
            below(finding.estimate.bound),
            ratio(finding.tightness),
            Text(finding.verdict, style=STYLES[finding.verdict]),
        ]
        if several:
            cells.insert(0, finding.subject if finding.subject != before else "")
            before = finding.subject
        table.add_row(*cells)
    return table
