"""Lower bounds from scores: at a threshold fixed beforehand, at all thresholds, or at one chosen on a part of them.

Guarantees: every bound holds with its confidence for any number of scores and any distribution of them, ties included,
if the scores are independent and those of one world alike. A threshold never depends on the scores counted at it,
unless that is paid for.
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
"""From rung to rung. Finer rungs cost confidence, coarser ones the best threshold; from 1.1 to 2 it matters little."""

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


def all_thresholds(absent: npt.ArrayLike, present: npt.ArrayLike, *, delta: float, confidence: float) -> float:
    """A lower bound on ε at δ, the largest that any of many thresholds gives, paid for by a union bound.

    The thresholds are order statistics of the absent scores, at places on a ladder that only their number n decides:
    the attack says "it is there" above the (k+1)-th largest. What is proved: the rate of absent scores above that one
    is at most the (k+1)-th smallest of n uniform numbers, a beta variable whose quantile is the upper limit for k hits;
    given the absent scores these thresholds are fixed for the present ones, whose hits are binomial; and at each of the
    K rungs each of the two limits may fail with (1 − confidence) / 2K. K grows as log n: 118 rungs for 10⁶ scores,
    where Bonferroni's correction for all thresholds would pay for 10⁶. Of scores with few values the false rate is
    rounded up to a rung.
    """
    return _all(*_checked(absent, present), partial(epsilon_from_rates, delta=delta), confidence)


def all_thresholds_delta(absent: npt.ArrayLike, present: npt.ArrayLike, *, epsilon: float, confidence: float) -> float:
    """A lower bound on δ at ε, the largest of many thresholds; proved as in `all_thresholds`."""
    return _all(*_checked(absent, present), partial(delta_from_rates, epsilon=epsilon), confidence)


def split_threshold(
    absent: npt.ArrayLike, present: npt.ArrayLike, *, delta: float, confidence: float, rng: np.random.Generator
) -> float:
    """A lower bound on ε at δ: a random quarter of the scores chooses the threshold, the rest is counted at it."""
    return _split(*_checked(absent, present), partial(epsilon_from_rates, delta=delta), confidence, rng)


def split_threshold_delta(
    absent: npt.ArrayLike, present: npt.ArrayLike, *, epsilon: float, confidence: float, rng: np.random.Generator
) -> float:
    """A lower bound on δ at ε: a random quarter of the scores chooses the threshold, the rest is counted at it."""
    return _split(*_checked(absent, present), partial(delta_from_rates, epsilon=epsilon), confidence, rng)


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


def _all(absent: Array, present: Array, reading: _Reading, confidence: float) -> float:
    absent, present = np.sort(absent), np.sort(present)
    false_hits = _ladder(absent.size)
    above = absent[absent.size - 1 - false_hits]
    hits = present.size - np.searchsorted(present, above, side="right")
    each = 1 - (1 - checked_confidence(confidence)) / (2 * false_hits.size)
    # Not the hits counted above a tied score: the proof is about the rung.
    _, false_high = clopper_pearson(false_hits, absent.size, each)
    true_low, _ = clopper_pearson(hits, present.size, each)
    return float(reading(true_low, false_high).max())


def _split(absent: Array, present: Array, reading: _Reading, confidence: float, rng: np.random.Generator) -> float:
    if min(absent.size, present.size) < 2:
        raise InvalidInputError("scores", min(absent.size, present.size), "at least 2 in each world, to be split")
    absent, present = rng.permutation(absent), rng.permutation(present)
    first, second = max(1, absent.size // 4), max(1, present.size // 4)
    counted = min(absent.size - first, present.size - second)
    threshold = _best(absent[:first], present[:second], reading, confidence, counted)
    return _at(threshold, absent[first:], present[second:], reading, confidence)


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
