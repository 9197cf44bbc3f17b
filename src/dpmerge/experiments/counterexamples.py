"""Runs made to break what merged_trajectory assumes, and the example where release noise restores a proof.

Guarantees: what is true of them is a closed form, or a lower bound that an attack on the average alone has shown with
95 % confidence, its threshold fixed on other trials. What theorems say of them is their own number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dpmerge.experiments.mnist import PEAK_RATE
from dpmerge.experiments.presets import DELTA
from dpmerge.experiments.statements import CONFIDENCE
from dpmerge.experiments.training import warm_up_and_decay
from dpmerge.experiments.workshop import Workshop
from dpmerge.planning.sweeps import THEOREM_NAMES
from dpmerge.privacy import (
    THEOREMS,
    Adjacency,
    Checkpoint,
    DeclaredLipschitz,
    DpSgd,
    GaussianRelease,
    LinearCombination,
    StepBlock,
    gaussian_epsilon,
    linear_mus,
)
from dpmerge.privacy.domain import Array


def step_noises(checkpoint: Checkpoint) -> Array:
    """The standard deviation of the noise that each step added to the weights."""
    assert isinstance(checkpoint.run, DpSgd | GaussianRelease), "its noise is known step by step"
    return checkpoint.run.moves(checkpoint.step).noise


def _run(rates: Sequence[float], sigma: float, adjacency: Adjacency, lipschitz: float | None = None) -> DpSgd:
    """A run of clip norm 1; `lipschitz` declares how far its updates pull two states apart."""
    smoothness = None if lipschitz is None else DeclaredLipschitz(factors=lipschitz)
    block = StepBlock(steps=len(rates), noise_multiplier=sigma, clip_norm=1.0, learning_rate=tuple(rates))
    return DpSgd(blocks=[block], adjacency=adjacency, smoothness=smoothness)


def _mus(runs: Sequence[DpSgd], weights: Sequence[float], release_noise: float = 0.0) -> dict[str, float | None]:
    combination = LinearCombination.of_runs(runs, weights, release_noise=release_noise)
    return {name: THEOREMS[name](combination).mu for name in THEOREM_NAMES}


def _epsilons(mus: dict[str, float | None]) -> dict[str, float | None]:
    return {name: None if mu is None else float(gaussian_epsilon(mu, DELTA)) for name, mu in mus.items()}


def schedule() -> dict[str, Any]:
    """The example of docs/theory.md: the paper's schedule, convex losses, σ = (64, 32), weights (0.95, 0.05)."""
    rates, weights = warm_up_and_decay(PEAK_RATE, 20), (0.95, 0.05)
    runs = [_run(rates, sigma, Adjacency.REPLACE_ONE, lipschitz=1.0) for sigma in (64.0, 32.0)]
    noise = float(step_noises(Checkpoint(runs[0], runs[0].steps)).max())
    silent, noised = (_epsilons(_mus(runs, weights, tau)) for tau in (0.0, noise))
    return {**silent, "release_noise": noise, "hidden_state with release noise": noised["hidden_state"]}


def contraction() -> dict[str, Any]:
    """Constant gradients and states that contract by 0.9 in one run and not at all in the other: μ of their average.

    What is true has a closed form, μ = Σ λ_iA_i / √Σ λ_i²B_i², because everything is linear.
    """
    factors, sigmas, weights, steps = (0.9, 1.0), (10.0, 1.0), (0.5, 0.5), 100
    runs = [
        _run([1.0] * steps, sigma, Adjacency.ADD_REMOVE, lipschitz=factor)
        for sigma, factor in zip(sigmas, factors, strict=True)
    ]
    mus = {"true": float(linear_mus(runs, [weights])[0]), **_mus(runs, weights)}
    return {"mus": mus, "epsilons": _epsilons(mus)}


def revealed(workshop: Workshop) -> dict[str, Any]:
    """Two steps of two runs on smooth losses, in which the other records write down what the hidden models were.

    The record that differs has loss ±θ₀, each of 10⁷ others 0.4·(θ₁(cos(θ₀/40) − 1) + θ₂ sin(θ₀/40)). An attack that
    sees only the average finds both hidden θ₀ in its coordinates 1 and 2; its errors bound ε from below.
    """
    weights, sigmas = np.array([0.9, 0.1]), np.array([4.0, 0.5])
    runs = [_run([1.0, 1.0], sigma, Adjacency.REPLACE_ONE) for sigma in sigmas.tolist()]
    trials = workshop.preset.mean.draws
    rng = np.random.default_rng(workshop.noise_seed("soundness", "attack"))
    pilot, shown = ([evidence(rng, trials, sign, weights, sigmas) for sign in (1, -1)] for _ in range(2))
    thresholds = np.quantile(pilot[1], 1 - np.arange(20) / trials)
    threshold = max(thresholds, key=lambda t: least_epsilon(pilot, t))
    claimed = _epsilons(_mus(runs, weights.tolist()))
    return {"epsilons": claimed, "trials": trials, "shown": least_epsilon(shown, float(threshold))}


def evidence(rng: np.random.Generator, trials: int, sign: int, weights: Array, sigmas: Array) -> Array:
    """The attack's logarithm of likelihoods, record +θ₀ against −θ₀, when the record is `sign`·θ₀."""
    others = 0.4 * 10**7
    first = sigmas * rng.normal(size=(3, trials, 2))  # three coordinates, after the first step
    first[0] -= sign
    turned = first[0] / 40
    second = (
        first[1:] + sigmas * rng.normal(size=(2, trials, 2)) - others * np.array([np.cos(turned) - 1, np.sin(turned)])
    )
    across, up = -(second @ weights) / others
    # 1 + across + i·up is a sum of two arrows of length λ₁ and λ₂: two ways to draw them, mirrored, equally likely.
    total = 1 + across + 1j * up
    long, short = weights
    cosine = (long**2 + np.abs(total) ** 2 - short**2) / (2 * long * np.abs(total))
    half = np.arccos(np.clip(cosine, -1, 1))
    likelihoods = []
    for centre in (-1, 1):
        ways = []
        for way in (half, -half):
            arrow = long * np.exp(1j * (np.angle(total) + way))
            hidden = 40 * np.array([np.angle(arrow), np.angle(total - arrow)])
            ways.append(-np.sum((hidden.T - centre) ** 2 / (2 * sigmas**2), axis=1))
        likelihoods.append(np.logaddexp(*ways))
    return np.asarray(likelihoods[0] - likelihoods[1])


def least_epsilon(found: Sequence[Array], threshold: float) -> float:
    """The ε that an attack with this threshold proves at δ, with 95 % confidence (Clopper and Pearson, both errors)."""
    from scipy.special import betaincinv

    hits, errors = (int(np.count_nonzero(side > threshold)) for side in found)
    trials, tail = len(found[0]), (1 - CONFIDENCE) / 2
    least_hits = float(betaincinv(hits, trials - hits + 1, tail)) if hits else 0.0
    most_errors = float(betaincinv(errors + 1, trials - errors, 1 - tail)) if errors < trials else 1.0
    return float(np.log((least_hits - DELTA) / most_errors)) if least_hits > DELTA else 0.0
