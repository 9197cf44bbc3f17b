"""Differences and their noise, frontiers, and numbers on their way to a file and back."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from reproduction.frontiers import held_out, in_sample
from reproduction.run_store import RunStore
from reproduction.statements import all_hold, difference, margins
from tiny_experiments import roundtrip


def test_the_margin_of_a_difference_is_that_of_students_t() -> None:
    values = np.array([0.1, 0.4, 0.2, 0.35])
    low, high = stats.t.interval(0.95, 3, loc=values.mean(), scale=stats.sem(values))
    found = difference(values)
    assert (found.mean - found.margin, found.mean + found.margin) == pytest.approx((low, high))


def test_one_repetition_is_within_noise_with_an_infinite_margin() -> None:
    assert difference([0.5]).kind == "within noise"
    assert margins(np.ones((1, 3))).tolist() == [math.inf] * 3


@pytest.mark.parametrize(
    ("values", "kind"),
    [([0.1, 0.1, 0.1], "higher"), ([-0.1, -0.11, -0.1], "lower"), ([0.1, -0.1, 0.05], "within noise")],
)
def test_a_difference_is_one_only_beyond_its_margin(values: list[float], kind: str) -> None:
    assert difference(values).kind == kind


def test_five_per_cent_of_nothing_are_called_a_difference() -> None:
    rng = np.random.default_rng(5)
    kinds = [difference(rng.normal(size=4)).kind for _ in range(4000)]
    share = 1 - kinds.count("within noise") / len(kinds)
    assert share == pytest.approx(0.05, abs=4 * math.sqrt(0.05 * 0.95 / 4000))


def test_a_statement_on_many_cases_agrees_in_part_where_some_hold() -> None:
    assert [all_hold(c) for c in ([True, True], [True, False], [False])] == ["agrees", "agrees in part", "disagrees"]


choices = st.lists(st.tuples(*[st.floats(0.01, 1).map(lambda x: round(x, 2))] * 3), min_size=1, max_size=12)


@given(choices)
def test_frontiers_are_the_best_within_each_target(drawn: list[tuple[float, float, float]]) -> None:
    epsilons, first, second = (np.array(column) for column in zip(*drawn, strict=True))
    halves = np.array([first, second])
    targets = np.linspace(0, 1.1, 23)
    shown, seen = held_out(epsilons, halves, targets), in_sample(epsilons, halves, targets)
    for place, target in enumerate(targets):
        within = np.flatnonzero(epsilons <= target)
        if not within.size:
            assert np.isnan(shown[place])
            assert np.isnan(seen[place])
            continue
        assert seen[place] == pytest.approx(halves.mean(axis=0)[within].max())
        # Of equal scores the cheapest is taken: any of them would have been as good a choice.
        allowed = [
            {float(other[i]) for i in within if chosen[i] == chosen[within].max()}
            for chosen, other in ((first, second), (second, first))
        ]
        assert any(shown[place] == pytest.approx((a + b) / 2) for a in allowed[0] for b in allowed[1])


def test_choosing_and_measuring_on_the_same_images_overstates_accuracy() -> None:
    rng = np.random.default_rng(3)
    halves = 0.5 + rng.normal(0, 0.01, size=(2, 500))  # equal models, scores with noise
    one = np.ones(500)
    assert held_out(one, halves, np.ones(1))[0] == pytest.approx(0.5, abs=0.015)
    assert in_sample(one, halves, np.ones(1))[0] > 0.515


def test_numbers_read_back_from_a_file_are_the_same() -> None:
    back = roundtrip(
        {"a": np.array([1.0, np.nan, np.inf]), "b": {"c": (True, 2, "text", -math.inf)}, "d": np.float64(0.1)}
    )
    assert back["a"][0] == 1.0
    assert math.isnan(back["a"][1])
    assert back["a"][2] == math.inf
    assert back["b"]["c"] == [True, 2, "text", -math.inf]
    assert back["d"] == 0.1


def test_every_run_has_a_noise_seed_of_its_own(store: RunStore) -> None:
    names = [(name, str(repeat), f"run-{run}") for name in ("a", "b") for repeat in range(10) for run in range(20)]
    seeds = [store.noise_seed(*name) for name in names]
    assert len(set(seeds)) == len(seeds)
    assert seeds == [store.noise_seed(*name) for name in reversed(names)][::-1], "in whatever order"
    other = RunStore(store.folder, store.preset, store.images, seed=43)
    assert not {other.noise_seed(*name) for name in names} & set(seeds)
