"""Noise multipliers for a range of budgets: of a portfolio that covers it, and of a ladder of equal runs.

Guarantees: noise multipliers have four digits and are rounded up, so that as printed they cost no more than computed;
what is found for a number of runs is never worse than the best ladder of as many.
Assumes full batches and one noise multiplier a run: s steps of it cost μ² = s·(k/σ)².
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpmerge.accounting.exposure import Adjacency
from dpmerge.accounting.validation import Array
from dpmerge.design.covering import ReachableSums, cover, fewest

MOST_RUNS = 12

SOUGHT = 1.10
"""The worst excess at which no further run is added, if the number of runs is left open."""

_DIGITS = 4  # of a noise multiplier


@dataclass(frozen=True, kw_only=True)
class NoiseLadder:
    """The baseline: equally many equal runs, of which the first k are averaged, at their best noise multiplier.

    `runs_to_match`: about how many equal runs would do as well as the design.
    """

    runs: int
    noise_multiplier: float
    worst_excess: float
    runs_to_match: int


@dataclass(frozen=True, kw_only=True)
class Budgets:
    """Budgets of μ² from bottom to top, for runs of so many steps of which some checkpoints are kept."""

    bottom: float
    top: float
    steps: int
    kept: tuple[int, ...]
    adjacency: Adjacency

    @property
    def fractions(self) -> Array:
        """Of its whole cost, what each kept checkpoint of a run costs."""
        return np.asarray(self.kept) / self.steps

    @property
    def whole_cost(self) -> float:
        """μ² of a run with noise multiplier 1."""
        return float(self.steps * self.adjacency.sensitivity**2)

    def reach(self, noise: Sequence[float]) -> ReachableSums:
        """What averages of these runs can cost."""
        return ReachableSums.of((self.whole_cost / np.square(noise)).tolist(), self.fractions, self.top)

    def worst(self, noise: Sequence[float]) -> float:
        """The worst excess of these runs over all budgets."""
        return self.reach(noise).worst(self.bottom, self.top)

    def best_noise(self, runs: int | None) -> tuple[float, ...]:
        """Of what the search finds, and a ladder whose runs keep checkpoints too, the one with the least excess."""
        found = []
        if runs is None:
            enough = fewest(self.bottom, self.top, self.fractions, SOUGHT, MOST_RUNS, self._rounded)
            found += [] if enough is None else [self._printed(enough)]
            runs = MOST_RUNS if enough is None else len(enough)
        found.append(self._printed(cover(self.bottom, self.top, self.fractions, runs, self._rounded)))
        found.append((self.ladder_noise(runs),) * runs)
        return min(found, key=self.worst)

    def ladder_noise(self, runs: int) -> float:
        """The best noise multiplier of equal runs of which the first k are averaged."""
        return self._printed([ladder_cost(self.bottom, self.top, runs)])[0]

    def ladder(self, runs: int, to_match: float) -> NoiseLadder:
        """That ladder, of whose runs only the end is kept, against a design with some worst excess."""
        noise = self.ladder_noise(runs)
        reach = ReachableSums.of([self.whole_cost / noise**2] * runs, np.ones(1), self.top)
        return NoiseLadder(
            runs=runs,
            noise_multiplier=noise,
            worst_excess=reach.worst(self.bottom, self.top),
            runs_to_match=ladder_runs(self.bottom, self.top, to_match),
        )

    def unaveraged_worst(self, runs: int) -> float:
        """What no choice of runs can beat if only single checkpoints are released, never averages.

        The intervals that a run's checkpoints serve within an excess r span a factor r/f, f its first kept fraction,
        and those of a single checkpoint a factor r. They must cover the range.
        """
        span = float(self.top / self.bottom)
        by_run = math.pow(span, 1 / runs) * float(self.fractions[0])
        return max(1.0, by_run, math.pow(span, 1 / (runs * len(self.kept))))

    def _rounded(self, costs: Array) -> Array:
        return np.asarray(self.whole_cost / _rounded_up(np.sqrt(self.whole_cost / costs)) ** 2)

    def _printed(self, costs: Sequence[float]) -> tuple[float, ...]:
        """From the most private run on, as they are written down."""
        noise = _rounded_up(np.sqrt(self.whole_cost / np.sort(np.asarray(costs))))
        return tuple(float(f"{value:.{_DIGITS}g}") for value in noise)


def kept_steps(steps: int, count: int) -> tuple[int, ...]:
    """`count` checkpoints from half of training to its end, as evenly in the logarithm as whole steps allow."""
    if count == 1:
        return (steps,)
    kept: list[int] = []
    for position, ideal in enumerate(np.geomspace((steps + 1) // 2, steps, count)):
        least = kept[-1] + 1 if kept else (steps + 1) // 2
        kept.append(min(max(round(float(ideal)), least), steps - (count - 1 - position)))
    return tuple(kept)


def ladder_cost(low: float, high: float, runs: int) -> float:
    """The best common cost of equal runs of which the first k are summed.

    It is low/m for some m: the worst ratios are (m+1)/m at the bottom and high/(runs·cost) at the top, and any
    other cost between low/(m+1) and low/m has the same bottom and a worse top.
    """
    parts = np.arange(1, runs + 1)
    worst = np.maximum(np.minimum((parts + 1) / parts, high / low), high * parts / (runs * low))
    return low / float(parts[np.argmin(worst)])


def ladder_runs(low: float, high: float, ratio: float) -> int:
    """How many equal runs it takes until no budget exceeds the sum below it by more than `ratio`."""
    if high / low <= ratio:
        return 1
    parts = math.ceil(1 / (ratio - 1) - 1e-9)  # of the lowest budget, that one run costs
    return math.ceil(parts * high / (low * ratio) - 1e-9)


def _rounded_up(noise: Array) -> Array:
    unit = 10.0 ** (np.floor(np.log10(noise)) - (_DIGITS - 1))
    return np.asarray(np.ceil(noise / unit * (1 - 1e-12)) * unit)
