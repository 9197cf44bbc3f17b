"""The model of a recipe in a folder: weights, index, and the small files needed to load it.

Guarantees: a recipe of one checkpoint is that checkpoint's bytes; any other is merged as `engine` says, or, for LoRA
adapters where asked for, concatenated exactly. Every file written is listed with its digest.
Refuses: runs that may not be averaged, a donor that is not in the recipe, release noise on concatenated adapters or on
weights whose names are not known.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, TypeVar, get_args

from dpmerge.errors import InvalidInputError
from dpmerge.merging.adapter_starts import allowing_adapter_starts
from dpmerge.merging.adapters import concatenate, require_one_scaling
from dpmerge.merging.byte_progress import Progressed
from dpmerge.merging.config_files import ADAPTER_CONFIG, copy_small_files
from dpmerge.merging.copy_checkpoint import copy
from dpmerge.merging.engine import merge
from dpmerge.merging.tied_tensors import require_ties, stated_ties
from dpmerge.merging.writing import WrittenFile
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.portfolio.recorded_runs import Run
from dpmerge.terms.recipe import Recipe

Adapters = Literal["as_trained", "concatenated"]


@dataclass(frozen=True)
class Built:
    """What was written, sorted by name; who gave names, shards and small files; which small files were left."""

    files: tuple[WrittenFile, ...]
    donor: str
    left: tuple[str, ...]


def build(
    portfolio: Portfolio,
    recipe: Recipe,
    folder: Path,
    *,
    donor: str | None = None,
    jobs: int = 2,
    progress: Progressed | None = None,
    adapters: Adapters = "as_trained",
    executor: Executor | None = None,
) -> Built:
    """Write the model of a recipe into a folder that exists and is empty, such as a staged one.

    Args:
        portfolio: where the recipe's checkpoints are.
        recipe: which checkpoints, which weights, how much release noise.
        folder: where the model goes.
        donor: the run whose names, shards and small files the model has; by default the one that weighs most.
        jobs: how many threads.
        progress: called with how many bytes are done, and of how many.
        adapters: LoRA adapters averaged `as_trained`, or `concatenated` exactly, at a higher rank.
        executor: have each file of weights written by a worker of it, on storage that all of them see.

    Returns:
        The files that were written, the donor, and the small files beside the donor that were not copied.

    Raises:
        PortfolioError: the runs may not be averaged.
        CheckpointError: a file is not what was recorded.
        TensorMismatchError: tensors do not fit together, or have names that nobody told of.
        CannotWriteError: the disk is full or cannot be written to.
        InvalidInputError: a donor that is not in the recipe, or release noise on concatenated adapters.

    Example (not run here, since it writes a model):

        with StagedFolder("merged") as staged:
            build(portfolio, Recipe.of({"a@100": 0.5, "b@100": 0.5}), staged.path)
            staged.publish()
    """
    if adapters not in get_args(Adapters):
        raise InvalidInputError("adapters", adapters, ", ".join(get_args(Adapters)))
    parts = [(portfolio.saved(name), weight) for name, weight in recipe.parts]
    runs = [portfolio.run(name) for name in dict.fromkeys(checkpoint.run for checkpoint, _ in parts)]
    giving = donor_of(parts, donor)
    run = portfolio.run(giving.run)
    if len(runs) > 1:
        seen = allowing_adapter_starts(portfolio) if adapters == "concatenated" else portfolio
        seen.require_combinable(runs)
    without: tuple[str, ...] = ()
    if recipe.is_one_checkpoint:
        weights = copy(parts[0][0], folder, jobs=jobs, progress=progress, executor=executor)
    else:
        located = [(portfolio.run(checkpoint.run), checkpoint, weight) for checkpoint, weight in parts]
        if adapters == "concatenated":
            if recipe.release_noise:
                accepted = "0 with concatenated adapters, or adapters as trained"
                raise InvalidInputError("release_noise", recipe.release_noise, accepted)
            weights, without = concatenate(located, folder, donor=giving), (ADAPTER_CONFIG,)
        else:
            require_one_scaling(located)
            # Before the charge this was asked too; but what was charged long ago is made now.
            require_ties(portfolio, [(recipe, False)], jobs, executor)
            weights = merge(
                parts, folder, donor=giving, trained=trained_by(runs), release_noise=recipe.release_noise,
                tied=stated_ties(runs) if recipe.release_noise > 0 else (),
                frozen_may_differ="different_frozen_tensors" in portfolio.allowed, jobs=jobs, progress=progress,
                executor=executor,
            )  # fmt: skip
    small, left = copy_small_files(run, giving, folder, without=without)
    return Built(tuple(sorted((*weights, *small), key=lambda file: file.name)), giving.run, left)


class _OfRun(Protocol):
    @property
    def run(self) -> str: ...

    @property
    def step(self) -> int: ...


_Checkpoint = TypeVar("_Checkpoint", bound=_OfRun)


def donor_of(parts: Sequence[tuple[_Checkpoint, float]], donor: str | None = None) -> _Checkpoint:
    """The checkpoint whose names, shards and small files the output has: by default of the run that weighs most."""
    totals: dict[str, float] = {}
    for checkpoint, weight in parts:
        totals[checkpoint.run] = totals.get(checkpoint.run, 0.0) + weight
    if donor is None:
        donor = min(totals, key=lambda run: (-totals[run], run))
    if donor not in totals:
        raise InvalidInputError("donor", donor, f"a run of the recipe: {', '.join(sorted(totals))}")
    return max((c for c, _ in parts if c.run == donor), key=lambda checkpoint: checkpoint.step)


def trained_by(runs: Sequence[Run]) -> Collection[str] | None:
    """The tensors that any of the runs trained; None, which is all, where one does not say."""
    trained: set[str] = set()
    for run in runs:
        if run.manifest.tensors is None:
            return None
        trained.update(run.manifest.tensors.trained)
    return trained
