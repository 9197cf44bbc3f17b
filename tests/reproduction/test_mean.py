"""Mean estimation, against quadrature with mpmath, closed forms written out again, and the published figures."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from mpmath import mp, mpf
from scipy.special import ndtr

from dpmerge.errors import InvalidInputError
from dpmerge.report.plots import Panels, Plot
from reproduction import mean
from reproduction.gaussian_mixture import (
    MovedMixture,
    MovedVectorMixture,
    RenyiComparison,
    deciding_orders,
    equal_variance_weight,
)
from reproduction.run_store import RunStore
from reproduction.statements import Statement
from tiny_experiments import roundtrip

DELTA = 1e-5
RS, LC = "random selection (RS)", "linear combination (LC)"
Numbers = dict[str, Any]


@pytest.fixture(scope="module")
def numbers(store: RunStore) -> Numbers:
    return roundtrip(mean.measure(store))


# Oracles -------------------------------------------------------------------------------------------------------------


def density(chance: float, deviations: tuple[float, float]) -> Callable[[Any], Any]:
    first, second = (mpf(s) for s in deviations)
    return lambda x: (
        (chance * mp.exp(-(x**2) / (2 * first**2)) / first + (1 - chance) * mp.exp(-(x**2) / (2 * second**2)) / second)
        / mp.sqrt(2 * mp.pi)
    )


def oracle_delta(
    chance: float, deviations: tuple[float, float], shift: float, epsilon: float, *, swapped: bool = False
) -> float:
    """∫ max(0, p − e^ε q) by mpmath, cut at every sign change; the other direction if swapped."""
    with mp.workdps(25):
        law, moved = density(chance, deviations), mpf(shift)

        def gap(x: Any) -> Any:
            here, there = law(x), law(x - moved)
            return there - mp.exp(epsilon) * here if swapped else here - mp.exp(epsilon) * there

        span = 12 * max(deviations)
        places = [mpf(x) for x in np.linspace(-span, span + shift, 160)]
        signs = [gap(x) > 0 for x in places]
        cuts = [mp.findroot(gap, (a, b), solver="anderson") for a, b, s, t in
                zip(places, places[1:], signs, signs[1:], strict=False) if s != t]  # fmt: skip
        edges = sorted([*places[::8], places[-1], *cuts])
        parts = [(a, b) for a, b in pairwise(edges) if gap((a + b) / 2) > 0]
        return float(mp.fsum(mp.quad(gap, [a, b], method="gauss-legendre") for a, b in parts))


def oracle_renyi(chance: float, deviations: tuple[float, float], shift: float, order: float) -> float:
    with mp.workdps(24):
        law, moved, alpha = density(chance, deviations), mpf(shift), mpf(order)
        wide = 14 * max(deviations)
        edges = np.arange(-(order - 1) * shift - wide, shift + wide + 2, 2.0 * min(deviations)).tolist()
        integral = mp.quad(lambda x: law(x) ** alpha * law(x - moved) ** (1 - alpha), edges, method="gauss-legendre")
        return float(mp.log(integral) / (alpha - 1))


def gaussian_delta(mu: float, epsilon: float) -> float:
    return float(ndtr(-epsilon / mu + mu / 2) - np.exp(epsilon) * ndtr(-epsilon / mu - mu / 2))


# The exact mixture ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("swapped", [False, True], ids=["towards", "away"])
@pytest.mark.parametrize(
    ("chance", "deviations", "shift", "epsilon"),
    [(0.5, (1, 2), 0.1, 0.15), (0.9, (1, 3), 0.5, 0.4), (0.25, (1, 3), 4.0, 1.5), (0.98, (1, 2), 2.0, 3.0)],
)
def test_delta_is_the_integral_in_both_directions(
    chance: float, deviations: tuple[float, float], shift: float, epsilon: float, swapped: bool
) -> None:
    expected = oracle_delta(chance, deviations, shift, epsilon, swapped=swapped)
    assert expected > 1e-9
    found = MovedMixture((chance, 1 - chance), deviations, shift).deltas(epsilon)[int(swapped)]
    assert float(found) == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize(
    ("chance", "ratio", "shift", "order"),
    [(0.5, 2, 0.001, 1.1), (0.02, 2, 0.01, 64), (0.5, 3, 0.5, 22.4), (0.9, 3, 3.0, 4), (0.25, 2, 6.0, 3)],
)
def test_renyi_divergence_is_the_integral(chance: float, ratio: float, shift: float, order: float) -> None:
    expected = oracle_renyi(chance, (1.0, ratio), shift, order)
    found = MovedMixture((chance, 1 - chance), (1.0, ratio), shift).renyi_divergence(np.array([order]))[0]
    assert found == pytest.approx(expected, rel=1e-9)


def test_one_component_is_a_gaussian() -> None:
    """Also where the other has probability zero."""
    mixture = MovedMixture((1.0, 0.0), (2.0, 7.0), 1.0)
    assert mixture.delta(0.3) == pytest.approx(gaussian_delta(0.5, 0.3), rel=1e-9)
    orders = np.array([1.5, 20.0, 300.0])
    assert mixture.renyi_divergence(orders) == pytest.approx(orders / 8, rel=1e-9)


def test_a_vector_mixture_is_the_integral_over_both_coordinates() -> None:
    """In five dimensions: x, and the length r of the other four, whose law has density r³e^{−r²/2σ²}/2σ⁴."""
    chance, deviations, shift = 0.5, (1.0, 2.0), 0.1
    epsilon = MovedVectorMixture(chance, deviations, shift, 5).epsilon(DELTA)
    x, dx = np.linspace(-18, 18, 6001, retstep=True)
    r, dr = np.linspace(0, 20, 1201, retstep=True)

    def law(places: Any) -> Any:
        return sum(
            p * np.outer(r**3 * np.exp(-(r**2) / (2 * s**2)) / (2 * s**4), np.exp(-(places**2) / (2 * s**2)))
            / (s * np.sqrt(2 * np.pi))
            for p, s in zip((chance, 1 - chance), deviations, strict=True)
        )  # fmt: skip

    delta = np.maximum(law(x) - np.exp(epsilon) * law(x - shift), 0).sum() * dx * dr
    assert delta == pytest.approx(DELTA, rel=2e-3)


def test_invalid_mixtures_are_refused_by_the_name_of_the_field() -> None:
    with pytest.raises(InvalidInputError, match="shift"):
        MovedMixture((0.5, 0.5), (1.0, 2.0), 0.0)
    with pytest.raises(InvalidInputError, match="deviations"):
        MovedMixture((0.5, 0.5), (1.0, 0.0), 0.1)
    with pytest.raises(InvalidInputError, match="probabilities"):
        MovedMixture((0.5, 0.6), (1.0, 2.0), 0.1)


@pytest.mark.parametrize("chance", [0.0, 0.3, 0.9, 1.0])
def test_the_weight_of_equal_variance_exists_for_every_probability(chance: float) -> None:
    weight = equal_variance_weight(chance, (1.0, 3.0))
    assert 0 <= weight <= 1
    assert weight**2 + (1 - weight) ** 2 * 9 == pytest.approx(chance + (1 - chance) * 9)


def test_the_deciding_order_has_the_least_epsilon() -> None:
    order = float(deciding_orders(1.5, 0.1, DELTA))
    orders = np.linspace(1.01, 400, 100_000)
    assert orders[np.argmin(orders * (0.1 / 1.5) ** 2 / 2 + np.log(1 / DELTA) / (orders - 1))] == pytest.approx(
        order, rel=1e-3
    )


# The numbers ----------------------------------------------------------------------------------------------------------


def test_settings_say_that_the_noise_is_ours(store: RunStore) -> None:
    told = mean.settings(store)
    assert "paper does not state" in json.dumps(told, ensure_ascii=False)
    assert told["noise multipliers"] == pytest.approx([2, 6])


def test_the_variance_of_clipped_normals_agrees_with_quadrature() -> None:
    with mp.workdps(20):
        expected = mp.quad(lambda x: min(x**2, 1) * mp.npdf(x), [-mp.inf, -1, 1, mp.inf])
    assert mean.value_variance() == pytest.approx(float(expected), rel=1e-12)


def test_lc_is_the_gaussian_of_its_variance(numbers: Numbers) -> None:
    found = numbers["combination"]
    for weight, epsilon, error, rdp in zip(
        *(found[name] for name in ("weights", "pld", "error", "rdp")), strict=True
    ):  # fmt: skip
        variance = weight**2 * 0.04**2 + (1 - weight) ** 2 * 0.12**2
        mu = 0.02 / np.sqrt(variance)
        assert gaussian_delta(mu, epsilon) == pytest.approx(DELTA, rel=1e-6)
        assert error == pytest.approx(0.516058550 / 100 + variance, rel=1e-8)
        closed = mu**2 / 2 + mu * np.sqrt(2 * np.log(1 / DELTA))  # over all orders: the grid's is a little larger
        assert closed <= rdp <= closed * 1.003
    assert found["joint"] == pytest.approx(max(found["pld"]), rel=1e-9)


def test_rs_averages_the_deltas_of_its_members(numbers: Numbers) -> None:
    found = numbers["selection"]
    orders = np.concatenate([np.arange(11, 111) / 10, np.arange(12, 64)])
    for chance, epsilon, rdp in zip(found["weights"], found["pld"], found["rdp"], strict=True):
        delta = chance * gaussian_delta(0.5, epsilon) + (1 - chance) * gaussian_delta(0.02 / 0.12, epsilon)
        assert delta == pytest.approx(DELTA, rel=1e-6)
        sums = chance * np.exp((orders - 1) * orders / 8) + (1 - chance) * np.exp((orders - 1) * orders / 72)
        assert rdp == pytest.approx(np.min((np.log(sums) + np.log(1 / DELTA)) / (orders - 1)), rel=1e-8)
    assert found["error"][0] == numbers["inputs"]["error"][1]
    assert found["error"][-1] == numbers["inputs"]["error"][0]


@pytest.mark.parametrize("accounting", ["rdp", "pld"])
def test_the_frontier_is_the_least_error_within_each_epsilon(numbers: Numbers, accounting: str) -> None:
    found = numbers["frontier"][accounting]
    dense = np.linspace(0, 1, 401)
    for method, epsilons, variances in (
        ("select", mean.selected_epsilons, mean.selected_variances),
        ("combine", mean.combined_epsilons, mean.combined_variances),
    ):
        costs, errors = epsilons(dense, accounting), mean.errors(variances(dense))
        for target, error in zip(found["targets"], found[method], strict=True):
            if not np.isnan(error):
                swept = errors[costs <= target * (1 + 1e-9)].min()
                assert error <= swept * (1 + 1e-9)
                assert error == pytest.approx(swept, rel=1e-2)
    assert np.isnan(found["select"][-1])  # RS ends at the less noisy estimate
    assert found["combine"][-1] < min(numbers["inputs"]["error"])


def test_the_inequality_holds_below_its_reach_and_fails_above_it(numbers: Numbers) -> None:
    """A little below the largest Δ the inequality holds by mpmath, a little above it fails."""
    for place, chance, order in ((0, 0.5, 4.0), (1, 0.1, 16.0), (1, 0.9, 1.5)):
        found = numbers["untold"]["reach"][place]
        ratio = found["deviations"][1]
        row, column = found["chances"].index(chance), found["orders"].index(order)
        held, failed = found["held"][row][column], found["failed"][row][column]
        assert held < failed <= held * 1.0011
        variance = chance + (1 - chance) * ratio**2
        for shift, holds in ((held * 0.99, True), (failed * 1.01, False)):
            assert (oracle_renyi(chance, (1.0, ratio), shift, order) >= order * shift**2 / (2 * variance)) is holds


def test_the_reach_of_an_inequality_that_always_or_never_holds_is_the_end_of_the_grid() -> None:
    comparison, orders = RenyiComparison(0.5, (1.0, 2.0)), np.array([4.0])
    held, failed, again = comparison.reach(np.array([0.01, 0.1]), orders)
    assert (held[0], failed[0], again) == (0.1, np.inf, 0)
    held, failed, again = comparison.reach(np.array([5.0, 6.0]), orders)
    assert (held[0], failed[0], again) == (0.0, 5.0, 0)


def test_the_example_has_the_published_figures(numbers: Numbers) -> None:
    example = numbers["untold"]["example"]
    assert (example["deviations"], example["chance"], example["shift"]) == ([1, 2], 0.5, 0.1)
    assert round(example["combine"], 3) == 0.207
    assert round(example["mixture"], 3) == 0.150
    assert oracle_delta(0.5, (1, 2), 0.1, example["mixture"]) == pytest.approx(DELTA, rel=1e-7)
    assert 0.5 * (gaussian_delta(0.1, example["bound"]) + gaussian_delta(0.05, example["bound"])) == pytest.approx(
        DELTA, rel=1e-6
    )
    vector = example["vector"]
    assert vector[0] == example["mixture"]
    assert all(later >= earlier - 1e-6 for earlier, later in pairwise(vector))


def test_the_epsilons_of_the_grid_have_the_stated_delta(numbers: Numbers) -> None:
    for grid in numbers["untold"]["grids"]:
        deviations = tuple(grid["deviations"])
        for row, column in ((0, 10), (3, 15), (6, 20)):
            chance, shift = grid["chances"][row], grid["shifts"][column]
            assert oracle_delta(chance, deviations, shift, grid["mixture"][row][column]) == pytest.approx(
                DELTA, rel=1e-6
            )
            deviation = np.sqrt(chance + (1 - chance) * deviations[1] ** 2)
            assert gaussian_delta(shift / deviation, grid["combine"][row][column]) == pytest.approx(DELTA, rel=1e-6)


def test_errors_drawn_are_compared_with_the_formulas(numbers: Numbers) -> None:
    drawn = numbers["monte_carlo"]
    for what, weight, formula in zip(drawn["what"], drawn["weights"], drawn["formula"], strict=True):
        noise = {
            "mean": 0.0,
            "selection": weight * 0.04**2 + (1 - weight) * 0.12**2,
            "combination": weight**2 * 0.04**2 + (1 - weight) ** 2 * 0.12**2,
        }[what]
        assert formula == pytest.approx(0.516058550 / 100 + noise, rel=1e-8)
    # A squared normal has deviation √2 times its mean, so the standard error of the mean itself is known.
    assert drawn["standard_error"][0] == pytest.approx(drawn["formula"][0] * np.sqrt(2 / drawn["draws"]), rel=0.1)


# What is said, and drawn ----------------------------------------------------------------------------------------------


def found(numbers: Numbers, part: str) -> Statement:
    [statement] = [statement for statement in mean.statements(numbers) if part in statement.claim]
    return statement


VERDICTS = {
    "is a proof": "agrees",
    "tighter": "agrees",
    "continuous": "agrees",
    "equal ε in RDP": "agrees",
    "index of RS known": "agrees",
    "below both": "agrees",
    "v/n": "agrees",
    "any order": "agrees",
    "validates": "disagrees",
    "that of RS as one number.": "disagrees",
    "certified at": "agrees",
    "many dimensions": "agrees",
}


def test_every_statement_on_mean_estimation_has_its_expected_verdict(numbers: Numbers) -> None:
    assert {part: found(numbers, part).verdict for part in VERDICTS} == VERDICTS
    assert len(mean.statements(numbers)) == len(VERDICTS)


def test_the_statements_on_mean_estimation_tell_their_figures(numbers: Numbers) -> None:
    assert "LC 0.207, RS as one number 0.150" in found(numbers, "that of RS as one number.").measured
    assert "reveal the index" in found(numbers, "that of RS as one number.").why
    reach = [np.array(table["held"]) for table in numbers["untold"]["reach"]]
    assert f"from {min(t.min() for t in reach):.3g}" in found(numbers, "any order").measured
    grids = numbers["untold"]["grids"]
    larger = sum(int((np.array(g["combine"]) > np.array(g["mixture"])).sum()) for g in grids)
    assert f"larger in {larger} of {2 * 7 * 21}" in found(numbers, "that of RS as one number.").measured
    assert "for 0 of 19 π" in found(numbers, "validates").measured


def altered(numbers: Numbers, alter: Callable[[Numbers], None]) -> Numbers:
    changed = copy.deepcopy(numbers)
    alter(changed)
    return changed


def scale(table: list[Any], factor: float) -> list[Any]:
    return (np.array(table, dtype=float) * factor).tolist()  # type: ignore[no-any-return]


ALTERED: dict[str, tuple[str, Callable[[Numbers], None], str]] = {
    "unproved": ("is a proof", lambda n: n["combination"].update(proved=[True, False]), "agrees in part"),
    "pld above": ("tighter", lambda n: n["selection"]["pld"].__setitem__(3, 9.0), "agrees in part"),
    "a jump": ("continuous", lambda n: n["frontier"]["pld"]["select_missed"].__setitem__(4, 0.1), "disagrees"),
    "rdp: lc worse": (
        "equal ε in RDP",
        lambda n: n["frontier"]["rdp"].update(combine=scale(n["frontier"]["rdp"]["combine"], 9)),
        "disagrees",
    ),
    "pld: lc worse at one": (
        "index of RS known",
        lambda n: n["frontier"]["pld"]["combine"].__setitem__(2, 1.0),
        "agrees in part",
    ),
    "no gain": ("below both", lambda n: n["inputs"].update(error=[0.001, 0.002]), "disagrees"),
    "other error": ("v/n", lambda n: n["monte_carlo"]["measured"].__setitem__(1, 0.03), "agrees in part"),
    "theorem fails": (
        "any order",
        lambda n: n["untold"]["reach"][0]["at_smallest"][0].__setitem__(0, 0.9),
        "agrees in part",
    ),
    "theorem covers": (
        "validates",
        lambda n: n["untold"]["here"].update(deciding_ratios=scale(n["untold"]["here"]["deciding_ratios"], 9)),
        "agrees",
    ),
    "above the bound": (
        "certified at",
        lambda n: n["untold"]["grids"][1]["combine"][2].__setitem__(5, 99.0),
        "agrees in part",
    ),
    "never revealed": (
        "many dimensions",
        lambda n: n["untold"]["example"]["vector"].__setitem__(-1, 0.2),
        "disagrees",
    ),
}


@pytest.mark.parametrize("case", ALTERED)
def test_a_statement_on_altered_numbers_has_another_verdict(numbers: Numbers, case: str) -> None:
    part, alter, expected = ALTERED[case]
    assert found(altered(numbers, alter), part).verdict == expected


def test_lc_below_every_mixture_would_agree(numbers: Numbers) -> None:
    def lower(n: Numbers) -> None:
        n["untold"]["example"]["combine"] = 0.1
        for table in (*n["untold"]["grids"], n["untold"]["here"]):
            table["combine"] = scale(table["combine"], 0.01)

    statement = found(altered(numbers, lower), "that of RS as one number.")
    assert (statement.verdict, statement.why) == ("agrees", "")


def test_the_drawings_of_mean_estimation_show_what_was_computed(numbers: Numbers) -> None:
    tradeoff_plot, weights, index = mean.drawings(numbers)
    assert isinstance(weights, Panels)
    assert isinstance(index, Panels)
    plots = {plot.name: plot for plot in (tradeoff_plot, *weights.plots, *index.plots)}
    assert list(plots) == [
        *("mean-tradeoff", "mean-selection-epsilon", "mean-selection-error", "mean-combination-epsilon"),
        *("mean-combination-error", "mean-exact", "mean-theorem", "mean-excess", "mean-dimensions"),
    ]
    series = {name: {line.name: line for line in plot.series} for name, plot in plots.items() if isinstance(plot, Plot)}
    tradeoff = series["mean-tradeoff"]
    assert {name for name, line in tradeoff.items() if line.dotted} == {f"{name}, RDP" for name in (RS, LC)}
    assert not any(line.dashed for lines in series.values() for line in lines.values())  # all is proved
    inputs = tradeoff["the two estimates, PLD"]
    assert not inputs.line
    assert inputs.x.tolist() == numbers["inputs"]["pld"]
    assert np.nanmin(tradeoff[f"{LC}, PLD"].y) < np.nanmin(tradeoff[f"{RS}, PLD"].y)
    [measured] = [line for name, line in series["mean-selection-error"].items() if "measured" in name]
    assert measured.error is not None
    assert len(measured.x) == len(mean.CHECKED_WEIGHTS)
    exact = series["mean-exact"]
    known, untold = exact["RS, index known: what is certified"], exact["RS, one number and the index untold"]
    assert np.all(untold.y < exact["LC of the same variance"].y)
    assert np.all(exact["LC of the same variance"].y < known.y)
    assert np.all(series["mean-theorem"]["order α decides ε"].y > series["mean-theorem"]["holds below, π = 0.5"].y)
    assert series["mean-excess"]["π = 0.5"].y.max() > 1
    assert series["mean-dimensions"]["LC, any dimension"].y[0] == numbers["untold"]["example"]["combine"]
