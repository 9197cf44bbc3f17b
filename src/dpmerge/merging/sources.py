"""The files of checkpoints as a merge reads them: opened when they are needed, and not believed until they are closed.

Guarantees: what was read has the digest the manifest gives (of the whole file where it is read in order, else of the
checkpoint's tensors), comes from a file with the header the portfolio knew, and was not changed meanwhile.
Refuses: files that cannot be read, end early, have another header or digest, or change while they are read.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dpmerge.documents import regular_descriptor, strict_json
from dpmerge.errors import BadCheckpoint, DigestMismatch
from dpmerge.merging.turnstile import Turnstile
from dpmerge.portfolio.runs import SavedCheckpoint, is_weights
from dpmerge.portfolio.tensors import LARGEST_HEADER, Slot, parse_header, weights_digest

_PIECE = 2**20


@dataclass(frozen=True, kw_only=True)
class Header:
    """The first bytes of a file, and what they say."""

    content: bytes  # the eight bytes of its length included
    slots: tuple[Slot, ...]
    metadata: dict[str, str]


class Source:
    """One file of weights. It is opened for the first piece that is read and closed, and judged, after the last."""

    def __init__(self, checkpoint: SavedCheckpoint, path: Path, *, whole: bool) -> None:
        self.path = path
        self.whole: Turnstile | None = Turnstile() if whole else None
        self.unread = sum(slot.end - slot.start for file, slot in checkpoint.tensors.values() if file == path)
        self._checkpoint = checkpoint
        self._descriptor: int | None = None
        self._stat: tuple[int, int, int] | None = None
        self.hashed: tuple[int, int, int] | None = None  # as it was when it was hashed on its own
        self._lock = threading.Lock()

    def open(self) -> None:
        """Make sure that the file is open and is the one the portfolio knew. One thread at a time calls this."""
        if self._descriptor is not None:
            return
        self._descriptor = opened(self.path)
        self._stat = state(self._descriptor)
        if self.hashed is not None and self._stat != self.hashed:
            raise _changed(self.path)
        header = header_of(self.path, self._descriptor)
        require_known(self._checkpoint, self.path, header)
        if self.whole is not None:
            self.whole.feed(self.whole.ticket(), header.content)

    def read(self, into: memoryview, offset: int) -> None:
        """Fill a buffer."""
        assert self._descriptor is not None
        read_exactly(self.path, self._descriptor, into, offset)

    def finished(self, count: int) -> None:
        """So many bytes were read, used and hashed; after the last of them the file must still be what it was."""
        with self._lock:
            self.unread -= count
            if self.unread or self._descriptor is None:
                return
            descriptor, self._descriptor = self._descriptor, None
        try:
            require_unchanged(self.path, descriptor, self._stat)
        finally:
            os.close(descriptor)
        if self.whole is not None:
            require_digest(self._checkpoint, self.path, self.whole.hexdigest())

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class Input:
    """A checkpoint that is read: its files, and how its digest is taken."""

    def __init__(self, checkpoint: SavedCheckpoint, order: Sequence[str], *, hashing: bool) -> None:
        self.checkpoint = checkpoint
        in_order = reads_in_order(checkpoint, order)
        # What is not read in order is compared by tensors, or else read once more beforehand.
        self._by_tensor = hashing and not in_order and checkpoint.weights is not None
        paths = [path for path in checkpoint.files if is_weights(path)]
        self.sources = {path: Source(checkpoint, path, whole=hashing and in_order) for path in paths}
        self.tensors: dict[str, Turnstile] = {name: Turnstile() for name in checkpoint.tensors if self._by_tensor}
        if hashing:
            alone = checkpoint.files if not in_order and not self._by_tensor else set(checkpoint.files) - set(paths)
            for path in alone:
                digest, before = file_digest(path)
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

    def turnstile(self, name: str) -> Turnstile | None:
        """Where pieces of this tensor are hashed."""
        return self.tensors.get(name) or self.sources[self.checkpoint.tensors[name][0]].whole

    def turnstiles(self) -> Iterable[Turnstile]:
        yield from self.tensors.values()
        yield from (source.whole for source in self.sources.values() if source.whole is not None)

    def require_weights(self) -> None:
        """After all was read: the tensors are those that were recorded."""
        if not self._by_tensor:
            return
        saved = self.checkpoint
        found = weights_digest(
            (n, s.dtype, s.shape, self.tensors[n].hexdigest()) for n, (_, s) in saved.tensors.items()
        )
        if found != saved.weights:
            accepted = f"the weights that were recorded, {saved.weights}"
            there = f"weights with the digest {found}"
            raise DigestMismatch(saved.manifest_file, f"weights of {saved.name}", None, accepted, found=there)

    def close(self) -> None:
        for source in self.sources.values():
            source.close()


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


def opened(path: Path) -> int:
    try:
        return regular_descriptor(path)
    except OSError as error:
        raise _unreadable(path, error) from None


def state(descriptor: int) -> tuple[int, int, int]:
    """What changes when a file does."""
    found = os.fstat(descriptor)
    return found.st_size, found.st_mtime_ns, found.st_ino


def require_unchanged(path: Path, descriptor: int, before: tuple[int, int, int] | None) -> None:
    if state(descriptor) != before:
        raise _changed(path)


def read_exactly(path: Path, descriptor: int, into: memoryview, offset: int) -> None:
    """Fill a buffer from a file that must be long enough."""
    while into:
        try:
            count = os.preadv(descriptor, [into], offset)
        except OSError as error:
            raise _unreadable(path, error) from None
        if not count:
            raise _changed(path)
        into, offset = into[count:], offset + count


def header_of(path: Path, descriptor: int) -> Header:
    """The header of a safetensors file that is open."""

    def read(offset: int, length: int) -> bytes:
        content = bytearray(length)
        read_exactly(path, descriptor, memoryview(content), offset)
        return bytes(content)

    return _header(path, os.fstat(descriptor).st_size, read)


def header_within(path: Path, content: bytes) -> Header:
    """The header of a safetensors file that was read whole."""
    return _header(path, len(content), lambda offset, length: content[offset : offset + length])


def _header(path: Path, size: int, read: Callable[[int, int], bytes]) -> Header:
    start = read(0, min(size, 8))
    length = int.from_bytes(start, "little")
    if len(start) < 8 or length > min(LARGEST_HEADER, size - 8):
        accepted = f"8 bytes that give a length within the file, at most {LARGEST_HEADER:,}"
        raise BadCheckpoint(path, "header length", length, accepted)
    text = read(8, length)
    slots = parse_header(text, size - 8 - length, path)
    return Header(content=start + text, slots=slots, metadata=strict_json(text, "header").get("__metadata__", {}))


def file_header(path: Path) -> Header:
    """The header of a safetensors file."""
    descriptor = opened(path)
    try:
        return header_of(path, descriptor)
    finally:
        os.close(descriptor)


def require_known(checkpoint: SavedCheckpoint, path: Path, header: Header) -> None:
    """A file still has the tensors, at the places, that the portfolio saw when it was loaded."""
    known = {slot.name: slot for file, slot in checkpoint.tensors.values() if file == path}
    if known != {slot.name: slot for slot in header.slots}:
        accepted = f"the tensors that {checkpoint.name} had when the portfolio was read"
        raise BadCheckpoint(path, "header", None, accepted, found="others")


def require_digest(checkpoint: SavedCheckpoint, path: Path, found: str) -> None:
    """A file is the one that was recorded."""
    recorded = checkpoint.file_digests[checkpoint.files.index(path)]
    if found != recorded:
        accepted, there = f"the file that was recorded, {recorded}", f"{path.name} with the digest {found}"
        raise DigestMismatch(checkpoint.manifest_file, f"sha256 of {path.name}", recorded, accepted, found=there)


def file_digest(path: Path) -> tuple[str, tuple[int, int, int]]:
    """The digest of a file, read on its own, and by what a change of it is recognised."""
    digest, buffer = hashlib.sha256(), bytearray(_PIECE)
    descriptor = opened(path)
    try:
        before = state(descriptor)
        for offset in range(0, before[0], _PIECE):
            piece = memoryview(buffer)[: min(_PIECE, before[0] - offset)]
            read_exactly(path, descriptor, piece, offset)
            digest.update(piece)
        require_unchanged(path, descriptor, before)
    finally:
        os.close(descriptor)
    return digest.hexdigest(), before


def _unreadable(path: Path, error: OSError) -> BadCheckpoint:
    found = f"an error: {error.strerror or error}"
    return BadCheckpoint(path, "file", path, "a readable safetensors file", found=found)


def _changed(path: Path) -> BadCheckpoint:
    return BadCheckpoint(path, "file", path, "a file that nobody changes", found="a change while it was read")
