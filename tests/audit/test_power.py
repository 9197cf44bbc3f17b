"""Plans of audits, held against audits that are made by them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import ndtr
from scipy.stats import binom

from audit.mechanisms import gaussian, scores, selection
from dpmerge.auditing.counting_estimator import clopper_pearson
from dpmerge.auditing.estimate import estimate_epsilon
from dpmerge.auditing.gaussian_estimator import gaussian_epsilon, mixture_epsilon, mu_lower
from dpmerge.auditing.power import _chance_at, selection_trials_needed, trials_needed
from dpmerge.auditing.thresholds import best_threshold, fixed_threshold
from dpmerge.errors import InvalidInputError

PLAN = {"mu": 1.0, "delta": 1e-5, "confidence": 0.95, "power": 0.9, "estimator": "gaussian", "tightness": 0.6}


@pytest.mark.parametrize(("mu", "tightness", "power"), [(0.5, 0.5, 0.8), (1.0, 0.7, 0.9), (10.0, 0.6, 0.5)])
def test_a_gaussian_audit_has_the_power_it_was_planned_for(mu: float, tightness: float, power: float) -> None:
    """And not much more: with a third of the trials fewer it falls short."""
    trials = trials_needed(**{**PLAN, "mu": mu, "tightness": tightness, "power": power})
    wanted = tightness * gaussian_epsilon(mu, 1e-5)
    least = brentq(lambda m: gaussian_epsilon(m, 1e-5) - wanted, 1e-3, mu)  # as ε grows with μ, so much must be shown

    def reached(count: int) -> float:
        return np.mean([mu_lower(*scores(gaussian(mu), count, seed), 0.95) >= least for seed in range(400)])

    error = math.sqrt(power * (1 - power) / 400)
    assert power - 3 * error <= reached(trials) <= power + 3 * error
    assert reached(trials * 2 // 3) < power - error


@pytest.mark.parametrize(("mu", "tightness"), [(0.5, 0.4), (1.0, 0.3), (4.0, 0.25)])
def test_a_counting_audit_with_a_pilot_has_the_power_it_was_planned_for(mu: float, tightness: float) -> None:
    trials = trials_needed(**{**PLAN, "mu": mu, "tightness": tightness, "estimator": "counting"})
    wanted = tightness * gaussian_epsilon(mu, 1e-5)
    shown = 0
    for seed in range(200):
        pilot = scores(gaussian(mu), trials // 4, 2 * seed)
        threshold = best_threshold(*pilot, delta=1e-5, confidence=0.95, trials=trials)
        worlds = scores(gaussian(mu), trials, 2 * seed + 1)
        shown += fixed_threshold(*worlds, threshold, delta=1e-5, confidence=0.95) >= wanted
    assert shown / 200 >= 0.9 - 3 * math.sqrt(0.9 * 0.1 / 200)


@pytest.mark.parametrize(("trials", "cut", "wanted"), [(60, 1.0, 0.5), (200, 1.5, 1.0), (400, 2.0, 1.2)])
def test_the_chance_of_counts_is_a_sum_over_them(trials: int, cut: float, wanted: float) -> None:
    """Every pair of hits, its probability, and whether its bound, this way, is as large as wanted."""
    true, false, delta = float(ndtr(1.5 - cut)), float(ndtr(-cut)), 1e-3
    hits = np.arange(trials + 1)
    low, high = clopper_pearson(hits, trials, 0.975)
    large = low[:, None] - delta >= math.exp(wanted) * high[None, :]
    exact = binom.pmf(hits, trials, true) @ large @ binom.pmf(hits, trials, false)
    assert 0.05 < exact < 0.999
    assert _chance_at(trials, true, false, delta, 0.025, wanted) == pytest.approx(exact, abs=1e-8)


def test_many_false_hits_are_taken_in_groups_on_the_safe_side() -> None:
    trials, true, false, wanted = 40_000, 0.7, 0.3, 0.8
    hits = np.arange(trials + 1)
    low, high = clopper_pearson(hits, trials, 0.975)
    needed = np.searchsorted(low, 1e-5 + math.exp(wanted) * high)
    exact = binom.pmf(hits, trials, false) @ binom.sf(needed - 1, trials, true)
    grouped = _chance_at(trials, true, false, 1e-5, 0.025, wanted)
    assert exact - 0.02 < grouped <= exact + 1e-9


@pytest.mark.parametrize("estimator", ["gaussian", "counting"])
def test_less_tightness_power_or_confidence_needs_fewer_trials(estimator: str) -> None:
    plan = {**PLAN, "tightness": 0.4, "estimator": estimator}
    needed = trials_needed(**plan)
    for name, less in {"tightness": 0.3, "power": 0.7, "confidence": 0.9}.items():
        assert trials_needed(**{**plan, name: less}) < needed, name


def test_a_gaussian_audit_needs_fewer_trials_than_counting() -> None:
    by_counting = trials_needed(**{**PLAN, "estimator": "counting"})
    assert trials_needed(**PLAN) < by_counting / 100


def test_a_tightness_that_no_trials_can_show_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="no 10⁹ trials suffice to show 0.9 of ε = 24.38 by counting") as error:
        trials_needed(**{**PLAN, "mu": 4.0, "tightness": 0.9, "estimator": "counting"})
    assert error.value.field == "power"


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"power": 0.0}, "power"),
        ({"power": 1.0}, "power"),
        ({"power": math.nan}, "power"),
        ({"tightness": 1.0}, "tightness"),
        ({"tightness": 0.0}, "tightness"),
        ({"mu": 0.0}, "mu"),
        ({"mu": -1.0}, "mu"),
        ({"mu": math.inf}, "mu"),
        ({"mu": 1e-7}, "mu"),
        ({"delta": 0.0}, "delta"),
        ({"confidence": 1.0}, "confidence"),
        ({"estimator": "one_run"}, "estimator"),
    ],
)
def test_invalid_plans_are_refused_by_the_name_of_the_field(changed: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidInputError) as error:
        trials_needed(**{**PLAN, **changed})
    assert error.value.field == field


@pytest.mark.parametrize(
    ("mus", "probabilities"), [((2.0, 0.3), (0.05, 0.95)), ((0.5, 1.0), (0.5, 0.5)), ((0.22, 0.25), (0.3, 0.7))]
)
def test_an_audit_of_a_draw_has_the_power_it_was_planned_for(
    mus: tuple[float, ...], probabilities: tuple[float, ...]
) -> None:
    trials = selection_trials_needed(mus=mus, probabilities=probabilities, delta=1e-5, confidence=0.95, power=0.9)
    wanted = 0.9 * mixture_epsilon(mus, probabilities, 1e-5)
    attack = selection(mus, probabilities)
    repetitions = 100 if trials < 50_000 else 40
    reached = [
        estimate_epsilon(attack, delta=1e-5, trials=trials, confidence=0.95, seed=seed).bound >= wanted
        for seed in range(repetitions)
    ]
    assert np.mean(reached) >= 0.9 - 3 * np.sqrt(0.09 / repetitions)
    fewer = selection_trials_needed(mus=mus, probabilities=probabilities, delta=1e-5, confidence=0.95, power=0.5)
    assert fewer < trials


def test_draws_that_no_trials_can_show_are_refused() -> None:
    asked = {"delta": 1e-5, "confidence": 0.95, "power": 0.9}
    with pytest.raises(InvalidInputError, match="nothing to show"):
        selection_trials_needed(mus=(0.0, 0.0), probabilities=(0.5, 0.5), **asked)
    with pytest.raises(InvalidInputError, match="no 10⁹ trials suffice"):
        selection_trials_needed(mus=(5.0, 1e-3), probabilities=(1e-9, 1 - 1e-9), **{**asked, "delta": 5e-10})
    with pytest.raises(InvalidInputError, match="power"):
        selection_trials_needed(mus=(1.0, 2.0), probabilities=(0.5, 0.5), **{**asked, "power": 1.0})
