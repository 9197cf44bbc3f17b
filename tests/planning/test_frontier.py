"""Frontiers and sweeps: each number against the mathematics it stands for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpmerge import Guarantee, Portfolio, plan
from dpmerge import accounting as dp
from dpmerge.errors import InvalidInputError
from dpmerge.planning.analysis import Analysis
from dpmerge.planning.frontier import frontier
from dpmerge.planning.simplex_sweeps import edge, face
from dpmerge.planning.usable_checkpoints import usable_checkpoints
from planning.synthetic import ladder, portfolio, run_document

EXAMPLES = Path(__file__).parents[2] / "examples"
DELTA = 1e-5


@pytest.fixture(scope="module")
def mnist() -> Portfolio:
    return Portfolio.load(EXAMPLES / "mnist")


@pytest.fixture(scope="module")
def predicted(mnist: Portfolio) -> Analysis:
    return frontier(mnist, DELTA, targets=8)


@pytest.fixture(scope="module")
def measured(mnist: Portfolio) -> Analysis:
    return frontier(mnist, DELTA, targets=8, evaluator=f"linear:{EXAMPLES / 'mnist' / 'public.npz'}", evaluations=300)


def utilities(analysis: Analysis, name: str) -> Any:
    [curve] = [curve for curve in analysis.curves if curve.name == name]
    return curve.utilities if analysis.utility.higher_is_better else -curve.utilities


@pytest.mark.parametrize("kind", ["predicted", "measured"])
def test_a_stronger_method_or_accounting_is_nowhere_worse(kind: str, request: pytest.FixtureRequest) -> None:
    analysis = request.getfixturevalue(kind)
    for better, worse in (
        ("random selection, PLD", "random selection, RDP"),
        ("linear combination, PLD", "linear combination, RDP"),
        ("mixture of both, PLD", "random selection, PLD"),
        ("mixture of both, PLD", "linear combination, PLD"),
        ("linear combination by merged_trajectory", "linear combination, PLD"),
    ):
        high, low = utilities(analysis, better), utilities(analysis, worse)
        known = ~np.isnan(low)
        assert np.all(high[known] >= low[known] - 1e-9 * np.abs(low[known])), (better, worse)
    for curve in analysis.curves:
        rising = np.diff(utilities(analysis, curve.name))
        assert np.all(rising[~np.isnan(rising)] >= -1e-9 * np.nanmax(np.abs(curve.utilities)))
        assert curve.proved == (curve.name != "linear combination by merged_trajectory")


def test_the_frontier_of_selection_is_what_plan_finds(mnist: Portfolio, predicted: Analysis) -> None:
    [curve] = [curve for curve in predicted.curves if curve.name == "random selection, PLD"]
    for epsilon, utility in list(zip(curve.epsilons, curve.utilities, strict=True))[::6]:
        if not np.isnan(utility):
            made = plan(mnist, Guarantee(epsilon=float(epsilon), delta=DELTA), method="select")
            assert made.noise_to_signal == pytest.approx(utility, rel=1e-6)


def test_recommended_plans_do_not_depend_on_scores(predicted: Analysis, measured: Analysis) -> None:
    stated = [[(r.target, r.epsilon, r.outcomes) for r in a.recommendations] for a in (predicted, measured)]
    assert stated[0] == stated[1]
    assert all(r.epsilon <= r.target for r in predicted.recommendations)
    targets = [r.target for r in predicted.recommendations]
    assert targets == sorted(targets)
    assert all(0.5 < r.utility < 0.9 for r in measured.recommendations)


def test_input_models_are_as_inspect_shows_them(mnist: Portfolio, measured: Analysis) -> None:
    shown = {model.name: model for model in measured.models}
    assert shown["c2-s32@20"].epsilon == pytest.approx(1.0470536, rel=1e-6)
    for saved in mnist.checkpoints():
        assert shown[saved.name].utility == pytest.approx(saved.metric("accuracy"), abs=1.1e-3)
    assert measured.joint_epsilon == pytest.approx(1.65085, rel=1e-5)


@pytest.mark.parametrize("theorem", ["auto", "joint_release", "last_step", "merged_trajectory"])
def test_a_face_holds_the_costs_of_its_weights(mnist: Portfolio, theorem: Any) -> None:
    known = usable_checkpoints(mnist, DELTA)
    three = [known[name] for name in ("c2-s32@20", "c4-s32@20", "c2-s64@20")]
    swept = face(known, three, theorem=theorem, resolution=10)
    assert [panel.name for panel in swept.panels] == [
        "random selection, RDP",
        "random selection, PLD",
        "linear combination, RDP",
        "linear combination, PLD",
    ]
    checkpoints = [checkpoint.prefix for checkpoint in three]
    for second, first in ((0, 0), (3, 5), (10, 0), (1, 1)):
        row = [first / 10, second / 10, 1 - (first + second) / 10]
        drawn = dp.SelectionProfile(tuple(checkpoint.profile for checkpoint in three), tuple(row))
        merged = dp.LinearCombination(checkpoints=checkpoints, weights=row)
        names = ("joint_release", "last_step") if theorem == "auto" else (theorem,)
        profile = min((dp.THEOREMS[name](merged).profile for name in names), key=lambda p: p.epsilon(DELTA))  # type: ignore[union-attr]
        assert profile is not None
        expected = [
            dp.RenyiProfile.of(drawn).epsilon(DELTA), drawn.epsilon(DELTA),
            dp.RenyiProfile.of(profile).epsilon(DELTA), profile.epsilon(DELTA),
        ]  # fmt: skip
        found = [panel.epsilons[second, first] for panel in swept.panels]
        assert found == pytest.approx(expected, rel=1e-8)
    assert np.isnan(swept.panels[0].epsilons[6, 6])
    assert [panel.proved for panel in swept.panels[2:]] == [theorem != "merged_trajectory"] * 2


def test_an_edge_shows_every_theorem_there_is() -> None:
    smooth = ladder(2, noise=[64.0, 16.0], smooth=True)
    known = usable_checkpoints(smooth, DELTA)
    swept = edge(known, known.checkpoints, points=5)
    lines = {line.name: line for line in swept.theorems}
    assert set(lines) == {"joint_release", "last_step", "hidden_state", "merged_trajectory"}
    assert not lines["merged_trajectory"].proved
    assert lines["hidden_state"].proved
    tightest = np.minimum.reduce([lines[name].epsilons for name in ("joint_release", "last_step", "hidden_state")])
    [exact] = [line for line in swept.lines if line.name == "linear combination, PLD"]
    assert exact.epsilons == pytest.approx(tightest, rel=1e-8)


def test_sampled_runs_have_a_frontier_too() -> None:
    runs = {
        name: (
            run_document(name, noise_multiplier=noise, steps=40, sampling_rate=0.1, adjacency="add_remove"),
            [20, 40],
        )
        for name, noise in (("a", 1.0), ("b", 1.5), ("c", 2.0))
    }
    found = frontier(portfolio(runs), DELTA, targets=3)
    assert not np.isnan(utilities(found, "mixture of both, PLD")[-1])
    [panel] = [panel for panel in found.faces[0].panels if panel.name == "linear combination, PLD"]
    assert panel.theorem == "joint_release"
    assert np.isfinite(panel.epsilons[0, 0])


def test_one_run_has_a_frontier_without_faces() -> None:
    found = frontier(ladder(1, [5, 20]), DELTA, targets=3)
    assert found.faces == ()
    assert found.edges == ()
    assert len(found.models) == 2


@pytest.mark.parametrize("targets", [0, 1, 1000, 2.5])
def test_a_senseless_number_of_targets_is_refused(targets: Any) -> None:
    with pytest.raises(InvalidInputError, match="targets"):
        frontier(ladder(2), DELTA, targets=targets)


@pytest.mark.parametrize("names", [["run-1@20"], ["run-1@20", "run-1@20"], ["run-1@20"] * 4, ["run-9@20", "run-1@20"]])
def test_a_face_of_too_few_repeated_or_unknown_checkpoints_is_refused(names: list[str]) -> None:
    with pytest.raises(InvalidInputError):
        frontier(ladder(3), DELTA, faces=[names])
