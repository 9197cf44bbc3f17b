"""Files of weights, as bytes: opened, read exactly, hashed, and known again when they change.

Guarantees: what is read comes from one file that was not changed meanwhile.
Refuses: files that cannot be read, end early, have no safetensors header, or change while they are read.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path

from dpmerge.errors import CheckpointError, UnreadableCheckpointError
from dpmerge.files import OpenFile
from dpmerge.portfolio.file_digests import FileDigests, FileHash
from dpmerge.portfolio.tensors import LARGEST_HEADER, TensorEntry, parse_header
from dpmerge.terms.documents import strict_json

_PIECE = 2**20


@dataclass(frozen=True, kw_only=True)
class Header:
    """The first bytes of a file, and what they say."""

    content: bytes  # the eight bytes of its length included
    slots: tuple[TensorEntry, ...]
    metadata: dict[str, str]


def opened(path: Path) -> OpenFile:
    try:
        return OpenFile(path)
    except OSError as error:
        raise _unreadable(path, error) from None


def require_unchanged(file: OpenFile, before: Hashable) -> None:
    try:
        same = file.is_still(before)
    except OSError as error:
        raise _unreadable(file.path, error) from None
    if not same:
        raise changed_while_read(file.path)


def read_exactly(file: OpenFile, into: memoryview, offset: int) -> None:
    """Fill a buffer from a file that must be long enough."""
    while into:
        try:
            count = file.read_at(into, offset)
        except OSError as error:
            raise _unreadable(file.path, error) from None
        if not count:
            raise changed_while_read(file.path)
        into, offset = into[count:], offset + count


def header_of(file: OpenFile) -> Header:
    """The header of a safetensors file that is open."""

    def read(offset: int, length: int) -> bytes:
        content = bytearray(length)
        read_exactly(file, memoryview(content), offset)
        return bytes(content)

    return _header(file.path, file.size, read)


def header_within(path: Path, content: bytes) -> Header:
    """The header of a safetensors file that was read whole."""
    return _header(path, len(content), lambda offset, length: content[offset : offset + length])


def _header(path: Path, size: int, read: Callable[[int, int], bytes]) -> Header:
    start = read(0, min(size, 8))
    length = int.from_bytes(start, "little")
    if len(start) < 8 or length > min(LARGEST_HEADER, size - 8):
        accepted = f"8 bytes that give a length within the file, at most {LARGEST_HEADER:,}"
        raise CheckpointError(path, "header length", length, accepted)
    text = read(8, length)
    slots = parse_header(text, size - 8 - length, path)
    return Header(content=start + text, slots=slots, metadata=strict_json(text, "header").get("__metadata__", {}))


def file_header(path: Path) -> Header:
    """The header of a safetensors file."""
    file = opened(path)
    try:
        return header_of(file)
    finally:
        file.close()


def file_digest(path: Path, digest: FileHash) -> tuple[FileDigests, Hashable]:
    """The digests of a file, read on its own, and by what a change of it is recognised."""
    buffer = bytearray(_PIECE)
    file = opened(path)
    try:
        before, size = file.identity, file.size
        for offset in range(0, size, _PIECE):
            piece = memoryview(buffer)[: min(_PIECE, size - offset)]
            read_exactly(file, piece, offset)
            digest.update(piece)
        require_unchanged(file, before)
    finally:
        file.close()
    return digest.digests(), before


def _unreadable(path: Path, error: OSError) -> CheckpointError:
    return UnreadableCheckpointError.from_os(error, path=path)


def changed_while_read(path: Path) -> CheckpointError:
    """The error of a file that somebody wrote to meanwhile."""
    return CheckpointError(path, "file", path, "a file that nobody changes", found="a change while it was read")
