"""Where adapters started, and whether that matters: to adapters that are put side by side it does not.

An average of low-rank factors is one of models that started alike; Σ λ_i B_i A_i is not an average of factors, and
each product is whole by itself. What was trained beside them (`modules_to_save`, a new head) is averaged all the same.

Guarantees: different starts are allowed here only where the records show that every kept tensor that is no low-rank
factor started alike in all runs; otherwise the portfolio's own answer stands. No cost depends on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.portfolio.recorded_runs import Run
from dpmerge.terms.portfolio_facts import Allowance

FACTORS = (".lora_A.weight", ".lora_B.weight")
STARTS: Allowance = "different_initial_weights"


def allowing_adapter_starts(portfolio: Portfolio) -> Portfolio:
    """The portfolio as `--adapters concatenated` sees it: starts that differ in low-rank factors alone are no matter.

    Args:
        portfolio: of adapters, or of anything else.

    Returns:
        The same runs, with `different_initial_weights` allowed where that is true of all of them.
    """
    if STARTS in portfolio.allowed or not _started_alike(portfolio.runs):
        return portfolio
    return replace(portfolio, allowed=portfolio.allowed | {STARTS})


def needed_allowances(allowed: Sequence[Allowance], runs: Sequence[Run]) -> list[Allowance]:
    """Of the allowances that a release makes use of, those it needs if its adapters are concatenated."""
    return [name for name in allowed if name != STARTS or not _started_alike(runs)]


def _started_alike(runs: Sequence[Run]) -> bool:
    """Whether all runs are adapters that know their starts, and these differ in nothing but low-rank factors."""
    beside = []
    for run in runs:
        facts = run.manifest.tensors
        if facts is None or not any(name.endswith(FACTORS) for name in facts.trained):
            return False
        if not {*facts.trained, *facts.frozen} <= facts.initial.keys():
            return False
        beside.append({name: digest for name, digest in facts.initial.items() if not name.endswith(FACTORS)})
    return all(each == beside[0] for each in beside[1:])
