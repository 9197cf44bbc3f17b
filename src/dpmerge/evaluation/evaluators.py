"""What scores a merged model: any callable from its tensors to a number, on data that is public.

Guarantees: an evaluator named on the command line is what its name says, and two with the same identity score alike.
Refuses, in one line: modules that do not import, names that are not there, data that is not what it should be.
No evaluator may look at private data: choosing by it would be a release that nobody accounts for.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
from collections.abc import Collection, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any, Protocol, SupportsFloat, runtime_checkable

import numpy as np

from dpmerge.errors import InvalidInputError
from dpmerge.evaluation.linear_classifier import LinearClassifier
from dpmerge.evaluation.merged_model import Tensors
from dpmerge.evaluation.path_evaluator import PathEvaluator
from dpmerge.files import open_regular
from dpmerge.remote.remote_path import location
from dpmerge.terms.recipe import Recipe

_ACCEPTED = "module:function, or linear:PATH.npz with arrays features and labels, or lm_eval:TASK"


class Evaluator(Protocol):
    """From tensors by name to a finite number, of which more is better.

    An attribute `identity: str` says that two objects that have it alike score alike, whatever session they are in:
    without it scores are not kept in files. It should change with the code, and with the data the evaluator reads.

    Example:
        >>> def sparsity(tensors):
        ...     return np.mean([np.mean(tensor == 0) for tensor in tensors.values()])
        >>> float(sparsity({"weight": np.array([0.0, 1.0])}))
        0.5
    """

    def __call__(self, tensors: Tensors, /) -> SupportsFloat: ...


class BatchScorer(Protocol):
    """The scores of many recipes over models that are known already."""

    def __call__(self, recipes: Sequence[Recipe], /) -> Sequence[SupportsFloat]: ...


@runtime_checkable
class BatchEvaluator(Protocol):
    """An evaluator that knows a shorter way to score many mixtures of the same models than one after the other."""

    def __call__(self, tensors: Tensors, /) -> SupportsFloat: ...

    def prepare(self, models: Mapping[str, Tensors], *, trained: Collection[str], noise_draws: int) -> BatchScorer:
        """Look at the models once. Each is read from disk when it is asked for, every time it is.

        `trained` are the tensors that release noise falls on; all others are the same in all models. A recipe with
        release noise is scored by the mean over `noise_draws` examples of it.
        """
        ...


class NamedEvaluator:
    """A function of a module, by its name `module:function`: it is sent to other processes as that name."""

    def __init__(self, spec: str, function: Evaluator, identity: str | None) -> None:
        self.spec = spec
        self.function = function
        self.identity = identity

    def __call__(self, tensors: Tensors) -> SupportsFloat:
        return self.function(tensors)

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrived, (self.spec, self.identity)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.spec!r})"


def takes_folder(evaluator: Evaluator) -> bool:
    """Whether it asks for a model's folder, and not for tensors."""
    return isinstance(evaluator.function if isinstance(evaluator, NamedEvaluator) else evaluator, PathEvaluator)


class NamedBatchEvaluator(NamedEvaluator):
    """The same for a function that can score many recipes at once."""

    def prepare(self, models: Mapping[str, Tensors], *, trained: Collection[str], noise_draws: int) -> BatchScorer:
        assert isinstance(self.function, BatchEvaluator)
        return self.function.prepare(models, trained=trained, noise_draws=noise_draws)


def _arrived(spec: str, identity: str | None) -> Evaluator:
    """The evaluator of that name in a worker, which must be the one that scores were asked of."""
    found = load_evaluator(spec)
    if identity_of(found) != identity:
        problem = f"evaluator: {spec} has other code in a worker than where scores were asked for"
        raise InvalidInputError(
            "evaluator", spec, "put the same files on every machine, and start again", problem=problem
        )
    return found


def identity_of(evaluator: Evaluator) -> str | None:
    """What stands for the evaluator in a file of scores, if anything can."""
    identity = getattr(evaluator, "identity", None)
    return identity if isinstance(identity, str) else None


def load_evaluator(spec: str) -> Evaluator:
    """The evaluator named on the command line.

    The module is imported as `python -m` would: from the current folder first. The function's identity is its name,
    the digest of its module's source and, where it has one, its own `identity`; data it reads is not covered.

    Args:
        spec: `module:function`, `linear:PATH.npz` (see LinearClassifier) or `lm_eval:TASK?name=value&…`.

    Returns:
        The evaluator, which other processes find by the same name.

    Raises:
        InvalidInputError: no such module, function or file, or data that is not what it should be.

    Example:
        >>> load_evaluator("statistics:mean")
        NamedEvaluator('statistics:mean')
    """
    kind, colon, name = spec.partition(":")
    if not colon or not kind or not name:
        raise InvalidInputError("evaluator", spec, _ACCEPTED)
    if kind == "lm_eval":
        from dpmerge.evaluation.lm_eval_harness import lm_eval_named

        return lm_eval_named(name)
    return _linear(spec, location(name, "evaluator")) if kind == "linear" else _named(spec, kind, name)


def _linear(spec: str, path: Path) -> LinearClassifier:
    accepted = "linear:PATH.npz with arrays features [examples, features] of floats and labels [examples] of integers"
    try:
        with open_regular(path) as file:
            arrays = np.load(file, allow_pickle=False)
            if not isinstance(arrays, np.lib.npyio.NpzFile):
                raise InvalidInputError("evaluator", spec, accepted, found=f"{path}, which is no npz file")
            if absent := [name for name in ("features", "labels") if name not in arrays]:
                found = f"{path} with {', '.join(arrays.files) or 'nothing'}, without {absent[0]}"
                raise InvalidInputError("evaluator", spec, accepted, found=found)
            return LinearClassifier(arrays["features"], arrays["labels"])
    except InvalidInputError as error:
        if error.field == "evaluator":
            raise
        shown = error.found or repr(error.value)
        found = f"{path} with {error.field}: {shown}; wanted: {error.accepted}"
        raise InvalidInputError("evaluator", spec, accepted, found=found) from None
    except Exception as error:  # a zip archive can be broken in as many ways as the libraries that read it
        raise InvalidInputError("evaluator", spec, accepted, found=f"{path}, {_told(error)}") from None


def _named(spec: str, module_name: str, path: str) -> NamedEvaluator:
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        found = f"an error while importing {module_name}: {_told(error)}"
        raise InvalidInputError("evaluator", spec, _ACCEPTED, found=found) from error
    try:
        function: Any = reduce(getattr, path.split("."), module)
    except Exception as error:
        raise InvalidInputError("evaluator", spec, _ACCEPTED, found=_told(error)) from None
    if not callable(function):
        found = f"{path} of {module_name}, which is a {type(function).__name__} and not callable"
        raise InvalidInputError("evaluator", spec, _ACCEPTED, found=found)
    # A class has methods of its instances, but calling it makes one.
    batch = isinstance(function, BatchEvaluator) and not isinstance(function, type)
    kind = NamedBatchEvaluator if batch else NamedEvaluator
    return kind(spec, function, _identity(spec, module, function))


def _identity(spec: str, module: Any, function: Evaluator) -> str | None:
    try:
        source = hashlib.sha256(Path(module.__file__).read_bytes()).hexdigest()
    except (AttributeError, TypeError, OSError):
        return None  # built in, or made while running: nobody can tell whether it is still the same
    return " ".join(part for part in (spec, source, identity_of(function)) if part is not None)


def _told(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
