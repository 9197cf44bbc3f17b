"""Which costs to give a few runs so that sums of them come close below every budget of a range.

Guarantees: `Reach` lists only sums that can be made, so a gap computed from it is never smaller than the true one;
what `cover` returns is deterministic and, for a larger number of runs, no coarser.
Assumes: costs add (μ² of independent runs), and of each run at most one kept fraction is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from dpmerge.accounting.validation import Array

FINEST = 1.01
"""The worst ratio below which no further run is spent: a percent of noise is beyond what any evaluation resolves."""

LEAST_SHARE = 0.5
"""Of the lowest budget, the least that a run costs: one with still more noise learns little worth averaging."""

_SLACK = 1e-9  # sums that fit but for the last digits of a product do fit
_MOST_SUMS = 60_000
_BEAM = 3  # partial designs kept at each stage
_BASES = 10  # sums on top of which a further run may close the gap, tried for each of them
_WINDOW = 6.0  # one more run never extends the coverage by more than this factor when many are there


@dataclass(frozen=True)
class ReachableSums:
    """The sums that can be made, ascending, and how: for each run the position of its fraction, −1 for none."""

    sums: Array
    choices: npt.NDArray[np.int16]

    @classmethod
    def of(cls, costs: Sequence[float], fractions: Array, top: float) -> ReachableSums:
        """All sums up to `top`; where there are too many, some that lie next to others are left out."""
        reach = cls(np.zeros(1), np.zeros((1, 0), dtype=np.int16))
        for cost in sorted(costs):
            reach = reach._with(cost, fractions, top)
        order = np.argsort(np.argsort(costs, kind="stable"), kind="stable")
        return cls(reach.sums[1:], reach.choices[1:, order])

    def _with(self, cost: float, fractions: Array, top: float) -> ReachableSums:
        options = np.concatenate([[0.0], cost * fractions])
        sums = np.add.outer(self.sums, options).ravel()
        before = np.repeat(np.arange(len(self.sums)), len(options))
        option = np.tile(np.arange(-1, len(fractions), dtype=np.int16), len(self.sums))
        kept = np.flatnonzero(sums <= top * (1 + _SLACK))
        kept = kept[np.argsort(sums[kept], kind="stable")]
        kept = kept[_spread(sums[kept])]
        return ReachableSums(sums[kept], np.column_stack([self.choices[before[kept]], option[kept]]))

    def below(self, budget: float) -> int:
        """The position of the largest sum within a budget, −1 if there is none."""
        return int(np.searchsorted(self.sums, budget * (1 + _SLACK), side="right")) - 1

    def worst(self, low: float, high: float) -> float:
        """The largest ratio, over all budgets from low to high, of the budget to the largest sum within it."""
        first = self.below(low)
        if first < 0:
            return math.inf
        ends = np.append(self.sums[first:], max(high, self.sums[-1]))
        return float(np.max(ends[1:] / ends[:-1]))


def cover(low: float, high: float, fractions: Array, runs: int, rounded: Callable[[Array], Array]) -> tuple[float, ...]:
    """The costs of at most `runs` runs with the smallest worst ratio that is found.

    `rounded` takes costs to the nearest ones, from below, that can be had. Bisection over the ratio, on one grid
    for every number of runs: what is found for N runs is in reach of the search for N + 1.
    """
    search = _Search(low=low, high=high, fractions=fractions, rounded=rounded)
    coarse, fine = math.log(high / low * 1.01), math.log(FINEST)
    if (found := search.built(FINEST, runs)) is not None:
        return found
    best = search.built(math.exp(coarse), runs)
    assert best is not None, "one run serves the lowest budget"
    while coarse - fine > 5e-4:
        middle = math.sqrt(coarse * fine)
        found = search.built(math.exp(middle), runs)
        if found is None:
            fine = middle
        else:
            best, coarse = found, middle
    return best


def fewest(
    low: float, high: float, fractions: Array, ratio: float, most: int, rounded: Callable[[Array], Array]
) -> tuple[float, ...] | None:
    """The costs of as few runs as the search needs to stay within a worst ratio, None if that is more than `most`."""
    within = 1 + (ratio - 1) * (1 - 1e-6)  # what fits but for the last digits is beyond the ratio by as much
    return _Search(low=low, high=high, fractions=fractions, rounded=rounded).built(within, most)


@dataclass(frozen=True, kw_only=True)
class _Partial:
    costs: tuple[float, ...] = ()
    sums: Array = field(default_factory=lambda: np.zeros(1))
    frontier: float


@dataclass(frozen=True, kw_only=True)
class _Search:
    """A beam search that adds one run at a time, each where the coverage so far ends.

    Up to the frontier F every budget has a sum within the ratio. The next run must supply a sum at F: a kept
    fraction f of it on top of a sum s that is there, so its cost is (F − s)/f. That leaves finitely many candidates;
    those that push the frontier furthest are kept.
    """

    low: float
    high: float
    fractions: Array
    rounded: Callable[[Array], Array]

    def built(self, ratio: float, runs: int) -> tuple[float, ...] | None:
        beam = [_Partial(frontier=self.low)]
        for _ in range(runs):
            beam = self._extended(beam, ratio)
            if not beam:
                return None
            if beam[0].frontier >= self.high:
                return beam[0].costs
        return None

    def _extended(self, beam: Sequence[_Partial], ratio: float) -> list[_Partial]:
        found: dict[tuple[float, ...], _Partial] = {}
        for partial in beam:
            costs = self._candidates(partial)
            promise = self._promise(partial, costs, ratio)
            for place in np.argsort(-promise, kind="stable")[:_BEAM]:
                cost = float(costs[place])
                key = tuple(sorted((*partial.costs, cost)))
                if key not in found:
                    found[key] = self._with(partial, cost, ratio)
        return sorted(found.values(), key=lambda p: (-p.frontier, sum(p.costs)))[:_BEAM]

    def _with(self, partial: _Partial, cost: float, ratio: float) -> _Partial:
        sums = np.add.outer(partial.sums, np.concatenate([[0.0], cost * self.fractions])).ravel()
        sums = np.sort(sums[sums <= self.high * (1 + _SLACK)])
        sums = sums[_spread(sums, math.log(ratio) / 12)]
        return _Partial(
            costs=(*partial.costs, cost), sums=sums, frontier=float(self._frontiers(sums[None, 1:], ratio)[0])
        )

    def _candidates(self, partial: _Partial) -> Array:
        below = partial.sums[partial.sums < partial.frontier]
        bases = below[_evenly(len(below), _BASES)]
        fractions = self.fractions[_evenly(len(self.fractions), _BASES)]
        costs = self.rounded(np.unique((partial.frontier - bases)[:, None] / fractions))
        return np.unique(costs[(costs <= self.high) & (costs >= LEAST_SHARE * self.low)])

    def _promise(self, partial: _Partial, costs: Array, ratio: float) -> Array:
        """A frontier that each candidate reaches at least, from sums thinned to what matters around the frontier."""
        frontier = partial.frontier
        near = partial.sums[partial.sums <= _WINDOW * frontier]
        quantum = frontier * math.log(ratio) / 16
        near = near[np.unique((near / quantum).astype(np.int64), return_index=True)[1]]
        fractions = self.fractions[_evenly(len(self.fractions), max(4, 3000 // len(near)))]
        options = np.concatenate([np.zeros((len(costs), 1)), costs[:, None] * fractions], axis=1)
        sums = (near[None, :, None] + options[:, None, :]).reshape(len(costs), -1)
        sums = np.where(sums > self.high * (1 + _SLACK), np.inf, sums)
        # What is covered already needs no second look. The last sum of it may have been thinned away.
        covered = frontier / ratio if frontier > self.low else 0.0
        return self._frontiers(np.sort(sums, axis=1), ratio, covered)

    def _frontiers(self, sums: Array, ratio: float, covered: float = 0.0) -> Array:
        """For each row of ascending sums, up to where every budget from the lowest on has a sum within the ratio.

        `covered`: a sum up to which that is known to be so.
        """
        served = sums <= max(self.low, covered) * (1 + _SLACK)
        start = np.maximum(covered, np.where(served, sums, 0.0).max(axis=1, keepdims=True))
        chain = np.maximum(sums, start)
        with np.errstate(invalid="ignore"):  # ∞ > ∞·ratio where a row ends
            broken = chain[:, 1:] > chain[:, :-1] * ratio * (1 + _SLACK)
        ends = np.concatenate([broken, np.ones((len(sums), 1), dtype=bool)], axis=1).argmax(axis=1)
        last = np.take_along_axis(chain, ends[:, None], axis=1)[:, 0]
        last = np.where(np.isfinite(last), last, 0.0)
        # Beyond the top all are equally good, and the cheapest, which stands first, is taken.
        return np.where(start[:, 0] > 0, np.clip(last * ratio, self.low, self.high), self.low)


def _evenly(size: int, most: int) -> npt.NDArray[np.int64]:
    """At most so many positions, first and last among them."""
    return np.unique(np.linspace(0, size - 1, min(size, most)).astype(np.int64))


def _spread(sums: Array, resolution: float = 0.0) -> npt.NDArray[np.int64]:
    """Positions of ascending sums to keep: first and last of each bin of the logarithm, so that a gap wider than a bin
    is seen as it is. Bins are wide enough that sums are few."""
    if len(sums) < 3 or (len(sums) <= _MOST_SUMS and resolution == 0):
        return np.arange(len(sums))
    start = int(sums[0] == 0)  # the empty sum has no logarithm and always stays
    logs = np.log(sums[start:])
    width = max(resolution, 1e-12, 2 * float(np.ptp(logs)) / _MOST_SUMS)
    bins = np.floor((logs - logs[0]) / width).astype(np.int64)
    edge = bins[1:] != bins[:-1]
    kept = np.flatnonzero(np.append(edge, True) | np.append(True, edge))
    return np.concatenate([np.arange(start), kept + start])
