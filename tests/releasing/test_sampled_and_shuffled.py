"""Releases of sampled runs by last_step, and of shuffled ones stopped within a pass: planned, charged, verified."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dpmerge as dpm
from dpmerge.accounting import GaussianProfile
from dpmerge.certificate.dsse import CERTIFICATE_NAME
from dpmerge.errors import CapExceededError, RunsLockedError
from dpmerge.ledger.caps import Cap
from dpmerge.ledger.entries import BudgetScope
from dpmerge.ledger.ledger import Ledger
from dpmerge.planning.stated_weights import stated_weights
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.releasing.ledger_location import default_ledger
from dpmerge.releasing.release import release
from dpmerge.terms.release_terms import ReleaseTerms
from oracle import sampled_last_step as oracle
from portfolio.portfolios import DP_SGD, add_remove, manifest, model, write_portfolio

DELTA = 1e-5
BLOCK = {"clip_norm": 1.0, "learning_rate": 0.01}


def target(epsilon: float) -> dpm.Guarantee:
    return dpm.Guarantee(epsilon=epsilon, delta=DELTA)


def written(home: Path, documents: dict[str, dict[str, Any]], *steps: int) -> Portfolio:
    models = {
        name: {step: model(100 * place + step) for step in steps} for place, name in enumerate(documents, start=1)
    }
    return Portfolio.load(write_portfolio(home, runs=documents, manifests=documents, models=models))


@pytest.fixture
def sampled(tmp_path: Path) -> Portfolio:
    documents = {}
    for name, noise in (("a", 1.0), ("b", 2.0)):
        block = {**BLOCK, "steps": 2, "noise_multiplier": noise, "sampling_rate": 0.3}
        documents[name] = add_remove(manifest(name, mechanism={**DP_SGD, "blocks": [block], "sampling": "poisson"}))
    return written(tmp_path / "sampled", documents, 2)


@pytest.fixture
def shuffled(tmp_path: Path) -> Portfolio:
    """15 of 20 steps, of which the last five are half a pass over a secret order of the manifests' 100 records."""
    documents = {}
    for name, noise in (("a", 4.0), ("b", 8.0)):
        mechanism = {
            **DP_SGD,
            "blocks": [{**BLOCK, "steps": 15, "noise_multiplier": noise}],
            "expected_batch_size": 10,
            "sampling": "shuffled",
            "steps_per_epoch": 10,
            "order": {"secret": True, "records": 100, "batch_size": 10, "fixed_steps": [12, 15]},
        }
        documents[name] = manifest(name, mechanism=mechanism, stopping="fixed")
    return written(tmp_path / "shuffled", documents, 12, 13, 15)


def test_a_final_release_by_last_step_is_verified_from_scratch_and_locks_its_runs(
    sampled: Portfolio, tmp_path: Path
) -> None:
    plan = stated_weights(sampled, {"a@2": 0.4, "b@2": 0.6}, target(30), theorem="last_step")
    made = release(plan, out=tmp_path / "out", final=True)
    runs = [oracle.Run([noise, noise], 0.3) for noise in (1.0, 2.0)]
    truth = max(
        oracle.seen_delta(made.guarantee.epsilon, runs, (0.4, 0.6), 0.0, removal=removal) for removal in (True, False)
    )
    assert DELTA * 0.99 < truth <= DELTA * (1 + 1e-6), "what is certified is what is true"
    joint = stated_weights(sampled, {"a@2": 0.4, "b@2": 0.6}, target(30), theorem="joint_release")
    assert made.guarantee.epsilon < joint.guarantee.epsilon
    assert dpm.verify(tmp_path / "out", portfolio=sampled).verified
    with pytest.raises(RunsLockedError):
        release(joint, out=tmp_path / "two")


def test_a_certificate_whose_last_step_is_priced_too_low_is_not_verified(sampled: Portfolio, tmp_path: Path) -> None:
    plan = stated_weights(sampled, {"a@2": 0.4, "b@2": 0.6}, target(30), theorem="last_step")
    release(plan, out=tmp_path / "out", final=True)
    file = tmp_path / "out" / CERTIFICATE_NAME
    envelope = json.loads(file.read_text())
    statement = json.loads(base64.b64decode(envelope["payload"]))
    statement["predicate"]["guarantee"]["epsilon"] *= 0.98
    envelope["payload"] = base64.b64encode(json.dumps(statement).encode()).decode()
    file.write_text(json.dumps(envelope))
    result = dpm.verify(tmp_path / "out", portfolio=sampled)
    assert "guarantee" in {check.name for check in result.checks if not check.passed}


def test_auto_plans_a_final_release_of_few_sampled_steps(sampled: Portfolio) -> None:
    joint = stated_weights(sampled, {"a@2": 0.2, "b@2": 0.8}, target(30), theorem="joint_release").guarantee.epsilon
    merged = stated_weights(sampled, {"a@2": 0.2, "b@2": 0.8}, target(30), theorem="last_step").guarantee.epsilon
    plan = dpm.plan(sampled, target((joint + merged) / 2), method="combine")
    assert {candidate.theorem for candidate in plan.candidates} == {"last_step"}
    assert plan.guarantee.epsilon <= (joint + merged) / 2


def test_a_share_is_certified_and_verified_and_the_ledger_counts_the_pass(shuffled: Portfolio, tmp_path: Path) -> None:
    plan = dpm.plan(shuffled, target(5), method="select", checkpoints=["a@15"])
    made = release(plan, out=tmp_path / "out")
    one, two = (GaussianProfile(2 / 4 * np.sqrt(k)) for k in (1, 2))
    mixed = (one.delta(made.guarantee.epsilon) + two.delta(made.guarantee.epsilon)) / 2
    assert DELTA * 0.999 < mixed <= DELTA
    assert dpm.verify(tmp_path / "out", portfolio=shuffled).verified
    with Ledger.open(default_ledger(shuffled)) as ledger:
        [scope] = ledger.scopes()
        spent = ledger.budget_report(scope, DELTA).epsilon
    assert spent == pytest.approx(two.epsilon(DELTA))
    assert spent > made.guarantee.epsilon


def test_a_checkpoint_kept_at_will_is_certified_with_the_pass_whole(shuffled: Portfolio) -> None:
    plan = dpm.plan(shuffled, target(5), method="select", checkpoints=["a@13"])
    assert plan.guarantee.epsilon == pytest.approx(GaussianProfile(2 / 4 * np.sqrt(2)).epsilon(DELTA))


def test_a_cap_that_the_share_alone_would_keep_is_exceeded(shuffled: Portfolio, tmp_path: Path) -> None:
    plan = dpm.plan(shuffled, target(5), method="select", checkpoints=["a@15"])
    between = (plan.guarantee.epsilon + GaussianProfile(2 / 4 * np.sqrt(2)).epsilon(DELTA)) / 2
    ledger_file = tmp_path / "ledger.sqlite"
    with Ledger.open(ledger_file) as ledger:
        scope = BudgetScope("patients-2026", "record", "replace_one")
        ledger.set_cap(scope, Cap(epsilon=between, delta=DELTA, rule="gaussian_filter"))
    with pytest.raises(CapExceededError):
        release(plan, out=tmp_path / "out", ledger=ledger_file)


def test_an_average_of_two_is_composed_under_each_outcome_and_mixed(shuffled: Portfolio) -> None:
    plan = stated_weights(shuffled, {"a@15": 0.5, "b@15": 0.5}, target(30), theorem="joint_release")
    epsilon = plan.guarantee.epsilon
    mixed = sum(
        GaussianProfile(2 * np.sqrt(first / 16 + second / 64)).delta(epsilon) / 4
        for first in (1, 2)
        for second in (1, 2)
    )
    assert DELTA * 0.999 < mixed <= DELTA


def test_a_selection_with_a_share_counts_whole_in_a_final_release(shuffled: Portfolio) -> None:
    terms = dpm.plan(shuffled, target(5), method="select", checkpoints=["a@15"]).terms
    assert isinstance(terms, ReleaseTerms)
    assert terms.bounds[0].profile != terms.counted_profile(0)
    assert terms.counted_profile(0) == GaussianProfile(2 / 4 * np.sqrt(2))
