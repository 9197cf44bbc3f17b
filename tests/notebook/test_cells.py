"""Cells and frames without a kernel: hostile names are text, refusals are one line, nothing is rounded in frames."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import dpmerge as dpm
from dpmerge.auditing.findings import Claim, Estimate, Finding
from dpmerge.certificate.checks import Check, Verification
from dpmerge.errors import InvalidInputError
from dpmerge.notebook import cell_html, figure, frame
from dpmerge.releasing.release import Release
from report.analyses import HOSTILE, hostile, ordinary
from report.test_page import Elements

PROBE = Path(__file__).parents[2] / "examples" / "probe"


@pytest.fixture(scope="module")
def probe() -> dpm.Portfolio:
    return dpm.Portfolio.load(PROBE)


def finding(subject: str = "a plan", bound: float = 0.9) -> Finding:
    claim = Claim(by=subject, value=1.0, proved=True)
    estimate = Estimate(quantity="epsilon", bound=bound, given=1e-5, estimator="gaussian", trials=1000, confidence=0.95)
    return Finding(subject=subject, claim=claim, estimate=estimate)


def release(name: str) -> Release:
    outcome = {"probability": 1.0, "recipe": name, "epsilon": "1.0"}
    content = {
        "guarantee": {"epsilon": "1.0", "delta": 1e-5},
        "terms": {"unit": name, "adjacency": "replace_one"},
        "outcomes": [outcome],
        "theorem": name,
        "proved": False,
        "final": True,
        "choice": {"paidFor": True},
        "ledger": {"entry": name},
        "caveats": [{"name": name}],
    }
    return Release(Path(name), "r-1", content, {}, signed=False, already=True)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_text_in_cells(name: str, probe: dpm.Portfolio) -> None:
    checks = (Check(name, False, (name, name)), Check("form", True))
    odd = replace(probe, path=Path(name))
    subjects = [
        hostile(),
        finding(name),
        release(name),
        Verification(Path(name), checks, None, {}, {}),
        odd,
        replace(dpm.inspect(probe), portfolio=odd),
    ]
    for subject in subjects:
        text = cell_html(subject)
        found = Elements(text)
        assert {tag for tag, _ in found.elements} <= {
            *("div", "p", "b", "table", "thead", "tbody", "tr", "th", "td", "br", "details", "summary", "ul", "li")
        }
        assert all(set(attributes) <= {"class", "scope", "data-head", "role"} for _, attributes in found.elements)
        assert "\u202e" not in text
        assert "\n" not in repr(subject)


def test_what_is_wrong_is_said_first() -> None:
    assert "NOT VERIFIED: 1 reason," in cell_html(Verification(Path("x"), (Check("a", False, ("b",)),), None, {}, {}))
    assert "VIOLATED" in cell_html(finding(bound=1.2))
    assert "VIOLATED" not in cell_html(finding())
    assert "Not proved for these runs" in cell_html(release("x"))
    assert "not for release" in cell_html(ordinary())


def test_reprs_are_short(probe: dpm.Portfolio) -> None:
    assert repr(finding()) == "Finding(a plan: tight; ε ≥ 0.9 shown, ε = 1 by a plan)"
    assert repr(ordinary()) == (
        "Analysis(Three runs on mnist-train: 6 curves, 8 plans, 3 models at δ = 1e-05; not for release)"
    )
    assert "9 checkpoints; everything at once: ε = 2.6314 at δ = 1e-05" in repr(dpm.inspect(probe))
    many = replace(probe, runs=probe.runs * 10)
    assert repr(many).endswith("… (30 runs))")
    wrong = Verification(Path("x"), tuple(Check(f"{n}", False, ("no",)) for n in range(9)), None, {}, {})
    assert repr(wrong).endswith("and 6 more)")


def test_a_long_table_is_cut_and_says_so(probe: dpm.Portfolio) -> None:
    assert "… and 30 more" in cell_html(replace(probe, runs=probe.runs * 20))


def test_frames_are_exact(probe: dpm.Portfolio) -> None:
    checkpoints = frame(probe, delta=1e-6)
    inspected = dpm.inspect(probe, 1e-6)
    assert checkpoints.equals(inspected.to_frame())
    assert checkpoints["epsilon"].tolist() == [c.epsilon for costs in inspected.costs.values() for _, c in costs]
    plan = dpm.plan(probe, epsilon=1, delta=1e-5)
    assert plan.to_frame()["probability"].tolist() == list(plan.probabilities)
    points = ordinary().to_frame()
    for curve in ordinary().curves:
        chosen = points[points["curve"] == curve.name]
        assert np.array_equal(chosen["utility"], curve.utilities, equal_nan=True)
    assert replace(ordinary(), curves=()).to_frame().columns.tolist() == points.columns.tolist()


def test_the_figure_of_a_plan_passes_through_its_guarantee(probe: dpm.Portfolio) -> None:
    plan = dpm.plan(probe, epsilon=1, delta=1e-5)
    drawn = plan.plot()
    line, *_, target = drawn.data
    assert (target.x[0], target.y[0]) == (1, 1e-5)
    below = np.array(line.y, dtype=float)[np.array(line.x, dtype=float) >= plan.guarantee.epsilon]
    assert np.all(below[np.isfinite(below)] <= 1e-5)


def test_other_things_have_no_cell_no_figure_and_no_frame() -> None:
    for show in (cell_html, figure):
        with pytest.raises(InvalidInputError, match="int"):
            show(3)
    with pytest.raises(InvalidInputError, match="int"):
        frame(3)
    with pytest.raises(InvalidInputError, match="delta"):
        frame(dpm.Portfolio.load(PROBE), delta=2)
