"""A call on another machine: the same code there as here, in the same folder, with the same modules to import.

Guarantees: a worker unpickles a call only after it was seen to have this version of dpmerge and of Python; it works in
the folder of who called, where it has one of that name, so that modules and data are found as they are at home. One
call at a time in a process: an evaluator may keep a model of its own.
Refuses: workers with another version.
"""

from __future__ import annotations

import os
import pickle
import platform
import sys
import threading
from concurrent.futures import BrokenExecutor
from dataclasses import dataclass
from typing import Any

import dpmerge
from dpmerge.errors import InvalidInputError


@dataclass(frozen=True)
class Home:
    """Where a call comes from."""

    dpmerge: str
    python: str
    folder: str
    path: tuple[str, ...]

    @classmethod
    def here(cls) -> Home:
        return cls(dpmerge.__version__, _python(), os.getcwd(), tuple(entry or os.getcwd() for entry in sys.path))


class LostWorkerError(BrokenExecutor):
    """Workers that died, or cannot be reached any more, with a call that may be made again.

    Args:
        words: what is known of it.
        attempts: how many workers that were.
    """

    def __init__(self, words: str, attempts: int = 1) -> None:
        super().__init__(words)
        self.attempts = attempts


_ONE_AT_A_TIME = threading.Lock()


def call(home: Home, pickled: bytes) -> Any:
    """What a worker does."""
    with _ONE_AT_A_TIME:
        return _call(home, pickled)


def _call(home: Home, pickled: bytes) -> Any:
    for what, here, there in (("dpmerge", home.dpmerge, dpmerge.__version__), ("Python", home.python, _python())):
        if here != there:
            problem = f"executor: a worker on {platform.node()} has {what} {there}, and {here} asks it"
            raise InvalidInputError("executor", there, "install the same on every machine", problem=problem)
    if os.path.isdir(home.folder):
        os.chdir(home.folder)
    sys.path += [entry for entry in home.path if entry not in sys.path]
    function, arguments, named = pickle.loads(pickled)  # noqa: S301  (from who may run any code here)
    return function(*arguments, **named)


def _python() -> str:
    return ".".join(map(str, sys.version_info[:2]))
