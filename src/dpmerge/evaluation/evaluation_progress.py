"""How far a long computation is: a bar on standard error, for people at a terminal who have waited for a second.

Guarantees: nothing is ever written where standard error is no terminal, or to standard output.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dpmerge.merging.byte_progress import Progressed

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

__all__ = ["Progressed", "show_progress"]

PATIENCE = 1.0
"""Seconds before a bar appears."""


@contextmanager
def show_progress(progress: Progressed | None, what: str) -> Iterator[Progressed]:
    """The caller's own callback, or else a bar that is there while the context is."""
    if progress is not None:
        yield progress
        return
    bar = _Bar(what)
    try:
        yield bar
    finally:
        bar.stop()


class _Bar:
    def __init__(self, what: str) -> None:
        self._what = what
        self._begun = time.monotonic()
        self._shown: tuple[Progress, TaskID] | None = None

    def __call__(self, done: int, total: int) -> None:
        if self._shown is None:
            if time.monotonic() - self._begun < PATIENCE or not sys.stderr.isatty():
                return
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            bar = Progress(*columns, console=Console(stderr=True), transient=True)
            bar.start()
            self._shown = bar, bar.add_task(self._what, total=total)
        bar, task = self._shown
        bar.update(task, completed=done, total=total)

    def stop(self) -> None:
        if self._shown is not None:
            self._shown[0].stop()
            self._shown = None
