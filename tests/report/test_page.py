"""The page as a file: complete, closed to the outside, and unmoved by what names are made of."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import dpmerge as dpm
from dpmerge.cli import app
from dpmerge.errors import InvalidInputError, MissingExtraError
from dpmerge.planning.analysis import BANNER, Analysis
from dpmerge.report import page_parts, wording
from dpmerge.report.analysis_page import default_target, page, write_page
from dpmerge.report.analysis_plots import analysis_plots, frontier_plot
from dpmerge.report.axes import Axis
from dpmerge.report.heatmap_rows import heatmap_rows, inside
from dpmerge.report.iso_lines import HIGH, WIDE, iso_lines
from dpmerge.report.jumps import with_jumps
from dpmerge.report.panel_charts import panel_chart
from dpmerge.report.plot_charts import Chart, plot_chart
from dpmerge.report.plot_pictures import write_plot_pictures
from dpmerge.report.plot_view import view
from dpmerge.report.plots import COLOURS, Heatmaps
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
    assert 1_000_000 < len(text.encode()) < 3_000_000
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
    drawing = heatmaps(hostile())
    [row, *_] = heatmap_rows(drawing.face)
    costs = panel_chart(drawing, row.panels[0], row.axis, "p", 0.5).costs
    assert costs[0].split(" ")[0] == "–"
    assert costs[2].split(" ")[3] == "∞"


def heatmaps(analysis: Analysis) -> Heatmaps:
    return next(drawing for drawing in analysis_plots(analysis) if isinstance(drawing, Heatmaps))


def test_the_figures_of_a_panel_are_rounded_up_and_sent_once() -> None:
    drawing = heatmaps(ordinary())
    for row in heatmap_rows(drawing.face):
        for panel in row.panels:
            chart = panel_chart(drawing, panel, row.axis, "p", 0.7)
            assert all(trace["z"] == [] for trace in chart.data[:3])
            for i, sent in enumerate(chart.costs):
                exact = panel.epsilons[i, : len(panel.epsilons) - i]
                assert np.all(np.array(sent.split(" "), dtype=float) >= exact)
                assert np.allclose(np.array(sent.split(" "), dtype=float), exact, rtol=1e-5)


def test_each_row_of_panels_has_a_scale_of_its_own_that_every_panel_spans() -> None:
    rows = heatmap_rows(ordinary().faces[0])
    assert [panel for row in rows for panel in row.panels] == list(ordinary().faces[0].panels)
    assert len({row.axis for row in rows}) == len(rows)
    for row in rows:
        for panel in row.panels:
            span = inside(panel).max() - np.quantile(inside(panel), 0.02)
            assert span >= 0.499 * (row.axis.high - row.axis.low)


def test_a_panel_of_one_colour_is_words_on_the_page_and_in_pictures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_plotly(monkeypatch)
    face = ordinary().faces[0]
    same = np.where(np.isnan(face.panels[2].epsilons), np.nan, 1.25)
    same[0, 0] = 0.5
    flat = replace(face, panels=(*face.panels[:2], replace(face.panels[2], epsilons=same)))
    analysis = replace(ordinary(), faces=(flat,))
    assert [row.axis is None for row in heatmap_rows(flat)] == [False, True]
    text = page(analysis)
    assert "face-0-2" not in embedded(text)["charts"]
    assert "all three, in any shares" in Elements(text).text
    assert f"only {face.names[2]}0.5000" in Elements(text).text
    assert write_plot_pictures([heatmaps(analysis)], tmp_path)


@pytest.mark.parametrize("analysis", [ordinary, hostile])
def test_lines_of_equal_cost_are_where_they_say_and_their_numbers_do_not_meet(analysis) -> None:
    for row in heatmap_rows(analysis().faces[0]):
        for panel in row.panels if row.axis is not None else ():
            found = iso_lines(panel, row.axis)
            assert len(found) >= 2
            places = [line.place for line in found if line.place is not None]
            assert places
            for n, (x, y) in enumerate(places):
                assert all(abs(x - a) > WIDE or abs(y - b) > HIGH for a, b in places[:n])
            steps = len(panel.epsilons) - 1
            for line in found:
                x, y = (values[~np.isnan(values)] * steps for values in (line.x, line.y))
                around = np.stack(
                    [
                        panel.epsilons[rounded(y), columned(x)]
                        for rounded in (np_floor, np_ceil)
                        for columned in (np_floor, np_ceil)
                    ]
                )
                assert np.all(np.nanmin(around, axis=0) <= line.level * (1 + 1e-9))
                assert np.all(np.nanmax(around, axis=0) >= line.level * (1 - 1e-9))


def np_floor(values: np.ndarray) -> np.ndarray:
    return np.floor(values + 1e-9).astype(int)


def np_ceil(values: np.ndarray) -> np.ndarray:
    return np.ceil(values - 1e-9).astype(int)


def test_corners_are_named_by_how_the_models_were_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    without_plotly(monkeypatch)
    models = tuple(replace(model, settings=f"C = 2, σ = {n}") for n, model in enumerate(ordinary().models))
    charts = embedded(page(replace(ordinary(), models=models)))["charts"]
    corners = [each["text"] for each in charts["face-0-0"]["layout"]["annotations"][:3]]
    assert corners == [f"{model.name}<br>{model.settings}" for model in models]


def test_a_line_is_broken_where_a_model_drops_out_and_nowhere_else() -> None:
    x = np.linspace(0, 1, 21)
    jumping = np.where(x == 0, 0.1, 1 + 0.01 * x)
    assert np.flatnonzero(np.isnan(with_jumps(x, jumping)[1])).tolist() == [1]
    steep = np.sqrt(x)
    assert not np.isnan(with_jumps(x, steep)[1]).any()
    both = np.where((x == 0) | (x == 1), 0.1, 1 + 0.01 * x)
    assert np.flatnonzero(np.isnan(with_jumps(x, both)[0])).tolist() == [1, 21]
    assert with_jumps(x[:2], x[:2])[0].size == 2


def test_rdp_is_a_dotted_line_of_the_colour_of_its_exact_one() -> None:
    chart = frontier_chart(ordinary(), 1.0)
    by_name = {curve.name: trace["line"] for curve, trace in zip(ordinary().curves, chart.data, strict=False)}
    assert {line["dash"] for name, line in by_name.items() if "RDP" in name} <= {"2px,3px", "9px,3px,2px,3px"}
    assert {line["dash"] for name, line in by_name.items() if "RDP" not in name} <= {"solid", "dash"}
    exact, renyi = by_name["random selection, PLD"], by_name["random selection, RDP"]
    assert (exact["color"], exact["dash"]) == (COLOURS["select"], "solid")
    assert (renyi["color"], renyi["dash"]) == (COLOURS["select"], "2px,3px")


@pytest.mark.parametrize("analysis", [ordinary, losses])
def test_methods_and_theorems_have_their_own_colours_in_every_figure(analysis: Callable[[], Analysis]) -> None:
    made = analysis()
    for lines in (made.curves, *(edge.lines for edge in made.edges), *(edge.theorems for edge in made.edges)):
        for line, style in zip(lines, styles(lines, made), strict=True):
            key = (line.theorem or "combine") if line.method == "combine" else line.method
            assert style.colour == COLOURS[key], line.name
            assert (style.dashed, style.dotted) == (not line.proved, line.accounting == "rdp")


def test_the_command_of_a_plan_names_its_own_target(monkeypatch: pytest.MonkeyPatch) -> None:
    without_plotly(monkeypatch)
    data = embedded(page(ordinary()))
    for plan in data["plans"]:
        assert plan["command"] == f"dpmerge plan PORTFOLIO --epsilon {plan['target']!r} --delta 1e-05"


def test_the_plans_of_a_report_are_what_their_commands_make() -> None:
    analysis = dpm.frontier(dpm.Portfolio.load("examples/mnist"), 1e-5, targets=6)
    assert len(analysis.recommendations) > 3
    for plan in analysis.recommendations[::2]:
        [program, *words] = shlex.split(wording.command(analysis, plan))
        assert program == "dpmerge"
        result = CliRunner().invoke(app, [*words, "--json"])
        assert result.exit_code == 0
        made = json.loads(result.stdout)
        assert made["guarantee"]["epsilon"] == plan.epsilon
        assert tuple(made["probabilities"]) == tuple(p for p, _ in plan.outcomes)
        assert made["theorem"] == plan.theorem


def test_a_utility_that_falls_as_epsilon_grows_is_said_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    without_plotly(monkeypatch)
    assert wording.falls(ordinary()) == ""
    plans = list(ordinary().recommendations)
    plans[3] = replace(plans[3], utility=0.5)
    fallen = replace(ordinary(), recommendations=tuple(plans))
    words = wording.falls(fallen)
    assert "More ε does not always help here: accuracy is 0.5 for the plan of target ε = " in words
    text = page(fallen)
    assert words in Elements(text).text
    assert [bool(plan["falls"]) for plan in embedded(text)["plans"]] == [n == 3 for n in range(len(plans))]
    lower = replace(fallen, utility=replace(fallen.utility, higher_is_better=False))
    assert "lower is better" in wording.falls(lower)


def test_utilities_of_which_lower_is_better_have_a_logarithmic_axis() -> None:
    layout = frontier_chart(losses(), 1.0).layout
    assert layout["yaxis"]["type"] == "log"
    assert "lower is better" in layout["yaxis"]["title"]["text"]
    assert layout["xaxis"]["type"] == "log"
    assert "type" not in frontier_chart(ordinary(), 1.0).layout["xaxis"]


def test_a_curve_that_is_not_proved_is_dashed_and_labelled() -> None:
    chart = frontier_chart(ordinary(), 1.0)
    for curve, trace, entry in zip(ordinary().curves, chart.data, chart.legend, strict=False):
        dashes = {"pld": ("solid", "dash"), "rdp": ("2px,3px", "9px,3px,2px,3px")}[curve.accounting]
        assert trace["line"]["dash"] == dashes[not curve.proved]
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
    assert heatmap_rows(replace(ordinary().faces[0], panels=())) == []


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


def test_a_missing_drawing_library_is_an_error_of_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for library in ("plotly", "matplotlib"):
        for name in [name for name in sys.modules if name.split(".")[0] == library]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingExtraError) as caught:
        write_plot_pictures(analysis_plots(bare()), tmp_path)
    assert 'pip install "dpmerge[report]"' in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "plotly.js (cartesian" in page(bare())  # the page carries what draws it


def test_the_script_in_the_wheel_is_the_one_that_was_looked_at() -> None:
    script = page_parts.part("plotly-cartesian.min.js").encode()
    decided = (Path(__file__).parents[2] / "docs" / "decisions" / "0015-plotly-in-the-wheel.md").read_text()
    assert hashlib.sha256(script).hexdigest() in decided
    assert "MIT" in page_parts.part("plotly-cartesian.LICENSE.txt")


def test_text_and_numbers_need_no_drawing_library() -> None:
    script = (
        "import sys, dpmerge.report.plain, dpmerge.report.numbers;"
        "import dpmerge.report.analysis_page, dpmerge.report.plot_page, dpmerge.report.plot_pictures;"
        "print(sorted({name.split('.')[0] for name in sys.modules} & {'plotly', 'matplotlib'}))"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
