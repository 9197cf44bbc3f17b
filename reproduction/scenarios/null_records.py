"""Runs under zero_out: a record is there, or a null record in its place; and what a realised divisor would tell.

Guarantees: the first two claims are theorems. The last one is false, and is why a divisor that is the realised size of
a Poisson batch is refused (docs/concepts/adjacency.md).
"""

from __future__ import annotations

import numpy as np
from scipy.stats import binom

from dpmerge.auditing.attacks import Array, Attack, in_batches
from dpmerge.auditing.claims import mechanism
from dpmerge.auditing.findings import Claim
from dpmerge.auditing.scenario import DELTA, Scenario
from dpmerge.auditing.schedules import Schedule
from dpmerge.auditing.threat_models import everything
from reproduction.scenarios.accounting_claims import run_claim

RECORDS, RATE, STEPS, EPSILON = 20, 0.1, 30, 1.5


def full_batch() -> Schedule:
    return Schedule.of("run", steps=20, noise_multiplier=8.0, adjacency="zero_out")


def poisson() -> Schedule:
    return Schedule.of("run", steps=STEPS, noise_multiplier=1.0, sampling_rate=RATE, adjacency="zero_out")


def realised_divisor() -> Attack:
    """Sees each noisy sum, and what it was divided by: the noise in all other coordinates has that scale.

    Of a batch that was divided by s ≥ 2 the record is one with probability s/n; no record and one record look alike.
    """
    none, one = binom.pmf([0, 1], RECORDS, RATE)
    shares = np.arange(RECORDS + 1) / RECORDS
    shares[:2] = (one / RECORDS) / (none + one)

    def scores(rng: np.random.Generator, trials: int, present: bool) -> Array:
        total = np.zeros(trials)
        for _ in range(STEPS):
            drawn = rng.random(trials) < RATE  # a null record is drawn like any other
            share = shares[rng.binomial(RECORDS - 1, RATE, trials) + drawn]
            seen = drawn * float(present) + rng.standard_normal(trials)
            total += np.log1p(share * np.expm1(seen - 0.5))
        return total

    return Attack(play=in_batches(scores), draws=3 * STEPS)


def _divided_claims() -> tuple[Claim, ...]:
    value = mechanism(poisson()).profile().delta(EPSILON)
    return (Claim(by="run, as if its divisor were a constant (not ours)", value=value, proved=False, false_here=True),)


SCENARIOS = (
    Scenario(
        name="zero_out_full_batch",
        words=(
            "A run sees the whole dataset at every step, in which the record is there or has been made null; the "
            "attacker sees all noisy gradients."
        ),
        attack=lambda: everything([(full_batch(), 20)]),
        claims=lambda: (run_claim(full_batch(), DELTA),),
        trials=400_000,
    ),
    Scenario(
        name="zero_out_poisson",
        words=(
            "Each step's batch has the record, or the null record in its place, in it one time in ten; the attacker "
            "sees all noisy gradients."
        ),
        attack=lambda: everything([(poisson(), STEPS)]),
        claims=lambda: (run_claim(poisson(), DELTA),),
        trials=2_000_000,
    ),
    Scenario(
        name="zero_out_realised_divisor",
        words=(
            "The same on twenty records, but each noisy sum is divided by the number of records that were drawn, which "
            "the scale of the noise tells."
        ),
        attack=realised_divisor,
        claims=_divided_claims,
        quantity="delta",
        given=EPSILON,
        trials=1_000_000,
        note="Such a divisor is refused: by the recorder, and in a manifest by the statement that it is not public.",
    ),
)
