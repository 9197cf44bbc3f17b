"""Profiles of composed steps that have no closed form: Poisson-subsampled ones above all.

Guarantees: both directions are kept; composition is exact in which steps were taken (a multiset), so its order
cannot matter; the numbers include the rounding error of the convolution as explicit mass at infinity.
Refuses: δ below LEAST_DELTA, or below ten times that mass: what is left there could be rounding error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from dpmerge.accounting import validation
from dpmerge.accounting.profile import PrivacyProfile
from dpmerge.accounting.step_mechanisms import GaussianStep, Step
from dpmerge.accounting.validation import Array
from dpmerge.errors import DeltaOutOfReachError

if TYPE_CHECKING:
    from dpmerge.accounting.composed_loss import ComposedLoss

LEAST_DELTA = 1e-10
"""No ε is given out below this δ on the numerical path, however small the slack seems."""


@dataclass(frozen=True)
class LossDistributionProfile(PrivacyProfile):
    """The profile of a multiset of steps, composed numerically (theory 2.2).

    Args:
        steps: Each step and how often it was taken; `of` takes a mapping.

    >>> from dpmerge.accounting.step_mechanisms import PoissonStep
    >>> step = PoissonStep(ratio=1.0, sampling_rate=0.01, replace_one=False)
    >>> profile = LossDistributionProfile.of({step: 1000})
    >>> round(profile.epsilon(1e-5), 4)
    1.8282
    """

    steps: tuple[tuple[Step, int], ...]

    @classmethod
    def of(cls, steps: Mapping[Step, int]) -> LossDistributionProfile:
        """From counts of steps; Gaussian ones are merged in closed form before anything is discretised."""
        counts = {step: validation.integer("count", count, least=1) for step, count in steps.items()}
        square = sum(n * step.mu**2 for step, n in counts.items() if isinstance(step, GaussianStep))
        merged = {step: n for step, n in counts.items() if not isinstance(step, GaussianStep)}
        if square > 0:
            merged[GaussianStep(float(np.sqrt(square)))] = 1
        if not merged:
            raise ValueError("a loss distribution needs at least one step")
        return cls(tuple(sorted(merged.items(), key=repr)))

    def with_steps(self, others: Mapping[Step, int]) -> LossDistributionProfile:
        """This composition and further steps."""
        return LossDistributionProfile.of(Counter(dict(self.steps)) + Counter(others))

    @cached_property
    def _composed(self) -> tuple[ComposedLoss, ComposedLoss]:
        return _composition(self.steps)

    def deltas(self, epsilon: npt.ArrayLike) -> tuple[Array, Array]:
        points = np.asarray(epsilon, dtype=float)
        plus, minus = self._composed
        removal = plus.delta(points)
        return removal, removal if minus is plus else minus.delta(points)

    @property
    def least_delta(self) -> float:
        return _floor(self._composed)

    def epsilon(self, delta: float) -> float:
        self.check_delta(delta)
        plus, minus = self._composed
        epsilon = plus.epsilon(delta)
        if minus is plus or minus.delta(np.asarray(epsilon)) <= delta:  # enough for both, and no less is for one
            return epsilon
        return max(epsilon, minus.epsilon(delta))

    def renyi_divergence(self, orders: Array) -> Array | None:
        total = np.zeros_like(orders)
        for step, count in self.steps:
            curve = step.renyi_divergence(orders)
            if curve is None:
                return None
            total = total + count * curve
        return total


@lru_cache(maxsize=12)
def _composition(steps: tuple[tuple[Step, int], ...]) -> tuple[ComposedLoss, ComposedLoss]:
    """Remembered: planning asks for the same composition again when it has chosen."""
    from dpmerge.accounting.convolution import compose_steps

    return next(compose_steps([dict(steps)]))


def epsilon_curve(profiles: Sequence[LossDistributionProfile], delta: float) -> Array:
    """ε at δ for many compositions of the same few steps, such as the prefixes of a run.

    All share one grid and the transforms of the single steps; each further profile costs one inverse transform.
    """
    validation.delta("delta", delta)
    epsilons = []
    from dpmerge.accounting.convolution import compose_steps

    for composed in compose_steps([dict(profile.steps) for profile in profiles]):
        if delta < _floor(composed):
            raise DeltaOutOfReachError(delta, _floor(composed))
        epsilons.append(max(side.epsilon(delta) for side in set(composed)))
    return np.asarray(epsilons)


def _floor(composed: tuple[ComposedLoss, ComposedLoss]) -> float:
    return max(LEAST_DELTA, 10 * max(side.slack for side in composed))
