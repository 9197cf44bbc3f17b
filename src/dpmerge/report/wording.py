"""Figures and names in words, the same on the page, in pictures and in the terminal.

Guarantees: an ε is rounded up, so that what is printed still holds; a name shows every character it has on one line.
"""

from __future__ import annotations

import math
from typing import Protocol

from dpmerge.accounting.rounding import format_up
from dpmerge.errors import printable
from dpmerge.planning.analysis import Analysis, Recommendation, Utility

NOT_PROVED = "not proved here"
LONGEST_NAME = 28


class Named(Protocol):
    """A curve, a line, a panel or a series."""

    @property
    def name(self) -> str: ...
    @property
    def proved(self) -> bool: ...


def epsilon(value: float) -> str:
    """ε rounded up; a dash where there is none.

    >>> epsilon(0.63391), epsilon(float("inf")), epsilon(float("nan"))
    ('0.6340', '∞', '–')
    """
    return format_up(None if math.isnan(value) else value)


def utility(value: float) -> str:
    return f"{value:.4g}" if math.isfinite(value) else "–"


def percent(share: float) -> str:
    """A probability for a table; the exact one is in the numbers.

    >>> percent(0.98), percent(0.00012345)
    ('98%', '0.01234%')
    """
    return f"{100 * share:.4g}%"


def direction(measured: Utility) -> str:
    return "higher is better" if measured.higher_is_better else "lower is better"


def label(line: Named) -> str:
    """A name that says when what it names is not proved, in these words unless it has its own.

    >>> from types import SimpleNamespace
    >>> [label(SimpleNamespace(name=name, proved=False)) for name in ("paper", "paper (assumed)")]
    ['paper (not proved here)', 'paper (assumed)']
    """
    name = printable(line.name)
    said = line.proved or name.endswith("(assumed)") or "not proved" in name
    return name if said else f"{name} ({NOT_PROVED})"


def accounted(plan: Recommendation) -> str:
    """The theorem, and whether the plan can be the only release of its runs alone."""
    theorem = printable(plan.theorem) or "–"
    return f"{theorem}, final" if plan.final else theorem


def released(plan: Recommendation) -> str:
    """What a plan releases, one line an outcome."""
    if len(plan.outcomes) == 1:
        return printable(plan.outcomes[0][1])
    return "\n".join(f"{percent(probability)}: {printable(recipe)}" for probability, recipe in plan.outcomes)


def command(analysis: Analysis, plan: Recommendation) -> str:
    """The command that makes this very plan: its own target, to the last digit."""
    return printable(f"{analysis.command} --epsilon {plan.target!r} --delta {analysis.delta!r}")


def falls(analysis: Analysis, plan: Recommendation | None = None) -> str:
    """In words, that a plan is worth less than one of a smaller target: this one, or the one that loses most."""
    higher = analysis.utility.higher_is_better
    best: Recommendation | None = None
    found: list[tuple[float, Recommendation, Recommendation]] = []
    for each in analysis.recommendations:
        if not math.isfinite(each.utility):
            continue
        if best is not None and (loss := (best.utility - each.utility) * (1 if higher else -1)) > 0:
            found.append((loss, best, each))
        else:
            best = each
    told = [case for case in found if plan in (None, case[2]) and utility(case[1].utility) != utility(case[2].utility)]
    if not told:
        return ""
    _, before, after = max(told, key=lambda case: case[0])
    name = printable(analysis.utility.name)
    return (
        f"More ε does not always help here: {name} is {utility(after.utility)} for the plan of target "
        f"ε = {after.target:g} and {utility(before.utility)} for that of ε = {before.target:g} "
        f"({direction(analysis.utility)}). Plans are chosen without looking at any model; to take the other one "
        "because of this figure is to look."
    )


def short(name: str, limit: int = LONGEST_NAME) -> str:
    """A name for an axis. Both ends are kept: runs of one family differ at the end.

    >>> short("resnet-cifar-noise-32@2000", 12)
    'resne…2@2000'
    """
    name = printable(name)
    if len(name) <= limit:
        return name
    head = (limit - 1) // 2
    return f"{name[:head]}…{name[head + 1 - limit :]}"
