"""Figures in letters; and what every rendering of a figure has to say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dpmerge.planning.analysis import BANNER, Analysis
from dpmerge.report.analysis_plots import analysis_plots
from dpmerge.report.plot_pictures import plot_figure, settings
from dpmerge.report.plot_text import ROWS, text_rows
from dpmerge.report.plots import Heatmaps, Plot
from report.analyses import hostile, losses, ordinary
from report.test_page import Elements, without_plotly
from report.test_plots import DRAWINGS, ODD, page_of, plot, points

PLOTS = {d.name: d for d in DRAWINGS if isinstance(d, Plot)} | {n: d for n, d in ODD.items() if isinstance(d, Plot)}


def cells(drawn: Plot, width: int = 38) -> list[str]:
    """What lies right of the y axis: 30 columns of it, unless another width is asked for."""
    return [row[8:].ljust(width - 8) for row in text_rows(drawn, width)][:ROWS]


def words(drawn: Plot) -> str:
    return " ".join(" ".join(text_rows(drawn, 60)).split())


@pytest.mark.parametrize("name", PLOTS)
@pytest.mark.parametrize("width", [28, 60, 120])
def test_every_plot_fits_and_names_its_series(name: str, width: int) -> None:
    rows = list(text_rows(PLOTS[name], width))
    assert max(map(len, rows)) <= width
    assert sum("│" in row or "┤" in row for row in rows) == ROWS
    said = "".join("".join(rows).split())
    for series in PLOTS[name].series:
        assert "".join(series.label.split()) in said


@pytest.mark.parametrize("analysis", [ordinary, hostile, losses])
def test_figures_of_an_analysis_say_in_letters_what_is_not_proved(analysis: Callable[[], Analysis]) -> None:
    for drawn in analysis_plots(analysis()):
        if isinstance(drawn, Plot):
            said = words(drawn)
            assert said.startswith(BANNER)
            assert said.count("not proved here") == sum(series.dashed for series in drawn.series)


def test_a_line_rises_from_corner_to_corner() -> None:
    rows = cells(plot(points([0, 1], [0, 1]), x_range=(0, 1)))
    places = [row.index("a") for row in rows if "a" in row]
    assert places == sorted(places, reverse=True)
    assert (places[0], places[-1]) == (29, 0)
    assert all(any(row[column] == "a" for row in rows) for column in range(30))


def test_a_gap_in_a_series_is_left_empty() -> None:
    rows = cells(plot(points([0, 1, 2, 3, 4], [1, 1, np.nan, 1, 1]), x_range=(0, 4)))
    (line,) = [row for row in rows if "a" in row]
    assert line.strip("a").strip() == ""
    assert line.count(" ") == 15 - 1


def test_a_series_of_steps_stays_level_until_its_next_point() -> None:
    rows = cells(plot(points([0, 1], [0, 1], steps=True), x_range=(0, 1)))
    drawn = [row for row in rows if "a" in row]
    assert drawn == [" " * 29 + "a", "a" * 29 + " "]


def test_where_series_overlap_marks_cover_lines_and_the_first_line_the_others() -> None:
    line = points([0, 4], [1, 1])
    marks = points([2], [1], name="marks", line=False, letter="◆")
    drawn = plot(line, replace(line, name="second"), marks, x_range=(0, 4))
    (seen,) = [row.strip() for row in cells(drawn) if row.strip()]
    assert set(seen) == {"a", "◆"}
    assert "a points b second ◆ marks" in words(drawn)


def test_points_outside_the_range_are_not_drawn() -> None:
    rows = cells(plot(points([0, 1, 9], [1, 1, 1], line=False), x_range=(0, 1)))
    assert sum(row.count("a") for row in rows) == 2


def shown_in_picture(drawn: Any) -> str:
    from matplotlib.text import Text

    with settings():
        return " ".join(text.get_text().replace("\n", " ") for text in plot_figure(drawn).findobj(Text))


def shown_on_page(drawn: Any) -> str:
    return Elements(page_of(drawn)).text


@pytest.mark.parametrize("show", [words, shown_in_picture, shown_on_page])
def test_each_rendering_bears_the_banner_and_says_what_is_not_proved(
    show: Callable[[Any], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    without_plotly(monkeypatch)
    assumed = plot(points([1, 2], [1, 2], name="the paper", dashed=True), points([1, 2], [2, 3], name="proved"))
    assert "the paper (not proved here)" in show(assumed)
    assert "proved (not" not in show(assumed)
    assert BANNER not in show(assumed)
    assert BANNER in show(replace(assumed, banner=BANNER))


@pytest.mark.parametrize("show", [shown_in_picture, shown_on_page])
def test_heatmaps_bear_the_banner_and_say_what_is_not_proved(
    show: Callable[[Any], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    without_plotly(monkeypatch)
    (heatmaps,) = [drawn for drawn in analysis_plots(hostile()) if isinstance(drawn, Heatmaps)]
    assert BANNER in show(heatmaps)
    assert "(not proved here)" in show(heatmaps)
    assert BANNER not in show(replace(heatmaps, banner=""))
