"""Runs made to break what merged_trajectory assumes, and the example where release noise restores a proof.

Guarantees: what is true of them is integrated, a closed form, or a lower bound that an attack on the average alone has
shown with 95 % confidence, its threshold fixed on other trials. What theorems say of them is their own number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dpmerge.accounting import (
    THEOREMS,
    Adjacency,
    Checkpoint,
    DeclaredLipschitz,
    DpSgd,
    GaussianRelease,
    LinearCombination,
    StepBlock,
    gaussian_epsilon,
)
from dpmerge.accounting.validation import Array
from dpmerge.auditing.claims import mechanism
from dpmerge.auditing.logistic_scenarios import PLAIN, TOTAL_CLIPPED
from dpmerge.auditing.outputs import Part
from dpmerge.auditing.thresholds import best_threshold, fixed_threshold
from dpmerge.planning.candidates import THEOREM_NAMES
from reproduction.mnist import PEAK_RATE
from reproduction.presets import DELTA
from reproduction.run_store import RunStore
from reproduction.scenarios.adversarial_losses import linear_mu
from reproduction.scenarios.counterexamples import (
    CONTRACTIONS,
    NOISE_MULTIPLIERS,
    WEIGHTS,
    contracted_parts,
    revealed_parts,
    revealing,
)
from reproduction.statements import CONFIDENCE
from reproduction.training import warm_up_and_decay


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
    """The example of theory 9.1: the paper's schedule, convex losses, σ = (64, 32), weights (0.95, 0.05)."""
    rates, weights = warm_up_and_decay(PEAK_RATE, 20), (0.95, 0.05)
    runs = [_run(rates, sigma, Adjacency.REPLACE_ONE, lipschitz=1.0) for sigma in (64.0, 32.0)]
    noise = float(step_noises(Checkpoint(runs[0], runs[0].steps)).max())
    silent, noised = (_epsilons(_mus(runs, weights, tau)) for tau in (0.0, noise))
    return {**silent, "release_noise": noise, "hidden_state with release noise": noised["hidden_state"]}


def logistic() -> dict[str, Any]:
    """Two steps of logistic regression, one label flipped: ε of the average, true and claimed.

    What is true is integrated over the hidden models: it is the audit's, not the accounting's.
    """
    return {
        "epsilons": _epsilons(_claimed(PLAIN.parts())),
        "records": PLAIN.records,
        "true": PLAIN.law().epsilon(DELTA),
        "true, total clipped": TOTAL_CLIPPED.law().epsilon(DELTA),
    }


def contraction() -> dict[str, Any]:
    """Constant gradients and states that contract by 0.9 in one run and not at all in the other: μ of their average.

    What is true has a closed form because everything is linear: it is the audit's, not the accounting's.
    """
    parts = contracted_parts()
    mus = {"true": linear_mu(parts, CONTRACTIONS), **_claimed(parts)}
    return {"mus": mus, "epsilons": _epsilons(mus)}


def revealed(store: RunStore) -> dict[str, Any]:
    """Two steps of two runs on smooth losses, in which the other records write down what the hidden models were.

    The audit's attack sees only the average and finds both hidden models in it; its errors bound ε from below.
    """
    trials = store.preset.mean.draws
    rng = np.random.default_rng(store.noise_seed("soundness", "attack"))
    attack = revealing(WEIGHTS, NOISE_MULTIPLIERS)
    pilot, fresh = ([attack.play(rng, trials, present).scores for present in (True, False)] for _ in range(2))
    threshold = best_threshold(pilot[1], pilot[0], delta=DELTA, confidence=CONFIDENCE)
    shown = fixed_threshold(fresh[1], fresh[0], threshold, delta=DELTA, confidence=CONFIDENCE)
    return {"epsilons": _epsilons(_claimed(revealed_parts())), "trials": trials, "shown": shown}


def _claimed(parts: Sequence[Part]) -> dict[str, float | None]:
    return _mus([mechanism(run) for run, _, _ in parts], [weight for _, _, weight in parts])
