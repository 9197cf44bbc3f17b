"""Models that were made, or are known, by one guarantee: imported figures and noise added once.

Guarantees: each kind says exactly what its accounting needs, and becomes the mathematics' mechanism with nothing
filled in.
Refuses: numbers outside their domain, each by its field.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from dpmerge.accounting.exposure import Adjacency, Checkpoint, Mechanism
from dpmerge.accounting.one_shot_mechanisms import (
    ApproximateDp,
    GaussianDp,
    GaussianRelease,
    NonPrivate,
    RenyiMechanism,
    Unaccounted,
    WeightAverage,
)
from dpmerge.terms.documents import NonNegative, Positive, Strict, Text


@dataclass(frozen=True)
class Setting:
    """What a mechanism is told from outside its own facts: who vouches for it, its name, where it started."""

    adjacency: Adjacency
    label: str
    vouched_by: str
    independent_noise: bool
    ancestry: Checkpoint | None
    stop_fixed: bool = False
    """Whether the recorder saw the run end as it had been settled before the first step, with noise of the system's."""
    noise_group: str | None = None
    unbroken_steps: int | None = None

    def unaccounted(self, length: int, reason: str) -> Unaccounted:
        return Unaccounted(
            adjacency=self.adjacency, length=length, reason=reason, label=self.label, ancestry=self.ancestry
        )


class GaussianReleaseFacts(Strict):
    """A model with Gaussian noise added to its weights once."""

    kind: Literal["gaussian_release"] = Field(description='"gaussian_release"')
    sensitivity: Positive = Field(description="a finite number > 0: in L2, under the manifest's adjacency")
    standard_deviation: NonNegative = Field(description="a finite number ≥ 0")
    noise_on: Literal["weights"] | None = Field(
        default=None,
        description='"weights": sensitivity and standard deviation are in units of the weights that are kept; of noise '
        "that is elsewhere state kind gaussian_dp",
    )

    def mechanism(self, setting: Setting) -> Mechanism:
        return GaussianRelease(
            sensitivity=self.sensitivity,
            standard_deviation=self.standard_deviation,
            on_weights=self.noise_on == "weights",
            **_one_shot(setting),
        )


class GaussianDpFacts(Strict):
    """A model that is μ-GDP, by noise that is not, or not known to be, on its weights (DP-FTRL, a noisy statistic)."""

    kind: Literal["gaussian_dp"] = Field(description='"gaussian_dp"')
    mu: Positive = Field(description="a finite number > 0: what it costs is one Gaussian step of this μ")

    def mechanism(self, setting: Setting) -> Mechanism:
        return GaussianDp(mu=self.mu, **_one_shot(setting))


class RenyiFacts(Strict):
    """A model known by its Rényi curve."""

    kind: Literal["renyi"] = Field(description='"renyi"')
    orders: list[Positive] = Field(min_length=1, description="a strictly increasing list of numbers > 1")
    values: list[NonNegative] = Field(min_length=1, description="a list of numbers ≥ 0, one for each order")

    def mechanism(self, setting: Setting) -> Mechanism:
        return RenyiMechanism(orders=tuple(self.orders), values=tuple(self.values), **_one_shot(setting))


class Point(Strict):
    """One point of a privacy profile."""

    epsilon: NonNegative = Field(description="a finite number ≥ 0")
    delta: Annotated[float, Field(ge=0, le=1)] = Field(description="a number in [0, 1]")


class ApproximateDpFacts(Strict):
    """A model known by the (ε, δ) pairs somebody vouches for."""

    kind: Literal["approximate_dp"] = Field(description='"approximate_dp"')
    points: list[Point] = Field(min_length=1, description="a non-empty list of objects with epsilon and delta")

    def mechanism(self, setting: Setting) -> Mechanism:
        points = tuple((point.epsilon, point.delta) for point in self.points)
        return ApproximateDp(points=points, **_one_shot(setting))


class NonPrivateFacts(Strict):
    """A model trained on the private data without privacy."""

    kind: Literal["non_private"] = Field(description='"non_private"')

    def mechanism(self, setting: Setting) -> Mechanism:
        return NonPrivate(**_one_shot(setting))


class AverageFacts(Strict):
    """A function of the iterates of the run named in the ancestry, up to its step: an exponential average, SWA."""

    kind: Literal["average"] = Field(description='"average"')
    decay: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        default=None, description="a number in (0, 1), of an exponential average that the recorder computed"
    )
    vouched_by: Text = Field(
        description="text: who says that nothing but iterates up to that step, and public data, is in it"
    )

    def mechanism(self, setting: Setting) -> Mechanism:
        if setting.ancestry is None:
            return setting.unaccounted(1, "an average of iterates costs what these cost, and no run is named")
        return WeightAverage(**_one_shot(setting))


def _one_shot(setting: Setting) -> dict[str, Any]:
    return {
        "adjacency": setting.adjacency,
        "ancestry": setting.ancestry,
        "independent_noise": setting.independent_noise,
        "label": setting.label,
        "vouched_by": setting.vouched_by,
        "noise_group": setting.noise_group,
    }
