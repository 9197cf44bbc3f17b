"""From how often an attack says "it is there" to a lower bound: exact binomial limits, and what they say of ε and δ.

Guarantees: a limit holds with its confidence for any number of trials, not only for many (Clopper, Pearson 1934); a
bound is never negative or NaN and, of finitely many trials, never infinite.
Refuses: more hits than trials, rates outside [0, 1], a confidence outside (0, 1), a δ outside [0, 1), a negative ε.

With the record there the attack says so in a share t of cases, without it in a share f. What is (ε, δ)-DP both ways has
t ≤ e^ε f + δ and 1 − f ≤ e^ε (1 − t) + δ (Kairouz, Oh, Viswanath 2015). So a lower limit of t and an upper limit of f
bound ε and δ from below, and the same two limits serve both ways.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.special import betainccinv, betaincinv

from dpmerge.auditing.attacks import Array
from dpmerge.errors import InvalidInputError


def clopper_pearson(hits: npt.ArrayLike, trials: npt.ArrayLike, confidence: float) -> tuple[Array, Array]:
    """The lower and the upper limit of a probability, each of them right with at least `confidence`.

    Both are right at once with at least 2 · confidence − 1.

    >>> low, high = clopper_pearson(3, 100, 0.975)
    >>> round(float(low), 5), round(float(high), 5)
    (0.00623, 0.08518)
    """
    error = 1 - checked_confidence(confidence)
    k, n = np.broadcast_arrays(np.asarray(hits, dtype=float), np.asarray(trials, dtype=float))
    if not np.all(n >= 1):
        raise InvalidInputError("trials", trials, "at least 1")
    if not np.all((k >= 0) & (k <= n)):
        raise InvalidInputError("hits", hits, "from 0 to the number of trials")
    # A limit that is 0 or 1 by definition is asked for one hit further in, and then replaced.
    some, few = np.maximum(k, 1), np.minimum(k, n - 1)
    low = np.where(k > 0, betaincinv(some, n - some + 1, error), 0.0)
    high = np.where(k < n, betainccinv(few + 1, n - few, error), 1.0)
    return low, high


def epsilon_from_rates(true_low: npt.ArrayLike, false_high: npt.ArrayLike, delta: float) -> Array:
    """The least ε ≥ 0 that at δ allows an attack to be right so often and wrong so seldom; of limits, a lower bound.

    >>> round(float(epsilon_from_rates(0.5, 0.01, 1e-5)), 6)
    3.912003
    """
    if not 0 <= delta < 1:
        raise InvalidInputError("delta", delta, "a number in [0, 1)")
    t, f = _rates(true_low, false_high)
    with np.errstate(divide="ignore", invalid="ignore"):
        present = np.log(np.maximum(t - delta, 0.0)) - np.log(f)
        absent = np.log(np.maximum(1 - f - delta, 0.0)) - np.log1p(-t)
    # Where both sides of an inequality are 0 the logarithms have no difference, and it says nothing of ε.
    return np.asarray(np.fmax(0.0, np.fmax(present, absent)))


def delta_from_rates(true_low: npt.ArrayLike, false_high: npt.ArrayLike, epsilon: float) -> Array:
    """The least δ ≥ 0 that at ε allows an attack to be right so often and wrong so seldom; of limits, a lower bound.

    >>> round(float(delta_from_rates(0.5, 0.01, 1.0)), 6)
    0.472817
    """
    if not 0 <= epsilon < np.inf:
        raise InvalidInputError("epsilon", epsilon, "a finite number ≥ 0")
    t, f = _rates(true_low, false_high)
    factor = np.exp(min(epsilon, 700.0))  # beyond, nothing changes but that 0 · ∞ would be no number
    return np.asarray(np.maximum(0.0, np.maximum(t - factor * f, (1 - f) - factor * (1 - t))))


def checked_confidence(confidence: float) -> float:
    """The confidence, if it is strictly between 0 and 1."""
    if not 0 < confidence < 1:
        raise InvalidInputError("confidence", confidence, "a number strictly between 0 and 1, such as 0.95")
    return confidence


def _rates(true_low: npt.ArrayLike, false_high: npt.ArrayLike) -> tuple[Array, Array]:
    t, f = np.asarray(true_low, dtype=float), np.asarray(false_high, dtype=float)
    for name, rate in (("true_low", t), ("false_high", f)):
        if not np.all((rate >= 0) & (rate <= 1)):
            raise InvalidInputError(name, rate.tolist(), "rates in [0, 1]")
    return t, f
