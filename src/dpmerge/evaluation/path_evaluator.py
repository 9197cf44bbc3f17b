"""Evaluators that ask for a folder: from the path of a merged model, as transformers and PEFT load it, to a number.

Guarantees: in each process `initialise` is called once, before the first score and after a fork anew; an evaluator
goes to other processes by its name, as functions do.
Refuses: what is no function, and tensors where a folder is asked for.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import reduce
from pathlib import Path
from typing import Any, SupportsFloat, overload

from dpmerge.errors import InvalidInputError

PathScore = Callable[[Path], SupportsFloat]

_initialised: set[tuple[int, Callable[[], object]]] = set()
_initialising = threading.RLock()


class PathEvaluator:
    """What `path_evaluator` makes of a function."""

    def __init__(
        self, function: PathScore, initialise: Callable[[], object] | None = None, identity: str | None = None
    ) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.initialise = initialise
        self.identity = identity

    def __call__(self, folder: Any, /) -> SupportsFloat:  # Any, so that it is an Evaluator; a Path in fact
        if not isinstance(folder, Path):
            accepted = "the path of a model's folder, as evaluate, frontier and plan hand it over"
            raise InvalidInputError("folder", None, accepted, found=f"a {type(folder).__name__}")
        if self.initialise is not None:
            _once_a_process(self.initialise)
        return self.function(folder)

    def __reduce__(self) -> str | tuple[Any, ...]:
        name: str = getattr(self.function, "__qualname__", "")
        found: Any = sys.modules.get(getattr(self.function, "__module__", ""))
        with suppress(AttributeError):
            found = reduce(getattr, name.split("."), found)
        # As a decorated function by its name, which pickle would not find to be that function.
        return name if found is self else (PathEvaluator, (self.function, self.initialise, self.identity))


def _once_a_process(initialise: Callable[[], object]) -> None:
    key = (os.getpid(), initialise)
    with _initialising:
        if key not in _initialised:
            initialise()
            _initialised.add(key)


@overload
def path_evaluator(function: PathScore, /) -> PathEvaluator: ...


@overload
def path_evaluator(
    *, initialise: Callable[[], object] | None = None, identity: str | None = None
) -> Callable[[PathScore], PathEvaluator]: ...


def path_evaluator(
    function: PathScore | None = None,
    /,
    *,
    initialise: Callable[[], object] | None = None,
    identity: str | None = None,
) -> PathEvaluator | Callable[[PathScore], PathEvaluator]:
    """Mark a function that scores the folder of a merged model, of which more is better, on public data.

    The folder holds the merged weights as safetensors, in the files of the run that weighs most, with that run's
    configuration and tokenizer: what `from_pretrained` loads; for LoRA adapters what PEFT loads. It lies where TMPDIR
    says, for its owner alone, and is removed after the score, also after an error or an interrupt.

    Args:
        function: from the folder's `pathlib.Path` to a finite number; used as a decorator.
        initialise: called without arguments, once in each process, before its first score: to load test data and
            tokenizers that all merges are scored with.
        identity: what stands for the evaluator in a file of scores, beside its name and source if it is named on the
            command line; without either, scores are kept in memory only.

    Returns:
        The evaluator: for Python, or for a file `mine.py`, named on the command line `mine:function`.

    Raises:
        InvalidInputError: not a function.

    Example:
        >>> @path_evaluator
        ... def smallness(folder):
        ...     return -sum(file.stat().st_size for file in folder.glob("*.safetensors"))
        >>> smallness(Path("examples/probe/s16")) < 0
        True
    """
    for name, given in (("path_evaluator", function), ("initialise", initialise)):
        if given is not None and not callable(given):
            raise InvalidInputError(name, None, "a function", found=f"a {type(given).__name__}")
    if function is not None:
        return PathEvaluator(function, initialise, identity)
    return lambda decorated: PathEvaluator(decorated, initialise, identity)
