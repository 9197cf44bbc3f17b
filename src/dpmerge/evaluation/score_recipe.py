"""One recipe, merged in memory or into a folder, and scored: what a worker does, in this process or another.

Guarantees: a score is a finite number, over the simulated releases of a recipe with release noise their mean.
Refuses, naming the recipe: evaluators that fail, or give anything else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np

from dpmerge.accounting import validation
from dpmerge.errors import EvaluationError, InvalidInputError
from dpmerge.evaluation.candidate_folder import candidate_folder
from dpmerge.evaluation.evaluators import Evaluator, takes_folder
from dpmerge.evaluation.merged_model import (
    Combined,
    StoredModel,
    Tensor,
    combined,
    combined_tensor,
    frozen_in_all,
    simulated,
    simulated_tensors,
    tied_in_all,
)
from dpmerge.merging.recipe_files import donor_of
from dpmerge.terms.recipe import Recipe


def score_one(recipe: Recipe, inputs: Sequence[StoredModel], evaluator: Evaluator, noise_draws: int) -> float:
    """Merge and score one recipe: what a worker does, in this process or another."""
    first = inputs[0]
    for model in inputs:
        if difference := sorted(model.tensors.keys() ^ first.tensors.keys()):
            raise InvalidInputError(f"tensors of {model.name}", difference[0], f"the tensor names of {first.name}")
    made = _in_folders if takes_folder(evaluator) else _in_memory
    found = []
    for candidate in made(recipe, inputs, noise_draws):
        with candidate as merged:
            try:
                value = evaluator(merged)
            except (Exception, SystemExit) as error:
                raise EvaluationError(str(recipe), f"{type(error).__name__}: {error}") from error
        found.append(finite_score(recipe, value))
    return float(np.mean(found))


def _in_memory(
    recipe: Recipe, inputs: Sequence[StoredModel], noise_draws: int
) -> Iterator[AbstractContextManager[Any]]:
    tensors = combined(recipe, inputs[0].tensors, frozen_in_all(inputs), _reader(inputs))
    yield from map(nullcontext, simulated(recipe, tensors, noise_draws, tied_in_all(inputs)))


def _in_folders(
    recipe: Recipe, inputs: Sequence[StoredModel], noise_draws: int
) -> Iterator[AbstractContextManager[Any]]:
    """The same values a tensor at a time: each draw reads the models again, and none of them is held in memory."""
    frozen, read, names = frozen_in_all(inputs), _reader(inputs), sorted(inputs[0].tensors)

    def combine(tensor: str) -> Combined:
        return combined_tensor(recipe, tensor, tensor in frozen, read)

    weights = dict(recipe.parts)
    donor = donor_of([(model, weights[model.name]) for model in inputs])
    for tensors in simulated_tensors(recipe, names, combine, noise_draws, tied_in_all(inputs)):
        yield candidate_folder(donor, tensors)


def _reader(inputs: Sequence[StoredModel]) -> Callable[[str, str], Tensor]:
    by_name = {model.name: model for model in inputs}
    return lambda name, tensor: by_name[name].read(tensor)


def finite_score(recipe: Recipe, value: object) -> float:
    """A score as a float; scalars of numpy and torch are numbers, arrays with one value are not."""
    scalar = value.item() if hasattr(value, "item") and getattr(value, "shape", None) == () else value
    try:
        number = validation.number("score", scalar)
    except InvalidInputError as error:
        raise EvaluationError(str(recipe), error.found or _described(value)) from None
    if np.isinf(number):
        raise EvaluationError(str(recipe), _described(value))
    return number


def _described(value: object) -> str:
    kind = type(value).__name__
    shape = getattr(value, "shape", ())
    return f"a {kind} of shape {list(shape)}" if shape else f"{value!r}, a {kind}" if value is not None else "None"


@contextmanager
def naming_recipes(recipes: Sequence[Recipe], clear: type[Exception]) -> Iterator[None]:
    """Errors of an evaluator, or of a pool, as errors that name the recipes concerned; some are `clear` already."""
    try:
        yield
    except clear:
        raise
    except (Exception, SystemExit) as error:
        raise EvaluationError(listed(recipes), f"{type(error).__name__}: {error}") from error


def listed(recipes: Sequence[Recipe]) -> str:
    """The recipes an error concerns, in a few words."""
    return str(recipes[0]) + (f" (or one of {len(recipes) - 1} scored with it)" if len(recipes) > 1 else "")
