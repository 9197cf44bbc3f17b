"""How often the planner runs: never to print a plan, once for a command, several times only for suggestions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from shutil import copytree

import pytest
from typer.testing import CliRunner

import dpmerge as dpm
from dpmerge.cli import app
from dpmerge.planning import planner

MNIST = Path(__file__).parents[2] / "examples" / "mnist"
PROBE = Path(__file__).parents[2] / "examples" / "probe"


@pytest.fixture
def plannings(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Everything planned while the test runs: each planning asks once which checkpoints are usable."""
    seen: list[object] = []
    usable = planner.usable_checkpoints

    def counted(portfolio: dpm.Portfolio, *rest: object, **options: object) -> object:
        seen.append(portfolio)
        return usable(portfolio, *rest, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(planner, "usable_checkpoints", counted)
    return seen


def ran(*arguments: object) -> None:
    result = CliRunner().invoke(app, [*map(str, arguments)], env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("show", [str, repr, dpm.Plan.document], ids=["str", "repr", "document"])
def test_printing_a_plan_plans_nothing(show: Callable[[dpm.Plan], object], plannings: list[object]) -> None:
    plan = dpm.plan(dpm.Portfolio.load(MNIST, contents=False), epsilon=1.0, delta=1e-5)
    assert len(plannings) == 1
    assert show(plan)
    assert len(plannings) == 1


@pytest.mark.parametrize("options", [(), ("--json",)], ids=["table", "json"])
def test_the_plan_command_plans_once(options: tuple[str, ...], plannings: list[object]) -> None:
    ran("plan", MNIST, "--epsilon", 1.0, "--delta", 1e-5, "--headers-only", *options)
    assert len(plannings) == 1


@pytest.mark.parametrize(
    "options", [("--method", "auto"), ("--method", "select"), ("--final",)], ids=["auto", "select", "final"]
)
def test_the_merge_command_plans_once(options: tuple[str, ...], plannings: list[object], tmp_path: Path) -> None:
    home = copytree(MNIST, tmp_path / "mnist")  # a merge leaves a witness in the portfolio
    ran("merge", home, "--epsilon", 0.12, "--delta", 1e-5, *options, "-o", tmp_path / "merged")
    assert len(plannings) == 1


def test_a_refused_merge_that_hints_at_a_final_one_plans_once(plannings: list[object], tmp_path: Path) -> None:
    home, out = copytree(PROBE, tmp_path / "probe"), tmp_path / "merged"
    result = CliRunner().invoke(app, ["merge", str(home), "--epsilon", "0.05", "--delta", "1e-5", "-o", str(out)])
    assert result.exit_code == 1
    assert "a final release, final=True (--final), which locks its runs, meets it" in result.stderr
    assert len(plannings) == 1


def test_suggestions_plan_when_asked(plannings: list[object]) -> None:
    plan = dpm.plan(dpm.Portfolio.load(MNIST, contents=False), epsilon=1.0, delta=1e-5)
    found = plan.suggestions()
    assert len(plannings) > 2, "what is counted above is counted"
    assert [str(one) for one in found] == [
        "One more run with the settings of c2-s64 would allow 5% less noise.",
        "One more checkpoint, c2-s32@14, would allow 2% less noise.",
    ]


@pytest.mark.parametrize("example", [MNIST, PROBE], ids=lambda path: path.name)
@pytest.mark.parametrize("epsilon", [0.12, 0.5, 0.8, 3.0])
@pytest.mark.parametrize("method", ["auto", "select", "combine", "mix"])
def test_one_search_finds_what_two_plans_find(example: Path, epsilon: float, method: str) -> None:
    portfolio = dpm.Portfolio.load(example, contents=False)
    target = dpm.Guarantee(epsilon=epsilon, delta=1e-5)
    found = planner.release_alternatives(portfolio, target, method=method)  # type: ignore[arg-type]
    theorem = "auto" if method == "select" else "joint_release"
    if isinstance(found.joint, dpm.Plan):
        joint = dpm.plan(portfolio, target, method=method, theorem=theorem)  # type: ignore[arg-type]
        assert found.joint.document() == joint.document()
    else:
        with pytest.raises(dpm.errors.TargetOutOfReachError) as refused:
            dpm.plan(portfolio, target, method=method, theorem=theorem)  # type: ignore[arg-type]
        assert str(found.joint) == str(refused.value)
    assert found.final is not None
    assert found.final.document() == dpm.plan(portfolio, target).document()


class TestTarget:
    """`plan` takes a Guarantee, or epsilon and delta."""

    def test_both_ways_give_the_same_plan(self) -> None:
        portfolio = dpm.Portfolio.load(MNIST, contents=False)
        target = dpm.Guarantee(epsilon=0.3, delta=1e-5)
        assert dpm.plan(portfolio, epsilon=0.3, delta=1e-5).document() == dpm.plan(portfolio, target).document()

    @pytest.mark.parametrize(
        ("target", "words"),
        [
            ({}, "no epsilon and delta; accepted: epsilon=… and delta=…, or a Guarantee"),
            ({"epsilon": 1.0}, "got no delta"),
            ({"delta": 1e-5}, "got no epsilon"),
            ({"target": dpm.Guarantee(epsilon=1.0, delta=1e-5), "epsilon": 1.0}, "not both"),
            ({"target": dpm.Guarantee(epsilon=1.0, delta=1e-5), "delta": 1e-5}, "not both"),
            ({"target": 0.8}, r"a Guarantee\(epsilon=…, delta=…\), or epsilon=… and delta=…"),
        ],
        ids=["neither", "no delta", "no epsilon", "both with epsilon", "both with delta", "a number"],
    )
    def test_anything_but_exactly_one_of_them_is_refused(self, target: dict[str, object], words: str) -> None:
        portfolio = dpm.Portfolio.load(MNIST, contents=False)
        with pytest.raises(dpm.errors.InvalidInputError, match=words):
            dpm.plan(portfolio, **target)  # type: ignore[arg-type]
