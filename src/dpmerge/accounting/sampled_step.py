"""One merged step of Poisson-sampled runs under add_remove or zero_out, each of which draws the record by itself.

Guarantees: the profile of N(0, s²) against the mixture, over which runs drew the record, of N(Σ_drawn λ_i η_i C_i, s²)
(docs/theory.md, "Linear combination").
Refuses (None): runs whose steps are not known, replace_one, and more than MOST_SAMPLED_RUNS sampled runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from dpmerge.accounting.exposure import Adjacency, Checkpoint
from dpmerge.accounting.gaussian import GaussianProfile
from dpmerge.accounting.loss_distribution import LossDistributionProfile
from dpmerge.accounting.mechanisms import DpSgd
from dpmerge.accounting.premises import NoisyRun
from dpmerge.accounting.profile import NonPrivateProfile, PrivacyProfile
from dpmerge.accounting.step_mechanisms import HOPELESS_RATIO, MixtureStep

MOST_SAMPLED_RUNS = 6
"""Poisson runs in one merged step: their mixture has 2^n components, each further run doubles the time."""


@dataclass(frozen=True)
class _WeightedStep:
    """The step of one run that moves the merged model: how far if it drew the record, how probably, with what noise."""

    shift: float
    rate: float
    noise: float


def sampled_step(support: Sequence[Checkpoint], weights: Sequence[float]) -> PrivacyProfile | None:
    """What one merged step of these runs costs.

    Args:
        support: The runs merged, of which one step at most acts.
        weights: Their weights, all positive.

    Returns:
        The profile, or None where there is no formula.
    """
    if not all(isinstance(c.run, NoisyRun) and c.run.adjacency is not Adjacency.REPLACE_ONE for c in support):
        return None
    steps = list(_acting_steps(support, weights))
    if sum(step.rate < 1 for step in steps) > MOST_SAMPLED_RUNS:
        return None
    if not steps:
        return GaussianProfile(0.0)
    variance = 0.0
    for step in steps:
        variance += step.noise**2
    if variance == 0:
        return NonPrivateProfile()
    outcomes = _outcomes(steps, deviation=float(np.sqrt(variance)))
    if max(outcomes) > HOPELESS_RATIO:
        return NonPrivateProfile()
    return LossDistributionProfile.of({MixtureStep(tuple(outcomes), tuple(outcomes.values())): 1})


def _acting_steps(support: Sequence[Checkpoint], weights: Sequence[float]) -> Iterator[_WeightedStep]:
    """The last step of each run that moves its weights; runs that never move are left out."""
    for checkpoint, weight in zip(support, weights, strict=True):
        run = checkpoint.run
        assert isinstance(run, NoisyRun)
        moves = run.moves(checkpoint.step)
        acting = np.flatnonzero(moves.shift)
        if acting.size:
            last = acting[-1]
            rate = float(run.sampling_rates[last]) if isinstance(run, DpSgd) else 1.0
            yield _WeightedStep(weight * float(moves.shift[last]), rate, weight * float(moves.noise[last]))


def _outcomes(steps: Sequence[_WeightedStep], deviation: float) -> dict[float, float]:
    """Each total shift, in units of the noise, and its probability: one for every set of runs that may have drawn."""
    outcomes: dict[float, float] = {}
    for drawn in product(*((True,) if step.rate == 1 else (False, True) for step in steps)):
        each = list(zip(steps, drawn, strict=True))
        chance = float(np.prod([step.rate if d else 1 - step.rate for step, d in each]))
        if chance > 0:
            total = sum(step.shift for step, d in each if d) / deviation
            outcomes[total] = outcomes.get(total, 0.0) + chance
    return outcomes
