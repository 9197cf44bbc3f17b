"""A run record: what a run states about itself.

It holds all that the run's cost depends on, and nothing that would give its noise or weights away.

Guarantees: the mechanism made of a statement is the one made of the manifest it was taken from; no seed, no stream of
noise, no digest and no figure of merit is in it, so that it can be handed to anybody (theory 5).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Literal

from pydantic import Field, model_validator

from dpmerge.accounting.exposure import Adjacency, Checkpoint, Mechanism
from dpmerge.accounting.one_shot_mechanisms import OneShot, Unaccounted
from dpmerge.accounting.premises import Premise
from dpmerge.errors import InvalidInputError
from dpmerge.terms.checkpoint_reference import CheckpointReference
from dpmerge.terms.documents import Strict, Text
from dpmerge.terms.mechanism_schema import MECHANISM_KINDS, DpSgdFacts, HistoryFacts, MechanismFacts
from dpmerge.terms.one_shot_schema import AverageFacts, Setting
from dpmerge.terms.resumption import Resumption, require_order, unbroken_steps, unseen_premises

RunId = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
RUN_ID = "1 to 100 letters, digits, dots, dashes and underscores, not starting with a mark"

OWN_LOSSES = "each_record_has_its_own_loss"
AVERAGED = "averages_made_of_their_run_and_public_data_alone"
PREMISES_SINCE_2 = frozenset({OWN_LOSSES})
"""Names of premises about statements that certificates of version 1 do not know."""

PUBLIC_FILES = "files_beside_the_weights_are_public"

NoiseSource = Literal["os_entropy", "seeded", "unknown", "none"]
NOISE_SOURCE = '"os_entropy", "seeded" or "unknown"; of an average of a run\'s weights "none"'
Tuning = Literal["none", "public", "charged", "unknown"]
Decided = Literal["fixed", "public", "private", "unknown"]
"""By what something was decided in training: beforehand, by public data, by private data without noise."""
ADJACENCY = '"replace_one", "add_remove" or "zero_out"'
RecordLosses = Literal["checked", "vouched", "unknown"]
STOPPING = '"fixed", "public", "private" or "unknown": by what it was decided when to stop'
SCHEDULE = '"fixed", "public", "private" or "unknown": by what rates, clip norms and noise changed'
RECORD_LOSSES = '"checked" (by the recorder), "vouched" or "unknown": does each record have a loss of its own?'


class Ancestry(Strict):
    """Where the run started."""

    start: Literal["random", "public", "private", "unknown"] = Field(
        description='"random", "public", "private" (a privately trained checkpoint) or "unknown"'
    )
    source: Text | None = Field(default=None, description="text: which public checkpoint, where start is public")
    run: RunId | None = Field(default=None, description="the parent's run id, where start is private")
    step: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="an integer ≥ 1: the parent's step, where start is private"
    )
    assumed: bool = Field(default=False, description="true if nobody said so, and a public start was assumed")
    independent_of: list[RunId] | None = Field(
        default=None,
        description="a list of run ids: near one of their checkpoints, and not started from it all the same",
    )

    @property
    def parent(self) -> CheckpointReference | None:
        """The privately trained checkpoint it started from; None for any other start."""
        return None if self.run is None or self.step is None else CheckpointReference(self.run, self.step)

    @model_validator(mode="after")
    def _a_private_start_names_its_parent(self) -> Ancestry:
        if self.step == 0:
            raise InvalidInputError("step", 0, "an integer ≥ 1: step 0 of the parent is the parent's own start")
        for name in ("run", "step"):
            if (self.start == "private") != (getattr(self, name) is not None):
                accepted = f"the parent's {name} where start is private, and left out otherwise"
                raise InvalidInputError(name, getattr(self, name), accepted)
        return self


class RecordedBy(Strict):
    """Whose word the manifest is."""

    how: Literal["recorder", "hand", "opacus_history"] = Field(description='"recorder", "hand" or "opacus_history"')
    who: Text | None = Field(default=None, description="text: a person or team")


class NoiseOrigin(Strict):
    """Where the noise came from, without what would bring it back."""

    source: NoiseSource = Field(description=NOISE_SOURCE)
    generator: Text | None = Field(default=None, description="text: the generator")
    secure_rng: bool | None = Field(default=None, description="true or false: is the generator cryptographic?")


class RunRecord(Strict):
    """One run, as far as anybody has to know it to say what it costs."""

    run: RunId = Field(description=RUN_ID)
    mechanism: MechanismFacts = Field(description="an object whose kind is one of " + ", ".join(MECHANISM_KINDS))
    noise: NoiseOrigin = Field(description="an object with a source")
    ancestry: Ancestry = Field(description="an object with a start")
    tuning: Tuning = Field(description='"none", "public", "charged" or "unknown"')
    stopping: Decided | None = Field(default=None, description=STOPPING)
    schedule: Decided | None = Field(default=None, description=SCHEDULE)
    record_losses: RecordLosses | None = Field(default=None, description=RECORD_LOSSES)
    public_files: list[Text] | None = Field(
        default=None, description="a list of file names, saved with the model and vouched to be public"
    )
    finished: bool = Field(default=True, description="true or false: did the run end as planned?")
    resumed: Annotated[list[Resumption], Field(min_length=1)] | None = Field(
        default=None, description="a list of objects with after: where the run was broken off and went on"
    )
    recorded_by: RecordedBy = Field(description="an object with how")

    @model_validator(mode="after")
    def _consistent(self) -> RunRecord:
        require_noise(self.noise.source, self.mechanism)
        if self.resumed is not None:
            if not isinstance(self.mechanism, DpSgdFacts | HistoryFacts):
                raise InvalidInputError("resumed", self.mechanism.kind, "left out for what has no steps")
            require_order(self.resumed, sum(block.steps for block in self.mechanism.blocks))
        return self

    @property
    def voice(self) -> str:
        """Who vouches for what is stated."""
        by = f" by {self.recorded_by.who}" if self.recorded_by.who else ""
        how = {"recorder": "recorded in training", "hand": "written by hand", "opacus_history": "from Opacus' history"}
        return f"{self.run} ({how[self.recorded_by.how]}{by})"

    @property
    def stop_fixed(self) -> bool:
        """Whether the run stopped where it was settled beforehand, as far as the recorder can tell.

        Stopping by public data is not enough: that looks at the weights, which depend on the order of the records. Nor
        is it settled where a run was broken off and went on: that may have waited for a record to come.
        """
        recorded = self.recorded_by.how == "recorder" and self.noise.source == "os_entropy"
        return recorded and self.finished and self.stopping == "fixed" and self.resumed is None

    def mechanism_from(
        self, adjacency: Adjacency, parent: Checkpoint | None, noise_group: str | None = None
    ) -> Mechanism:
        """The run as the mathematics sees it, started from `parent` where that was private; without it, no number."""
        setting = Setting(
            adjacency=adjacency,
            label=self.run,
            vouched_by=self.voice,
            independent_noise=self.noise.source != "unknown",
            ancestry=parent,
            stop_fixed=self.stop_fixed,
            noise_group=noise_group,
            unbroken_steps=unbroken_steps(self.resumed),
        )
        mechanism = self.mechanism.mechanism(setting)
        reasons = [mechanism.reason] if isinstance(mechanism, Unaccounted) else []
        if self.ancestry.start == "unknown":
            reasons.append('what it started from is not recorded (start: "unknown")')
        if self.ancestry.start == "private" and parent is None:
            reasons.append(f"it started from {self.ancestry.parent}, whose cost is known in a portfolio only")
        if reasons:
            return setting.unaccounted(mechanism.steps, "; ".join(reasons))
        if isinstance(mechanism, OneShot):
            mechanism.own_profile(1)  # imported curves and points are checked where they are used
        return mechanism


def require_noise(source: NoiseSource, mechanism: Strict) -> None:
    """An average of weights has no noise of its own, and nothing else says so."""
    average = isinstance(mechanism, AverageFacts)
    if average != (source == "none"):
        raise InvalidInputError("noise.source", source, '"none"' if average else '"os_entropy", "seeded" or "unknown"')


def trains(stated: RunRecord) -> bool:
    """Whether the run took steps, and is not known by its guarantee alone."""
    return isinstance(stated.mechanism, DpSgdFacts | HistoryFacts)


def clips_records(stated: RunRecord) -> bool:
    """Whether the bound on what a record does rests on its gradient being its own."""
    return isinstance(stated.mechanism, DpSgdFacts | HistoryFacts) and stated.mechanism.clipping == "per_example"


def own_losses(statements: Iterable[RunRecord]) -> Iterator[Premise]:
    """Per-example clipping bounds a record's part only if no other record is in its loss: who says so, run by run.

    Where nobody does it is a caveat, not a premise that fails: no theorem is contradicted.
    """
    voices, silent = [], []
    for stated in filter(clips_records, statements):
        if stated.record_losses == "checked" and stated.recorded_by.how == "recorder":
            voices.append(f"{stated.run} (checked by the recorder)")
        elif stated.record_losses in ("checked", "vouched"):
            voices.append(f"{stated.run} (vouched for by {stated.recorded_by.who or 'who wrote its record'})")
        else:
            silent.append(stated.run)
    if voices:
        nobody = [f"nobody for {', '.join(silent)}"] if silent else []
        yield Premise(OWN_LOSSES, True, "; ".join([", ".join(voices), *nobody]))


def public_files(statements: Iterable[RunRecord]) -> Iterator[Premise]:
    """What is copied beside the weights is no function of private data: a vocabulary counted there would give it away.

    Nobody can see where a tokenizer comes from, so somebody vouches for it.
    """
    voices = [
        f"{', '.join(stated.public_files)} of {stated.run} "
        f"(vouched for by {stated.recorded_by.who or 'who wrote its record'})"
        for stated in statements
        if stated.public_files
    ]
    if voices:
        yield Premise(PUBLIC_FILES, True, "; ".join(voices))


def stated_premises(statements: Iterable[RunRecord]) -> Iterator[Premise]:
    """What a cost rests on beside its theorem, by what the runs state."""
    stated = list(statements)
    yield from own_losses(stated)
    yield from public_files(stated)
    yield from vouched_sampling(stated)
    yield from vouched_for(stated)


def vouched_sampling(statements: Iterable[RunRecord]) -> Iterator[Premise]:
    """An accountant's history does not say how batches were drawn: who does, run by run."""
    voices = [
        f"{stated.run} ({stated.mechanism.sampling}, vouched for by {stated.mechanism.sampling_vouched_by})"
        for stated in statements
        if isinstance(stated.mechanism, HistoryFacts) and stated.mechanism.sampling_vouched_by is not None
    ]
    if voices:
        yield Premise("batches_drawn_as_stated", True, ", ".join(voices))


def vouched_for(statements: Iterable[RunRecord]) -> Iterator[Premise]:
    """What runs say of averages, and of steps that were lost, on somebody's word."""
    voices = []
    for stated in statements:
        yield from unseen_premises(stated.run, stated.resumed)
        if isinstance(stated.mechanism, AverageFacts):
            computed = stated.mechanism.decay is not None and stated.recorded_by.how == "recorder"
            said = "computed by the recorder" if computed else f"vouched for by {stated.mechanism.vouched_by}"
            voices.append(f"{stated.run} ({said})")
    if voices:
        yield Premise(AVERAGED, True, ", ".join(voices))


def shared_map_voucher(mechanisms: Iterable[object]) -> str | None:
    """Who vouches that these runs share one affine update map, by what each says of its mechanism; None: nobody."""
    maps = []
    for facts in mechanisms:
        if not isinstance(facts, DpSgdFacts) or facts.affine_map is None:
            return None
        maps.append(facts.affine_map)
    if len({affine.id for affine in maps}) != 1:
        return None
    return ", ".join(dict.fromkeys(affine.vouched_by for affine in maps))
