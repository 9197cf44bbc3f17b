"""Safetensors files, read once: digests, samples, whether every value is finite.

Guarantees: the file's digest, each tensor's digest, a sample of its values and the check for NaN and infinity come from
the same bytes. Headers are checked by `safetensors_header`.
Refuses: values that are not finite, files that change while they are read.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import mmap
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from dpmerge.errors import (
    CheckpointError,
    PortfolioError,
    UnreadableCheckpointError,
)
from dpmerge.files import LARGEST_DOCUMENT, open_regular, require_one_version
from dpmerge.portfolio.file_digests import FileDigests, FileHash
from dpmerge.portfolio.samples import Array, Sample, places, single
from dpmerge.safetensors_header import LARGEST_HEADER, SIZES, TensorEntry, parse_header, read_header, refuse_pickle

__all__ = [
    "LARGEST_HEADER",
    "SIZES",
    "Contents",
    "TensorEntry",
    "finite",
    "parse_header",
    "read_contents",
    "read_header",
    "read_samples",
    "read_tensor",
    "refuse_pickle",
    "weights_digest",
]

_EXPONENTS: dict[str, tuple[str, int]] = {
    "F64": ("<u8", 0x7FF0000000000000),
    "F32": ("<u4", 0x7F800000),
    "F16": ("<u2", 0x7C00),
    "BF16": ("<u2", 0x7F80),
}
"""For each float: the integer of its width and the exponent bits, all set in NaN and infinity and in nothing else."""

_STORED_AS = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "u1", "BOOL": "?",
}  # fmt: skip

_PIECE = 2**22


@dataclass(frozen=True)
class Contents:
    """What one pass over a file found: its digests and each tensor's, and of floats some values."""

    file: FileDigests
    tensors: dict[str, str]
    samples: dict[str, Sample] = field(compare=False, default_factory=dict)
    recalled: bool = field(compare=False, default=False)  # from an earlier pass (`digest_memory`)

    @property
    def sha256(self) -> str:
        assert self.file.sha256 is not None, "every pass takes it"
        return self.file.sha256


def read_contents(path: Path, slots: Iterable[TensorEntry], *, each: bool = True) -> Contents:
    """One pass over the file: its digests, each tensor's digest and sample (if `each`), no value that is not finite."""
    whole = FileHash()
    digests: dict[str, str] = {}
    samples: dict[str, Sample] = {}
    position = 0
    try:
        with open_regular(path) as file:
            for slot in slots:
                whole.update(_exactly(path, file, slot.start - position))
                digests[slot.name], sample = _read_tensor(path, file, slot, whole, each)
                if sample is not None:
                    samples[slot.name] = sample
                position = slot.end
            whole.update(rest := file.read(LARGEST_DOCUMENT + 1))
            require_one_version(file)
    except OSError as error:
        raise UnreadableCheckpointError.from_os(error, path=path) from None
    if rest and digests:
        raise _changed(path)
    return Contents(whole.digests(), digests if each else {}, samples)


def _read_tensor(
    path: Path, file: BinaryIO, slot: TensorEntry, whole: FileHash, each: bool
) -> tuple[str, Sample | None]:
    digest = hashlib.sha256()
    left = slot.end - slot.start
    wanted = places(math.prod(slot.shape)) if each and slot.dtype in _EXPONENTS else None
    read, taken = 0, list[Array]()
    while left:
        piece = _exactly(path, file, min(left, _PIECE))
        whole.update(piece)
        if each:
            digest.update(piece)
        if not finite(slot.dtype, piece):
            problem = f"{slot.name}: NaN or infinity among its values"
            raise CheckpointError(path, slot.name, None, "keep a checkpoint of finite values", problem=problem)
        if wanted is not None:
            values = np.frombuffer(piece, dtype=_STORED_AS[slot.dtype])
            first, last = np.searchsorted(wanted, (read, read + len(values)))
            taken.append(single(_widened(slot.dtype, values[wanted[first:last] - read])))
            read += len(values)
        left -= len(piece)
    return digest.hexdigest(), Sample(1, np.concatenate(taken)) if taken else None


def read_samples(path: Path, slots: Iterable[TensorEntry]) -> dict[str, Sample]:
    """The samples of all tensors of floats, and nothing else of a file on disk."""
    try:
        with open_regular(path) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return {s.name: _sampled(content, s) for s in slots if s.dtype in _EXPONENTS and s.end > s.start}
    except OSError as error:
        raise UnreadableCheckpointError.from_os(error, path=path) from None
    except ValueError as error:
        needed = "needed: a readable safetensors file"
        raise CheckpointError(path, "file", path, needed, problem=f"cannot be read: {error}") from None


def _sampled(content: mmap.mmap, slot: TensorEntry) -> Sample:
    stored = np.dtype(_STORED_AS[slot.dtype])
    wanted = places(math.prod(slot.shape))
    taken = b"".join(content[slot.start + i * stored.itemsize : slot.start + (i + 1) * stored.itemsize] for i in wanted)
    return Sample(1, single(_widened(slot.dtype, np.frombuffer(taken, dtype=stored))))


def finite(dtype: str, content: bytes | memoryview) -> bool:
    """Whether no value of a float dtype is NaN or infinite; other dtypes have no such values."""
    if dtype not in _EXPONENTS:
        return True
    width, exponent = _EXPONENTS[dtype]
    bits = np.frombuffer(content, dtype=width)
    return not bool(np.any((bits & exponent) == exponent))


def read_tensor(path: Path, slot: TensorEntry) -> npt.NDArray[Any]:
    """One tensor's values, in an array of its own; bfloat16, which numpy lacks, as the float32 of the same value."""
    count = math.prod(slot.shape)
    try:
        with open_regular(path) as file:
            values = _values_of(file, np.dtype(_STORED_AS[slot.dtype]), count, slot.start)
    except OSError as error:
        raise UnreadableCheckpointError.from_os(error, path=path) from None
    if len(values) != count:
        raise _changed(path)
    values = _widened(slot.dtype, values)
    if slot.dtype == "BOOL" and np.any(values.view(np.uint8) > 1):
        problem = f"{slot.name}: a boolean stored as another byte than 0 or 1"
        raise CheckpointError(path, slot.name, None, "write the file anew", problem=problem)
    return values.reshape(slot.shape)


def _values_of(file: BinaryIO, stored: np.dtype[Any], count: int, start: int) -> npt.NDArray[Any]:
    if file.seekable() and isinstance(file.raw, io.FileIO):  # type: ignore[attr-defined]
        return np.fromfile(file, dtype=stored, count=count, offset=start)
    file.seek(start)
    content = bytearray(file.read(count * stored.itemsize))
    require_one_version(file)
    return np.frombuffer(content[: len(content) // stored.itemsize * stored.itemsize], dtype=stored)


def _widened(dtype: str, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The upper half of a float32 is a bfloat16."""
    return (values.astype(np.uint32) << 16).view(np.float32) if dtype == "BF16" else values


def _exactly(path: Path, file: BinaryIO, count: int) -> bytes:
    piece = file.read(count)
    if len(piece) != count:
        raise _changed(path)
    return piece


def _changed(path: Path) -> PortfolioError:
    problem = "it has another length than a moment ago"
    return CheckpointError(path, "file", path, "wait until nobody changes it", problem=problem)


def weights_digest(tensors: Iterable[tuple[str, str, tuple[int, ...], str]]) -> str:
    """One digest of a model: of its tensors' names, dtypes, shapes and digests, whatever files they are in."""
    listed = sorted([name, dtype, list(shape), digest] for name, dtype, shape, digest in tensors)
    return hashlib.sha256(json.dumps(listed, ensure_ascii=True, separators=(",", ":")).encode()).hexdigest()
