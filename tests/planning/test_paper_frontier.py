"""The paper's workflow: its numbers against formulas written out, and what it says of itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from dpmerge import Portfolio, frontier
from dpmerge import accounting as dp
from dpmerge.cli import app
from dpmerge.errors import InvalidInputError, NoGuaranteeError
from dpmerge.planning.analysis import Analysis
from dpmerge.planning.usable_checkpoints import usable_checkpoints
from planning.synthetic import ladder, portfolio, run_document

MNIST = Path(__file__).parents[2] / "examples" / "mnist"
PUBLIC = f"linear:{MNIST / 'public.npz'}"
THREE = ["c2-s32@20", "c4-s32@20", "c2-s64@20"]
DELTA = 1e-5


@pytest.fixture(scope="module")
def mnist() -> Portfolio:
    return Portfolio.load(MNIST)


@pytest.fixture(scope="module")
def paper(mnist: Portfolio) -> Analysis:
    return frontier(mnist, DELTA, evaluator=PUBLIC, evaluations=240, checkpoints=THREE, paper=True)


def test_it_has_four_heatmaps_four_frontiers_and_no_plan(paper: Analysis) -> None:
    names = [f"{how}, {by}" for how in ("random selection", "linear combination") for by in ("RDP", "PLD")]
    [swept] = paper.faces
    assert [panel.name for panel in swept.panels] == names
    assert [curve.name for curve in paper.curves] == names
    assert [panel.proved for panel in swept.panels] == [True, True, False, False]
    assert [curve.proved for curve in paper.curves] == [True, True, False, False]
    assert (paper.recommendations, paper.edges) == ((), ())
    for words in ("Not proved for these runs", "merged_trajectory", "in-sample"):
        assert words in paper.banner
        assert words in paper.subtitle
    assert paper.document()["banner"] == paper.banner


def test_its_heatmaps_are_the_papers_formulas(mnist: Portfolio, paper: Analysis) -> None:
    models = [usable_checkpoints(mnist, DELTA)[name] for name in THREE]
    mus = np.array([model.profile.mu for model in models])  # type: ignore[attr-defined]
    orders = dp.DEFAULT_ORDERS[dp.DEFAULT_ORDERS < 64]
    penalty = np.log(1 / DELTA) / (orders - 1)
    for first, second in ((20, 30), (5, 5), (0, 40), (100, 0)):
        row = np.array([first, second, 100 - first - second]) / 100
        drawn = np.log(np.exp(np.outer(orders * (orders - 1), mus**2 / 2)) @ row) / (orders - 1)
        combination = dp.LinearCombination(checkpoints=[model.prefix for model in models], weights=row)
        merged = dp.THEOREMS["merged_trajectory"](combination).mu
        assert merged is not None
        panels = [panel.epsilons[second, first] for panel in paper.faces[0].panels]
        assert panels[0] == pytest.approx(min(drawn + penalty), rel=1e-9)
        assert panels[2] == pytest.approx(min(orders * merged**2 / 2 + penalty), rel=1e-8)
        members = tuple(model.profile for model in models)
        assert panels[1] == pytest.approx(dp.SelectionProfile(members, tuple(row)).epsilon(DELTA), rel=1e-8)
        assert panels[3] == pytest.approx(dp.GaussianProfile(merged).epsilon(DELTA), rel=1e-8)


def test_selection_is_solved_exactly_and_not_on_the_grid(paper: Analysis) -> None:
    scores = np.array([model.utility for model in paper.models])
    shares = np.array([(i, j, 20 - i - j) for i in range(21) for j in range(21 - i)]) / 20
    better = 0
    for curve, panel in zip(paper.curves[:2], paper.faces[0].panels[:2], strict=True):
        costs = np.array([panel.epsilons[round(100 * row[1]), round(100 * row[0])] for row in shares])
        for epsilon, utility in zip(curve.epsilons, curve.utilities, strict=True):
            on_grid = np.max(shares @ scores, where=costs <= epsilon, initial=-np.inf)
            if np.isfinite(on_grid):
                assert utility >= on_grid - 1e-9
                better += utility > on_grid + 1e-6
    assert better > 10, "between points of the grid the program finds more"


def no_score(tensors: Any) -> float:
    return 0.0


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "eleven models": ({"checkpoints": "final"}, "11 models"),
    "two models": ({"checkpoints": THREE[:2]}, "2 models"),
    "no test set": ({"evaluator": None}, "evaluator"),
    "another conversion": ({"conversion": "improved"}, "conversion"),
    "another theorem": ({"theorem": "last_step"}, "theorem"),
    "faces": ({"faces": [THREE]}, "faces"),
    "too few evaluations": ({"evaluations": 3}, "evaluations"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_not_the_papers_workflow_is_refused(mnist: Portfolio, name: str) -> None:
    asked, message = BAD[name]
    with pytest.raises(InvalidInputError, match=message):
        frontier(mnist, DELTA, **{"evaluator": no_score, "checkpoints": THREE, "paper": True, **asked})


def test_sampled_runs_have_no_formula_by_the_papers_theorem() -> None:
    runs = {
        name: (run_document(name, noise_multiplier=2.0, sampling_rate=0.1, adjacency="add_remove"), [20])
        for name in "abc"
    }
    with pytest.raises(NoGuaranteeError, match="merged_trajectory"):
        frontier(portfolio(runs), DELTA, evaluator=no_score, paper=True)


def test_the_verb_writes_pictures_with_the_banner_and_asks_no_ledger(tmp_path: Path) -> None:
    where = tmp_path / "figures"
    arguments = [
        "frontier", MNIST, "--paper", "--checkpoints", ",".join(THREE), "--evaluator", PUBLIC, "--figures", where,
        "--evaluations", 60, "--json",
    ]  # fmt: skip
    result = CliRunner().invoke(app, [*map(str, arguments)], env={"DPMERGE_LEDGER": str(tmp_path / "ledger")})
    assert result.exit_code == 0, result.output
    assert "Not proved for these runs" in json.loads(result.stdout)["banner"]
    assert sorted(path.name for path in where.glob("*.png")) == ["face-0.png", "frontier.png"]
    assert not (tmp_path / "ledger").exists()


def test_the_classic_conversion_reaches_less_and_final_checkpoints_are_all_that_is_used() -> None:
    models = ladder(3, [10, 20], noise=[32.0, 64.0, 96.0])
    found = {
        how: frontier(models, DELTA, targets=2, conversion=how, checkpoints="final") for how in ("classic", "improved")
    }
    assert "classic" in found["classic"].subtitle
    assert [model.name for model in found["classic"].models] == ["run-1@20", "run-2@20", "run-3@20"]
    for better, worse in zip(found["improved"].curves, found["classic"].curves, strict=True):
        known = ~np.isnan(worse.utilities)
        assert np.all(better.utilities[known] <= worse.utilities[known] * (1 + 1e-9)), "noise: less is better"
    rdp = [np.isnan(found[how].curves[0].utilities).sum() for how in ("classic", "improved")]
    assert rdp[0] > rdp[1]
