"""One run as the hidden-state theorem sees it: its updates, and the convex minorant that its best shifts follow.

Guarantees: factors and growths are only ever enlarged, which is always valid; minorants are sums of positive terms.
Refuses nothing: whether a run meets the premises is `combination`'s question.

What is computed with them, and why, is at the top of `hidden_state` (theory 9 has the proof).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from dpmerge.accounting.validation import Array

_LARGEST_GROWTH = 1e6
"""A product of factors beyond this is taken as infinite: a larger Lipschitz factor is always a valid one, and the
rounding error of what follows grows with the product."""

_SMALLEST_GROWTH = 1e-60
"""A product of factors below this is taken as this."""


@dataclass(frozen=True, eq=False)
class Chain:
    """One run's updates with positive rate: shift a, noise b, Lipschitz factor L (the first factor is not used)."""

    shift: Array
    noise: Array
    lipschitz: Array

    @cached_property
    def start(self) -> int:
        """The first step that matters: a factor of zero forgets everything before it."""
        return max((step for step in range(1, self.shift.size) if self.lipschitz[step] == 0), default=0)

    @cached_property
    def factors(self) -> Array:
        """The Lipschitz factors, enlarged where their product up to the end would become vanishingly small.

        A larger factor is always a valid one; a product that underflows would stay zero however large the earlier
        factors are.
        """
        factors = np.array(self.lipschitz, dtype=float)
        growth = 1.0
        for step in range(self.shift.size - 1, self.start, -1):
            if growth * factors[step] < _SMALLEST_GROWTH:
                factors[step] = _SMALLEST_GROWTH / growth
            growth *= factors[step]
            if growth > _LARGEST_GROWTH:
                growth = 1.0
        return factors

    @cached_property
    def segments(self) -> list[slice]:
        """Stretches of steps between which no gap may remain, because it would grow beyond all bounds."""
        starts = [self.start]
        growth = 1.0
        for step in range(self.shift.size - 1, self.start, -1):
            growth *= self.factors[step]
            if growth > _LARGEST_GROWTH:
                starts.append(step)
                growth = 1.0
        bounds = [*sorted(starts), self.shift.size]
        return [slice(start, stop) for start, stop in pairwise(bounds)]

    def growth(self, segment: slice) -> Array:
        """G: by how much a gap left at each step of a segment has grown at the segment's end."""
        return np.append(np.cumprod(self.factors[segment][:0:-1])[::-1], 1.0)

    @cached_property
    def largest_growth(self) -> float:
        return max(1.0, *(float(self.growth(segment).max()) for segment in self.segments))

    def _envelope(self, segment: slice, steps: int, paid: float) -> Envelope:
        growth = self.growth(segment)[:steps]
        rises = growth * self.shift[segment][:steps]
        return Envelope.of(rises, (growth * self.noise[segment][:steps]) ** 2, paid)

    @cached_property
    def closed(self) -> list[Envelope]:
        """The minorants of all segments but the last: each ends with its gap closed."""
        return [self._envelope(segment, segment.stop - segment.start, 0.0) for segment in self.segments[:-1]]

    @cached_property
    def envelope(self) -> Envelope:
        """The minorant of the last segment before its last step."""
        segment = self.segments[-1]
        paid = sum(float(earlier.cost[-1]) for earlier in self.closed)
        return self._envelope(segment, segment.stop - segment.start - 1, paid)


@dataclass(frozen=True, eq=False)
class Envelope:
    """Convex minorant of a run before its last step, by its vertices 0 … m.

    From vertex j on lie `reach[j]` of shift and `time[j]` of noise variance, both counted at the end of training;
    `cost[j]` is the energy spent before it. `slopes[j]` is the slope of the edge from vertex j to j + 1, increasing.
    """

    slopes: Array
    reach: Array
    time: Array
    cost: Array
    lengths: npt.NDArray[np.intp]  # how many steps each edge covers

    @classmethod
    def of(cls, rises: Array, times: Array, paid: float) -> Envelope:
        """Pool adjacent violators: merge edges until their slopes increase. Sums of positive terms throughout."""
        rise_of: list[float] = []
        time_of: list[float] = []
        length_of: list[int] = []
        for next_rise, next_time in zip(rises.tolist(), times.tolist(), strict=True):
            rise, time, length = next_rise, next_time, 1
            while rise_of and _log_slope(rise_of[-1], time_of[-1]) >= _log_slope(rise, time):
                rise, time, length = rise + rise_of.pop(), time + time_of.pop(), length + length_of.pop()
            rise_of.append(rise)
            time_of.append(time)
            length_of.append(length)
        edge_rise, edge_time = np.array(rise_of), np.array(time_of)
        with np.errstate(divide="ignore", invalid="ignore"):
            slopes = np.where(edge_time > 0, edge_rise / edge_time, np.inf)
            spent = np.where(edge_rise > 0, slopes * edge_rise, 0.0)
        return cls(
            slopes=slopes,
            reach=np.append(np.cumsum(edge_rise[::-1])[::-1], 0.0),
            time=np.append(np.cumsum(edge_time[::-1])[::-1], 0.0),
            cost=paid + np.concatenate([[0.0], np.cumsum(spent)]),
            lengths=np.array(length_of, dtype=np.intp),
        )

    def vertex(self, slope: Array) -> npt.NDArray[np.intp]:
        """The vertex from which a line of the given slope leaves the minorant.

        Near a tie it leaves later, which is feasible too (the price of what is left can only fall) and keeps the last
        step's own shift from being lost to rounding beside a sum that is 1e16 times larger.
        """
        return np.searchsorted(self.slopes, slope * (1 + 1e-12), side="right")


def _log_slope(rise: float, time: float) -> float:
    """Compared in logarithms: the quotient of allowed sizes may be beyond a double."""
    if time == 0:
        return math.inf
    return math.log(rise) - math.log(time) if rise > 0 else -math.inf
