"""What a run states about itself: all that its cost depends on, and nothing that would give its noise or weights away.

Guarantees: the mechanism made of a statement is the one made of the manifest it was taken from; no seed, no stream of
noise, no digest and no figure of merit is in it, so that it can be handed to anybody (docs/theory.md: choosing leaks).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, model_validator

from dpmerge.documents import Strict
from dpmerge.errors import InvalidInput
from dpmerge.portfolio.facts import MECHANISM_KINDS, MechanismFacts, Setting, Text
from dpmerge.privacy.exposure import Adjacency, Checkpoint, Mechanism
from dpmerge.privacy.releases import OneShot, Unaccounted

RunId = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
RUN_ID = "1 to 100 letters, digits, dots, dashes and underscores, not starting with a mark"

NoiseSource = Literal["os_entropy", "seeded", "unknown"]
Tuning = Literal["none", "public", "charged", "unknown"]


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

    @model_validator(mode="after")
    def _a_private_start_names_its_parent(self) -> Ancestry:
        if self.step == 0:
            raise InvalidInput("step", 0, "an integer ≥ 1: step 0 of the parent is the parent's own start")
        for name in ("run", "step"):
            if (self.start == "private") != (getattr(self, name) is not None):
                accepted = f"the parent's {name} where start is private, and left out otherwise"
                raise InvalidInput(name, getattr(self, name), accepted)
        return self


class RecordedBy(Strict):
    """Whose word the manifest is."""

    how: Literal["recorder", "hand", "opacus_history"] = Field(description='"recorder", "hand" or "opacus_history"')
    who: Text | None = Field(default=None, description="text: a person or team")


class NoiseOrigin(Strict):
    """Where the noise came from, without what would bring it back."""

    source: NoiseSource = Field(description='"os_entropy", "seeded" or "unknown"')
    generator: Text | None = Field(default=None, description="text: the generator")
    secure_rng: bool | None = Field(default=None, description="true or false: is the generator cryptographic?")


class RunStatement(Strict):
    """One run, as far as anybody has to know it to say what it costs."""

    run: RunId = Field(description=RUN_ID)
    mechanism: MechanismFacts = Field(description="an object whose kind is one of " + ", ".join(MECHANISM_KINDS))
    noise: NoiseOrigin = Field(description="an object with a source")
    ancestry: Ancestry = Field(description="an object with a start")
    tuning: Tuning = Field(description='"none", "public", "charged" or "unknown"')
    record_losses: Literal["checked", "vouched", "unknown"] | None = Field(
        default=None,
        description='"checked", "vouched" or "unknown": has each record a loss of its own?',
    )
    finished: bool = Field(default=True, description="true or false: did the run end as planned?")
    recorded_by: RecordedBy = Field(description="an object with how")

    @property
    def voice(self) -> str:
        """Who vouches for what is stated."""
        by = f" by {self.recorded_by.who}" if self.recorded_by.who else ""
        how = {"recorder": "recorded in training", "hand": "written by hand", "opacus_history": "from Opacus' history"}
        return f"{self.run} ({how[self.recorded_by.how]}{by})"

    def mechanism_from(self, adjacency: Adjacency, parent: Checkpoint | None) -> Mechanism:
        """The run as the mathematics sees it, started from `parent` where that was private; without it, no number."""
        setting = Setting(
            adjacency=adjacency,
            label=self.run,
            vouched_by=self.voice,
            independent_noise=self.noise.source != "unknown",
            ancestry=parent,
        )
        mechanism = self.mechanism.mechanism(setting)
        reasons = [mechanism.reason] if isinstance(mechanism, Unaccounted) else []
        if self.ancestry.start == "unknown":
            reasons.append('what it started from is not recorded (start: "unknown")')
        if self.ancestry.start == "private" and parent is None:
            origin = f"{self.ancestry.run}@{self.ancestry.step}"
            reasons.append(f"it started from {origin}, whose cost is known in a portfolio only")
        if reasons:
            return setting.unaccounted(mechanism.steps, "; ".join(reasons))
        if isinstance(mechanism, OneShot):
            mechanism.own_profile(1)  # imported curves and points are checked where they are used
        return mechanism


def stated_mechanisms(statements: Mapping[str, RunStatement], adjacency: Adjacency) -> dict[str, Mechanism]:
    """Each run as the mathematics sees it, its private ancestors attached; the keys are the names parents go by."""
    made: dict[str, Mechanism] = {}
    left = dict(statements)
    while left:
        ready = [n for n, s in left.items() if s.ancestry.run is None or s.ancestry.run in made]
        if not ready:
            name, statement = next(iter(left.items()))
            accepted = "a run that is stated too, and does not descend from this one"
            raise InvalidInput(f"{name}.ancestry.run", statement.ancestry.run, accepted)
        for name in ready:
            statement = left.pop(name)
            origin = statement.ancestry
            parent = None
            if origin.run is not None and origin.step is not None:
                parent = Checkpoint(made[origin.run], origin.step)
            made[name] = statement.mechanism_from(adjacency, parent)
    return made
