"""One checkpoint as it was trained, in a folder of its own.

Guarantees: the tensors' bytes are the checkpoint's; every byte of the copy was hashed, gives the recorded digest,
and holds only finite values. A file whose metadata could tell of private data is written anew, without it.
Refuses: files that are not what was recorded, change while they are read, or hold values that are not finite.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np

from dpmerge.errors import CheckpointError
from dpmerge.merging.arithmetic import all_finite
from dpmerge.merging.atomic_folders import flush
from dpmerge.merging.byte_progress import ByteCount, Progressed
from dpmerge.merging.checkpoint_input import require_digest, require_known
from dpmerge.merging.engine import merge
from dpmerge.merging.layout import PLAIN_METADATA, OutputFile, file_names, index_of
from dpmerge.merging.shard_tasks import ATTEMPTS, WrittenShard, by_workers
from dpmerge.merging.weight_files import file_header, header_of, opened, read_exactly, require_unchanged
from dpmerge.merging.writing import WrittenFile, allocate, create, write_all, write_small
from dpmerge.portfolio.file_digests import FileHash
from dpmerge.portfolio.recorded_runs import SavedCheckpoint, is_weights
from dpmerge.portfolio.tensors import TensorEntry

_FICLONE = 0x40049409
_PIECE = 2**20


def copy(
    checkpoint: SavedCheckpoint,
    folder: Path,
    *,
    jobs: int = 2,
    progress: Progressed | None = None,
    executor: Executor | None = None,
) -> tuple[WrittenFile, ...]:
    """Write one checkpoint under the usual names; it shares its blocks with the original where the disk can do that.

    Args:
        checkpoint: what is copied.
        folder: where to, a folder that exists.
        jobs: how many files at a time.
        progress: called with how many bytes are done, and of how many.
        executor: have each file copied by a worker of it, on storage that all see.

    Returns:
        The files that were written, with their digests.

    Raises:
        CheckpointError: a file is not what was recorded, changes, or holds values that are not finite.
        CannotWriteError: the disk is full or cannot be written to.

    Example (not run here, since it needs a checkpoint on disk):

        copy(portfolio.saved("a@100"), folder)
    """
    paths = [path for path in checkpoint.files if is_weights(path)]
    headers = {path: file_header(path) for path in paths}
    if any(header.metadata not in ({}, PLAIN_METADATA) for header in headers.values()):
        return merge(
            [(checkpoint, 1.0)], folder, donor=checkpoint, trained=None, jobs=jobs, progress=progress, executor=executor
        )
    files = [
        OutputFile(name=name, header=headers[path].content, slots=headers[path].slots)
        for path, name in zip(paths, file_names(paths), strict=True)
    ]
    if executor is None:
        written = _copied_here(checkpoint, paths, files, folder, jobs, progress)
    else:
        tasks = {
            file.name: (checkpoint, path, folder / ATTEMPTS, file) for path, file in zip(paths, files, strict=True)
        }
        shards = by_workers(executor, _copy_file, tasks, {f.name: f.size for f in files}, folder, progress)
        written = [shard.file for shard in shards]
    if (index := index_of(files)) is not None:
        written.append(write_small(folder, *index))
    return tuple(written)


def _copied_here(
    checkpoint: SavedCheckpoint,
    paths: Sequence[Path],
    files: Sequence[OutputFile],
    folder: Path,
    jobs: int,
    progress: Progressed | None,
) -> list[WrittenFile]:
    count = ByteCount(progress, sum(file.size for file in files))
    stopped = threading.Event()

    def each(path: Path, file: OutputFile) -> WrittenFile:
        try:
            return _copied(checkpoint, path, folder / file.name, file, count, stopped)
        except BaseException:
            stopped.set()
            raise

    with ThreadPoolExecutor(jobs, thread_name_prefix="copy") as pool:
        try:
            return list(pool.map(each, paths, files))
        except BaseException:
            stopped.set()
            raise


def _copy_file(task: tuple[SavedCheckpoint, Path, Path, OutputFile]) -> WrittenShard:
    """One file, by a worker."""
    checkpoint, path, folder, file = task
    to = folder / f"{secrets.token_hex(8)}-{file.name}"
    try:
        written = _copied(checkpoint, path, to, file, ByteCount(None, file.size), threading.Event())
        flush(to, 0o644)
    except BaseException:
        with suppress(OSError):
            to.unlink()
        raise
    return WrittenShard(file=written, attempt=to.name)


def reflinked(source: int, copy: int) -> bool:
    """Whether the copy now shares the source's blocks; file systems that cannot do that say so."""
    try:
        fcntl.ioctl(copy, _FICLONE, source)
    except OSError:
        return False
    return True


def _copied(
    checkpoint: SavedCheckpoint, path: Path, to: Path, file: OutputFile, count: ByteCount, stopped: threading.Event
) -> WrittenFile:
    source = opened(path)
    try:
        copied = create(to)
        try:
            before, size, header = source.identity, source.size, header_of(source)
            require_known(checkpoint, path, header)
            # What is read back of a copy that shares its blocks cannot change any more.
            shared = source.descriptor is not None and reflinked(source.descriptor, copied)
            read_from = opened(to) if shared else source
            if not shared:
                allocate(to, copied, size)
            digest, buffer = FileHash(), np.zeros(_PIECE, np.uint8)
            try:
                for slot, start, length in _pieces(len(header.content), header.slots):
                    if stopped.is_set():
                        break
                    piece = buffer[:length]
                    read_exactly(read_from, piece.data, start)
                    if slot is not None and not all_finite(slot.dtype, piece):
                        found = f"NaN or infinity in {checkpoint.name}"
                        raise CheckpointError(path, slot.name, None, "finite values only", found=found)
                    if not shared:
                        write_all(to, copied, piece.data, start)
                    digest.update(piece.data)
                    count.add(length)
            finally:
                if shared:
                    read_from.close()
            require_unchanged(source, before)
        finally:
            os.close(copied)
    finally:
        source.close()
    digests = digest.digests()
    if not stopped.is_set():
        require_digest(checkpoint, path, digests)
    return WrittenFile(file.name, str(digests.sha256), size)


def _pieces(header: int, slots: tuple[TensorEntry, ...]) -> Iterator[tuple[TensorEntry | None, int, int]]:
    """A file from its first byte to its last: the header, then each tensor, in pieces that fit the buffer."""
    for slot, start, end in [(None, 0, header), *((slot, slot.start, slot.end) for slot in slots)]:
        for at in range(start, end, _PIECE):
            yield slot, at, min(_PIECE, end - at)
