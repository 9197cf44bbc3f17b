"""The pieces of a manifest: data, noise, tensors, checkpoints, and what was stated later.

Guarantees: each piece is consistent with itself; rules between pieces are the manifest's (`manifest`).
Refuses: a dataset named by a digest, seeds without seeded noise, tied tensors that nobody trained.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal, get_args

from pydantic import Field, model_validator

from dpmerge.errors import InvalidInputError
from dpmerge.portfolio.file_digests import FileDigests
from dpmerge.terms.documents import AnyText, Strict, Text
from dpmerge.terms.resumption import Resumption
from dpmerge.terms.run_record import NOISE_SOURCE, NoiseSource

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
_DIGEST = re.compile(r"(?:sha\d+[:_-]?|md5[:_-]?)?[0-9a-f]{32,}", re.IGNORECASE)


class Dataset(Strict):
    """Which private data; a name its owner chose, never anything computed from the data."""

    id: Text = Field(description="an opaque name chosen by the data's owner; never a digest of the data")
    size: Annotated[int, Field(ge=1, le=10**18)] | None = Field(
        default=None,
        description="an integer from 1 to 10¹⁸, under replace_one and zero_out (under add_remove it is private)",
    )

    @model_validator(mode="after")
    def _the_name_is_no_digest(self) -> Dataset:
        if _DIGEST.fullmatch(self.id):
            accepted = "an opaque name chosen by the data's owner (a digest of the data would itself be a release)"
            raise InvalidInputError("id", self.id, accepted)
        return self


class NoiseRecord(Strict):
    """Where the noise came from. Not for release: a seed gives the noise away."""

    source: NoiseSource = Field(description=NOISE_SOURCE)
    generator: Text | None = Field(default=None, description="text: the generator")
    secure_rng: bool | None = Field(default=None, description="true or false: is the generator cryptographic?")
    stream: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")] | None = Field(
        default=None, description="32 hexadecimal digits drawn at random, different for every stream of noise"
    )
    seed: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="an integer ≥ 0 where the source is seeded, and left out otherwise"
    )

    @model_validator(mode="after")
    def _seeded_means_a_seed(self) -> NoiseRecord:
        if (self.source == "seeded") != (self.seed is not None):
            raise InvalidInputError("seed", self.seed, str(type(self).model_fields["seed"].description))
        if self.source == "os_entropy" and self.stream is None:
            raise InvalidInputError("stream", None, str(type(self).model_fields["stream"].description))
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
    tied: list[Annotated[list[AnyText], Field(min_length=2)]] | None = Field(
        default=None,
        description="a list of lists, each of at least two trained tensors that are one weight; empty if no two are",
    )

    @model_validator(mode="after")
    def _each_weight_once(self) -> Tensors:
        trained, seen = set(self.trained), set[str]()
        for place, group in enumerate(self.tied or ()):
            for name in group:
                if name not in trained:
                    accepted = "names of trained tensors (what is frozen gets no noise, and needs no tie)"
                    raise InvalidInputError(f"tied[{place}]", name, accepted)
                if name in seen:
                    raise InvalidInputError(
                        f"tied[{place}]", name, "each tensor once, with all that are one weight with it"
                    )
                seen.add(name)
        return self


class File(Strict):
    """One file of a checkpoint."""

    name: AnyText = Field(description="a relative path inside the run's folder")
    sha256: Sha256 = Field(description="64 hexadecimal digits")
    blake3: Sha256 | None = Field(
        default=None, description="64 hexadecimal digits: BLAKE3 of the same bytes, which is faster to compare"
    )

    @property
    def digests(self) -> FileDigests:
        return FileDigests(sha256=self.sha256, blake3=self.blake3)


class Metric(Strict):
    """A figure of merit, and on what it was measured."""

    name: Text = Field(description="text")
    value: Annotated[float, Field(allow_inf_nan=False)] = Field(description="a finite number")
    measured_on: Literal["public", "private", "training"] = Field(description='"public", "private" or "training"')
    data: Text | None = Field(default=None, description="text: which data")


class SavedAverage(Strict):
    """An average of the run's weights up to a checkpoint, kept beside it."""

    name: Literal["ema", "average"] = Field(description='"ema" (exponential, by the recorder) or "average" (any other)')
    decay: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        default=None, description="a number in (0, 1), of an exponential average"
    )
    files: list[File] = Field(min_length=1, description="a non-empty list of files with their sha256")
    weights: Sha256 | None = Field(default=None, description="64 hexadecimal digits: digest of the tensors themselves")
    vouched_by: Text = Field(
        description="text: who says that nothing but weights of this run up to this step, and public data, is in it"
    )

    @model_validator(mode="after")
    def _an_exponential_average_has_a_decay(self) -> SavedAverage:
        if (self.name == "ema") != (self.decay is not None):
            raise InvalidInputError("decay", self.decay, "a number in (0, 1) of ema, and left out otherwise")
        return self


class SavedAs(Strict):
    """A checkpoint that was kept."""

    step: Annotated[int, Field(ge=0)] = Field(description="an integer ≥ 0: the weights after this step")
    files: list[File] = Field(min_length=1, description="a non-empty list of files with their sha256")
    weights: Sha256 | None = Field(default=None, description="64 hexadecimal digits: digest of the tensors themselves")
    metrics: list[Metric] = Field(default_factory=list, description="a list of metrics")
    averages: Annotated[list[SavedAverage], Field(min_length=1)] | None = Field(
        default=None, description="a list of averages of the weights up to this step, each name once"
    )
    optimizer_state: Sha256 | None = Field(
        default=None,
        description="64 hexadecimal digits: digest of the optimizer's state, which a resumed run must have",
    )

    @model_validator(mode="after")
    def _each_average_once(self) -> SavedAs:
        names = [average.name for average in self.averages or ()]
        if len(set(names)) < len(names) or (names and self.step == 0):
            raise InvalidInputError("averages", names, "each name once, of weights after a step")
        return self


class ResumedSegment(Resumption):
    """One more stretch of a run that was broken off: what it went on from, and the randomness it went on with."""

    noise: NoiseRecord = Field(description="an object with a source: noise of its own, no other stretch's")
    sampling_stream: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")] | None = Field(
        default=None, description="32 hexadecimal digits drawn at random, different for every stream of batches"
    )

    def stated(self) -> Resumption:
        """Without what would bring its noise back."""
        return Resumption(**self.model_dump(include=set(Resumption.model_fields)))


ModelKind = Literal["linear", "smooth", "network"]
"""What averages of models are worth depends on it; what they cost does not."""
MODEL_KIND = '"linear" (one trained layer), "smooth" (nearly so) or "network": are averages of such models any good?'

LaterField = Literal[
    "stopping", "schedule", "record_losses", "mechanism.noise_on", "ancestry.independent_of", "tensors.tied", "model"
]
"""What manifests of version 0.1 could not state, and `dpmerge manifest upgrade` adds."""
NOT_IN_STATEMENT = frozenset({"tensors.tied", "model"})


class Amendment(Strict):
    """Fields that were added after the manifest was written, and the person who vouches for them."""

    by: Annotated[Text, Field(max_length=100)] = Field(description="text of at most 100 characters: who vouches")
    fields: list[LaterField] = Field(min_length=1, description="a list of fields: " + ", ".join(get_args(LaterField)))
