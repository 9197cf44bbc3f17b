"""Portfolio design: against enumeration, against closed forms, and never above a target or a ladder."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from io import StringIO
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp, mpf
from rich.console import Console
from scipy.optimize import brentq
from scipy.stats import norm

from dpmerge.accounting.exposure import Adjacency
from dpmerge.design.covering import FINEST, ReachableSums, cover
from dpmerge.design.design import Design, design, parse_range
from dpmerge.design.noise_ladder import SOUGHT, Budgets, kept_steps, ladder_cost, ladder_runs
from dpmerge.design.table import percent, print_design
from dpmerge.errors import InvalidInputError

GOLDEN = (1 + math.sqrt(5)) / 2


@pytest.fixture(scope="module")
def default() -> Design:
    return design(0.1, 2, 1e-5)


# Independent of the code: profiles from the theorem, sums by enumeration.


def mu_for(epsilon: float, delta: float) -> float:
    def above(mu: float) -> float:
        a, b = -epsilon / mu + mu / 2, -epsilon / mu - mu / 2
        return norm.cdf(a) - math.exp(epsilon + norm.logcdf(b)) - delta

    return brentq(above, 1e-7, 60, xtol=1e-15, rtol=1e-14)


def exact_delta(mu_squared: Any, epsilon: float) -> Any:
    """Φ(−ε/μ + μ/2) − e^ε Φ(−ε/μ − μ/2) with 40 digits."""
    with mp.workdps(40):
        mu = mp.sqrt(mu_squared)
        return mp.ncdf(-epsilon / mu + mu / 2) - mp.exp(epsilon) * mp.ncdf(-epsilon / mu - mu / 2)


def all_sums(costs: Sequence[float], fractions: Sequence[float]) -> np.ndarray:
    options = [0.0, *fractions]
    sums = [sum(c * f for c, f in zip(costs, row, strict=True)) for row in product(options, repeat=len(costs))]
    return np.sort([s for s in sums if s > 0])


def worst_on_grid(sums: np.ndarray, low: float, high: float) -> float:
    """Over budgets right below each sum of the range, and its ends."""
    budgets = np.array([low, *sums[(sums > low) & (sums <= high)] * (1 - 1e-12), high])
    best = sums[np.searchsorted(sums, budgets * (1 + 1e-13)) - 1]
    return float(np.max(budgets / best))


def budget_costs(found: Design) -> list[float]:
    k = 2 if found.adjacency is Adjacency.REPLACE_ONE else 1
    return [found.steps * (k / run.noise_multiplier) ** 2 for run in found.runs]


def checked_levels(found: Design) -> None:
    k = 2 if found.adjacency is Adjacency.REPLACE_ONE else 1
    noise = {run.name: run.noise_multiplier for run in found.runs}
    for level in found.levels:
        cost = mpf(0)
        precision = {}
        for name in level.recipe.names:
            run, _, step = name.partition("@")
            assert int(step) in next(r.checkpoints for r in found.runs if r.name == run)
            cost += int(step) * (k / mpf(noise[run])) ** 2
            precision[name] = noise[run] ** -2.0
        assert len({name.partition("@")[0] for name in level.recipe.names}) == len(level.recipe.names)
        assert exact_delta(cost, level.target) <= found.delta
        assert exact_delta(cost, level.epsilon) <= found.delta
        assert level.epsilon <= level.target
        total = sum(precision.values())
        assert dict(level.recipe.parts) == pytest.approx({name: p / total for name, p in precision.items()})
        assert level.excess == pytest.approx(max(1.0, mu_for(level.target, found.delta) ** 2 / float(cost)), rel=1e-5)


def test_every_level_of_the_default_meets_its_target(default: Design) -> None:
    checked_levels(default)
    assert [level.target for level in default.levels][:: len(default.levels) - 1] == [0.1, 2.0]


def test_the_worst_excess_is_what_enumeration_finds(default: Design) -> None:
    low, high = mu_for(0.1, 1e-5) ** 2, mu_for(2, 1e-5) ** 2
    fractions = [step / default.steps for step in default.runs[0].checkpoints]
    found = worst_on_grid(all_sums(budget_costs(default), fractions), low, high)
    assert default.worst_excess == pytest.approx(found, rel=1e-6)
    assert default.worst_excess <= SOUGHT
    assert default.reached


def test_excess_is_the_predicted_noise_relative_to_retraining(default: Design) -> None:
    """Σ λ²Σ(ησC)² / (Σ λ Σ η)², written out, against one run of all steps at the target."""
    rate, clip = 0.3, 1.7
    noise = {run.name: run.noise_multiplier for run in default.runs}
    for level in default.levels:
        variance = signal = 0.0
        for name, weight in level.recipe.parts:
            run, _, step = name.partition("@")
            variance += weight**2 * int(step) * (rate * noise[run] * clip) ** 2
            signal += weight * int(step) * rate
        sigma = 2 * math.sqrt(default.steps) / mu_for(level.target, default.delta)
        retrained = default.steps * (rate * sigma * clip) ** 2 / (default.steps * rate) ** 2
        assert variance / signal**2 / retrained == pytest.approx(level.excess, rel=1e-5)


def best_of_two(span: float) -> float:
    """Sums a ≤ b ≤ a + b, a ≤ 1. Up to φ² one model at a time is best: 1 and √R. Then b = φ, where b/a = (a + b)/b = φ,
    reaches up to φ³. Beyond, b = R/(1 + b)."""
    if span <= GOLDEN**2:
        return math.sqrt(span)
    return GOLDEN if span <= GOLDEN**3 else (math.sqrt(1 + 4 * span) - 1) / 2


@pytest.mark.parametrize("span", [1.2, 2.0, 2.6, 3.0, 4.2, 5.0, 10.0, 238.0])
def test_two_runs_without_checkpoints_reach_the_closed_form(span: float) -> None:
    costs = cover(1.0, span, np.ones(1), 2, lambda exact: exact)
    assert ReachableSums.of(costs, np.ones(1), span).worst(1.0, span) == pytest.approx(best_of_two(span), rel=2e-3)


@pytest.mark.parametrize("fractions", [(1.0,), (0.5, 1.0), (0.5, 0.7, 1.0)])
@pytest.mark.parametrize("span", [3.0, 6.0, 30.0])
def test_two_runs_are_as_good_as_brute_force(span: float, fractions: tuple[float, ...]) -> None:
    grid = np.geomspace(0.5, span, 130)
    best = min(
        worst_on_grid(sums, 1.0, span)
        for a, b in product(grid, grid)
        if a <= b and (sums := all_sums([a, b], fractions))[0] <= 1
    )
    costs = cover(1.0, span, np.array(fractions), 2, lambda exact: exact)
    found = worst_on_grid(all_sums(costs, fractions), 1.0, span)
    assert found <= best * 1.01


def test_the_best_ladder_is_as_good_as_brute_force() -> None:
    for span, runs in [(1.3, 4), (3.0, 6), (2.0, 12), (40.0, 5)]:
        ladders = (np.arange(1, runs + 1) * cost for cost in np.geomspace(0.05, 1, 4000))
        best = min(worst_on_grid(sums, 1.0, span) for sums in ladders)
        cost = ladder_cost(1.0, span, runs)
        assert worst_on_grid(np.arange(1, runs + 1) * cost, 1.0, span) <= best * 1.001


@pytest.mark.parametrize(("span", "ratio"), [(5.0, 1.5), (237.9, 1.085), (1.05, 1.1), (12.0, 2.0)])
def test_ladder_runs_is_the_least_number_of_equal_runs_within_a_ratio(span: float, ratio: float) -> None:
    def worst(runs: int) -> float:
        return worst_on_grid(np.arange(1, runs + 1) * ladder_cost(1.0, span, runs), 1.0, span)

    needed = ladder_runs(1.0, span, ratio)
    assert worst(needed) <= ratio * (1 + 1e-9)
    assert needed == 1 or worst(needed - 1) > ratio


@settings(max_examples=25)
@given(
    low=st.floats(0.02, 3),
    factor=st.floats(1.02, 30),
    delta=st.sampled_from([1e-3, 1e-5, 1e-8]),
    levels=st.integers(2, 12),
    steps=st.integers(1, 40),
    runs=st.integers(1, 5),
    kept=st.integers(1, 4),
    adjacency=st.sampled_from(list(Adjacency)),
)
def test_any_design_meets_its_targets_and_is_never_worse_than_the_ladder(
    low: float, factor: float, delta: float, levels: int, steps: int, runs: int, kept: int, adjacency: Adjacency
) -> None:
    kept = min(kept, steps // 2 + 1)
    found = design(
        low, low * factor, delta, levels=levels, steps=steps, runs=runs, checkpoints=kept, adjacency=adjacency
    )
    checked_levels(found)
    assert 1 <= len(found.runs) <= runs
    assert found.worst_excess <= found.ladder.worst_excess * (1 + 1e-12)
    assert found.worst_excess >= found.worst_excess_of_levels >= 1
    assert len(found.levels) == levels
    json.dumps(found.document(), allow_nan=False)
    top = mu_for(low * factor, delta) ** 2
    assert all(cost <= top for cost in budget_costs(found))
    # One run cannot be averaged with another, so that there the bound must hold.
    assert runs > 1 or found.unaveraged_excess <= found.worst_excess * (1 + 1e-9)


def test_more_runs_are_no_worse() -> None:
    for kept in (1, 3):
        worst = [design(0.2, 3, 1e-5, runs=runs, checkpoints=kept).worst_excess for runs in range(1, 8)]
        assert all(after <= before * 1.003 for before, after in pairwise(worst)), worst


def test_more_checkpoints_are_no_worse() -> None:
    for runs in (2, 4, 5):
        worst = [design(0.1, 2, 1e-5, runs=runs, checkpoints=kept).worst_excess for kept in (1, 2, 3, 5, 11)]
        assert all(after <= before * 1.003 for before, after in pairwise(worst)), worst


def test_a_design_has_no_more_runs_than_the_finest_excess_needs() -> None:
    found = design(0.5, 1, 1e-5, runs=12)
    assert len(found.runs) < 12
    assert found.worst_excess <= FINEST * (1 + 1e-9)


def test_a_design_that_misses_the_sought_excess_says_so() -> None:
    found = design(0.001, 20, 1e-5, checkpoints=1)
    assert len(found.runs) == 12
    assert not found.reached
    assert "was sought, but not found with 12 runs" in " ".join(printed(found).split())
    assert found.document()["reached"] is False


def test_noise_multipliers_are_short_and_rounded_up() -> None:
    budgets = Budgets(bottom=0.1, top=2.0, steps=20, kept=(20,), adjacency=Adjacency.ADD_REMOVE)
    costs = np.geomspace(1e-4, 30, 997)
    noise = budgets._printed(costs.tolist())
    exact = np.sqrt(20 / costs)
    assert all(float(f"{value:.4g}") == value for value in noise)
    assert np.all(np.array(noise) >= exact * (1 - 1e-11))
    assert np.all(np.array(noise) <= exact * 1.0011)
    assert budgets._printed([20 / 275.1**2]) == (275.1,)


def test_designs_are_reproducible(default: Design) -> None:
    assert design(0.1, 2, 1e-5).document() == default.document()


def test_adjacency_only_scales_the_noise() -> None:
    one = design(0.1, 2, 1e-5, runs=3, adjacency="replace_one")
    other = design(0.1, 2, 1e-5, runs=3, adjacency="add_remove")
    for a, b in zip(one.runs, other.runs, strict=True):
        assert a.noise_multiplier == pytest.approx(2 * b.noise_multiplier, rel=5e-3)


@pytest.mark.parametrize(
    ("steps", "count", "expected"),
    [
        (20, 1, (20,)),
        (20, 2, (10, 20)),
        (20, 5, (10, 12, 14, 17, 20)),
        (20, 11, tuple(range(10, 21))),
        (1, 1, (1,)),
        (2, 2, (1, 2)),
        (5, 3, (3, 4, 5)),
    ],
)
def test_the_kept_steps_for_a_number_of_checkpoints_are_the_expected_ones(
    steps: int, count: int, expected: tuple[int, ...]
) -> None:
    assert kept_steps(steps, count) == expected


@given(steps=st.integers(1, 300), data=st.data())
def test_kept_steps_are_in_the_last_half(steps: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, steps // 2 + 1))
    kept = kept_steps(steps, count)
    assert len(set(kept)) == count
    assert list(kept) == sorted(kept)
    assert kept[-1] == steps
    assert 2 * kept[0] >= steps


@given(costs=st.lists(st.floats(0.3, 9), min_size=1, max_size=4), kept=st.sampled_from([(1.0,), (0.5, 0.8, 1.0)]))
def test_reach_lists_the_sums_and_how_they_are_made(costs: list[float], kept: tuple[float, ...]) -> None:
    reach = ReachableSums.of(costs, np.array(kept), 10.0)
    expected = all_sums(costs, kept)
    np.testing.assert_allclose(reach.sums, expected[expected <= 10 * (1 + 1e-9)], rtol=1e-12)
    options = np.array([*kept, 0.0])  # position −1 is none
    np.testing.assert_allclose((options[reach.choices] * np.array(costs)).sum(axis=1), reach.sums, rtol=1e-12)


def test_too_many_sums_are_thinned_to_ones_that_can_be_made() -> None:
    fractions = np.linspace(0.5, 1, 11)
    costs = [1.0, 1.3, 3.1, 7.7, 20.0, 50.0, 130.0]
    reach = ReachableSums.of(costs, fractions, 200.0)
    assert len(reach.sums) < 100_000
    options = np.append(fractions, 0.0)
    np.testing.assert_allclose((options[reach.choices] * costs).sum(axis=1), reach.sums, rtol=1e-12)
    assert reach.worst(1.0, 200.0) == pytest.approx(1.1, rel=0.05)


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("low above high", dict(low=2, high=0.1), "range"),
    ("an empty range", dict(low=1, high=1), "range"),
    ("low of zero", dict(low=0.0), "range"),
    ("negative low", dict(low=-1.0), "range"),
    ("NaN", dict(low=math.nan), "range"),
    ("an infinite end", dict(high=math.inf), "range"),
    ("an end that is text", dict(high="2"), "range"),
    ("levels too close to tell apart", dict(low=1.0, high=1.0 + 2**-51, levels=20), "range"),
    ("delta of zero", dict(delta=0.0), "delta"),
    ("delta of one", dict(delta=1.0), "delta"),
    ("one level", dict(levels=1), "levels"),
    ("a level too many", dict(levels=201), "levels"),
    ("no steps", dict(steps=0), "steps"),
    ("steps that are no integer", dict(steps=20.0), "steps"),
    ("no runs", dict(runs=0), "runs"),
    ("a run too many", dict(runs=13), "runs"),
    ("no checkpoints", dict(checkpoints=0), "checkpoints"),
    ("more checkpoints than half the steps", dict(checkpoints=12), "checkpoints"),
    ("unknown adjacency", dict(adjacency="neighbour"), "adjacency"),
]


@pytest.mark.parametrize(("arguments", "field"), [pytest.param(a, f, id=name) for name, a, f in REFUSED])
def test_an_invalid_argument_of_design_is_refused_by_its_name(arguments: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInputError) as refusal:
        design(**{"low": 0.1, "high": 2, "delta": 1e-5, **arguments})
    assert refusal.value.field == field
    assert "accepted: " in str(refusal.value)


@pytest.mark.parametrize("text", ["", "1", "0.1:", ":2", "0.1:1:2", "a:b", "2:0.1", "0:1", "nan:1", "0.1-2", "1:inf"])
def test_a_text_that_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match=r"^range: got "):
        parse_range(text)


def test_a_range_is_read_with_spaces_and_exponents() -> None:
    assert parse_range(" 0.1 : 2e0") == (0.1, 2.0)


def printed(found: Design) -> str:
    console = Console(width=80, file=StringIO())
    print_design(found, console)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize(
    "options", [{}, dict(runs=1), dict(runs=12, checkpoints=1, levels=25), dict(low=0.001, high=20, runs=12)], ids=str
)
def test_the_table_fits_a_terminal(options: dict[str, Any]) -> None:
    found = design(**{"low": 0.1, "high": 2, "delta": 1e-5, **options})
    text = printed(found)
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    for run in found.runs:
        assert f"{run.noise_multiplier:g}" in text
    for level in found.levels:
        assert all(name in text for name in level.recipe.names)


@pytest.mark.parametrize(
    ("excess", "words"), [(1.0, "+0.0 %"), (1.0851, "+8.6 %"), (1.5, "+50.0 %"), (39.66, "40×"), (19829.0, "19,829×")]
)
def test_an_excess_in_words_is_rounded_up(excess: float, words: str) -> None:
    assert percent(excess) == words


def test_the_documentation_shows_what_is_printed(default: Design) -> None:
    page = Path(__file__).parents[2] / "docs" / "reference" / "verbs" / "design.md"
    lines = [line.rstrip() for line in printed(default).splitlines()]
    assert "\n".join(lines).strip() in page.read_text()
