"""The folder of a merged model on local scratch: what transformers and PEFT load, made to be scored and removed.

Guarantees: the values are those an evaluator of tensors is given, in the stored dtype (bfloat16, which such evaluators
get as float32, is rounded as a merge rounds it); tensors are made and written one at a time, so that memory is a few
times the largest tensor and not the model. The folder is its owner's alone, and gone afterwards whatever happens; what
a killed process left is removed by the next.
Refuses: a disk that is full, small files that changed since they were looked at.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import numpy as np

from dpmerge.errors import DigestMismatchError
from dpmerge.evaluation.merged_model import StoredModel, Tensor
from dpmerge.files import LARGEST_SMALL_FILE, read_bytes
from dpmerge.merging.layout import OutputFile, file_names, index_of, output_file
from dpmerge.merging.staging import StagedFolder
from dpmerge.merging.writing import OutputWriter, write_small
from dpmerge.portfolio.tensors import TensorEntry


@contextmanager
def candidate_folder(donor: StoredModel, tensors: Iterable[tuple[str, Tensor]]) -> Iterator[Path]:
    """A folder with these tensors in the donor's files, and the donor's small files; there while the context is."""
    # Never published: of a folder that is staged only its lock, its removal and its leftovers are of use here.
    with StagedFolder(Path(tempfile.gettempdir()) / f"dpmerge-candidate-{os.getuid()}", overwrite=True) as staged:
        _write_weights(staged.path, donor, tensors)
        for name, (path, digest) in donor.small_files.items():
            write_small(staged.path, name, _unchanged(path, digest), hashing=False)
        yield staged.path


def _write_weights(folder: Path, donor: StoredModel, tensors: Iterable[tuple[str, Tensor]]) -> None:
    files = _layout(donor.tensors)
    with ExitStack() as opened:
        places: dict[str, tuple[OutputWriter, TensorEntry]] = {}
        for file in files:
            writer = opened.enter_context(closing(OutputWriter(folder, file, hashing=False)))
            places |= {slot.name: (writer, slot) for slot in file.slots}
        for name, tensor in tensors:
            writer, slot = places[name]
            writer.write(stored_bytes(slot.dtype, tensor), slot.start)
    if (index := index_of(files)) is not None:
        write_small(folder, *index, hashing=False)


def _layout(tensors: Mapping[str, tuple[Path, TensorEntry]]) -> list[OutputFile]:
    by_file: dict[Path, list[TensorEntry]] = {}
    for path, slot in tensors.values():
        by_file.setdefault(path, []).append(slot)
    paths = list(by_file)
    return [
        output_file(name, sorted(by_file[path], key=lambda slot: (slot.start, slot.end)), for_pytorch=True)
        for path, name in zip(paths, file_names(paths), strict=True)
    ]


def stored_bytes(dtype: str, tensor: Tensor) -> memoryview:
    """A tensor's values as they are stored; of bfloat16, rounded to the nearest, ties to even."""
    if dtype == "BF16":
        bits = np.ascontiguousarray(tensor, np.float32).view(np.uint32)
        tensor = ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype("<u2")
    return np.ascontiguousarray(tensor).reshape(-1).view(np.uint8).data


def _unchanged(path: Path, digest: str) -> bytes:
    content = read_bytes(path, LARGEST_SMALL_FILE, "a readable file")
    if hashlib.sha256(content).hexdigest() != digest:
        problem = f"{path}: it changed while merges were being scored"
        raise DigestMismatchError(path, path.name, None, "leave it as it is, and score again", problem=problem)
    return content
