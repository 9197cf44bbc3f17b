"""The merge: checkpoints in, one model out, both as streams.

Guarantees: the written bytes are those `arithmetic` describes for any number of threads and any size of buffers; memory
does not depend on the size of models or tensors; every byte of the inputs is hashed and compared with the manifests in
the pass that merges it, and every byte written is hashed as it is written; all names of one weight get one draw of
release noise.
Refuses, leaving what it wrote to whoever staged the folder: inputs that do not fit together, are not what was recorded,
change, or hold values that are not finite; a result that does not fit into its dtype; a disk that is full.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path

from dpmerge.errors import InvalidInputError
from dpmerge.merging.byte_progress import ByteCount, Progressed
from dpmerge.merging.checkpoint_input import CheckpointInput
from dpmerge.merging.gaussian_sampler import GaussianSampler
from dpmerge.merging.layout import Layout, layout_like
from dpmerge.merging.merge_workers import MergeWork
from dpmerge.merging.shard_tasks import merge_shards
from dpmerge.merging.tensor_slices import (
    Rule,
    first_names,
    require_mergeable,
    require_noise_everywhere,
    rules_of,
    slices_of,
)
from dpmerge.merging.weight_files import file_header
from dpmerge.merging.writing import OutputWriter, WrittenFile, write_small
from dpmerge.portfolio.recorded_runs import SavedCheckpoint, is_weights
from dpmerge.remote.remote_path import is_url

BUFFER, REMOTE_BUFFER = 2**20, 2**22
"""Stored bytes taken at a time: of a store, where each piece is a request, more."""

ALL_BUFFERS = 2**24
"""Bytes of what all threads hold of all inputs: where there are very many, less is taken at a time."""


def merge(
    parts: Sequence[tuple[SavedCheckpoint, float]],
    folder: Path,
    *,
    donor: SavedCheckpoint,
    trained: Collection[str] | None,
    release_noise: float = 0.0,
    tied: Sequence[Sequence[str]] = (),
    frozen_may_differ: bool = False,
    jobs: int = 2,
    hashing: bool = True,
    progress: Progressed | None = None,
    buffer: int | None = None,
    executor: Executor | None = None,
) -> tuple[WrittenFile, ...]:
    """Write Σ λ_i θ_i, with noise on what was trained, into a folder that exists.

    Most callers want `recipe_files.build`, which finds these arguments for a recipe of a portfolio.

    Args:
        parts: the checkpoints θ_i and their weights λ_i, each above 0 and at most 1.
        folder: where the files go.
        donor: the checkpoint whose names, order and shards of tensors the output has.
        trained: the tensors that were trained; None if that is not known, so that all of them may have been.
        release_noise: the standard deviation of Gaussian noise on every value that was trained.
        tied: groups of names of one weight, which get one draw; `tied_tensors` sees to it that they hold the same.
        frozen_may_differ: average what no run trained where it differs, instead of refusing it.
        jobs: how many threads.
        hashing: compare the inputs with their recorded digests, and take those of the output.
        progress: called with how many bytes are done, and of how many.
        buffer: bytes taken at a time; by default chosen so that memory stays small.
        executor: have each file of the output written by a worker of it, with `jobs` threads, on storage that all see.

    Returns:
        The files that were written, with their digests.

    Raises:
        CheckpointError: a file is not what was recorded, changes, or holds values that are not finite.
        TensorMismatchError: the checkpoints do not have the same tensors, or noise cannot reach one.
        CannotWriteError: the disk is full or cannot be written to.
        InvalidInputError: a weight or a number of jobs that is not accepted.
        WorkersLostError: the workers that should write a file died, several times.

    Example (not run here, since it needs checkpoints on disk):

        parts = [(portfolio.saved("a@100"), 0.5), (portfolio.saved("b@100"), 0.5)]
        merge(parts, folder, donor=parts[0][0], trained=None)
    """
    if jobs < 1:
        raise InvalidInputError("jobs", jobs, "an integer ≥ 1")
    require_mergeable(parts, donor)
    if release_noise > 0:
        require_noise_everywhere(donor, trained)
    layout = layout_like(donor, {path: file_header(path).metadata for path in donor.files if is_weights(path)})
    rules = rules_of(
        donor,
        trained=trained,
        parts=len(parts),
        noised=release_noise > 0,
        frozen_may_differ=frozen_may_differ,
    )
    first = first_names(donor, tied)
    noise = GaussianSampler(release_noise) if release_noise > 0 else None
    size = buffer or _buffer(parts, jobs)
    if executor is not None:
        written = merge_shards(
            parts, folder, layout=layout, rules=rules, first=first, noise=noise, deviation=release_noise,
            hashing=hashing, jobs=jobs, buffer=size, progress=progress, executor=executor,
        )  # fmt: skip
    else:
        written = _merge_here(
            parts, folder, layout=layout, rules=rules, first=first, noise=noise,
            hashing=hashing, jobs=jobs, buffer=size, progress=progress,
        )  # fmt: skip
    if layout.index is not None:
        written.append(write_small(folder, *layout.index, hashing=hashing))
    return tuple(written)


def _merge_here(
    parts: Sequence[tuple[SavedCheckpoint, float]],
    folder: Path,
    *,
    layout: Layout,
    rules: Mapping[str, Rule],
    first: Mapping[str, str],
    noise: GaussianSampler | None,
    hashing: bool,
    jobs: int,
    buffer: int,
    progress: Progressed | None,
) -> list[WrittenFile]:
    order = [slot.name for file in layout.files for slot in file.slots]
    inputs: list[CheckpointInput] = []
    outputs: list[OutputWriter] = []
    try:
        # The whole output is allocated first: a disk that is too small should show now.
        for file in layout.files:
            outputs.append(OutputWriter(folder, file, hashing=hashing))
        for checkpoint, _ in parts:
            inputs.append(CheckpointInput(checkpoint, order, hashing=hashing))
        work = MergeWork(
            inputs=inputs,
            outputs=outputs,
            slices=slices_of(layout, inputs, rules, first),
            weights=[weight for _, weight in parts],
            noise=noise,
            buffer=buffer,
            progress=ByteCount(progress, sum(file.size - len(file.header) for file in layout.files)),
        )
        work.done_by(jobs)
        for each in inputs:
            each.require_weights()
        return [output.finished() for output in outputs]
    finally:
        for each in inputs:
            each.close()
        for output in outputs:
            output.close()


def _buffer(parts: Sequence[tuple[SavedCheckpoint, float]], jobs: int) -> int:
    remote = any(is_url(path) for checkpoint, _ in parts for path in checkpoint.files)
    wanted, most = (REMOTE_BUFFER, 2 * ALL_BUFFERS) if remote else (BUFFER, ALL_BUFFERS)
    return max(2**16, min(wanted, most // (len(parts) * jobs) // 8 * 8))
