"""A merge by many workers: one task for each file of the output, on storage that all of them see.

Guarantees: the bytes are those of a merge on one machine with the same key; every input is compared with what was
recorded, as there; a worker is told the keys of the weights in its file, never the key they come from. Each attempt
writes a file of its own in a folder that is gone before the output is, and only what the coordinator has seen whole
gets its place: a worker that was given up, and lives, changes nothing.
Refuses: workers that cannot write where the coordinator looks.
"""

from __future__ import annotations

import platform
import re
import secrets
import shutil
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from dpmerge.errors import CannotWriteError, InvalidInputError
from dpmerge.executors.task_runs import results_of, run_tasks
from dpmerge.merging.byte_progress import ByteCount, Progressed
from dpmerge.merging.checkpoint_input import (
    CheckpointInput,
    TensorSource,
    input_hash,
    reads_in_order,
    require_digest,
    require_weights,
)
from dpmerge.merging.gaussian_sampler import GaussianSampler, WorkerSampler
from dpmerge.merging.layout import Layout, OutputFile
from dpmerge.merging.merge_workers import MergeWork
from dpmerge.merging.ordered_hash import OrderedHash
from dpmerge.merging.tensor_slices import Rule, slices_of
from dpmerge.merging.weight_files import file_digest
from dpmerge.merging.writing import OutputWriter, WrittenFile
from dpmerge.portfolio.recorded_runs import SavedCheckpoint, is_weights

ATTEMPTS = ".attempts"
"""The folder, in the one that is being made, where workers write."""

Comparison = Literal["files", "tensors", "alone"]
"""How an input is compared with its record: by files that one task each reads in order; by tensors, whose digests are
put together at home; or by files that are read once more beforehand."""


@dataclass(frozen=True, kw_only=True)
class ShardTask:
    """All that a worker needs to write one file of an output."""

    parts: tuple[tuple[SavedCheckpoint, float], ...]
    compared: tuple[Comparison | None, ...]  # of each part; None: it is not
    hashed: Mapping[Path, Hashable]  # files read beforehand, as they were then
    file: OutputFile
    folder: Path
    rules: Mapping[str, Rule]
    first: Mapping[str, str]
    deviation: float
    keys: Mapping[str, bytes] = field(repr=False)
    hashing: bool
    jobs: int
    buffer: int


@dataclass(frozen=True, kw_only=True)
class WrittenShard:
    """What a worker wrote, under the name of its attempt, and the digests of the tensors it read where asked for."""

    file: WrittenFile
    attempt: str
    tensors: tuple[Mapping[str, str], ...] = ()  # of each part


class ShardInput(CheckpointInput):
    """What one task reads of a checkpoint."""

    def __init__(
        self,
        checkpoint: SavedCheckpoint,
        order: Sequence[str],
        *,
        compared: Comparison | None,
        hashed: Mapping[Path, Hashable],
    ) -> None:
        self.checkpoint = checkpoint
        self.sources: dict[Path, TensorSource] = {}
        self.tensors = {name: OrderedHash() for name in order if compared == "tensors"}
        for name in order:
            path, slot = checkpoint.tensors[name]
            if slot.end > slot.start:
                if path not in self.sources:
                    self.sources[path] = TensorSource(checkpoint, path, whole=compared == "files")
                    self.sources[path].unread = 0
                    self.sources[path].hashed = hashed.get(path)
                self.sources[path].unread += slot.end - slot.start


def write_shard(task: ShardTask) -> WrittenShard:
    """Write one file of an output: what a worker does."""
    order = [slot.name for slot in task.file.slots if slot.end > slot.start]
    attempt = replace(task.file, name=f"{secrets.token_hex(8)}-{task.file.name}")
    inputs: list[ShardInput] = []
    output = _opened(task.folder, attempt, task.hashing)
    try:
        for (checkpoint, _), compared in zip(task.parts, task.compared, strict=True):
            inputs.append(ShardInput(checkpoint, order, compared=compared, hashed=task.hashed))
        MergeWork(
            inputs=list(inputs),
            outputs=[output],
            slices=slices_of(Layout(files=(attempt,), index=None), inputs, task.rules, task.first),
            weights=[weight for _, weight in task.parts],
            noise=WorkerSampler(task.deviation, task.keys) if task.deviation > 0 else None,
            buffer=task.buffer,
            progress=ByteCount(None, attempt.size),
        ).done_by(task.jobs)
        output.flush()
        digests = tuple({name: each.hexdigest() for name, each in read.tensors.items()} for read in inputs)
        return WrittenShard(file=replace(output.finished(), name=task.file.name), attempt=attempt.name, tensors=digests)
    except BaseException:
        with suppress(OSError):
            (task.folder / attempt.name).unlink()
        raise
    finally:
        for read in inputs:
            read.close()
        output.close()


def merge_shards(
    parts: Sequence[tuple[SavedCheckpoint, float]],
    folder: Path,
    *,
    layout: Layout,
    rules: Mapping[str, Rule],
    first: Mapping[str, str],
    noise: GaussianSampler | None,
    deviation: float,
    hashing: bool,
    jobs: int,
    buffer: int,
    progress: Progressed | None,
    executor: Executor,
) -> list[WrittenFile]:
    """Write the files of a layout into a folder, each by a worker; their order is that of the layout."""
    orders = [[slot.name for slot in file.slots] for file in layout.files]
    checkpoints = [replace(checkpoint, metrics=(), samples={}) for checkpoint, _ in parts]
    compared = tuple(comparison(each, orders) if hashing else None for each in checkpoints)
    hashed = _read_alone(checkpoints, compared, executor) if hashing else {}
    keys = {name: noise.weight_key(name) for name in _noised(rules, first)} if noise is not None else {}
    tasks = {
        file.name: ShardTask(
            parts=tuple((each, weight) for each, (_, weight) in zip(checkpoints, parts, strict=True)),
            compared=compared,
            hashed=hashed,
            file=file,
            folder=folder / ATTEMPTS,
            rules={name: rules[name] for name in order},
            first={name: first[name] for name in order if name in first},
            deviation=deviation,
            keys={known: keys[known] for known in {first.get(name, name) for name in order} & keys.keys()},
            hashing=hashing,
            jobs=jobs,
            buffer=buffer,
        )
        for file, order in zip(layout.files, orders, strict=True)
    }
    sizes = {file.name: file.size for file in layout.files}
    written = by_workers(executor, write_shard, tasks, sizes, folder, progress)
    for place, checkpoint in enumerate(checkpoints):
        if compared[place] == "tensors":
            digests = {name: digest for each in written for name, digest in each.tensors[place].items()}
            nothing = OrderedHash().hexdigest()
            require_weights(checkpoint, {name: digests.get(name, nothing) for name in checkpoint.tensors})
    return [each.file for each in written]


def by_workers(
    executor: Executor,
    write: Callable[[Any], WrittenShard],
    tasks: Mapping[str, object],
    sizes: Mapping[str, int],
    folder: Path,
    progress: Progressed | None,
) -> list[WrittenShard]:
    """Have each file written by a worker, and put it in its place once it is seen here."""
    attempts, count = folder / ATTEMPTS, ByteCount(progress, sum(sizes.values()))
    written: dict[str, WrittenShard] = {}

    def enter(name: str, shard: WrittenShard, late: bool) -> None:
        if late:
            return
        if not isinstance(shard, WrittenShard) or shard.file.name != name:
            problem = f"executor: for the file {name} it gave the result of something else"
            raise InvalidInputError("executor", name, "one that gives each call its own result", problem=problem)
        _put_in_place(attempts / shard.attempt, folder / name, sizes[name])
        written[name] = shard
        count.add(sizes[name])

    try:
        attempts.mkdir(0o700)
    except OSError as error:
        accepted = "a folder on storage that all workers share"
        raise CannotWriteError.from_os(error, field="output", path=folder, accepted=accepted) from None
    try:
        calls = {name: (task,) for name, task in tasks.items()}
        run_tasks(executor, write, calls, enter, named=lambda name: f"the file {name}")
    finally:
        _remove(attempts)
    return [written[name] for name in tasks]


def _remove(attempts: Path) -> None:
    """Out of the folder that is being made, in one step; then for good, as far as nobody holds anything in it open.

    What is left of it has the name of a staged folder, and goes when that is next looked for.
    """
    folder = attempts.parent
    known = re.fullmatch(r"(\..+\.)[0-9a-f]{8}(\.partial)", folder.name)
    start, end = known.groups() if known else (f".{folder.name}.", ".partial")
    aside = folder.with_name(f"{start}{secrets.token_hex(4)}{end}")
    try:
        attempts.rename(aside)
    except OSError as error:
        accepted = "a folder whose files can be moved"
        raise CannotWriteError.from_os(error, field="output", path=folder, accepted=accepted) from None
    shutil.rmtree(aside, ignore_errors=True)


def comparison(checkpoint: SavedCheckpoint, orders: Sequence[Sequence[str]]) -> Comparison:
    """How an input is compared whose tensors are taken in these orders, each by a task of its own."""
    readers: dict[Path, set[int]] = {}
    for place, order in enumerate(orders):
        for path, slot in (checkpoint.tensors[name] for name in order):
            if slot.end > slot.start:
                readers.setdefault(path, set()).add(place)
    alone = all(len(each) == 1 for each in readers.values())
    if alone and all(reads_in_order(checkpoint, order) for order in orders):
        return "files"
    return "tensors" if checkpoint.weights is not None else "alone"


def _read_alone(
    checkpoints: Sequence[SavedCheckpoint], compared: Sequence[Comparison | None], executor: Executor
) -> dict[Path, Hashable]:
    """Compare what no task reads whole: small files, files without values, and what can be compared in no other way."""
    files = []
    for checkpoint, how in zip(checkpoints, compared, strict=True):
        read = {path for path, slot in checkpoint.tensors.values() if slot.end > slot.start}
        files += [(checkpoint, path) for path in checkpoint.files if how == "alone" or path not in read]
    identities = results_of(executor, _compared_alone, files, named="the digest of file")
    return {path: found for (_, path), found in zip(files, identities, strict=True) if is_weights(path)}


def _compared_alone(checkpoint: SavedCheckpoint, path: Path) -> Hashable:
    digest, before = file_digest(path, input_hash(checkpoint, path))
    require_digest(checkpoint, path, digest)
    return before


def _noised(rules: Mapping[str, Rule], first: Mapping[str, str]) -> set[str]:
    """The names by which the weights are known that get noise."""
    return {first.get(name, name) for name, rule in rules.items() if rule == "average_noised"}


def _opened(folder: Path, file: OutputFile, hashing: bool) -> OutputWriter:
    try:
        return OutputWriter(folder, file, hashing=hashing)
    except CannotWriteError as error:
        problem = f"output: a worker on {platform.node()} cannot write to {folder.parent}: {error.strerror}"
        remedy = "name an output on storage that all workers share (for a store: DPMERGE_HOME)"
        raise CannotWriteError("output", str(folder.parent), remedy, problem=problem) from None


def _put_in_place(attempt: Path, place: Path, size: int) -> None:
    """What a worker wrote, if it is here, whole."""
    try:
        found: int | None = attempt.stat().st_size
    except FileNotFoundError:
        found = None
    if found != size:
        seen = "nothing" if found is None else f"{found:,} bytes"
        problem = f"output: a worker wrote {size:,} bytes of {place.name}, and {seen} are in {place.parent}"
        remedy = "name an output on storage that all workers share (for a store: DPMERGE_HOME)"
        raise CannotWriteError("output", str(place.parent), remedy, problem=problem)
    attempt.rename(place)
