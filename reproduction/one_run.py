"""One training run with many canaries, each put in by the toss of a coin: what guessing the tosses says of ε.

Guarantees: a bound is at most the truth with at least `confidence`, whatever the canaries do to each other, if every
toss was fair and independent, the guesses were made from what was released, and how many to make was fixed before.
Both are about adding or removing one canary. `one_run_epsilon` (Steinke, Nasr, Jagielski 2023, arXiv:2305.08846,
theorem 5.2) supposes nothing of the mechanism. `one_run_mu` (Mahloujifar, Melis, Chaudhuri 2024, arXiv:2410.22235) is
about a Gaussian trade-off curve: the release is not ν-GDP for any ν below the bound, and the ε that follows is the
least that a certificate by such a curve may state at δ.
Refuses: more right guesses than guesses, more guesses than canaries, scores and tosses of different number.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt
from scipy.special import bdtrc, expit, ndtr, ndtri

from dpmerge.auditing.attacks import Array
from dpmerge.auditing.counting_estimator import checked_confidence
from dpmerge.auditing.gaussian_estimator import gaussian_epsilon
from dpmerge.errors import InvalidInputError

Counts = npt.NDArray[np.int64]

_LARGEST_MU = 75.0  # where Φ(Φ⁻¹(r) − μ) of any double r is 0
_CANDIDATES = 32


def one_run_guesses(scores: npt.ArrayLike, included: npt.ArrayLike, *, most_in: int, most_out: int) -> tuple[int, int]:
    """(guesses, right ones): the `most_in` largest scores are guessed to be in, the `most_out` smallest to be out.

    Ties are broken by place, which no toss decides.
    """
    values, tosses = np.asarray(scores, dtype=float), np.asarray(included)
    if values.ndim != 1 or values.size == 0 or np.isnan(values).any():
        raise InvalidInputError("scores", values.shape, "a list of at least one score, none of them NaN")
    if tosses.dtype != np.bool_ or tosses.shape != values.shape:
        raise InvalidInputError("included", tosses.shape, f"{values.size} truth values, one for each score")
    if min(most_in, most_out) < 0 or not 1 <= most_in + most_out <= values.size:
        raise InvalidInputError(
            "most_in + most_out", (most_in, most_out), f"at least 0 each, together 1 to {values.size}"
        )
    order = np.argsort(values, kind="stable")
    right = np.count_nonzero(tosses[order[values.size - most_in :]]) + np.count_nonzero(~tosses[order[:most_out]])
    return most_in + most_out, int(right)


def one_run_p_value(
    guesses: npt.ArrayLike, correct: npt.ArrayLike, canaries: npt.ArrayLike, *, epsilon: float, delta: float
) -> Array:
    """At most how likely so many right guesses, or more, are under (ε, δ)-DP.

    With W ~ Binomial(guesses, e^ε/(1 + e^ε)): P[W ≥ v] + 2mδ · max over i ≥ 1 of P[v − i ≤ W < v] / i.
    """
    if not 0 <= epsilon < np.inf:
        raise InvalidInputError("epsilon", epsilon, "a finite number ≥ 0")
    _check_delta(delta)
    r, v, m = _checked(guesses, correct, canaries)
    return _each(partial(_p_value, epsilon=epsilon, delta=delta), r, v, m)


def one_run_epsilon(
    guesses: npt.ArrayLike, correct: npt.ArrayLike, canaries: npt.ArrayLike, *, delta: float, confidence: float
) -> Array:
    """A lower bound on ε at δ: where so many right guesses stop being too unlikely.

    What is (ε, δ)-DP is so for every larger ε, and for a fixed number of guesses the ε that are rejected grow with the
    right ones, so that where the p-value passes 1 − confidence is a lower bound. It is found from below, to 1e-9. (The
    search ends: from ε = 40 on doubles cannot tell a right guess from a sure one, and the p-value is 1.)
    """
    error = 1 - checked_confidence(confidence)
    _check_delta(delta)

    def bound(guessed: int, right: int, planted: int) -> float:
        if _p_value(guessed, right, planted, 0.0, delta) > error:
            return 0.0
        low, high = 0.0, 1.0
        while _p_value(guessed, right, planted, high, delta) <= error:
            low, high = high, 2 * high
        while high - low > 1e-9:
            middle = (low + high) / 2
            below = _p_value(guessed, right, planted, middle, delta) <= error
            low, high = (middle, high) if below else (low, middle)
        return low

    return _each(bound, *_checked(guesses, correct, canaries))


def one_run_mu(guesses: npt.ArrayLike, correct: npt.ArrayLike, canaries: npt.ArrayLike, *, confidence: float) -> Array:
    """A lower bound on μ, if the trade-off curve is Gaussian.

    Of m canaries c are guessed, K of them rightly; R_i and H_i are the expected numbers of right and of wrong guesses
    where K ≥ i, over m. Turn the toss of a canary around: what was "guessed rightly, K ≥ i" becomes "guessed wrongly,
    K ≥ i − 1", so that f-DP says H_{i−1} ≥ Φ(Φ⁻¹(R_i) − μ). Begin from the least that P[K ≥ v] = 1 − confidence allows,
    all of it at K = v, and go down to i = 0: each step adds at least so much to H, and i/(c − i) of that to R. In the
    end R_0 + H_0 = c/m. Where the steps arrive above that, so many right guesses are less likely than 1 − confidence.
    """
    error = 1 - checked_confidence(confidence)

    def bound(guessed: int, right: int, planted: int) -> float:
        if not _contradicts(guessed, right, planted, np.zeros(1), error)[0]:
            return 0.0
        low, high = 0.0, _LARGEST_MU
        while high - low > 1e-9:
            mus = np.linspace(low, high, _CANDIDATES + 2)[1:-1]
            # Contradicted up to some μ and not beyond.
            count = int(np.count_nonzero(_contradicts(guessed, right, planted, mus, error)))
            low, high = ([low, *mus][count], [*mus, high][count])
        return low

    return _each(bound, *_checked(guesses, correct, canaries))


def one_run_f_dp_epsilon(
    guesses: npt.ArrayLike, correct: npt.ArrayLike, canaries: npt.ArrayLike, *, delta: float, confidence: float
) -> Array:
    """A lower bound on ε at δ, if the trade-off curve is Gaussian: that of the lower bound on μ."""
    mus = one_run_mu(guesses, correct, canaries, confidence=confidence)
    return np.asarray([gaussian_epsilon(mu, delta) for mu in mus.flat], dtype=float).reshape(mus.shape)


def _p_value(guesses: int, correct: int, canaries: int, epsilon: float, delta: float) -> float:
    if correct == 0:
        return 1.0
    # P[W ≥ v − i] for i = 0 … v, of which the first is for pure DP.
    tails = np.ones(correct + 1)
    tails[:-1] = bdtrc(np.arange(correct - 1, -1, -1, dtype=float), guesses, float(expit(epsilon)))
    steepest = float(np.max((tails[1:] - tails[0]) / np.arange(1, correct + 1)))
    return min(1.0, float(tails[0]) + 2 * canaries * delta * steepest)


def _contradicts(guesses: int, correct: int, canaries: int, mus: Array, error: float) -> npt.NDArray[np.bool_]:
    """For each μ, whether P[right guesses ≥ correct] = error is more than μ-GDP allows."""
    whole = guesses / canaries
    right = np.full(mus.shape, error * correct / canaries)
    wrong = np.full(mus.shape, error * (guesses - correct) / canaries)
    contradicted: npt.NDArray[np.bool_] = right + wrong > whole
    moving = ~contradicted
    for i in range(correct - 1, -1, -1):
        least = ndtr(ndtri(right[moving]) - mus[moving])
        growth = np.maximum(least - wrong[moving], 0.0)
        wrong[moving] += growth
        right[moving] += i / (guesses - i) * growth
        above = right + wrong > whole
        contradicted |= above
        # A step that adds nothing leaves the next one as it was.
        moving[moving] = growth > 0
        moving &= ~above
        if not moving.any():
            break
    return contradicted


def _each(bound: Callable[[int, int, int], float], guesses: Counts, correct: Counts, canaries: Counts) -> Array:
    """The bound for each case; cases that are alike are computed once."""
    cases = np.stack([guesses.ravel(), correct.ravel(), canaries.ravel()], axis=1)
    distinct, place = np.unique(cases, axis=0, return_inverse=True)
    found = np.asarray([bound(*map(int, case)) for case in distinct], dtype=float)
    return found[place.reshape(-1)].reshape(guesses.shape)


def _checked(guesses: npt.ArrayLike, correct: npt.ArrayLike, canaries: npt.ArrayLike) -> tuple[Counts, Counts, Counts]:
    arrays = [np.asarray(value) for value in (guesses, correct, canaries)]
    for name, value in zip(("guesses", "correct", "canaries"), arrays, strict=True):
        if not np.issubdtype(value.dtype, np.integer):
            raise InvalidInputError(name, value.tolist(), "whole numbers")
    r, v, m = (value.astype(np.int64) for value in np.broadcast_arrays(*arrays))
    if not np.all((r >= 1) & (r <= m)):
        raise InvalidInputError("guesses", np.asarray(guesses).tolist(), "from 1 to the number of canaries")
    if not np.all((v >= 0) & (v <= r)):
        raise InvalidInputError("correct", np.asarray(correct).tolist(), "from 0 to the number of guesses")
    return r, v, m


def _check_delta(delta: float) -> None:
    if not 0 <= delta < 1:
        raise InvalidInputError("delta", delta, "a number in [0, 1)")
