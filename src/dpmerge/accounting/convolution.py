"""Composition of privacy loss distributions by Fourier transform, with its rounding error accounted for.

Guarantees: the composed distribution bounds the true divergence in its direction. Everything that is lost
(truncated tails, rounding of the transform, rounding of each discretised step) is added back as mass at
infinity, so that it can only raise δ. Compositions of the same steps on the same grid share their transforms:
each further one is a sum of logarithms.
Refuses nothing; its callers refuse δ too close to the added mass.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from dpmerge.accounting.composed_loss import ComposedLoss, summation_error
from dpmerge.accounting.discretised_step import RELATIVE_ERROR
from dpmerge.accounting.step_mechanisms import Step
from dpmerge.accounting.step_spectrum import (
    UNIT_ROUNDOFF,
    StepSpectrum,
    all_frequencies,
    low_frequencies,
    step_cumulants,
    step_on_grid,
)
from dpmerge.accounting.validation import Array

COARSEST_INTERVAL = 1e-4  # for a composition of many steps; a single dear one may be coarser
_FINEST_INTERVAL = 1e-8
_TAIL = 1e-15  # mass allowed beyond either end of the window, put back at infinity
_MOST_BINS = 2**22
_MOST_DEAR_BINS = 2**15  # up to the largest loss of a step that is discretised point by point
_BINS_OF_RARE_STEPS = 2**19
_COMMON_LENGTH = 2**19  # of the circle of grid points where a shorter one would do, so that transforms are shared
_NEGLIGIBLE = -80.0  # logarithm of what is left of a frequency that is dropped

Composition = Mapping[Step, int]
"""How often each step is taken."""


def compose_steps(compositions: Sequence[Composition]) -> Iterator[tuple[ComposedLoss, ComposedLoss]]:
    """For each multiset of steps its composed losses for removal and addition, on one common grid.

    One after the other: a composed loss can be large, and a curve of thousands needs only one at a time.
    """
    interval = min(_fitting_interval(composition) for composition in compositions)
    distinct = {step: None for composition in compositions for step in composition}
    interval = _holding(interval, max(step.largest_loss for step in distinct), _MOST_BINS)
    while True:
        symmetric = all(plus is minus for plus, minus in (step.pmfs(interval) for step in distinct))
        grids = [_Grid(interval, direction, compositions) for direction in ((0,) if symmetric else (0, 1))]
        if max(grid.bins for grid in grids) <= _MOST_BINS:
            break
        interval *= 2
    for place, composition in enumerate(compositions):
        both = [grid.compose(composition, grid.windows[place]) for grid in grids]
        yield both[0], both[-1]


def _fitting_interval(composition: Composition) -> float:
    """A grid fine against the loss of one step and of all, without more bins than are worth their time."""
    variances = {step: count * step.deviation**2 for step, count in composition.items()}
    spread = np.sqrt(sum(variances.values()))
    largest = max(step.largest_loss for step in composition)
    width = 2 * (9 * spread + spread**2) + largest
    wanted = max(step.wanted_bins for step in composition)
    interval = COARSEST_INTERVAL * 2**16 / wanted
    while interval > max(_FINEST_INTERVAL, width / wanted):
        interval /= 2
    # Rarely drawn steps lose hardly anything, and a coarse grid would make that more, a million times over.
    noticed = 0.01 * max(variances.values())
    typical = min(step.deviation for step, variance in variances.items() if variance >= noticed)
    while interval > max(_FINEST_INTERVAL, typical / 16) and width < interval / 2 * _BINS_OF_RARE_STEPS:
        interval /= 2
    dear = [step.largest_loss for step in composition if step.wanted_bins < _MOST_DEAR_BINS]
    return _holding(_holding(interval, largest, _MOST_BINS), max(dear, default=0.0), _MOST_DEAR_BINS)


def _holding(interval: float, loss: float, bins: int) -> float:
    """The interval, doubled until so many of it reach up to the loss."""
    while interval < loss / bins:
        interval *= 2
    return interval


class _Grid:
    """Losses in one direction on one grid, and for each composition the window that holds it."""

    def __init__(self, interval: float, direction: int, compositions: Sequence[Composition]) -> None:
        self._interval = interval
        self._direction = direction
        steps = {step: None for composition in compositions for step in composition}
        self._steps = {step: step_on_grid(step, interval, direction) for step in steps}
        orders = self._chernoff_orders(compositions)
        cumulants = {step: step_cumulants(step, interval, direction, orders) for step in self._steps}
        self.windows = [self._window(composition, np.array(orders), cumulants) for composition in compositions]
        longest = max(step.bins for step in self._steps.values())
        self.bins = max(longest, *(high - low + 1 for low, high in self.windows))

    def compose(self, composition: Composition, window: tuple[int, int]) -> ComposedLoss:
        needed = 1 << (self.bins - 1).bit_length()
        length = max(needed, _COMMON_LENGTH)
        spectra = {step: low_frequencies(step, self._interval, self._direction, length) for step in composition}
        if sum(count * spectra[step].beyond for step, count in composition.items()) > _NEGLIGIBLE:
            length = needed
            spectra = {step: all_frequencies(step, self._interval, self._direction, length) for step in composition}
        low, high = window
        spectrum, rounding, transformed_back = _composed(composition, spectra, length, high - low + 1)
        spectrum *= 1 + RELATIVE_ERROR * sum(composition.values())
        centre = sum(count * self._steps[step].centre for step, count in composition.items())
        survives = sum(count * np.log1p(-self._steps[step].infinity) for step, count in composition.items())
        # Each discretised step adds its own error once (hybrid argument: exchanging one step for a distribution whose
        # divergence is at most s smaller changes the composition's by at most s).
        slack = rounding + sum(count * step.error for step, count in composition.items()) + 2 * _TAIL
        # It is asked by frequencies or by tail sums: of the two ways' errors the larger one.
        slack += max(summation_error(spectrum, self._interval, length), transformed_back)
        return ComposedLoss(
            interval=self._interval,
            first=low + centre,
            bins=high - low + 1,
            length=length,
            centre=centre,
            spectrum=spectrum,
            infinity=float(slack - np.expm1(survives)),
            slack=float(slack),
        )

    def _window(self, composition: Composition, orders: Array, cumulants: Mapping[Step, Array]) -> tuple[int, int]:
        """Centred grid indices outside of which lies at most _TAIL of mass on either side (Chernoff)."""
        low = sum(count * self._steps[step].lowest for step, count in composition.items())
        high = sum(count * self._steps[step].highest for step, count in composition.items())
        total = np.asarray(sum(count * cumulants[step] for step, count in composition.items()))
        reach = (total - np.log(_TAIL)) / np.abs(orders) / self._interval
        reach = np.where(np.isfinite(reach), np.ceil(reach), np.inf)
        right, left = reach[orders > 0].min(), reach[orders < 0].min()
        # The centres are rounded to grid points, which adds up: the window need not be around theirs.
        lowest = int(max(low, -left))
        return lowest, max(int(min(high, right)), lowest)

    def _chernoff_orders(self, compositions: Sequence[Composition]) -> tuple[float, ...]:
        """Orders, of both signs, among which the best exponent of every composition is nearly hit."""
        spreads = [
            np.sqrt(sum(count * self._steps[step].variance for step, count in composition.items()))
            for composition in compositions
        ]
        smallest, largest = max(min(spreads), self._interval), max(*spreads, self._interval)
        # On whole and half exponents, so that other compositions of the same steps ask for the same orders.
        exponents = np.arange(np.floor(np.log2(1 / largest)) - 5, np.ceil(np.log2(1 / smallest)) + 5, 0.5)
        return (*(2.0**exponents).tolist(), *(-(2.0**exponents)).tolist())


def _composed(
    composition: Composition, spectra: Mapping[Step, StepSpectrum], length: int, bins: int
) -> tuple[Array, float, float]:
    """The spectrum of a composition as far as it is not negligible, and what rounding may take from any tail sum of it.

    A sum of errors over the bins of a window is at most √bins times their 2-norm, which is that of the error in the
    spectrum over √length. The n-th power multiplies the error of one step by n. Apart from that, what a transform back
    may take: it errs by about u·log₂N relative to its 2-norm.
    """
    logarithms = np.asarray(sum(count * spectra[step].logarithms for step, count in composition.items()))
    relevant = int(np.flatnonzero(logarithms.real > _NEGLIGIBLE)[-1]) + 1
    logarithms = logarithms[:relevant]
    spectrum = np.exp(logarithms)
    powers = sum(count * spectra[step].error[:relevant] for step, count in composition.items())
    relative = powers + UNIT_ROUNDOFF * 2 * np.abs(logarithms)
    in_window = np.sqrt(2 * min(1.0, bins / length))
    error = in_window * np.linalg.norm(np.abs(spectrum) * relative)
    back = in_window * np.linalg.norm(spectrum) * UNIT_ROUNDOFF * 3 * np.log2(length)
    return spectrum, float(error), float(back)
