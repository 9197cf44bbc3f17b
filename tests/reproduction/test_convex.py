"""Smooth convex losses: hidden_state is never violated, is reached where it is exact, and the losses are as stated."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from dpmerge.auditing.claims import average_claims, logistic_loss, mechanism
from dpmerge.auditing.estimate import estimate_epsilon
from dpmerge.auditing.findings import Claim
from dpmerge.auditing.outputs import Part
from dpmerge.auditing.scenario import DELTA, Scenario
from dpmerge.auditing.schedules import Schedule
from dpmerge.errors import InvalidInputError
from oracle import affine_chains
from reproduction.scenarios import convex
from reproduction.scenarios.adversarial_losses import Logistic, Quadratic, linear_mu
from reproduction.scenarios.convex import on_logistic, on_quadratic, paper_schedule, rotated, steep_bowl, survey

SCENARIOS = {scenario.name: scenario for scenario in convex.SCENARIOS}
TIGHT = {"linear_losses", "linear_losses_noisier", "forgetting", "contracting"}


@pytest.mark.parametrize("scenario", convex.SCENARIOS, ids=lambda scenario: scenario.name)
def test_hidden_state_is_not_violated(scenario: Scenario) -> None:
    found = scenario.play(trials=400_000 if scenario.trials > 10**6 else 50_000, confidence=0.99, seed=1)
    verdicts = {f.claim.by: f.verdict for f in found.findings}
    assert verdicts["hidden_state"] == ("tight" if scenario.name in TIGHT else "consistent")
    assert found.as_theory_says
    assert all(f.claim.proved for f in found.findings if f.claim.by != "merged_trajectory")


def test_claims_on_the_example_of_the_theory_have_its_figures() -> None:
    claimed = {name: {c.by: c.value for c in SCENARIOS[name].claims()} for name in ("linear_losses", "forgetting")}
    assert claimed["linear_losses"]["hidden_state"] == pytest.approx(0.427, abs=5e-4)
    assert claimed["linear_losses"]["merged_trajectory"] == pytest.approx(0.519, abs=5e-4)
    assert claimed["forgetting"]["hidden_state"] == pytest.approx(0.945, abs=5e-4)


def hidden_state_of(parts: list[Part], release_noise: float, **facts: Any) -> Claim:
    [claim] = average_claims(parts, DELTA, release_noise=release_noise, theorems=("hidden_state",), **facts)
    assert claim.proved
    assert claim.mu is not None
    return claim


def test_hidden_state_is_exact_for_linear_losses_with_noise_and_for_strongly_convex_ones() -> None:
    """With twice a step's noise for linear losses, and for the strongly convex ones, attack and proof meet."""
    exact = linear_mu(paper_schedule(), (1.0, 1.0), 512.0)
    assert hidden_state_of(paper_schedule(), 512.0).mu == pytest.approx(exact, rel=1e-9)
    parts = on_quadratic(steep_bowl(), (1.0, 3.0), 30)
    assert hidden_state_of(parts, 10.0).mu == pytest.approx(steep_bowl().mu(parts, 10.0), rel=1e-9)


def random_quadratic(rng: np.random.Generator) -> tuple[Quadratic, list[Part], float]:
    """Random curvatures, direction, rates (some beyond 1/h, so that states flip over), lengths and weights."""
    size = int(rng.integers(1, 6))
    hessian, _ = rotated(rng.uniform(0, 1, size).tolist(), int(rng.integers(10**6)))
    direction = rng.standard_normal(size)
    losses = Quadratic(hessian=hessian, direction=direction / np.linalg.norm(direction))
    parts: list[Part] = []
    for k, weight in enumerate(rng.dirichlet(np.ones(int(rng.integers(1, 4)))).tolist()):
        steps = int(rng.integers(1, 9))
        rates = rng.uniform(0.1, 2.2, steps)
        run = Schedule.of(
            f"run-{k}",
            steps=steps,
            noise_multiplier=rng.uniform(1, 10, steps).tolist(),
            clip_norm=float(rng.uniform(0.5, 2)),
            rates=rates.tolist(),
            adjacency="replace_one",
            stretches=losses.stretches(rates),
        )
        parts.append((run, steps, weight))
    return losses, parts, float(rng.choice([0.0, rng.uniform(0, 5)]))


def test_random_quadratic_losses_cost_no_more_than_hidden_state_proves() -> None:
    """The exact μ never exceeds what hidden_state proves; some cases are attacked as well."""
    rng = np.random.default_rng(5)
    closest = 0.0
    for case in range(60):
        losses, parts, release_noise = random_quadratic(rng)
        claim = hidden_state_of(parts, release_noise)
        exact = losses.mu(parts, release_noise)
        assert claim.mu is not None
        assert exact <= claim.mu * (1 + 1e-9)
        closest = max(closest, exact / claim.mu)
        if case < 20:
            attack = losses.attack(parts, release_noise)
            found = estimate_epsilon(attack, delta=DELTA, trials=4000, confidence=0.999, seed=case)
            assert claim.value is not None
            assert found.bound <= claim.value
            assert found.mu is not None
            assert found.mu.low < exact < found.mu.high
    assert closest > 0.99


def test_the_moments_of_quadratic_losses_agree_with_the_oracle() -> None:
    """All runs of one length, so that the oracle's stacked trajectories apply."""
    rng = np.random.default_rng(8)
    hessian, _ = rotated((0.0, 0.4, 1.0), 9)
    direction = np.array([0.6, 0.0, 0.8])
    losses = Quadratic(hessian=hessian, direction=direction)
    rates, noise = rng.uniform(0.2, 1.5, (2, 4)), rng.uniform(1, 5, (2, 4))
    parts = [
        (
            Schedule.of(
                "run", steps=4, noise_multiplier=noise[i].tolist(), rates=rates[i].tolist(), adjacency="replace_one"
            ),
            4,
            weight,
        )
        for i, weight in enumerate((0.3, 0.7))
    ]
    maps = np.eye(3) - rates[:, :, None, None] * hessian
    shifts = 2 * rates[:, :, None] * direction
    expected = affine_chains.matrix_mu(maps, shifts, rates * noise, (0.3, 0.7), release_noise=1.5)
    assert losses.mu(parts, 1.5) == pytest.approx(expected, rel=1e-10)
    assert losses.stretches(rates[0]) == pytest.approx([max(1.0, abs(1 - rate)) for rate in rates[0]])


def loss(feature: float, label: float, weight: np.ndarray) -> np.ndarray:
    """Cross-entropy of a label, as one would write it down."""
    margin = feature * weight * (1 if label else -1)
    return np.log1p(np.exp(-margin))


@pytest.mark.parametrize("present", [True, False])
def test_the_push_of_logistic_regression_is_the_sum_of_clipped_slopes(present: bool) -> None:
    losses, weight, width = survey(), np.linspace(-4, 4, 41), 1e-5
    records = [*zip(losses.features, losses.labels, strict=True), (1.0, 1.0 if present else 0.0)]
    assert len(records) == losses.records == 30
    total = np.zeros_like(weight)
    for feature, label in records:
        slope = (loss(feature, label, weight + width) - loss(feature, label, weight - width)) / (2 * width)
        total -= np.clip(slope, -0.1, 0.1)
    assert losses.push(weight, 0.1, present) == pytest.approx(total, abs=1e-8)


def density(losses: Logistic, part: Part, present: bool) -> tuple[np.ndarray, np.ndarray]:
    """Of a run's last weight, on a grid: from step to step, integrated over where the weight was before."""
    run, steps, _ = part
    spread = (run.rates * run.clip_norms * run.noise_multipliers)[:steps]
    drift = losses.records * float(np.sum((run.rates * run.clip_norms)[:steps]))
    grid = np.linspace(-1, 1, 1201) * (8 * float(np.sqrt(np.sum(spread**2))) + drift)
    width = grid[1] - grid[0]
    assert width < 0.7 * spread.min(), "or the sum is no integral"
    start = losses.push(np.zeros(1), float(run.clip_norms[0]), present)
    found = norm.pdf(grid, run.rates[0] * start[0], spread[0])
    for step in range(1, steps):
        moved = grid + run.rates[step] * losses.push(grid, float(run.clip_norms[step]), present)
        kernel = np.exp(-0.5 * ((grid[:, None] - moved) / spread[step]) ** 2) / (spread[step] * np.sqrt(2 * np.pi))
        found = kernel @ found * width
    return grid, found


def merged_densities(losses: Logistic, parts: list[Part], release_noise: float) -> tuple[np.ndarray, list[np.ndarray]]:
    """The law of the merged weight without the record and with it: characteristic functions multiply."""
    laws = []
    for present in (False, True):
        runs = [(weight, *density(losses, (run, steps, weight), present)) for run, steps, weight in parts]
        reach = 8 * release_noise + sum(weight * float(own[-1]) for weight, own, _ in runs)
        grid = np.linspace(-reach, reach, 1201)
        frequencies = 2 * np.pi * np.fft.fftfreq(1201, grid[1] - grid[0])
        spectrum = np.exp(-0.5 * (release_noise * frequencies) ** 2).astype(complex)
        for weight, own, found in runs:
            spectrum *= np.exp(-1j * weight * np.outer(frequencies, own)) @ found * (own[1] - own[0])
        back = np.exp(1j * np.outer(grid, frequencies)) @ spectrum * frequencies[1] / (2 * np.pi)
        assert np.sum(back.real) * (grid[1] - grid[0]) == pytest.approx(1, abs=1e-9)
        laws.append(np.maximum(back.real, 0))
    return grid, laws


def exact_epsilon(grid: np.ndarray, laws: list[np.ndarray]) -> float:
    without, within = laws

    def excess(epsilon: float) -> float:
        ways = (within - np.exp(epsilon) * without, without - np.exp(epsilon) * within)
        return max(float(np.sum(np.maximum(way, 0)) * (grid[1] - grid[0])) for way in ways) - DELTA

    return float(brentq(excess, 0, 30)) if excess(0) > 0 else 0.0


def test_the_simulated_survey_follows_the_densities_on_a_grid() -> None:
    """The simulation has the right law; the bound it shows is below the truth, and the truth below the theorem."""
    losses = survey()
    parts = on_logistic(losses, 6)
    grid, laws = merged_densities(losses, parts, 0.1)
    truth = exact_epsilon(grid, laws)
    for present, law in zip((False, True), laws, strict=True):
        weights = losses.attack(parts, 0.1).play(np.random.default_rng(10), 50_000, present).scores
        ladder = np.cumsum(law) * (grid[1] - grid[0])
        for share in (0.001, 0.1, 0.5, 0.9, 0.999):
            cut = np.interp(share, ladder, grid + (grid[1] - grid[0]) / 2)
            assert np.mean(weights < cut) == pytest.approx(share, abs=4 * np.sqrt(share * (1 - share) / 50_000))
    assert f"the true ε is {truth:.2f}" in SCENARIOS["clipped_glm"].note
    claims = {claim.by: claim for claim in SCENARIOS["clipped_glm"].claims()}
    found = SCENARIOS["clipped_glm"].play(trials=50_000, confidence=0.99, seed=3).findings[0].estimate
    assert 0.5 * truth < found.bound < truth
    claim = hidden_state_of(parts, 0.1, smoothness=logistic_loss(losses.feature_bound, losses.records))
    assert claims["hidden_state"] == claim
    assert claim.value is not None
    assert 0.98 * claim.value < truth < claim.value
    # At half the largest rate no update pulls states apart, whatever the thirty records are.
    smoothness = logistic_loss(losses.feature_bound, losses.records)
    assert mechanism(parts[0][0], smoothness).lipschitz(6) == pytest.approx(np.ones(6))
    # At three times that rate the steepest sum of thirty losses, 30/4, throws a state over to −2 times where it was.
    faster = replace(parts[0][0], rates=3 * parts[0][0].rates)
    assert mechanism(faster, smoothness).lipschitz(6) == pytest.approx(np.full(6, 2.0))


def random_logistic(rng: np.random.Generator) -> tuple[Logistic, list[Part], float]:
    """Random records, rates up to and beyond the largest harmless one, clip norms that act and that do not."""
    count = int(rng.integers(3, 20))
    bound = float(rng.uniform(0.5, 3))
    features = rng.uniform(-bound, bound, count)
    replaced = bool(rng.integers(2))
    losses = Logistic(
        features=features,
        labels=rng.integers(0, 2, count).astype(float),
        record=(bound, 1.0),
        instead=(bound, 0.0) if replaced else None,
    )
    parts: list[Part] = []
    for k, weight in enumerate(rng.dirichlet(np.ones(2)).tolist()):
        steps = int(rng.integers(2, 5))
        run = Schedule.of(
            f"run-{k}",
            steps=steps,
            noise_multiplier=float(rng.uniform(3, 8)),
            clip_norm=bound * float(rng.uniform(0.05, 0.6)),
            rates=(8 / (losses.records * bound**2) * rng.uniform(0.3, 1.3, steps)).tolist(),
            adjacency="replace_one" if replaced else "add_remove",
        )
        parts.append((run, steps, weight))
    spread = max(float((run.rates * run.clip_norms * run.noise_multipliers).max()) for run, _, _ in parts)
    return losses, parts, float(rng.choice([0.3, 1.0])) * spread


def test_random_logistic_regressions_cost_no_more_than_hidden_state_proves() -> None:
    """The exact ε, integrated on a grid, is never above what hidden_state proves, nor is what an attack shows."""
    rng = np.random.default_rng(12)
    closest = 0.0
    for case in range(8):
        losses, parts, release_noise = random_logistic(rng)
        claim = hidden_state_of(parts, release_noise, smoothness=logistic_loss(losses.feature_bound, losses.records))
        truth = exact_epsilon(*merged_densities(losses, parts, release_noise))
        attack = losses.attack(parts, release_noise)
        found = estimate_epsilon(attack, delta=DELTA, trials=4000, confidence=0.999, seed=case)
        assert claim.value is not None
        assert found.bound <= truth <= claim.value
        closest = max(closest, truth / claim.value)
    assert closest > 0.6


@pytest.mark.parametrize(
    ("fact", "value"),
    [
        ("aggregate", True), ("sampling_rate", 0.5), ("momentum", 0.9), ("weight_decay", 0.1), ("optimizer", "adam"),
    ],
)  # fmt: skip
def test_runs_that_a_loss_is_not_made_for_are_refused(fact: str, value: object) -> None:
    facts: dict[str, Any] = {"adjacency": "replace_one", fact: value}
    parts = [(Schedule.of("run", steps=3, noise_multiplier=1.0, **facts), 3, 1.0)]
    named = "sampling" if fact == "sampling_rate" else fact
    for losses in (survey(), steep_bowl()):
        with pytest.raises(InvalidInputError, match=rf"^run\.{named}: got .* accepted: .* what this loss is made for"):
            losses.attack(parts)


def test_the_survey_under_add_remove_is_refused() -> None:
    parts = [(Schedule.of("run", steps=3, noise_multiplier=1.0, adjacency="add_remove"), 3, 1.0)]
    with pytest.raises(InvalidInputError, match=r"^run\.adjacency"):
        survey().attack(parts)
