"""Figures and names in words, the same on the page, in pictures and in the terminal.

Guarantees: an ε is rounded up, so that what is printed still holds; a name shows every character it has on one line.
"""

from __future__ import annotations

import math
from typing import Protocol

from dpmerge.accounting.rounding import format_up
from dpmerge.errors import printable
from dpmerge.planning.analysis import Recommendation, Utility

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
