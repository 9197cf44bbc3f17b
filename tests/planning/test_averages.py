"""The front of averages against all averages there are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from dpmerge.planning.noise_prediction import NoisePrediction, noise_to_signal, precision_weights, predicted_noise
from dpmerge.planning.pareto_front import ParetoFront, front, precision_average
from dpmerge.planning.usable_checkpoints import usable_checkpoints
from dpmerge.portfolio.portfolio import Portfolio
from oracle.planning_brute_force import Prefix, pareto, prefix, random_simplex, supports
from oracle.planning_brute_force import noise_to_signal as oracle_ratio
from planning.synthetic import ladder, portfolio, run_document


def random_runs(rng: np.random.Generator, count: int) -> dict[str, tuple[dict[str, Any], list[int]]]:
    """Runs of unequal schedules, noise, clip norms and lengths."""
    made = {}
    for place in range(count):
        steps = int(rng.integers(1, 13))
        kept = sorted({int(step) for step in rng.integers(1, steps + 1, 3)})
        made[f"r{place}"] = (
            run_document(
                f"r{place}",
                noise_multiplier=float(10 ** rng.uniform(0.5, 2.5)),
                steps=steps,
                clip_norm=float(10 ** rng.uniform(-1, 1)),
                learning_rate=rng.uniform(0.001, 0.1, steps).tolist(),
            ),
            kept,
        )
    return made


def front_of(made: Portfolio, delta: float = 1e-5) -> ParetoFront:
    known = usable_checkpoints(made, delta)
    return front(known, known.groups[0])


def prefixes(runs: dict[str, tuple[dict[str, Any], list[int]]]) -> list[list[Prefix]]:
    return [[prefix(document, step) for step in kept] for document, kept in runs.values()]


def points(runs: Sequence[Sequence[Prefix]]) -> list[tuple[float, float]]:
    return [
        (math.fsum(p.squared_mu for p in support), math.fsum(p.precision for p in support))
        for support in supports(runs)
    ]


@pytest.mark.parametrize("seed", range(25))
def test_the_front_is_every_average_that_no_other_beats(seed: int) -> None:
    rng = np.random.default_rng(seed)
    runs = random_runs(rng, int(rng.integers(1, 5)))
    found = front_of(portfolio(runs))
    expected = pareto(points(prefixes(runs)))
    assert len(found) == len(expected)
    assert found.squared_mus == pytest.approx([cost for cost, _ in expected], rel=1e-9)
    assert found.precisions == pytest.approx([precision for _, precision in expected], rel=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_each_point_has_the_cost_and_precision_of_its_support(seed: int) -> None:
    rng = np.random.default_rng([7, seed])
    runs = random_runs(rng, 4)
    found = front_of(portfolio(runs))
    for place in range(len(found)):
        recipe = found.recipe(place)
        chosen = [prefix(runs[name.split("@")[0]][0], int(name.split("@")[1])) for name in recipe.names]
        assert len({name.split("@")[0] for name in recipe.names}) == len(chosen)
        assert found.squared_mus[place] == pytest.approx(math.fsum(p.squared_mu for p in chosen), rel=1e-9)
        assert 1 / found.precisions[place] == pytest.approx(oracle_ratio(chosen, recipe.weights), rel=1e-9)
        for _ in range(20):
            assert oracle_ratio(chosen, random_simplex(rng, len(chosen))) >= 1 / found.precisions[place] * (1 - 1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_within_finds_the_most_precise_average_that_fits(seed: int) -> None:
    rng = np.random.default_rng([8, seed])
    runs = random_runs(rng, 3)
    found, everything = front_of(portfolio(runs)), points(prefixes(runs))
    for budget in [cost * factor for cost, _ in everything for factor in (0.999, 1.0, 1.001)]:
        place = found.within(budget)
        best = max((precision for cost, precision in everything if cost <= budget * (1 + 1e-13)), default=None)
        assert (place is None) == (best is None)
        if place is not None:
            assert found.precisions[place] == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize("count", [1, 2, 7, 12])
def test_equal_runs_are_averaged_in_their_order_with_equal_weights(count: int) -> None:
    found = front_of(ladder(count))
    assert len(found) == count
    for k in range(1, count + 1):
        assert found.recipe(k - 1).names == tuple(f"run-{place}@20" for place in range(1, k + 1))
        assert found.recipe(k - 1).weights == pytest.approx([1 / k] * k, rel=1e-12)


def test_many_checkpoints_of_equal_runs_have_no_more_than_their_sums() -> None:
    """Steps 5, 10 and 20 of equal runs: cost and precision both grow with the steps, so every sum is on the front."""
    found = front_of(ladder(3, (5, 10, 20)))
    sums = {a + b + c for a in (0, 5, 10, 20) for b in (0, 5, 10, 20) for c in (0, 5, 10, 20)} - {0}
    assert len(found) == len(sums)


def test_the_thinned_front_is_nearly_as_good() -> None:
    """Far more averages than points are kept: within 0.2 % of cost a run, checked against random averages."""
    rng = np.random.default_rng(3)
    runs = random_runs(rng, 12)
    found, kept = front_of(portfolio(runs)), prefixes(runs)
    assert np.all(np.diff(found.squared_mus) > 0)
    assert np.all(np.diff(found.precisions) > 0)
    for _ in range(2000):
        chosen = [run[int(rng.integers(len(run)))] for run in kept if rng.random() < 0.5]
        if not chosen:
            continue
        cost, precision = math.fsum(p.squared_mu for p in chosen), math.fsum(p.precision for p in chosen)
        place = found.within(cost * 1.002 ** len(kept))
        assert place is not None
        assert found.precisions[place] >= precision * (1 - 1e-9)


def test_the_front_begins_with_the_cheapest_checkpoint() -> None:
    rng = np.random.default_rng(4)
    for _ in range(5):
        runs = random_runs(rng, 12)
        cheapest = min(p.squared_mu for run in prefixes(runs) for p in run)
        assert front_of(portfolio(runs)).squared_mus[0] == pytest.approx(cheapest, rel=1e-9)


def test_checkpoints_before_anything_moved_are_not_averaged() -> None:
    """A warm-up of rate zero and step 0 itself: no distance was travelled, whatever it cost."""
    document = run_document("a", noise_multiplier=50.0, steps=4, learning_rate=[0.0, 0.0, 0.01, 0.01])
    made = portfolio({"a": (document, (0, 2, 4)), "b": (run_document("b", noise_multiplier=60.0, steps=4), (0, 4))})
    found = front_of(made)
    names = {name for place in range(len(found)) for name in found.recipe(place).names}
    assert names == {"a@4", "b@4"}


@pytest.mark.parametrize("seed", range(5))
def test_predicted_noise_is_the_formula(seed: int) -> None:
    rng = np.random.default_rng([9, seed])
    runs = random_runs(rng, 3)
    made = portfolio(runs)
    chosen, checkpoints = [], []
    for name, (document, kept) in runs.items():
        chosen.append(prefix(document, kept[-1]))
        checkpoints.append(made.run(name).at(kept[-1]))
        predicted = predicted_noise(checkpoints[-1])
        assert predicted is not None
        assert predicted.travelled == pytest.approx(chosen[-1].travelled, rel=1e-12)
        assert predicted.variance == pytest.approx(chosen[-1].variance, rel=1e-12)
        assert predicted.precision == pytest.approx(chosen[-1].precision, rel=1e-12)
    for noise in (0.0, 0.3):
        weights = rng.dirichlet(np.ones(3)).tolist()
        expected = oracle_ratio(chosen, weights, noise)
        assert noise_to_signal(checkpoints, weights, noise) == pytest.approx(expected, rel=1e-12)


def test_checkpoints_of_one_run_share_their_noise() -> None:
    """0.4 × step 2 + 0.6 × step 4: the first two steps have weight one, the last two 0.6."""
    made = portfolio({"a": (run_document("a", noise_multiplier=3.0, steps=4, clip_norm=2.0), (2, 4))})
    run = made.run("a")
    variance = (0.01 * 3 * 2) ** 2 * (2 * 1.0 + 2 * 0.36)
    travelled = 0.01 * (2 * 1.0 + 2 * 0.6)
    found = noise_to_signal([run.at(2), run.at(4)], [0.4, 0.6], 0.0)
    assert found == pytest.approx(variance / travelled**2, rel=1e-12)


def test_precision_weights_are_in_proportion_to_distance_over_variance() -> None:
    assert precision_weights([NoisePrediction(1.0, 4.0), NoisePrediction(2.0, 4.0)]) == pytest.approx([1 / 3, 2 / 3])
    assert precision_weights(
        [NoisePrediction(1.0, 0.0), NoisePrediction(2.0, 4.0), NoisePrediction(1.0, 0.0)]
    ) == pytest.approx([0.5, 0.0, 0.5])
    tiny = precision_weights([NoisePrediction(1e-200, 1e-300), NoisePrediction(1e-200, 3e-300)])
    assert tiny == pytest.approx([0.75, 0.25])


def test_the_default_average_has_precision_weights() -> None:
    rng = np.random.default_rng(11)
    runs = random_runs(rng, 3)
    known = usable_checkpoints(portfolio(runs), 1e-5)
    support = [known.last_of(run) for run in known.portfolio.runs]
    recipe = precision_average(support)
    chosen = [prefix(document, kept[-1]) for document, kept in runs.values()]
    raw = np.array([p.travelled / p.variance for p in chosen])
    assert recipe.weights == pytest.approx(raw / raw.sum(), rel=1e-12)
