"""The sets that Algorithms 1 and 2 return: each membership, corner and number against the mathematics it stands for."""

from __future__ import annotations

import csv
import io
import json
import sys
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import linprog
from typer.testing import CliRunner, Result

import dpmerge as dpm
from dpmerge import Portfolio, feasible_set
from dpmerge import accounting as dp
from dpmerge.cli import app
from dpmerge.errors import (
    InvalidInputError,
    MissingExtraError,
    NoGuaranteeError,
    NotCombinableError,
    TargetOutOfReachError,
)
from dpmerge.planning.candidates import candidate
from dpmerge.planning.feasible_set import FeasibleSet
from dpmerge.planning.selection_polytope import SelectionPolytope
from dpmerge.planning.selection_program import best_mixture
from dpmerge.report.feasible_plot import feasible_drawing, write_feasible_picture
from dpmerge.report.feasible_table import FeasibleTable
from dpmerge.terms.recipe import Recipe
from planning.synthetic import ladder, portfolio, run_document

EXAMPLES = Path(__file__).parents[2] / "examples"
MNIST = EXAMPLES / "mnist"
THREE = "c2-s32@20,c4-s32@20,c2-s64@20"
DELTA = 1e-5
RANDOM = np.random.default_rng(7).dirichlet(np.ones(3), size=60)


@pytest.fixture(scope="module")
def mnist() -> Portfolio:
    return Portfolio.load(MNIST)


@pytest.fixture(scope="module")
def sampled() -> Portfolio:
    """Poisson sampling under add_remove: the two directions differ, so both inequalities count."""
    runs = {
        name: (
            run_document(name, noise_multiplier=noise, steps=steps, sampling_rate=0.1, adjacency="add_remove"),
            [steps],
        )
        for name, noise, steps in (("a", 1.0, 30), ("b", 1.5, 40), ("c", 2.0, 10), ("d", 0.8, 5))
    }
    return portfolio(runs)


def found(models: Portfolio, **asked: Any) -> FeasibleSet:
    return feasible_set(models, **{"epsilon": 0.9, "delta": DELTA, "checkpoints": THREE, **asked})


def test_membership_of_probabilities_is_what_the_selection_costs(mnist: Portfolio) -> None:
    exact = found(mnist)
    members = tuple(model.profile for model in exact.models)
    rows = np.vstack([RANDOM, 0.15 * RANDOM + [0, 0, 0.85], np.eye(3)])
    plus, minus = (
        np.array([sum(p * m.deltas(0.9)[way] for p, m in zip(row, members, strict=True)) for row in rows])
        for way in (0, 1)
    )
    expected = np.maximum(plus, minus) <= DELTA
    assert expected.any()
    assert not expected.all()
    assert exact.contains(rows).tolist() == expected.tolist()
    costs = [dp.SelectionProfile(members, tuple(row)).epsilon(DELTA) for row in rows]
    assert exact.epsilons(rows) == pytest.approx(costs, rel=1e-8)
    assert (exact.epsilons(rows) <= 0.9).tolist() == expected.tolist()


@pytest.mark.parametrize("conversion", ["classic", "improved"])
def test_membership_by_renyi_divergence_is_the_formula_written_out(mnist: Portfolio, conversion: Any) -> None:
    target = 1.35 if conversion == "classic" else 1.12
    by_rdp = found(mnist, epsilon=target, accounting="rdp", conversion=conversion)
    mus = np.array([model.profile.mu for model in by_rdp.models])  # type: ignore[attr-defined]
    costs = []
    for row in RANDOM:
        least = np.inf
        for order in dp.DEFAULT_ORDERS[dp.DEFAULT_ORDERS < 64]:  # beyond, the exponential is no double
            divergence = np.log(np.sum(row * np.exp((order - 1) * order * mus**2 / 2))) / (order - 1)
            further = np.log(1 / DELTA) / (order - 1)
            if conversion == "improved":
                further += np.log((order - 1) / order) - np.log(order) / (order - 1)
            least = min(least, divergence + further)
        costs.append(least)
    expected = np.array(costs) <= target
    assert expected.any()
    assert not expected.all()
    assert by_rdp.contains(RANDOM).tolist() == expected.tolist()
    assert by_rdp.epsilons(RANDOM) == pytest.approx(costs, rel=1e-9)


def test_one_model_by_the_classic_conversion_costs_the_papers_formula(mnist: Portfolio) -> None:
    by_rdp = found(mnist, epsilon=1.35, accounting="rdp", conversion="classic")
    for model, cost in zip(by_rdp.models, by_rdp.epsilons(np.eye(3)), strict=True):
        orders = dp.DEFAULT_ORDERS
        by_hand = min(order * model.profile.mu**2 / 2 + np.log(1 / DELTA) / (order - 1) for order in orders)  # type: ignore[attr-defined]
        assert cost == pytest.approx(by_hand, rel=1e-12)


@pytest.mark.parametrize("conversion", ["classic", "improved"])
def test_the_union_of_the_parts_is_the_set(mnist: Portfolio, conversion: Any) -> None:
    target = 1.3 if conversion == "classic" else 1.1
    by_rdp = found(mnist, epsilon=target, accounting="rdp", conversion=conversion)
    rows = by_rdp.grid(0.02)
    union = np.any([part.contains(rows) for part in by_rdp.parts], axis=0)
    assert union.tolist() == by_rdp.contains(rows).tolist()
    assert 0 < union.sum() < len(rows)
    assert len(by_rdp.parts) > 1
    assert all(part.order in dp.DEFAULT_ORDERS and part.coefficients.shape == (1, 3) for part in by_rdp.parts)


def test_two_directions_that_differ_are_two_inequalities(sampled: Portfolio) -> None:
    drawn = feasible_set(sampled, epsilon=2.0, delta=DELTA)
    [part] = drawn.parts
    expected = np.array([model.profile.deltas(2.0) for model in drawn.models]).T
    assert part.coefficients == pytest.approx(expected, rel=1e-12)
    assert not np.allclose(part.coefficients[0], part.coefficients[1], rtol=1e-3)
    assert part.limit == DELTA
    rows = np.random.default_rng(1).dirichlet(np.ones(4), size=200)
    assert drawn.contains(rows).tolist() == (expected @ rows.T <= DELTA).all(axis=0).tolist()


def extreme_points(part: SelectionPolytope, directions: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    """The best point of the polytope in each direction, by a general solver."""
    best = []
    for direction in directions:
        solved = linprog(
            -direction,
            A_ub=part.coefficients / part.limit,
            b_ub=np.ones(len(part.coefficients)),
            A_eq=np.ones((1, part.dimension)),
            b_eq=[1.0],
            method="highs",
        )
        best.append(solved.x)
    return best


POLYTOPES = {
    "one inequality": SelectionPolytope(np.array([[0.1, 0.5, 2.0, 3.0]]), 1.0),
    "two": SelectionPolytope(np.array([[0.1, 0.5, 2.0, 3.0], [0.9, 1.5, 0.1, 4.0]]), 1.0),
    "no model alone": SelectionPolytope(np.array([[0.2, 1.9, 0.7], [1.7, 0.1, 1.6]]), 1.0),
    "everything": SelectionPolytope(np.array([[0.2, 0.3, 0.4], [0.1, 0.1, 0.1]]), 1.0),
    "tiny": SelectionPolytope(np.array([[1e-9, 1e-3, 1.0], [2e-9, 0.5e-3, 1.0]]), 1e-5),
}


@pytest.mark.parametrize("name", POLYTOPES)
def test_corners_are_members_and_extreme_and_all_there(name: str) -> None:
    part = POLYTOPES[name]
    corners = part.vertices
    assert part.contains(corners).all()
    assert (np.count_nonzero(corners, axis=1) <= len(part.coefficients) + 1).all()
    for place, corner in enumerate(corners):  # none is a mixture of the others
        others = np.delete(corners, place, axis=0)
        if len(others):
            system = np.vstack([others.T, np.ones(len(others))])
            solved = linprog(np.zeros(len(others)), A_eq=system, b_eq=[*corner, 1.0], method="highs")
            distance = 1.0 if solved.status == 2 else 0.0
            assert distance, corner
    directions = np.random.default_rng(3).standard_normal((60, part.dimension))
    for direction, best in zip(directions, extreme_points(part, directions), strict=True):
        assert max(corners @ direction) == pytest.approx(best @ direction, abs=2e-6)


def test_corners_of_real_sets_are_where_linear_programs_end(mnist: Portfolio, sampled: Portfolio) -> None:
    for drawn in (found(mnist, checkpoints="all", epsilon=0.6), feasible_set(sampled, epsilon=2.0, delta=DELTA)):
        [part] = drawn.parts
        assert drawn.contains(drawn.vertices).all()
        assert part.contains(drawn.vertices).all()
        tight = (part.coefficients @ drawn.vertices.T) / part.limit
        alone = drawn.vertices.max(axis=1) == 1
        assert tight.max(axis=0)[~alone] == pytest.approx(1, rel=1e-8)
        rng = np.random.default_rng(5)
        for score in rng.standard_normal((20, len(drawn.models))):
            best = max(drawn.vertices @ score)
            by_program = program_best(part, score)
            assert best == pytest.approx(by_program, abs=1e-7)


def program_best(part: SelectionPolytope, score: np.ndarray[Any, Any]) -> float:
    """By the planner's own program, which is tested against others elsewhere."""
    mixture = best_mixture(np.vstack([part.coefficients, part.coefficients])[:2], score, part.limit)
    assert mixture is not None
    return mixture.score


def test_a_model_without_a_cost_has_no_share() -> None:
    part = SelectionPolytope(np.array([[0.5, np.inf, 3.0]]), 1.0)
    assert (part.vertices[:, 1] == 0).all()
    assert part.contains([[0.9, 0.1, 0.0], [0.9, 0.0, 0.1]]).tolist() == [False, True]
    assert (part.sample(20, np.random.default_rng(0))[:, 1] == 0).all()


def test_an_empty_polytope_has_neither_corners_nor_members() -> None:
    part = SelectionPolytope(np.array([[2.0, 3.0]]), 1.0)
    assert part.vertices.shape == (0, 2)
    assert part.sample(3, np.random.default_rng(0)).shape == (0, 2)


@pytest.mark.parametrize("theorem", ["auto", "joint_release", "last_step", "merged_trajectory"])
@pytest.mark.parametrize("accounting", ["pld", "rdp"])
def test_membership_of_weights_is_what_the_theorem_says(mnist: Portfolio, theorem: Any, accounting: Any) -> None:
    conversion = "classic" if accounting == "rdp" else None
    merged = found(mnist, epsilon=1.3, method="combine", theorem=theorem, accounting=accounting, conversion=conversion)
    rows = np.vstack([RANDOM[:12], np.eye(3), [[0.1, 0, 0.9], [0.0, 0.3, 0.7], [0.05, 0.05, 0.9]]])
    names = ("joint_release", "last_step") if theorem == "auto" else (theorem,)
    costs = []
    for row in rows:
        combination = dp.LinearCombination(checkpoints=[model.prefix for model in merged.models], weights=row)
        profiles = [dp.THEOREMS[name](combination).profile for name in names]
        if accounting == "rdp":
            profiles = [dp.RenyiProfile.of(p).converted("classic") for p in profiles if p is not None]
        costs.append(min(p.epsilon(DELTA) for p in profiles if p is not None))
    assert merged.epsilons(rows) == pytest.approx(costs, rel=1e-8)
    assert merged.contains(rows).tolist() == [cost <= 1.3 for cost in costs]
    assert (theorem == "merged_trajectory") == bool(merged.banner)


def test_weights_cost_what_a_candidate_of_theirs_does_under_every_proved_theorem() -> None:
    smooth = ladder(3, noise=[16.0, 32.0, 64.0], smooth=True)
    merged = feasible_set(smooth, epsilon=1.5, delta=DELTA, method="combine")
    assert merged.theorems == ("joint_release", "last_step", "hidden_state")
    rows = np.vstack([RANDOM[:10], np.eye(3), [[0.0, 0.02, 0.98], [0.01, 0.0, 0.99]]])
    for row, cost in zip(rows, merged.epsilons(rows), strict=True):
        stated = Recipe.of(zip(merged.names, row.tolist(), strict=True))
        assert cost == pytest.approx(candidate(smooth, stated, delta=DELTA).profile.epsilon(DELTA), rel=1e-7)


@pytest.mark.parametrize("method", ["select", "combine"])
def test_the_lattice_holds_every_member_on_the_grid(mnist: Portfolio, method: Any) -> None:
    some = found(mnist, epsilon=1.0, method=method, theorem="auto" if method == "select" else "merged_trajectory")
    every = [(i / 20, j / 20, (20 - i - j) / 20) for i, j in product(range(21), repeat=2) if i + j <= 20]
    members = {row for row in every if some.contains([row])[0]}
    listed = {tuple(row) for row in some.lattice(0.05).tolist()}
    assert {tuple(np.round(row, 9)) for row in members} == {tuple(np.round(row, 9)) for row in listed}
    assert 0 < len(listed) < len(every)


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"accounting": "rdp", "epsilon": 1.3},
        {"method": "combine", "theorem": "merged_trajectory"},
        {"method": "combine", "epsilon": 0.2, "checkpoints": "final"},
        {"epsilon": 0.2, "checkpoints": "final"},
    ],
)
def test_a_sample_is_of_members_and_the_same_for_the_same_seed(mnist: Portfolio, asked: dict[str, Any]) -> None:
    some = found(mnist, **asked)
    rows = some.sample(150, seed=3)
    assert rows.shape == (150, len(some.models))
    assert some.contains(rows).all()
    assert np.array_equal(rows, some.sample(150, seed=3))
    assert not np.array_equal(rows, some.sample(150, seed=4))


def test_a_sample_of_probabilities_is_spread_evenly() -> None:
    part = POLYTOPES["one inequality"]
    walked = part.sample(4000, np.random.default_rng(0))
    drawn = np.random.default_rng(1).dirichlet(np.ones(4), size=60_000)
    even = drawn[part.contains(drawn)]
    assert walked.mean(axis=0) == pytest.approx(even.mean(axis=0), abs=0.015)
    assert walked.std(axis=0) == pytest.approx(even.std(axis=0), abs=0.015)


def test_what_is_not_proved_says_so_everywhere(mnist: Portfolio, tmp_path: Path) -> None:
    paper = found(mnist, method="combine", theorem="merged_trajectory")
    assert not paper.proved
    assert "Not proved for these runs" in paper.banner
    assert "merged_trajectory" in paper.banner
    assert paper.document()["banner"] == paper.banner
    assert FeasibleTable.of(paper, 0.1).csv().startswith(f"# {paper.banner}\n")
    assert feasible_drawing(paper, grid=0.1).banner == paper.banner
    assert "Not proved for these runs" in paper.plot(grid=0.1).layout.title.text
    assert write_feasible_picture(paper, tmp_path / "set.png", grid=0.1).stat().st_size > 1000


def test_what_is_proved_has_no_banner(mnist: Portfolio) -> None:
    for some in (found(mnist), found(mnist, method="combine"), found(mnist, method="combine", theorem="joint_release")):
        assert some.proved
        assert some.banner == ""
        assert "banner" not in some.document()
    assert not found(mnist, method="combine", theorem="joint_release").is_final
    assert found(mnist, method="combine", theorem="last_step").is_final
    one_step = ladder(2, [1], steps=1, noise=[8.0, 4.0])
    assert feasible_set(one_step, epsilon=9, delta=DELTA, method="combine", theorem="merged_trajectory").banner == ""


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_a_set_of_any_number_of_models_is_drawn(count: int) -> None:
    for method in ("select", "combine"):
        some = feasible_set(ladder(count), epsilon=2.0, delta=DELTA, method=method)  # type: ignore[arg-type]
        assert some.plot(grid=0.1).data


def test_without_plotly_a_plot_is_refused_in_one_line(mnist: Portfolio, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly.graph_objects", None)
    with pytest.raises(MissingExtraError, match=r"dpmerge\[notebook\]"):
        found(mnist).plot(grid=0.1)


def test_models_without_a_renyi_curve_have_no_set_by_it() -> None:
    unknown = {name: (run_document(name, noise_multiplier=1.0, sampling_rate=0.1), [20]) for name in "ab"}
    with pytest.raises(NoGuaranteeError, match="use pld"):
        feasible_set(portfolio(unknown), epsilon=9.0, delta=DELTA, accounting="rdp")


def test_checkpoints_of_one_run_are_averaged_by_joint_release_alone(mnist: Portfolio) -> None:
    one_run = found(mnist, method="combine", epsilon=1.2, checkpoints="c2-s32@8,c2-s32@20")
    assert one_run.theorems == ("joint_release",)
    latest = one_run.models[1].epsilon
    assert one_run.epsilons([[0.5, 0.5]])[0] == pytest.approx(latest, rel=1e-9)


def test_a_row_no_theorem_prices_is_infinite_and_no_member(mnist: Portfolio, monkeypatch: pytest.MonkeyPatch) -> None:
    some = found(mnist, method="combine")
    nothing = (np.full(3, np.nan), "no theorem", False)
    monkeypatch.setattr("dpmerge.planning.feasible_set.combined_epsilons", lambda *_: nothing)
    assert np.isinf(some.epsilons(np.eye(3))).all()
    assert not some.contains(np.eye(3)).any()


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "a conversion with pld": ({"conversion": "classic"}, "conversion: got 'classic'; accepted: none with"),
    "an unknown conversion": ({"accounting": "rdp", "conversion": "best"}, "conversion: got 'best'"),
    "an unknown accounting": ({"accounting": "zcdp"}, "accounting: got 'zcdp'"),
    "another method": ({"method": "mix"}, "method: got 'mix'; accepted: select or combine"),
    "a theorem with select": ({"theorem": "joint_release"}, "theorem: got 'joint_release'"),
    "an unknown theorem": ({"method": "combine", "theorem": "mine"}, "theorem: got 'mine'"),
    "an unknown checkpoint": ({"checkpoints": "c2-s32@20,nobody@3"}, "checkpoint: got 'nobody@3'; accepted: run@step"),
    "a checkpoint twice": ({"checkpoints": ["c2-s32@20", "c2-s32@20"]}, "checkpoints: got"),
    "no checkpoint": ({"checkpoints": []}, "checkpoints: got"),
    "no privacy": ({"epsilon": 0.0}, "epsilon: got 0.0"),
    "a delta of one": ({"delta": 1.0}, "delta: got 1.0"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_by_name(mnist: Portfolio, name: str) -> None:
    asked, message = BAD[name]
    with pytest.raises(InvalidInputError) as refused:
        found(mnist, **asked)
    assert message in str(refused.value)


def test_a_grid_of_more_than_four_models_is_refused(mnist: Portfolio) -> None:
    with pytest.raises(InvalidInputError, match="at most 4 models"):
        found(mnist, checkpoints="final").lattice(0.5)


@pytest.mark.parametrize("grid", [0.0, -0.1, 0.3, 2.0, float("nan")])
def test_a_grid_that_does_not_divide_one_is_refused(mnist: Portfolio, grid: float) -> None:
    with pytest.raises(InvalidInputError, match="grid"):
        found(mnist).lattice(grid)


def test_targets_and_theorems_out_of_reach_are_refused(mnist: Portfolio) -> None:
    for method in ("select", "combine"):
        with pytest.raises(TargetOutOfReachError, match="the smallest is ε = 0.49059"):
            found(mnist, epsilon=0.3, method=method)
    with pytest.raises(NoGuaranteeError, match="hidden_state needs"):
        found(mnist, method="combine", theorem="hidden_state")
    apart = portfolio(
        {
            name: (run_document(name, noise_multiplier=8.0, initial_weights=digit * 64), [20])
            for name, digit in (("a", "1"), ("b", "2"))
        }
    )
    with pytest.raises(NotCombinableError):
        feasible_set(apart, epsilon=9.0, delta=DELTA, method="combine")


def test_weights_have_no_polytope(mnist: Portfolio) -> None:
    with pytest.raises(InvalidInputError, match="no polytope"):
        _ = found(mnist, method="combine").parts


def ran(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["feasible", str(MNIST), *map(str, arguments)], env={"COLUMNS": "80"})


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO("".join(line for line in text.splitlines(True) if line[0] != "#"))))


@pytest.mark.parametrize("method", ["select", "combine"])
def test_the_table_read_back_is_the_set(mnist: Portfolio, tmp_path: Path, method: Any) -> None:
    theorem = "auto" if method == "select" else "merged_trajectory"
    file = tmp_path / "set.csv"
    result = ran(
        "--epsilon", 0.9, "--delta", 1e-5, "--checkpoints", THREE, "--method", method, "--theorem", theorem,
        "--grid", 0.05, "-o", file, "--picture", tmp_path / "set.png",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert (tmp_path / "set.png").exists()
    assert ("Not proved for these runs" in result.stdout) == (method == "combine")
    read = rows_of(file.read_text())
    assert list(read[0]) == [*THREE.split(","), "epsilon", "feasible"]
    assert len(read) == 231
    some = found(mnist, method=method, theorem=theorem)
    vectors = np.array([[float(row[name]) for name in some.names] for row in read])
    assert np.array_equal(vectors, some.grid(0.05))
    assert [float(row["epsilon"]) for row in read] == some.epsilons(vectors).tolist()
    assert [row["feasible"] for row in read] == ["true" if inside else "false" for inside in some.contains(vectors)]


def test_the_json_of_the_verb_has_the_inequalities_and_corners(mnist: Portfolio) -> None:
    result = ran("--epsilon", 0.9, "--delta", 1e-5, "--checkpoints", THREE, "--json")
    document = json.loads(result.stdout)
    some = found(mnist)
    [part] = document["parts"]
    assert part["vertices"] == some.parts[0].vertices.tolist()
    assert part["coefficients"] == some.parts[0].coefficients.tolist()
    assert document["table"] == {"points": "multiples of 0.01", "tabulated": 5151, "feasible": 105}


def test_the_verb_takes_many_models_and_says_what_is_wrong(tmp_path: Path) -> None:
    file = tmp_path / "corners.csv"
    assert ran("--epsilon", 0.2, "--delta", 1e-5, "-o", file).exit_code == 0
    assert {row["feasible"] for row in rows_of(file.read_text())} == {"true"}
    assert ran("--epsilon", 0.2, "--delta", 1e-5, "--method", "combine", "-o", file).exit_code == 0
    assert ran("--epsilon", 0.01, "--delta", 1e-5).exit_code == 1
    for bad in (["--grid", 0.1], ["--conversion", "classic"], ["--picture", tmp_path / "set.jpg"]):
        result = ran("--epsilon", 0.2, "--delta", 1e-5, *bad)
        assert result.exit_code == 2
        assert len(result.stderr.strip().splitlines()) == 1


def test_a_plan_by_the_classic_conversion_meets_its_target_by_it(mnist: Portfolio) -> None:
    for method in ("select", "combine", "mix", "auto"):
        asked = {"epsilon": 0.8, "delta": DELTA, "accounting": "rdp", "method": method}
        classic = dpm.plan(mnist, conversion="classic", **asked)  # type: ignore[arg-type]
        improved = dpm.plan(mnist, **asked)  # type: ignore[arg-type]
        members = tuple(candidate.profile for candidate in classic.candidates)
        whole = members[0] if len(members) == 1 else dp.SelectionProfile(members, classic.probabilities)
        cost = dp.RenyiProfile.of(whole).converted("classic").epsilon(DELTA)
        assert classic.guarantee.epsilon == pytest.approx(cost, rel=1e-12)
        assert classic.guarantee.epsilon <= 0.8
        assert classic.noise_to_signal is not None
        assert improved.noise_to_signal is not None
        assert classic.asked["conversion"] == "classic"
        assert classic.terms.epsilon(DELTA) <= cost, "a release of it is priced by the improved conversion"
        if method != "auto":
            assert improved.noise_to_signal <= classic.noise_to_signal * (1 + 1e-9)


def test_a_plan_of_final_checkpoints_uses_no_others(mnist: Portfolio) -> None:
    for checkpoints in ("final", "c2-s32@20,c2-s64@20"):
        made = dpm.plan(mnist, epsilon=0.8, delta=DELTA, checkpoints=checkpoints)
        assert {name for each in made.candidates for name in each.recipe.names} <= {
            name for name in (c.name for c in mnist.checkpoints()) if name.endswith("@20")
        }
        assert made.asked["checkpoints"] == checkpoints
        assert "c2-s32@8" in made.left_out
        assert isinstance(made.suggestions(), list | tuple)


def test_a_conversion_is_refused_where_there_is_none(mnist: Portfolio) -> None:
    with pytest.raises(InvalidInputError, match="conversion"):
        dpm.plan(mnist, epsilon=0.8, delta=DELTA, conversion="classic")
    looking = dpm.PublicEvaluation(evaluator=lambda tensors: 0.0)
    with pytest.raises(InvalidInputError, match="where models are looked at"):
        dpm.plan(mnist, epsilon=0.8, delta=DELTA, accounting="rdp", conversion="classic", objective=looking)


def test_sets_of_sampled_runs_by_last_step_are_refused_with_the_way_to_price_one() -> None:
    loaded = ladder(2, (3,), noise=[1.0, 2.0], steps=3, sampling_rate=0.2, adjacency="add_remove")
    with pytest.raises(NoGuaranteeError, match="plan --theorem last_step"):
        feasible_set(loaded, epsilon=20, delta=1e-5, method="combine", theorem="last_step")
    found = feasible_set(loaded, epsilon=20, delta=1e-5, method="combine")
    assert found.theorems == ("joint_release",)
    assert not found.is_final
