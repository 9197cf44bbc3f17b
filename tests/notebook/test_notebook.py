"""A notebook in a real kernel: what its cells show, that nothing is shown twice, and that names are text."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

import dpmerge as dpm

ROOT = Path(__file__).parents[2]

CELLS = {
    "load": "import dpmerge as dpm\nportfolio = dpm.Portfolio.load('models')",
    "portfolio": "portfolio",
    "inspection": "found = dpm.inspect(portfolio)\nfound",
    "plan": "plan = dpm.plan(portfolio, epsilon=0.12, delta=1e-5)\nplan",
    "text": "print(len(str(plan)) > 500, str(plan).count('Target: ε = 0.12'), len(str(found)) > 500)",
    "printed": "print(plan)",
    "assigned": "text = str(plan), str(found), repr(plan), format(plan)",
    "candidates": "plan.to_frame()",
    "checkpoints": "portfolio.to_frame(delta=1e-5)",
    "plan figure": "plan.plot()",
    "frontier": "frontier = dpm.frontier(portfolio, targets=3)\nfrontier",
    "points": "frontier.to_frame()",
    "frontier figure": "frontier.plot()",
    "release": "release = dpm.release(plan, out='merged')\nrelease",
    "verification": "dpm.verify('merged', portfolio=portfolio)",
    "finding": "dpm.audit(plan, trials=1000)",
    "reprs": "[len(repr(each)) for each in (portfolio, plan, found, frontier, release)]",
}


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """What each cell has put out, after the whole notebook was run in a kernel of its own."""
    place = tmp_path_factory.mktemp("notebook")
    shutil.copytree(ROOT / "examples" / "mnist", place / "models")
    return dict(zip(CELLS, run(place, list(CELLS.values())), strict=True))


def run(place: Path, cells: list[str]) -> list[list[Any]]:
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(each) for each in cells])
    client = NotebookClient(book, timeout=60, kernel_name="python3", resources={"metadata": {"path": str(place)}})
    client.execute(env={**os.environ, "PYTHONPATH": str(Path(dpm.__file__).parents[1])})  # the one that is tested
    return [cell.outputs for cell in book.cells]


def shown(outputs: dict[str, list[Any]], name: str) -> dict[str, Any]:
    """The one thing a cell shows."""
    [only] = outputs[name]
    assert only.output_type in ("execute_result", "display_data"), only
    return dict(only.data)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("portfolio", ("runs on mnist-train", "C = 2, σ = 64", "ladder-1")),
        ("inspection", ("checkpoints on mnist-train", "Everything at once", "c2-s64@20")),
        ("plan", ("Plan for ε = 0.12 at δ = 1e-05", "It costs ε = 0.1200", "random_selection", "average of ladder-1")),
        ("frontier", ("not for release", "target ε", "c2-s64@20")),
        ("release", ("Release merged", "ε = 0.12", "certificate not signed")),
        ("verification", ("Verified: merged", "✓", "guarantee", "ε = 0.12")),
        ("finding", ("Audit of", "certified", "shown", "verdict")),
    ],
)
def test_a_cell_shows_its_object_once_as_html_and_as_a_short_text(
    name: str, words: tuple[str, ...], outputs: dict[str, list[Any]]
) -> None:
    data = shown(outputs, name)
    assert all(word in data["text/html"] for word in words)
    assert "<script" not in data["text/html"]
    assert len(data["text/plain"].splitlines()) == 1
    assert len(data["text/plain"]) < 300


def test_text_is_returned_and_not_printed(outputs: dict[str, list[Any]]) -> None:
    [printed] = outputs["text"]
    assert printed.text == "True 1 True\n"
    assert outputs["assigned"] == []
    [explained] = outputs["printed"]
    assert explained.output_type == "stream"
    assert explained.text.count("Premises, by who vouches for them") == 1
    [lengths] = outputs["reprs"]
    assert max(map(int, re.findall(r"\d+", lengths.data["text/plain"]))) < 300


def test_frames_have_a_row_for_each_thing(outputs: dict[str, list[Any]]) -> None:
    assert shown(outputs, "candidates")["text/html"].count("average of ladder-1") == 2
    assert "c2-s64@20" in shown(outputs, "checkpoints")["text/html"]
    assert "linear combination by merged_trajectory" in shown(outputs, "points")["text/html"]


@pytest.mark.parametrize("name", ["plan figure", "frontier figure"])
def test_figures_are_figures_of_plotly(name: str, outputs: dict[str, list[Any]]) -> None:
    figure = shown(outputs, name)["application/vnd.plotly.v1+json"]
    assert len(figure["data"]) >= 3
    named = [trace["name"] for trace in figure["data"] if trace.get("showlegend")]
    expected = "the target" if name == "plan figure" else "a model as it was trained"
    assert named[-1] == expected
    banner = "not for release" in figure["layout"]["title"]["text"]
    assert banner == (name == "frontier figure")
