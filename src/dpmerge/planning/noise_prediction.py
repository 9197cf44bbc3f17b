"""The noise a merged model is predicted to carry, from the records alone: no model is looked at.

Guarantees nothing about accuracy: it is a prediction, the same for every dataset, and so may be planned by for free.
Refuses (None): runs whose rates and noise are not recorded step by step.

Noise-to-signal is the variance of one merged weight over the squared distance the rates could have carried it,
    (Σ_r Σ_t (w_rt η_rt σ_rt C_rt)² + τ²) / (Σ_r Σ_t w_rt η_rt)²,
w_rt being the total weight of the checkpoints that contain step t of run r. For one checkpoint a run the w are the
λ's, and λ_i ∝ R_i/V_i (precision weights: R the rate travelled, V the variance) is best, with 1/ratio = Σ R_i²/V_i.

Adam and its kin divide the gradient by its own size, so that the clip norm scales signal and noise alike: what reaches
the weights is noise *relative* to it, ησ in place of ησC. Where a portfolio has one run that is not SGD, all its runs
are predicted so, to be comparable.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from dpmerge.accounting.exposure import Checkpoint, Mechanism
from dpmerge.accounting.mechanisms import DpSgd
from dpmerge.accounting.one_shot_mechanisms import GaussianRelease, WeightAverage
from dpmerge.accounting.validation import Array


@dataclass(frozen=True)
class NoisePrediction:
    """Of one checkpoint: the rate its run travelled, and the variance that was added to each weight on the way."""

    travelled: float
    variance: float
    relative: bool = False  # to the clip norm

    @property
    def precision(self) -> float:
        """R²/V: what it adds to a precision-weighted average. Infinite without noise."""
        return float(np.inf) if self.variance == 0 else self.travelled * self.travelled / self.variance

    @property
    def weight(self) -> float:
        """R/V: its precision weight, before all are made to sum to one."""
        return float(np.inf) if self.variance == 0 else self.travelled / self.variance


def is_relative(runs: Iterable[Mechanism]) -> bool:
    """Whether noise has to be predicted relative to the clip norm: some run's optimizer is not SGD."""
    return any(isinstance(run, DpSgd) and not run.optimizer.is_sgd for run in runs)


def predicted_noise(checkpoint: Checkpoint, *, relative: bool = False) -> NoisePrediction | None:
    """What is known of one checkpoint, its ancestors' steps included; None where steps are not recorded."""
    travelled, variance = 0.0, 0.0
    for part in (checkpoint, *checkpoint.ancestors):
        steps = _steps(part, relative)
        if steps is None:
            return None
        travelled += float(steps[0].sum())
        variance += float((steps[1] ** 2).sum())
    return NoisePrediction(travelled, variance, relative) if travelled > 0 else None


def noise_to_signal(
    checkpoints: Sequence[Checkpoint], weights: Sequence[float], release_noise: float, *, relative: bool = False
) -> float | None:
    """The predicted ratio of any recipe, checkpoints of one run and shared ancestors counted as the same noise.

    Release noise is in units of the weights, so beside relative noise it is not known what it does.
    """
    if relative and release_noise:
        return None
    carried: dict[object, tuple[Checkpoint, Array]] = {}
    for checkpoint, weight in zip(checkpoints, weights, strict=True):
        for part in (checkpoint, *checkpoint.ancestors):
            whole, shares = carried.get(part.run, (part, np.zeros(0)))
            longest = max(part.step, shares.size)
            padded = np.zeros(longest)
            padded[: shares.size] += shares
            padded[: part.step] += weight
            carried[part.run] = (part if part.step >= whole.step else whole, padded)
    travelled, variance = 0.0, release_noise**2
    for part, shares in carried.values():
        steps = _steps(part, relative)
        if steps is None:
            return None
        travelled += float(shares @ steps[0])
        variance += float(((shares * steps[1]) ** 2).sum())
    return variance / travelled**2 if travelled > 0 else None


def precision_weights(noises: Sequence[NoisePrediction]) -> Array:
    """λ_i ∝ R_i/V_i: the least noise-to-signal for one checkpoint a run. Runs without noise share everything."""
    raw = np.array([noise.weight for noise in noises])
    raw = np.isinf(raw).astype(float) if np.any(np.isinf(raw)) else raw
    return np.asarray(raw / raw.sum())


def _steps(checkpoint: Checkpoint, relative: bool) -> tuple[Array, Array] | None:
    """Rates and noise of the steps up to a checkpoint. A Gaussian release travels the whole way in one step."""
    run = checkpoint.run
    if isinstance(run, WeightAverage):  # it carries what the iterates it is made of carry, or less
        return np.zeros(checkpoint.step), np.zeros(checkpoint.step)
    if relative:
        if not isinstance(run, DpSgd):
            return None
        rates = run.rates[: checkpoint.step]
        return rates, rates * run.noise_multipliers[: checkpoint.step]
    if isinstance(run, DpSgd):
        return run.rates[: checkpoint.step], run.moves(checkpoint.step).noise
    if isinstance(run, GaussianRelease):
        return np.ones(checkpoint.step), run.moves(checkpoint.step).noise
    return None
