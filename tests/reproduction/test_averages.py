"""Averages of runs: theorems hold where theory says so and fail where it does not, and the simulated runs are what
they are said to be."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from dpmerge.auditing.claims import average_claims
from dpmerge.auditing.outputs import Part
from dpmerge.auditing.scenario import DELTA, Scenario, two_runs
from dpmerge.auditing.schedules import Schedule
from dpmerge.errors import InvalidInputError
from oracle import affine_chains, gaussian_mp
from reproduction.scenarios import averages
from reproduction.scenarios.accounting_claims import amplified_claim
from reproduction.scenarios.adversarial_losses import latched, linear_mu

SCENARIOS = {scenario.name: scenario for scenario in averages.SCENARIOS}
PARTS: dict[str, Callable[[], list[Part]]] = {
    name: getattr(averages, name) for name in SCENARIOS if hasattr(averages, name)
}

TIGHT = {
    "one_step": {"merged_trajectory", "last_step"},
    "aggregate": {"merged_trajectory"},
    "aggregate_unequal_lengths": {"merged_trajectory", "merged_trajectory_prepended"},
    "shared_affine": {"merged_trajectory"},
    "adversarial": {"last_step", "joint_release"},
}


@pytest.mark.parametrize("scenario", averages.SCENARIOS, ids=lambda scenario: scenario.name)
def test_claims_are_violated_exactly_where_theory_says(scenario: Scenario) -> None:
    found = scenario.play(trials=50_000 if scenario.trials < 10**6 else 100_000, confidence=0.99, seed=1)
    assert {f.claim.by for f in found.findings if f.verdict == "violated"} == {
        f.claim.by for f in found.findings if f.claim.false_here
    }
    assert {f.claim.by for f in found.findings if f.verdict == "tight"} == TIGHT.get(scenario.name, set())
    assert not any(f.claim.proved and f.claim.false_here for f in found.findings), "what is proved is true"


def costs(name: str) -> dict[str, Any]:
    return {claim.by: claim.value for claim in SCENARIOS[name].claims()}


def proved(name: str) -> dict[str, bool]:
    return {claim.by: claim.proved for claim in SCENARIOS[name].claims()}


def test_merged_trajectory_is_proved_for_one_step_clipped_totals_and_shared_maps_alone() -> None:
    """merged_trajectory is a proof for one step, clipped totals and a shared affine map, and for nothing else here."""
    names = [name for name in SCENARIOS if proved(name)["merged_trajectory"]]
    assert names == [
        "one_step", "one_step_poisson", "aggregate", "aggregate_unequal_lengths", "aggregate_poisson", "shared_affine",
        "shared_affine_contracting",
    ]  # fmt: skip
    assert all(proved(name)["joint_release"] for name in SCENARIOS if name != "aggregate_poisson")


def merged_trajectory_mu(name: str, k: float, *, prepended: bool = False) -> float:
    """√Σ_t (Σ ληkC)² / Σ (ληCσ)², run by run and step by step."""
    parts = PARTS[name]()
    longest = max(step for _, step, _ in parts)
    total = 0.0
    for place in range(longest):
        shift = variance = 0.0
        for run, step, weight in parts:
            own = place - (longest - step) if prepended else place
            if 0 <= own < step:
                reach = weight * run.rates[own] * run.clip_norms[own]
                shift += k * reach
                variance += (reach * run.noise_multipliers[own]) ** 2
        total += shift**2 / variance
    return float(np.sqrt(total))


@pytest.mark.parametrize("name", [name for name in PARTS if name != "one_step_poisson"])
def test_claims_by_merged_trajectory_are_the_papers_formula(name: str) -> None:
    found = {claim.by: claim for claim in SCENARIOS[name].claims()}
    mu = merged_trajectory_mu(name, 2.0)  # of clipped totals and replaced records alike
    assert found["merged_trajectory"].mu == pytest.approx(mu, rel=1e-12)
    assert found["merged_trajectory"].value == pytest.approx(float(gaussian_mp.epsilon(mu, DELTA)), rel=1e-8)


def mixture(parts: list[Part], k: float) -> tuple[np.ndarray, np.ndarray, float]:
    """Means and chances of one merged step with the record, over which runs drew it; and its deviation."""
    reach = np.array([weight * float(run.rates[0] * run.clip_norms[0]) for run, _, weight in parts])
    rates = np.array([float(run.sampling_rates[0]) for run, _, _ in parts])
    noise = np.array([float(run.noise_multipliers[0]) for run, _, _ in parts])
    drawn = np.array(list(product((0, 1), repeat=len(parts))))
    chances = np.where(drawn, rates, 1 - rates).prod(axis=1)
    return k * drawn @ reach, chances, float(np.sqrt(np.sum((reach * noise) ** 2)))


def mixture_epsilon(means: np.ndarray, chances: np.ndarray, deviation: float, delta: float) -> float:
    """The exact ε of N(0, s²) against Σ p_j N(m_j, s²), both ways: integrated on a fine grid."""
    x = np.linspace(-12 * deviation, float(means.max()) + 12 * deviation, 400_001)
    without = norm.pdf(x, 0, deviation)
    within = norm.pdf(x[:, None], means, deviation) @ chances

    def excess(epsilon: float) -> float:
        ways = (within - np.exp(epsilon) * without, without - np.exp(epsilon) * within)
        return max(float(np.trapezoid(np.maximum(way, 0), x)) for way in ways) - delta

    return float(brentq(excess, 0, 50, xtol=1e-9))


def test_one_sampled_step_is_a_mixture_of_gaussians() -> None:
    exact = mixture_epsilon(*mixture(averages.one_step_poisson(), 1.0), DELTA)
    claimed = costs("one_step_poisson")
    assert exact <= claimed["merged_trajectory"] == pytest.approx(exact, rel=1e-3)
    assert claimed["joint_release"] > claimed["merged_trajectory"]
    shown = SCENARIOS["one_step_poisson"].play(trials=1_000_000, confidence=0.99, seed=2).findings[0].estimate
    assert 0.6 * exact < shown.bound < exact
    assert amplified_claim(averages.one_step_poisson(), DELTA).value == pytest.approx(exact, rel=1e-3)


def test_amplification_composes_mixtures_of_totals_turned_around() -> None:
    """One of its steps, k = 2, against quadrature; and a hundred cost more than one and less than all full batches."""
    runs = {"first": {"noise_multiplier": 0.1}, "second": {"noise_multiplier": 10.0}}
    facts: dict[str, Any] = {"sampling_rate": 0.1, "adjacency": "add_remove", "aggregate": True}
    once = two_runs((0.5, 0.5), **runs, steps=1, **facts)
    exact = mixture_epsilon(*mixture(once, 2.0), DELTA)
    assert amplified_claim(once, DELTA).value == pytest.approx(exact, rel=1e-3)
    full, amplified = costs("aggregate_poisson").values()
    assert exact < amplified < full


def reference_tally(
    rng: np.random.Generator, trials: int, present: bool, run: Schedule, steps: int
) -> tuple[np.ndarray, float]:
    """The loss as stated: gradients of all others and of the record are added up, and the total is clipped."""
    weights, longest = np.zeros((2, trials)), 0.0
    for step in range(steps):
        drawn = rng.random(trials) < run.sampling_rates[step] if present else np.zeros(trials, dtype=bool)
        noise = rng.standard_normal((2, trials))
        for trial in range(trials):
            flag, _ = weights[:, trial]
            up = flag > 0.5
            others = -1e6 * np.array([flag - (1.0 if up else 0.0), -1.0 if up else 1.0])
            record = np.array([1e12, 0.0]) if drawn[trial] and not up else np.zeros(2)
            total = others + record
            total = total / max(1.0, float(np.linalg.norm(total)))
            longest = max(longest, float(np.linalg.norm(total)))
            weights[:, trial] += total + run.noise_multipliers[step] * noise[:, trial]
    return weights[1], longest


@pytest.mark.parametrize("present", [True, False])
def test_the_latch_scores_as_training_with_clipped_totals_does(present: bool) -> None:
    run = Schedule.of("run", steps=30, noise_multiplier=0.2, sampling_rate=0.1, adjacency="add_remove", aggregate=True)
    expected, longest = reference_tally(np.random.default_rng(3), 40, present, run, 30)
    found = latched([(run, 30, 1.0)]).play(np.random.default_rng(3), 40, present).scores
    assert found == pytest.approx(expected, abs=1e-3)
    assert longest <= 1 + 1e-12


def test_without_noise_the_first_draw_turns_the_tally_round() -> None:
    """Drawn first at step G it falls G − 1 times, stands still once and rises T − G times; undrawn it falls T times."""
    steps, rate = 12, 0.2
    run = Schedule.of(
        "run", steps=steps, noise_multiplier=1e-6, sampling_rate=rate, adjacency="add_remove", aggregate=True
    )
    attack = latched([(run, steps, 1.0)])
    assert attack.play(np.random.default_rng(0), 1000, False).scores == pytest.approx(-steps, abs=1e-3)
    trials = 100_000
    tallies = np.round(attack.play(np.random.default_rng(1), trials, True).scores).astype(int)
    first = np.arange(1, steps + 1)
    chances = dict(zip((steps + 1 - 2 * first).tolist(), (rate * (1 - rate) ** (first - 1)).tolist(), strict=True))
    chances[-steps] = (1 - rate) ** steps
    assert set(tallies.tolist()) == set(chances)
    for tally, chance in chances.items():
        assert np.mean(tallies == tally) == pytest.approx(chance, abs=4 * np.sqrt(chance / trials))


def trained_mu(parts: list[Part]) -> float:
    """μ of the average by explicit matrices: (weight, momentum buffer) of each run, mean and covariance."""
    shift = variance = 0.0
    for run, steps, weight in parts:
        mean, covariance = np.zeros(2), np.zeros((2, 2))
        for step in range(steps):
            # buffer ← m·buffer − decay·weight + gradient; weight ← weight + rate·buffer
            rate, m, decay = float(run.rates[step]), run.momentum, run.weight_decay
            matrix = np.array([[1 - rate * decay, rate * m], [-decay, m]])
            enters = np.array([rate, 1.0])
            mean = matrix @ mean + 2 * run.clip_norms[step] * enters
            noise = float(run.clip_norms[step] * run.noise_multipliers[step])
            covariance = matrix @ covariance @ matrix.T + noise**2 * np.outer(enters, enters)
        shift += weight * mean[0]
        variance += weight**2 * covariance[0, 0]
    return float(shift / np.sqrt(variance))


@pytest.mark.parametrize("name", ["aggregate_weight_decay", "aggregate_momentum"])
def test_the_attack_on_decay_and_momentum_finds_the_mu_of_their_matrices(name: str) -> None:
    found = SCENARIOS[name].play(trials=20_000, confidence=0.99, seed=4).findings[0].estimate
    exact = trained_mu(PARTS[name]())
    assert found.mu is not None
    assert found.mu.low < exact < found.mu.high
    assert found.mu.high - found.mu.low < 0.05 * exact


def test_clipped_totals_of_any_lengths_and_rates_cost_no_more_than_is_claimed() -> None:
    """The last model never says more than merged_trajectory claims, whichever way the shorter runs are aligned."""
    rng = np.random.default_rng(6)
    closest = 0.0
    for _ in range(100):
        parts: list[Part] = []
        for k, weight in enumerate(rng.dirichlet(np.ones(int(rng.integers(2, 4)))).tolist()):
            steps = int(rng.integers(1, 9))
            run = Schedule.of(
                f"run-{k}",
                steps=steps,
                noise_multiplier=rng.uniform(1, 20, steps).tolist(),
                clip_norm=float(rng.uniform(0.5, 2)),
                rates=rng.uniform(0.1, 1, steps).tolist(),
                adjacency="add_remove",
                aggregate=True,
            )
            parts.append((run, steps, weight))
        exact = linear_mu(parts, [1.0] * len(parts))
        for claim in average_claims(parts, DELTA, theorems=("merged_trajectory", "merged_trajectory_prepended")):
            assert claim.proved
            assert claim.mu is not None
            assert exact <= claim.mu * (1 + 1e-12)
            closest = max(closest, exact / claim.mu)
    assert closest > 0.95


def test_linear_mu_agrees_with_the_oracle_of_affine_chains() -> None:
    rng = np.random.default_rng(7)
    sensitivities: dict[Any, float] = {"replace_one": 2.0, "add_remove": 1.0}
    for adjacency, k in sensitivities.items():
        parts, chains, factors = [], [], []
        for place, steps in enumerate((5, 3)):
            rates, noise, stretch = (rng.uniform(0.5, 1.5, steps).tolist() for _ in range(3))
            run = Schedule.of(
                f"{place}", steps=steps, noise_multiplier=noise, rates=rates, clip_norm=2.0, adjacency=adjacency
            )
            parts.append((run, steps, (0.3, 0.7)[place]))
            chains.append(affine_chains.Chain(stretch, rates, noise, 2.0))
            factors.append(stretch)
        expected = affine_chains.merged_final_mu(chains, (0.3, 0.7), k, release_noise=0.8)
        assert linear_mu(parts, factors, 0.8) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("fact", "value"),
    [
        ("adjacency", "replace_one"), ("aggregate", False), ("sampling_rate", 1.0), ("momentum", 0.9),
        ("weight_decay", 0.1), ("optimizer", "adam"),
    ],
)  # fmt: skip
def test_a_latch_on_runs_it_is_not_made_for_is_refused(fact: str, value: object) -> None:
    facts: dict[str, Any] = {"adjacency": "add_remove", "aggregate": True, "sampling_rate": 0.1, fact: value}
    run = Schedule.of("run", steps=3, noise_multiplier=1.0, **facts)
    named = "sampling" if fact == "sampling_rate" else fact
    with pytest.raises(InvalidInputError, match=rf"^run\.{named}: got .* accepted: .* what this loss is made for"):
        latched([(run, 3, 1.0)])
