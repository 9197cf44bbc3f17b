"""Choosing by public accuracy: what is released was picked by looking, and the pick tells of everything looked at.

Guarantees: the accuracy is the worst one, which grows with how far the record has pushed a model; scores are exact
log-likelihood ratios of what is released, and of nothing else.
"""

from __future__ import annotations

import numpy as np
from scipy.special import log_ndtr

from dpmerge.auditing.attacks import Array, Attack, Draws
from dpmerge.auditing.findings import Claim
from dpmerge.auditing.scenario import DELTA, Scenario
from dpmerge.auditing.schedules import Schedule
from reproduction.scenarios.ledger_claims import Asked, release_claim

# Ten runs of μ = √25 / 10 = 0.5.
TRAINED = tuple(
    Schedule.of(f"run-{place}", steps=25, noise_multiplier=10.0, adjacency="add_remove") for place in range(1, 11)
)

# One step each; the second run has little noise, and next to no weight in the average.
PAIR = tuple(
    Schedule.of(name, steps=1, noise_multiplier=noise, adjacency="replace_one")
    for name, noise in (("noisy", 2.0), ("accurate", 0.5))
)
USUAL, TRUSTING = (0.99, 0.01), (0.98, 0.02)
LEVEL = 1.0
"""From which value on the second model counts as accurate: where it lies on average if the record is there."""


def moved_and_spread(run: Schedule) -> tuple[float, float]:
    """How far the record moves a run's last weights, always pushing, and the deviation of their noise."""
    steps = run.rates * run.clip_norms
    return float(steps.sum()), float(np.linalg.norm(steps * run.noise_multipliers))


def best_of(runs: tuple[Schedule, ...]) -> Attack:
    """The winner of equal runs under add_remove. Its weights are the largest of all; the others stay hidden."""
    moved, spread = moved_and_spread(runs[0])
    mu, others = moved / spread, len(runs) - 1

    def play(rng: np.random.Generator, trials: int, present: bool) -> Draws:
        best = np.full(trials, -np.inf)
        for _ in runs:
            weights = rng.normal(moved * present, spread, trials)
            np.maximum(best, weights, out=best)
        value = best / spread
        # The largest of n has the density n φ(x) Φ(x)^(n−1).
        return Draws(mu * (value - mu / 2) + others * (log_ndtr(value - mu) - log_ndtr(value)))

    return Attack(play=play)


def weights_by_accuracy() -> Attack:
    """The second model gets more weight where it is accurate. Released: the average, and with it the weights."""
    weights = np.array([USUAL, TRUSTING])
    spreads = np.array([moved_and_spread(run)[1] for run in PAIR])
    variance = (weights**2) @ spreads**2
    slope = weights[:, 1] * spreads[1] ** 2 / variance  # of the second model's mean, given the average
    left = np.sqrt(spreads[1] ** 2 - slope**2 * variance)

    def log_likelihood(average: Array, trusting: Array, side: float) -> Array:
        """Up to what both worlds share: of the average, and of the choice given the average."""
        which = trusting.astype(int)
        second = side + slope[which] * (average - side)
        beyond = (second - LEVEL) / left[which]
        return np.asarray(
            -((average - side) ** 2) / (2 * variance[which]) + log_ndtr(np.where(trusting, beyond, -beyond))
        )

    def play(rng: np.random.Generator, trials: int, present: bool) -> Draws:
        side = 1.0 if present else -1.0
        models = side + spreads[:, None] * rng.standard_normal((2, trials))
        trusting = models[1] > LEVEL
        average = np.einsum("ti,it->t", weights[trusting.astype(int)], models)
        return Draws(log_likelihood(average, trusting, 1.0) - log_likelihood(average, trusting, -1.0))

    return Attack(play=play)


def _best_claims() -> tuple[Claim, ...]:
    winner = (TRAINED[0], TRAINED[0].steps, 1.0)
    looked_at = [(run, run.steps) for run in TRAINED]
    alone = Asked(candidates=[[winner]], chosen="uncharged")
    charged = Asked(candidates=[[winner]], chosen="public_evaluation", looked_at=looked_at)
    return (
        release_claim("the winner's own ε (not ours)", alone, DELTA, false_here=True),
        release_claim("public_evaluation, charged", charged, DELTA),
    )


def _weights_claims() -> tuple[Claim, ...]:
    claims = []
    averages = [[(run, 1, weight) for run, weight in zip(PAIR, chosen, strict=True)] for chosen in (USUAL, TRUSTING)]
    for theorem in ("last_step", "merged_trajectory"):
        each = [
            release_claim(
                f"{theorem}, the choice not paid for (not ours)",
                Asked(candidates=[average], theorem=theorem, chosen="uncharged"),
                DELTA,
                false_here=True,
            )
            for average in averages
        ]
        claims.append(max(each, key=lambda claim: claim.value or 0.0))
    looked_at = [(run, 1) for run in PAIR]
    charged = Asked(candidates=averages[:1], chosen="public_evaluation", looked_at=looked_at)
    return (*claims, release_claim("public_evaluation, charged", charged, DELTA))


SCENARIOS = (
    Scenario(
        name="best_of_ten",
        words=(
            "Ten equal runs are scored on public data and only the most accurate model is released; the attacker sees "
            "that model, and that it is the best of ten."
        ),
        attack=lambda: best_of(TRAINED),
        claims=_best_claims,
        trials=4_000_000,
        note="Exact: ε = 5.80, from the distribution of the largest of ten.",
    ),
    Scenario(
        name="weights_by_accuracy",
        words=(
            "Two models are averaged with one of two weight vectors, whichever suits the second model's public "
            "accuracy; the attacker sees the average and which weights it was given."
        ),
        attack=weights_by_accuracy,
        claims=_weights_claims,
        trials=2_000_000,
        note="The one bit that tells the weights carries more than is claimed for the whole release.",
    ),
)
