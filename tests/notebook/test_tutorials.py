"""The tutorials run, do what they say, show what is stored in them, need no network and leave nothing behind."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient.exceptions import CellExecutionError
from nbformat import NotebookNode

from tutorial_runs import SHOWN, TUTORIALS, run

CHECKS = {
    "1-opacus-to-certificate": """
        assert verification.verified
        assert 2.9 < release.guarantee.epsilon <= 3 and release.guarantee.delta == 1e-5
        assert plan.proved and len(plan.candidates) == 2
        assert 0.5 < accuracy < 0.9, "an eighth is guessing"
    """,
    "2-choosing-among-plans": """
        every = [*plans.values(), looked, unpaid, validated]
        assert all(each.guarantee.epsilon <= 1.2 for each in every)
        assert [each.proved for each in every] == [True] * 5 + [False, True]
        assert not unpaid.charged and looked.charged
        assert plans["mix"].noise_to_signal <= min(plans["select"].noise_to_signal, plans["combine"].noise_to_signal)
        assert "c4-s32" not in looked.chosen_by["look"] and str(unpaid.candidates[0].recipe) == "c4-s32@20"
    """,
    "3-linear-probe": """
        assert verification.verified and release.content["final"] and release.content["theorem"] == "hidden_state"
        assert release.guarantee.epsilon <= 0.3
        assert finding.estimate.bound < 0.3
        smoothed = points[points["curve"] == "linear combination, PLD"].set_index("epsilon")["utility"]
        assert smoothed[smoothed.index < 0.09].notna().all()
        drawn = points[points["curve"] == "random selection, PLD"].set_index("epsilon")["utility"]
        assert drawn[drawn.index < 0.09].isna().all()
    """,
    "4-lora-adapters": """
        assert verification.verified and release.guarantee.epsilon <= 4
        assert {str(each.recipe) for each in plan.candidates} == {"s1@40", "s2@40"}
        assert average.guarantee.epsilon > 4.6882
        learned = next_tokens_right(merged, texts(500, step=3, seed=3))
        assert learned > next_tokens_right(base, texts(500, step=3, seed=3)) + 0.3
    """,
    "5-a-year-of-releases": """
        assert verdict.ok and report.epsilon <= report.cap.epsilon == 1
        assert [row["month"] for row in year] == ["february", "april", "may", "july", "december"]
        assert year[1]["ε so far"] == year[2]["ε so far"] < year[0]["ε alone"] + year[1]["ε alone"]
        assert step.outcome == "finished" and [run.name for run in report.runs if run.locked_by] == ["s64"]
    """,
    "6-the-papers-method": """
        assert all(by_pld < by_rdp)
        assert not merged_trajectory(half).certifies and joint_release(half).certifies and bound.certifies
        assert round(merged_trajectory(half).epsilon(delta), 3) == 0.926
        assert each.law().epsilon(delta) > 3 * claimed > total.law().epsilon(delta)
        assert points.groupby("method")["proved"].all().to_dict() == {"combine": False, "select": True}
    """,
}
"""What has to be true of a tutorial's names once it has run."""

PRIVATE_PLACE = re.compile(r"(?<![\w.])/(home|root|work|tmp|usr|var)/|site-packages|ipykernel")
WHEN_OR_WHICH = re.compile(r"\b[0-9a-f]{32,}\b|\b20\d\d-\d\d-\d\d\b|0x[0-9a-f]{6,}")


def book(notebook: Path) -> NotebookNode:
    return nbformat.read(notebook, as_version=4)


def outputs(cell: NotebookNode) -> list[dict[str, Any]]:
    """What a cell shows, pictures as nothing more than there being one; where it varies, without its numbers."""
    found = []
    for output in cell.get("outputs", []):
        texts = {"text": output.text} if output.output_type == "stream" else dict(output.data)
        texts = {kind: "a picture" if kind == "image/png" else text for kind, text in texts.items()}
        if "varies" in cell.metadata.get("tags", []):
            texts = {kind: re.sub(r" *\d+(\.\d+)?", "#", text) for kind, text in texts.items()}
        found.append({"kind": output.output_type, "name": output.get("name"), **texts})
    return found


def files(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_there_are_six_tutorials_and_each_is_checked() -> None:
    assert [notebook.stem for notebook in TUTORIALS] == sorted(CHECKS)
    assert len(CHECKS) == 6


@pytest.mark.parametrize("notebook", TUTORIALS, ids=lambda notebook: notebook.stem)
def test_a_tutorial_runs_and_shows_what_is_stored(notebook: Path, tmp_path: Path) -> None:
    check = "\n".join(line.strip() for line in CHECKS[notebook.stem].splitlines())
    fresh, stored = run(notebook, tmp_path, check=check), book(notebook)
    for now, before in zip(fresh.cells, stored.cells, strict=True):
        assert outputs(now) == outputs(before), now.source
    left = [path.name for path in (tmp_path / "temporary").iterdir()]
    assert [name for name in left if not name.startswith("torchinductor_")] == []  # torch's own, made by importing it
    assert files(tmp_path / "docs") == {}
    examples = Path(__file__).parents[2] / "examples"
    assert files(tmp_path / "examples") == files(examples)


def test_a_notebook_that_reaches_for_the_network_fails_even_if_it_says_nothing(tmp_path: Path) -> None:
    code = "import socket\ntry:\n    socket.create_connection(('192.0.2.1', 80), timeout=1)\nexcept OSError:\n    pass"
    reaching = tmp_path / "reaching.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)]), reaching)
    with pytest.raises(CellExecutionError, match="socket.getaddrinfo 192.0.2.1"):
        run(reaching, tmp_path / "clone")


@pytest.mark.parametrize("notebook", TUTORIALS, ids=lambda notebook: notebook.stem)
def test_what_is_stored_is_whole_and_names_no_machine_and_no_time(notebook: Path) -> None:
    text = notebook.read_text()
    assert not PRIVATE_PLACE.search(text)
    code = [cell for cell in book(notebook).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    for output in (output for cell in code for output in cell.outputs):
        assert output.output_type in ("stream", "display_data", "execute_result"), output
        data = output.get("data", {"text/plain": output.get("text")})
        assert set(data) <= set(SHOWN)
        assert len(data.get("image/png", "")) < 100_000
        assert not any(WHEN_OR_WHICH.search(data[kind]) for kind in ("text/plain", "text/html") if kind in data)
        assert not any(
            re.search(r"<script|<img|\x1b", data[kind]) for kind in ("text/plain", "text/html") if kind in data
        )


@pytest.mark.parametrize("notebook", TUTORIALS, ids=lambda notebook: notebook.stem)
def test_a_tutorial_says_first_what_one_will_have_and_last_what_to_do_next(notebook: Path) -> None:
    cells = book(notebook).cells
    first, last = cells[0].source, cells[-1].source
    assert first.startswith("# ")
    assert "**At the end you have**" in first
    assert re.search(r"(Eight|Ten) minutes to read", first)
    assert re.findall(r"^## .*$", last, re.M) == ["## What next"]
    words = sum(len(cell.source.split()) for cell in cells if cell.cell_type == "markdown")
    assert words < 1200, "ten minutes, with the code between"
