"""The manifest: `privacy.json`, which says of one run how it was trained and which checkpoints it left.

Guarantees: what is accepted is complete for its kind, consistent with itself and inside every domain; a file is
replaced atomically or not at all.
Refuses: unknown or duplicate fields, more than 10 MB, a dataset named by a digest, sizes that the adjacency makes
private, file names that lead elsewhere, checkpoints out of order.
"""

from __future__ import annotations

import json
import math
import os
import re
import secrets
from collections import Counter
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from dpmerge.documents import LARGEST_DOCUMENT, Strict, read_bytes, strict_json, validated
from dpmerge.errors import BadManifest, InvalidInput, PortfolioError, UnsafePath
from dpmerge.portfolio.facts import MECHANISM_KINDS, AnyText, DpSgdFacts, MechanismFacts, Text
from dpmerge.portfolio.statement import (
    RUN_ID,
    Ancestry,
    NoiseOrigin,
    NoiseSource,
    RecordedBy,
    RunId,
    RunStatement,
    Tuning,
)
from dpmerge.privacy.exposure import Adjacency, Checkpoint, Mechanism
from dpmerge.privacy.releases import OneShot

SCHEMA = "dpmerge/run/v1"
MANIFEST_NAME = "privacy.json"
LONGEST_NAME = 255

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
_DIGEST = re.compile(r"(?:sha\d+[:_-]?|md5[:_-]?)?[0-9a-f]{32,}", re.IGNORECASE)


class Dataset(Strict):
    """Which private data; a name its owner chose, never anything computed from the data."""

    id: Text = Field(description="an opaque name chosen by the data's owner; never a digest of the data")
    size: Annotated[int, Field(ge=1, le=10**18)] | None = Field(
        default=None, description="an integer from 1 to 10¹⁸, under replace_one only (under add_remove it is private)"
    )

    @model_validator(mode="after")
    def _the_name_is_no_digest(self) -> Dataset:
        if _DIGEST.fullmatch(self.id):
            accepted = "an opaque name chosen by the data's owner (a digest of the data would itself be a release)"
            raise InvalidInput("id", self.id, accepted)
        return self


class Noise(Strict):
    """Where the noise came from. Not for release: a seed gives the noise away."""

    source: NoiseSource = Field(description='"os_entropy", "seeded" or "unknown"')
    generator: Text | None = Field(default=None, description="text: the generator")
    secure_rng: bool | None = Field(default=None, description="true or false: is the generator cryptographic?")
    stream: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")] | None = Field(
        default=None, description="32 hexadecimal digits drawn at random, different for every stream of noise"
    )
    seed: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="an integer ≥ 0 where the source is seeded, and left out otherwise"
    )

    @model_validator(mode="after")
    def _seeded_means_a_seed(self) -> Noise:
        if (self.source == "seeded") != (self.seed is not None):
            raise InvalidInput("seed", self.seed, str(type(self).model_fields["seed"].description))
        if self.source == "os_entropy" and self.stream is None:
            raise InvalidInput("stream", None, str(type(self).model_fields["stream"].description))
        return self


class Tensors(Strict):
    """The tensors of the checkpoints: which the run trained and which it left as they were."""

    trained: list[AnyText] = Field(description="a list of tensor names")
    frozen: list[AnyText] = Field(default_factory=list, description="a list of tensor names")
    initial: dict[AnyText, Sha256] = Field(
        default_factory=dict, description="an object of tensor names and their digests at the start"
    )
    frozen_weights: Sha256 | None = Field(
        default=None, description="64 hexadecimal digits: digest of all frozen tensors, kept in the checkpoints or not"
    )


class File(Strict):
    """One file of a checkpoint."""

    name: AnyText = Field(description="a relative path inside the run's folder")
    sha256: Sha256 = Field(description="64 hexadecimal digits")


class Metric(Strict):
    """A figure of merit, and on what it was measured."""

    name: Text = Field(description="text")
    value: Annotated[float, Field(allow_inf_nan=False)] = Field(description="a finite number")
    measured_on: Literal["public", "private", "training"] = Field(description='"public", "private" or "training"')
    data: Text | None = Field(default=None, description="text: which data")


class SavedAs(Strict):
    """A checkpoint that was kept."""

    step: Annotated[int, Field(ge=0)] = Field(description="an integer ≥ 0: the weights after this step")
    files: list[File] = Field(min_length=1, description="a non-empty list of files with their sha256")
    weights: Sha256 | None = Field(default=None, description="64 hexadecimal digits: digest of the tensors themselves")
    metrics: list[Metric] = Field(default_factory=list, description="a list of metrics")


class Manifest(Strict):
    """One run: what was done to which data, and what was kept."""

    schema_: Literal["dpmerge/run/v1"] = Field(alias="schema", description=f'"{SCHEMA}"')
    run: RunId = Field(description=RUN_ID)
    dataset: Dataset = Field(description="an object with an id")
    unit: Text = Field(description='text: whose privacy is protected, such as "record"')
    adjacency: Literal["replace_one", "add_remove"] = Field(description='"replace_one" or "add_remove"')
    mechanism: MechanismFacts = Field(description="an object whose kind is one of " + ", ".join(MECHANISM_KINDS))
    noise: Noise = Field(description="an object with a source")
    ancestry: Ancestry = Field(description="an object with a start")
    initial_weights: Sha256 | None = Field(default=None, description="64 hexadecimal digits: digest of the tensors")
    tensors: Tensors | None = Field(default=None, description="an object with trained and frozen")
    tuning: Tuning = Field(description='"none", "public", "charged" or "unknown": on what hyperparameters were tuned')
    record_losses: Literal["checked", "vouched", "unknown"] | None = Field(
        default=None,
        description='"checked", "vouched" or "unknown": has each record a loss of its own?',
    )
    checkpoints: list[SavedAs] = Field(default_factory=list, description="a list of checkpoints in order of steps")
    finished: bool = Field(default=True, description="true or false: did the run end as planned?")
    recorded_by: RecordedBy = Field(description="an object with how")
    tools: dict[Text, Text] = Field(default_factory=dict, description="an object of names and versions")

    @model_validator(mode="after")
    def _consistent(self) -> Manifest:
        if self.dataset.size is not None and self.adjacency == "add_remove":
            accepted = "left out under add_remove, which makes the number of records private"
            raise InvalidInput("dataset.size", self.dataset.size, accepted)
        if isinstance(self.mechanism, DpSgdFacts) and self.mechanism.smoothness is not None:
            records, size = self.mechanism.smoothness.records, self.dataset.size
            if records is not None and size is not None and records < size:
                accepted = f"an integer ≥ {size}, the size of the data set"
                raise InvalidInput("mechanism.smoothness.records", records, accepted)
        _require_whole_epochs(self)
        # Whether the parent is there is the portfolio's business; every other fact is checked here.
        mechanism = _within("mechanism", lambda: self.mechanism_from(None))
        earlier, names = -1, set[str]()
        for place, saved in enumerate(self.checkpoints):
            if saved.step == 0 and (isinstance(mechanism, OneShot) or self.initial_weights is None):
                accepted = "an integer ≥ 1 (step 0 is the start, of which the run must know initial_weights)"
                raise InvalidInput(f"checkpoints[{place}].step", 0, accepted)
            if not earlier < saved.step <= mechanism.steps:
                accepted = f"steps in increasing order, up to the run's {mechanism.steps}"
                raise InvalidInput(f"checkpoints[{place}].step", saved.step, accepted)
            earlier = saved.step
            for position, file in enumerate(saved.files):
                field = f"checkpoints[{place}].files[{position}].name"
                if file.name in names:
                    raise InvalidInput(field, file.name, "each file once")
                names.add(file.name)
        if self.tensors is not None:
            counted = Counter([*self.tensors.trained, *self.tensors.frozen])
            if repeated := next((name for name, times in counted.items() if times > 1), None):
                raise InvalidInput("tensors", repeated, "each tensor once, trained or frozen")
        return self

    @property
    def statement(self) -> RunStatement:
        """What its cost depends on, and nothing else."""
        return RunStatement(
            run=self.run,
            mechanism=self.mechanism,
            noise=NoiseOrigin(
                source=self.noise.source, generator=self.noise.generator, secure_rng=self.noise.secure_rng
            ),
            ancestry=self.ancestry,
            tuning=self.tuning,
            record_losses=self.record_losses,
            finished=self.finished,
            recorded_by=self.recorded_by,
        )

    def mechanism_from(self, parent: Checkpoint | None) -> Mechanism:
        """The run as the mathematics sees it, started from `parent` where that was private; without it, no number."""
        return self.statement.mechanism_from(Adjacency(self.adjacency), parent)

    @classmethod
    def parse(cls, text: str | bytes, file: object = MANIFEST_NAME) -> Manifest:
        """From JSON text; `file` is named in errors."""
        try:
            manifest = validated(cls, strict_json(text, "manifest"), "manifest")
        except InvalidInput as error:
            raise error if isinstance(error, PortfolioError) else BadManifest.of(file, error) from None
        for place, saved in enumerate(manifest.checkpoints):
            for position, listed in enumerate(saved.files):
                require_plain_path(file, f"checkpoints[{place}].files[{position}].name", listed.name)
        return manifest

    @classmethod
    def read(cls, path: Path) -> Manifest:
        """From a file of at most 10 MB."""
        try:
            content = read_bytes(path, LARGEST_DOCUMENT)
        except InvalidInput as error:
            raise BadManifest(path, "file", path, error.accepted, found=error.found) from None
        return cls.parse(content, path)

    def document(self) -> dict[str, Any]:
        """As JSON values; what is not known is left out."""
        return self.model_dump(by_alias=True, exclude_none=True)

    def text(self) -> str:
        """As the JSON that is written to disk."""
        return json.dumps(self.document(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"

    def write(self, path: Path) -> None:
        """Replace the file as one operation: whoever reads it finds the old manifest or the new one, whole."""
        content = self.text().encode()
        if len(content) > LARGEST_DOCUMENT:
            accepted = f"at most {LARGEST_DOCUMENT:,} bytes, or nobody could read it; keep fewer checkpoints"
            raise BadManifest(path, "file", len(content), accepted, found=f"{len(content):,} bytes")
        write_atomically(path, content)


def require_plain_path(file: object, field: str, name: str) -> None:
    """Refuse a name that is not a plain relative path: it could lead anywhere."""
    accepted = "a relative path inside the run's folder, without .. or \\"
    parts = PurePosixPath(name).parts
    plain = name == "/".join(parts) and not name.startswith("/") and ".." not in parts and name.isprintable()
    if not plain or any(mark in name for mark in ("\\", "\0", ":")):
        raise UnsafePath(file, field, name, accepted)
    if any(len(part.encode()) > LONGEST_NAME for part in parts):
        raise UnsafePath(file, field, name, f"names of at most {LONGEST_NAME} bytes")


def write_atomically(path: Path, content: bytes) -> None:
    """Write beside, flush to disk, rename."""
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        # For its owner alone: digests of unreleased weights, and seeds, are private.
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make a rename in this folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def json_schema() -> dict[str, Any]:
    """The published JSON Schema of a manifest. What it cannot say (rules across fields) `manifest check` checks."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA,
        "title": "A privately trained run and its checkpoints",
        **{k: v for k, v in Manifest.model_json_schema(by_alias=True).items() if k != "title"},
    }


def _require_whole_epochs(manifest: Manifest) -> None:
    """An epoch has as many steps as batches fit into the data, at most."""
    facts, size = manifest.mechanism, manifest.dataset.size
    if isinstance(facts, DpSgdFacts) and facts.steps_per_epoch and facts.expected_batch_size and size:
        batches = size / facts.expected_batch_size
        if facts.steps_per_epoch >= batches + 1:
            accepted = f"at most {math.ceil(batches)}: {size} records in batches of {facts.expected_batch_size:g}"
            raise InvalidInput("mechanism.steps_per_epoch", facts.steps_per_epoch, accepted)


def _within(place: str, build: Any) -> Any:
    try:
        return build()
    except InvalidInput as error:
        raise error.within(place) from None
