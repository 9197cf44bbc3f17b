"""Composition of privacy loss distributions by Fourier transform, with its rounding error accounted for.

Guarantees: the composed distribution bounds the true divergence in its direction. Everything that is lost
(truncated tails, rounding of the transform, rounding of each discretised step) is added back as mass at
infinity, so that it can only raise δ. Several compositions of the same steps share the single-step transforms:
a whole curve of prefixes costs one inverse transform a checkpoint.
Refuses nothing; its callers refuse δ too close to the added mass.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from scipy.fft import irfft, next_fast_len, rfft

from dpmerge.accounting.discretised_step import LossPmf
from dpmerge.accounting.step_mechanisms import Step
from dpmerge.accounting.validation import Array

COARSEST_INTERVAL = 1e-4  # for a composition of many steps; a single dear one may be coarser
_FINEST_INTERVAL = 1e-8
_TAIL = 1e-15  # mass allowed beyond either end of the window, put back at infinity
_MOST_BINS = 2**22
_UNIT_ROUNDOFF = 2.0**-53
_SUMMATION_ERROR = 1e-12  # relative, of tail sums, beside a part that grows with the number of terms


@dataclass(frozen=True, eq=False)
class ComposedLoss:
    """A composed loss distribution in one direction, ready to be asked for δ at any ε in constant time.

    `slack` is the part of `infinity` that stands for floating-point error rather than for privacy loss.
    """

    pmf: LossPmf
    slack: float

    @cached_property
    def _top_mass(self) -> Array:
        """The mass of the n largest losses, n = 0 … size, rounded up."""
        sums = np.zeros(self.pmf.probabilities.size + 1)
        np.cumsum(self._descending, out=sums[1:])
        # Covers the rounding of both sums below: of the additions, and of a decay applied once a bin.
        sums *= 1 + _SUMMATION_ERROR + 4 * sums.size * _UNIT_ROUNDOFF
        return sums

    @cached_property
    def _top_discounted(self) -> Array:
        """Σ p_j e^{−(l_j − l)} over the n largest losses, l the least of them; a recursion that cannot overflow."""
        from scipy.signal import lfilter  # takes a second to import, and only sampled runs need it

        sums = np.zeros(self.pmf.probabilities.size + 1)
        sums[1:] = lfilter([1.0], [1.0, -np.exp(-self.pmf.interval)], self._descending)
        return sums

    @cached_property
    def _descending(self) -> Array:
        return np.ascontiguousarray(self.pmf.probabilities[::-1])

    def delta(self, epsilon: Array) -> Array:
        """∞-mass + Σ p_j (1 − e^{ε − l_j})₊, at most one."""
        pmf = self.pmf
        size = pmf.probabilities.size
        position = np.floor(epsilon / pmf.interval) + 1 - pmf.first
        index = np.clip(np.nan_to_num(position, posinf=size), 0, size).astype(np.intp)
        loss = (pmf.first + index) * pmf.interval
        gap = np.exp(np.minimum(epsilon - loss, 0.0))
        finite = self._top_mass[size - index] - gap * self._top_discounted[size - index]
        return np.asarray(np.minimum(1.0, pmf.infinity + np.maximum(finite, 0.0)))

    def epsilon(self, delta: float) -> float:
        """The smallest ε ≥ 0 with delta(ε) ≤ δ: found on the grid, then solved inside its cell."""
        pmf = self.pmf
        if pmf.infinity > delta:
            return np.inf
        if self.delta(np.asarray(0.0)) <= delta:
            return 0.0
        size = pmf.probabilities.size
        positive = size - max(0, 1 - pmf.first)  # how many grid points have a positive loss
        at_points = self._top_mass[: positive + 1] - self._top_discounted[: positive + 1]
        # Walking down from the largest loss, the last point at which δ is still small enough.
        count = int(np.argmax(np.append(at_points > delta - pmf.infinity, True))) - 1
        loss = (pmf.first + size - count) * pmf.interval
        ratio = (pmf.infinity + self._top_mass[count] - delta) / self._top_discounted[count] if count else 0.0
        epsilon = max(0.0, loss + np.log(ratio)) if ratio > 0 else max(0.0, loss - pmf.interval)
        while self.delta(np.asarray(epsilon)) > delta:
            epsilon = np.nextafter(epsilon + 1e-12 * pmf.interval, np.inf)
        return float(epsilon)


Composition = Mapping[Step, int]
"""How often each step is taken."""


def compose_steps(compositions: Sequence[Composition]) -> Iterator[tuple[ComposedLoss, ComposedLoss]]:
    """For each multiset of steps its composed losses for removal and addition, on one common grid.

    One after the other: a composed loss is large, and a curve of thousands needs only one at a time.
    """
    interval = min(_fitting_interval(composition) for composition in compositions)
    distinct = {step: None for composition in compositions for step in composition}
    while True:
        parts = {step: step.pmfs(interval) for step in distinct}
        symmetric = all(plus is minus for plus, minus in parts.values())
        directions = (0,) if symmetric else (0, 1)
        transforms = [_Transforms({s: p[d] for s, p in parts.items()}, compositions) for d in directions]
        if max(t.window_bins for t in transforms) <= _MOST_BINS:
            break
        interval *= 2
    for place, composition in enumerate(compositions):
        both = [t.compose(composition, t.windows[place]) for t in transforms]
        yield both[0], both[-1]


def _fitting_interval(composition: Composition) -> float:
    """A grid fine against the loss of one step and of all, without more bins than are worth their time."""
    spread = np.sqrt(sum(count * step.deviation**2 for step, count in composition.items()))
    width = 2 * (9 * spread + spread**2) + max(step.largest_loss for step in composition)
    wanted = max(step.wanted_bins for step in composition)
    interval = COARSEST_INTERVAL * 2**16 / wanted
    while interval > max(_FINEST_INTERVAL, width / wanted):
        interval /= 2
    while interval < max(step.largest_loss for step in composition) / _MOST_BINS:
        interval *= 2
    return interval


class _Transforms:
    """The single-step transforms in one direction, and the window that holds every composition asked for."""

    def __init__(self, pmfs: Mapping[Step, LossPmf], compositions: Sequence[Composition]) -> None:
        self._pmfs = pmfs
        self._centres = {step: _centre(pmf) for step, pmf in pmfs.items()}
        self.interval = next(iter(pmfs.values())).interval
        orders = self._chernoff_orders(compositions)
        cumulants = {step: _cumulants(pmf, self._centres[step], orders) for step, pmf in pmfs.items()}
        self.windows = [self._window(composition, orders, cumulants) for composition in compositions]
        longest = max(pmf.probabilities.size for pmf in pmfs.values())
        self.window_bins = max(longest, *(high - low + 1 for low, high in self.windows))

    @cached_property
    def _length(self) -> int:
        return int(next_fast_len(self.window_bins, real=True))

    @cached_property
    def _log_spectra(self) -> dict[Step, Array]:
        """Logarithms of the transforms of the centred distributions.

        Centred, a spectrum has hardly any phase where it is not negligible, so that n·log loses no digits to
        multiples of 2π however large n is.
        """
        spectra = {}
        for step, pmf in self._pmfs.items():
            centred = np.zeros(self._length)
            positions = (pmf.first - self._centres[step] + np.arange(pmf.probabilities.size)) % self._length
            centred[positions] = pmf.probabilities
            with np.errstate(divide="ignore"):
                spectra[step] = np.log(rfft(centred))
        return spectra

    def compose(self, composition: Composition, window: tuple[int, int]) -> ComposedLoss:
        log_spectrum = sum(count * self._log_spectra[step] for step, count in composition.items())
        log_spectrum = np.asarray(log_spectrum)
        relevant = np.flatnonzero(log_spectrum.real > -80)[-1] + 1
        spectrum = np.zeros(self._length // 2 + 1, dtype=complex)
        spectrum[:relevant] = np.exp(log_spectrum[:relevant])
        low, high = window
        circular = irfft(spectrum, self._length)
        mass = np.maximum(np.concatenate([circular[self._length + low :], circular[: high + 1]]), 0.0)
        slack = self._rounding_error(composition, spectrum[:relevant]) + 2 * _TAIL
        survives = sum(n * np.log1p(-self._pmfs[step].infinity) for step, n in composition.items())
        offset = sum(count * self._centres[step] for step, count in composition.items())
        pmf = LossPmf(self.interval, low + offset, mass, float(-np.expm1(survives)) + slack)
        return ComposedLoss(pmf, slack)

    def _rounding_error(self, composition: Composition, spectrum: Array) -> float:
        """A bound on what rounding may take from any tail sum of the composed distribution.

        A tail sum of errors is at most the 2-norm of the error in the spectrum. A transform of length N errs by
        about u·log₂N relative to its 2-norm; raising to the n-th power multiplies the single-step error by n.
        Each discretised step adds its own error once (hybrid argument: exchanging one step for a distribution
        whose divergence is at most s smaller changes the composition's by at most s).
        """
        norm = np.sqrt(2 * np.sum(np.abs(spectrum) ** 2))
        single = sum(n * np.linalg.norm(self._pmfs[step].probabilities) for step, n in composition.items())
        transform = _UNIT_ROUNDOFF * np.log2(self._length) * norm * (4 + single)
        return float(transform + sum(n * step.error for step, n in composition.items()))

    def _window(self, composition: Composition, orders: Array, cumulants: Mapping[Step, Array]) -> tuple[int, int]:
        """Centred grid indices outside of which lies at most _TAIL of mass on either side (Chernoff)."""
        low = high = 0
        for step, count in composition.items():
            pmf = self._pmfs[step]
            low += count * (pmf.first - self._centres[step])
            high += count * (pmf.first + pmf.probabilities.size - 1 - self._centres[step])
        total = np.asarray(sum(count * cumulants[step] for step, count in composition.items()))
        reach = (total - np.log(_TAIL)) / np.abs(orders) / self.interval
        reach = np.where(np.isfinite(reach), np.ceil(reach), np.inf)
        right, left = reach[orders > 0].min(), reach[orders < 0].min()
        high = int(min(high, right))
        low = int(max(low, -left))
        return min(low, 0), max(high, 0)

    def _chernoff_orders(self, compositions: Sequence[Composition]) -> Array:
        """Orders, of both signs, among which the best exponent of every composition is nearly hit."""
        variances = {step: _variance(pmf, self._centres[step]) for step, pmf in self._pmfs.items()}
        spreads = [
            np.sqrt(sum(count * variances[step] for step, count in composition.items())) for composition in compositions
        ]
        smallest, largest = max(min(spreads), self.interval), max(*spreads, self.interval)
        # On whole and half exponents, so that other compositions of the same steps ask for the same orders.
        exponents = np.arange(np.floor(np.log2(1 / largest)) - 5, np.ceil(np.log2(1 / smallest)) + 5, 0.5)
        return np.concatenate([2.0**exponents, -(2.0**exponents)])


def _centre(pmf: LossPmf) -> int:
    """The grid index nearest to the mean loss."""
    indices = pmf.first + np.arange(pmf.probabilities.size)
    return int(np.rint(np.dot(indices, pmf.probabilities) / pmf.probabilities.sum()))


def _variance(pmf: LossPmf, centre: int) -> float:
    centred = pmf.losses - centre * pmf.interval
    return float(np.dot(centred**2, pmf.probabilities))


def _cumulants(pmf: LossPmf, centre: int, orders: Array) -> Array:
    """log Σ p_j e^{order·(l_j − centre)} for each order, without overflow."""
    return np.array([_cumulant(pmf, centre, order) for order in orders.tolist()])


@lru_cache(maxsize=2048)
def _cumulant(pmf: LossPmf, centre: int, order: float) -> float:
    """Remembered: a portfolio composes the same few steps in many ways."""
    occupied = pmf.probabilities > 0
    exponents = order * (pmf.losses[occupied] - centre * pmf.interval)
    largest = exponents.max()
    return float(largest + np.log(np.dot(pmf.probabilities[occupied], np.exp(exponents - largest))))
