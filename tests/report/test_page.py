"""The page as a file: complete, closed to the outside, and unmoved by what names are made of."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from dpmerge.errors import InvalidInputError, MissingExtraError
from dpmerge.planning.analysis import BANNER, Analysis
from dpmerge.report import page_parts
from dpmerge.report.analysis_page import default_target, page, write_page
from dpmerge.report.analysis_plots import analysis_plots, frontier_plot
from dpmerge.report.axes import Axis
from dpmerge.report.plot_charts import Chart, panel_chart, plot_chart
from dpmerge.report.plot_pictures import write_plot_pictures
from dpmerge.report.plot_view import face_axis, view
from dpmerge.report.styles import styles
from report.analyses import ALL, HOSTILE, bare, hostile, losses, ordinary

FIGURES = ["frontier", "face-0", "edge-0", "theorems-0"]


class Elements(HTMLParser):
    """The elements of a page, with their attributes; what is in scripts; and the text outside them."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text = ""
        self.within = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.within = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self.within = ""

    def handle_data(self, data: str) -> None:
        if self.within == "script":
            self.scripts[-1] += data
        elif self.within != "style":
            self.text += data


def without_plotly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_parts, "_plotly_script", lambda: "/* plotly.js */")


def frontier_chart(analysis: Analysis, target: float) -> Chart:
    return plot_chart(frontier_plot(analysis), "frontier", target)


def embedded(text: str) -> dict:
    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    return json.loads(Elements(text).scripts[0], parse_constant=refuse)


@pytest.mark.parametrize("analysis", ALL)
def test_a_page_loads_nothing_from_elsewhere(analysis, monkeypatch: pytest.MonkeyPatch) -> None:
    without_plotly(monkeypatch)
    found = Elements(page(analysis()))
    for tag, attributes in found.elements:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base"), tag
        assert not {"src", "href", "srcset", "action", "data", "poster"} & set(attributes), tag
    assert len(found.scripts) == 3
    policy = next(a["content"] for t, a in found.elements if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert "http" not in policy


def test_a_page_contains_the_script_of_plotly() -> None:
    text = page(bare())
    assert len(text) > 1_000_000
    assert not re.search(r"<script[^>]+src", text)
    assert len(Elements(text).scripts) == 3


def test_a_page_shows_every_figure_caveat_and_plan_of_its_analysis(monkeypatch: pytest.MonkeyPatch) -> None:
    without_plotly(monkeypatch)
    analysis = ordinary()
    text = page(analysis)
    found = Elements(text)
    ids = [a["id"] for _, a in found.elements if "id" in a]
    assert len(ids) == len(set(ids))
    assert set(FIGURES) <= set(ids)
    assert list(embedded(text)["charts"]) == [
        "frontier",
        *(f"face-0-{n}" for n in range(4)),
        "edge-0",
        "theorems-0",
    ]
    for words in (BANNER, analysis.title, analysis.subtitle, *analysis.caveats, "not proved here"):
        assert words in found.text
    for plan in analysis.recommendations:
        assert all(recipe in found.text for _, recipe in plan.outcomes)
    assert "0.3156" in found.text or "0.3155" in found.text


def test_a_page_of_an_analysis_without_faces_and_plans_has_the_frontier_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    without_plotly(monkeypatch)
    text = page(bare())
    assert list(embedded(text)["charts"]) == ["frontier"]
    assert "No plan was found" in text


def test_html_in_names_is_escaped_on_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    without_plotly(monkeypatch)
    text = page(hostile())
    found = Elements(text)
    assert len(found.scripts) == 3
    assert not any(tag in ("img", "i") or "onerror" in attributes for tag, attributes in found.elements)
    assert HOSTILE[0] in found.text
    assert HOSTILE[1] in found.text
    assert "\u202e" not in text
    data = embedded(text)
    assert data["plans"][0]["outcomes"][0]["recipe"] == HOSTILE[1]
    assert "&lt;/script&gt;" in data["charts"]["frontier"]["data"][0]["name"]


def test_values_that_are_not_finite_are_gaps_in_charts() -> None:
    frontier = frontier_chart(hostile(), 0.5)
    assert frontier.data[0]["x"][3] is None
    assert frontier.data[0]["x"][5] is None
    assert set(frontier.data[1]["y"]) == {None}
    face = hostile().faces[0]
    panel = panel_chart(face, face.panels[0], "p", 0.5)
    assert panel.data[0]["z"][0][0] is None
    assert panel.data[1]["z"][0][0] is None
    assert panel.data[0]["text"][2][3] == "∞"


def test_the_veil_of_a_panel_covers_what_costs_more_than_the_target() -> None:
    face = ordinary().faces[0]
    veil = panel_chart(face, face.panels[1], "p", 0.7).data[1]["z"]
    for row, costs in zip(veil, face.panels[1].epsilons, strict=True):
        for faded, cost in zip(row, costs, strict=True):
            assert faded == (None if np.isnan(cost) else float(cost > 0.7))


def test_panels_of_a_face_share_their_colours() -> None:
    face = ordinary().faces[0]
    ends = {tuple(panel_chart(face, p, "p", 0.7).data[0][key] for key in ("zmin", "zmax")) for p in face.panels}
    assert len(ends) == 1


def test_utilities_of_which_lower_is_better_have_a_logarithmic_axis() -> None:
    layout = frontier_chart(losses(), 1.0).layout
    assert layout["yaxis"]["type"] == "log"
    assert "lower is better" in layout["yaxis"]["title"]["text"]
    assert layout["xaxis"]["type"] == "log"
    assert "type" not in frontier_chart(ordinary(), 1.0).layout["xaxis"]


def test_a_curve_that_is_not_proved_is_dashed_and_labelled() -> None:
    chart = frontier_chart(ordinary(), 1.0)
    for curve, trace, entry in zip(ordinary().curves, chart.data, chart.legend, strict=False):
        assert trace["line"]["dash"] == ("solid" if curve.proved else "dash")
        assert ("not proved here" in entry.series.label) == (not curve.proved)


def test_no_two_lines_of_a_figure_have_the_same_style() -> None:
    analysis = ordinary()
    twice = [*analysis.curves, *analysis.curves[:2]]
    assert len(set(styles(twice, analysis))) == len(twice)


def test_an_epsilon_on_a_chart_is_rounded_up() -> None:
    for curve, trace in zip(ordinary().curves, frontier_chart(ordinary(), 1.0).data, strict=False):
        for value, (printed, _) in zip(curve.epsilons, trace["customdata"], strict=True):
            assert 0 <= float(printed) - value < 1.01e-4


def test_the_default_target_is_a_plan_near_the_middle_of_what_is_shown() -> None:
    plans = ordinary().recommendations
    shown = np.concatenate([panel.epsilons.ravel() for panel in ordinary().faces[0].panels])
    assert default_target(ordinary()) == max(p.target for p in plans if p.target <= np.nanmedian(shown))
    assert default_target(replace(ordinary(), faces=())) == plans[len(plans) // 2].target
    costs = sorted(model.epsilon for model in bare().models)
    assert default_target(bare()) == pytest.approx(costs[1], rel=0.05)
    assert default_target(replace(bare(), models=())) == 1.0


@pytest.mark.parametrize(
    "values", [[], [np.nan], [np.inf, 0.0], [2.0], [0.0], [1e-9, 1e9], [-3.0, 4.0], [-2.0], [5e-324, 1.0]]
)
def test_an_axis_is_finite_and_not_empty(values: list[float]) -> None:
    for wide in (1.0, 20.0):
        axis = Axis.of([np.array(values, dtype=float)], wide=wide)
        assert np.all(np.isfinite(axis.ends))
        assert axis.low < axis.high
        assert axis.round_ticks()
    assert axis.place(axis.low) == pytest.approx(0)
    assert axis.place(axis.high) == pytest.approx(1)


def test_an_analysis_of_nothing_has_axes_that_are_not_empty() -> None:
    empty: Analysis = replace(bare(), models=(), curves=())
    seen = view(frontier_plot(empty))
    assert all(axis.low < axis.high for axis in (seen.across, seen.up))
    assert default_target(empty) == 1.0
    assert face_axis(replace(ordinary().faces[0], panels=())).low == 0


def test_writing_a_page_again_replaces_it_and_leaves_no_other_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_plotly(monkeypatch)
    write_page(bare(), tmp_path / "report.html")
    write_page(ordinary(), tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == page(ordinary())
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]


def test_writing_a_page_into_a_missing_folder_or_over_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="nowhere"):
        write_page(bare(), tmp_path / "nowhere" / "report.html")
    (tmp_path / "taken").mkdir()
    with pytest.raises(InvalidInputError, match="taken"):
        write_page(bare(), tmp_path / "taken")
    assert [file.name for file in tmp_path.iterdir()] == ["taken"]


@pytest.mark.parametrize("library", ["plotly", "matplotlib"])
def test_a_missing_drawing_library_is_an_error_of_one_line(
    library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == library]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingExtraError) as caught:
        page(bare()) if library == "plotly" else write_plot_pictures(analysis_plots(bare()), tmp_path)
    assert 'pip install "dpmerge[report]"' in str(caught.value)
    assert "\n" not in str(caught.value)


def test_text_and_numbers_need_no_drawing_library() -> None:
    script = (
        "import sys, dpmerge.report.plain, dpmerge.report.numbers;"
        "import dpmerge.report.analysis_page, dpmerge.report.plot_page, dpmerge.report.plot_pictures;"
        "print(sorted({name.split('.')[0] for name in sys.modules} & {'plotly', 'matplotlib'}))"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
