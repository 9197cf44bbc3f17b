"""Averages of runs on smooth convex losses, of which nothing but the (noised) merged model is seen: hidden_state.

Guarantees: the losses are convex, and no update pulls two hidden states further apart than is claimed of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from dpmerge.auditing.attacks import Array, Attack
from dpmerge.auditing.claims import average_claims, logistic_loss
from dpmerge.auditing.findings import Claim
from dpmerge.auditing.outputs import Part
from dpmerge.auditing.scenario import DELTA, Scenario, two_runs
from dpmerge.auditing.threat_models import merged
from dpmerge.auditing.worst_case_lipschitz import worst
from reproduction.scenarios.adversarial_losses import Logistic, Quadratic, linear_mu
from reproduction.scenarios.averages import PEAK_RATE, warm_up_and_decay

STEP_NOISE = PEAK_RATE * 64.0
"""What a step at the peak rate adds to the first of the two runs with the paper's schedule."""


def paper_schedule() -> list[Part]:
    """The example of theory 9.1."""
    return two_runs(
        (0.95, 0.05),
        {"noise_multiplier": 64.0},
        {"noise_multiplier": 32.0},
        steps=20,
        rates=warm_up_and_decay(20),
        adjacency="replace_one",
        stretches=np.ones(20),
    )


def rotated(curvatures: Sequence[float], seed: int) -> tuple[Array, Array]:
    """A Hessian with these curvatures in directions drawn at random, and those directions, one a column."""
    size = len(curvatures)
    turned, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((size, size)))
    return (turned * np.asarray(curvatures)) @ turned.T, turned


def bowl() -> Quadratic:
    """Losses with a flat direction, and a record that pulls in a direction drawn at random."""
    hessian, directions = rotated((0.0, 0.1, 0.3, 0.6, 1.0), seed=1)
    drawn = np.random.default_rng(2).standard_normal(len(directions))
    return Quadratic(hessian=hessian, direction=drawn / np.linalg.norm(drawn))


def steep_bowl() -> Quadratic:
    """Strongly convex losses, and a record that pulls where they forget most slowly."""
    hessian, directions = rotated((0.05, 0.1, 0.2, 0.4, 0.6), seed=3)
    return Quadratic(hessian=hessian, direction=directions[:, 0])


def on_quadratic(losses: Quadratic, rates: tuple[float, float], steps: int) -> list[Part]:
    """Two runs of different rate on these losses."""
    first, second = (
        {"noise_multiplier": noise, "rates": rate, "stretches": losses.stretches(np.full(steps, rate))}
        for noise, rate in zip((10.0, 5.0), rates, strict=True)
    )
    return two_runs((0.5, 0.5), first, second, steps=steps, adjacency="replace_one")


def survey() -> Logistic:
    """Thirty records of one feature between −1 and 1; the last has the largest, and its label is 1 or 0."""
    rng = np.random.default_rng(4)
    features = rng.uniform(-1, 1, 29)
    labels = (rng.random(29) < 1 / (1 + np.exp(-2 * features))).astype(float)
    return Logistic(features=features, labels=labels, record=(1.0, 1.0), instead=(1.0, 0.0))


def on_logistic(losses: Logistic, steps: int) -> list[Part]:
    """Two runs at half the largest rate that pulls no two states apart, 2/(nβ) with β = R²/4."""
    rate = 4 / (losses.records * losses.feature_bound**2)
    return two_runs(
        (0.6, 0.4),
        {"noise_multiplier": 8.0},
        {"noise_multiplier": 4.0},
        steps=steps,
        clip_norm=0.1,
        rates=rate,
        adjacency="replace_one",
    )


def _scenario(
    name: str,
    words: str,
    parts: Callable[[], list[Part]],
    attack: Callable[[list[Part]], Attack],
    *,
    release_noise: float = 0.0,
    claims: Callable[[], tuple[Claim, ...]] | None = None,
    trials: int = 1_000_000,
    note: str = "",
) -> Scenario:
    return Scenario(
        name=name,
        words=words,
        attack=lambda: attack(parts()),
        claims=claims or (lambda: average_claims(parts(), DELTA, release_noise=release_noise)),
        trials=trials,
        note=note,
    )


def _linear(name: str, words: str, release_noise: float) -> Scenario:
    return _scenario(
        name,
        words,
        paper_schedule,
        lambda parts: merged(parts, release_noise, stretches=(1.0, 1.0)),
        release_noise=release_noise,
        trials=2_000_000,
        note=f"The true μ is {linear_mu(paper_schedule(), (1.0, 1.0), release_noise):.4f}.",
    )


def _bowl(name: str, words: str, losses: Quadratic, parts: list[Part], release_noise: float) -> Scenario:
    return _scenario(
        name,
        words,
        lambda: parts,
        lambda parts: losses.attack(parts, release_noise),
        release_noise=release_noise,
        trials=300_000,
        note=f"The true μ is {losses.mu(parts, release_noise):.3f}.",
    )


def _survey_claims(steps: int, release_noise: float) -> tuple[Claim, ...]:
    losses = survey()
    smoothness = logistic_loss(losses.feature_bound, losses.records)
    return average_claims(on_logistic(losses, steps), DELTA, release_noise=release_noise, smoothness=smoothness)


SCENARIOS = (
    _linear(
        "linear_losses",
        "The paper's schedule on linear losses; the average is released with the noise of one step at the peak rate.",
        STEP_NOISE,
    ),
    _linear(
        "linear_losses_noisier",
        "The paper's schedule on linear losses; the average is released with twice the noise of one step at the peak "
        "rate, enough for hidden_state to be exact.",
        2 * STEP_NOISE,
    ),
    _linear(
        "linear_losses_silent",
        "The paper's schedule on linear losses; the average is released as it is.",
        0.0,
    ),
    _scenario(
        "forgetting",
        "The paper's schedule on linear losses. By public factors, as weight decay has them, the run with more noise "
        "forgets its past as fast as suits the attacker; the average is released as it is.",
        paper_schedule,
        lambda parts: merged(parts, 0.0, stretches=worst(parts, 0.0)),
        claims=lambda: average_claims(paper_schedule(), DELTA, false={"merged_trajectory"}),
        trials=2_000_000,
    ),
    _bowl(
        "quadratic",
        "Two runs of different rate on quadratic losses in five dimensions; the record pulls in a random direction.",
        bowl(),
        on_quadratic(bowl(), (1.0, 0.5), 20),
        10.0,
    ),
    _bowl(
        "contracting",
        "Two runs of different rate on strongly convex quadratic losses, which forget at different speeds; the record "
        "pulls where that is slowest.",
        steep_bowl(),
        on_quadratic(steep_bowl(), (1.0, 3.0), 30),
        10.0,
    ),
    _scenario(
        "clipped_glm",
        "Two runs of logistic regression on thirty records of one feature, their gradients clipped; of one record the "
        "label differs.",
        lambda: on_logistic(survey(), 6),
        lambda parts: survey().attack(parts, 0.1),
        claims=lambda: _survey_claims(6, 0.1),
        trials=600_000,
        note="Integrated on a grid, the true ε is 3.52.",
    ),
)
