"""Can this be made? Everything about a recipe that can be known before it is charged.

Guarantees: what passes fails later only if a file changes or the disk does; noise reaches every tensor it has to.
Refuses: runs that may not be averaged, tensors that differ, adapters that do not fit together, trained tensors to which
noise cannot be added, tensors that are called frozen and have moved, files that are not what was recorded.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from pathlib import Path

from dpmerge.errors import TensorMismatchError
from dpmerge.executors.task_runs import results_of, threads_unless
from dpmerge.merging.adapter_starts import allowing_adapter_starts
from dpmerge.merging.adapters import concatenate, require_one_scaling
from dpmerge.merging.checkpoint_input import require_digest
from dpmerge.merging.recipe_files import Adapters, donor_of, trained_by
from dpmerge.merging.tensor_slices import require_mergeable, require_noise_everywhere
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.portfolio.recorded_runs import Run, SavedCheckpoint, is_weights
from dpmerge.portfolio.tensors import read_contents, read_header
from dpmerge.terms.recipe import Recipe


def require_ready(portfolio: Portfolio, recipe: Recipe, *, donor: str | None, adapters: Adapters) -> int:
    """See whether a recipe can be made, before anything is charged for it.

    Args:
        portfolio: where the recipe's checkpoints are.
        recipe: what is to be made.
        donor: the run that gives names, shards and small files; None for the one that weighs most.
        adapters: how LoRA adapters are merged.

    Returns:
        About how many bytes the output needs.

    Raises:
        PortfolioError: the runs may not be averaged.
        TensorMismatchError: tensors do not fit together, noise cannot reach one, or a frozen one has moved.
        InvalidInputError: adapters that cannot be merged in this way, or a donor that is not in the recipe.

    Example (not run here, since it needs a portfolio on disk):

        require_ready(portfolio, Recipe.of({"a@100": 1.0}), donor=None, adapters="as_trained")
    """
    parts = [(portfolio.saved(name), weight) for name, weight in recipe.parts]
    runs = [portfolio.run(name) for name in dict.fromkeys(checkpoint.run for checkpoint, _ in parts)]
    giving = donor_of(parts, donor)
    if len(runs) > 1:
        seen = allowing_adapter_starts(portfolio) if adapters == "concatenated" else portfolio
        seen.require_combinable(runs)
    require_mergeable(parts, giving)
    if recipe.release_noise > 0:
        require_noise_everywhere(giving, trained_by(runs))
        for run in runs:
            _require_frozen(run, [checkpoint for checkpoint, _ in parts if checkpoint.run == run.id])
    located = [(portfolio.run(checkpoint.run), checkpoint, weight) for checkpoint, weight in parts]
    if adapters == "concatenated":
        with tempfile.TemporaryDirectory(prefix="dpmerge-") as folder:  # adapters are small
            concatenate(located, Path(folder), donor=giving)
    else:
        require_one_scaling(located)
    return sum(slot.end - slot.start for _, slot in giving.tensors.values())


def _require_frozen(run: Run, checkpoints: Sequence[SavedCheckpoint]) -> None:
    """What a run says it did not train is what it was at its start, where that is known: noise passes it by."""
    facts = run.manifest.tensors
    for checkpoint in checkpoints if facts is not None else ():
        assert facts is not None
        known = {name for name in facts.frozen if name in facts.initial}
        for path in {checkpoint.tensors[name][0] for name in known}:
            found = read_contents(path, read_header(path)).tensors
            for name in sorted(known & found.keys()):
                if found[name] != facts.initial[name]:
                    problem = f"{name}: said to be frozen, and has other values than at the start of the run"
                    raise TensorMismatchError(path, name, None, "say that it was trained", problem=problem)


def require_recorded(checkpoints: Iterable[SavedCheckpoint], jobs: int = 2, executor: Executor | None = None) -> None:
    """Refuse before a charge what could fail after it: files that are not what was recorded, values not finite.

    Of a draw, a candidate that cannot be made would never be drawn; for a final release, and under a cap, what was
    charged for a checkpoint that has rotted is lost. Every byte is read.

    Args:
        checkpoints: those that may have to be read after the charge.
        jobs: how many files at a time.
        executor: where they are read, if not here.

    Raises:
        CheckpointError: a file is not what was recorded, or holds values that are not finite.
    """
    files = [(checkpoint, path) for checkpoint in checkpoints for path in checkpoint.files]
    with threads_unless(executor, jobs) as pool:
        results_of(pool, _require_file, files, named="the digest of file")


def _require_file(checkpoint: SavedCheckpoint, path: Path) -> None:
    slots = read_header(path) if is_weights(path) else ()
    require_digest(checkpoint, path, read_contents(path, slots, each=False).file)
