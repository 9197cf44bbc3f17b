"""What somebody says about a run that is recorded, in groups: its names, what is vouched for, smoothness, checkpoints.

Guarantees: everything in `Vouched` is a person's word, and nothing else is; what the recorder can see it reads itself.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from dpmerge.accounting import validation
from dpmerge.accounting.exposure import Adjacency
from dpmerge.accounting.training_settings import enum_member
from dpmerge.errors import InvalidInputError
from dpmerge.terms.run_record import Ancestry

Tuning = Literal["none", "public", "charged", "unknown"]
Decision = Literal["fixed", "public", "private", "unknown"]
LostSteps = Literal["counted", "unseen"]


@dataclass(frozen=True, kw_only=True)
class RunNames:
    """What the run is called, and whose privacy it protects in what sense."""

    run: str
    dataset: str
    unit: str
    adjacency: str

    @property
    def public_size(self) -> bool:
        """Whether the number of records may be told, and divided by."""
        return enum_member("adjacency", self.adjacency, Adjacency).size_is_public


@dataclass(frozen=True, kw_only=True)
class Vouched:
    """What nobody can see from the loop, and who says it."""

    tuning: Tuning
    stopping: Decision
    schedule: Decision
    ancestry: Ancestry | None
    public_divisor: bool | None
    separate_records: bool
    who: str | None

    def facts(self) -> dict[str, Any]:
        """For the manifest."""
        return {
            "ancestry": self.ancestry or Ancestry(start="random", assumed=True),
            "tuning": self.tuning,
            "stopping": self.stopping,
            "schedule": self.schedule,
            "recorded_by": {"how": "recorder", "who": self.who},
        }


@dataclass(frozen=True, kw_only=True)
class SmoothnessClaim:
    """What smoothness of one linear layer is derived from."""

    criterion: Any
    feature_bound: float | None
    most_records: int | None

    def records(self, in_data_set: int, *, public_size: bool) -> int | None:
        """A bound on the number of records: the number itself where it is public, otherwise what was said."""
        if public_size:
            return in_data_set
        most = self.most_records
        if most is not None and validation.integer("most_records", most, least=1) <= in_data_set:
            accepted = "a bound on the number of records that leaves room for one more: a neighbour may have it"
            raise InvalidInputError("most_records", most, accepted)
        return most


@dataclass(frozen=True, kw_only=True)
class Continuation:
    """Whether a run goes on that is in the folder, and what is said of the steps it lost."""

    resume: bool
    lost_steps: LostSteps

    def __post_init__(self) -> None:
        if self.lost_steps not in get_args(LostSteps):
            raise InvalidInputError("lost_steps", self.lost_steps, " or ".join(get_args(LostSteps)))
        if self.lost_steps == "unseen" and not self.resume:
            raise InvalidInputError("lost_steps", self.lost_steps, "left out, unless resume=True")


@dataclass(frozen=True, kw_only=True)
class CheckpointSchedule:
    """After which steps the weights are kept, which of them, and what is saved with them."""

    every: int | None
    at: Collection[int]
    trained_only: bool
    save_with: Sequence[Any] = ()
    ema: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "at", frozenset(self.at))
        if self.ema is not None and not 0 < validation.magnitude("ema", self.ema, zero=False) < 1:
            raise InvalidInputError("ema", self.ema, "a decay between 0 and 1, such as 0.999")
        if self.every is not None:
            validation.integer("checkpoint_every", self.every, least=1)

    def is_due(self, step: int) -> bool:
        return step in self.at or bool(self.every and step % self.every == 0)
