"""One run and its checkpoints, as they lie on disk.

Guarantees: what is held here was read and checked by `run_reading`; samples of weights are taken where contents were
not read; a metric that may be planned by is one measured on public data.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from dpmerge.accounting.exposure import Checkpoint, Mechanism
from dpmerge.accounting.rounding import value_range
from dpmerge.errors import (
    ManifestError,
    PrivateMetricError,
    TensorMismatchError,
)
from dpmerge.portfolio.digest_memory import contents_of
from dpmerge.portfolio.file_digests import FileDigests
from dpmerge.portfolio.manifest import MANIFEST_NAME, Manifest, Metric
from dpmerge.portfolio.samples import Sample
from dpmerge.portfolio.tensors import TensorEntry, read_samples, weights_digest
from dpmerge.remote.remote_path import is_url
from dpmerge.terms.checkpoint_reference import CheckpointReference
from dpmerge.terms.mechanism_schema import DpSgdFacts, HistoryFacts

INDEX_SUFFIX = ".json"


@dataclass(frozen=True, eq=False)
class SavedCheckpoint:
    """The weights of a run after some step, as they lie on disk."""

    run: str
    step: int
    files: tuple[Path, ...]
    file_digests: tuple[str, ...]  # SHA-256, as recorded
    tensors: dict[str, tuple[Path, TensorEntry]]
    metrics: tuple[Metric, ...]
    digests: dict[str, str] | None  # of each tensor; None where contents were not read
    recorded_weights: str | None
    manifest_file: Path
    samples: dict[str, Sample] = field(default_factory=dict)  # of tensors of floats; none if contents were not read
    blake3: tuple[str | None, ...] = ()  # of each file as recorded, or as read together with its recorded digest
    recalled: bool = False  # whether digests and samples are from an earlier pass over the same files

    @property
    def name(self) -> str:
        """As it is written everywhere: run@step."""
        return str(CheckpointReference(self.run, self.step))

    @cached_property
    def weights(self) -> str | None:
        """One digest of all tensors: as read, or as recorded where contents were not read."""
        if self.digests is None:
            return self.recorded_weights
        return weights_digest((n, s.dtype, s.shape, self.digests[n]) for n, (_, s) in self.tensors.items())

    def digests_of(self, path: Path) -> FileDigests:
        """What is known of one of its files."""
        place = self.files.index(path)
        return FileDigests(sha256=self.file_digests[place], blake3=self.blake3[place] if self.blake3 else None)

    def metric(self, name: str) -> float:
        """A metric measured on public data: the only kind that may be planned by."""
        found = [metric for metric in self.metrics if metric.name == name]
        for metric in reversed(found):  # noted again is corrected
            if metric.measured_on == "public":
                return metric.value
        where = f"checkpoints[step {self.step}].metrics"
        if found:
            problem = f"{where}: {name!r} was measured on {found[0].measured_on} data"
            remedy = "use one measured on public data: choosing by private data is a release of its own"
            raise PrivateMetricError(self.manifest_file, where, name, remedy, problem=problem)
        known = ", ".join(sorted({m.name for m in self.metrics if m.measured_on == "public"})) or "none is recorded"
        raise ManifestError(self.manifest_file, where, name, f"a public metric of this checkpoint ({known})")


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
    def settings(self) -> str:
        """What its owner knows it by, where it was trained with clipping and noise: C = 2, σ = 64."""
        facts = self.manifest.mechanism
        if not isinstance(facts, DpSgdFacts | HistoryFacts):
            return ""
        noise = f"σ = {value_range(block.noise_multiplier for block in facts.blocks)}"
        if not isinstance(facts, DpSgdFacts):
            return noise
        return f"C = {value_range(block.clip_norm for block in facts.blocks)}, {noise}"

    @property
    def file(self) -> Path:
        return self.folder / MANIFEST_NAME

    def at(self, step: int) -> Checkpoint:
        """The checkpoint after a step, for accounting."""
        return Checkpoint(self.mechanism, step)


def sampled(run: RecordedRun | Run) -> RecordedRun:
    """The run with some values of each tensor, read now where contents were not."""
    checkpoints = [
        each if each.digests is not None and not each.recalled else replace(each, samples=_samples_of(each))
        for each in run.checkpoints
    ]
    return RecordedRun(run.manifest, run.folder, tuple(checkpoints))


def _samples_of(checkpoint: SavedCheckpoint) -> dict[str, Sample]:
    by_file: dict[Path, list[TensorEntry]] = {}
    for path, slot in checkpoint.tensors.values():
        by_file.setdefault(path, []).append(slot)
    return {name: s for path, slots in by_file.items() for name, s in _samples_in(path, slots).items()}


def _samples_in(path: Path, slots: list[TensorEntry]) -> dict[str, Sample]:
    if not is_url(path):
        return read_samples(path, slots)
    # A request for each value would take longer than all of the object, of which one version is read once for good.
    return contents_of(path, sorted(slots, key=lambda slot: (slot.start, slot.end))).samples


def is_weights(path: Path) -> bool:
    """Weights are safetensors; the only other file a checkpoint has is the index of its shards."""
    return path.suffix != INDEX_SUFFIX


def require_frozen_still(run: RecordedRun) -> None:
    """What is called frozen, and gets no release noise, has the same sampled values in all checkpoints of a run."""
    frozen = run.manifest.tensors.frozen if run.manifest.tensors is not None else []
    for checkpoint in run.checkpoints[1:]:
        for name in frozen:
            here, first = checkpoint.samples.get(name), run.checkpoints[0].samples.get(name)
            if here is not None and first is not None and not np.array_equal(here.values, first.values):
                raise has_moved(name, checkpoint, run.checkpoints[0])


def has_moved(name: str, checkpoint: SavedCheckpoint, first: SavedCheckpoint) -> TensorMismatchError:
    """Of a tensor that is called frozen."""
    problem = f"{name}: frozen, and other values in {checkpoint.name} than in {first.name}"
    return TensorMismatchError(checkpoint.tensors[name][0], name, None, "list it as trained", problem=problem)


def all_checkpoints(runs: tuple[RecordedRun, ...]) -> Iterator[SavedCheckpoint]:
    """Every checkpoint of every run."""
    for run in runs:
        yield from run.checkpoints
