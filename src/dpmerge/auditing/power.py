"""How many trials an audit needs, known before any is made.

Guarantees: against a release that is exactly μ-GDP, attacked in the best way, an audit with the returned number of
trials in each world shows at least `tightness` of the true ε with at least the wanted probability. It is computed from
the exact distribution of what is observed, noncentral t or binomial. For "counting" that is true of a best threshold as
if it were known; half as many trials again are added for one that a pilot fixes: in simulations that is enough for a
power of 0.9, and nothing is proved of it.
Refuses: a power or a tightness outside (0, 1), a μ that is not positive or too small to have an ε, an estimator without
a plan, and a wish that 10⁹ trials do not meet.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from scipy.optimize import brentq
from scipy.special import bdtr, bdtrc, ndtr, ndtri
from scipy.stats import binom

from dpmerge.auditing.attacks import Array
from dpmerge.auditing.counting_estimator import checked_confidence, clopper_pearson
from dpmerge.auditing.findings import TIGHT, Estimator
from dpmerge.auditing.gaussian_estimator import gaussian_delta, gaussian_epsilon, mixture_epsilon, t_tail
from dpmerge.errors import InvalidInputError

MOST_TRIALS = 10**9
FEWEST_TRIALS = 8
_PILOT_ALLOWANCE = 1.5
_GROUPS = 256
_DRAWS = 4000

_Chance = Callable[[int], float]
"""Trials in each world → the probability that the bound is as large as wanted."""


def trials_needed(
    *, mu: float, delta: float, confidence: float, power: float, estimator: Estimator, tightness: float = TIGHT
) -> int:
    """Trials in each world with which a lower bound reaches tightness · ε(μ, δ) with probability ≥ power.

    About the fewest: the power of counts has teeth, so that a few fewer may do as well. A pilot's own come on top.
    """
    _check(confidence, power, tightness)
    truth = _true_epsilon(mu, delta)
    chance = _chance(estimator, mu, delta, confidence, tightness * truth)
    allowance = _PILOT_ALLOWANCE if estimator == "counting" else 1.0
    most = int(MOST_TRIALS / allowance)
    if chance(most) < power:
        raise _out_of_reach(power, f"{tightness:g} of ε = {truth:.4g} by {estimator}")
    return math.ceil(_fewest(chance, power, most) * allowance)


def selection_trials_needed(
    *,
    mus: Sequence[float],
    probabilities: Sequence[float],
    delta: float,
    confidence: float,
    power: float,
    tightness: float = TIGHT,
) -> int:
    """The same for a release drawn in sight: candidate i has π_i of the trials, and all limits share the error.

    Limits are taken as normal, which for planning they are; how often a draw of all of them shows enough is counted on
    4,000 draws.
    """
    _check(confidence, power, tightness)
    truth, chances = mixture_epsilon(mus, probabilities, delta), np.asarray(probabilities, dtype=float)
    if truth == 0:
        raise _nothing_to_show("mus", list(mus), delta)
    distances, wanted = np.asarray(mus, dtype=float), tightness * truth
    tail = float(ndtri(1 - (1 - confidence) / len(distances)))
    noise = np.random.default_rng(0).standard_normal((_DRAWS, len(distances))) - tail

    def chance(trials: int) -> float:
        scale = np.sqrt((2 + distances**2 / 4) / (chances * trials))
        lows = np.maximum(0.0, distances + scale * noise)
        return float(np.mean(gaussian_delta(lows, wanted) @ chances >= delta))

    if chance(MOST_TRIALS) < power:
        raise _out_of_reach(power, f"{tightness:g} of ε = {truth:.4g}")
    return _fewest(chance, power, MOST_TRIALS)


def _fewest(chance: _Chance, power: float, most: int) -> int:
    """About the fewest trials with so much power, where the most have it."""
    low, high = FEWEST_TRIALS - 1, FEWEST_TRIALS
    while chance(high) < power:
        low, high = high, min(2 * high, most)
    while high - low > max(1, high // 1000):
        middle = (low + high) // 2
        low, high = (low, middle) if chance(middle) >= power else (middle, high)
    return high


def _check(confidence: float, power: float, tightness: float) -> None:
    checked_confidence(confidence)
    for name, value in (("power", power), ("tightness", tightness)):
        if not 0 < value < 1:
            raise InvalidInputError(name, value, "a number strictly between 0 and 1")


def _true_epsilon(mu: float, delta: float) -> float:
    if not 0 < mu < math.inf:
        raise InvalidInputError("mu", mu, "a finite number > 0")
    truth = gaussian_epsilon(mu, delta)
    if truth == 0:
        raise _nothing_to_show("mu", mu, delta)
    return truth


def _out_of_reach(power: float, wanted: str) -> InvalidInputError:
    problem = f"power: no 10⁹ trials suffice to show {wanted} with probability {power:g}"
    return InvalidInputError("power", power, "ask for less", problem=problem)


def _nothing_to_show(field: str, value: object, delta: float) -> InvalidInputError:
    problem = f"{field}: ε is 0 at δ = {delta:g}, so there is nothing to show"
    return InvalidInputError(field, value, "audit at a smaller δ", problem=problem)


def _chance(estimator: Estimator, mu: float, delta: float, confidence: float, wanted: float) -> _Chance:
    if estimator == "gaussian":
        return _gaussian_chance(mu, delta, 1 - confidence, wanted)
    if estimator != "counting":
        raise InvalidInputError("estimator", estimator, '"gaussian" or "counting"')
    return _counting_chance(mu, delta, (1 - confidence) / 2, wanted)


def _gaussian_chance(mu: float, delta: float, error: float, wanted: float) -> _Chance:
    """The bound is as large as wanted where the t statistic is larger than it would be, but for `error`, at that μ."""
    lesser = float(brentq(lambda m: gaussian_epsilon(m, delta) - wanted, 0.0, mu, xtol=1e-12 * mu))

    def chance(trials: int) -> float:
        scale, freedom = math.sqrt(2 / trials), 2 * trials - 2
        shift = lesser / scale
        beyond = 1.0
        while t_tail(shift + beyond, freedom, shift) > error:
            beyond *= 2
        critical = brentq(lambda t: t_tail(t, freedom, shift) - error, shift - 10, shift + beyond, xtol=1e-10)
        return t_tail(float(critical), freedom, mu / scale)

    return chance


def _counting_chance(mu: float, delta: float, error: float, wanted: float) -> _Chance:
    """Of "the record is there", against δ₊; for Gaussians the other way is its mirror image and gives the same."""
    start = _clearest_cut(mu, delta, wanted)

    def chance(trials: int) -> float:
        # For few false hits the best cut is a little further out, and the chance has teeth.
        cuts = start + np.linspace(-0.2, 0.6, 15)
        rates = zip(ndtr(mu - cuts).tolist(), ndtr(-cuts).tolist(), strict=True)
        return max(_chance_at(trials, true, false, delta, error, wanted) for true, false in rates)

    return chance


def _clearest_cut(mu: float, delta: float, wanted: float) -> float:
    """Where log((t − δ)/f) is above what is wanted by most of its own deviations, of which √trials is a factor."""
    cuts = np.linspace(-2, mu + 8, 2000)
    t, f = ndtr(mu - cuts), ndtr(-cuts)
    seen = t > delta
    cuts, t, f = cuts[seen], t[seen], f[seen]
    deviation = np.sqrt((1 - f) / f + t * (1 - t) / (t - delta) ** 2)
    return float(cuts[np.argmax((np.log((t - delta) / f) - wanted) / deviation)])


def _chance_at(trials: int, true: float, false: float, delta: float, error: float, wanted: float) -> float:
    """P[lower limit of the true rate ≥ δ + e^wanted · upper limit of the false rate], or a little less.

    False hits are taken in groups, each as if it were its largest member. The lower limit is at least p exactly where
    so many hits or more have probability at most `error` at p.
    """
    last = binom.isf(1e-9, trials, false)
    tops = np.unique(np.append(np.linspace(binom.ppf(1e-9, trials, false), last, _GROUPS).round(), last))
    weights = np.diff(bdtr(tops, trials, false), prepend=0.0)
    _, false_high = clopper_pearson(tops, trials, 1 - error)
    needed = delta + math.exp(wanted) * false_high
    possible = needed < 1
    if not possible.any():
        return 0.0
    hits = binom.isf(error, trials, needed[possible]) + 1
    return float(weights[possible] @ _at_least(hits, trials, true))


def _at_least(hits: Array, trials: int, rate: float) -> Array:
    """P[Binomial ≥ hits], which is 0 beyond the number of trials."""
    within = np.minimum(hits, trials)
    return np.where(hits <= trials, np.where(within > 0, bdtrc(np.maximum(within - 1, 0), trials, rate), 1.0), 0.0)
