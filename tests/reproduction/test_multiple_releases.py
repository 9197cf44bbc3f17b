"""Several releases: rules that are not ours exceed what they claim, the ledger's do not, and broken ones are found out.

The oracles are closed forms: δ of μ-GDP, the chance of a rare draw among a thousand, and the algebra of averages.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm

from dpmerge.auditing.claims import average_claims
from dpmerge.auditing.findings import Finding
from dpmerge.auditing.scenario import DELTA
from dpmerge.auditing.schedules import Schedule
from dpmerge.errors import InvalidInputError
from dpmerge.ledger import Ledger, caps, privacy_filters
from reproduction.scenarios import multiple_releases
from reproduction.scenarios.ledger_claims import Asked, CapRule, release_claim, statement, terms_of, transcript

BY_NAME = {scenario.name: scenario for scenario in multiple_releases.SCENARIOS}
TRIALS = {"naive_cap": 500_000, "renoised": 20_000}


def findings(name: str, trials: int | None = None) -> dict[str, Finding]:
    scenario = BY_NAME[name]
    number = trials or TRIALS.get(name, 200_000)
    found = scenario.estimate(trials=number, confidence=0.999, seed=2)
    return {claim.by: Finding(subject=name, claim=claim, estimate=found) for claim in scenario.claims()}


@pytest.mark.parametrize("name", BY_NAME)
def test_what_theory_calls_false_is_violated_and_nothing_else(name: str) -> None:
    found = findings(name)
    assert {by for by, each in found.items() if each.verdict == "violated"} == {by for by in found if "not ours" in by}
    assert all((each.verdict == "violated") == each.claim.false_here for each in found.values())
    assert all(each.claim.proved != each.claim.false_here for each in found.values())


# Caps


def delta_of(steps: int) -> float:
    """At ε = 1, of so many steps of the ladder: μ = √steps · 2/20."""
    mu = math.sqrt(steps) / 10
    return float(norm.cdf(-1 / mu + mu / 2) - math.e * norm.cdf(-1 / mu - mu / 2))


def test_a_thousand_plans_within_the_cap_cost_77_times_as_much() -> None:
    chance = multiple_releases.GREEDY.probabilities[1]
    average = (1 - chance) * delta_of(7) + chance * delta_of(400)
    assert terms_of(multiple_releases.GREEDY).delta(1.0) == pytest.approx(average, rel=1e-9)
    assert average <= DELTA
    rare = -math.expm1(1000 * math.log1p(-chance))
    exact = rare * delta_of(400) + (1 - rare) * delta_of(7)
    assert exact / DELTA == pytest.approx(77, abs=0.5)
    (found,) = findings("naive_cap", 2_000_000).values()
    assert found.claim.value == DELTA
    assert 50 * DELTA < found.estimate.bound < exact


def outcomes(rule: str, *, ceiling: int | None = None, order: float | None = None) -> list[str]:
    cap = CapRule(
        epsilon=1.0,
        delta=DELTA,
        rule=rule,  # type: ignore[arg-type]
        ceiling=[] if ceiling is None else [(multiple_releases.LADDER, ceiling)],
        order=order,
    )
    return list(transcript(multiple_releases.WISHES, delta=DELTA, cap=cap).outcomes)


@pytest.mark.parametrize(("rule", "ceiling"), [("ceiling", 7), ("gaussian_filter", None)])
def test_two_rules_let_out_seven_steps_and_no_rare_candidate(rule: str, ceiling: int | None) -> None:
    assert delta_of(7) <= DELTA < delta_of(8)
    assert outcomes(rule, ceiling=ceiling) == ["refused"] * 11 + ["released"] * 5 + ["refused"] * 3


def test_the_ceiling_of_the_cap_is_seven_steps_of_the_ladder() -> None:
    assert multiple_releases._cap("ceiling").ceiling == [(multiple_releases.LADDER, 7)]


def test_the_renyi_filter_lets_out_what_its_budget_pays_for() -> None:
    order = multiple_releases.ORDER
    budget = 1.0 - math.log((order - 1) / order) + (math.log(DELTA) + math.log(order)) / (order - 1)

    def cost(low: int, high: int, chance: float, seen: int) -> float:
        moments = [
            weight * math.exp((order - 1) * order * max(0, step - seen) * 0.01 / 2)
            for step, weight in ((low, 1 - chance), (high, chance))
        ]
        return math.log(sum(moments)) / (order - 1)

    assert cost(3, 9, 0.3, 0) > budget
    spent, allowed = cost(3, 9, 0.01, 0), 1
    while spent + cost(3, 9, 0.01, 3) <= budget:
        spent, allowed = spent + cost(3, 9, 0.01, 3), allowed + 1
    assert 1 < allowed < 6
    made = outcomes("renyi_filter", order=order)
    assert made[:5] == ["refused"] * 5
    assert made[5:11] == ["released"] * allowed + ["refused"] * (6 - allowed)
    assert made[11:] == ["released"] + ["refused"] * 7
    # Before anything is drawn this costs less than the cap.
    rare = 1 - 0.99**allowed
    assert rare * delta_of(9) + (1 - rare) * delta_of(3) <= DELTA
    assert sorted(BY_NAME["cap_by_renyi_filter"].attack().probabilities) == pytest.approx([rare, 1 - rare])


def test_a_ceiling_that_does_not_bind_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiple_releases, "WISHES", multiple_releases.WISHES[-8:])
    monkeypatch.setattr(privacy_filters, "beyond", lambda ceiling, exposure: [])
    (found,) = findings("cap_by_ceiling").values()
    assert found.verdict == "violated"


def test_a_gaussian_filter_with_too_large_a_budget_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiple_releases, "WISHES", multiple_releases.WISHES[-8:])
    monkeypatch.setattr(
        privacy_filters, "gaussian_budget", lambda epsilon, delta: 1.5 * caps.gaussian_budget(epsilon, delta)
    )
    (found,) = findings("cap_by_gaussian_filter").values()
    assert found.verdict == "violated"


def test_a_renyi_filter_that_forgets_the_rare_candidate_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(privacy_filters, "selected", lambda probabilities, divergences, order: min(divergences))
    (found,) = findings("cap_by_renyi_filter", 1_000_000).values()
    assert found.verdict == "violated"


# Two averages


def test_two_averages_cost_both_models() -> None:
    found = findings("two_averages", 1_000_000)
    added, joint = found["last_step, both added up (not ours)"], found["joint_release (the ledger's high-water mark)"]
    mu = added.estimate.mu
    assert mu is not None
    assert mu.low < math.sqrt((2 / 2) ** 2 + (2 / 0.5) ** 2) < mu.high
    assert joint.claim.value == pytest.approx(25.4, abs=0.005)
    assert joint.verdict == "tight"
    each = [average_claims(average, DELTA, theorems=["last_step"])[0].value for average in multiple_releases.AVERAGES]
    assert each == pytest.approx([4.43, 4.48], abs=0.005)
    # At half of δ each, so that both together are at δ, a little more.
    assert added.claim.value is not None
    assert 4.43 + 4.48 < added.claim.value < 9.3


def test_of_two_final_averages_one_is_let_out() -> None:
    assert multiple_releases._final_transcript().outcomes == ("released", "refused")
    found = findings("final_average")
    mu = found["last_step"].estimate.mu
    assert mu is not None
    assert mu.low < 2 / math.hypot(0.99 * 2, 0.01 * 0.5) < mu.high
    assert {by: each.verdict for by, each in found.items()} == {
        "last_step": "tight",
        "merged_trajectory": "tight",
        "joint_release": "consistent",
        "the ledger, its runs locked": "tight",
    }


def test_a_lock_that_does_not_hold_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(privacy_filters, "require_unlocked", lambda *args, **settings: None)
    assert findings("final_average")["last_step"].verdict == "violated"


# Sending again


@pytest.mark.parametrize(("name", "fresh"), [("renoised", 100), ("sent_again", 1)])
def test_fresh_noise_averages_out_and_the_same_bytes_do_not(name: str, fresh: int) -> None:
    """Ten steps of one push; two runs of noise √10 averaged; release noise 50/√fresh."""
    found = next(iter(findings(name).values()))
    mu = found.estimate.mu
    assert mu is not None
    assert mu.low < 10 / math.sqrt(10 / 2 + 50**2 / fresh) < mu.high


def test_a_hundred_noises_multiply_the_cost_by_nearly_ten() -> None:
    found = findings("renoised")
    once = found["hidden_state, counted once (not ours)"]
    assert once.claim.mu == pytest.approx(10 / math.sqrt(5 + 50**2), rel=1e-6)
    assert once.estimate.mu is not None
    assert once.estimate.mu.low > 8.5 * once.claim.mu


def test_asking_again_is_answered_with_the_same_release() -> None:
    made = multiple_releases._sent_again().outcomes
    assert made[0] == "released"
    assert set(made[1::2]) == {"refused"}
    assert set(made[2::2]) == {"again"}


def test_a_ledger_that_draws_again_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiple_releases, "SENDINGS", 10)
    monkeypatch.setattr(privacy_filters, "require_unlocked", lambda *args, **settings: None)
    monkeypatch.setattr(Ledger, "_charged_before", lambda *args: None)
    assert findings("sent_again")["hidden_state"].verdict == "violated"


# What is asked of the ledger is what is attacked


def test_the_claim_of_release_terms_is_that_of_the_theorems() -> None:
    """The same run through a statement and through the mathematics."""
    facts = {"noise_multiplier": [4.0, 4.0, 6.0, 6.0], "rates": [1.0, 0.5, 0.5, 0.25], "stretches": np.ones(4)}
    runs = [
        Schedule.of(name, steps=4, clip_norm=clip, adjacency="replace_one", **facts)  # type: ignore[arg-type]
        for name, clip in (("a", 1.0), ("b", 2.0))
    ]
    parts = [(runs[0], 4, 0.75), (runs[1], 3, 0.25)]
    for claim in average_claims(
        parts, DELTA, release_noise=0.5, theorems=["joint_release", "last_step", "hidden_state"]
    ):
        asked = Asked(candidates=[parts], theorem=claim.by, release_noise=0.5)  # type: ignore[arg-type]
        made = release_claim(claim.by, asked, DELTA)
        assert made.value == pytest.approx(claim.value, rel=1e-9)
        assert made.proved


def test_a_sampled_run_is_stated_as_one() -> None:
    run = Schedule.of("s", steps=3, noise_multiplier=1.0, adjacency="add_remove", sampling_rate=0.1)
    asked = Asked(candidates=[[(run, 3, 1.0)]])
    (joint,) = average_claims([(run, 3, 1.0)], DELTA, theorems=["joint_release"])
    assert release_claim("s", asked, DELTA).value == pytest.approx(joint.value, rel=1e-9)


def test_a_run_that_starts_from_another_is_refused() -> None:
    parent = Schedule.of("p", steps=2, noise_multiplier=4.0, adjacency="add_remove")
    child = Schedule.of("c", steps=2, noise_multiplier=4.0, adjacency="add_remove", parent=(parent, 2))
    with pytest.raises(InvalidInputError, match="^parent: got 'p'; accepted: a run that starts from public weights"):
        statement(child)


def test_rates_of_a_mean_are_refused() -> None:
    run = Schedule.of("m", steps=2, noise_multiplier=4.0, adjacency="add_remove", divisor=100.0)
    with pytest.raises(InvalidInputError, match="^divisor: got 100.0; accepted: 1"):
        statement(run)
