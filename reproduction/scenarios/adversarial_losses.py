"""Training on losses made for an attack: the other records are not indifferent, they bend, stretch or remember.

Guarantees: every step is simulated as DP-SGD takes it: clipped gradients of the data that is there, or their clipped
total, and fresh noise; the two worlds differ in one record. Scores are functions of the merged model alone, and exact
log-likelihood ratios (up to a rising map) wherever something is called Gaussian here.
Refuses: runs that are not of the kind a loss is made for, each fact named.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import expit

from dpmerge.auditing.attacks import Array, Attack, in_batches
from dpmerge.auditing.gradients import pushes
from dpmerge.auditing.outputs import Part
from dpmerge.auditing.schedules import Schedule
from dpmerge.errors import InvalidInputError


def linear_mu(parts: Sequence[Part], stretches: Sequence[npt.ArrayLike], release_noise: float = 0.0) -> float:
    """What the merged model costs if gradients are constant and every step stretches the state by a known factor.

    Exactly μ = Σ λ_iA_i / √(Σ λ_i²B_i² + τ²): whatever a step adds is stretched by all later ones, A is the sum of what
    the record adds, B² that of the noise.
    """
    shift, variance = 0.0, float(release_noise**2)
    for (run, step, weight), factors in zip(parts, stretches, strict=True):
        absent, present = pushes(run)
        later = np.append(np.cumprod(np.broadcast_to(factors, step)[:0:-1])[::-1], 1.0)
        reach = weight * later * run.rates[:step] * run.clip_norms[:step]
        shift += (present - absent) * float(reach.sum())
        variance += float(np.sum((reach * run.noise_multipliers[:step]) ** 2))
    return float(shift / np.sqrt(variance))


def latched(parts: Sequence[Part]) -> Attack:
    """Batches drawn at random, their *total* clipped; the others remember whether the record was ever drawn.

    Two weights, a flag and a tally, in units of what one step can move. While the flag is below ½ the others want it at
    0 and the tally to fall, from then on they want it at 1 and the tally to rise: their losses add up to
    ½(flag − goal)² ± tally, times so much that the total is always clipped. The record, where it is drawn and the flag
    is down, outweighs them all: the total then raises the flag. So the first draw turns a run with little noise round
    for good, although in either world no total is longer than the clip norm. The score is the tally of the merged
    model. (There are so many others that some are in every batch.)
    """
    for run, _, _ in parts:
        _require_plain(run)
        _require(run, "adjacency", run.adjacency, "add_remove")
        _require(run, "sampling", run.sampling, "poisson")
        _require(run, "aggregate", run.aggregate, True)

    def tally(rng: np.random.Generator, trials: int, present: bool, run: Schedule, steps: int) -> Array:
        state = np.zeros((2, trials))
        for step in range(steps):
            move = float(run.rates[step] * run.clip_norms[step])
            up = state[0] > move / 2
            off = state[0] / move - up
            length = np.sqrt(1 + off**2)
            total = np.array([-off, np.where(up, 1.0, -1.0)]) / length
            if present:
                turned = ~up & (rng.random(trials) < run.sampling_rates[step])
                total[:, turned] = [[1.0], [0.0]]
            state += move * (total + run.noise_multipliers[step] * rng.standard_normal((2, trials)))
        return np.asarray(state[1])

    def scores(rng: np.random.Generator, trials: int, present: bool) -> Array:
        tallies = [weight * tally(rng, trials, present, run, steps) for run, steps, weight in parts]
        return np.asarray(np.sum(tallies, axis=0))

    return Attack(play=in_batches(scores), draws=sum(3 * steps for _, steps, _ in parts))


@dataclass(frozen=True, kw_only=True, eq=False)
class Quadratic:
    """Losses whose sum over the other records is ½xᵀHx, so many that none is clipped; the record's own is linear."""

    hessian: Array
    direction: Array  # of the record's gradient, of length 1

    def stretches(self, rates: Array) -> Array:
        """By how much a step of each (effective) rate can pull two states apart: max |1 − η·h| over the curvatures."""
        curvatures = np.linalg.eigvalsh(self.hessian)
        return np.asarray(np.abs(1 - np.outer(rates, curvatures)).max(axis=1))

    def moments(self, parts: Sequence[Part], release_noise: float) -> tuple[Array, Array]:
        """How far the record moves the mean of the merged model, and the covariance of that, by matrix algebra."""
        for run, _, _ in parts:
            _require_plain(run)
            _require(run, "sampling", run.sampling, "full_batch")
            _require(run, "aggregate", run.aggregate, False)
        identity = np.eye(len(self.direction))
        shift, covariance = np.zeros(len(self.direction)), release_noise**2 * identity
        for run, steps, weight in parts:
            absent, present = pushes(run)
            later = weight * identity
            for step in reversed(range(steps)):
                reach = float(run.rates[step] * run.clip_norms[step])
                shift = shift + (present - absent) * reach * later @ self.direction
                covariance = covariance + (reach * float(run.noise_multipliers[step])) ** 2 * later @ later.T
                later = later @ (identity - float(run.rates[step]) * self.hessian)
        return shift, covariance

    def mu(self, parts: Sequence[Part], release_noise: float = 0.0) -> float:
        """Exactly what the merged model costs."""
        shift, covariance = self.moments(parts, release_noise)
        return float(np.sqrt(shift @ np.linalg.solve(covariance, shift)))

    def attack(self, parts: Sequence[Part], release_noise: float = 0.0) -> Attack:
        """The merged model in the direction that tells the worlds apart best: its likelihood ratio is linear."""
        shift, covariance = self.moments(parts, release_noise)
        towards = np.linalg.solve(covariance, shift)
        size = len(shift)

        def scores(rng: np.random.Generator, trials: int, present: bool) -> Array:
            merged = release_noise * rng.standard_normal((trials, size))
            for run, steps, weight in parts:
                push = pushes(run)[present] * self.direction
                state = np.zeros((trials, size))
                for step in range(steps):
                    noisy = push + float(run.noise_multipliers[step]) * rng.standard_normal((trials, size))
                    state += float(run.rates[step]) * (float(run.clip_norms[step]) * noisy - state @ self.hessian)
                merged += weight * state
            return np.asarray(merged @ towards)

        draws = size * (1 + sum(steps for _, steps, _ in parts))
        return Attack(play=in_batches(scores, 2**13), gaussian=True, draws=draws)


@dataclass(frozen=True, kw_only=True, eq=False)
class Logistic:
    """Logistic regression on one feature: records are pairs of a feature and a label, 0 or 1; gradients are clipped.

    `record` is the one that differs; `instead` stands in its place in the other world, or nothing does.
    """

    features: Array
    labels: Array
    record: tuple[float, float]
    instead: tuple[float, float] | None = None

    @property
    def records(self) -> int:
        return len(self.features) + 1

    @property
    def feature_bound(self) -> float:
        differing = [self.record[0], *([] if self.instead is None else [self.instead[0]])]
        return float(np.max(np.abs([*self.features.tolist(), *differing])))

    def push(self, weight: Array, clip_norm: float, present: bool) -> Array:
        """The sum of clipped gradients at each weight, downhill: y − s(xθ) times x, cut off at ± the clip norm."""
        differing = self.record if present else self.instead
        features, labels = self.features, self.labels
        if differing is not None:
            features, labels = np.append(features, differing[0]), np.append(labels, differing[1])
        total = np.zeros_like(weight)
        for feature, label in zip(features, labels, strict=True):
            total += np.clip(feature * (label - expit(feature * weight)), -clip_norm, clip_norm)
        return total

    def attack(self, parts: Sequence[Part], release_noise: float = 0.0) -> Attack:
        """The score is the weight of the merged model, which is all there is to see."""
        for run, _, _ in parts:
            _require_plain(run)
            _require(run, "adjacency", run.adjacency, "add_remove" if self.instead is None else "replace_one")
            _require(run, "sampling", run.sampling, "full_batch")
            _require(run, "aggregate", run.aggregate, False)

        def scores(rng: np.random.Generator, trials: int, present: bool) -> Array:
            merged = release_noise * rng.standard_normal(trials)
            for run, steps, weight in parts:
                state = np.zeros(trials)
                for step in range(steps):
                    clip = float(run.clip_norms[step])
                    noise = clip * float(run.noise_multipliers[step]) * rng.standard_normal(trials)
                    state += float(run.rates[step]) * (self.push(state, clip, present) + noise)
                merged += weight * state
            return np.asarray(merged)

        # An evaluation of the loss costs about as much as a normal number.
        return Attack(play=in_batches(scores, 2**13), draws=sum(steps * (1 + self.records) for _, steps, _ in parts))


def _require_plain(run: Schedule) -> None:
    _require(run, "optimizer", run.optimizer, "sgd")
    _require(run, "momentum", run.momentum, 0.0)
    _require(run, "weight_decay", run.weight_decay, 0.0)


def _require(run: Schedule, fact: str, found: object, wanted: object) -> None:
    if found != wanted:
        raise InvalidInputError(f"{run.name}.{fact}", found, f"{wanted}: what this loss is made for")
