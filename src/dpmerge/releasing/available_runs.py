"""What of a portfolio may still be released: without locked runs, within the ceiling, unseen runs for a final release.

Runs that share a noise seed are in final releases alone: of all of them one is ever seen.

Guarantees: a hint for planning and nothing more; whether a release is allowed the ledger decides when it is charged.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from dpmerge.errors import RunsLockedError
from dpmerge.ledger.entries import BudgetScope
from dpmerge.ledger.identity import identity_of
from dpmerge.ledger.ledger import Ledger
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.portfolio.recorded_runs import Run
from dpmerge.portfolio.shared_seeds import in_a_group
from dpmerge.releasing.ledger_location import is_missing


def available(
    portfolio: Portfolio, where: str | Path, *, final: bool, delta: float, insecure_permissions: bool = False
) -> Portfolio:
    """The portfolio with what its ledger leaves of it."""
    if not final:
        portfolio = _without_groups(portfolio)
    if is_missing(where):
        return portfolio
    with Ledger.open(where, insecure_permissions=insecure_permissions) as ledger:
        scope = BudgetScope(portfolio.dataset, portfolio.unit, portfolio.adjacency.value)
        standing = ledger.budget_report(scope, delta, newest=0)
    known = {run.identity: run for run in standing.runs}
    capped = standing.cap is not None and standing.cap.rule == "ceiling"
    left: list[Run] = []
    for run in portfolio.runs:
        seen = known.get(identity_of(run.manifest))
        if seen is not None and (seen.locked_by is not None or (final and seen.step > 0)):
            continue
        highest = (0 if seen is None or seen.ceiling is None else seen.ceiling) if capped else run.mechanism.steps
        kept = tuple(saved for saved in run.checkpoints if saved.step <= highest)
        if kept or not run.checkpoints:
            left.append(replace(run, checkpoints=kept))
    if not any(run.checkpoints for run in left):
        what = "every run was released from, so none can be in a final release" if final else "every run is locked"
        raise RunsLockedError(
            f"{portfolio.path}: {what}, or lies beyond the ceiling (`dpmerge ledger show` says which); add new runs"
        )
    return replace(portfolio, runs=tuple(left))


def _without_groups(portfolio: Portfolio) -> Portfolio:
    """The runs that others may follow."""
    left = tuple(run for run in portfolio.runs if not in_a_group(run))
    if not any(run.checkpoints for run in left) and len(left) < len(portfolio.runs):
        raise RunsLockedError(
            f"{portfolio.path}: all runs share a noise seed with another, so that one of them, drawn once, is all that "
            "may ever be released; make it a final release, final=True (--final), which locks all of them"
        )
    return replace(portfolio, runs=left)
