"""One merged step of Poisson-sampled runs, each of which draws the record by itself; not under replace_one.

Guarantees: the profile of N(0, s²) against the mixture, over which runs drew the record, of N(Σ_drawn λ_i η_i C_i, s²),
s² = Σ (λ_i η_i σ_i C_i)² + τ² (theory 4.2); `sampled_last_step` is that of each run's last
acting step, after the joint release of all others.
Refuses (None): runs whose steps are not known, replace_one, and more sampled runs than are worth their time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from dpmerge.accounting.composition import compose
from dpmerge.accounting.exposure import Adjacency, Checkpoint
from dpmerge.accounting.gaussian import GaussianProfile
from dpmerge.accounting.loss_distribution import LossDistributionProfile
from dpmerge.accounting.mechanisms import DpSgd
from dpmerge.accounting.premises import MOST_SAMPLED_LAST_STEPS, NoisyRun
from dpmerge.accounting.profile import NonPrivateProfile, PrivacyProfile
from dpmerge.accounting.step_mechanisms import HOPELESS_RATIO, MixtureStep

MOST_SAMPLED_RUNS = 6
"""Poisson runs in one merged trajectory: their mixture has 2^n components, each further run doubles the time."""


@dataclass(frozen=True)
class _WeightedStep:
    """The step of one run that moves the merged model: how far if it drew the record, how probably, with what noise."""

    shift: float
    rate: float
    noise: float


def sampled_step(
    support: Sequence[Checkpoint],
    weights: Sequence[float],
    release_noise: float = 0.0,
    *,
    most_sampled: int = MOST_SAMPLED_RUNS,
) -> PrivacyProfile | None:
    """What each run's last acting step costs, seen only merged.

    Args:
        support: The runs merged.
        weights: Their weights, all positive.
        release_noise: τ, added to what is merged.
        most_sampled: How many of the runs may be sampled ones.

    Returns:
        The profile, or None where there is no formula.
    """
    if not all(isinstance(c.run, NoisyRun) and c.run.adjacency is not Adjacency.REPLACE_ONE for c in support):
        return None
    steps = list(_acting_steps(support, weights))
    if sum(step.rate < 1 for step in steps) > most_sampled:
        return None
    if not steps:
        return GaussianProfile(0.0)
    variance = float(release_noise) ** 2
    for step in steps:
        variance += step.noise**2
    if variance == 0:
        return NonPrivateProfile()
    outcomes = _outcomes(steps, deviation=float(np.sqrt(variance)))
    if max(outcomes) > HOPELESS_RATIO:
        return NonPrivateProfile()
    return LossDistributionProfile.of({MixtureStep(tuple(outcomes), tuple(outcomes.values())): 1})


def sampled_last_step(
    support: Sequence[Checkpoint], weights: Sequence[float], release_noise: float
) -> PrivacyProfile | None:
    """Joint release of all steps but each run's last acting one, and that one merged; premises are the caller's.

    Steps of rate zero move nothing, and are counted all the same, as those after the last acting one of a full batch.
    """
    merged = sampled_step(support, weights, release_noise, most_sampled=MOST_SAMPLED_LAST_STEPS)
    if merged is None:
        return None
    return compose([merged, *(_earlier(checkpoint) for checkpoint in support)])


def _earlier(checkpoint: Checkpoint) -> PrivacyProfile:
    """What a run's steps cost but for the last acting one."""
    run = checkpoint.run
    assert isinstance(run, NoisyRun)
    acting = np.flatnonzero(run.moves(checkpoint.step).shift)
    if not acting.size:
        return run.own_profile(checkpoint.step)
    if isinstance(run, DpSgd):
        return run.profile_without(checkpoint.step, int(acting[-1]))
    return GaussianProfile(0.0)  # a release of one step


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
            scale = weight * run.optimizer.gradient_coefficient(first_step=bool(last == 0))
            yield _WeightedStep(scale * float(moves.shift[last]), rate, scale * float(moves.noise[last]))


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
