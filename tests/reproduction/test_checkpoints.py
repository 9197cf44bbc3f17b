"""Checkpoints of one run: costs against dp_accounting itself, frontiers against brute force, verdicts that flip."""

from __future__ import annotations

import copy
from typing import Any

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from dp_accounting.rdp import RdpAccountant

from dpmerge.accounting import DEFAULT_ORDERS
from dpmerge.planning.feasible_weights import lattice
from dpmerge.report.plots import Panels, values
from reproduction import checkpoints
from reproduction.checkpoints import COMBINED, SELECT_PLD, SELECT_RDP
from reproduction.presets import DELTA
from reproduction.run_store import RunStore
from reproduction.statements import Statement
from tiny_experiments import roundtrip

Numbers = dict[str, Any]


@pytest.fixture(scope="module")
def numbers(store: RunStore) -> Numbers:
    return roundtrip(checkpoints.measure(store))


@pytest.fixture
def mnist(numbers: Numbers) -> Numbers:
    return copy.deepcopy(numbers["tasks"]["mnist"])


def statement(task: Numbers, part: str) -> Statement:
    [found] = [s for s in checkpoints.statements({"delta": DELTA, "tasks": {"mnist": task}}) if part in s.claim]
    return found


SETTINGS: dict[str, tuple[float, float, list[int], list[int] | None]] = {
    "mnist": (0.5, 1 / 13, [13, 26, 39], [1, 2, 3]),
    "cifar10": (0.6, 1 / 3, [9, 12, 15], [3, 4, 5]),
    "mnist-steps": (0.5, 1 / 13, [1, 2, 3], None),
    "cifar10-steps": (0.6, 1 / 3, [3, 4, 5], None),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_costs_are_those_of_dp_accounting(numbers: Numbers, name: str) -> None:
    noise, rate, steps, epochs = SETTINGS[name]
    found = numbers["tasks"][name]
    assert found["steps"] == steps
    assert found.get("epochs") == epochs
    one = privacy_loss_distribution.from_gaussian_mechanism(
        noise, sampling_prob=rate, value_discretization_interval=1e-3
    )
    accountant = RdpAccountant(DEFAULT_ORDERS.tolist(), dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    accountant.compose(dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise)))
    curve = np.array(accountant._rdp)
    for place, count in enumerate(steps):
        assert found["epsilons"]["pld"][place] == pytest.approx(
            one.self_compose(count).get_epsilon_for_delta(DELTA), rel=5e-3
        )
        # Below order 2 ours is a chord above theirs: no less than the best of all orders, no more than of the others.
        classic = count * curve + np.log(1 / DELTA) / (DEFAULT_ORDERS - 1)
        assert classic.min() * (1 - 1e-9) <= found["epsilons"]["rdp"][place]
        assert found["epsilons"]["rdp"][place] <= classic[DEFAULT_ORDERS >= 2].min() * (1 + 1e-6)


@pytest.mark.parametrize("name", SETTINGS)
def test_an_average_costs_its_latest_checkpoint(numbers: Numbers, name: str) -> None:
    found = numbers["tasks"][name]
    rows = lattice(3, 10 if "mnist" in name else 2)
    latest = [np.flatnonzero(row)[-1] for row in rows]
    assert found["mixtures"][COMBINED] == pytest.approx(values(found["epsilons"]["pld"])[latest], rel=1e-9)
    assert found["latest"]["largest difference"] <= 1e-9
    assert found["latest"]["compared"] == 15 * 5
    assert "differs from its latest checkpoint by at most" in statement(found, "least private").measured


def test_selection_is_a_frontier_of_expected_accuracies(mnist: Numbers) -> None:
    rows, targets = lattice(3, 10), values(mnist["targets"])
    assert targets[0] < min(mnist["mixtures"][SELECT_PLD])
    assert targets[-1] > max(mnist["mixtures"][SELECT_RDP])
    for key in (SELECT_PLD, SELECT_RDP):
        costs = values(mnist["mixtures"][key])
        for repeat, accuracies in enumerate(values(mnist["accuracies"])):
            expected = rows @ accuracies.mean(axis=1)
            for place in (0, 10, 30, 59):
                within = costs <= targets[place]
                found = mnist["curves"][key]["in_sample"][repeat][place]
                assert found == pytest.approx(expected[within].max()) if within.any() else np.isnan(found)
    mixed = values(mnist["mixtures"][SELECT_PLD])
    singles = values(mnist["epsilons"]["pld"])
    assert mixed.min() == pytest.approx(singles.min())
    assert mixed.max() == pytest.approx(singles.max())


def test_statements_on_correlation_pld_and_the_latest_checkpoint_can_fail(mnist: Numbers) -> None:
    assert statement(mnist, "correlated").verdict == "agrees"
    assert statement(mnist, "by PLD").verdict == "agrees"
    other = copy.deepcopy(mnist)
    for key in (SELECT_PLD, SELECT_RDP):
        other["curves"][key]["held_out"] = [curve[::-1] for curve in other["curves"][key]["held_out"]]
        other["curves"][key]["held_out"] = np.nan_to_num(values(other["curves"][key]["held_out"]), nan=0.4).tolist()
    assert statement(other, "correlated").verdict == "disagrees"
    other["mixtures"][SELECT_PLD] = other["mixtures"][SELECT_RDP]
    other["mixtures"][SELECT_RDP] = mnist["mixtures"][SELECT_PLD]
    assert statement(other, "by PLD").verdict == "disagrees"
    other["latest"]["largest difference"] = 0.01
    assert statement(other, "least private").verdict == "disagrees"


def test_the_verdict_on_averaging_follows_its_gain_over_the_last_checkpoint(mnist: Numbers) -> None:
    last = values(mnist["average"]["last"])
    assert last == pytest.approx(values(mnist["accuracies"])[:, -1].mean(axis=1))
    for gain, expected in ((0.05, "agrees"), (-0.05, "disagrees"), (0.0, "within noise")):
        other = copy.deepcopy(mnist)
        other["average"]["best"] = other["average"]["equal"] = (last + gain).tolist()
        assert statement(other, "Averaging").verdict == expected
    other["average"]["equal"] = (last + 0.05).tolist()
    found = statement(other, "Averaging")
    assert found.verdict == "agrees in part"
    assert "+5.00 ± 0.00 points" in found.measured


def test_the_reason_why_averages_do_not_help_is_given_only_while_a_run_improves(mnist: Numbers) -> None:
    mnist["average"]["best"] = (values(mnist["average"]["last"]) - 0.01).tolist()
    mnist["accuracies"] = [[[0.5, 0.5], [0.6, 0.6], [0.7, 0.7]]] * 3
    assert "by +10.00 ± 0.00 points: older weights hold it back" in statement(mnist, "Averaging").why
    mnist["accuracies"] = [[[0.5, 0.5], [0.7, 0.7], [0.7, 0.7]]] * 3
    assert statement(mnist, "Averaging").why == ""


def test_statements_and_drawings_cover_both_data_sets(numbers: Numbers) -> None:
    found = checkpoints.statements(numbers)
    assert len(found) == 16
    for name in ("mnist", "cifar10", "mnist-steps", "cifar10-steps"):
        assert sum(f"({name})" in s.source for s in found) == 4
    drawings = checkpoints.drawings(numbers)
    assert [drawing.name for drawing in drawings] == ["checkpoints-epochs", "checkpoints-steps"]
    for panels, ending in zip(drawings, ("", "-steps"), strict=True):
        assert isinstance(panels, Panels)
        drawn = [(name + ending, how) for name in ("mnist", "cifar10") for how in ("held_out", "in_sample")]
        assert [plot.name for plot in panels.plots] == [f"checkpoints-{name}-{how}" for name, how in drawn]
        for plot, (name, how) in zip(panels.plots, drawn, strict=True):
            task = numbers["tasks"][name]
            assert plot.note == task["described"]
            assert not any(s.dashed for s in plot.series)
            assert plot.series[-1].x == pytest.approx(task["epsilons"]["pld"])
            curve = {s.name: s.y for s in plot.series}["random selection, PLD"]
            assert curve == pytest.approx(values(task["curves"][SELECT_PLD][how]).mean(axis=0), nan_ok=True)
        assert "width 4 (not 64)" in panels.plots[-1].note


def test_the_papers_steps_are_read_both_ways(numbers: Numbers, store: RunStore) -> None:
    """Of thirteen and three batches an epoch."""
    kept = {name: (task["steps"], task.get("epochs")) for name, task in numbers["tasks"].items()}
    assert kept == {
        "mnist": ([13, 26, 39], [1, 2, 3]),
        "mnist-steps": ([1, 2, 3], None),
        "cifar10": ([9, 12, 15], [3, 4, 5]),
        "cifar10-steps": ([3, 4, 5], None),
    }
    for name in ("mnist", "cifar10"):
        fewer, more = (values(numbers["tasks"][each]["epsilons"]["pld"]) for each in (f"{name}-steps", name))
        assert (fewer < more).all()
    assert "read as epochs" in checkpoints.settings(store)["the paper's steps"]
    words = " ".join(s.measured for s in checkpoints.statements(numbers))
    assert "epoch 3 ε" in words
    assert "step 3 ε" in words


def test_nothing_seen_at_another_size_is_not_tested(mnist: Numbers) -> None:
    mnist["average"]["best"] = mnist["average"]["equal"] = mnist["average"]["last"]
    assert statement(mnist, "Averaging").verdict == "within noise"
    mnist["papers_size"] = False
    assert statement(mnist, "Averaging").verdict == "not tested at this size"
    mnist["average"]["best"] = (values(mnist["average"]["last"]) + 0.05).tolist()
    assert statement(mnist, "Averaging").verdict == "agrees", "what is seen is seen at any size"


def test_the_setups_of_checkpoints_are_the_papers(store: RunStore) -> None:
    found = checkpoints.setups(store)
    assert (found["mnist"].noise_multiplier, found["mnist"].rates[0], found["mnist"].batch) == (0.5, 0.1, 64)
    assert (found["cifar10"].noise_multiplier, found["cifar10"].rates[0]) == (0.6, 0.01)
    assert found["mnist"].keep == (13, 26)
    assert len(found["mnist"].rates) == 39
    assert checkpoints.settings(store)["adjacency"].startswith("add_remove:")
