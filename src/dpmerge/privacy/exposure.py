"""Exposure: how far each run was looked at, and what that costs.

Guarantees: the profile of an exposure covers *any* function of the exposed checkpoints, weights chosen by any rule
included: it is the composition over runs of the steps up to the last one looked at, ancestors included, each run
once. Runs are told apart by identity: two objects are two runs with independent noise, whatever their settings.
Refuses: runs of different adjacency, steps a run does not have.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from dpmerge.errors import InvalidInput, NoGuarantee
from dpmerge.privacy import domain
from dpmerge.privacy.composition import compose
from dpmerge.privacy.profile import PrivacyProfile


class Adjacency(StrEnum):
    """Which datasets are neighbours."""

    REPLACE_ONE = "replace_one"
    ADD_REMOVE = "add_remove"


class Mechanism(ABC):
    """Something that was run on the private data once, with randomness of its own."""

    adjacency: Adjacency
    label: str
    ancestry: Checkpoint | None = None
    independent_noise: bool = True
    """Whether anybody vouches that its randomness was drawn independently of every other run's."""

    @property
    @abstractmethod
    def steps(self) -> int:
        """How many steps it took; one for anything that is not iterative."""

    @abstractmethod
    def own_profile(self, upto: int) -> PrivacyProfile:
        """What the steps 1 … upto cost by themselves, given where the run started."""

    def profile(self, upto: int | None = None) -> PrivacyProfile:
        """What releasing every iterate up to a step costs (by default all), ancestors included."""
        return Exposure.of([Checkpoint(self, self.steps if upto is None else upto)]).profile()


@dataclass(frozen=True)
class Checkpoint:
    """The weights of a run after some step; step 0 is where it started."""

    run: Mechanism
    step: int

    def __post_init__(self) -> None:
        domain.instance("run", self.run, Mechanism, "a run or another mechanism")
        step = domain.integer(f"step of {self.run.label}", self.step, least=0, most=self.run.steps)
        object.__setattr__(self, "step", step)

    @property
    def ancestors(self) -> tuple[Checkpoint, ...]:
        """The checkpoints this one descends from, nearest first."""
        parent = self.run.ancestry
        return () if parent is None else (parent, *parent.ancestors)


@dataclass(frozen=True)
class Exposure:
    """A map from run to the last step looked at."""

    steps: Mapping[Mechanism, int]

    @classmethod
    def of(cls, checkpoints: Iterable[Checkpoint]) -> Exposure:
        """The exposure of looking at these checkpoints: of each run the latest, of each ancestor too."""
        steps: dict[Mechanism, int] = {}
        for checkpoint in checkpoints:
            for seen in (checkpoint, *checkpoint.ancestors):
                steps[seen.run] = max(steps.get(seen.run, 0), seen.step)
        common_adjacency(steps)
        return cls(steps)

    def joined(self, other: Exposure) -> Exposure:
        """The high-water mark of both."""
        return Exposure.of(Checkpoint(run, step) for part in (self, other) for run, step in part.steps.items())

    def profile(self) -> PrivacyProfile:
        """The joint release of everything exposed; refused for several runs if the noise of one may be another's."""
        runs = [run for run, step in self.steps.items() if step > 0]
        if len(runs) > 1 and (unknown := [run.label for run in runs if not run.independent_noise]):
            raise NoGuarantee(
                f"nobody says where the noise of {', '.join(unknown)} came from; "
                "runs that share a noise seed cost more than their sum"
            )
        return compose([run.own_profile(step) for run, step in self.steps.items()])


def common_adjacency(runs: Iterable[Mechanism]) -> Adjacency | None:
    """The adjacency all runs agree on; disagreeing is an error, never a guess. None for no runs."""
    found: dict[Adjacency, str] = {}
    for run in runs:
        found.setdefault(run.adjacency, run.label)
    if len(found) > 1:
        described = ", ".join(f"{adjacency} ({label})" for adjacency, label in found.items())
        raise InvalidInput("adjacency", described, "the same adjacency for every run")
    return next(iter(found), None)
