"""Attacks on runs under zero_out: what is simulated is the pair of the definition, and a claim too small is found."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from audit.test_releases import sgd, terms_of
from audit.test_threat_models import assert_gaussian_ratio, assert_hockey_stick
from dpmerge.accounting import GaussianProfile
from dpmerge.auditing.claims import mechanism
from dpmerge.auditing.gradients import idle, pushes
from dpmerge.auditing.records import schedule_of
from dpmerge.auditing.release_attacks import audit_release
from dpmerge.auditing.schedules import Schedule
from dpmerge.auditing.threat_models import everything
from dpmerge.errors import InvalidInputError
from dpmerge.portfolio.manifest import Manifest
from dpmerge.terms.release_terms import ReleaseTerms
from oracle import null_record
from portfolio.portfolios import Document

DELTA = 1e-5


def zero_out(name: str, **facts: Any) -> Document:
    return {**sgd(name, **facts), "adjacency": "zero_out"}


def terms(*runs: Document, theorem: str = "joint_release") -> ReleaseTerms:
    made = terms_of(runs, {run["run"]: 1 / len(runs) for run in runs}, theorem)
    return ReleaseTerms.model_validate({**made.document(), "adjacency": "zero_out"})


def test_the_record_pushes_once_and_the_null_record_not_at_all() -> None:
    """Of a clipped total the record turns what others made of it around, also where it is not always drawn."""
    run = Schedule.of("run", steps=1, noise_multiplier=1.0, adjacency="zero_out")
    total = Schedule.of("run", steps=1, noise_multiplier=1.0, adjacency="zero_out", aggregate=True)
    assert (pushes(run), idle(run)) == ((0.0, 1.0), 0.0)
    assert (pushes(total), idle(total)) == ((-1.0, 1.0), -1.0)


def test_full_batches_are_seen_at_one_clip_norm() -> None:
    run = Schedule.of("run", steps=9, noise_multiplier=4.0, adjacency="zero_out")
    assert_gaussian_ratio(everything([(run, 9)]), 3 / 4)
    assert mechanism(run).profile() == GaussianProfile(3 / 4)


def test_poisson_batches_are_seen_as_the_definition_has_them() -> None:
    run = Schedule.of("run", steps=1, noise_multiplier=1.0, sampling_rate=0.3, adjacency="zero_out")
    epsilon = 0.5
    exact = null_record.hockey_sticks([0.0] * 3, 1.0, epsilon, sigma=1.0, q=0.3)[0]
    assert_hockey_stick(everything([(run, 1)]), lambda _: exact, epsilon)


def test_shuffled_epochs_are_attacked_at_their_smallest_noise() -> None:
    noises = [4.0, 3.0, 8.0, 6.0]
    facts: dict[str, Any] = {"sampling": "shuffled", "steps_per_epoch": 2}
    run = Schedule.of("run", steps=4, noise_multiplier=noises, adjacency="zero_out", **facts)
    assert_gaussian_ratio(everything([(run, 4)]), math.sqrt(1 / 9 + 1 / 36))
    private_size = Schedule.of("run", steps=4, noise_multiplier=noises, adjacency="add_remove", **facts)
    with pytest.raises(InvalidInputError, match="shuffled epochs under replace_one or zero_out"):
        everything([(private_size, 4)])


@pytest.mark.parametrize("theorem", ["joint_release", "last_step"])
def test_averages_of_full_batch_runs_are_tight(theorem: str) -> None:
    finding = audit_release(
        terms(zero_out("a"), zero_out("b", noise_multiplier=2.0), theorem=theorem),
        delta=DELTA,
        trials=100_000,
        confidence=0.999,
        seed=1,
    )
    assert finding.verdict == "tight"
    assert finding.estimate.bound < (finding.claim.value or math.nan)


def test_a_poisson_release_is_consistent() -> None:
    sampled = zero_out("a", sampling="poisson", sampling_rate=0.2, noise_multiplier=1.0, steps=10)
    finding = audit_release(terms(sampled), delta=1e-3, trials=200_000, confidence=0.999, seed=1)
    assert finding.verdict != "violated"
    assert finding.tightness is not None
    assert finding.tightness > 0.5


@pytest.mark.parametrize(
    ("facts", "k"),
    [({"clipping": "aggregate"}, 1.0), ({}, 0.7), ({"sampling": "shuffled", "steps_per_epoch": 1}, 0.7)],
)
def test_a_claim_that_is_too_small_is_found(facts: dict[str, Any], k: float) -> None:
    """One clip norm for a clipped total; less than one clip norm a step; amplification nobody proves."""
    attacked = terms(zero_out("a", **facts))
    small = GaussianProfile(k * math.sqrt(3) / 4).epsilon(DELTA)
    finding = audit_release(attacked, delta=DELTA, trials=100_000, confidence=0.999, seed=1, stated=small)
    assert finding.verdict == "violated"


def test_a_realised_divisor_is_not_simulated_as_if_it_were_a_constant() -> None:
    facts = {"sampling": "poisson", "sampling_rate": 0.2, "public_divisor": False}
    with pytest.raises(InvalidInputError, match="whether a record was drawn changes a divisor that is not public"):
        schedule_of(Manifest.model_validate(zero_out("a", **facts)).statement, "zero_out", {})
    whole = Manifest.model_validate(zero_out("a", public_divisor=False)).statement
    assert np.all(schedule_of(whole, "zero_out", {}).sampling_rates == 1)
