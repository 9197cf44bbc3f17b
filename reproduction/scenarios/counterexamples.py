"""Two further counterexamples to merged_trajectory for ordinary DP-SGD; the first is logistic regression (logistic.py).

Guarantees: only the merged model is looked at. The attack on hidden states that are revealed rests on counted errors
alone; of the contracting runs' average, which is Gaussian by construction, μ is also known exactly.
"""

from __future__ import annotations

import numpy as np

from dpmerge.auditing.attacks import Array, Attack, in_batches
from dpmerge.auditing.claims import average_claims
from dpmerge.auditing.outputs import Part
from dpmerge.auditing.scenario import DELTA, Scenario
from dpmerge.auditing.schedules import Schedule
from dpmerge.auditing.threat_models import merged
from reproduction.scenarios.adversarial_losses import linear_mu

OTHERS = 10**7
_DEPTH, _WIDTH = 0.4, 40.0


def written_down(
    rng: np.random.Generator, trials: int, present: bool, weights: Array, noise_multipliers: Array
) -> tuple[Array, Array]:
    """Two steps of two runs with C = η = 1, in which the other records write down what the hidden models were.

    The record has loss θ₀, or −θ₀ in the other world, each of 10⁷ others 0.4·(θ₁(cos(θ₀/40) − 1) + θ₂ sin(θ₀/40)). At
    the start these have no gradient; after one step theirs is shorter than 1, so that nothing is clipped, and a run
    ends with 0.4·10⁷·(1 − cos(θ₀/40), −sin(θ₀/40)), and some noise, in θ₁ and θ₂. What is returned is read off these
    two coordinates of the merged model: Σ λ_i (cos, sin)(θ₀/40), with an error of some millionths.
    """
    first = noise_multipliers * rng.standard_normal((3, trials, 2))  # three coordinates after the first step
    first[0] -= 1 if present else -1
    noise = first[1:] + noise_multipliers * rng.standard_normal((2, trials, 2))
    turned = first[0] / _WIDTH
    across, up = np.array([np.cos(turned), np.sin(turned)]) @ weights - noise @ weights / (_DEPTH * OTHERS)
    return across, up


def read_back(across: Array, up: Array, weights: Array, noise_multipliers: Array) -> Array:
    """The log-likelihood ratio of the hidden models that wrote this.

    (across, up) is a sum of two arrows of lengths λ₁ and λ₂: there are two ways to draw them, mirrored, equally likely.
    """
    long, short = weights
    square = across**2 + up**2
    angle, length = np.arctan2(up, across), np.sqrt(square)
    one = np.arccos(np.clip((long**2 + square - short**2) / (2 * long * length), -1, 1))
    other = np.arctan2(long * np.sin(one), length - long * np.cos(one))
    precisions = 1 / (2 * noise_multipliers**2)
    ways = [_WIDTH * np.array(pair) for pair in ((angle + one, angle - other), (angle - one, angle + other))]
    with_it, without = (np.logaddexp(*(-precisions @ (hidden - centre) ** 2 for hidden in ways)) for centre in (-1, 1))
    return np.asarray(with_it - without)


def revealing(weights: Array, noise_multipliers: Array) -> Attack:
    """The attack on the hidden states that the other records reveal."""

    def scores(rng: np.random.Generator, trials: int, present: bool) -> Array:
        seen = written_down(rng, trials, present, weights, noise_multipliers)
        return read_back(*seen, weights, noise_multipliers)

    return Attack(play=in_batches(scores), draws=10)


WEIGHTS, NOISE_MULTIPLIERS = np.array([0.9, 0.1]), np.array([4.0, 0.5])
CONTRACTIONS = (0.9, 1.0)


def revealed_parts() -> list[Part]:
    """The runs whose hidden states are revealed."""
    return [
        (Schedule.of(f"run-{k + 1}", steps=2, noise_multiplier=float(noise), adjacency="replace_one"), 2, float(weight))
        for k, (noise, weight) in enumerate(zip(NOISE_MULTIPLIERS, WEIGHTS, strict=True))
    ]


def contracted_parts(steps: int = 100) -> list[Part]:
    """The runs that forget at different speeds."""
    stretched = zip((10.0, 1.0), CONTRACTIONS, strict=True)
    return [
        (
            Schedule.of(
                f"run-{k + 1}",
                steps=steps,
                noise_multiplier=noise,
                adjacency="add_remove",
                stretches=np.full(steps, factor),
            ),
            steps,
            0.5,
        )
        for k, (noise, factor) in enumerate(stretched)
    ]


SCENARIOS = (
    Scenario(
        name="revealed_state",
        words=(
            "Two runs of two steps on smooth losses are averaged. The gradients of the other records in the second "
            "step depend on what the first made of each hidden model; the attacker reads both back from the average."
        ),
        attack=lambda: revealing(WEIGHTS, NOISE_MULTIPLIERS),
        claims=lambda: average_claims(revealed_parts(), DELTA, false={"merged_trajectory"}),
        trials=2_000_000,
        note="The second counterexample of theory 4.4.",
    ),
    Scenario(
        name="contraction",
        words=(
            "Two runs of 100 steps with constant gradients are averaged; in one of them every step shrinks the model "
            "by a tenth, in the other it does not. The attacker sees the average alone."
        ),
        attack=lambda: merged(contracted_parts(), 0.0, stretches=CONTRACTIONS),
        claims=lambda: average_claims(contracted_parts(), DELTA, false={"merged_trajectory"}),
        note=(
            "The third counterexample of theory 4.4: all is linear, and the true μ is "
            f"{linear_mu(contracted_parts(), CONTRACTIONS):.2f}."
        ),
    ),
)
