"""A composed loss distribution in one direction, kept as its spectrum and asked for δ at any ε.

Guarantees: `delta` bounds the divergence from above at every ε; `slack`, the part of the mass at infinity that stands
for floating-point error, covers both ways of evaluating it.
Refuses nothing; profiles refuse δ too close to the slack.

A few points are summed over the frequencies that are left, some hundreds for an ordinary training run, without any
inverse transform. Many points share one: the distribution itself, summed from its upper end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.fft import irfft

from dpmerge.accounting.epsilon_solver import Bracket, smallest_epsilon
from dpmerge.accounting.step_spectrum import MOST_FREQUENCIES, UNIT_ROUNDOFF
from dpmerge.accounting.validation import Array

_FEW_POINTS = 64  # asked at once, beyond which the distribution itself is worth its time
_FIRST_LOOK = 16  # points between which the solver begins
_SUMMATION_ERROR = 1e-12  # relative, of tail sums, beside a part that grows with the number of terms
_TERM_ERROR = 24  # units of rounding in one term of the sum over frequencies; the sum itself is exact
_QUARTERS = np.array([1, 1j, -1, -1j])


@dataclass(frozen=True, eq=False)
class ComposedLoss:
    """Losses (first + j)·interval, j = 0 … bins − 1, on a circle of `length` points; mass at infinity on top.

    `spectrum` is that of the distribution turned so that grid index `centre` is at zero; further frequencies are
    negligible. `slack` is the part of `infinity` that stands for rounding.
    """

    interval: float
    first: int
    bins: int
    length: int
    centre: int
    spectrum: Array
    infinity: float
    slack: float

    @property
    def is_short(self) -> bool:
        """Whether summing over frequencies is faster than one inverse transform."""
        return self.spectrum.size <= min(MOST_FREQUENCIES, self.length // 4)

    def delta(self, epsilon: Array) -> Array:
        """∞-mass + Σ p_j (1 − e^{ε − l_j})₊, at most one."""
        if self.is_short and "_top_mass" not in self.__dict__ and np.size(epsilon) <= _FEW_POINTS:
            finite = self._by_frequencies(epsilon)
        else:
            finite = self._by_tail_sums(epsilon)
        return np.asarray(np.minimum(1.0, self.infinity + np.maximum(finite, 0.0)))

    def epsilon(self, delta: float) -> float:
        """The smallest ε ≥ 0 with delta(ε) ≤ δ."""
        if self.infinity > delta:
            return np.inf
        return self._between_frequencies(delta) if self.is_short else self._between_grid_points(delta)

    def _first_above(self, epsilon: Array) -> tuple[Array, Array]:
        """How many grid points have no larger loss than ε, and e^{ε − l} of the first that has."""
        position = np.floor(epsilon / self.interval) + 1 - self.first
        index = np.clip(np.nan_to_num(position, posinf=self.bins), 0, self.bins).astype(np.intp)
        loss = (self.first + index) * self.interval
        return index, np.exp(np.minimum(epsilon - loss, 0.0))

    def _by_frequencies(self, epsilon: Array) -> Array:
        """Σ_k φ_k ĝ_k: the payoff (1 − e^{ε − l})₊ on the grid is two geometric sums, so its transform is closed.

        Over j = a … b, n = b − a + 1, θ = 2πk/length: Σ e^{iθj} = e^{iθ(a+b)/2} sin(θn/2)/sin(θ/2), and
        Σ (re^{iθ})^{j−a} = (1 − (re^{iθ})^n)/(1 − re^{iθ}). Angles are reduced as integers before they become numbers.
        """
        index, gap = (each[..., np.newaxis] for each in self._first_above(epsilon))
        count = self.bins - index
        start = self.first - self.centre + index
        k = np.arange(1, self.spectrum.size)
        half = np.pi / self.length
        half_angle = half * k
        middle = _turned(k * (2 * start + count - 1), 2 * self.length)
        with np.errstate(invalid="ignore"):
            ones = middle * _turned(k * count, 2 * self.length).imag / np.sin(half_angle)
        decay = np.exp(-self.interval * count)
        rest = -np.expm1(-self.interval * count) + decay * _one_minus_turn(half * (k * count % self.length))
        ratio = -np.expm1(-self.interval) + np.exp(-self.interval) * _one_minus_turn(half_angle)
        geometric = _turned(k * start, self.length) * rest / ratio
        terms = (self.spectrum[1:] * (ones - gap * geometric)).real
        turning = np.reshape([math.fsum(row) for row in terms.reshape(-1, k.size).tolist()], terms.shape[:-1])
        still = count[..., 0] - gap[..., 0] * (np.expm1(-self.interval * count[..., 0]) / np.expm1(-self.interval))
        return np.asarray((2 * turning + self.spectrum[0].real * still) / self.length)

    def _between_frequencies(self, delta: float) -> float:
        top = (self.first + self.bins) * self.interval
        if top <= 0 or self.delta(np.asarray(0.0)) <= delta:
            return 0.0
        points = np.linspace(0.0, top, _FIRST_LOOK)
        deltas = self.delta(points)
        place = int(np.argmax(np.append(deltas[1:], 0.0) <= delta))
        ends = (points[place], points[place + 1], deltas[place], deltas[place + 1])
        bracket = Bracket(*(np.array([end]) for end in ends))
        return float(smallest_epsilon(lambda epsilon, _: self.delta(epsilon), np.array([delta]), bracket)[0])

    # The other way: the distribution itself, summed from its largest loss down.

    @cached_property
    def _descending(self) -> Array:
        """The probabilities, largest loss first; what rounding made negative is put to zero, which raises δ."""
        spectrum = np.zeros(self.length // 2 + 1, dtype=complex)
        spectrum[: self.spectrum.size] = self.spectrum
        circle = irfft(spectrum, self.length)
        places = np.arange(self.first + self.bins - 1, self.first - 1, -1) - self.centre
        return np.asarray(np.maximum(circle[places % self.length], 0.0))

    @cached_property
    def _top_mass(self) -> Array:
        """The mass of the n largest losses, n = 0 … bins, rounded up."""
        sums = np.zeros(self.bins + 1)
        np.cumsum(self._descending, out=sums[1:])
        # Covers the rounding of both sums below: of the additions, and of a decay applied once a bin.
        sums *= 1 + _SUMMATION_ERROR + 4 * sums.size * UNIT_ROUNDOFF
        return sums

    @cached_property
    def _top_discounted(self) -> Array:
        """Σ p_j e^{−(l_j − l)} over the n largest losses, l the least of them; a recursion that cannot overflow."""
        from scipy.signal import lfilter  # takes a second to import, and only sampled runs need it

        sums = np.zeros(self.bins + 1)
        sums[1:] = lfilter([1.0], [1.0, -np.exp(-self.interval)], self._descending)
        return sums

    def _by_tail_sums(self, epsilon: Array) -> Array:
        index, gap = self._first_above(epsilon)
        return np.asarray(self._top_mass[self.bins - index] - gap * self._top_discounted[self.bins - index])

    def _between_grid_points(self, delta: float) -> float:
        """Found on the grid, then solved inside its cell."""
        if self.delta(np.asarray(0.0)) <= delta:
            return 0.0
        positive = self.bins - max(0, 1 - self.first)  # how many grid points have a positive loss
        at_points = self._top_mass[: positive + 1] - self._top_discounted[: positive + 1]
        # Walking down from the largest loss, the last point at which δ is still small enough.
        count = int(np.argmax(np.append(at_points > delta - self.infinity, True))) - 1
        loss = (self.first + self.bins - count) * self.interval
        ratio = (self.infinity + self._top_mass[count] - delta) / self._top_discounted[count] if count else 0.0
        epsilon = max(0.0, loss + np.log(ratio)) if ratio > 0 else max(0.0, loss - self.interval)
        while self.delta(np.asarray(epsilon)) > delta:
            epsilon = np.nextafter(epsilon + 1e-12 * self.interval, np.inf)
        return float(epsilon)


def _turned(part: npt.NDArray[Any], whole: int) -> npt.NDArray[np.complex128]:
    """e^{2πi·part/whole}, whole a power of two: by exact fractions to an eighth of a turn, so that no phase is lost."""
    eighths = np.rint(part * 4 / whole)
    angle = 2 * np.pi * (part / whole - eighths / 4)
    return np.asarray((np.cos(angle) + 1j * np.sin(angle)) * _QUARTERS[eighths.astype(np.intp) % 4])


def _one_minus_turn(half_angle: npt.NDArray[np.floating[Any]]) -> Array:
    """1 − e^{iθ}, accurate for small θ."""
    sine = np.sin(half_angle)
    return np.asarray(2 * sine**2 - 2j * sine * np.cos(half_angle))


def summation_error(spectrum: Array, interval: float, length: int) -> float:
    """What rounding may do to a sum over frequencies: terms are at most 1/sin(θ/2) and 2/|1 − e^{iθ − interval}|."""
    sizes = np.abs(spectrum)
    sines = np.sin(np.pi / length * np.arange(1, sizes.size))
    weights = 1 / sines + 2 / np.hypot(np.expm1(-interval), 2 * np.exp(-interval / 2) * sines)
    terms = 2 * sizes[0] + 2 * float(sizes[1:] @ weights) / length
    return float(_TERM_ERROR * UNIT_ROUNDOFF * terms)
