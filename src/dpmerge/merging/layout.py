"""Where the tensors of an output go: its files, their headers and the index of its shards, all known beforehand.

Guarantees: the donor's sharding and order of tensors; the same donor gives the same bytes of header and index; of a
donor's metadata nothing is kept but that its tensors are meant for PyTorch, since the rest may tell of private data.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpmerge.portfolio.recorded_runs import SavedCheckpoint, is_weights
from dpmerge.portfolio.tensors import TensorEntry

ADAPTER_FILE = "adapter_model.safetensors"
MODEL_FILE = "model.safetensors"
PLAIN_METADATA = {"format": "pt"}

_SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.safetensors")


@dataclass(frozen=True, kw_only=True)
class OutputFile:
    """A file to be written: its header, and after it the tensors at their places."""

    name: str
    header: bytes  # the eight bytes of its length included
    slots: tuple[TensorEntry, ...]

    @property
    def size(self) -> int:
        return self.slots[-1].end if self.slots else len(self.header)


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The files of an output, and the index that says which shard a tensor is in, where there are several."""

    files: tuple[OutputFile, ...]
    index: tuple[str, bytes] | None


def layout_like(donor: SavedCheckpoint, metadata: Mapping[Path, Mapping[str, str]]) -> Layout:
    """The layout of a checkpoint, given what metadata its files have."""
    paths = [path for path in donor.files if is_weights(path)]
    slots: dict[Path, list[TensorEntry]] = {path: [] for path in paths}
    for path, slot in donor.tensors.values():
        slots[path].append(slot)
    names = file_names(paths)
    files = []
    for path, name in zip(paths, names, strict=True):
        ordered = sorted(slots[path], key=lambda slot: (slot.start, slot.end))
        files.append(output_file(name, ordered, for_pytorch=metadata[path].get("format") == "pt"))
    return Layout(files=tuple(files), index=index_of(files))


def file_names(paths: Sequence[Path]) -> list[str]:
    """The usual names: the donor's own for shards that are numbered in the usual way."""
    if len(paths) == 1:
        return [ADAPTER_FILE if paths[0].name == ADAPTER_FILE else MODEL_FILE]
    found = [_SHARD.fullmatch(path.name) for path in paths]
    numbered = {(match[1], int(match[2]), int(match[3])) for match in found if match}
    stems = {stem for stem, _, _ in numbered}
    if len(stems) == 1 and numbered == {(*stems, place + 1, len(paths)) for place in range(len(paths))}:
        return [path.name for path in paths]
    return [f"model-{place + 1:05}-of-{len(paths):05}.safetensors" for place in range(len(paths))]


def output_file(name: str, tensors: Sequence[TensorEntry], *, for_pytorch: bool) -> OutputFile:
    """A file of these tensors in this order, whatever places they had before."""
    entries: dict[str, Any] = {"__metadata__": PLAIN_METADATA} if for_pytorch else {}
    offsets = [0]
    for slot in tensors:
        offsets.append(offsets[-1] + slot.end - slot.start)
        place = offsets[-2:]
        entries[slot.name] = {"data_offsets": place, "dtype": slot.dtype, "shape": list(slot.shape)}
    text = json.dumps(entries, sort_keys=True, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    header = len(text).to_bytes(8, "little") + text
    moved = [
        TensorEntry(slot.name, slot.dtype, slot.shape, len(header) + start, len(header) + start + slot.end - slot.start)
        for slot, start in zip(tensors, offsets, strict=False)
    ]
    return OutputFile(name=name, header=header, slots=tuple(moved))


def index_of(files: Sequence[OutputFile]) -> tuple[str, bytes] | None:
    """The index loaders look for beside shards."""
    if len(files) == 1:
        return None
    match = _SHARD.fullmatch(files[0].name)
    assert match is not None, "shards are named in the usual way"
    content = {
        "metadata": {"total_size": sum(slot.end - slot.start for file in files for slot in file.slots)},
        "weight_map": {slot.name: file.name for file in files for slot in file.slots},
    }
    text = json.dumps(content, sort_keys=True, indent=2) + "\n"
    return f"{match[1]}.safetensors.index.json", text.encode()
