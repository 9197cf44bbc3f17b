"""The checkpoints a merge reads: their files, opened when they are needed and not believed until they are closed.

Guarantees: what was read has the SHA-256 the manifest gives (of the whole file where it is read in order, else of the
checkpoint's tensors), and comes from a file with the header the portfolio knew. BLAKE3 alone is taken only where this
user has seen the two together (`digest_pairs`); where the manifest gives both and that was not seen, both are.
Refuses: files that have another header or digest than was recorded.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path

from dpmerge.errors import CheckpointError, DigestMismatchError
from dpmerge.files import OpenFile
from dpmerge.merging.ordered_hash import OrderedHash
from dpmerge.merging.weight_files import (
    Header,
    changed_while_read,
    file_digest,
    header_of,
    opened,
    read_exactly,
    require_unchanged,
)
from dpmerge.portfolio.digest_pairs import remember_pair, seen_together
from dpmerge.portfolio.file_digests import FileDigests, FileHash, mismatch
from dpmerge.portfolio.recorded_runs import SavedCheckpoint, is_weights
from dpmerge.portfolio.tensors import weights_digest

PUT_BACK = "put back what was recorded, or record the run as one of its own"


class TensorSource:
    """One file of weights. It is opened for the first piece that is read and closed, and judged, after the last."""

    def __init__(self, checkpoint: SavedCheckpoint, path: Path, *, whole: bool) -> None:
        self.path = path
        self.whole: OrderedHash | None = OrderedHash(into=input_hash(checkpoint, path)) if whole else None
        self.unread = sum(slot.end - slot.start for file, slot in checkpoint.tensors.values() if file == path)
        self._checkpoint = checkpoint
        self._file: OpenFile | None = None
        self._identity: Hashable = None
        self.hashed: Hashable = None  # as it was when it was hashed on its own
        self._lock = threading.Lock()

    def open(self) -> None:
        """Make sure that the file is open and is the one the portfolio knew. One thread at a time calls this."""
        if self._file is not None:
            return
        self._file = opened(self.path)
        self._identity = self._file.identity
        if self.hashed is not None and self._identity != self.hashed:
            raise changed_while_read(self.path)
        header = header_of(self._file)
        require_known(self._checkpoint, self.path, header)
        if self.whole is not None:
            self.whole.feed(self.whole.ticket(), header.content)

    def read(self, into: memoryview, offset: int) -> None:
        """Fill a buffer."""
        assert self._file is not None
        read_exactly(self._file, into, offset)

    def finished(self, count: int) -> None:
        """So many bytes were read, used and hashed; after the last of them the file must still be what it was."""
        with self._lock:
            self.unread -= count
            if self.unread or self._file is None:
                return
            file, self._file = self._file, None
        try:
            require_unchanged(file, self._identity)
        finally:
            file.close()
        if self.whole is not None:
            require_digest(self._checkpoint, self.path, self.whole.digests())

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class CheckpointInput:
    """A checkpoint that is read: its files, and how its digest is taken."""

    def __init__(self, checkpoint: SavedCheckpoint, order: Sequence[str], *, hashing: bool) -> None:
        self.checkpoint = checkpoint
        in_order = reads_in_order(checkpoint, order)
        # What is not read in order is compared by tensors, or else read once more beforehand.
        self._by_tensor = hashing and not in_order and checkpoint.weights is not None
        paths = [path for path in checkpoint.files if is_weights(path)]
        self.sources = {path: TensorSource(checkpoint, path, whole=hashing and in_order) for path in paths}
        self.tensors: dict[str, OrderedHash] = {name: OrderedHash() for name in checkpoint.tensors if self._by_tensor}
        if hashing:
            alone = checkpoint.files if not in_order and not self._by_tensor else set(checkpoint.files) - set(paths)
            for path in alone:
                digest, before = file_digest(path, input_hash(checkpoint, path))
                require_digest(checkpoint, path, digest)
                if path in self.sources:
                    self.sources[path].hashed = before
        for source in self.sources.values():
            if not source.unread:  # a file of no values is read by opening it
                try:
                    source.open()
                    source.finished(0)
                finally:
                    source.close()

    def hash_of(self, name: str) -> OrderedHash | None:
        """Where pieces of this tensor are hashed."""
        return self.tensors.get(name) or self.sources[self.checkpoint.tensors[name][0]].whole

    def hashes(self) -> Iterable[OrderedHash]:
        yield from self.tensors.values()
        yield from (source.whole for source in self.sources.values() if source.whole is not None)

    def require_weights(self) -> None:
        """After all was read: the tensors are those that were recorded."""
        if self._by_tensor:
            require_weights(self.checkpoint, {name: each.hexdigest() for name, each in self.tensors.items()})

    def close(self) -> None:
        for source in self.sources.values():
            source.close()


def require_weights(saved: SavedCheckpoint, digests: Mapping[str, str]) -> None:
    """The tensors of a checkpoint, by their digests, are those that were recorded."""
    found = weights_digest((n, s.dtype, s.shape, digests[n]) for n, (_, s) in saved.tensors.items())
    if found != saved.weights:
        field = f"weights of {saved.name}"
        problem = f"{field}: they have the digest {found}, and {saved.weights} was recorded"
        raise DigestMismatchError(saved.manifest_file, field, None, PUT_BACK, problem=problem)


def reads_in_order(checkpoint: SavedCheckpoint, order: Sequence[str]) -> bool:
    """Whether tensors taken in this order are taken from each file in the order of their bytes."""
    last: dict[Path, int] = {}
    for name in order:
        path, slot = checkpoint.tensors[name]
        if slot.end > slot.start:
            if slot.start < last.get(path, 0):
                return False
            last[path] = slot.end
    return True


def require_known(checkpoint: SavedCheckpoint, path: Path, header: Header) -> None:
    """A file still has the tensors, at the places, that the portfolio saw when it was loaded."""
    known = {slot.name: slot for file, slot in checkpoint.tensors.values() if file == path}
    if known != {slot.name: slot for slot in header.slots}:
        problem = f"header: it has other tensors than {checkpoint.name} had when the portfolio was read"
        raise CheckpointError(path, "header", None, PUT_BACK, problem=problem)


def input_hash(checkpoint: SavedCheckpoint, path: Path) -> FileHash:
    """What a file is to be hashed with, to be compared with what was recorded: as little as says as much."""
    known = checkpoint.digests_of(path)
    return FileHash(sha256=not seen_together(known), blake3=known.blake3 is not None)


def require_digest(checkpoint: SavedCheckpoint, path: Path, found: FileDigests) -> None:
    """A file is the one that was recorded."""
    if (wrong := mismatch(found, checkpoint.digests_of(path))) is not None:
        field = f"{wrong.kind} of {path.name}"
        problem = f"{field}: the file {wrong.words}"
        raise DigestMismatchError(checkpoint.manifest_file, field, None, wrong.remedy or PUT_BACK, problem=problem)
    remember_pair(found)
