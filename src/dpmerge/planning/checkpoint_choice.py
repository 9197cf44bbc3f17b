"""Which of the usable checkpoints are considered: all that were kept, each run's final one, or those named.

Guarantees: what was not asked for is left out, and the reason says so.
Refuses: names of checkpoints that are not there or have no cost, and a choice that leaves nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dpmerge.errors import InvalidInputError
from dpmerge.planning.usable_checkpoints import UsableCheckpoint, UsableCheckpoints

AskedCheckpoints = str | Sequence[str]
"""`all`, `final`, or names: run@step, as a list or separated by commas."""

_ACCEPTED = "all, final (the last one kept of each run), or run@step, each once, separated by commas"


def asked_checkpoints(usable: UsableCheckpoints, asked: AskedCheckpoints) -> UsableCheckpoints:
    """Only the checkpoints asked for; names decide the order too.

    Args:
        usable: All there are.
        asked: `all`, `final` or names.

    Returns:
        Those of them that were asked for, the others named among what was left out.

    Raises:
        InvalidInputError: An unknown name, one named twice, or nothing left.

    >>> from dpmerge import Portfolio
    >>> from dpmerge.planning.usable_checkpoints import usable_checkpoints
    >>> usable = usable_checkpoints(Portfolio.load("examples/mnist", contents=False), 1e-5)
    >>> [len(asked_checkpoints(usable, asked).checkpoints) for asked in ("all", "final", "c2-s32@8,c2-s64@20")]
    [20, 11, 2]
    """
    if asked == "all":
        return usable
    kept = _final(usable) if asked == "final" else _named(usable, asked)
    others = {checkpoint.name for checkpoint in usable.checkpoints} - {checkpoint.name for checkpoint in kept}
    left_out = {**usable.left_out, **dict.fromkeys(sorted(others), "not among the checkpoints asked for")}
    return replace(usable, checkpoints=kept, left_out=left_out)


def _final(usable: UsableCheckpoints) -> tuple[UsableCheckpoint, ...]:
    last = {run.id: max(saved.step for saved in run.checkpoints) for run in usable.portfolio.runs if run.checkpoints}
    kept = tuple(c for c in usable.checkpoints if c.saved.step == last[c.run.id])
    if not kept:
        found = "final, and no run's last checkpoint has a cost at this δ"
        raise InvalidInputError("checkpoints", "final", _ACCEPTED, found=found)
    return kept


def _named(usable: UsableCheckpoints, asked: AskedCheckpoints) -> tuple[UsableCheckpoint, ...]:
    names = [part.strip() for part in asked.split(",")] if isinstance(asked, str) else list(asked)
    if not names or len(set(names)) < len(names):
        raise InvalidInputError("checkpoints", asked, _ACCEPTED)
    return tuple(usable[name] for name in names)
