"""Attacks on releases of which everything is known: what an estimate says, from which scores, and what it refuses."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import ndtr, ndtri

from audit.mechanisms import gaussian, randomised_response, selection
from dpmerge.auditing.attacks import Array, Attack, Draws
from dpmerge.auditing.estimate import estimate_delta, estimate_epsilon, roc
from dpmerge.auditing.gaussian_estimator import (
    gaussian_delta,
    gaussian_epsilon,
    mixture_epsilon,
    mu_interval,
    mu_lower,
)
from dpmerge.auditing.thresholds import fixed_threshold
from dpmerge.errors import InvalidInputError

TERMS = {"trials": 4000, "confidence": 0.95, "seed": 3}


@pytest.mark.parametrize("mu", [0.3, 1.0, 4.0])
def test_the_bound_on_a_gaussian_release_is_just_below_the_truth(mu: float) -> None:
    estimate = estimate_epsilon(gaussian(mu), delta=1e-5, trials=100_000, confidence=0.95, seed=1)
    truth = gaussian_epsilon(mu, 1e-5)
    assert estimate.estimator == "gaussian"
    assert (estimate.quantity, estimate.given) == ("epsilon", 1e-5)
    assert (estimate.trials, estimate.confidence) == (100_000, 0.95)
    assert 0.95 * truth < estimate.bound < truth
    assert estimate.mu is not None
    assert estimate.mu.low < mu < estimate.mu.high
    shown = estimate_delta(gaussian(mu), epsilon=mu, trials=100_000, confidence=0.95, seed=1)
    assert (shown.quantity, shown.given, shown.estimator) == ("delta", mu, "gaussian")
    assert 0.8 * float(gaussian_delta(mu, mu)) < shown.bound < float(gaussian_delta(mu, mu))


def counted(attack: Attack) -> list[np.ndarray]:
    """The scores that are counted under TERMS: streams 2, without the record, and 3, with it."""
    return [attack.play(np.random.default_rng([3, 0, 2 + there]), 4000, bool(there)).scores for there in (0, 1)]


def test_a_gaussian_bound_has_all_its_error_on_one_side() -> None:
    """The interval of μ that is shown beside it has two sides, so that its lower end is lower."""
    estimate = estimate_epsilon(gaussian(1.0), delta=1e-5, **TERMS)
    assert estimate.mu is not None
    assert estimate.mu == mu_interval(*counted(gaussian(1.0)), 0.95)
    assert gaussian_epsilon(estimate.mu.low, 1e-5) < estimate.bound
    assert gaussian_epsilon(mu_interval(*counted(gaussian(1.0)), 0.9).low, 1e-5) == pytest.approx(estimate.bound)


def test_the_bound_on_a_draw_with_public_index_is_just_below_the_truth() -> None:
    mus, chances = (0.5, 3.0), (0.9, 0.1)
    estimate = estimate_epsilon(selection(mus, chances), delta=1e-5, trials=200_000, confidence=0.95, seed=1)
    truth = mixture_epsilon(mus, chances, 1e-5)
    assert 0.95 * truth < estimate.bound < truth
    assert estimate.mu is None
    shown = estimate_delta(selection(mus, chances), epsilon=2.0, trials=200_000, confidence=0.95, seed=1)
    exact = 0.9 * float(gaussian_delta(0.5, 2.0)) + 0.1 * float(gaussian_delta(3.0, 2.0))
    assert 0.95 * exact < shown.bound < exact


def test_the_limits_of_several_indices_share_the_error() -> None:
    attack = selection((0.5, 2.0, 1.0), (0.5, 0.2, 0.3))
    draws = [attack.play(np.random.default_rng([3, 0, 2 + there]), 4000, bool(there)) for there in (0, 1)]
    lows = [mu_lower(*(world.scores[world.index == i] for world in draws), 1 - 0.05 / 3) for i in range(3)]
    shown = estimate_epsilon(attack, delta=1e-5, **TERMS).bound
    assert shown == pytest.approx(mixture_epsilon(lows, (0.5, 0.2, 0.3), 1e-5), rel=1e-9)


def test_an_index_that_is_hardly_drawn_shows_nothing_of_its_own() -> None:
    attack = selection((1.0, 50.0), (1 - 1e-9, 1e-9))
    assert estimate_epsilon(attack, delta=1e-5, **TERMS).bound < gaussian_epsilon(1.0, 1e-5)


def test_an_index_of_probability_zero_costs_nothing() -> None:
    attack = selection((1.0, 50.0), (1.0, 0.0))
    low = mu_interval(*counted(attack), 0.9).low
    assert estimate_epsilon(attack, delta=1e-5, **TERMS).bound == pytest.approx(gaussian_epsilon(low, 1e-5))


def test_scores_of_any_kind_are_counted() -> None:
    estimate = estimate_epsilon(randomised_response(2.0), delta=1e-5, **TERMS)
    assert estimate.estimator == "counting"
    assert estimate.mu is None
    assert 1.75 < estimate.bound < 2.0
    shown = estimate_delta(randomised_response(1.0, delta=0.2), epsilon=1.0, trials=20_000, confidence=0.95, seed=3)
    assert shown.estimator == "counting"
    assert 0.17 < shown.bound < 0.2


def test_counting_shows_less_of_a_gaussian_but_never_more() -> None:
    counted = estimate_epsilon(gaussian(1.0, known=False), delta=1e-5, trials=100_000, confidence=0.95, seed=1)
    assert counted.estimator == "counting"
    assert 2.5 < counted.bound < gaussian_epsilon(1.0, 1e-5)


def test_the_pilot_draws_scores_that_are_not_counted() -> None:
    """A quarter more trials, from streams that the counted ones do not share."""
    asked: list[tuple[int, bool, float]] = []

    def play(rng: np.random.Generator, trials: int, present: bool) -> Draws:
        scores = rng.standard_normal(trials) + present
        asked.append((trials, present, float(scores[0])))
        return Draws(scores)

    estimate = estimate_epsilon(Attack(play=play), delta=1e-5, trials=1000, confidence=0.95, seed=5)
    assert sorted(trials for trials, _, _ in asked) == [250, 250, 1000, 1000]
    assert len({round(first - present, 9) for _, present, first in asked}) == 4
    # The bound is one of those that fixed thresholds show on the counted scores.
    absent = np.random.default_rng([5, 0, 2]).standard_normal(1000)
    present = np.random.default_rng([5, 0, 3]).standard_normal(1000) + 1
    cuts = np.concatenate([absent, present])
    assert any(fixed_threshold(absent, present, cut, delta=1e-5, confidence=0.95) == estimate.bound for cut in cuts)


def test_the_same_seed_gives_the_same_bound_and_another_seed_another() -> None:
    terms = {"delta": 1e-5, "trials": 500, "confidence": 0.9}
    one, same, other = (estimate_epsilon(gaussian(1.0), seed=seed, **terms).bound for seed in (1, 1, 2))
    assert one == same != other


def test_the_roc_follows_the_trade_off_curve() -> None:
    estimate = estimate_epsilon(gaussian(1.5), delta=1e-5, trials=200_000, confidence=0.95, seed=2)
    assert estimate.roc is not None
    false, true = estimate.roc.false, estimate.roc.true
    assert 100 < false.size <= 200
    assert np.all(np.diff(false) > 0)
    assert np.all(np.diff(true) >= 0)
    assert false[0] == pytest.approx(1 / 200_000)
    assert false[-1] == 1
    # Evenly in the logarithm: a tenfold part has as many points as the next.
    decades = [np.count_nonzero((false > low) & (false <= 10 * low)) for low in (1e-3, 1e-2, 1e-1)]
    assert max(decades) - min(decades) <= 2
    middle = false > 1e-3
    np.testing.assert_allclose(true[middle], ndtr(ndtri(false[middle]) + 1.5), atol=0.02)


def test_the_roc_of_two_answers_has_two_points() -> None:
    curve = roc(np.array([0.0, 0.0, 0.0, 1.0]), np.array([0.0, 1.0, 1.0, 1.0]))
    assert curve.false.tolist() == [0.25, 1.0]
    assert curve.true.tolist() == [0.75, 1.0]


@pytest.mark.parametrize("attack", [gaussian(1.0), gaussian(1.0, known=False), randomised_response(1.0)])
@pytest.mark.parametrize("trials", [8, 9, 30])
def test_few_trials_give_a_finite_bound(attack: Attack, trials: int) -> None:
    for seed in range(5):
        shown = estimate_epsilon(attack, delta=1e-5, trials=trials, confidence=0.99, seed=seed).bound
        assert 0 <= shown < math.inf
        assert 0 <= estimate_delta(attack, epsilon=0.1, trials=trials, confidence=0.99, seed=seed).bound <= 1


def test_a_release_that_says_nothing_has_a_bound_of_zero() -> None:
    for attack in (Attack(play=_silent), Attack(play=_silent, gaussian=True)):
        assert estimate_epsilon(attack, delta=1e-5, **TERMS).bound == 0
        assert estimate_delta(attack, epsilon=0.0, **TERMS).bound == 0


def _silent(rng: np.random.Generator, trials: int, present: bool) -> Draws:
    return Draws(np.zeros(trials))


def test_a_release_that_says_everything_shows_what_so_many_trials_can() -> None:
    """No hit among n where it is absent, all where it is present: ε = log of one limit over the other."""
    attack = Attack(play=lambda rng, trials, present: Draws(np.full(trials, float(present))))
    limit = -math.expm1(math.log(0.025) / 4000)
    shown = estimate_epsilon(attack, delta=1e-5, **TERMS).bound
    assert shown == pytest.approx(math.log((1 - limit - 1e-5) / limit), rel=1e-9)


# What is refused


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"trials": 7}, "trials"),
        ({"seed": -1}, "seed"),
        ({"confidence": 1.0}, "confidence"),
        ({"confidence": 0.0}, "confidence"),
    ],
)
def test_invalid_terms_are_refused_by_the_name_of_the_field(changed: dict[str, float], field: str) -> None:
    for ask in (
        lambda **terms: estimate_epsilon(gaussian(1.0), delta=1e-5, **terms),
        lambda **terms: estimate_delta(gaussian(1.0), epsilon=1.0, **terms),
    ):
        with pytest.raises(InvalidInputError) as error:
            ask(**{**TERMS, **changed})
        assert error.value.field == field


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, math.nan])
def test_an_invalid_delta_is_refused(delta: float) -> None:
    with pytest.raises(InvalidInputError) as error:
        estimate_epsilon(gaussian(1.0), delta=delta, **TERMS)
    assert error.value.field == "delta"


@pytest.mark.parametrize("epsilon", [-1.0, math.inf, math.nan])
def test_an_invalid_epsilon_is_refused(epsilon: float) -> None:
    with pytest.raises(InvalidInputError) as error:
        estimate_delta(gaussian(1.0), epsilon=epsilon, **TERMS)
    assert error.value.field == "epsilon"


def test_attacks_with_missing_or_invalid_scores_are_refused() -> None:
    short = Attack(play=lambda rng, trials, present: Draws(rng.standard_normal(trials - 1)))
    no_index = Attack(play=gaussian(1.0).play, gaussian=True, probabilities=(0.5, 0.5))
    no_number = Attack(play=lambda rng, trials, present: Draws(np.full(trials, math.nan)))
    for attack, field in ((short, "scores"), (no_index, "index"), (no_number, "absent")):
        with pytest.raises(InvalidInputError) as error:
            estimate_epsilon(attack, delta=1e-5, **TERMS)
        assert error.value.field == field


def test_no_two_seeds_share_a_stream_of_random_numbers() -> None:
    """numpy fills short seeds up with zeros: [2³² + 1, 0] as words is [1, 1, 0], and so is [1, 1]."""
    seen: list[float] = []

    def play(rng: np.random.Generator, trials: int, present: bool) -> Draws:
        scores = rng.standard_normal(trials)
        seen.append(float(scores[0]))
        return Draws(scores + present)

    for seed in (0, 1, 2, 2**32, 2**32 + 1):
        estimate_epsilon(Attack(play=play), delta=1e-5, trials=8, confidence=0.95, seed=seed)
    assert len(set(seen)) == len(seen) == 20


def test_a_threshold_for_delta_is_not_chosen_on_the_scores_that_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen_on: list[Array] = []

    def chosen(absent: Array, present: Array, **_: object) -> float:
        chosen_on.extend((absent, present))
        return 0.5

    monkeypatch.setattr("dpmerge.auditing.estimate.best_threshold_delta", chosen)
    attack = gaussian(1.0, known=False)
    estimate_delta(attack, epsilon=1.0, **TERMS)
    for scores in counted(attack):
        assert not any(np.isin(pilot, scores).any() for pilot in chosen_on)


def test_limits_of_twenty_indices_share_the_error() -> None:
    """The bound is what limits at 1 − 0.5/20 give, each from the trials of its index."""
    attack = replace(gaussian(1.0), probabilities=(0.05,) * 20)
    inner = attack.play

    def play(rng: np.random.Generator, trials: int, present: bool) -> Draws:
        return Draws(inner(rng, trials, present).scores, np.arange(trials) % 20)

    attack = replace(attack, play=play)
    found = estimate_epsilon(attack, delta=1e-5, trials=4000, confidence=0.5, seed=3)
    worlds = [play(np.random.default_rng([3, 0, 2 + there]), 4000, bool(there)).scores for there in (0, 1)]
    lows = [mu_lower(worlds[0][i::20], worlds[1][i::20], 1 - 0.5 / 20) for i in range(20)]
    assert found.bound == pytest.approx(mixture_epsilon(lows, attack.probabilities, 1e-5), rel=1e-9)


def test_an_index_that_is_none_of_the_attacks_is_refused() -> None:
    def play(rng: np.random.Generator, trials: int, present: bool) -> Draws:
        return Draws(rng.normal(size=trials), np.full(trials, 2))

    with pytest.raises(InvalidInputError, match="index: got from 2 to 2; accepted: from 0 to 1"):
        estimate_epsilon(Attack(play=play, gaussian=True, probabilities=(0.5, 0.5)), delta=1e-5, **TERMS)
