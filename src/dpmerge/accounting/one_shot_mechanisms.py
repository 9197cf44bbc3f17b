"""Mechanisms without steps: Gaussian releases, and models of which only a guarantee is known.

Guarantees: each is turned into the least private profile its facts allow.
Refuses: facts outside their domain. What is known by its guarantee alone can be drawn at random and released jointly;
no theorem about updates applies to it.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np

from dpmerge.accounting import validation
from dpmerge.accounting.discrete import DiscreteProfile
from dpmerge.accounting.exposure import Adjacency, Checkpoint, Mechanism
from dpmerge.accounting.gaussian import GaussianProfile
from dpmerge.accounting.mechanisms import DpSgd, Moves
from dpmerge.accounting.profile import NonPrivateProfile, PrivacyProfile
from dpmerge.accounting.renyi import RenyiProfile
from dpmerge.accounting.training_settings import Optimizer, enum_member
from dpmerge.accounting.validation import Array
from dpmerge.errors import InvalidInputError, NoGuaranteeError


@dataclass(frozen=True, eq=False, kw_only=True)
class OneShot(Mechanism):
    """A mechanism without steps: it was released or it was not."""

    adjacency: Adjacency
    ancestry: Checkpoint | None = None
    independent_noise: bool = True
    label: str = "release"
    vouched_by: str = "the release's record"
    noise_group: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "adjacency", enum_member("adjacency", self.adjacency, Adjacency))
        validation.truth("independent_noise", self.independent_noise)

    @property
    def steps(self) -> int:
        return 1

    def own_profile(self, upto: int) -> PrivacyProfile:
        Checkpoint(self, upto)
        return self._released() if upto else GaussianProfile(0.0)

    @abstractmethod
    def _released(self) -> PrivacyProfile:
        """The profile of the release itself."""


@dataclass(frozen=True, eq=False, kw_only=True)
class GaussianRelease(OneShot):
    """Weights of L2 `sensitivity` (under the stated adjacency) with Gaussian noise of `standard_deviation` added.

    Both are in units of the weights: averaged with others, they are averaged too. Where the noise is elsewhere, that is
    `GaussianDp`. `on_weights` is whether somebody says so in as many words; then it is a premise like any other.

    >>> release = GaussianRelease(sensitivity=1.0, standard_deviation=2.0, adjacency=Adjacency.REPLACE_ONE)
    >>> release.profile()
    GaussianProfile(mu=0.5)
    """

    sensitivity: float
    standard_deviation: float
    on_weights: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        validation.truth("on_weights", self.on_weights)
        validation.magnitude("sensitivity", self.sensitivity, zero=False)
        validation.magnitude("standard_deviation", self.standard_deviation, zero=True)

    @property
    def is_full_batch(self) -> bool:
        return True

    @property
    def optimizer(self) -> Optimizer:
        """A release is one step of plain SGD from a public start."""
        return Optimizer()

    def moves(self, upto: int) -> Moves:
        return Moves(np.array([float(self.sensitivity)])[:upto], np.array([float(self.standard_deviation)])[:upto])

    def step_mus(self, upto: int) -> Array:
        moves = self.moves(upto)
        with np.errstate(divide="ignore"):
            return np.asarray(moves.shift / moves.noise)

    def _released(self) -> PrivacyProfile:
        noise = self.standard_deviation
        return GaussianProfile(self.sensitivity / noise if noise > 0 else np.inf)


@dataclass(frozen=True, eq=False, kw_only=True)
class GaussianDp(OneShot):
    """A model known to be μ-GDP, by noise that is somewhere: in a tree of sums (DP-FTRL), in the data, in the weights.

    Told apart no better than N(0, 1) from N(μ, 1). Its noise is not that of the weights, and nothing is known of how an
    average hides it: only joint release and random selection cover it.

    >>> GaussianDp(mu=0.5, adjacency=Adjacency.REPLACE_ONE).profile()
    GaussianProfile(mu=0.5)
    """

    mu: float

    def __post_init__(self) -> None:
        super().__post_init__()
        validation.non_negative("mu", self.mu, infinite=True)

    def _released(self) -> PrivacyProfile:
        return GaussianProfile(self.mu)


@dataclass(frozen=True, eq=False, kw_only=True)
class RenyiMechanism(OneShot):
    """A model known by its Rényi curve.

    Args:
        orders: Above 1, ascending.
        values: At each order an upper bound, valid in both directions.

    >>> known = RenyiMechanism(orders=(2.0, 32.0), values=(0.01, 0.16), adjacency="add_remove")
    >>> round(known.profile().epsilon(1e-5), 4)
    0.3878
    """

    orders: tuple[float, ...]
    values: tuple[float, ...]

    def _released(self) -> PrivacyProfile:
        return RenyiProfile(np.asarray(self.orders), np.asarray(self.values))


@dataclass(frozen=True, eq=False, kw_only=True)
class ApproximateDp(OneShot):
    """A model known by `points` (ε, δ): one pair, or a table of its δ(ε), pessimistic between the points.

    >>> ApproximateDp(points=((1.0, 1e-6),), adjacency=Adjacency.ADD_REMOVE).profile().epsilon(1e-5) < 1.0
    True
    """

    points: tuple[tuple[float, float], ...]

    def _released(self) -> PrivacyProfile:
        return DiscreteProfile.from_points(self.points)


@dataclass(frozen=True, eq=False, kw_only=True)
class NonPrivate(OneShot):
    """A model trained without privacy.

    >>> NonPrivate(adjacency="add_remove").profile().epsilon(1e-5)
    inf
    """

    def _released(self) -> PrivacyProfile:
        return NonPrivateProfile()


@dataclass(frozen=True, eq=False, kw_only=True)
class WeightAverage(OneShot):
    """A function of a run's iterates up to the checkpoint in `ancestry`, and of public data: EMA, SWA.

    It costs what these iterates cost and nothing more, and is none of them: theorems about updates do not apply to it.

    >>> from dpmerge.accounting import StepBlock
    >>> block = StepBlock(steps=20, noise_multiplier=32, clip_norm=2, learning_rate=4)
    >>> run = DpSgd(blocks=(block,), adjacency="replace_one")
    >>> WeightAverage(adjacency="replace_one", ancestry=Checkpoint(run, 5)).profile() == run.profile(upto=5)
    True
    """

    label: str = "average"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ancestry is None:
            raise InvalidInputError("ancestry", None, "the last iterate that is in the average", found="nothing")

    def _released(self) -> PrivacyProfile:
        return GaussianProfile(0.0)


@dataclass(frozen=True, eq=False, kw_only=True)
class Unaccounted(Mechanism):
    """A run about which too little is known: it has no number, whatever is asked.

    Args:
        adjacency: Which datasets are neighbours.
        length: How many steps it took.
        reason: Why there is no number.

    >>> Unaccounted(adjacency="add_remove", length=3, reason="nobody recorded its noise").profile()
    Traceback (most recent call last):
    dpmerge.errors.NoGuaranteeError: run: nobody recorded its noise
    """

    adjacency: Adjacency
    length: int
    reason: str
    label: str = "run"
    ancestry: Checkpoint | None = None
    vouched_by: str = "nobody"

    def __post_init__(self) -> None:
        object.__setattr__(self, "adjacency", enum_member("adjacency", self.adjacency, Adjacency))
        validation.integer("length", self.length, least=1)

    @property
    def steps(self) -> int:
        return self.length

    def own_profile(self, upto: int) -> PrivacyProfile:
        Checkpoint(self, upto)
        raise NoGuaranteeError(f"{self.label}: {self.reason}")


@dataclass(frozen=True, eq=False, kw_only=True)
class AccountantHistory(Mechanism):
    """A run of which only the noise and the sampling of its steps are known: what it costs, and nothing of its updates.

    Args:
        costs: Any DP-SGD run with the same noise and sampling; clip norms and rates do not enter a step's cost.
        public_divisor: Whether somebody vouches that the sum of gradients was divided by nothing private.

    >>> from dpmerge.accounting import StepBlock
    >>> block = StepBlock(steps=20, noise_multiplier=32, clip_norm=1, learning_rate=1)
    >>> history = AccountantHistory(costs=DpSgd(blocks=[block], adjacency="replace_one"))
    >>> round(history.profile().epsilon(1e-5), 6)
    1.047054
    """

    costs: DpSgd
    public_divisor: bool = False

    def __post_init__(self) -> None:
        for name in ("adjacency", "label", "ancestry", "independent_noise", "vouched_by", "noise_group"):
            object.__setattr__(self, name, getattr(self.costs, name))

    @property
    def steps(self) -> int:
        return self.costs.steps

    def own_profile(self, upto: int) -> PrivacyProfile:
        return self.costs.own_profile(upto)

    def share_seen(self, upto: int) -> float:
        return self.costs.share_seen(upto)

    def fixed_step_profile(self, upto: int) -> PrivacyProfile:
        return self.costs.fixed_step_profile(upto)
