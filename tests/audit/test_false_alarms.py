"""False alarms: correct releases whose privacy is known exactly, audited 200 times at 95 %.

At most so many bounds may lie above the truth as 200 tosses at 5 % give in all but one of a thousand cases. The
releases are tight, so that every bound has something to be wrong about; and one that mostly says nothing is no bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import binom

from audit.mechanisms import gaussian, laplace, randomised_response, scores, selection
from dpmerge.auditing.attacks import Attack
from dpmerge.auditing.counting_estimator import clopper_pearson, epsilon_from_rates
from dpmerge.auditing.estimate import estimate_delta, estimate_epsilon
from dpmerge.auditing.gaussian_estimator import gaussian_delta, gaussian_epsilon, mixture_epsilon, mu_interval
from reproduction.one_run import one_run_epsilon, one_run_f_dp_epsilon, one_run_guesses

REPETITIONS = 200
CONFIDENCE = 0.95
DELTA = 1e-5
MOST = int(binom.ppf(0.999, REPETITIONS, 1 - CONFIDENCE))
FEWEST = int(binom.ppf(0.001, REPETITIONS, 1 - CONFIDENCE))

Bound = Callable[[int], float]
"""seed → lower bound."""


def false_alarms(bound: Bound, truth: float) -> int:
    """How many of the bounds are above the truth; half of them must say something."""
    bounds = np.array([bound(seed) for seed in range(REPETITIONS)])
    assert np.median(bounds) > 0.25 * truth
    return int(np.count_nonzero(bounds > truth))


def of_epsilon(attack: Attack, trials: int) -> Bound:
    return lambda seed: estimate_epsilon(attack, delta=DELTA, trials=trials, confidence=CONFIDENCE, seed=seed).bound


def of_delta(attack: Attack, epsilon: float, trials: int) -> Bound:
    return lambda seed: estimate_delta(attack, epsilon=epsilon, trials=trials, confidence=CONFIDENCE, seed=seed).bound


def one_run(seed: int) -> tuple[int, int]:
    """Half of 300 canaries guessed from randomised responses at ε = 1.5."""
    rng = np.random.default_rng(seed)
    included = rng.random(300) < 0.5
    honest = rng.random(300) < 1 / (1 + math.exp(-1.5))
    answers = np.where(honest, included, ~included) + 0.5 * rng.random(300)
    return one_run_guesses(answers, included, most_in=75, most_out=75)


def one_gaussian_run(seed: int) -> tuple[int, int]:
    """A tenth of 300 canaries guessed, each from its own Gaussian at μ = 2."""
    rng = np.random.default_rng(seed)
    included = rng.random(300) < 0.5
    return one_run_guesses(rng.standard_normal(300) + 2 * included, included, most_in=15, most_out=15)


def shown(counts: tuple[int, int], bound: Callable[..., np.ndarray]) -> float:
    return float(bound(*counts, 300, delta=DELTA, confidence=CONFIDENCE))


# Of (ε, δ)-DP by odds e^ε the best attack shows a little less at a δ that it does not use: log((t − δ)/f).
RESPONSE = math.log((1 / (1 + math.exp(-2.0)) - DELTA) * (1 + math.exp(2.0)))

ESTIMATORS: dict[str, tuple[Bound, float]] = {
    "gaussian": (of_epsilon(gaussian(1.0), 200), gaussian_epsilon(1.0, DELTA)),
    "gaussian, far": (of_epsilon(gaussian(8.0), 50), gaussian_epsilon(8.0, DELTA)),
    "gaussian, public index": (
        of_epsilon(selection((0.5, 2.0), (0.7, 0.3)), 400),
        mixture_epsilon((0.5, 2.0), (0.7, 0.3), DELTA),
    ),
    "gaussian, delta": (of_delta(gaussian(1.0), 1.0, 400), float(gaussian_delta(1.0, 1.0))),
    "counting, pilot": (of_epsilon(randomised_response(2.0), 2000), RESPONSE),
    "counting, pilot, any threshold": (of_epsilon(laplace(1.0), 2000), 1.0),
    "counting, delta": (of_delta(randomised_response(1.0, 0.3), 1.0, 1000), 0.3),
    "one run": (lambda seed: shown(one_run(seed), one_run_epsilon), 1.5),
    "one run, f-DP": (lambda seed: shown(one_gaussian_run(seed), one_run_f_dp_epsilon), gaussian_epsilon(2.0, DELTA)),
}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_false_alarms_are_within_the_binomial_limits(name: str) -> None:
    assert false_alarms(*ESTIMATORS[name]) <= MOST


@pytest.mark.parametrize("name", ["gaussian", "gaussian, far"])
def test_an_exact_bound_is_wrong_as_often_as_stated(name: str) -> None:
    """Neither more nor less: the error that is allowed is used."""
    assert FEWEST <= false_alarms(*ESTIMATORS[name]) <= MOST


# Estimators that are broken on purpose, and must be caught


def wrong_side(seed: int) -> float:
    """The upper limit of the true rate and the lower one of the false rate."""
    absent, present = scores(randomised_response(2.0), 2000, seed)
    _, true_high = clopper_pearson(np.count_nonzero(present > 0), 2000, 0.975)
    false_low, _ = clopper_pearson(np.count_nonzero(absent > 0), 2000, 0.975)
    return float(epsilon_from_rates(true_high, false_low, DELTA))


def no_limits(seed: int) -> float:
    """What is seen, as if it were the truth."""
    absent, present = scores(randomised_response(2.0), 2000, seed)
    return float(epsilon_from_rates(np.mean(present > 0), np.mean(absent > 0), DELTA))


def same_scores_choose(seed: int) -> float:
    """The largest ratio that is seen at any threshold, without a price for looking."""
    absent, present = scores(laplace(1.0), 300, seed)
    cuts = np.concatenate([absent, present])
    rates = (np.mean(present[:, None] >= cuts, axis=0), np.mean(absent[:, None] >= cuts, axis=0))
    several = rates[1] * 300 >= 10
    return float(epsilon_from_rates(rates[0][several], rates[1][several], DELTA).max())


def upper_limit_of_mu(seed: int) -> float:
    return gaussian_epsilon(mu_interval(*scores(gaussian(1.0), 200, seed), 0.9).high, DELTA)


def known_variance(seed: int) -> float:
    """A limit for many scores, used for few: the deviation is taken for the true one."""
    absent, present = scores(gaussian(8.0), 5, seed)
    deviation = math.sqrt((absent.var(ddof=1) + present.var(ddof=1)) / 2)
    low = (present.mean() - absent.mean()) / deviation - 1.645 * math.sqrt(2 / 5)
    return gaussian_epsilon(max(0.0, low), DELTA)


def accuracy_of_one_run(seed: int) -> float:
    guesses, correct = one_run(seed)
    return math.log(correct / (guesses - correct))


@pytest.mark.parametrize(
    ("broken", "truth"),
    [
        (wrong_side, RESPONSE),
        (no_limits, RESPONSE),
        (same_scores_choose, 1.0),
        (upper_limit_of_mu, gaussian_epsilon(1.0, DELTA)),
        (known_variance, gaussian_epsilon(8.0, DELTA)),
        (accuracy_of_one_run, 1.5),
    ],
)
def test_a_broken_estimator_has_too_many_false_alarms(broken: Bound, truth: float) -> None:
    assert false_alarms(broken, truth) > MOST
