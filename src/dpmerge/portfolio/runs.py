"""One run on disk: its manifest, and checkpoints that are what the manifest says they are.

Guarantees: every file named lies inside the run's folder and is safetensors (or the JSON index of its shards); with
contents read, each has the recorded digest and only finite values.
Refuses, naming file and field: names that lead elsewhere, pickles, broken or ambiguous headers, wrong digests.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from dpmerge.documents import is_file, read_bytes
from dpmerge.errors import BadCheckpoint, BadManifest, DigestMismatch, PrivateMetric, TensorMismatch, UnsafePath
from dpmerge.portfolio.manifest import MANIFEST_NAME, Manifest, Metric, SavedAs
from dpmerge.portfolio.samples import Sample
from dpmerge.portfolio.tensors import (
    Contents,
    Slot,
    read_contents,
    read_header,
    read_samples,
    refuse_pickle,
    weights_digest,
)
from dpmerge.privacy.exposure import Checkpoint, Mechanism

INDEX_SUFFIX = ".json"


@dataclass(frozen=True, eq=False)
class SavedCheckpoint:
    """The weights of a run after some step, as they lie on disk."""

    run: str
    step: int
    files: tuple[Path, ...]
    file_digests: tuple[str, ...]  # as recorded
    tensors: dict[str, tuple[Path, Slot]]
    metrics: tuple[Metric, ...]
    digests: dict[str, str] | None  # of each tensor; None where contents were not read
    recorded_weights: str | None
    manifest_file: Path
    samples: dict[str, Sample] = field(default_factory=dict)  # of tensors of floats; none if contents were not read

    @property
    def name(self) -> str:
        """As it is written everywhere: run@step."""
        return f"{self.run}@{self.step}"

    @cached_property
    def weights(self) -> str | None:
        """One digest of all tensors: as read, or as recorded where contents were not read."""
        if self.digests is None:
            return self.recorded_weights
        return weights_digest((n, s.dtype, s.shape, self.digests[n]) for n, (_, s) in self.tensors.items())

    def metric(self, name: str) -> float:
        """A metric measured on public data: the only kind that may be planned by."""
        found = [metric for metric in self.metrics if metric.name == name]
        for metric in reversed(found):  # noted again is corrected
            if metric.measured_on == "public":
                return metric.value
        where = f"checkpoints[step {self.step}].metrics"
        if found:
            accepted = "a metric measured on public data; choosing by private data is a release of its own"
            measured = f"{name!r} measured on {found[0].measured_on} data"
            raise PrivateMetric(self.manifest_file, where, name, accepted, found=measured)
        known = ", ".join(sorted({m.name for m in self.metrics if m.measured_on == "public"})) or "none is recorded"
        raise BadManifest(self.manifest_file, where, name, f"a public metric of this checkpoint ({known})")


@dataclass(frozen=True, eq=False)
class RecordedRun:
    """A run as its folder shows it, before it is seen beside others."""

    manifest: Manifest
    folder: Path
    checkpoints: tuple[SavedCheckpoint, ...]

    @property
    def file(self) -> Path:
        return self.folder / MANIFEST_NAME


@dataclass(frozen=True, eq=False)
class Run:
    """A run of a portfolio: its record, its place in the mathematics, its checkpoints."""

    manifest: Manifest
    folder: Path
    mechanism: Mechanism
    checkpoints: tuple[SavedCheckpoint, ...]

    def __repr__(self) -> str:
        return f"Run({self.id!r}: {', '.join(checkpoint.name for checkpoint in self.checkpoints) or 'no checkpoint'})"

    @property
    def id(self) -> str:
        return self.manifest.run

    @property
    def file(self) -> Path:
        return self.folder / MANIFEST_NAME

    def at(self, step: int) -> Checkpoint:
        """The checkpoint after a step, for accounting."""
        return Checkpoint(self.mechanism, step)


def sampled(run: RecordedRun | Run) -> RecordedRun:
    """The run with some values of each tensor, read now where contents were not."""
    checkpoints = [
        each if each.digests is not None else replace(each, samples=_samples_of(each)) for each in run.checkpoints
    ]
    return RecordedRun(run.manifest, run.folder, tuple(checkpoints))


def _samples_of(checkpoint: SavedCheckpoint) -> dict[str, Sample]:
    by_file: dict[Path, list[Slot]] = {}
    for path, slot in checkpoint.tensors.values():
        by_file.setdefault(path, []).append(slot)
    return {name: s for path, slots in by_file.items() for name, s in read_samples(path, slots).items()}


def read_run(folder: Path, *, contents: bool) -> RecordedRun:
    """Read the manifest and the headers of all checkpoints; with `contents`, every byte."""
    manifest_file = folder / MANIFEST_NAME
    manifest = Manifest.read(manifest_file)
    places = [
        (saved, place, position)
        for place, saved in enumerate(manifest.checkpoints)
        for position in range(len(saved.files))
    ]
    paths = {
        (place, position): _located(folder, manifest_file, place, position, saved) for saved, place, position in places
    }
    headers = {key: read_header(path) if is_weights(path) else () for key, path in paths.items()}
    found: dict[tuple[int, int], Contents] = {}
    if contents:
        # Hashing releases the interpreter lock: two threads keep two cores, or a disk, busy.
        with ThreadPoolExecutor(2) as pool:
            passes = {key: pool.submit(read_contents, path, headers[key]) for key, path in paths.items()}
            found = {key: result.result() for key, result in passes.items()}
        for saved, place, position in places:
            actual = found[place, position].sha256
            if actual != saved.files[position].sha256:
                field = f"checkpoints[{place}].files[{position}].sha256"
                name, recorded = saved.files[position].name, saved.files[position].sha256
                accepted, there = f"the file that was recorded, {recorded}", f"{name} with the digest {actual}"
                raise DigestMismatch(manifest_file, field, recorded, accepted, found=there)
    checkpoints = []
    for place, saved in enumerate(manifest.checkpoints):
        keys = [(place, position) for position in range(len(saved.files))]
        tensors = _tensors(manifest_file, place, [(paths[key], headers[key]) for key in keys])
        digests = {n: d for key in keys for n, d in found[key].tensors.items()} if contents else None
        files = tuple(paths[key] for key in keys)
        checkpoint = SavedCheckpoint(
            run=manifest.run,
            step=saved.step,
            files=files,
            file_digests=tuple(file.sha256 for file in saved.files),
            tensors=tensors,
            metrics=tuple(saved.metrics),
            digests=digests,
            samples={n: sample for key in keys for n, sample in found[key].samples.items()} if contents else {},
            recorded_weights=saved.weights,
            manifest_file=manifest_file,
        )
        _require_recorded(manifest, place, checkpoint)
        _require_tied(manifest, checkpoint)
        checkpoints.append(checkpoint)
    _require_frozen(manifest, checkpoints)
    return RecordedRun(manifest, folder, tuple(checkpoints))


def is_weights(path: Path) -> bool:
    """Weights are safetensors; the only other file a checkpoint has is the index of its shards."""
    return path.suffix != INDEX_SUFFIX


def _located(folder: Path, manifest_file: Path, place: int, position: int, saved: SavedAs) -> Path:
    name = saved.files[position].name
    field = f"checkpoints[{place}].files[{position}].name"
    refuse_pickle(manifest_file, field, name)
    if not name.endswith((".safetensors", INDEX_SUFFIX)):
        raise BadCheckpoint(manifest_file, field, name, "a .safetensors file, or the .json index of its shards")
    path = folder / name
    if not inside(path, folder):
        raise UnsafePath(manifest_file, field, name, "a file inside the run's folder", found=f"{name!r}, a link out")
    if not is_file(path):
        raise BadCheckpoint(manifest_file, field, name, "a file that exists", found=f"{name!r}, which is not there")
    if not is_weights(path):
        read_bytes(path)  # an index is small
    return path


def inside(path: Path, folder: Path) -> bool:
    """Whether a path, its links followed, lies in a folder; a link that leads nowhere does not."""
    try:
        return path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError):
        return False


def _tensors(
    manifest_file: Path, place: int, files: list[tuple[Path, tuple[Slot, ...]]]
) -> dict[str, tuple[Path, Slot]]:
    tensors: dict[str, tuple[Path, Slot]] = {}
    for path, slots in files:
        for slot in slots:
            if slot.name in tensors:
                raise BadCheckpoint(path, slot.name, None, "each tensor in one file", found="a tensor of two files")
            tensors[slot.name] = (path, slot)
    if not tensors:
        raise BadCheckpoint(manifest_file, f"checkpoints[{place}].files", None, "weights", found="no tensor at all")
    return tensors


def _require_recorded(manifest: Manifest, place: int, checkpoint: SavedCheckpoint) -> None:
    """The tensors on disk are those the manifest lists, with the digest it gives."""
    file = checkpoint.manifest_file
    if manifest.tensors is not None:
        listed = {*manifest.tensors.trained, *manifest.tensors.frozen}
        if difference := sorted(listed ^ set(checkpoint.tensors)):
            there = "not in the file" if difference[0] in listed else "not in the manifest"
            accepted = f"the tensors of {checkpoint.name}"
            raise TensorMismatch(file, "tensors", difference[0], accepted, found=f"{difference[0]!r}, {there}")
    recorded = checkpoint.recorded_weights
    if recorded is not None and checkpoint.weights != recorded:
        accepted, found = f"the weights that were recorded, {recorded}", f"weights with the digest {checkpoint.weights}"
        raise DigestMismatch(file, f"checkpoints[{place}].weights", recorded, accepted, found=found)


def _require_tied(manifest: Manifest, checkpoint: SavedCheckpoint) -> None:
    """Names that are said to be one weight have one dtype, shape and, where contents were read, value."""
    for place, (first, *others) in enumerate(manifest.tensors.tied or () if manifest.tensors else ()):
        slot = checkpoint.tensors[first][1]
        for name in others:
            path, other = checkpoint.tensors[name]
            accepted = f"what {first} has, since tensors.tied[{place}] says that they are one weight"
            for kind in ("dtype", "shape"):
                if getattr(other, kind) != getattr(slot, kind):
                    found = f"{getattr(other, kind)}, where {first} has {getattr(slot, kind)}"
                    raise TensorMismatch(path, f"{name}.{kind}", None, accepted, found=found)
            if checkpoint.digests is not None and checkpoint.digests[name] != checkpoint.digests[first]:
                raise TensorMismatch(path, name, None, accepted, found=f"other values in {checkpoint.name}")


def require_frozen_still(run: RecordedRun) -> None:
    """What is called frozen, and gets no release noise, has the same sampled values in all checkpoints of a run."""
    frozen = run.manifest.tensors.frozen if run.manifest.tensors is not None else []
    for checkpoint in run.checkpoints[1:]:
        for name in frozen:
            here, first = checkpoint.samples.get(name), run.checkpoints[0].samples.get(name)
            if here is not None and first is not None and not np.array_equal(here.values, first.values):
                accepted = f"a frozen tensor as it is in {run.checkpoints[0].name}, or a trained one"
                found = f"other values in {checkpoint.name}"
                raise TensorMismatch(checkpoint.tensors[name][0], name, None, accepted, found=found)


def _require_frozen(manifest: Manifest, checkpoints: list[SavedCheckpoint]) -> None:
    """What a run did not train is the same in all its checkpoints."""
    for checkpoint in checkpoints[1:]:
        first = checkpoints[0].digests
        for name in manifest.tensors.frozen if manifest.tensors else ():
            if first and checkpoint.digests and checkpoint.digests[name] != first[name]:
                accepted = f"a frozen tensor that stays as it is in {checkpoints[0].name}"
                raise TensorMismatch(checkpoint.tensors[name][0], name, None, accepted, found="other values")


def all_checkpoints(runs: tuple[RecordedRun, ...]) -> Iterator[SavedCheckpoint]:
    """Every checkpoint of every run."""
    for run in runs:
        yield from run.checkpoints
