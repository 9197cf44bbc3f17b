"""The committed figures, as a paper would print them: legible, and the same look for the same thing in all of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dpmerge.report.plots import COLOURS, Drawing, Heatmaps, Panels, Series
from report.legible_text import complaints
from reproduction.__main__ import experiments_app
from reproduction.experiments import EXPERIMENTS, experiment
from reproduction.pages import FOLDER
from reproduction.results import Results

DOCS = Path(__file__).parents[2] / "docs"


def drawings(name: str) -> list[Drawing]:
    return experiment(name).drawings(Results.read(DOCS / FOLDER / name / f"{name}.json").numbers)


def series(name: str) -> list[Series]:
    found: list[Series] = []
    for drawing in drawings(name):
        if not isinstance(drawing, Heatmaps):
            plots = drawing.plots if isinstance(drawing, Panels) else (drawing,)
            found += [each for plot in plots for each in plot.series]
    return found


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_text_of_a_committed_figure_can_be_read_in_print(name: str) -> None:
    for drawing in drawings(name):
        assert complaints(drawing) == [], drawing.name


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_dots_are_rdp_and_dashes_what_is_not_proved(name: str) -> None:
    for line in series(name):
        assert line.dotted == ("RDP" in line.name and line.line), line.name
        assert line.dashed == ("assumed" in line.name), line.name


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_method_has_its_colour_in_every_figure(name: str) -> None:
    named = {
        r"random selection|^RS\b": "select",
        r"merged.trajectory|^LC\b|linear combination, (RDP|PLD)": "combine",
        r"joint release": "joint_release",
        r"last step": "last_step",
        r"hidden.state": "hidden_state",
    }
    for line in series(name):
        if "measured" in line.name:  # points beside the line of a formula
            continue
        found = [key for pattern, key in named.items() if re.search(pattern, line.name)]
        if found:
            assert line.colour in {COLOURS[key] for key in found}, line.name


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_lines_of_one_panel_do_not_look_alike(name: str) -> None:
    for drawing in drawings(name):
        for plot in drawing.plots if isinstance(drawing, Panels) else ():
            looks = [(s.colour, s.dashed, s.dotted, s.thin, s.marks, s.line) for s in plot.series]
            assert len(set(looks)) == len(looks), plot.name


def test_pictures_are_drawn_again_as_pdf_if_asked_for(tmp_path: Path) -> None:
    folder = tmp_path / FOLDER / "composition"
    folder.mkdir(parents=True)
    (folder / "composition.json").write_bytes((DOCS / FOLDER / "composition" / "composition.json").read_bytes())
    result = CliRunner().invoke(experiments_app, ["composition", "-o", str(tmp_path), "--redraw", "--pdf"])
    assert result.exit_code == 0, result.output
    assert (folder / "composition-costs.pdf").read_bytes().startswith(b"%PDF")
    assert (folder / "composition-costs.png").exists()


def test_pdf_without_results_to_draw_is_refused() -> None:
    result = CliRunner().invoke(experiments_app, ["composition", "--pdf"])
    assert result.exit_code == 2
    assert "--pdf with --redraw" in result.stderr
