"""What is claimed: the accounting's own word on the runs that are attacked. The one door between the two.

Guarantees: a claim is the number the library would certify (or, where it is not proved, print as assumed); nothing
about the attack enters it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from dpmerge.accounting import (
    THEOREMS,
    Adjacency,
    Checkpoint,
    Clipping,
    DeclaredLipschitz,
    DpSgd,
    LinearCombination,
    Optimizer,
    Sampling,
    Smoothness,
    StepBlock,
)
from dpmerge.auditing.findings import Claim
from dpmerge.auditing.schedules import Schedule

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
        passes=None if schedule.passes is None else [(1, steps) for steps in schedule.passes],
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
