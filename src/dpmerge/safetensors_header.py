"""Headers of safetensors files, read without trusting them: which tensors there are, and where their bytes lie.

Guarantees: a header that passed names each tensor once, and its tensors cover the file exactly, without overlap.
Refuses: duplicate names or keys, offsets that do not fit, unknown dtypes, headers above 32 MB, pickles in disguise.
No tensor name is ever used as a path.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from dpmerge.errors import CheckpointError, InvalidInputError, PickleRefusedError, UnreadableCheckpointError
from dpmerge.files import open_regular, size_of
from dpmerge.terms.documents import strict_json

LARGEST_HEADER = 32_000_000
"""Bytes. A model of a hundred thousand tensors has a header of about 10 MB."""

MOST_DIMENSIONS = 64

SIZES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1,
    "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1,
}  # fmt: skip
"""Bytes of one value of each dtype that can be merged or must be equal."""

_PICKLE_MARKS = (b"PK\x03\x04", b"PK\x05\x06", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
PICKLES = (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle", ".joblib", ".npy")
_CONVERT = (
    "a .safetensors file; convert it where it was made and is trusted: "
    "safetensors.torch.save_file(model.state_dict(), 'model.safetensors')"
)


@dataclass(frozen=True)
class TensorEntry:
    """One tensor of a file, and where its bytes are."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


def refuse_pickle(file: object, field: str, name: str) -> None:
    """Refuse a file by its name: weights are read from safetensors alone."""
    if name.lower().endswith(PICKLES):
        raise PickleRefusedError(file, field, name, _CONVERT, found=f"{name!r}, a format that can run code when loaded")


def read_header(path: Path) -> tuple[TensorEntry, ...]:
    """The tensors of a safetensors file, in the order of their bytes."""
    try:
        with open_regular(path) as file:
            return _header(path, file, size_of(file))
    except OSError as error:
        raise UnreadableCheckpointError.from_os(error, path=path) from None


def _header(path: Path, file: BinaryIO, size: int) -> tuple[TensorEntry, ...]:
    start = file.read(8)
    length = int.from_bytes(start, "little")
    if len(start) < 8 or length > min(LARGEST_HEADER, size - 8):
        if start.startswith(_PICKLE_MARKS):
            raise PickleRefusedError(path, "file", path, _CONVERT, found="a pickle or a zip archive")
        accepted = f"8 bytes that give a length within the file, at most {LARGEST_HEADER:,}"
        raise CheckpointError(path, "header length", length, accepted)
    return parse_header(file.read(length), size - 8 - length, path)


def parse_header(text: bytes, data_bytes: int, file: object) -> tuple[TensorEntry, ...]:
    """The tensors a header describes, given how many bytes of data follow it."""
    if not text.startswith(b"{"):
        raise CheckpointError(file, "header", text[:20], "JSON text that begins with {")
    try:
        content = strict_json(text, "header")
    except InvalidInputError as error:
        raise CheckpointError(file, f"header: {error.field}", None, error.accepted, found=error.found) from None
    if not isinstance(content, dict):
        raise CheckpointError(file, "header", content, "an object with one entry for each tensor")
    metadata = content.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise CheckpointError(file, "__metadata__", metadata, "an object whose values are text")
    slots = sorted(
        (_slot(file, name, entry, data_bytes) for name, entry in content.items()), key=lambda s: (s.start, s.end)
    )
    covered = 0
    for slot in slots:
        if slot.start != covered:
            accepted = f"a tensor whose bytes begin at {covered}, where the one before ends"
            raise CheckpointError(file, slot.name, [slot.start, slot.end], accepted)
        covered = slot.end
    if covered != data_bytes:
        raise CheckpointError(file, "data", data_bytes, f"{covered} bytes, as the header says", found=f"{data_bytes}")
    shift = 8 + len(text)
    return tuple(TensorEntry(s.name, s.dtype, s.shape, s.start + shift, s.end + shift) for s in slots)


def _slot(file: object, name: str, entry: Any, data_bytes: int) -> TensorEntry:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise CheckpointError(file, name, entry, "an object with dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in SIZES:
        raise CheckpointError(file, f"{name}.dtype", dtype, ", ".join(SIZES))
    if not _counts(shape, MOST_DIMENSIONS):
        raise CheckpointError(file, f"{name}.shape", shape, f"at most {MOST_DIMENSIONS} integers ≥ 0")
    if not _counts(offsets, 2) or len(offsets) != 2 or not offsets[0] <= offsets[1] <= data_bytes:
        raise CheckpointError(file, f"{name}.data_offsets", offsets, f"two integers in order, at most {data_bytes}")
    if math.prod(shape) * SIZES[dtype] != offsets[1] - offsets[0]:
        accepted = f"{math.prod(shape)} values of {SIZES[dtype]} bytes, as dtype and shape say"
        raise CheckpointError(file, f"{name}.data_offsets", offsets, accepted, found=f"{offsets[1] - offsets[0]} bytes")
    return TensorEntry(name, dtype, tuple(shape), offsets[0], offsets[1])


def _counts(value: Any, most: int) -> bool:
    """A list of integers that could be sizes; anything beyond 2⁶³ is none, and is not multiplied out."""
    return (
        isinstance(value, list)
        and len(value) <= most
        and all(isinstance(x, int) and not isinstance(x, bool) and 0 <= x < 2**63 for x in value)
    )
