"""Lower bounds from scores at a threshold that was fixed beforehand, and the choice of one on other scores.

Guarantees: every bound holds with its confidence for any number of scores and any distribution of them, ties included,
if the scores are independent and those of one world alike. A threshold must not depend on the
scores counted at it.
Refuses: no scores, NaN among them; a confidence, δ or ε outside its range.

The attack says "it is there" where score ≥ threshold. Both limits that a bound needs, of the true and of the false
rate, share the error by the union bound. Each bound on ε at a given δ has its twin, on δ at a given ε.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr, ndtri

from dpmerge.auditing.attacks import Array
from dpmerge.auditing.counting_estimator import (
    checked_confidence,
    clopper_pearson,
    delta_from_rates,
    epsilon_from_rates,
)
from dpmerge.errors import InvalidInputError

_Reading = Callable[[Array, Array], Array]
"""(lower limit of the true rate, upper limit of the false rate) → lower bound."""

_GROWTH = 1.25
"""From rung to rung: finer ones cost time, coarser ones the best threshold; from 1.1 to 2 it matters little."""

_TAIL = 50
"""So many of the largest scores say how the rate falls beyond them."""


def fixed_threshold(
    absent: npt.ArrayLike, present: npt.ArrayLike, threshold: float, *, delta: float, confidence: float
) -> float:
    """A lower bound on ε at δ. The threshold must not depend on these scores.

    >>> absent, present = np.arange(100), np.arange(100) + 80
    >>> round(fixed_threshold(absent, present, 100, delta=1e-5, confidence=0.95), 6)
    2.973132
    """
    return _at(threshold, *_checked(absent, present), partial(epsilon_from_rates, delta=delta), confidence)


def fixed_threshold_delta(
    absent: npt.ArrayLike, present: npt.ArrayLike, threshold: float, *, epsilon: float, confidence: float
) -> float:
    """A lower bound on δ at ε. The threshold must not depend on these scores."""
    return _at(threshold, *_checked(absent, present), partial(delta_from_rates, epsilon=epsilon), confidence)


def best_threshold(
    absent: npt.ArrayLike, present: npt.ArrayLike, *, delta: float, confidence: float, trials: int | None = None
) -> float:
    """The threshold at which `trials` other scores in each world are expected to show most of ε at δ.

    By default as many as there are here. Chosen on these scores it must be used on others; how it is chosen is a
    matter of judgement, and no bound depends on it.
    """
    return _best(*_checked(absent, present), partial(epsilon_from_rates, delta=delta), confidence, trials)


def best_threshold_delta(
    absent: npt.ArrayLike, present: npt.ArrayLike, *, epsilon: float, confidence: float, trials: int | None = None
) -> float:
    """The threshold at which `trials` other scores in each world are expected to show most of δ at ε."""
    return _best(*_checked(absent, present), partial(delta_from_rates, epsilon=epsilon), confidence, trials)


def _at(threshold: float, absent: Array, present: Array, reading: _Reading, confidence: float) -> float:
    if np.isnan(threshold):
        raise InvalidInputError("threshold", threshold, "a number")
    each = (1 + checked_confidence(confidence)) / 2
    _, false_high = clopper_pearson(np.count_nonzero(absent >= threshold), absent.size, each)
    true_low, _ = clopper_pearson(np.count_nonzero(present >= threshold), present.size, each)
    return float(reading(true_low, false_high))


def _best(absent: Array, present: Array, reading: _Reading, confidence: float, trials: int | None) -> float:
    """Of the gaps above an absent score or below a present one, at the rungs of either world.

    The rate that should be small is taken from a smooth tail, because more trials look further out than these scores
    reach; the one that should be large by its lower limit, lest luck be taken for a signal.
    """
    count = min(absent.size, present.size) if trials is None else trials
    absent, present = np.sort(absent), np.sort(present)
    each = (1 + checked_confidence(confidence)) / 2
    above, below = absent[absent.size - 1 - _ladder(absent.size)], present[_ladder(present.size)]
    cuts = np.unique(np.concatenate([_gap_above(above, absent, present), _gap_below(below, absent, present)]))
    _, false_high = clopper_pearson(absent.size - np.searchsorted(absent, cuts), absent.size, each)
    true_low, _ = clopper_pearson(present.size - np.searchsorted(present, cuts), present.size, each)

    def shown(true: Array, false: Array) -> Array:
        return reading(clopper_pearson(true * count, count, each)[0], clopper_pearson(false * count, count, each)[1])

    hits = shown(true_low, _tail(absent[::-1], cuts))
    misses = shown(1 - _tail(-present, -cuts), false_high)
    bounds = np.maximum(hits, misses)
    if not bounds.any():  # too few scores to expect anything: then where the two worlds differ most
        bounds = true_low - false_high
    return float(cuts[np.argmax(bounds)])


def _tail(descending: Array, cuts: Array) -> Array:
    """The rate of scores ≥ cut; where few are so large, along a Gaussian tail fitted to the largest ones."""
    count = descending.size
    counted = count - np.searchsorted(descending[::-1], cuts)
    few = min(_TAIL, count // 4)
    largest = descending[:few]
    if few < 3 or not np.isfinite(largest).all() or largest[0] == largest[-1]:
        return np.asarray(counted / count)
    ranks = np.arange(1, few + 1)
    weight = ranks / ranks.sum()
    depth = -ndtri((ranks - 0.5) / count)
    with np.errstate(all="ignore"):  # of scores so large or small that squares leave the range, none is fitted
        centre, mean_depth = weight @ largest, weight @ depth
        slope = (weight @ ((largest - centre) * (depth - mean_depth))) / (weight @ (largest - centre) ** 2)
        if not np.isfinite([slope, centre]).all():
            return np.asarray(counted / count)
    return np.where(counted < few, ndtr(-mean_depth - slope * (cuts - centre)), counted / count)


def _ladder(size: int) -> npt.NDArray[np.intp]:
    """Counts from 0 to size − 1: the small ones, then a quarter more each time up to half; and its mirror image."""
    rungs = [0]
    while (following := max(rungs[-1] + 1, int(rungs[-1] * _GROWTH))) <= size // 2:
        rungs.append(following)
    counts = np.asarray(rungs, dtype=np.intp)
    return np.unique(np.concatenate([counts, size - 1 - counts]))


def _gap_above(scores: Array, absent: Array, present: Array) -> Array:
    """A threshold between each score and the next larger one of either world; without one, infinity."""
    following = np.full(scores.shape, np.inf)
    for world in (absent, present):
        places = np.searchsorted(world, scores, side="right")
        following = np.minimum(following, np.append(world, np.inf)[places])
    return _between(scores, following)


def _gap_below(scores: Array, absent: Array, present: Array) -> Array:
    """A threshold between the next smaller score of either world and each score; without one, the score."""
    previous = np.full(scores.shape, -np.inf)
    for world in (absent, present):
        places = np.searchsorted(world, scores, side="left")
        previous = np.maximum(previous, np.append(-np.inf, world)[places])
    return _between(previous, scores)


def _between(low: Array, high: Array) -> Array:
    """Halfway, so that rounding does not move a score across; above an infinite gap, its upper end."""
    with np.errstate(invalid="ignore", over="ignore"):
        middle = low + (high - low) / 2
    return np.where(np.isfinite(middle) & (middle > low), middle, high)


def _checked(absent: npt.ArrayLike, present: npt.ArrayLike) -> tuple[Array, Array]:
    without, within = np.asarray(absent, dtype=float), np.asarray(present, dtype=float)
    for name, scores in (("absent", without), ("present", within)):
        if scores.ndim != 1 or scores.size == 0:
            raise InvalidInputError(
                name, scores.shape, "a list of at least one score", found=f"the shape {scores.shape}"
            )
        if np.isnan(scores).any():
            raise InvalidInputError(name, "NaN", "scores that are numbers")
    return without, within
