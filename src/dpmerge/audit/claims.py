"""What is claimed: the accounting's own word on the runs that are attacked. The one door between the two.

Guarantees: a claim is the number the library would certify (or, where it is not proved, print as assumed); nothing
about the attack enters it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from itertools import product

import numpy as np

from dpmerge.audit.findings import Claim
from dpmerge.audit.schedules import Schedule
from dpmerge.errors import InvalidInput
from dpmerge.privacy import (
    THEOREMS,
    Adjacency,
    Checkpoint,
    Clipping,
    DeclaredLipschitz,
    DpSgd,
    GaussianProfile,
    LinearCombination,
    LossDistributionProfile,
    Optimizer,
    PrivacyProfile,
    Sampling,
    SelectionProfile,
    Smoothness,
    StepBlock,
)
from dpmerge.privacy.steps import MixtureStep, Step

Part = tuple[Schedule, int, float]
"""A run, the step of the checkpoint, its weight."""


def mechanism(schedule: Schedule, smoothness: Smoothness | None = None) -> DpSgd:
    """The run as the accounting sees it; `smoothness` says what its loss is, instead of the schedule's stretches."""
    blocks = [
        StepBlock(steps=1, noise_multiplier=noise, clip_norm=clip, learning_rate=rate, sampling_rate=sampled)
        for noise, clip, rate, sampled in zip(
            schedule.noise_multipliers.tolist(),
            schedule.clip_norms.tolist(),
            schedule.rates.tolist(),
            schedule.sampling_rates.tolist(),
            strict=True,
        )
    ]
    stretches = schedule.stretches
    parent = schedule.parent
    return DpSgd(
        blocks=blocks,
        adjacency=Adjacency(schedule.adjacency),
        sampling=Sampling(schedule.sampling),
        steps_per_epoch=schedule.steps_per_epoch,
        clipping=Clipping.AGGREGATE if schedule.aggregate else Clipping.PER_EXAMPLE,
        optimizer=Optimizer(
            name=schedule.optimizer,
            momentum=schedule.momentum,
            nesterov=schedule.nesterov,
            dampening=schedule.dampening,
            weight_decay=schedule.weight_decay,
        ),
        smoothness=smoothness or (None if stretches is None else DeclaredLipschitz(factors=tuple(stretches.tolist()))),
        ancestry=None if parent is None else Checkpoint(mechanism(parent[0]), parent[1]),
        label=schedule.name,
    )


def average_claims(
    parts: Sequence[Part],
    delta: float,
    *,
    release_noise: float = 0.0,
    shared_affine: str | None = None,
    smoothness: Smoothness | None = None,
    false: Collection[str] = (),
    theorems: Collection[str] = ("joint_release", "last_step", "hidden_state", "merged_trajectory"),
) -> tuple[Claim, ...]:
    """What each theorem says of a weighted average; those without a formula for it are left out.

    `false` names the theorems whose number theory says is too small here; `smoothness` is that of all runs' loss.
    """
    made: dict[int, DpSgd] = {}
    combination = LinearCombination(
        checkpoints=[Checkpoint(made.setdefault(id(run), mechanism(run, smoothness)), step) for run, step, _ in parts],
        weights=[weight for _, _, weight in parts],
        release_noise=release_noise,
        shared_affine=shared_affine,
    )
    bounds = [THEOREMS[name](combination) for name in theorems]
    return tuple(
        Claim(
            by=bound.theorem,
            value=bound.profile.epsilon(delta),
            proved=bound.certifies,
            false_here=bound.theorem in false,
            mu=bound.mu,
            deltas=bound.profile.delta,
        )
        for bound in bounds
        if bound.profile is not None
    )


def logistic_loss(feature_bound: float, records: int) -> Smoothness:
    """Logistic regression on so many records with features no longer than that, for `average_claims`."""
    return Smoothness(kind="logistic", feature_bound=feature_bound, records=records)


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
        raise InvalidInput("theorem", theorem, "one that is proved for these runs")
    return bound.profile


def selection_claim(profiles: Sequence[PrivacyProfile], probabilities: Sequence[float], delta: float) -> Claim:
    """What random selection costs."""
    return _claim("random_selection", SelectionProfile(tuple(profiles), tuple(probabilities)), delta)


def _claim(by: str, profile: PrivacyProfile, delta: float) -> Claim:
    mu = profile.mu if isinstance(profile, GaussianProfile) else None
    return Claim(by=by, value=profile.epsilon(delta), proved=True, mu=mu, deltas=profile.delta)
