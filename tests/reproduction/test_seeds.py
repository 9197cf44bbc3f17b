"""One noise seed for two runs: the attack takes the noise off, and whoever is asked refuses such runs."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from dpmerge.auditing.findings import Finding
from dpmerge.errors import NoGuaranteeError, NotCombinableError
from dpmerge.ledger import ledger as ledgers
from dpmerge.ledger.run_costs import RunCosts
from dpmerge.portfolio import Portfolio
from portfolio.portfolios import BLOCK, DP_SGD, manifest, replaced, write_portfolio
from reproduction.scenarios import seeds

BY_NAME = {scenario.name: scenario for scenario in seeds.SCENARIOS}


def findings(name: str, trials: int = 200_000) -> dict[str, Finding]:
    scenario = BY_NAME[name]
    found = scenario.estimate(trials=trials, confidence=0.999, seed=3)
    return {claim.by: Finding(subject=name, claim=claim, estimate=found) for claim in scenario.claims()}


@pytest.mark.parametrize("name", BY_NAME)
def test_what_theory_calls_false_is_violated_and_nothing_else(name: str) -> None:
    found = findings(name)
    assert {by for by, each in found.items() if each.verdict == "violated"} == {by for by in found if "not ours" in by}
    assert all((each.verdict == "violated") == each.claim.false_here for each in found.values())


def test_subtracting_gives_the_record_away_every_time() -> None:
    attack = BY_NAME["shared_seed"].attack()
    for present, push in ((True, 1.0), (False, -1.0)):
        scores = attack.play(np.random.default_rng(5), 50_000, present).scores
        assert np.all(scores == push)


def test_noise_of_one_seed_is_refused_and_promises_nothing() -> None:
    claims = {claim.by: claim for claim in BY_NAME["shared_seed"].claims()}
    refused = claims["the ledger, which refuses the second run"]
    assert refused.value is None
    assert not refused.proved


def test_with_noise_of_their_own_both_models_cost_what_is_claimed() -> None:
    found = findings("independent_seeds", 1_000_000)
    assert {each.verdict for each in found.values()} == {"tight"}
    mu = found["joint_release"].estimate.mu
    assert mu is not None
    # Five full-batch steps each, replace_one.
    assert mu.low < math.sqrt(5 * (2 / 8) ** 2 + 5 * (2 / 16) ** 2) < mu.high


def test_in_the_average_of_a_run_and_its_turned_twin_one_step_of_noise_is_left() -> None:
    """Both runs as one linear map of the steps: what the noise and the pushes are multiplied by."""
    steps, sigma = 20, 40.0
    straight, turned = np.ones((1, 1)), np.ones((1, 1))
    for step in range(1, steps):
        kept = -1.0 if step == steps - 1 else 1.0
        straight, turned = np.append(straight, [[1.0]], axis=1), np.append(kept * turned, [[1.0]], axis=1)
    noise = (straight + turned) / 2
    pushes = (np.abs(straight) + np.abs(turned)) / 2
    exact = 2 * pushes.sum() / (sigma * np.linalg.norm(noise))
    assert exact == pytest.approx(1.0)
    found = findings("shared_seed_average")
    claimed = found["hidden_state, as if independent (not ours)"]
    assert claimed.estimate.mu is not None
    assert claimed.estimate.mu.low < exact < claimed.estimate.mu.high
    assert claimed.claim.mu == pytest.approx(math.sqrt(2 * steps) * 2 / sigma, rel=1e-6)


def test_a_ledger_that_does_not_look_at_seeds_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledgers, "require_own_noise", lambda state, scope, runs: None)
    monkeypatch.setattr(RunCosts, "mark", lambda self, identity, mark: None)
    found = findings("shared_seed")["the ledger, which refuses the second run"]
    assert found.claim.value is not None
    assert found.verdict == "violated"


def test_a_portfolio_refuses_the_runs_of_the_attack(tmp_path: Path) -> None:
    """The same two schedules as manifests: with one seed never seen together, with two priced."""
    for number, second in enumerate((42, 42 + 2**32, 43)):
        documents = {}
        for run, seed in zip(seeds.UNEQUAL, (42, second), strict=True):
            block = BLOCK | {
                "steps": run.steps,
                "noise_multiplier": float(run.noise_multipliers[0]),
                "clip_norm": float(run.clip_norms[0]),
                "learning_rate": float(run.rates[0]),
            }
            mechanism = replaced(DP_SGD, "blocks", to=[block])
            documents[run.name] = manifest(run.name, mechanism=mechanism, noise={"source": "seeded", "seed": seed})
        home = write_portfolio(tmp_path / str(number), runs=documents, manifests=documents)
        loaded = Portfolio.load(home)
        if second % 2**32 == 42:
            with pytest.raises(NotCombinableError) as refused:
                loaded.require_combinable(loaded.runs)
            assert refused.value.field == "noise.seed"
            with pytest.raises(NoGuaranteeError, match="share a noise seed"):
                loaded.everything().profile()
        else:
            loaded.require_combinable(loaded.runs)
            loaded.everything().profile()
            assert {run.id for run in loaded.runs} == {run.name for run in seeds.UNEQUAL}
