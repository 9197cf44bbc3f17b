"""What is claimed of scenarios beyond averages: single runs, random selection, and amplification nobody proves.

Guarantees: a claim is the number the library would certify, or what is said to be nobody's; nothing about the attack
enters it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import product

import numpy as np

from dpmerge.accounting import (
    THEOREMS,
    Checkpoint,
    GaussianProfile,
    LinearCombination,
    LossDistributionProfile,
    PrivacyProfile,
    SelectionProfile,
)
from dpmerge.accounting.step_mechanisms import MixtureStep, Step
from dpmerge.auditing.claims import Part, mechanism
from dpmerge.auditing.findings import Claim
from dpmerge.auditing.schedules import Schedule
from dpmerge.errors import InvalidInputError


def amplified_claim(parts: Sequence[Part], delta: float) -> Claim:
    """What merged steps would cost if sampling made every one of them cheaper. **Nobody here certifies it.**

    Each step is priced as if the record counted only where it is drawn: N(0, s²) against the mixture, over which runs
    drew it, of N(Σ_drawn λ_iη_ikC_i, s²). That holds for one step; from the second on hidden states differ even where
    the record is not drawn.
    """
    priced: Counter[Step] = Counter()
    runs = [mechanism(run) for run, _, _ in parts]
    moves = [run.moves(step) for run, (_, step, _) in zip(runs, parts, strict=True)]
    for place in range(max(step for _, step, _ in parts)):
        taken = [k for k, (_, step, _) in enumerate(parts) if place < step]
        spread = float(np.hypot.reduce([parts[k][2] * float(moves[k].noise[place]) for k in taken]))
        outcomes: dict[float, float] = {}
        for drawn in product((False, True), repeat=len(taken)):
            rates = [float(runs[k].sampling_rates[place]) for k in taken]
            chance = float(np.prod([rate if d else 1 - rate for d, rate in zip(drawn, rates, strict=True)]))
            shift = sum(parts[k][2] * float(moves[k].shift[place]) for k, d in zip(taken, drawn, strict=True) if d)
            outcomes[shift / spread] = outcomes.get(shift / spread, 0.0) + chance
        priced[MixtureStep(tuple(outcomes), tuple(outcomes.values()))] += 1
    profile = LossDistributionProfile.of(priced)
    return Claim(
        by="merged_trajectory, amplified by sampling (not ours)",
        value=profile.epsilon(delta),
        proved=False,
        false_here=True,
        deltas=profile.delta,
    )


def run_claim(schedule: Schedule, delta: float, *, upto: int | None = None) -> Claim:
    """What a checkpoint of one run costs."""
    return _claim("run", mechanism(schedule).profile(upto), delta)


def average_profile(parts: Sequence[Part], theorem: str) -> PrivacyProfile:
    """The privacy profile of an average by a theorem that is proved for it, to be selected from."""
    combination = LinearCombination(
        checkpoints=[Checkpoint(mechanism(run), step) for run, step, _ in parts],
        weights=[weight for _, _, weight in parts],
    )
    bound = THEOREMS[theorem](combination)
    if bound.profile is None or not bound.certifies:
        raise InvalidInputError("theorem", theorem, "one that is proved for these runs")
    return bound.profile


def selection_claim(profiles: Sequence[PrivacyProfile], probabilities: Sequence[float], delta: float) -> Claim:
    """What random selection costs."""
    return _claim("random_selection", SelectionProfile(tuple(profiles), tuple(probabilities)), delta)


def _claim(by: str, profile: PrivacyProfile, delta: float) -> Claim:
    mu = profile.mu if isinstance(profile, GaussianProfile) else None
    return Claim(by=by, value=profile.epsilon(delta), proved=True, mu=mu, deltas=profile.delta)
