"""An attack, played often enough to say with a stated confidence how much a release gives away at least.

Guarantees: the bound is at most the truth with at least `confidence`, for any attack and any number of trials. Scores
that fix a threshold are not those that are counted at it. "gaussian" is used only for attacks whose scores are Gaussian
by construction. The same seed gives the same estimate.
Refuses: fewer than 8 trials, a negative seed, an attack that gives another number of scores than was asked for or no
index where it has several; a confidence, δ or ε outside its range.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from dpmerge.auditing.attacks import Array, Attack, Draws
from dpmerge.auditing.counting_estimator import checked_confidence
from dpmerge.auditing.findings import Estimate, Interval, Quantity, Roc
from dpmerge.auditing.gaussian_estimator import gaussian_delta, mixture_epsilon, mu_interval, mu_lower
from dpmerge.auditing.thresholds import best_threshold, best_threshold_delta, fixed_threshold, fixed_threshold_delta
from dpmerge.auditing.trials import Elsewhere, played
from dpmerge.errors import InvalidInputError

FEWEST_TRIALS = 8
ROC_POINTS = 200

_PILOT, _COUNTED = 0, 1


def estimate_epsilon(
    attack: Attack, *, delta: float, trials: int, confidence: float, seed: int, elsewhere: Elsewhere | None = None
) -> Estimate:
    """A lower bound on ε at δ from `trials` trials in each world; a threshold is fixed on a quarter more."""
    if not 0 < delta < 1:
        raise InvalidInputError("delta", delta, "a number strictly between 0 and 1")
    reading = _Reading(
        quantity="epsilon",
        given=delta,
        of_distances=lambda mus: mixture_epsilon(mus, attack.probabilities, delta),
        chosen=partial(best_threshold, delta=delta, confidence=confidence, trials=trials),
        counted=partial(fixed_threshold, delta=delta, confidence=confidence),
    )
    return _estimate(attack, reading, trials, confidence, seed, elsewhere)


def estimate_delta(
    attack: Attack, *, epsilon: float, trials: int, confidence: float, seed: int, elsewhere: Elsewhere | None = None
) -> Estimate:
    """A lower bound on δ at ε from `trials` trials in each world; a threshold is fixed on a quarter more."""
    if not 0 <= epsilon < np.inf:
        raise InvalidInputError("epsilon", epsilon, "a finite number ≥ 0")
    reading = _Reading(
        quantity="delta",
        given=epsilon,
        of_distances=lambda mus: float(np.asarray(attack.probabilities) @ gaussian_delta(mus, epsilon)),
        chosen=partial(best_threshold_delta, epsilon=epsilon, confidence=confidence, trials=trials),
        counted=partial(fixed_threshold_delta, epsilon=epsilon, confidence=confidence),
    )
    return _estimate(attack, reading, trials, confidence, seed, elsewhere)


@dataclass(frozen=True, kw_only=True)
class _Reading:
    """How ε at δ, or δ at ε, is read off distances of Gaussian scores, or counts at a threshold chosen on a pilot."""

    quantity: Quantity
    given: float
    of_distances: Callable[[list[float]], float]
    chosen: Callable[[Array, Array], float]
    counted: Callable[[Array, Array, float], float]


def _estimate(
    attack: Attack, reading: _Reading, trials: int, confidence: float, seed: int, elsewhere: Elsewhere | None
) -> Estimate:
    _check(trials, confidence, seed)
    counts = {_COUNTED: trials} if attack.gaussian else {_COUNTED: trials, _PILOT: trials // 4}
    draws = played(attack, counts, seed, elsewhere)
    absent, present = draws[_COUNTED]
    mu: Interval | None = None
    if attack.gaussian:
        lows, mu = _distances(attack, absent, present, confidence)
        bound = reading.of_distances(lows)
    else:
        pilot = draws[_PILOT]
        bound = reading.counted(absent.scores, present.scores, reading.chosen(pilot[0].scores, pilot[1].scores))
    return Estimate(
        quantity=reading.quantity,
        bound=bound,
        given=reading.given,
        estimator="gaussian" if attack.gaussian else "counting",
        trials=trials,
        confidence=confidence,
        mu=mu,
        roc=roc(absent.scores, present.scores),
    )


def roc(absent: Array, present: Array) -> Roc:
    """At most 200 points of which the false rates are spaced evenly in their logarithm, from small to large."""
    without, within = np.sort(absent), np.sort(present)
    hits = np.unique(np.geomspace(1, without.size, ROC_POINTS).round().astype(np.intp))
    cuts = np.unique(without[without.size - hits])[::-1]
    return Roc(
        false=1 - np.searchsorted(without, cuts) / without.size,
        true=1 - np.searchsorted(within, cuts) / within.size,
    )


def _check(trials: int, confidence: float, seed: int) -> None:
    checked_confidence(confidence)
    if trials < FEWEST_TRIALS:
        raise InvalidInputError("trials", trials, f"at least {FEWEST_TRIALS}")
    if seed < 0:
        raise InvalidInputError("seed", seed, "an integer ≥ 0")


def _distances(attack: Attack, absent: Draws, present: Draws, confidence: float) -> tuple[list[float], Interval | None]:
    """For each public index a lower limit of μ, all of them right at once with `confidence` by the union bound.

    Given how often each index was drawn its scores are independent, so that the limits hold. Of an index that was
    hardly ever drawn nothing is known, and 0 is the limit.
    """
    chances = attack.probabilities
    if len(chances) == 1:
        low = mu_lower(absent.scores, present.scores, confidence)
        return [low], mu_interval(absent.scores, present.scores, confidence)
    if absent.index is None or present.index is None:
        raise InvalidInputError("index", None, f"one a trial, for an attack with {len(chances)} of them")
    for index in (absent.index, present.index):
        if index.min() < 0 or index.max() >= len(chances):
            found = f"from {index.min()} to {index.max()}"
            raise InvalidInputError(
                "index", None, f"from 0 to {len(chances) - 1}, one for each probability", found=found
            )
    each = 1 - (1 - confidence) / sum(chance > 0 for chance in chances)
    lows = []
    for i in range(len(chances)):
        without, within = absent.scores[absent.index == i], present.scores[present.index == i]
        lows.append(mu_lower(without, within, each) if min(without.size, within.size) >= 2 else 0.0)
    return lows, None
