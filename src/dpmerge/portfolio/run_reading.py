"""A run read from its folder: its manifest, and checkpoints that are what the manifest says they are.

Guarantees: every file named lies inside the run's folder and is safetensors (or the JSON index of its shards); with
contents read, each has the recorded digest and only finite values.
Refuses, naming file and field: names that lead elsewhere, pickles, broken or ambiguous headers, wrong digests, tensors
that the manifest does not list, frozen ones that moved, tied ones that differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Literal

from dpmerge.errors import CheckpointError, DigestMismatchError, TensorMismatchError, UnsafePathError
from dpmerge.files import is_file, read_bytes
from dpmerge.portfolio.averages import averages_of
from dpmerge.portfolio.digest_memory import contents_of, recalled_contents
from dpmerge.portfolio.file_digests import mismatch
from dpmerge.portfolio.manifest import MANIFEST_NAME, Manifest, SavedAs
from dpmerge.portfolio.recorded_runs import INDEX_SUFFIX, RecordedRun, SavedCheckpoint, has_moved, is_weights
from dpmerge.portfolio.run_files import inside
from dpmerge.portfolio.tensors import Contents, TensorEntry, read_header, refuse_pickle

Headers = Mapping[Path, tuple[TensorEntry, ...]]


Reading = Literal["headers", "recalled", "contents", "every byte"]
"""How much of the weights is looked at: none; what is remembered of all files, if it is; the same, and what is not is
read; every byte, whatever is remembered."""


def read_runs(folder: Path, *, reading: Reading) -> Iterator[RecordedRun]:
    """The run of a folder, and each average it kept of its weights as a run of its own."""
    run = read_run(folder, reading=reading)
    yield run
    for average in averages_of(run.manifest):
        yield _read(average, folder, reading=reading)


def read_run(folder: Path, *, reading: Reading) -> RecordedRun:
    """Read the manifest, the headers of all checkpoints, and as much of their contents as is asked for."""
    return _read(Manifest.read(folder / MANIFEST_NAME), folder, reading=reading)


def _read(manifest: Manifest, folder: Path, *, reading: Reading) -> RecordedRun:
    manifest_file = folder / MANIFEST_NAME
    located = [
        [_located(folder, manifest_file, place, position, saved) for position in range(len(saved.files))]
        for place, saved in enumerate(manifest.checkpoints)
    ]
    headers = {path: read_header(path) if is_weights(path) else () for paths in located for path in paths}
    found = _all_contents(headers, reading)
    if found is not None:
        _require_digests(manifest, manifest_file, located, found)
    checkpoints = []
    for place, paths in enumerate(located):
        checkpoint = _checkpoint(manifest, manifest_file, place, paths, headers, found)
        _require_recorded(manifest, place, checkpoint)
        require_tied(manifest, checkpoint)
        checkpoints.append(checkpoint)
    _require_frozen(manifest, checkpoints)
    return RecordedRun(manifest, folder, tuple(checkpoints))


def _all_contents(headers: Headers, reading: Reading) -> dict[Path, Contents] | None:
    if reading == "headers":
        return None
    if reading == "recalled":
        known = {path: recalled_contents(path, header) for path, header in headers.items()}
        found = {path: each for path, each in known.items() if each is not None}
        return found if len(found) == len(known) else None
    look = partial(contents_of, rehash=reading == "every byte")
    # Hashing releases the interpreter lock: two threads keep two cores, or a disk, busy.
    with ThreadPoolExecutor(2) as pool:
        passes = {path: pool.submit(look, path, header) for path, header in headers.items()}
        return {path: result.result() for path, result in passes.items()}


def _require_digests(
    manifest: Manifest, manifest_file: Path, located: Sequence[Sequence[Path]], found: Mapping[Path, Contents]
) -> None:
    """Every file is the one that was recorded."""
    for place, saved in enumerate(manifest.checkpoints):
        for position, (file, path) in enumerate(zip(saved.files, located[place], strict=True)):
            if (wrong := mismatch(found[path].file, file.digests)) is not None:
                field = f"checkpoints[{place}].files[{position}].{wrong.kind}"
                problem = f"{field}: {file.name} {wrong.words}"
                remedy = wrong.remedy or "put back the file that was recorded, or record the run as one of its own"
                raise DigestMismatchError(manifest_file, field, getattr(file, wrong.kind), remedy, problem=problem)


def _checkpoint(
    manifest: Manifest,
    manifest_file: Path,
    place: int,
    paths: Sequence[Path],
    headers: Headers,
    found: Mapping[Path, Contents] | None,
) -> SavedCheckpoint:
    saved = manifest.checkpoints[place]
    read = [found[path] for path in paths] if found is not None else []
    return SavedCheckpoint(
        run=manifest.run,
        step=saved.step,
        files=tuple(paths),
        file_digests=tuple(file.sha256 for file in saved.files),
        tensors=_tensors(manifest_file, place, [(path, headers[path]) for path in paths]),
        metrics=tuple(saved.metrics),
        digests={name: d for each in read for name, d in each.tensors.items()} if found is not None else None,
        samples={name: sample for each in read for name, sample in each.samples.items()},
        blake3=tuple(
            file.blake3 or (found[p].file.blake3 if found else None) for p, file in zip(paths, saved.files, strict=True)
        ),
        recorded_weights=saved.weights,
        manifest_file=manifest_file,
        recalled=any(each.recalled for each in read),
    )


def _located(folder: Path, manifest_file: Path, place: int, position: int, saved: SavedAs) -> Path:
    name = saved.files[position].name
    field = f"checkpoints[{place}].files[{position}].name"
    refuse_pickle(manifest_file, field, name)
    if not name.endswith((".safetensors", INDEX_SUFFIX)):
        raise CheckpointError(manifest_file, field, name, "a .safetensors file, or the .json index of its shards")
    path = folder / name
    if not inside(path, folder):
        problem = f"{field}: {name!r} is a link out of the run's folder"
        raise UnsafePathError(manifest_file, field, name, "put the file itself there", problem=problem)
    if not is_file(path):
        problem = f"{field}: the manifest names {name!r}, which is not there"
        raise CheckpointError(
            manifest_file, field, name, "put the file back, or keep fewer checkpoints", problem=problem
        )
    if not is_weights(path):
        read_bytes(path)  # an index is small
    return path


def _tensors(
    manifest_file: Path, place: int, files: list[tuple[Path, tuple[TensorEntry, ...]]]
) -> dict[str, tuple[Path, TensorEntry]]:
    tensors: dict[str, tuple[Path, TensorEntry]] = {}
    for path, slots in files:
        for slot in slots:
            if slot.name in tensors:
                problem = f"{slot.name}: another file of this checkpoint has it too"
                raise CheckpointError(path, slot.name, None, "keep each tensor in one file", problem=problem)
            tensors[slot.name] = (path, slot)
    if not tensors:
        field = f"checkpoints[{place}].files"
        raise CheckpointError(
            manifest_file, field, None, "name files with weights", problem=f"{field}: no tensor at all"
        )
    return tensors


def _require_recorded(manifest: Manifest, place: int, checkpoint: SavedCheckpoint) -> None:
    """The tensors on disk are those the manifest lists, with the digest it gives."""
    file = checkpoint.manifest_file
    if manifest.tensors is not None:
        listed = {*manifest.tensors.trained, *manifest.tensors.frozen}
        if difference := sorted(listed ^ set(checkpoint.tensors)):
            there = "not in the file" if difference[0] in listed else "not in the manifest"
            problem = f"tensors: {difference[0]!r} is {there}"
            remedy = f"list the tensors of {checkpoint.name} as trained or frozen, each once and no others"
            raise TensorMismatchError(file, "tensors", difference[0], remedy, problem=problem)
    recorded = checkpoint.recorded_weights
    if recorded is not None and checkpoint.weights != recorded:
        field = f"checkpoints[{place}].weights"
        problem = f"{field}: the weights have the digest {checkpoint.weights}, and {recorded} was recorded"
        remedy = "put back the weights that were recorded, or record the run as one of its own"
        raise DigestMismatchError(file, field, recorded, remedy, problem=problem)


def require_tied(manifest: Manifest, checkpoint: SavedCheckpoint) -> None:
    """Names that are said to be one weight have one dtype, shape and, where contents were read, value."""
    for place, (first, *others) in enumerate(manifest.tensors.tied or () if manifest.tensors else ()):
        slot = checkpoint.tensors[first][1]
        for name in others:
            path, other = checkpoint.tensors[name]
            remedy = f"make them alike, or take {name} out of tensors.tied[{place}], which says they are one weight"
            for kind in ("dtype", "shape"):
                if getattr(other, kind) != getattr(slot, kind):
                    problem = f"{name}.{kind}: {getattr(other, kind)}, where {first} has {getattr(slot, kind)}"
                    raise TensorMismatchError(path, f"{name}.{kind}", None, remedy, problem=problem)
            if checkpoint.digests is not None and checkpoint.digests[name] != checkpoint.digests[first]:
                problem = f"{name}: other values than {first} in {checkpoint.name}"
                raise TensorMismatchError(path, name, None, remedy, problem=problem)


def _require_frozen(manifest: Manifest, checkpoints: list[SavedCheckpoint]) -> None:
    """What a run did not train is the same in all its checkpoints."""
    for checkpoint in checkpoints[1:]:
        first = checkpoints[0].digests
        for name in manifest.tensors.frozen if manifest.tensors else ():
            if first and checkpoint.digests and checkpoint.digests[name] != first[name]:
                raise has_moved(name, checkpoint, checkpoints[0])
