"""Composition, against the paper's closed forms, the exact Gaussian profile, and randomised responses enumerated."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import ndtr

from dpmerge.report.plots import Panels
from reproduction import composition
from reproduction.run_store import RunStore
from reproduction.statements import Statement
from tiny_experiments import roundtrip

Numbers = dict[str, Any]


@pytest.fixture(scope="module")
def numbers(store: RunStore) -> Numbers:
    return roundtrip(composition.measure(store))


def rows(table: dict[str, Any]) -> list[dict[str, float]]:
    columns = {name: column for name, column in table.items() if isinstance(column, list)}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def by_rdp(mu: float, count: float, delta: float) -> float:
    """The paper's closed form, steps 2 and 4 of its proof."""
    return float(count * mu**2 / 2 + mu * np.sqrt(2 * count * np.log(1 / delta)))


def enumerated(epsilon: float, delta: float, count: int, total: float) -> float:
    """Kairouz, Oh and Viswanath's ε by every outcome of `count` randomised responses."""
    kept = (1 - delta) / (1 + np.exp(epsilon))
    outcomes = [(delta, 0.0), (kept * np.exp(epsilon), kept), (kept, kept * np.exp(epsilon)), (0.0, delta)]
    joint = np.array([np.prod(drawn, axis=0) for drawn in product(outcomes, repeat=count)])

    def excess(level: float) -> float:
        return float(np.maximum(joint[:, 0] - np.exp(level) * joint[:, 1], 0).sum() - total)

    return 0.0 if excess(0.0) <= 0 else float(brentq(excess, 0, count * epsilon + 1e-9, xtol=1e-12))


def test_rdp_and_advanced_composition_follow_the_papers_formulas(numbers: Numbers) -> None:
    cases = rows(numbers["proposition"])
    assert len(cases) > 1000
    for case in cases:
        mu, count, delta, slack = (case[name] for name in ("mus", "counts", "deltas", "slacks"))
        total = count * delta + slack
        assert total < 1
        joint, one = by_rdp(mu, count, total), by_rdp(mu, 1, delta)
        assert joint * (1 - 1e-9) <= case["rdp"] <= joint * (1 + 1e-4)
        expected = one * np.sqrt(2 * count * np.log(1 / slack)) + count * one * np.expm1(one)
        assert expected * (1 - 1e-9) <= case["advanced"] <= expected * (1 + 1e-2)  # e^ε makes more of an order's error


def test_every_case_of_the_grid_is_compared_or_counted_as_skipped(numbers: Numbers, store: RunStore) -> None:
    grid = composition.settings(store)["grid of the proposition"]
    cases = np.prod([len(grid[name]) for name in ("μ", "N", "δ", "δ₀")])
    assert len(numbers["proposition"]["rdp"]) + numbers["proposition"]["skipped"] == cases


def test_pld_and_basic_composition_follow_their_closed_forms(numbers: Numbers) -> None:
    for case in rows(numbers["order"]):
        mu, count, delta, slack = (case[name] for name in ("mus", "counts", "deltas", "slacks"))
        total, joint, level = count * delta + slack, mu * np.sqrt(count), case["pld"]
        found = ndtr(-level / joint + joint / 2) - np.exp(level) * ndtr(-level / joint - joint / 2)
        assert found == pytest.approx(total, rel=1e-5)
        assert case["same"] == pytest.approx(count * by_rdp(mu, 1, delta), rel=1e-4)
        assert case["basic"] == pytest.approx(count * by_rdp(mu, 1, total / count), rel=1e-4)


def test_optimal_composition_agrees_with_enumeration(numbers: Numbers) -> None:
    few = [case for case in rows(numbers["order"]) if case["counts"] <= 4 and case["mus"] < 2]
    assert {case["counts"] for case in few} == {1, 4}
    for case in few:
        count, delta = int(case["counts"]), case["deltas"]
        epsilon = case["same"] / count
        expected = enumerated(epsilon, delta, count, count * delta + case["slacks"])
        assert case["optimal"] == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_the_shown_methods_have_one_total_delta(numbers: Numbers) -> None:
    shown = numbers["shown"]
    for count, classic, pld in zip(shown["counts"], shown["classic"], shown["pld"], strict=True):
        assert classic == pytest.approx(by_rdp(0.1, count, 1e-5), rel=1e-4)
        joint = 0.1 * np.sqrt(count)
        found = ndtr(-pld / joint + joint / 2) - np.exp(pld) * ndtr(-pld / joint - joint / 2)
        assert found == pytest.approx(1e-5, rel=1e-5)


def found(numbers: Numbers, part: str) -> Statement:
    [statement] = [statement for statement in composition.statements(numbers) if part in statement.claim]
    return statement


PARTS = ("no more than advanced", "no more than RDP", "Optimal composition", "often worse", "tighter than")


def test_every_statement_on_composition_agrees_and_tells_its_figures(numbers: Numbers) -> None:
    assert [found(numbers, part).verdict for part in PARTS] == ["agrees"] * len(composition.statements(numbers))
    cases = rows(numbers["proposition"])
    told = found(numbers, "no more than advanced").measured
    assert f"{len(cases)} of {len(cases)} cases" in told
    assert f"{min(case['advanced'] / case['rdp'] for case in cases):.3g} times" in told
    order = rows(numbers["order"])
    worse = sum(case["advanced"] > case["same"] for case in order)
    assert f"worse in {worse} of {len(order)}" in found(numbers, "often worse").measured
    beaten = [case for case in order if case["optimal"] > case["basic"] * (1 + 1e-9)]
    optimal = found(numbers, "Optimal composition")
    assert f"not above in {len(order) - len(beaten)}" in optimal.measured
    assert bool(beaten) is bool(optimal.why)


def scaled(name: str, factor: float) -> Callable[[Numbers], None]:
    return lambda n: n["order"].update({name: [factor * value for value in n["order"][name]]})


ALTERED: dict[str, tuple[str, Callable[[Numbers], None], str]] = {
    "one case fails": (
        "no more than advanced",
        lambda n: n["proposition"]["advanced"].__setitem__(7, 0.0),
        "agrees in part",
    ),
    "pld above": ("no more than RDP", scaled("pld", 1e3), "disagrees"),
    "classic below improved": ("no more than RDP", scaled("classic", 1e-3), "disagrees"),
    "optimal below pld": ("Optimal composition", scaled("optimal", 1e-3), "disagrees"),
    "optimal above basic": ("Optimal composition", scaled("optimal", 1e3), "disagrees"),
    "advanced always better": ("often worse", scaled("advanced", 1e-3), "disagrees"),
    "pairs tighter": ("tighter than", lambda n: n["shown"]["optimal"].__setitem__(-1, 0.1), "agrees in part"),
}


@pytest.mark.parametrize("case", ALTERED)
def test_a_statement_on_altered_numbers_has_another_verdict(numbers: Numbers, case: str) -> None:
    part, alter, expected = ALTERED[case]
    changed = copy.deepcopy(numbers)
    alter(changed)
    assert found(changed, part).verdict == expected


def test_the_drawings_of_composition_show_every_method_relative_to_pld(numbers: Numbers) -> None:
    [panels] = composition.drawings(numbers)
    assert isinstance(panels, Panels)
    cost, ratio = panels.plots
    assert cost.log_x
    assert cost.log_y
    lines = {line.name: line for line in ratio.series}
    assert len(lines) == len(composition.METHODS)
    assert np.all(lines["PLD, exact"].y == 1)
    assert all(np.all(line.y >= 1) for line in ratio.series)
    assert {line.name for line in cost.series if line.dotted} == {n for n in lines if n.startswith("RDP")}
