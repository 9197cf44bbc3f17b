"""Safetensors files, read without trusting them: the header, the digests, whether every value is finite.

Guarantees: a header that passed names each tensor once, and its tensors cover the file exactly, without overlap; the
file's digest, each tensor's digest, a sample of its values and the check for NaN and infinity come from the same bytes,
read once.
Refuses: duplicate names or keys, offsets that do not fit, unknown dtypes, headers above 32 MB, pickles in disguise.
No tensor name is ever used as a path.
"""

from __future__ import annotations

import hashlib
import json
import math
import mmap
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from dpmerge.documents import LARGEST_DOCUMENT, open_regular, strict_json
from dpmerge.errors import BadCheckpoint, InvalidInput, PickleRefused, PortfolioError
from dpmerge.portfolio.samples import Array, Sample, places, single

LARGEST_HEADER = 32_000_000
"""Bytes. A model of a hundred thousand tensors has a header of about 10 MB."""

MOST_DIMENSIONS = 64

SIZES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1,
    "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1,
}  # fmt: skip
"""Bytes of one value of each dtype that can be merged or must be equal."""

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
_PICKLE_MARKS = (b"PK\x03\x04", b"PK\x05\x06", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
PICKLES = (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle", ".joblib", ".npy")
_CONVERT = (
    "a .safetensors file; convert it where it was made and is trusted: "
    "safetensors.torch.save_file(model.state_dict(), 'model.safetensors')"
)


@dataclass(frozen=True)
class Slot:
    """One tensor of a file, and where its bytes are."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True)
class Contents:
    """What one pass over a file found: its digest and each tensor's, and of floats some values."""

    sha256: str
    tensors: dict[str, str]
    samples: dict[str, Sample] = field(compare=False, default_factory=dict)


def refuse_pickle(file: object, field: str, name: str) -> None:
    """Refuse a file by its name: weights are read from safetensors alone."""
    if name.lower().endswith(PICKLES):
        raise PickleRefused(file, field, name, _CONVERT, found=f"{name!r}, a format that can run code when loaded")


def read_header(path: Path) -> tuple[Slot, ...]:
    """The tensors of a safetensors file, in the order of their bytes."""
    try:
        with open_regular(path) as file:
            return _header(path, file, os.fstat(file.fileno()).st_size)
    except OSError as error:
        raise BadCheckpoint(
            path, "file", path, "a readable safetensors file", found=f"an error: {error.strerror or error}"
        ) from None


def _header(path: Path, file: BinaryIO, size: int) -> tuple[Slot, ...]:
    start = file.read(8)
    length = int.from_bytes(start, "little")
    if len(start) < 8 or length > min(LARGEST_HEADER, size - 8):
        if start.startswith(_PICKLE_MARKS):
            raise PickleRefused(path, "file", path, _CONVERT, found="a pickle or a zip archive")
        accepted = f"8 bytes that give a length within the file, at most {LARGEST_HEADER:,}"
        raise BadCheckpoint(path, "header length", length, accepted)
    return parse_header(file.read(length), size - 8 - length, path)


def parse_header(text: bytes, data_bytes: int, file: object) -> tuple[Slot, ...]:
    """The tensors a header describes, given how many bytes of data follow it."""
    if not text.startswith(b"{"):
        raise BadCheckpoint(file, "header", text[:20], "JSON text that begins with {")
    try:
        content = strict_json(text, "header")
    except InvalidInput as error:
        raise BadCheckpoint(file, f"header: {error.field}", None, error.accepted, found=error.found) from None
    if not isinstance(content, dict):
        raise BadCheckpoint(file, "header", content, "an object with one entry for each tensor")
    metadata = content.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise BadCheckpoint(file, "__metadata__", metadata, "an object whose values are text")
    slots = sorted(
        (_slot(file, name, entry, data_bytes) for name, entry in content.items()), key=lambda s: (s.start, s.end)
    )
    covered = 0
    for slot in slots:
        if slot.start != covered:
            accepted = f"a tensor whose bytes begin at {covered}, where the one before ends"
            raise BadCheckpoint(file, slot.name, [slot.start, slot.end], accepted)
        covered = slot.end
    if covered != data_bytes:
        raise BadCheckpoint(file, "data", data_bytes, f"{covered} bytes, as the header says", found=f"{data_bytes}")
    shift = 8 + len(text)
    return tuple(Slot(s.name, s.dtype, s.shape, s.start + shift, s.end + shift) for s in slots)


def _slot(file: object, name: str, entry: Any, data_bytes: int) -> Slot:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise BadCheckpoint(file, name, entry, "an object with dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in SIZES:
        raise BadCheckpoint(file, f"{name}.dtype", dtype, ", ".join(SIZES))
    if not _counts(shape, MOST_DIMENSIONS):
        raise BadCheckpoint(file, f"{name}.shape", shape, f"at most {MOST_DIMENSIONS} integers ≥ 0")
    if not _counts(offsets, 2) or len(offsets) != 2 or not offsets[0] <= offsets[1] <= data_bytes:
        raise BadCheckpoint(file, f"{name}.data_offsets", offsets, f"two integers in order, at most {data_bytes}")
    if math.prod(shape) * SIZES[dtype] != offsets[1] - offsets[0]:
        accepted = f"{math.prod(shape)} values of {SIZES[dtype]} bytes, as dtype and shape say"
        raise BadCheckpoint(file, f"{name}.data_offsets", offsets, accepted, found=f"{offsets[1] - offsets[0]} bytes")
    return Slot(name, dtype, tuple(shape), offsets[0], offsets[1])


def _counts(value: Any, most: int) -> bool:
    """A list of integers that could be sizes; anything beyond 2⁶³ is none, and is not multiplied out."""
    return (
        isinstance(value, list)
        and len(value) <= most
        and all(isinstance(x, int) and not isinstance(x, bool) and 0 <= x < 2**63 for x in value)
    )


def read_contents(path: Path, slots: Iterable[Slot], *, each: bool = True) -> Contents:
    """One pass over the file: its digest, each tensor's digest and sample (if `each`), no value that is not finite."""
    whole = hashlib.sha256()
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
    except OSError as error:
        found = f"an error: {error.strerror or error}"
        raise BadCheckpoint(path, "file", path, "a readable safetensors file", found=found) from None
    if rest and digests:
        raise _changed(path)
    return Contents(whole.hexdigest(), digests if each else {}, samples)


def _read_tensor(path: Path, file: BinaryIO, slot: Slot, whole: Any, each: bool) -> tuple[str, Sample | None]:
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
            raise BadCheckpoint(path, slot.name, None, "finite values only", found="NaN or infinity")
        if wanted is not None:
            values = np.frombuffer(piece, dtype=_STORED_AS[slot.dtype])
            first, last = np.searchsorted(wanted, (read, read + len(values)))
            taken.append(single(_widened(slot.dtype, values[wanted[first:last] - read])))
            read += len(values)
        left -= len(piece)
    return digest.hexdigest(), Sample(1, np.concatenate(taken)) if taken else None


def read_samples(path: Path, slots: Iterable[Slot]) -> dict[str, Sample]:
    """The samples of all tensors of floats, and nothing else of the file."""
    try:
        with open_regular(path) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return {s.name: _sampled(content, s) for s in slots if s.dtype in _EXPONENTS and s.end > s.start}
    except (OSError, ValueError) as error:
        found = f"an error: {error}"
        raise BadCheckpoint(path, "file", path, "a readable safetensors file", found=found) from None


def _sampled(content: mmap.mmap, slot: Slot) -> Sample:
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


def read_tensor(path: Path, slot: Slot) -> npt.NDArray[Any]:
    """One tensor's values, in an array of its own; bfloat16, which numpy lacks, as the float32 of the same value."""
    count = math.prod(slot.shape)
    try:
        with open_regular(path) as file:
            values = np.fromfile(file, dtype=_STORED_AS[slot.dtype], count=count, offset=slot.start)
    except OSError as error:
        found = f"an error: {error.strerror or error}"
        raise BadCheckpoint(path, "file", path, "a readable safetensors file", found=found) from None
    if len(values) != count:
        raise _changed(path)
    values = _widened(slot.dtype, values)
    if slot.dtype == "BOOL" and np.any(values.view(np.uint8) > 1):
        raise BadCheckpoint(path, slot.name, None, "booleans stored as 0 or 1", found="another byte")
    return values.reshape(slot.shape)


def _widened(dtype: str, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The upper half of a float32 is a bfloat16."""
    return (values.astype(np.uint32) << 16).view(np.float32) if dtype == "BF16" else values


def _exactly(path: Path, file: BinaryIO, count: int) -> bytes:
    piece = file.read(count)
    if len(piece) != count:
        raise _changed(path)
    return piece


def _changed(path: Path) -> PortfolioError:
    return BadCheckpoint(path, "file", path, "a file that nobody changes", found="another length than a moment ago")


def weights_digest(tensors: Iterable[tuple[str, str, tuple[int, ...], str]]) -> str:
    """One digest of a model: of its tensors' names, dtypes, shapes and digests, whatever files they are in."""
    listed = sorted([name, dtype, list(shape), digest] for name, dtype, shape, digest in tensors)
    return hashlib.sha256(json.dumps(listed, ensure_ascii=True, separators=(",", ":")).encode()).hexdigest()
