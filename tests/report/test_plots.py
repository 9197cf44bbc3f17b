"""Plots and heatmaps, drawn twice: as pictures and on a page. What is in them is seen, what is not there is a gap."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpmerge.errors import InvalidInputError
from dpmerge.report.heatmap_rows import heatmap_rows
from dpmerge.report.plot_layout import COLUMN, PAGE
from dpmerge.report.plot_page import plot_page, write_plot_page
from dpmerge.report.plot_pictures import DPI, plot_figure, settings, write_plot_pictures
from dpmerge.report.plot_view import lines, ticks, view
from dpmerge.report.plots import COLOURS, Drawing, Heatmaps, Plot, Series, Table
from report.analyses import ordinary
from report.test_page import Elements, embedded, without_plotly

HOSTILE = "<b>%{x}</b> $y^2$ </script><script>alert(1)</script>"
EPSILONS = np.geomspace(0.2, 8, 30)
SELECT, COMBINE, MIX, MODELS = (COLOURS[name] for name in ("select", "combine", "mix", "models"))
DESKTOP, PHONE = {"width": 1200, "height": 800}, {"width": 390, "height": 844}


def series(name: str, height: float, colour: str, **how: Any) -> Series:
    return Series(name=name, x=EPSILONS, y=height * (1 - np.exp(-EPSILONS)), colour=colour, **how)


def plot(*drawn: Series, **how: Any) -> Plot:
    said = {
        "name": "plot",
        "heading": "What is found",
        "words": "How it is read.",
        "across": "ε at δ = 1e-5 (smaller is more private)",
        "up": "accuracy on the test images (%)",
    }
    return Plot(**{**said, "series": drawn, **how})


def points(x: list[float], y: list[float], error: list[float] | None = None, **how: Any) -> Series:
    spread = None if error is None else np.array(error, dtype=float)
    said = {"name": "points", "colour": COMBINE, **how}
    return Series(x=np.array(x, dtype=float), y=np.array(y, dtype=float), error=spread, **said)


ERROR = np.full(EPSILONS.size, 4.0)
FRONTIER = plot(
    series("random selection, RDP", 70, SELECT, marks="dots", steps=True, error=ERROR),
    series("random selection, PLD", 75, SELECT, steps=True, error=ERROR),
    series("linear combination, PLD, by a premise that is assumed and not proved here", 90, COMBINE, dashed=True),
    points([0.5, 2, 5], [10, 40, 55], [3, 2, 1], name="a model", colour=MODELS, marks="diamonds", line=False),
    name="frontier",
    heading="A long heading that says in a whole sentence what was found, and for which of the models it was found",
    note="a smaller network than the paper’s: 26,000 parameters, 60,000 digits, full batch, three repetitions",
)
LOGARITHMIC = plot(
    *(
        replace(series(f"method {n}", 1, c), y=n * EPSILONS**-n, marks="squares")
        for n, c in enumerate(COLOURS.values(), 1)
    ),
    name="logarithmic",
    log_x=True,
    log_y=True,
)
HEATMAPS = Heatmaps(name="heat", heading="Three models", words="Colour is ε.", face=ordinary().faces[0], note="a note")
ODD = {
    "no series": plot(),
    "no points": plot(points([], []), points([1, 2], [1, 2])),
    "one point": plot(points([1], [2], [0.5])),
    "one point, logarithmic": plot(points([1], [2], [5]), log_x=True, log_y=True),
    "nothing finite": plot(points([np.nan, 1], [1, np.inf], [1, 1]), log_y=True),
    "gaps": plot(points([1, 2, 3, 4, 5], [1, np.nan, 3, np.inf, 5], [0.1, 0.1, np.inf, 0.1, np.nan])),
    "not positive": plot(points([-1, 0, 1, 2, 3], [1, 1, 0, -1, 5], [1] * 5, marks="dots"), log_x=True, log_y=True),
    "errors below zero": plot(points([1, 2, 3], [1, 2, 3], [5, 2, 0.1], steps=True), log_y=True),
    "marks without a line or a shape": plot(points([1, 2], [1, 1], [1, 1], line=False)),
    "no panels": replace(HEATMAPS, face=replace(HEATMAPS.face, panels=())),
}
NAMED = plot(
    points([1, 2], [3, 4], name=HOSTILE),
    points([1, 2], [2, 3], name="_hidden & _quiet"),
    name="named",
    heading=HOSTILE,
    words=HOSTILE,
    across=HOSTILE,
    up=HOSTILE,
    note=HOSTILE,
)
SEVERAL = ("no series", "nothing finite", "gaps", "not positive", "errors below zero")
DRAWINGS = [FRONTIER, LOGARITHMIC, HEATMAPS, NAMED]
TABLES = [
    Table("What was found", ("claim", "verdict"), [("averages are better", "agrees"), (HOSTILE, "in\nparts")]),
    Table("Settings", ("name", "value"), [("digest", "0123456789abcdef" * 8)]),
]


def page_of(*drawings: Drawing, tables: list[Table] | None = None) -> str:
    return plot_page("A title", "and more", ["A paragraph."], drawings, tables or [])


def pixels(content: bytes) -> Any:
    from PIL import Image

    with Image.open(io.BytesIO(content)) as image:
        return np.asarray(image.convert("RGB"), dtype=int)


def drawn_pixels(drawing: Plot, folder: Path) -> Any:
    (file,) = write_plot_pictures([drawing], folder)
    return pixels(file.read_bytes())


def of_colour(image: Any, colour: str, opacity: float = 1.0) -> int:
    """How many pixels have a colour, laid over white."""
    full = np.array([int(colour[place : place + 2], 16) for place in (1, 3, 5)])
    return int(np.sum(np.all(np.abs(image - (opacity * full + (1 - opacity) * 255)) <= 2, axis=-1)))


def test_every_drawing_is_written_as_the_same_picture_every_time(tmp_path: Path) -> None:
    written = write_plot_pictures(DRAWINGS, tmp_path)
    assert [file.name for file in written] == ["frontier.png", "logarithmic.png", "heat.png", "named.png"]
    assert sorted(tmp_path.iterdir()) == sorted(written)
    first = [file.read_bytes() for file in written]
    assert [file.read_bytes() for file in write_plot_pictures(DRAWINGS, tmp_path)] == first
    images = [pixels(content) for content in first]
    for image in images:
        height, width, _ = image.shape
        assert min(abs(width / DPI - inches) for inches in (COLUMN, PAGE)) < 0.01
        assert 2 * DPI < height < 9 * DPI
        assert np.unique(image[::3, ::3] @ (65536, 256, 1)).size > 20
    for colour in (SELECT, COMBINE, MODELS):
        assert of_colour(images[0], colour) > 200


def test_writing_plot_pictures_leaves_the_settings_of_matplotlib_as_they_were(tmp_path: Path) -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    write_plot_pictures([NAMED], tmp_path)
    assert dict(matplotlib.rcParams) == before


@pytest.mark.parametrize("drawing", DRAWINGS, ids=lambda drawing: drawing.name)
def test_no_text_of_a_figure_is_cut_off_or_covers_its_axes(drawing: Plot | Heatmaps) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.text import Text

    with settings():
        figure = plot_figure(drawing)
        FigureCanvasAgg(figure).draw()
        whole, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
        assert min(whole.x0, whole.y0, width - whole.x1, height - whole.y1) >= 0
        assert not any(text.get_parse_math() for text in figure.findobj(Text))
        plots = [axes.get_window_extent() for axes in figure.axes]
        above = [text.get_window_extent() for text in figure.texts if text.get_text()]
        below = [legend.get_window_extent() for legend in figure.legends]
        assert len(above) == bool(drawing.note) + 1
        assert all(box.y0 >= max(axes.y1 for axes in plots) for box in above)
        assert all(box.y1 <= min(axes.y0 for axes in plots) for box in below)
        assert len(below) == isinstance(drawing, Plot)
        assert all(legend.get_texts() for legend in figure.legends)
        if isinstance(drawing, Plot):
            shown = [text.get_text().replace("\n", " ") for text in figure.legends[0].get_texts()]
            assert shown == [each.name for each in drawing.series]


def test_an_error_is_a_band_on_a_line_and_a_bar_on_a_mark(tmp_path: Path) -> None:
    line = points([0, 1, 2], [1, 2, 1], [0.5, 0.5, 0.5])
    with_band, without = (drawn_pixels(plot(replace(line, error=e)), tmp_path) for e in (line.error, None))
    assert of_colour(with_band, COMBINE, 0.18) > 20_000
    assert of_colour(without, COMBINE, 0.18) < 100
    marks = replace(line, line=False, marks="diamonds")
    with_bars, without = (drawn_pixels(plot(replace(marks, error=e)), tmp_path) for e in (line.error, None))
    assert of_colour(with_bars, COMBINE, 0.18) < 100
    assert of_colour(with_bars, COMBINE) > of_colour(without, COMBINE) + 300


@pytest.mark.parametrize("name", ODD)
def test_drawings_without_points_or_with_odd_values_are_drawn(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_plotly(monkeypatch)
    (file,) = write_plot_pictures([ODD[name]], tmp_path)
    assert pixels(file.read_bytes()).std() > 5
    assert len(embedded(page_of(ODD[name]))["charts"]) == (name != "no panels")


def test_values_that_no_axis_shows_are_gaps_and_single_points_are_marked() -> None:
    (seen,) = view(ODD["gaps"]).series
    np.testing.assert_array_equal(seen.y, [1, np.nan, 3, np.nan, 5])
    assert seen.alone.tolist() == seen.marked.tolist() == [True, False, True, False, True]
    np.testing.assert_array_equal(seen.barred, [True, False, False, False, False])
    assert seen.stretches == []
    (seen,) = view(ODD["not positive"]).series
    np.testing.assert_array_equal(seen.x, [np.nan, np.nan, np.nan, np.nan, 3])


def test_a_band_is_drawn_where_errors_are_finite_and_ends_at_the_axis() -> None:
    drawn = plot(points(list(range(7)), [1, 2, 3, 4, 5, 6, 7], [1, 1, np.nan, 1, 1, 1, np.inf]))
    assert view(drawn).series[0].stretches == [slice(0, 2), slice(3, 6)]
    axes = view(ODD["errors below zero"]).up
    assert axes.log
    assert axes.low == pytest.approx(0.1, rel=0.3)  # not further than a decade below the lowest point
    assert axes.high > 6
    (seen,) = view(ODD["errors below zero"]).series
    np.testing.assert_allclose(seen.low, [axes.low, axes.low, 2.9])


def test_a_line_of_many_points_has_few_marks() -> None:
    line = series("line", 1, SELECT, marks="dots")
    many = replace(line, x=np.linspace(0, 1, 500), y=np.linspace(0, 1, 500))
    assert 10 <= view(plot(many)).series[0].marked.sum() <= 20
    assert view(plot(replace(many, marks="none"))).series[0].marked.sum() == 0
    assert view(plot(replace(many, line=False))).series[0].marked.all()


def test_logarithmic_axes_are_labelled_with_plain_numbers() -> None:
    across = view(LOGARITHMIC).across
    assert across.log
    assert list(ticks(across).values()) == ["0.2", "0.5", "1", "2", "5"]
    for low, high in ((1.1, 1.9), (90, 420), (1e-12, 3e11), (0.001, 30), (2, 2.001)):
        x = np.geomspace(low, high, 5)
        axis = view(plot(points(list(x), list(x)), log_x=True)).across
        assert axis.log
        assert 2 <= len(ticks(axis)) <= 9
        assert all(axis.low <= tick <= axis.high for tick in ticks(axis))
        for tick, written in ticks(axis).items():
            assert float(written.replace(",", "")) == pytest.approx(tick, rel=1e-9)
    assert not view(FRONTIER).across.log


def test_long_text_is_broken_into_lines_of_even_length() -> None:
    assert lines("one two three four five six seven", 30) == ["one two three four", "five six seven"]
    assert lines("one two", 30) == ["one two"]
    assert lines("", 10) == []
    assert "".join(lines("x" * 25, 10)) == "x" * 25
    assert lines("a\nb", 10) == ["a\\nb"]


def test_a_page_of_plots_shows_everything_and_loads_nothing_from_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    without_plotly(monkeypatch)
    text = page_of(*DRAWINGS, tables=TABLES)
    assert text == page_of(*DRAWINGS, tables=TABLES)
    found = Elements(text)
    assert len(found.scripts) == 3
    for tag, attributes in found.elements:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base", "b"), tag
        assert not {"src", "href", "srcset", "action", "data", "poster"} & set(attributes), tag
    report = resources.files("dpmerge.report").joinpath("page.html").read_text(encoding="utf-8")
    policy = re.search(r"<meta http-equiv=.Content-Security-Policy.*>", report)
    assert policy is not None
    assert policy.group() in text
    for drawing in DRAWINGS:
        assert all(words in found.text for words in (drawing.heading, drawing.words, drawing.note))
        if isinstance(drawing, Plot):
            assert all(each.name in found.text for each in drawing.series)
    for words in ("A title", "and more", "A paragraph.", "agrees", HOSTILE, "0123456789abcdef" * 8):
        assert words in found.text
    ids = [a["id"] for _, a in found.elements if "id" in a]
    assert len(ids) == len(set(ids))
    assert set(embedded(text)["charts"]) < set(ids)


def test_names_are_escaped_in_templates_of_plotly(monkeypatch: pytest.MonkeyPatch) -> None:
    without_plotly(monkeypatch)
    chart = embedded(page_of(NAMED))["charts"]["plot-0"]
    template = chart["data"][0]["hovertemplate"]
    assert re.findall(r"%\{[^}]*\}", template) == ["%{customdata[0]}", "%{customdata[1]}"]
    assert "&lt;b&gt;" in template
    assert "&lt;b&gt;" in chart["layout"]["xaxis"]["title"]["text"]


def test_the_traces_of_a_chart_hold_its_points_its_band_and_its_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    without_plotly(monkeypatch)
    text = page_of(plot(points([0, 1, 2, 3], [1, 2, np.nan, 4], [0.5, 1, 1, 2]), series("s", 99, SELECT, error=ERROR)))
    band, other, line, _ = embedded(text)["charts"]["plot-0"]["data"]
    assert (line["x"], line["y"]) == ([0, 1, None, 3], [1, 2, None, 4])
    assert line["customdata"][1] == ["1", "2 ± 1"]
    assert line["error_y"]["array"] == [None, None, None, 2]  # the point that stands alone
    assert (band["x"], band["y"]) == ([0, 1, 1, 0], [1.5, 3, 1, 0.5])
    assert band["hoverinfo"] == other["hoverinfo"] == "skip"
    buttons = [a["data-trace"] for tag, a in Elements(text).elements if tag == "button"]
    assert buttons == ["0 2", "1 3"]


@pytest.mark.parametrize("logarithmic", [False, True])
def test_names_of_points_in_a_picture_do_not_meet(logarithmic: bool) -> None:
    near = [1.0, 1.01, 1.02, 1.05, 1.05, 1.3, 1.9, 2.0, 2.0]
    named = points(
        near, [5, 5.1, 5, 5.2, 5.2, 9, 2, 2.1, 2.05], line=False, points=tuple(f"model-{n}@200" for n in range(9))
    )
    with settings():
        figure = plot_figure(replace(plot(named), log_x=logarithmic))
        figure.draw_without_rendering()
        boxes = [text.get_window_extent() for text in figure.axes[0].texts]
    assert len(boxes) >= 5
    assert not any(one.overlaps(other) for n, one in enumerate(boxes) for other in boxes[:n])
    assert all(figure.bbox.contains(*corner) for box in boxes for corner in (box.min, box.max))


def test_the_band_of_a_series_of_steps_has_the_same_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    without_plotly(monkeypatch)
    band = embedded(page_of(plot(points([0, 1, 3], [1, 2, 4], [1, 1, 1], steps=True))))["charts"]["plot-0"]["data"][0]
    upper = list(zip(band["x"], band["y"], strict=True))[:5]
    lower = list(zip(band["x"], band["y"], strict=True))[:4:-1]
    assert upper == [(0, 2), (1, 2), (1, 3), (3, 3), (3, 5)]
    assert lower == [(x, y - 2) for x, y in upper]


def test_rows_of_heatmaps_have_their_own_colour_scales(monkeypatch: pytest.MonkeyPatch) -> None:
    without_plotly(monkeypatch)
    text = page_of(HEATMAPS)
    charts = embedded(text)["charts"]
    assert list(charts) == [f"plot-0-{n}" for n in range(len(HEATMAPS.face.panels))]
    scales = {(c["data"][0]["zmin"], c["data"][0]["zmax"]) for c in charts.values()}
    assert len(scales) == len(heatmap_rows(HEATMAPS.face)) > 1
    assert all(trace["type"] == "scatter" for chart in charts.values() for trace in chart["data"][1:])
    assert "target" not in Elements(text).text


def test_drawings_of_one_name_uneven_data_or_no_folder_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_plotly(monkeypatch)
    with pytest.raises(InvalidInputError, match="plot twice"):
        write_plot_pictures([plot(), plot()], tmp_path)
    with pytest.raises(InvalidInputError, match="nowhere"):
        write_plot_pictures([plot()], tmp_path / "nowhere")
    with pytest.raises(InvalidInputError, match="nowhere"):
        write_plot_page("", "", [], [], [], tmp_path / "nowhere" / "page.html")
    with pytest.raises(InvalidInputError, match="of one length"):
        page_of(plot(points([1, 2], [1, 2, 3])))
    with pytest.raises(InvalidInputError, match="every column"):
        page_of(tables=[Table("t", ("a", "b"), [("1",)])])
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    odd = [replace(drawing, name=f"odd-{n}") for n, drawing in enumerate(map(ODD.__getitem__, SEVERAL))]
    place = tmp_path_factory.mktemp("page") / "plots.html"
    write_plot_page(HOSTILE, "and more", ["A paragraph.", HOSTILE], [*DRAWINGS, *odd], TABLES, place)
    return place


@pytest.fixture
def opened(browser: Any, file: Path, request: pytest.FixtureRequest) -> Iterator[Any]:
    """The page; nothing may go wrong on it, and nothing may be fetched."""
    context = browser.new_context(viewport=request.param)
    page = context.new_page()
    troubles: list[str] = []
    requests: list[str] = []
    page.on("console", lambda message: troubles.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("dialog", lambda dialog: (troubles.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    page.on("request", lambda made: requests.append(made.url))
    page.goto(file.as_uri())
    page.wait_for_selector("html[data-ready]", timeout=60_000)
    yield page
    context.close()
    assert troubles == []
    assert requests == [file.as_uri()]


@pytest.mark.parametrize("opened", [DESKTOP], indirect=True, ids=["desktop"])
def test_a_page_of_plots_is_drawn_and_answers_hover_and_clicks_in_a_browser(opened: Any) -> None:
    drawn = opened.evaluate(
        """() => Object.fromEntries([...document.querySelectorAll(".js-plotly-plot")].map((div) =>
          [div.id, div.querySelectorAll(".scatterlayer .trace, .hm image").length]))"""
    )
    charts = 3 + len(HEATMAPS.face.panels) + len(SEVERAL)
    assert len(drawn) == charts
    assert drawn["plot-0"] == len(FRONTIER.series) + 2
    assert all(drawn[f"plot-2-{n}"] for n in range(4))
    shown = opened.locator("main").inner_text()
    for drawing in (FRONTIER, LOGARITHMIC, NAMED):
        assert all(each.name in shown for each in drawing.series)
    assert HOSTILE in opened.locator("h1").inner_text()
    assert opened.evaluate("document.querySelectorAll('main script, main b').length") == 0
    axis = opened.evaluate("document.querySelector('#plot-3 .xtitle').textContent")
    assert axis.replace("\u200b", "").startswith("<b>%{x}</b> $y^2$")

    # Pointing at the second of three marks tells its name and both its numbers, with the error.
    opened.locator("#plot-0").scroll_into_view_if_needed()
    place = opened.evaluate(
        """() => { const div = document.getElementById("plot-0"), box = div.getBoundingClientRect();
          const { xaxis, yaxis } = div._fullLayout;
          return [box.x + xaxis._offset + xaxis.d2p(2), box.y + yaxis._offset + yaxis.d2p(40)]; }"""
    )
    opened.mouse.move(*place)
    opened.wait_for_selector("#plot-0 .hovertext")
    hover = opened.evaluate("document.querySelector('#plot-0 .hovertext').textContent")
    assert "a model" in hover
    assert "private): 2" in hover
    assert "40 ± 2" in hover

    button = opened.locator("[data-chart=plot-0] button").first
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    visible = "() => document.getElementById('plot-0').data.map((trace) => trace.visible !== false)"
    assert opened.evaluate(visible) == [False, True, False, True, True, True]  # its band, and its line
    button.click()
    assert all(opened.evaluate(visible))


@pytest.mark.parametrize("opened", [PHONE], indirect=True, ids=["phone"])
def test_a_page_of_plots_fits_the_width_of_a_phone(opened: Any) -> None:
    assert opened.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    wide = opened.evaluate(
        """() => [...document.querySelectorAll('main *:not(thead, thead *, .main-svg *)')]
          .filter((e) => e.getBoundingClientRect().right > innerWidth).map((e) => e.outerHTML.slice(0, 200))"""
    )
    assert wide == []
    cut = opened.evaluate(
        """() => [...document.querySelectorAll('.xtitle, .ytitle, .xtick text, .ytick text')].filter((text) => {
          const inside = text.getBoundingClientRect(), box = text.closest('.js-plotly-plot').getBoundingClientRect();
          return inside.left < box.left - 1 || inside.right > box.right + 1
            || inside.top < box.top - 1 || inside.bottom > box.bottom + 1; }).map((text) => text.textContent)"""
    )
    assert cut == []
