"""Averages worth considering: the Pareto front of cost against precision, one checkpoint or none from each run.

Guarantees: under joint release, whose μ² add up over runs as precisions do under precision weights, no average of any
checkpoints has both a smaller cost and a smaller noise-to-signal than the front; exactly so while the front has at
most MOST_POINTS points, within 0.2 % of cost a run beyond. The k-of-N averages of equal runs are on it, nested.
Refuses nothing: what an average really costs, `candidates` asks the theorems.

Complexity: runs are added one by one, each partial average extended by every checkpoint of the next run and dominated
ones dropped (Nemhauser, Ullmann 1969): N runs of K checkpoints take N sorts of at most (K + 1)·MOST_POINTS pairs,
where the averages themselves are (K + 1)^N.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpmerge.accounting.validation import Array
from dpmerge.planning.noise_prediction import precision_weights
from dpmerge.planning.usable_checkpoints import UsableCheckpoint, UsableCheckpoints
from dpmerge.terms.recipe import Recipe

MOST_POINTS = 2**12

_TIE = 1e-12  # relative: costs that differ by less differ by rounding only


@dataclass(frozen=True, eq=False)
class ParetoFront:
    """Averages by increasing cost and precision. `support(i)` says of which checkpoints number i is made."""

    runs: tuple[tuple[UsableCheckpoint, ...], ...]
    squared_mus: Array
    precisions: Array
    chosen: npt.NDArray[np.int16]  # (average, run): which checkpoint of the run, −1 for none

    def __len__(self) -> int:
        return int(self.squared_mus.size)

    def support(self, index: int) -> tuple[UsableCheckpoint, ...]:
        picked = zip(self.runs, self.chosen[index].tolist(), strict=True)
        return tuple(checkpoints[which] for checkpoints, which in picked if which >= 0)

    def recipe(self, index: int) -> Recipe:
        """The average with precision weights."""
        return precision_average(self.support(index))

    def within(self, squared_mu: float) -> int | None:
        """The most precise average of at most this cost."""
        index = int(np.searchsorted(self.squared_mus, squared_mu * (1 + _TIE), side="right")) - 1
        return index if index >= 0 else None


def precision_average(support: Sequence[UsableCheckpoint]) -> Recipe:
    """The average of these checkpoints with the data-independent default weights."""
    noises = [checkpoint.noise for checkpoint in support]
    known = [noise for noise in noises if noise is not None]
    weights = precision_weights(known) if len(known) == len(noises) else np.full(len(noises), 1 / len(noises))
    return Recipe.of(zip([checkpoint.name for checkpoint in support], weights.tolist(), strict=True))


def front(
    usable: UsableCheckpoints, runs: Sequence[Sequence[UsableCheckpoint]], *, tolerance: float = 0.0
) -> ParetoFront:
    """The front over some runs of one group; checkpoints of unknown noise are not on it.

    With a tolerance, which costs that add up only nearly need, an average is dropped only for one that costs less by
    this share; the front then rises nearly everywhere.
    """
    known = tuple(
        kept for of_run in runs if (kept := tuple(r for r in of_run if r.noise is not None and np.isfinite(r.epsilon)))
    )
    costs, precisions = np.zeros(1), np.zeros(1)
    chosen = np.full((1, len(known)), -1, dtype=np.int16)
    # Of equal averages the one extended last loses, so going backwards leaves the first runs: k of N are nested.
    for index in reversed(range(len(known))):
        options = np.array([[0.0, 0.0], *([usable.squared_mu(r), r.noise.precision] for r in known[index] if r.noise)])
        extended_costs = (costs[:, np.newaxis] + options[:, 0]).ravel()
        extended_precisions = (precisions[:, np.newaxis] + options[:, 1]).ravel()
        indices = _thinned(extended_costs, _undominated(extended_costs, extended_precisions, tolerance))
        before, option = np.divmod(indices, len(options))
        costs, precisions = extended_costs[indices], extended_precisions[indices]
        chosen = chosen[before]
        chosen[:, index] = option - 1
    return ParetoFront(known, costs[1:], precisions[1:], chosen[1:])  # the first is the average of nothing


def _undominated(costs: Array, precisions: Array, tolerance: float) -> npt.NDArray[np.intp]:
    """Places by increasing cost at which the precision exceeds all before (that cost less by the tolerance).

    Of ties the first given.
    """
    rounded = _rounded(costs)
    order = np.lexsort((np.arange(costs.size), -_rounded(precisions), rounded))
    best = np.maximum.accumulate(precisions[order])
    if tolerance == 0:
        before = np.concatenate([[-np.inf], best[:-1]])
    else:
        cheaper = np.searchsorted(rounded[order], rounded[order] * (1 - tolerance))
        before = np.concatenate([[-np.inf], best])[cheaper]
    return np.asarray(order[precisions[order] > before * (1 + _TIE)])


def _rounded(values: Array) -> Array:
    """To 12 digits, so that sums of the same terms in another order are equal."""
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = 10.0 ** (12 - np.ceil(np.log10(values)))
        return np.where((values > 0) & np.isfinite(values), np.round(values * scale) / scale, values)


def _thinned(costs: Array, kept: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
    """At most MOST_POINTS: of each of as many bands of equal ratio the most precise, and the cheapest of all."""
    if kept.size <= MOST_POINTS:
        return kept
    logarithms = np.log(np.maximum(costs[kept], 1e-300))
    low, high = logarithms[1], logarithms[-1]
    band = np.clip((logarithms - low) / (high - low) * (MOST_POINTS - 3), -1, MOST_POINTS - 3).astype(int)
    last_of_band = np.flatnonzero(np.append(band[1:] != band[:-1], True))
    return np.asarray(kept[np.unique(np.concatenate([[0, 1], last_of_band]))])
