"""The manifest: `privacy.json`, which says of one run how it was trained and which checkpoints it left.

Guarantees: what is accepted is complete for its kind, consistent with itself and inside every domain; a file is
replaced atomically or not at all.
Refuses: unknown or duplicate fields, more than 10 MB, a dataset named by a digest, sizes that the adjacency makes
private, file names that lead elsewhere, checkpoints out of order, names that show something else than they say.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from dpmerge.accounting.exposure import Adjacency, AdjacencyName, Checkpoint, Mechanism
from dpmerge.accounting.gaussian import GaussianProfile
from dpmerge.accounting.one_shot_mechanisms import GaussianDp, GaussianRelease, OneShot
from dpmerge.errors import InvalidInputError, ManifestError, PortfolioError
from dpmerge.files import LARGEST_DOCUMENT, read_bytes
from dpmerge.portfolio.manifest_parts import (
    MODEL_KIND,
    NOT_IN_STATEMENT,
    Amendment,
    Dataset,
    File,
    Metric,
    ModelKind,
    NoiseRecord,
    ResumedSegment,
    SavedAs,
    Sha256,
    Tensors,
)
from dpmerge.portfolio.run_files import require_plain_path, write_atomically
from dpmerge.portfolio.samples import StartSample
from dpmerge.terms.documents import Strict, Text, require_seen, schema_of, strict_json, validated
from dpmerge.terms.mechanism_schema import MECHANISM_KINDS, DpSgdFacts, HistoryFacts, MechanismFacts
from dpmerge.terms.resumption import require_order
from dpmerge.terms.run_record import (
    ADJACENCY,
    RECORD_LOSSES,
    RUN_ID,
    SCHEDULE,
    STOPPING,
    Ancestry,
    Decided,
    NoiseOrigin,
    RecordedBy,
    RecordLosses,
    RunId,
    RunRecord,
    Tuning,
    require_noise,
)

__all__ = [
    "MANIFEST_NAME",
    "SCHEMA",
    "File",
    "Manifest",
    "Metric",
    "NoiseRecord",
    "ResumedSegment",
    "SavedAs",
    "Sha256",
    "Tensors",
    "json_schema",
    "require_plain_path",
    "write_atomically",
]

SCHEMA = "dpmerge/run/v1"
MANIFEST_NAME = "privacy.json"
LONGEST_VOICE = 500


class Manifest(Strict):
    """One run: what was done to which data, and what was kept."""

    schema_: Literal["dpmerge/run/v1"] = Field(alias="schema", description=f'"{SCHEMA}"')
    run: RunId = Field(description=RUN_ID)
    dataset: Dataset = Field(description="an object with an id")
    unit: Text = Field(description='text: whose privacy is protected, such as "record"')
    adjacency: AdjacencyName = Field(description=ADJACENCY)
    mechanism: MechanismFacts = Field(description="an object whose kind is one of " + ", ".join(MECHANISM_KINDS))
    noise: NoiseRecord = Field(description="an object with a source")
    ancestry: Ancestry = Field(description="an object with a start")
    initial_weights: Sha256 | None = Field(default=None, description="64 hexadecimal digits: digest of the tensors")
    start_sample: StartSample | None = Field(default=None, description="an object with every and values")
    tensors: Tensors | None = Field(default=None, description="an object with trained and frozen")
    tuning: Tuning = Field(description='"none", "public", "charged" or "unknown": on what hyperparameters were tuned')
    stopping: Decided | None = Field(default=None, description=STOPPING)
    schedule: Decided | None = Field(default=None, description=SCHEDULE)
    record_losses: RecordLosses | None = Field(default=None, description=RECORD_LOSSES)
    model: ModelKind | None = Field(default=None, description=MODEL_KIND)
    checkpoints: list[SavedAs] = Field(default_factory=list, description="a list of checkpoints in order of steps")
    public_files: dict[Text, Sha256] | None = Field(
        default=None,
        description="an object of file names and their sha256: kept beside each checkpoint, vouched to be public",
    )
    finished: bool = Field(default=True, description="true or false: did the run end as planned?")
    resumed: Annotated[list[ResumedSegment], Field(min_length=1)] | None = Field(
        default=None, description="a list of objects with after and noise: where the run was broken off and went on"
    )
    recorded_by: RecordedBy = Field(description="an object with how")
    amended: list[Amendment] | None = Field(
        default=None, description="a list of objects with by and fields: what was stated later, and who vouches"
    )
    tools: dict[Text, Text] = Field(default_factory=dict, description="an object of names and versions")

    @model_validator(mode="after")
    def _consistent(self) -> Manifest:
        # Names of files have a rule of their own, `require_plain_path`, which is stricter.
        unnamed: dict[str, Any] = {"files": True, "averages": {"__all__": {"files"}}}
        require_seen(self.model_dump(exclude={"checkpoints": {"__all__": unnamed}}))
        require_noise(self.noise.source, self.mechanism)
        self._require_resumed()
        self._require_amendments()
        self._require_sizes()
        self._require_whole_epochs()
        self._require_checkpoints()
        if self.record_losses == "checked" and self.recorded_by.how != "recorder":
            accepted = '"vouched" or "unknown": nobody but the recorder checks it'
            raise InvalidInputError("record_losses", self.record_losses, accepted)
        if self.tensors is not None:
            counted = Counter([*self.tensors.trained, *self.tensors.frozen])
            if repeated := next((name for name, times in counted.items() if times > 1), None):
                raise InvalidInputError("tensors", repeated, "each tensor once, trained or frozen")
        return self

    def files(self) -> Iterator[tuple[str, File]]:
        """All files of all checkpoints, averages included, and what an error calls each."""
        for place, saved in enumerate(self.checkpoints):
            yield from _files(place, saved)

    @property
    def streams(self) -> list[NoiseRecord]:
        """The noise of each stretch of the run."""
        return [self.noise, *(each.noise for each in self.resumed or ())]

    def _require_resumed(self) -> None:
        if self.resumed is None:
            return
        mechanism = self.mechanism_from(None)
        if isinstance(mechanism, OneShot):
            raise InvalidInputError("resumed", self.mechanism.kind, "left out for what has no steps")
        require_order(self.resumed, mechanism.steps)
        named = [each.stream for each in self.streams if each.stream is not None]
        if len(set(named)) < len(named) or any(each.noise.source != "os_entropy" for each in self.resumed):
            raise InvalidInputError("resumed", None, "noise of its own, from the operating system, for each stretch")

    def _require_sizes(self) -> None:
        size = self.dataset.size
        if size is not None and not Adjacency(self.adjacency).size_is_public:
            accepted = f"left out under {self.adjacency}, which makes the number of records private"
            raise InvalidInputError("dataset.size", size, accepted)
        smoothness = self.mechanism.smoothness if isinstance(self.mechanism, DpSgdFacts) else None
        records = smoothness.records if smoothness is not None else None
        if records is not None and size is not None and records < size:
            accepted = f"an integer ≥ {size}, the size of the data set"
            raise InvalidInputError("mechanism.smoothness.records", records, accepted)

        order = self.mechanism.order if isinstance(self.mechanism, DpSgdFacts | HistoryFacts) else None
        if order is not None and size is not None and order.records != size:
            raise InvalidInputError("mechanism.order.records", order.records, f"{size}, the size of the data set")
        if order is not None and self.recorded_by.how != "recorder":
            accepted = "left out: only the recorder sees to it that nobody knows the order"
            raise InvalidInputError("mechanism.order", order.secret, accepted)
        if order is not None and self.noise.source == "seeded":
            accepted = "left out where the noise was seeded: the order then is known as well"
            raise InvalidInputError("mechanism.order", order.secret, accepted)

    def _require_whole_epochs(self) -> None:
        """An epoch has as many steps as batches fit into the data, at most."""
        facts, size = self.mechanism, self.dataset.size
        if isinstance(facts, DpSgdFacts) and facts.steps_per_epoch and facts.expected_batch_size and size:
            batches = size / facts.expected_batch_size
            if facts.steps_per_epoch - 1 >= batches:
                accepted = f"at most {math.ceil(batches)}: {size} records in batches of {facts.expected_batch_size:g}"
                raise InvalidInputError("mechanism.steps_per_epoch", facts.steps_per_epoch, accepted)

    def _require_checkpoints(self) -> None:
        # Whether the parent is there is the portfolio's business; every other fact is checked here.
        try:
            mechanism = self.mechanism_from(None)
        except InvalidInputError as error:
            raise error.within("mechanism") from None
        earlier, names = -1, set[str]()
        for place, saved in enumerate(self.checkpoints):
            if saved.step == 0 and (isinstance(mechanism, OneShot) or self.initial_weights is None):
                accepted = "an integer ≥ 1 (step 0 is the start, of which the run must know initial_weights)"
                raise InvalidInputError(f"checkpoints[{place}].step", 0, accepted)
            if not earlier < saved.step <= mechanism.steps:
                accepted = f"steps in increasing order, up to the run's {mechanism.steps}"
                raise InvalidInputError(f"checkpoints[{place}].step", saved.step, accepted)
            earlier = saved.step
            for field, file in _files(place, saved):
                if file.name in names:
                    raise InvalidInputError(f"{field}.name", file.name, "each file once")
                names.add(file.name)

    def _require_amendments(self) -> None:
        """Each field that was stated later is there, and named once."""
        named = set[str]()
        document = self.model_dump(exclude_none=True)
        for place, amendment in enumerate(self.amended or ()):
            for field in amendment.fields:
                owner, _, name = field.rpartition(".")
                if field in named or name not in (document.get(owner, {}) if owner else document):
                    accepted = "fields that the manifest states, each by one person"
                    raise InvalidInputError(f"amended[{place}].fields", field, accepted)
                named.add(field)
        if "record_losses" in named and self.record_losses == "checked":
            accepted = '"vouched" or "unknown" where somebody stated it later: only the recorder checks'
            raise InvalidInputError("record_losses", self.record_losses, accepted)
        if len(self._voices() or "") > LONGEST_VOICE:
            accepted = f"names that with recorded_by.who have at most {LONGEST_VOICE} characters"
            raise InvalidInputError("amended", None, accepted, found="longer ones")

    def _voices(self) -> str | None:
        """Who vouches for what the statement says: who recorded it, and who stated fields later."""
        first, later = self.recorded_by.who, []
        for amendment in self.amended or ():
            if fields := [field for field in amendment.fields if field not in NOT_IN_STATEMENT]:
                later.append(f"{amendment.by} for {', '.join(fields)}")
        if not later:
            return first
        author = "the recorder" if self.recorded_by.how == "recorder" else "its author"
        return "; ".join([first or author, *later])

    @property
    def statement(self) -> RunRecord:
        """What its cost depends on, and nothing else."""
        return RunRecord(
            run=self.run,
            mechanism=self.mechanism,
            noise=NoiseOrigin(
                source=self.noise.source, generator=self.noise.generator, secure_rng=self.noise.secure_rng
            ),
            ancestry=self.ancestry,
            tuning=self.tuning,
            stopping=self.stopping,
            schedule=self.schedule,
            record_losses=self.record_losses,
            public_files=sorted(self.public_files) if self.public_files else None,
            finished=self.finished,
            resumed=None if self.resumed is None else [each.stated() for each in self.resumed],
            recorded_by=self.recorded_by.model_copy(update={"who": self._voices()}),
        )

    def mechanism_from(self, parent: Checkpoint | None, noise_group: str | None = None) -> Mechanism:
        """The run as new plans see it, started from `parent` where that was private; without it, no number.

        A Gaussian release that nobody says is of the weights is known by its μ alone: an average may hide its noise
        less than its deviation promises. (What was planned before this could be said is priced by its statement.)
        """
        made = self.statement.mechanism_from(Adjacency(self.adjacency), parent, noise_group)
        if isinstance(made, GaussianRelease) and not made.on_weights:
            profile = made.own_profile(1)
            assert isinstance(profile, GaussianProfile), "a Gaussian release costs one Gaussian step"
            return GaussianDp(
                mu=profile.mu,
                adjacency=made.adjacency,
                ancestry=made.ancestry,
                independent_noise=made.independent_noise,
                label=made.label,
                vouched_by=made.vouched_by,
                noise_group=noise_group,
            )
        return made

    @classmethod
    def parse(cls, text: str | bytes, file: object = MANIFEST_NAME) -> Manifest:
        """From JSON text; `file` is named in errors."""
        try:
            manifest = validated(cls, strict_json(text, "manifest"), "manifest")
        except InvalidInputError as error:
            raise error if isinstance(error, PortfolioError) else ManifestError.of(file, error) from None
        for field, listed in manifest.files():
            require_plain_path(file, f"{field}.name", listed.name)
        return manifest

    @classmethod
    def read(cls, path: Path) -> Manifest:
        """From a file of at most 10 MB."""
        try:
            content = read_bytes(path, LARGEST_DOCUMENT)
        except InvalidInputError as error:
            if isinstance(error, OSError):
                raise ManifestError.of(path, error) from None
            raise ManifestError(path, "file", path, error.accepted, found=error.found) from None
        return cls.parse(content, path)

    def text(self) -> str:
        """As the JSON that is written to disk."""
        return json.dumps(self.document(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"

    def write(self, path: Path) -> None:
        """Replace the file as one operation: whoever reads it finds the old manifest or the new one, whole."""
        content = self.text().encode()
        if len(content) > LARGEST_DOCUMENT:
            problem = f"file: {len(content):,} bytes, of which nobody reads more than {LARGEST_DOCUMENT:,}"
            raise ManifestError(path, "file", len(content), "keep fewer checkpoints", problem=problem)
        write_atomically(path, content)


def _files(place: int, saved: SavedAs) -> Iterator[tuple[str, File]]:
    """All files of a checkpoint, its averages' too, and what an error calls each."""
    for position, file in enumerate(saved.files):
        yield f"checkpoints[{place}].files[{position}]", file
    for number, average in enumerate(saved.averages or ()):
        for position, file in enumerate(average.files):
            yield f"checkpoints[{place}].averages[{number}].files[{position}]", file


def json_schema() -> dict[str, Any]:
    """The published JSON Schema of a manifest. What it cannot say (rules across fields) `manifest check` checks."""
    return schema_of(Manifest, SCHEMA, "A privately trained run and its checkpoints")
