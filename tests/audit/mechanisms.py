"""Releases of which the exact privacy is known in closed form, with the best attack on each."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dpmerge.auditing.attacks import Attack, Draws


def gaussian(mu: float, *, known: bool = True) -> Attack:
    """N(0, 1) against N(μ, 1), scored by the log-likelihood ratio; `known` says that the score is Gaussian."""

    def play(rng: np.random.Generator, trials: int, present: bool) -> Draws:
        return Draws(mu * (rng.standard_normal(trials) + mu * present) - mu * mu / 2)

    return Attack(play=play, gaussian=known)


def selection(mus: Sequence[float], probabilities: Sequence[float]) -> Attack:
    """An index is drawn and seen, then a Gaussian with its μ."""
    distances = np.asarray(mus)

    def play(rng: np.random.Generator, trials: int, present: bool) -> Draws:
        index = rng.choice(len(mus), size=trials, p=probabilities)
        mu = distances[index]
        return Draws(mu * (rng.standard_normal(trials) + mu * present) - mu * mu / 2, index)

    return Attack(play=play, gaussian=True, probabilities=tuple(probabilities))


def randomised_response(epsilon: float, delta: float = 0.0) -> Attack:
    """The truth for sure with probability δ, otherwise with odds e^ε to 1: exactly (ε, δ)-DP, at this ε and δ."""
    honest = 1 / (1 + math.exp(-epsilon))

    def play(rng: np.random.Generator, trials: int, present: bool) -> Draws:
        truth = 1.0 if present else -1.0
        answer = np.where(rng.random(trials) < honest, truth, -truth)
        return Draws(np.where(rng.random(trials) < delta, 2 * truth, answer))

    return Attack(play=play)


def laplace(epsilon: float) -> Attack:
    """Laplace noise on 0 or ε: exactly ε-DP, and every threshold outside [0, ε] shows all of it."""

    def play(rng: np.random.Generator, trials: int, present: bool) -> Draws:
        return Draws(rng.laplace(size=trials) + epsilon * present)

    return Attack(play=play)


def scores(attack: Attack, trials: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Those without the record and those with it."""
    rng = np.random.default_rng(seed)
    return attack.play(rng, trials, False).scores, attack.play(rng, trials, True).scores
