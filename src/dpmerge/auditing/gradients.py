"""Noisy gradients: how the record pushes at each step of a run, and what somebody makes of them who sees them all.

Guarantees: noise and batches are drawn step by step as the run's record says; a score is the exact log-likelihood
ratio of what is seen. The record is as bad as it can be: wherever it is drawn its gradient has the clip norm and points
one way, and of a clipped total it turns the whole around.
Refuses: steps that a run has not taken, shuffled batches under add_remove (of them nothing is proved, and nothing is
known to attack), runs of different adjacency.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from dpmerge.auditing.attacks import Array
from dpmerge.auditing.schedules import Schedule
from dpmerge.errors import InvalidInputError

BARELY = 1e-6
"""Noise smaller than this part of what it should hide hides nothing. Ratios are then taken as if it were so much."""


def pushes(run: Schedule) -> tuple[float, float]:
    """What a step adds up to, in clip norms, where the record (or what replaces it) is drawn: without it, with it."""
    return (-1.0 if run.aggregate or run.adjacency == "replace_one" else 0.0), 1.0


def idle(run: Schedule) -> float:
    """The same if it is not drawn, in either world. A clipped total then is what the others make it."""
    return -1.0 if run.aggregate else 0.0


def chances(run: Schedule, step: int) -> Array:
    """How likely the record is in the batch of each step up to `step`.

    Of shuffled batches it is in one of each pass, and nobody says which: the worst is the one with the least noise. Of
    a last pass that was cut short in a secret order it may not have come yet.
    """
    require_step(run, step)
    if run.sampling == "poisson":
        return run.sampling_rates[:step]
    if np.any(run.sampling_rates[:step] != 1):
        least = float(np.min(run.sampling_rates[:step]))
        raise InvalidInputError(f"{run.name}.sampling_rates", least, f"1 for {run.sampling} batches")
    if run.sampling == "full_batch":
        return np.ones(step)
    if run.adjacency == "add_remove" or run.steps_per_epoch is None:
        found = "shuffled batches" + ("" if run.steps_per_epoch else " without steps_per_epoch")
        raise InvalidInputError(
            f"{run.name}.sampling", run.sampling, "shuffled epochs under replace_one or zero_out", found=found
        )
    surely = np.zeros(step)
    for first, end in run.passes_begun(step):
        last = first + int(np.argmin(run.noise_multipliers[first:end]))
        surely[last] = 1.0
    surely[last] = run.shares.get(step, 1.0)
    return surely


def noisy_gradients(run: Schedule, step: int, rng: np.random.Generator, trials: int, present: bool) -> Iterator[Array]:
    """The noisy sums of clipped gradients, step after step: clip norm · (push + noise multiplier · N(0, 1))."""
    drawn, rest = pushes(run)[present], idle(run)
    each = zip(
        run.clip_norms[:step].tolist(), run.noise_multipliers[:step].tolist(), chances(run, step).tolist(), strict=True
    )
    for clip_norm, noise, chance in each:
        push: float | Array = drawn if chance == 1 else rest
        if 0 < chance < 1:
            push = np.where(rng.random(trials) < chance, drawn, rest)
        yield clip_norm * (push + noise * rng.standard_normal(trials))


@dataclass(frozen=True, kw_only=True)
class Sight:
    """Noisy gradients of equal noise that the attacker sees, `count` of them."""

    noise: float  # in clip norms, as all else here
    count: int
    chance: float
    pushes: tuple[float, float]
    idle: float

    @property
    def is_sure(self) -> bool:
        return self.chance == 1

    @property
    def draws(self) -> int:
        return 1 if self.is_sure else 2 * self.count

    def log_ratios(self, rng: np.random.Generator, trials: int, present: bool) -> Array:
        """What they say together about the record."""
        if self.is_sure:
            return self._sum_log_ratio(rng, trials, present)
        return sum((self._one_log_ratio(rng, trials, present) for _ in range(self.count)), np.zeros(trials))

    def _sum_log_ratio(self, rng: np.random.Generator, trials: int, present: bool) -> Array:
        """Equal steps are drawn as their sum: a sum of Gaussians is Gaussian, and their ratio depends on it alone."""
        without, within = self.pushes
        seen = self.count * self.pushes[present] + self.noise * self.count**0.5 * rng.standard_normal(trials)
        return np.asarray((within - without) / self._variance * (seen - self.count * (without + within) / 2))

    def _one_log_ratio(self, rng: np.random.Generator, trials: int, present: bool) -> Array:
        push = np.where(rng.random(trials) < self.chance, self.pushes[present], self.idle)
        seen = push + self.noise * rng.standard_normal(trials)
        return self._log_density(seen, self.pushes[True]) - self._log_density(seen, self.pushes[False])

    def _log_density(self, seen: Array, drawn: float) -> Array:
        """Of the mixture over whether the record was drawn, up to what both worlds have in common."""
        missed = (self.idle * seen - self.idle**2 / 2) / self._variance
        if drawn == self.idle:
            return np.asarray(missed)
        hit = (drawn * seen - drawn**2 / 2) / self._variance
        return np.asarray(np.logaddexp(np.log(self.chance) + hit, np.log1p(-self.chance) + missed))

    @property
    def _variance(self) -> float:
        return max(self.noise, BARELY) ** 2


def sights(run: Schedule, step: int) -> list[Sight]:
    """All that the noisy gradients of the first `step` steps say, equal steps together."""
    equal = Counter(zip(run.noise_multipliers[:step].tolist(), chances(run, step).tolist(), strict=True))
    return [
        Sight(noise=noise, count=count, chance=chance, pushes=pushes(run), idle=idle(run))
        for (noise, chance), count in equal.items()
        if chance > 0
    ]


def exposed(seen: Iterable[tuple[Schedule, int]]) -> dict[Schedule, int]:
    """Each run that is looked at with its last step; what a run started from is looked at too."""
    steps: dict[Schedule, int] = {}
    for run, step in seen:
        require_step(run, step)
        line: tuple[Schedule, int] | None = (run, step)
        while line is not None:
            steps[line[0]] = max(line[1], steps.get(line[0], 0))
            line = line[0].parent
    require_one_adjacency(steps)
    return steps


def require_step(run: Schedule, step: int) -> None:
    if not 0 <= step <= run.steps:
        raise InvalidInputError(f"step of {run.name}", step, f"an integer from 0 to {run.steps}")


def require_one_adjacency(runs: Iterable[Schedule]) -> None:
    found = sorted({run.adjacency for run in runs})
    if len(found) > 1:
        raise InvalidInputError("adjacency", found, "the same adjacency for every run")
