"""Noise that two runs share: subtracting one model from another takes it off.

Guarantees: the runs are simulated step by step from one stream of noise, or from two; everything else is the same.
"""

from __future__ import annotations

import numpy as np

from dpmerge.auditing.attacks import Array, Attack, Draws
from dpmerge.auditing.claims import average_claims
from dpmerge.auditing.findings import Claim
from dpmerge.auditing.scenario import DELTA, Scenario
from dpmerge.auditing.schedules import Schedule
from reproduction.scenarios.ledger_claims import Asked, transcript, transcript_claim

STEPS = 5
UNEQUAL = (
    Schedule.of("fast", steps=STEPS, noise_multiplier=8.0, clip_norm=1.0, rates=1.0, adjacency="replace_one"),
    Schedule.of("slow", steps=STEPS, noise_multiplier=16.0, clip_norm=2.0, rates=0.5, adjacency="replace_one"),
)
EQUAL = tuple(
    Schedule.of(name, steps=20, noise_multiplier=40.0, adjacency="replace_one", stretches=np.ones(20))
    for name in ("straight", "turned")
)


def trained(run: Schedule, noise: Array, side: float) -> Array:
    """The last weights of a run whose record always pushes to one side; noise: step × trial."""
    pushed = side * run.clip_norms[:, None] + (run.noise_multipliers * run.clip_norms)[:, None] * noise
    return np.asarray(run.rates @ pushed)


def shared_seed() -> Attack:
    """Both models in units of their own noise: their difference is the record's push, and nothing else."""
    unit = [float((run.rates * run.clip_norms * run.noise_multipliers)[0]) for run in UNEQUAL]
    push = [float((run.rates * run.clip_norms).sum()) / u for run, u in zip(UNEQUAL, unit, strict=True)]

    def play(rng: np.random.Generator, trials: int, present: bool) -> Draws:
        noise = rng.standard_normal((STEPS, trials))
        one, two = (trained(run, noise, 1.0 if present else -1.0) / u for run, u in zip(UNEQUAL, unit, strict=True))
        # Rounded: what is left of the noise is the arithmetic's.
        return Draws(np.round((one - two) / (push[0] - push[1]), 9))

    return Attack(play=play)


def independent_seeds() -> Attack:
    """Both models, each with noise of its own."""

    def play(rng: np.random.Generator, trials: int, present: bool) -> Draws:
        score = np.zeros(trials)
        for run in UNEQUAL:
            steps = run.rates * run.clip_norms
            model = trained(run, rng.standard_normal((STEPS, trials)), 1.0 if present else -1.0)
            score += 2 * model * steps.sum() / np.sum((steps * run.noise_multipliers) ** 2)
        return Draws(score)

    return Attack(play=play, gaussian=True)


def shared_seed_average() -> Attack:
    """The average of two equal runs; where the second one is, the other records' loss is curved by 2/η at the end.

    Its last step turns it around (1 − η·2/η = −1) and with it the noise of all steps before, which the average then
    lacks; the record pushes the other way before the turn, so that of its pushes the average lacks none.
    """
    run = EQUAL[0]
    steps, noise_multiplier = run.steps, float(run.noise_multipliers[0])
    turn = np.append(-np.ones(steps - 1), 1.0)

    def play(rng: np.random.Generator, trials: int, present: bool) -> Draws:
        side = 1.0 if present else -1.0
        noise = noise_multiplier * rng.standard_normal((steps, trials))
        straight = (side + noise).sum(axis=0)
        turned = turn @ (side * turn[:, None] + noise)
        return Draws(steps * (straight + turned) / noise_multiplier**2)

    return Attack(play=play, gaussian=True)


def _independent_claim(runs: tuple[Schedule, ...], theorem: str, by: str, *, false_here: bool) -> Claim:
    parts = [(run, run.steps, 1 / len(runs)) for run in runs]
    claim = average_claims(parts, DELTA, theorems=[theorem])[0]
    return Claim(
        by=by, value=claim.value, proved=not false_here, false_here=false_here, mu=claim.mu, deltas=claim.deltas
    )


def _ledger_claim(by: str, runs: tuple[Schedule, ...], seeds: tuple[int, int]) -> Claim:
    """Both models asked of a ledger, one after the other, by runs that say what their noise was seeded with."""
    requests = [Asked(candidates=[[(run, run.steps, 1.0)]]) for run in runs]
    named = {run.name: seed for run, seed in zip(runs, seeds, strict=True)}
    return transcript_claim(by, transcript(requests, delta=DELTA, seeds=named))


SCENARIOS = (
    Scenario(
        name="shared_seed",
        words=(
            "Two runs with different settings drew their noise from one seed and both models are released; the "
            "attacker scales and subtracts them, and the noise is gone."
        ),
        attack=shared_seed,
        claims=lambda: (
            _independent_claim(
                UNEQUAL, "joint_release", "joint_release, as if independent (not ours)", false_here=True
            ),
            _ledger_claim("the ledger, which refuses the second run", UNEQUAL, (42, 42)),
        ),
        note="The attack is never wrong: what it shows is as much as the trials can. Portfolios refuse such runs too.",
    ),
    Scenario(
        name="shared_seed_average",
        words=(
            "Two equal runs drew their noise from one seed and only their average is released; one of them has turned "
            "around, so that the noise cancels where it should have added up."
        ),
        attack=shared_seed_average,
        claims=lambda: (
            *(
                _independent_claim(EQUAL, theorem, f"{theorem}, as if independent (not ours)", false_here=True)
                for theorem in ("joint_release", "hidden_state")
            ),
            _ledger_claim("the ledger, which refuses the second run", EQUAL, (42, 42)),
        ),
        note="Exact: μ = 1, where independent noise would give 0.316.",
    ),
    Scenario(
        name="independent_seeds",
        words="The two runs with different settings again, each with noise of its own; both models are released.",
        attack=independent_seeds,
        claims=lambda: (
            _independent_claim(UNEQUAL, "joint_release", "joint_release", false_here=False),
            _ledger_claim("the ledger's high-water mark", UNEQUAL, (42, 43)),
        ),
    ),
)
