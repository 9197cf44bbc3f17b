"""The model of a recipe, in memory, to be looked at and not to be released: Σ λ_i θ_i, and what release noise does.

Guarantees: float tensors are summed in float32 (float64 for F64) in the recipe's order and rounded to the stored dtype;
a recipe's simulated noise depends on its digest alone. That noise is known to anybody: a release draws its own.
Refuses: integer and boolean tensors that differ between the models, tensors of different names, shapes or dtypes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpmerge.errors import InvalidInputError
from dpmerge.merging.config_files import read_small_file
from dpmerge.merging.config_files import small_files as copied_files
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.portfolio.tensors import TensorEntry, read_tensor
from dpmerge.terms.checkpoint_reference import CheckpointReference
from dpmerge.terms.recipe import Recipe

Tensor = npt.NDArray[Any]
Tensors = Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class StoredModel:
    """A checkpoint as a worker in another process needs it: where its tensors are, not what is in them."""

    name: str
    tensors: Mapping[str, tuple[Path, TensorEntry]]
    frozen: Mapping[str, str | None]  # tensors the run did not train, with their digests where contents were read
    digest: str  # of the weights (of the files, where the weights' is unknown), which are frozen and which are tied
    tied: tuple[tuple[str, ...], ...] = ()  # names of one weight, which get one draw of noise
    small_files: Mapping[str, tuple[Path, str]] = field(default_factory=dict)  # with digests, in `digest` too

    @classmethod
    def of(cls, portfolio: Portfolio, name: str, *, with_small_files: bool = False) -> StoredModel:
        """The checkpoint written as run@step; its configuration and tokenizer too, where a folder is to be loaded."""
        saved, small = portfolio.saved(name), {}
        run = portfolio.run(saved.run)
        facts = run.manifest.tensors
        if with_small_files:
            for file, path in copied_files(run, saved)[0].items():
                small[file] = path, hashlib.sha256(read_small_file(run, path)).hexdigest()
        frozen = {tensor: (saved.digests or {}).get(tensor) for tensor in sorted(facts.frozen if facts else ())}
        tied = tuple(sorted(tuple(sorted(group)) for group in (facts.tied or () if facts else ())))
        known: list[object] = [saved.weights or list(saved.file_digests), list(frozen), *tied]
        if with_small_files:
            known.append({file: digest for file, (_, digest) in small.items()})
        content = json.dumps(known, separators=(",", ":"))
        return cls(name, saved.tensors, frozen, hashlib.sha256(content.encode()).hexdigest(), tied, small)

    @property
    def run(self) -> str:
        return CheckpointReference.parse(self.name).run

    @property
    def step(self) -> int:
        return CheckpointReference.parse(self.name).step

    def read(self, tensor: str) -> Tensor:
        path, slot = self.tensors[tensor]
        return read_tensor(path, slot)


class ModelsOnDisk(Mapping[str, Tensors]):
    """Models by name, each read when it is asked for: no more of them are in memory than somebody holds on to."""

    def __init__(self, models: Iterable[StoredModel]) -> None:
        self._models = {model.name: model for model in models}

    def __getitem__(self, name: str) -> Tensors:
        model = self._models[name]
        return {tensor: model.read(tensor) for tensor in model.tensors}

    def __iter__(self) -> Iterator[str]:
        return iter(self._models)

    def __len__(self) -> int:
        return len(self._models)


def frozen_in_all(models: Iterable[StoredModel]) -> frozenset[str]:
    """The tensors that no run trained; a run whose manifest does not say trained all of its tensors."""
    return frozenset.intersection(*(frozenset(model.frozen) for model in models))


def tied_in_all(models: Iterable[StoredModel]) -> frozenset[tuple[str, ...]]:
    """The names that are one weight by every run's word."""
    return frozenset.intersection(*(frozenset(model.tied) for model in models))


def same_frozen(models: Sequence[StoredModel]) -> bool:
    """Whether all keep the same tensors frozen, at values known to be the same: then any mixture keeps them too."""
    known = None not in models[0].frozen.values()
    return known and all(model.frozen == models[0].frozen for model in models)


@dataclass(frozen=True, eq=False)
class Combined:
    """One tensor of a merge before it is rounded to the dtype in which it is stored."""

    value: Tensor
    dtype: np.dtype[Any]
    takes_noise: bool

    def rounded(self, noise: Tensor | None = None) -> Tensor:
        with np.errstate(over="ignore"):  # what overflows a float16 is infinite, for the evaluator to judge
            return np.asarray(self.value if noise is None else self.value + noise).astype(self.dtype)


def combined(
    recipe: Recipe, tensors: Collection[str], frozen: Collection[str], read: Callable[[str, str], Tensor]
) -> dict[str, Combined]:
    """The tensors of Σ λ_i θ_i, where `read(checkpoint, tensor)` gives those of the models, one at a time."""
    return {tensor: combined_tensor(recipe, tensor, tensor in frozen, read) for tensor in sorted(tensors)}


def combined_tensor(recipe: Recipe, tensor: str, frozen: bool, read: Callable[[str, str], Tensor]) -> Combined:
    """One tensor of Σ λ_i θ_i; one that no run trained stays as it is, wherever all models have it alike."""
    (first, weight), *others = recipe.parts
    value = read(first, tensor)
    dtype, floats = value.dtype, value.dtype.kind == "f"
    kept = value if frozen and floats else None
    same = np.ones(value.shape, bool)
    if floats:
        value = _times(weight, value.astype(np.float64 if dtype.itemsize == 8 else np.float32))
    for name, weight in others:
        other = read(name, tensor)
        if (other.shape, other.dtype) != (value.shape, dtype):
            found = f"{_kind(other)} in {name}"
            raise InvalidInputError(
                f"tensor {tensor}", None, f"{list(value.shape)} of {dtype}, as in {first}", found=found
            )
        if floats:
            same &= kept is None or other == kept
            value += _times(weight, other.astype(value.dtype, copy=False))
        elif not np.array_equal(value, other):
            problem = f"tensor {tensor}: it has other values in {name} than in {first}"
            remedy = "average models whose integers and booleans are the same"
            raise InvalidInputError(f"tensor {tensor}", None, remedy, problem=problem)
    if kept is not None:  # what was not trained stays as it is, and is averaged only where that was allowed
        value = np.where(same, kept, value)
    return Combined(value, dtype, floats and not frozen)


def _times(weight: float, value: Tensor) -> Tensor:
    return np.asarray(np.multiply(value, weight, dtype=value.dtype))


def _kind(tensor: Tensor) -> str:
    return f"{list(tensor.shape)} of {tensor.dtype}"


def simulated(
    recipe: Recipe, tensors: Mapping[str, Combined], draws: int, tied: Iterable[Sequence[str]] = ()
) -> Iterator[dict[str, Tensor]]:
    """The merged model; where the recipe has release noise, `draws` examples of it with noise on what was trained."""
    for merged in simulated_tensors(recipe, tensors, tensors.__getitem__, draws, tied):
        yield dict(merged)


def simulated_tensors(
    recipe: Recipe,
    names: Collection[str],
    combine: Callable[[str], Combined],
    draws: int,
    tied: Iterable[Sequence[str]] = (),
) -> Iterator[Iterator[tuple[str, Tensor]]]:
    """The same a tensor at a time, each asked for when its turn comes; a model must be taken whole before the next.

    The noise is the same however it is taken: one generator for all draws, in each over the tensors in their order.
    """
    random = np.random.default_rng(int(recipe.digest, 16))
    first = {name: group[0] for group in tied for name in group}
    for _ in range(draws if recipe.release_noise else 1):
        yield _simulated_once(recipe, names, combine, random, first)


def _simulated_once(
    recipe: Recipe,
    names: Collection[str],
    combine: Callable[[str], Combined],
    random: np.random.Generator,
    first: Mapping[str, str],
) -> Iterator[tuple[str, Tensor]]:
    shared: dict[str, Tensor | None] = {}
    for name in names:
        tensor = combine(name)
        noise = shared[first[name]] if first.get(name) in shared else _noise(recipe, tensor, random)
        if name in first:
            shared[first[name]] = noise
        yield name, tensor.rounded(noise)


def _noise(recipe: Recipe, tensor: Combined, random: np.random.Generator) -> Tensor | None:
    if not recipe.release_noise or not tensor.takes_noise:
        return None
    precision = np.float64 if tensor.value.dtype.itemsize == 8 else np.float32
    return np.asarray(recipe.release_noise * random.standard_normal(tensor.value.shape, dtype=precision))
