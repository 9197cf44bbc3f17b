"""Small models of every dtype on disk, in any shards and order, as runs of a portfolio."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.portfolio.recorded_runs import SavedCheckpoint
from dpmerge.portfolio.tensors import SIZES, read_header, weights_digest
from portfolio.portfolios import header_entry, manifest, safetensors_bytes, sha256, write_json

Tensor = tuple[str, tuple[int, ...], bytes]
Model = Mapping[str, Tensor]

FLOATS = ("F64", "F32", "F16", "BF16")
_WIDTHS: dict[str, Any] = {"F64": np.uint64, "F32": np.uint32, "F16": np.uint16, "BF16": np.uint16}
_INFINITY = {"F64": 0x7FF0000000000000, "F32": 0x7F800000, "F16": 0x7C00, "BF16": 0x7F80}


def bits_of(dtype: str, content: bytes) -> npt.NDArray[Any]:
    return np.frombuffer(content, _WIDTHS[dtype])


def stored(dtype: str, values: npt.ArrayLike) -> bytes:
    """Values in a dtype; bfloat16 by cutting off, which is as good as any rounding for an input."""
    if dtype == "BF16":
        cut = np.asarray(values, np.float32).view(np.uint32) >> 16
        return cut.astype(np.uint16).tobytes()
    return np.asarray(values).astype({"F64": "f8", "F32": "f4", "F16": "f2", "I64": "i8", "BOOL": "?"}[dtype]).tobytes()


def values_of(dtype: str, content: bytes) -> npt.NDArray[np.float64]:
    if dtype == "BF16":
        return (bits_of(dtype, content).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return np.frombuffer(content, {"F64": "f8", "F32": "f4", "F16": "f2"}[dtype]).astype(np.float64)


def tensor(dtype: str, shape: Sequence[int], seed: int, scale: float = 0.05) -> Tensor:
    values = scale * np.random.default_rng(seed).standard_normal(math.prod(shape))
    return dtype, tuple(shape), stored(dtype, values)


def wild(dtype: str, shape: Sequence[int], seed: int) -> Tensor:
    """Any finite bits whatever: subnormals, zeros of both signs, numbers as large as leave room for a sum."""
    width = 8 * SIZES[dtype]
    random = np.random.default_rng(seed)
    size = random.integers(0, _INFINITY[dtype], math.prod(shape), dtype=np.uint64)
    sign = random.integers(0, 2, math.prod(shape), dtype=np.uint64) << np.uint64(width - 1)
    return dtype, tuple(shape), (size | sign).astype(_WIDTHS[dtype]).tobytes()


def model(seed: int) -> dict[str, Tensor]:
    """One tensor of each kind, of odd sizes, and an empty one."""
    made = {f"{dtype.lower()}.weight": tensor(dtype, (7, 11), 10 * seed + k) for k, dtype in enumerate(FLOATS)}
    made |= {f"{dtype.lower()}.wild": wild(dtype, (41,), 10 * seed + k + 5) for k, dtype in enumerate(FLOATS)}
    return {
        **made,
        "bf16.scalar": tensor("BF16", (), seed),
        "bf16.empty": ("BF16", (0, 3), b""),
        "steps": ("I64", (3,), stored("I64", [1, 2, 3])),
        "mask": ("BOOL", (5,), stored("BOOL", [1, 0, 1, 1, 0])),
    }


def write_tensors(file: Path, tensors: Model, metadata: Mapping[str, str] | None = None) -> None:
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata is not None else {}
    data = b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = header_entry(dtype, list(shape), len(data), len(data) + len(content))
        data += content
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(safetensors_bytes(header, data))


def write_run(
    home: Path,
    run: str,
    files: Mapping[str, Model],
    *,
    frozen: Sequence[str] | None = (),
    weights: bool = True,
    metadata: Mapping[str, str] | None = None,
    small: Mapping[str, str] | None = None,
) -> Path:
    """A run of one checkpoint after step 4, in these files; `frozen` of None leaves out which tensors were trained."""
    folder = home / run
    for name, tensors in files.items():
        write_tensors(folder / name, tensors, metadata)
    for name, text in (small or {}).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    names = [name for tensors in files.values() for name in tensors]
    trained = [name for name in names if name not in (frozen or ())]
    facts = None if frozen is None else {"trained": trained, "frozen": list(frozen)}
    entry: dict[str, Any] = {"step": 4, "files": [{"name": n, "sha256": sha256(folder / n)} for n in files]}
    if weights:
        # Not read back: the tests also record weights that are not finite.
        entry["weights"] = weights_digest(
            (name, dtype, shape, hashlib.sha256(content).hexdigest())
            for tensors in files.values()
            for name, (dtype, shape, content) in tensors.items()
        )
    document = manifest(run, tensors=facts, initial_weights=None)
    write_json(folder / "privacy.json", {**document, "checkpoints": [entry]})
    return folder


def checkpoints(home: Path, *, contents: bool = False) -> list[SavedCheckpoint]:
    """Those of each run in a folder, loaded one by one: what runs may not share is not of interest here."""
    folders = [home] if (home / "privacy.json").exists() else sorted(home.iterdir())
    return [saved for folder in folders for saved in Portfolio.load(folder, contents=contents).checkpoints()]


def read_model(folder: Path) -> dict[str, Tensor]:
    """Every tensor in a folder's safetensors files."""
    found = {}
    for file in sorted(folder.glob("*.safetensors")):
        content = file.read_bytes()
        found |= {slot.name: (slot.dtype, slot.shape, content[slot.start : slot.end]) for slot in read_header(file)}
    return found


def header_json(file: Path) -> dict[str, Any]:
    content = file.read_bytes()
    return dict(json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")]))


def tree(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, by its path."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
