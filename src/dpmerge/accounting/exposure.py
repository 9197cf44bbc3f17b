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
from typing import Literal

from dpmerge.accounting import validation
from dpmerge.accounting.composition import compose
from dpmerge.accounting.profile import PrivacyProfile
from dpmerge.errors import InvalidInputError, NoGuaranteeError

MOST_SHARES = 4
"""Runs of an exposure whose last pass counts in part: each doubles the compositions that are mixed."""


class Adjacency(StrEnum):
    """Which datasets are neighbours (docs/concepts/adjacency.md).

    >>> Adjacency("add_remove") is Adjacency.ADD_REMOVE
    True
    >>> [(each.value, each.sensitivity, each.size_is_public) for each in Adjacency]
    [('replace_one', 2, True), ('add_remove', 1, False), ('zero_out', 1, True)]
    """

    REPLACE_ONE = "replace_one"
    """One record is exchanged for any other; the number of records is public."""
    ADD_REMOVE = "add_remove"
    """One record is there or is not; the number of records is private."""
    ZERO_OUT = "zero_out"
    """One record is there, or a null record is in its place: drawn like any other, its gradient is zero, and it enters
    nothing else that is computed from the data. The number of records is public."""

    @property
    def sensitivity(self) -> int:
        """k: one record moves a sum of gradients, each clipped to C, by at most k·C."""
        return 2 if self is Adjacency.REPLACE_ONE else 1

    @property
    def size_is_public(self) -> bool:
        """Whether neighbours have equally many records, so that their number may be known, and divided by."""
        return self is not Adjacency.ADD_REMOVE


AdjacencyName = Literal["replace_one", "add_remove", "zero_out"]
"""The same, as documents and functions spell it."""


class Mechanism(ABC):
    """Something that was run on the private data once, with randomness of its own (theory 2).

    >>> from dpmerge.accounting import GaussianDp
    >>> GaussianDp(mu=0.5, adjacency="replace_one").profile()
    GaussianProfile(mu=0.5)
    """

    adjacency: Adjacency
    label: str
    ancestry: Checkpoint | None = None
    independent_noise: bool = True
    """Whether anybody vouches that its randomness was drawn independently of every other run's."""
    noise_group: str | None = None
    """Runs of one group have one noise seed: what two of them cost together nobody knows, and it may be infinite."""

    @property
    @abstractmethod
    def steps(self) -> int:
        """How many steps it took; one for anything that is not iterative."""

    @abstractmethod
    def own_profile(self, upto: int) -> PrivacyProfile:
        """What the steps 1 … upto cost by themselves, given where the run started."""

    def share_seen(self, upto: int) -> float:  # noqa: ARG002
        """How likely a record is, at most, among those that the last pass over shuffled data showed up to a step.

        1 unless the order was secret, and the step fixed before anything was seen.
        """
        return 1.0

    def fixed_step_profile(self, upto: int) -> PrivacyProfile:
        """`own_profile` for a step that was fixed without the data, where that may be less: see `share_seen`."""
        return self.own_profile(upto)

    def profile(self, upto: int | None = None) -> PrivacyProfile:
        """What releasing every iterate up to a step costs, ancestors included.

        Args:
            upto: The last step released; by default all.

        Returns:
            The profile of the prefix.

        Raises:
            NoGuaranteeError: Its facts have no proved accounting.
            InvalidInputError: A step the run does not have.
        """
        return Exposure.of([Checkpoint(self, self.steps if upto is None else upto)]).profile()


@dataclass(frozen=True)
class Checkpoint:
    """The weights of a run after some step.

    Args:
        run: The run.
        step: From 0, where it started, to its last one.

    Raises:
        InvalidInputError: A step the run does not have.

    >>> from dpmerge.accounting import GaussianDp
    >>> Checkpoint(GaussianDp(mu=0.5, adjacency="replace_one"), 1).ancestors
    ()
    """

    run: Mechanism
    step: int

    def __post_init__(self) -> None:
        validation.instance("run", self.run, Mechanism, "a run or another mechanism")
        step = validation.integer(f"step of {self.run.label}", self.step, least=0, most=self.run.steps)
        object.__setattr__(self, "step", step)

    @property
    def ancestors(self) -> tuple[Checkpoint, ...]:
        """The checkpoints this one descends from, nearest first."""
        parent = self.run.ancestry
        return () if parent is None else (parent, *parent.ancestors)


@dataclass(frozen=True)
class Exposure:
    """How far each run was looked at (theory 2.4).

    Args:
        steps: Run → the last step looked at; `Exposure.of` makes it from checkpoints.

    >>> from dpmerge.accounting import GaussianDp
    >>> runs = [GaussianDp(mu=mu, adjacency="replace_one") for mu in (3.0, 4.0)]
    >>> Exposure.of(Checkpoint(run, 1) for run in runs).profile()
    GaussianProfile(mu=5.0)
    """

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
        """The joint release of everything exposed; refused for several runs if the noise of one may be another's.

        Passes over shuffled data count whole once they are begun, so that it holds however the steps were chosen.
        """
        self._require_independent()
        return compose([run.own_profile(step) for run, step in self.steps.items()])

    def fixed_steps_profile(self) -> PrivacyProfile:
        """The same for steps that were fixed before anything was seen: a pass cut short counts as far as it was seen.

        Whether a record is in what was seen of a run is independent of the data and of other runs: under each outcome
        the runs are composed, and the compositions are mixed (theory 2.5).
        """
        self._require_independent()
        seen_in_part = self.seen_in_part
        return compose(
            [
                run.fixed_step_profile(step) if run in seen_in_part else run.own_profile(step)
                for run, step in self.steps.items()
            ]
        )

    @property
    def seen_in_part(self) -> tuple[Mechanism, ...]:
        """The runs of whose last pass only a share counts, those of the smallest shares first; MOST_SHARES of them.

        Not the parent of another one: nobody says that where the child began was fixed beforehand.
        """
        parents = {run.ancestry.run for run in self.steps if run.ancestry is not None}
        shares = {run: run.share_seen(step) for run, step in self.steps.items() if step > 0 and run not in parents}
        partly = [run for run, share in shares.items() if share < 1]
        return tuple(sorted(partly, key=lambda run: (shares[run], run.label))[:MOST_SHARES])

    def _require_independent(self) -> None:
        runs = [run for run, step in self.steps.items() if step > 0]
        if len(runs) > 1 and (unknown := [run.label for run in runs if not run.independent_noise]):
            raise NoGuaranteeError(
                f"nobody says where the noise of {', '.join(unknown)} came from; "
                "runs that share a noise seed cost more than their sum"
            )
        if (pair := shared_noise(runs)) is not None:
            raise NoGuaranteeError(f"{one_seed(*pair)}: what they cost together nobody knows")


def shared_noise(runs: Iterable[Mechanism]) -> tuple[str, str] | None:
    """The first two of these runs that are of one noise group, by name; None if no two are."""
    first: dict[str, Mechanism] = {}
    for run in runs:
        if run.noise_group is not None and (other := first.setdefault(run.noise_group, run)) is not run:
            return other.label, run.label
    return None


def one_seed(first: str, second: str) -> str:
    """What is the matter with two runs of one noise group."""
    return f"{first} and {second} share a noise seed, and subtracting one from the other may take the noise off"


def common_adjacency(runs: Iterable[Mechanism]) -> Adjacency | None:
    """The adjacency all runs agree on; disagreeing is an error, never a guess. None for no runs."""
    found: dict[Adjacency, str] = {}
    for run in runs:
        found.setdefault(run.adjacency, run.label)
    if len(found) > 1:
        described = ", ".join(f"{adjacency} ({label})" for adjacency, label in found.items())
        raise InvalidInputError("adjacency", described, "the same adjacency for every run")
    return next(iter(found), None)
