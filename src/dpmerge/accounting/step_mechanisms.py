"""Single steps that have no closed form once composed, and what is known of each by itself.

Guarantees: the distributions of a step bound it in both directions, composed any number of times, up to the step's
`error` in δ; its Rényi curve is proved, or None.
Refuses nothing: the run that owns the step has checked its numbers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from dpmerge.accounting.discretised_step import (
    MIXTURE_ERROR,
    STEP_ERROR,
    TAIL_DEVIATIONS,
    LossPmf,
    gaussian_pmfs,
)
from dpmerge.accounting.validation import Array

HOPELESS_RATIO = 500.0
"""Sensitivity over noise beyond which a step is counted as no privacy at all where it would have to be discretised."""


def _rounded(mu: float) -> float:
    """STEP_ERROR, and more where the loss is so large that its own rounding is seen (measured: half of this)."""
    return STEP_ERROR * max(1.0, mu / 50)


class Step(ABC):
    """One step whose privacy loss distribution is known; equal steps compare equal, so that runs can count them."""

    @abstractmethod
    def pmfs(self, interval: float) -> tuple[LossPmf, LossPmf]:
        """The discretised losses for removal and addition (one and the same object where symmetric)."""

    @property
    @abstractmethod
    def largest_loss(self) -> float:
        """Roughly the largest loss that is not truncated; chooses the grid, bounds nothing."""

    @property
    @abstractmethod
    def deviation(self) -> float:
        """Roughly the standard deviation of the loss; chooses the grid, bounds nothing."""

    @property
    @abstractmethod
    def error(self) -> float:
        """What rounding may have taken from δ at any ε, beside RELATIVE_ERROR of it below zero."""

    @property
    def wanted_bins(self) -> int:
        """How many grid points are worth their time: fewer where a grid point is dear and errors do not add up."""
        return 2**16

    @abstractmethod
    def renyi_divergence(self, orders: Array) -> Array | None:
        """The larger of both directions at each order, or None where nothing is proved."""


@dataclass(frozen=True)
class GaussianStep(Step):
    """N(0, 1) against N(μ, 1): closed-form by itself, discretised only to be composed with other steps."""

    mu: float

    def pmfs(self, interval: float) -> tuple[LossPmf, LossPmf]:
        return gaussian_pmfs(self.mu, 1.0, False, interval)

    @property
    def largest_loss(self) -> float:
        return TAIL_DEVIATIONS * self.mu + self.mu**2 / 2

    @property
    def deviation(self) -> float:
        return self.mu

    @property
    def error(self) -> float:
        return _rounded(self.mu)

    def renyi_divergence(self, orders: Array) -> Array:
        return np.asarray(orders * (self.mu**2 / 2))


@dataclass(frozen=True)
class PoissonStep(Step):
    """A Poisson-subsampled Gaussian step with sensitivity-to-noise ratio `ratio`.

    add_remove, zero_out: N(0, 1) against (1−q)N(0, 1) + qN(ratio, 1).
    replace_one: (1−q)N(0, 1) + qN(ratio, 1) against (1−q)N(0, 1) + qN(−ratio, 1); no Rényi curve is known to
    dp_accounting for it (its accountant ignores the relation), so there is none here.
    """

    ratio: float
    sampling_rate: float
    replace_one: bool

    def pmfs(self, interval: float) -> tuple[LossPmf, LossPmf]:
        return gaussian_pmfs(self.ratio, self.sampling_rate, self.replace_one, interval)

    @property
    def largest_loss(self) -> float:
        exponent = TAIL_DEVIATIONS * self.ratio + self.ratio**2 / 2
        if exponent > 700:
            return exponent
        return float(np.log1p(self.sampling_rate * np.expm1(exponent)))

    @property
    def deviation(self) -> float:
        spread = np.sqrt(np.expm1(min(self.ratio**2, 700.0)))
        shift = 2.0 if self.replace_one else 1.0
        return float(shift * min(self.sampling_rate * spread, self.largest_loss))

    @property
    def error(self) -> float:
        """A step that is rarely drawn tells little, and rounding takes in proportion (measured: at most half)."""
        if self.replace_one:
            return _rounded(2 * self.ratio)
        return _rounded(self.ratio) * min(1.0, (1e-13 * self.sampling_rate + 1e-18) / STEP_ERROR)

    def renyi_divergence(self, orders: Array) -> Array | None:
        if self.replace_one:
            return None
        from dpmerge.accounting.subsampled_renyi import subsampled_renyi

        return subsampled_renyi(self.ratio, self.sampling_rate, tuple(orders.tolist()))


@dataclass(frozen=True)
class MixtureStep(Step):
    """N(0, 1) against Σ p_j N(c_j, 1), c_j ≥ 0: one linear combination of Poisson-subsampled steps."""

    shifts: tuple[float, ...]
    probabilities: tuple[float, ...]

    def pmfs(self, interval: float) -> tuple[LossPmf, LossPmf]:
        # Only averages of sampled runs by another theorem than joint release need it.
        from dpmerge.accounting.discretised_mixture import mixture_pmfs

        return mixture_pmfs(self.shifts, self.probabilities, interval)

    @property
    def largest_loss(self) -> float:
        largest = max(self.shifts)
        return TAIL_DEVIATIONS * largest + largest**2 / 2

    @property
    def deviation(self) -> float:
        return float(np.dot(self.shifts, self.probabilities))

    @property
    def error(self) -> float:
        return MIXTURE_ERROR

    @property
    def wanted_bins(self) -> int:
        return 2**12

    def renyi_divergence(self, orders: Array) -> None:  # noqa: ARG002
        return None
