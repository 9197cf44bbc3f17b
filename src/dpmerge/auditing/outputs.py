"""One released number: the merged model in the direction in which the record pushes, and its law in either world.

Guarantees: a value is drawn by training, hidden states moving step by step on the noisy gradients of their run. The law
beside it says how likely the value is, and is exact: a Gaussian, or a mixture over the batches that the record may have
been in. (Where those are too many a Gaussian of the right mean stands for it; scores may be any function.)
Refuses: two checkpoints of one run, weights that are not positive, negative release noise, states that overflow.

What a run started from counts as public here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Protocol

import numpy as np

from dpmerge.auditing.attacks import Array, Attack, in_batches
from dpmerge.auditing.gradients import (
    BARELY,
    chances,
    idle,
    noisy_gradients,
    pushes,
    require_one_adjacency,
    require_step,
)
from dpmerge.auditing.schedules import Schedule
from dpmerge.errors import InvalidInputError

Part = tuple[Schedule, int, float]
"""A run, the step of the checkpoint, its weight."""

MOST_COMPONENTS = 512
"""Gaussians in an exact mixture."""


class Motion(Protocol):
    """How a run's hidden state moves, from 0, on its noisy gradients."""

    def final(self, gradients: Iterable[Array]) -> Array | float:
        """The state after the last step."""

    def responses(self) -> Array:
        """By how much each step's gradient moves the state after the last."""


@dataclass(frozen=True)
class Stretched:
    """State ← gain · state + rate · gradient: what linear and quadratic losses, and weight decay, make of plain SGD."""

    gains: Array
    rates: Array

    def final(self, gradients: Iterable[Array]) -> Array | float:
        state: Array | float = 0.0
        for gain, rate, gradient in zip(self.gains.tolist(), self.rates.tolist(), gradients, strict=True):
            state = gain * state + rate * gradient
        return state

    def responses(self) -> Array:
        return np.asarray(self.rates * products_after(self.gains))


@dataclass(frozen=True)
class WithMomentum:
    """PyTorch's SGD: decay joins the gradient, the buffer starts as the first gradient, Nesterov looks ahead."""

    rates: Array
    momentum: float
    dampening: float
    nesterov: bool
    decay: float

    def final(self, gradients: Iterable[Array]) -> Array | float:
        state: Array | float = 0.0
        buffer: Array | float | None = None
        for rate, gradient in zip(self.rates.tolist(), gradients, strict=True):
            direction = gradient - self.decay * state
            buffer = direction if buffer is None else self.momentum * buffer + (1 - self.dampening) * direction
            state = state + rate * (direction + self.momentum * buffer if self.nesterov else buffer)
        return state

    def responses(self) -> Array:
        """Backwards: what the last state owes to a step's state, to its buffer, and so to its gradient."""
        owed = np.empty(len(self.rates))
        to_state, to_buffer = 1.0, 0.0
        for step in reversed(range(len(self.rates))):
            rate, kept = float(self.rates[step]), 1.0 if step == 0 else 1 - self.dampening
            to_buffer += rate * to_state * (self.momentum if self.nesterov else 1.0)
            to_direction = kept * to_buffer + (rate * to_state if self.nesterov else 0.0)
            to_state, to_buffer = to_state - self.decay * to_direction, self.momentum * to_buffer
            owed[step] = to_direction
        return owed


def products_after(factors: Array) -> Array:
    """For each step, the product of the factors of all later ones."""
    return np.append(np.cumprod(factors[:0:-1])[::-1], 1.0)[: len(factors)]


def recorded_motion(run: Schedule, step: int) -> Motion:
    """The optimizer of the run's own record."""
    require_sgd(run)
    rates, decay = run.rates[:step], run.weight_decay * run.divisor
    if run.momentum == 0:
        return Stretched(1 - rates * decay, rates)
    return WithMomentum(rates, run.momentum, run.dampening, run.nesterov, decay)


@dataclass(frozen=True, kw_only=True)
class OutputLaw:
    """Gaussians of one variance, mixed."""

    means: Array
    chances: Array


@dataclass(frozen=True, kw_only=True, eq=False)
class SimulatedOutput:
    """A number that is released: how it is drawn, and how likely each value is in the two worlds."""

    draw: Callable[[np.random.Generator, int, bool], Array]
    laws: tuple[OutputLaw, OutputLaw]  # without the record, with it
    variance: float  # as ratios take it: never quite 0
    gaussian: bool
    draws: float

    @property
    def distance(self) -> float:
        """μ where the output is Gaussian: how far apart its means are, in deviations."""
        without, within = (float(law.means @ law.chances) for law in self.laws)
        return abs(within - without) / math.sqrt(self.variance)

    def log_density(self, values: Array, present: bool) -> Array:
        law = self.laws[present]
        each = (
            math.log(chance) - (values - mean) ** 2 / (2 * self.variance)
            for mean, chance in zip(law.means.tolist(), law.chances.tolist(), strict=True)
        )
        return np.asarray(reduce(np.logaddexp, each) - math.log(2 * math.pi * self.variance) / 2)

    def attack(self) -> Attack:
        """Somebody who sees this number and nothing else, and scores it by its log-likelihood ratio."""

        def scores(rng: np.random.Generator, trials: int, present: bool) -> Array:
            values = self.draw(rng, trials, present)
            return self.log_density(values, True) - self.log_density(values, False)

        return Attack(play=in_batches(scores), gaussian=self.gaussian, draws=self.draws)


def output_of(parts: Sequence[Part], motions: Sequence[Motion], release_noise: float) -> SimulatedOutput:
    """Σ λ_i θ_i + N(0, τ²), each θ_i after its own steps."""
    require_parts(parts, release_noise)
    reach = [_reach(part, motion) for part, motion in zip(parts, motions, strict=True)]
    noises = [moved * run.noise_multipliers[:step] for moved, (run, step, _) in zip(reach, parts, strict=True)]
    worlds = [_law(parts, reach, present) for present in (False, True)]
    means = np.concatenate([law.means for law, _ in worlds])
    spread = float(np.ptp(means))
    true_variance = release_noise**2 + sum(float(n @ n) for n in noises) + sum(extra for _, extra in worlds) / 2
    least = (BARELY * spread) ** 2 if spread > 0 else 1e-300

    def draw(rng: np.random.Generator, trials: int, present: bool) -> Array:
        total = release_noise * rng.standard_normal(trials) if release_noise > 0 else np.zeros(trials)
        for (run, step, weight), motion in zip(parts, motions, strict=True):
            total += weight * motion.final(noisy_gradients(run, step, rng, trials, present))
        return total

    sampled = sum(int(np.count_nonzero(chances(run, step) % 1)) for run, step, _ in parts)
    return SimulatedOutput(
        draw=draw,
        laws=(worlds[0][0], worlds[1][0]),
        variance=max(true_variance, least),
        gaussian=len(means) == 2 and spread > 0 and true_variance > least and sampled == 0,
        draws=sum(step for _, step, _ in parts) + sampled + (release_noise > 0),
    )


def require_parts(parts: Sequence[Part], release_noise: float) -> None:
    """What every average needs."""
    if not parts:
        raise InvalidInputError("parts", [], "at least one checkpoint")
    for run, step, weight in parts:
        require_step(run, step)
        if not (weight > 0 and math.isfinite(weight)):
            raise InvalidInputError(f"weight of {run.name}", weight, "a finite number > 0")
    if len({run for run, _, _ in parts}) != len(parts):
        raise InvalidInputError("parts", [run.name for run, _, _ in parts], "one checkpoint of each run")
    if not (release_noise >= 0 and math.isfinite(release_noise)):
        raise InvalidInputError("release_noise", release_noise, "a finite number ≥ 0")
    require_one_adjacency(run for run, _, _ in parts)


def require_sgd(run: Schedule) -> None:
    if run.optimizer != "sgd":
        problem = f"{run.name}.optimizer: the updates of {run.optimizer} are not linear in their gradients"
        raise InvalidInputError(f"{run.name}.optimizer", run.optimizer, "attack runs of sgd", problem=problem)


def _reach(part: Part, motion: Motion) -> Array:
    """By how much one clip norm at each step moves the merged model."""
    run, step, weight = part
    with np.errstate(over="ignore", invalid="ignore"):
        reach = weight * motion.responses() * run.clip_norms[:step]
        if not np.all(np.isfinite(reach**2)):
            problem = f"dynamics of {run.name}: its states overflow"
            raise InvalidInputError(f"dynamics of {run.name}", None, "take smaller rates or factors", problem=problem)
    return reach


def _law(parts: Sequence[Part], reach: Sequence[Array], present: bool) -> tuple[OutputLaw, float]:
    """The mixture over which steps drew the record; and how much variance it hides where one Gaussian stands for it."""
    base, jumps, odds = 0.0, [np.empty(0)], [np.empty(0)]
    for (run, step, _), moved in zip(parts, reach, strict=True):
        drawn, rest, chance = pushes(run)[present], idle(run), chances(run, step)
        base += float(np.sum(moved * np.where(chance == 1, drawn, rest)))
        open_ = (chance > 0) & (chance < 1) & (moved * (drawn - rest) != 0)
        jumps.append(moved[open_] * (drawn - rest))
        odds.append(chance[open_])
    jump, chance = np.concatenate(jumps), np.concatenate(odds)
    means, weights = np.array([base]), np.ones(1)
    for far, likely in zip(jump.tolist(), chance.tolist(), strict=True):
        both, shares = np.append(means, means + far), np.append(weights * (1 - likely), weights * likely)
        # Sums over different steps that come to the same are one component; they agree up to rounding.
        rounded = np.round(1e10 * (both - base) / np.abs(jump).sum())
        _, first, place = np.unique(rounded, return_index=True, return_inverse=True)
        means, weights = both[first], np.bincount(place, shares).astype(float)
        if len(means) > MOST_COMPONENTS:
            mean = base + float(jump @ chance)
            return OutputLaw(means=np.array([mean]), chances=np.ones(1)), float(jump**2 @ (chance * (1 - chance)))
    return OutputLaw(means=means[weights > 0], chances=weights[weights > 0]), 0.0
