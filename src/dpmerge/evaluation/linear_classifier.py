"""Accuracy of linear classifiers on public data, for one model or for thousands of mixtures of a few.

Guarantees: mixtures are scored from the logits of their inputs, and yet as if each had been merged, rounded to its
dtype and evaluated: where two classes are too close to tell, that is what is done. Memory stays below 200 MB.
Refuses: models that are not one [classes, features] and at most one [classes] tensor of floats, labels beyond.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from dpmerge.accounting.validation import Array
from dpmerge.errors import InvalidInputError
from dpmerge.evaluation.merged_model import Combined, Tensor, Tensors, combined, simulated
from dpmerge.terms.recipe import Recipe

_CHUNK_BYTES = 32_000_000
_RECIPES_AT_ONCE = 512

Rows = slice | npt.NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class LinearClassifier:
    """The share of examples for which argmax(features · weightᵀ + bias) is the label, computed in float64.

    Args:
        features: [examples, features], what the model takes, normalised and with any constant appended as in training.
        labels: [examples], class numbers from 0.

    Raises:
        InvalidInputError: arrays of other shapes or kinds; when called, tensors that are no linear classifier's. How
            they are called does not matter.

    Example:
        >>> LinearClassifier(np.array([[0.2, 0.1], [0.3, 0.4]]), np.array([0, 0]))({"w": np.eye(2)})
        0.5
    """

    features: Tensor  # [examples, features]
    labels: Tensor  # [examples]

    def __post_init__(self) -> None:
        features, labels = self.features, self.labels
        if features.ndim != 2 or features.dtype.kind != "f" or 0 in features.shape:
            raise _wrong("features", features, "an array [examples, features] of floats")
        if not np.all(np.isfinite(features)):
            raise InvalidInputError("features", None, "finite values only", found="NaN or infinity")
        if labels.shape != features.shape[:1] or labels.dtype.kind not in "iu":
            raise _wrong("labels", labels, f"an array [{len(features)}] of integers, one for each example")
        if labels.min() < 0:
            raise InvalidInputError("labels", int(labels.min()), "integers ≥ 0")

    def __reduce__(self) -> tuple[Any, ...]:
        return LinearClassifier, (self.features, self.labels)

    @cached_property
    def identity(self) -> str:
        """By its data: the same examples give the same scores, whatever file they came from."""
        digest = hashlib.sha256(b"accuracy of argmax")
        for array in (self.features, self.labels):
            digest.update(f"{array.shape} {array.dtype.str}".encode())
            digest.update(np.ascontiguousarray(array).data)
        return f"linear {digest.hexdigest()}"

    @property
    def records(self) -> int:
        """Of how many examples a score is the share."""
        return len(self.labels)

    def __call__(self, tensors: Tensors) -> float:
        return self.accuracies([tensors])[0]

    def prepare(self, models: Mapping[str, Tensors], *, trained: Collection[str], noise_draws: int) -> LinearScorer:
        """All mixtures of these models, as one matrix product for each chunk of them."""
        return LinearScorer(self, {name: dict(models[name]) for name in models}, trained, noise_draws)

    def accuracies(self, models: Sequence[Tensors]) -> list[float]:
        """Of several models of one shape, each."""
        layers = [self.layer(tensors) for tensors in models]
        weight = np.concatenate([layer[0] for layer in layers])
        bias = np.concatenate([layer[1] for layer in layers])
        right = np.zeros(len(models), dtype=np.intp)
        for rows in self.chunks(8 * len(weight)):
            logits = (self.wide(rows) @ weight.T + bias).reshape(-1, len(models), len(layers[0][1]))
            right += np.count_nonzero(logits.argmax(axis=2) == self.labels[rows, None], axis=0)
        return [float(share) for share in right / len(self.labels)]

    def right(self, tensors: Tensors, rows: Rows) -> int:
        """How many of some examples a model labels right."""
        weight, bias = self.layer(tensors)
        return int(np.count_nonzero((self.wide(rows) @ weight.T + bias).argmax(axis=1) == self.labels[rows]))

    def layer(self, tensors: Tensors) -> tuple[Array, Array]:
        """Weight and bias of a model, in float64."""
        weights, biases = ([t for t in tensors.values() if t.ndim == dimensions] for dimensions in (2, 1))
        shapes = {name: list(tensor.shape) for name, tensor in tensors.items()}
        inputs = self.features.shape[1]
        classes = len(weights[0]) if weights else 0
        if (
            [weight.shape for weight in weights] != [(classes, inputs)]
            or [bias.shape for bias in biases] not in ([], [(classes,)])
            or len(weights) + len(biases) != len(tensors)
            or any(tensor.dtype.kind != "f" for tensor in tensors.values())
        ):
            accepted = f"one [classes, {inputs}] tensor and at most one [classes], of floats"
            raise InvalidInputError("tensors", shapes, accepted)
        if self.labels.max() >= classes:
            raise InvalidInputError(
                "labels", int(self.labels.max()), f"labels below {classes}, the classes of the model"
            )
        bias = biases[0].astype(np.float64) if biases else np.zeros(classes)
        return weights[0].astype(np.float64), bias

    def chunks(self, bytes_for_each: int) -> Iterator[slice]:
        """The examples in pieces of which features, and so many bytes for each, fit in memory."""
        step = max(1, _CHUNK_BYTES // max(bytes_for_each, 8 * self.features.shape[1]))
        return (slice(start, start + step) for start in range(0, len(self.labels), step))

    def wide(self, rows: Rows) -> Array:
        return self._all_wide[rows] if self.features.size * 8 <= _CHUNK_BYTES else self.features[rows].astype(float)

    @cached_property
    def _all_wide(self) -> Array:
        return self.features.astype(float)

    @cached_property
    def norms(self) -> tuple[Array, Array]:
        """Of each example's features: the Euclidean norm, and the sum of absolute values."""
        euclidean = [np.linalg.norm(self.wide(rows), axis=1) for rows in self.chunks(0)]
        absolute = [np.abs(self.wide(rows)).sum(axis=1) for rows in self.chunks(0)]
        return np.concatenate(euclidean), np.concatenate(absolute)


class LinearScorer:
    """Scores mixtures of given linear models: the logits of a mixture are the mixture of the logits."""

    def __init__(
        self, data: LinearClassifier, models: Mapping[str, Tensors], trained: Collection[str], noise_draws: int
    ) -> None:
        self._data, self._models, self._draws = data, models, noise_draws
        self._places = {name: place for place, name in enumerate(models)}
        self._layers = [data.layer(tensors) for tensors in models.values()]
        first = next(iter(models.values()))
        for name, tensors in models.items():
            if _shapes(tensors) != _shapes(first):
                raise InvalidInputError("tensors", _shapes(tensors), f"{_shapes(first)}, as in the others", found=name)
        self._frozen = set(first) - set(trained)
        self._sizes = np.array([np.linalg.norm(weight, axis=1).max() for weight, _ in self._layers])
        self._biases = np.array([np.abs(bias).max() for _, bias in self._layers])
        # Rounding, relative: of the sum over models, to the dtype, and of the dot products. Absolute: of subnormals.
        kinds = [np.finfo(tensor.dtype) for tensor in first.values()]
        summed = max(float(np.finfo(np.float32 if kind.bits < 64 else np.float64).eps) for kind in kinds)
        stored = max(float(kind.eps) for kind in kinds)
        computed = float(np.finfo(np.float64).eps) * (data.features.shape[1] + len(models) + 8)
        self._relative = (len(models) + 2) * summed + stored + computed
        self._absolute = max(float(kind.smallest_subnormal) for kind in kinds)
        self._kept: dict[int, Array] = {}

    def __call__(self, recipes: Sequence[Recipe]) -> list[float]:
        plain = [recipe for recipe in recipes if not recipe.release_noise]
        accuracies = iter(self._together(plain) / len(self._data.labels) if plain else ())
        return [self._noisy(recipe) if recipe.release_noise else float(next(accuracies)) for recipe in recipes]

    def _noisy(self, recipe: Recipe) -> float:
        return float(np.mean(self._data.accuracies(list(simulated(recipe, self._combined(recipe), self._draws)))))

    def _merged(self, recipe: Recipe) -> Tensors:
        return next(simulated(recipe, self._combined(recipe), 1))

    def _combined(self, recipe: Recipe) -> dict[str, Combined]:
        names = self._models[recipe.names[0]]
        return combined(recipe, names, self._frozen, lambda name, tensor: self._models[name][tensor])

    def _together(self, recipes: Sequence[Recipe]) -> npt.NDArray[np.intp]:
        """How many examples each mixture labels right."""
        weights = np.zeros((len(self._models), len(recipes)))
        for column, recipe in enumerate(recipes):
            weights[[self._places[name] for name in recipe.names], column] = recipe.weights
        right = np.zeros(len(recipes), dtype=np.intp)
        classes = len(self._layers[0][1])
        for rows in self._data.chunks(max(16 * classes * len(self._models), 24 * _RECIPES_AT_ONCE)):
            leads = self._leads(rows)
            for start in range(0, len(recipes), _RECIPES_AT_ONCE):
                some = slice(start, start + _RECIPES_AT_ONCE)
                right[some] += self._right(rows, leads, weights[:, some], recipes[some])
        return right

    def _right(self, rows: slice, leads: Array, weights: Array, recipes: Sequence[Recipe]) -> npt.NDArray[np.intp]:
        # How far the best other class is ahead of the label's.
        best = np.full((leads.shape[1], len(recipes)), -np.inf)
        for lead in leads:
            np.maximum(best, lead @ weights, out=best)
        near = np.abs(best) <= self._doubt(rows, weights)
        right: npt.NDArray[np.intp] = np.count_nonzero((best < 0) & ~near, axis=0)
        for column in np.flatnonzero(near.any(axis=0)).tolist():
            examples = rows.start + np.flatnonzero(near[:, column])
            right[column] += self._data.right(self._merged(recipes[column]), examples)
        return right

    def _doubt(self, rows: slice, weights: Array) -> Array:
        """By how much two logits, of the merged model and of the mixture, can differ through rounding alone."""
        euclidean, absolute = (norm[rows, None] for norm in self._data.norms)
        sizes = euclidean * (self._sizes @ weights) + self._biases @ weights
        return np.asarray(2 * (self._relative * sizes + self._absolute * (absolute + 1)))

    def _leads(self, rows: slice) -> Array:
        """For each class but an example's own, in [classes - 1, examples, models]: its logit less the label's."""
        if rows.start in self._kept:
            return self._kept[rows.start]
        features, labels = self._data.wide(rows), self._data.labels[rows].astype(np.intp)
        # One product for all models: [examples, models, classes].
        weight, bias = (np.concatenate(part) for part in zip(*self._layers, strict=True))
        logits = (features @ weight.T + bias).reshape(len(labels), len(self._layers), -1)
        everyone = np.arange(len(labels))
        own = logits[everyone, :, labels]
        leads = np.empty((logits.shape[2] - 1, *own.shape))
        for place in range(len(leads)):
            # The classes that are not the label: all below it, then all above.
            np.subtract(logits[everyone, :, place + (place >= labels)], own, out=leads[place])
        if leads[:, :1].nbytes * len(self._data.labels) <= 3 * _CHUNK_BYTES:
            self._kept[rows.start] = leads
        return leads


def _shapes(tensors: Tensors) -> dict[str, Any]:
    return {name: (list(tensor.shape), str(tensor.dtype)) for name, tensor in sorted(tensors.items())}


def _wrong(field: str, array: Tensor, accepted: str) -> InvalidInputError:
    return InvalidInputError(field, None, accepted, found=f"an array {list(array.shape)} of {array.dtype}")
