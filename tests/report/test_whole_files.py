"""Pictures and numbers: all there, the same every time, read back as they were."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from dpmerge.errors import InvalidInputError
from dpmerge.planning.analysis import BANNER, Analysis
from dpmerge.report.analysis_plots import analysis_plots
from dpmerge.report.numbers import write_numbers
from dpmerge.report.plot_layout import COLUMN, PAGE
from dpmerge.report.plot_pictures import DPI, write_plot_pictures
from report.analyses import ALL, HOSTILE, hostile, losses, ordinary

FIGURES = {"frontier", "face-0", "edge-0", "theorems-0"}


def write_pictures(analysis: Analysis, folder: Path) -> list[Path]:
    return write_plot_pictures(analysis_plots(analysis), folder, kinds=("png", "svg"))


def table(file: Path) -> list[dict[str, str]]:
    """The rows of a CSV file, the apostrophes taken away that keep a spreadsheet from calculating."""
    with file.open(encoding="utf-8", newline="") as stream:
        assert stream.readline() == f"# {BANNER}\n"
        rows = list(csv.DictReader(stream))
    return [{_bare(key): _bare(value) for key, value in row.items()} for row in rows]


def _bare(text: str) -> str:
    return text[1:] if text.startswith("'") else text


def number(cell: str) -> float:
    return math.nan if cell == "" else float(cell)


def same(cells: list[str], values: object) -> None:
    np.testing.assert_array_equal([number(cell) for cell in cells], np.ravel(values))


@pytest.mark.parametrize("analysis", ALL)
def test_numbers_read_back_from_the_tables_are_exact(analysis: Callable[[], Analysis], tmp_path: Path) -> None:
    expected = analysis()
    written = write_numbers(expected, tmp_path)
    assert sorted(written) == sorted(tmp_path.iterdir())
    models = table(tmp_path / "models.csv")
    assert [row["model"] for row in models] == [model.name for model in expected.models]
    same([row["epsilon"] for row in models], [model.epsilon for model in expected.models])
    same([row["utility"] for row in models], [model.utility for model in expected.models])
    frontier = table(tmp_path / "frontier.csv")
    same([row["epsilon"] for row in frontier], [curve.epsilons for curve in expected.curves])
    same([row["utility"] for row in frontier], [curve.utilities for curve in expected.curves])
    assert {row["curve"] for row in frontier} == {curve.name for curve in expected.curves}
    for place, edge in enumerate(expected.edges):
        for name, lines in ((f"edge-{place}", edge.lines), (f"theorems-{place}", edge.theorems)):
            rows = table(tmp_path / f"{name}.csv")
            same([row["epsilon"] for row in rows], [line.epsilons for line in lines])
            same([row[f"share of {edge.names[1]}"] for row in rows], [edge.weights for _ in lines])
            assert [row["proved"] for row in rows[:: edge.weights.size]] == [
                "yes" if line.proved else "no" for line in lines
            ]
    plans = table(tmp_path / "recommendations.csv")
    outcomes = [(plan, outcome) for plan in expected.recommendations for outcome in plan.outcomes]
    assert [row["released"] for row in plans] == [recipe for _, (_, recipe) in outcomes]
    same([row["probability"] for row in plans], [probability for _, (probability, _) in outcomes])
    same([row["epsilon"] for row in plans], [plan.epsilon for plan, _ in outcomes])


def test_a_face_read_back_from_its_table_has_its_weights(tmp_path: Path) -> None:
    write_numbers(ordinary(), tmp_path)
    face = ordinary().faces[0]
    rows = table(tmp_path / "face-0.csv")
    assert len(rows) == len(face.panels) * (face.resolution + 1) * (face.resolution + 2) // 2
    for row in rows:
        first, second, third = (float(row[f"share of {name}"]) for name in face.names)
        assert first + second + third == pytest.approx(1)
        panel = next(panel for panel in face.panels if panel.name == row["panel"])
        place = round(second * face.resolution), round(first * face.resolution)
        assert float(row["epsilon"]) == panel.epsilons[place]


def test_names_that_look_like_formulas_are_quoted_in_tables(tmp_path: Path) -> None:
    write_numbers(hostile(), tmp_path)
    for file in tmp_path.glob("*.csv"):
        with file.open(encoding="utf-8", newline="") as stream:
            stream.readline()
            for cell in (cell for row in csv.reader(stream) for cell in row):
                assert not cell.startswith(("=", "+", "@", "\t", "\r")), file.name
                if cell.startswith("-"):
                    float(cell)
    assert "'=cmd" in (tmp_path / "models.csv").read_text(encoding="utf-8")


@pytest.mark.parametrize("analysis", ALL)
def test_the_json_is_strict_and_complete(analysis: Callable[[], Analysis], tmp_path: Path) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    write_numbers(analysis(), tmp_path)
    text = (tmp_path / "analysis.json").read_text(encoding="utf-8")
    assert json.loads(text, parse_constant=refuse) == analysis().document()


@pytest.mark.parametrize("analysis", [ordinary, hostile, losses])
def test_pictures_of_an_analysis_are_written_byte_for_byte_the_same_every_time(
    analysis: Callable[[], Analysis], tmp_path: Path
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    written = write_pictures(analysis(), first)
    assert {file.stem for file in written} == FIGURES
    assert {file.name for file in written} == {f"{name}.{kind}" for name in FIGURES for kind in ("png", "svg")}
    write_pictures(analysis(), second)
    for file in written:
        content = file.read_bytes()
        assert content == (second / file.name).read_bytes(), file.name
        if file.suffix == ".png":
            assert content.startswith(b"\x89PNG")
            width = int.from_bytes(content[16:20], "big")
            assert min(abs(width / DPI - inches) for inches in (COLUMN, PAGE)) < 0.01
        else:
            assert ElementTree.fromstring(content).tag == "{http://www.w3.org/2000/svg}svg"  # noqa: S314
            assert b"<dc:date>" not in content


def test_writing_pictures_leaves_the_settings_of_matplotlib_as_they_were(tmp_path: Path) -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    write_pictures(hostile(), tmp_path)
    assert dict(matplotlib.rcParams) == before


@pytest.mark.parametrize("write", [write_numbers, write_pictures])
def test_writing_into_a_missing_folder_is_refused(
    write: Callable[[Analysis, Path], list[Path]], tmp_path: Path
) -> None:
    with pytest.raises(InvalidInputError, match="nowhere"):
        write(ordinary(), tmp_path / "nowhere")
    assert list(tmp_path.iterdir()) == []


def test_the_hostile_names_contain_a_script_tag_and_a_formula() -> None:
    assert "</script>" in HOSTILE[0]
    assert HOSTILE[1].startswith("=")
