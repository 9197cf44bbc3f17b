"""One discretised step in the Fourier domain: what composing it thousands of times needs, and no more.

Guarantees: logarithms of the transform are accurate relative to how far the step is from telling nothing: what lies at
the centre of the distribution is taken apart, so that a step that is drawn once in a million times may be composed ten
million times. `error` bounds, for each frequency, what rounding may have done to such a logarithm.
Refuses nothing: `convolution` chooses the grid.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy.fft import rfft
from scipy.special import logsumexp

from dpmerge.accounting.discretised_step import LossPmf
from dpmerge.accounting.step_mechanisms import Step
from dpmerge.accounting.validation import Array

ComplexArray = npt.NDArray[np.complex128]

UNIT_ROUNDOFF = 2.0**-53

MOST_FREQUENCIES = 2**12
"""How many low frequencies are remembered of a step. Composed often enough, nothing else is left of it."""

_NEAR = 4  # grid points on either side of the centre that are transformed by hand
_NEARLY_ALL = 0.5  # of the mass
_NOTHING = -1e3  # the logarithm of no modulus at all, which must stay a number when it is multiplied
_ROW = 2**9  # grid points whose powers are formed once, for cumulants
_LARGEST_EXPONENT = 300.0  # within such a row; no probability is so small that it would vanish


@dataclass(frozen=True, eq=False)
class StepSpectrum:
    """The transform of a step's loss on a circle of grid points, its centre moved to zero.

    `logarithms` and `error` are of the frequencies 0, 1, …; `beyond` is the largest log-modulus of the others.
    """

    logarithms: ComplexArray
    error: Array
    beyond: float

    @classmethod
    def of(cls, pmf: LossPmf, length: int, frequencies: int) -> StepSpectrum:
        """The first frequencies of a distribution on a circle of `length` points, which must be able to hold it."""
        bins = pmf.probabilities.size
        assert bins <= length
        first = pmf.first - centre_of(pmf)
        near = slice(max(0, -_NEAR - first), max(0, _NEAR + 1 - first))
        masses = dict(enumerate(pmf.probabilities[near].tolist(), start=first + near.start))
        circle = np.zeros(length)
        circle[:bins] = pmf.probabilities
        circle[near] = 0.0
        far = rfft(np.roll(circle, first))
        # What is missing of all mass, but for what is at infinity, is rounding; it is not lost.
        missing = max(float(pmf.probabilities.sum()) - 1, -pmf.infinity)
        kept = slice(0, frequencies)
        excess = _excess(far[kept], far[0].real, masses, length, 0) + missing
        log_moduli = _log_moduli(excess)
        logarithms = log_moduli + 1j * np.arctan2(excess.imag, 1 + excess.real)
        angles = 2 * np.pi / length * np.arange(excess.size)
        by_hand = sum(mass * np.minimum(abs(place) * angles, 2.0) for place, mass in masses.items())
        transformed = np.log2(length) * np.sqrt(np.einsum("j,j->", circle, circle))
        moduli = np.maximum(np.exp(log_moduli), 1e-300)
        rounded = (transformed + 8 * by_hand + 4 * np.abs(excess)) / moduli + 4 * np.abs(logarithms)
        return cls(logarithms, UNIT_ROUNDOFF * rounded, _beyond(far, masses, length, missing, frequencies))


def _excess(far: Array, all_far: float, masses: Mapping[int, float], length: int, start: int) -> Array:
    """φ − 1 = Σ p_j (e^{−iθj} − 1), but for missing mass: nothing of order one is ever rounded.

    Points near the centre by hand, where that factor is small; of all others the transform is given.
    """
    half_angles = np.pi / length * np.arange(start, start + far.size)
    once = -2 * np.sin(half_angles) ** 2 - 1j * np.sin(2 * half_angles)
    turned = np.zeros_like(once)
    excess = far - all_far
    for offset in range(1, _NEAR + 1):
        turned = turned + once + turned * once  # e^{−iθ·offset} − 1
        ahead, behind = masses.get(offset, 0.0), masses.get(-offset, 0.0)
        excess += (ahead + behind) * turned.real + 1j * (ahead - behind) * turned.imag
    return excess


def _beyond(far: Array, masses: Mapping[int, float], length: int, missing: float, start: int) -> float:
    """The largest log-modulus from a frequency on: by the triangle inequality, unless all mass is near the centre."""
    if start >= far.size:
        return -np.inf
    nearly_all = sum(masses.values())
    if nearly_all < _NEARLY_ALL:
        return float(np.log(nearly_all + np.abs(far[start:]).max() + 1e-12))
    return float(_log_moduli(_excess(far[start:], far[0].real, masses, length, start) + missing).max())


def _log_moduli(excess: Array) -> Array:
    """log |1 + z|: near one by what is missing of one, elsewhere as it stands."""
    x, y = excess.real, excess.imag
    with np.errstate(divide="ignore", invalid="ignore"):
        near_one = np.log1p(2 * x + x**2 + y**2) / 2
        elsewhere = np.log(np.hypot(1 + x, y))
    return np.maximum(np.where(np.hypot(x, y) < 0.5, near_one, elsewhere), _NOTHING)


def centre_of(pmf: LossPmf) -> int:
    """The grid index nearest to the mean loss.

    Centred, a spectrum has hardly any phase where it is not negligible, so that n·log loses no digits to multiples of
    2π however large n is.
    """
    indices = pmf.first + np.arange(pmf.probabilities.size)
    return int(np.rint(np.einsum("j,j->", indices, pmf.probabilities) / pmf.probabilities.sum()))


def variance_of(pmf: LossPmf, centre: int) -> float:
    """Around the centre."""
    return float(np.einsum("j,j->", (pmf.losses - centre * pmf.interval) ** 2, pmf.probabilities))


def cumulants_of(pmf: LossPmf, centre: int, orders: Array) -> Array:
    """log Σ p_j e^{order·(l_j − centre)} for each order, without overflow."""
    gentle = np.abs(orders) * pmf.interval * _ROW < _LARGEST_EXPONENT
    found = np.empty(orders.size)
    found[gentle] = _cumulants_by_powers(pmf, centre, orders[gentle])
    found[~gentle] = [_cumulant(pmf, centre, order) for order in orders[~gentle].tolist()]
    return found


def _cumulants_by_powers(pmf: LossPmf, centre: int, orders: Array) -> Array:
    """All orders by one product of matrices: the exponentials are powers of one number.

    Row a holds the losses from grid point a·_ROW on; what a whole row is multiplied by is added as a logarithm.
    By einsum, here and below: the threads of BLAS wait for each other, for seconds on a busy machine.
    """
    rows = -(-pmf.probabilities.size // _ROW)
    padded = np.zeros(rows * _ROW)
    padded[: pmf.probabilities.size] = pmf.probabilities
    largest_place = np.where(orders > 0, _ROW - 1, 0)  # in a row: exponents are relative to it, and so at most zero
    powers = np.exp(orders[:, np.newaxis] * pmf.interval * (np.arange(_ROW) - largest_place[:, np.newaxis]))
    with np.errstate(divide="ignore"):
        within = np.log(np.einsum("rj,oj->ro", padded.reshape(rows, _ROW), powers))
    first = pmf.first - centre + _ROW * np.arange(rows)[:, np.newaxis] + largest_place
    return np.asarray(logsumexp(within + orders * pmf.interval * first, axis=0))


def _cumulant(pmf: LossPmf, centre: int, order: float) -> float:
    occupied = pmf.probabilities > 0
    exponents = order * (pmf.losses[occupied] - centre * pmf.interval)
    largest = exponents.max()
    return float(largest + np.log(np.sum(pmf.probabilities[occupied] * np.exp(exponents - largest))))


@dataclass(frozen=True, eq=False)
class StepOnGrid:
    """What choosing a window for a composition needs to know of a step in one direction."""

    centre: int
    variance: float
    lowest: int  # of the occupied grid points, relative to the centre
    highest: int
    infinity: float

    @property
    def bins(self) -> int:
        return self.highest - self.lowest + 1


# All of these are remembered by the step itself: a portfolio composes the same few steps in hundreds of ways.


@lru_cache(maxsize=512)
def step_on_grid(step: Step, interval: float, direction: int) -> StepOnGrid:
    pmf = step.pmfs(interval)[direction]
    centre = centre_of(pmf)
    lowest = pmf.first - centre
    highest = lowest + pmf.probabilities.size - 1
    return StepOnGrid(centre, variance_of(pmf, centre), lowest, highest, pmf.infinity)


@lru_cache(maxsize=512)
def step_cumulants(step: Step, interval: float, direction: int, orders: tuple[float, ...]) -> Array:
    pmf = step.pmfs(interval)[direction]
    return cumulants_of(pmf, step_on_grid(step, interval, direction).centre, np.array(orders))


@lru_cache(maxsize=256)
def low_frequencies(step: Step, interval: float, direction: int, length: int) -> StepSpectrum:
    return StepSpectrum.of(step.pmfs(interval)[direction], length, MOST_FREQUENCIES)


def all_frequencies(step: Step, interval: float, direction: int, length: int) -> StepSpectrum:
    """Not remembered: as long as the grid itself."""
    return StepSpectrum.of(step.pmfs(interval)[direction], length, length)
