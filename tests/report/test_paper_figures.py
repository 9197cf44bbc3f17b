"""What makes a figure fit for a paper: letters on panels, errors beside each other, jumps, lines under lines, PDF."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpmerge.planning.analysis import Analysis
from dpmerge.report.analysis_plots import analysis_plots
from dpmerge.report.error_bars import ASIDE
from dpmerge.report.jumps import with_jumps
from dpmerge.report.plot_axes import EDGE, STRONG
from dpmerge.report.plot_charts import plot_chart
from dpmerge.report.plot_pictures import plot_figure, settings, write_plot_pictures
from dpmerge.report.plot_view import view
from dpmerge.report.plots import COLOURS, Panels, Plot, Series
from report.analyses import ALL
from report.legible_text import complaints
from report.test_page import Elements, embedded, without_plotly
from report.test_plots import DRAWINGS, page_of, plot, points, series

SELECT, COMBINE = COLOURS["select"], COLOURS["combine"]
FEW = points([1, 2, 3], [1.0, 2.0, 3.0], [0.5, 0.5, 0.5])
MANY = series("many", 50, SELECT, error=np.full(30, 5.0))


def panels(*plots: Plot) -> Panels:
    named = tuple(replace(each, name=f"plot-{place}", caption=f"case {place}") for place, each in enumerate(plots))
    return Panels(name="panels", heading="Several at once", words="How they are read.", plots=named)


def texts(drawing: Any) -> str:
    from matplotlib.text import Text

    with settings():
        return " ".join(text.get_text().replace("\n", " ") for text in plot_figure(drawing).findobj(Text))


@pytest.mark.parametrize("analysis", ALL, ids=lambda analysis: analysis.__name__)
def test_every_text_of_the_pictures_of_an_analysis_can_be_read_in_print(analysis: Any) -> None:
    made: Analysis = analysis()
    for drawing in analysis_plots(made):
        assert complaints(drawing) == [], drawing.name


@pytest.mark.parametrize("drawing", DRAWINGS, ids=lambda drawing: drawing.name)
def test_every_text_of_a_drawing_can_be_read_in_print(drawing: Any) -> None:
    assert complaints(drawing) == []


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6])
def test_panels_have_letters_and_one_legend_where_their_series_are_the_same(count: int) -> None:
    same = panels(*[plot(FEW, MANY, note=f"note {n}") for n in range(count)])
    assert complaints(same) == []
    shown = texts(same)
    for place, letter in enumerate("abcdef"[:count]):
        assert f"({letter}) case {place}" in shown or count == 1
    assert ("(a)" in shown) == (count > 1)
    assert shown.count("many") == 1


def test_panels_whose_series_are_not_the_same_have_a_legend_each() -> None:
    other = panels(*(plot(*(replace(FEW, name=f"{kind} {n}") for n in range(4))) for kind in ("one", "another")))
    assert complaints(other) == []
    with settings():
        assert [len(axes.get_legend().get_texts()) for axes in plot_figure(other).axes] == [4, 4]  # type: ignore[union-attr]


def test_a_note_of_all_panels_stands_above_and_that_of_one_at_its_letter() -> None:
    assert panels(plot(FEW, note="of all"), plot(MANY, note="of all")).note == "of all"
    each = panels(plot(FEW, note="of one"), plot(MANY, note="of the other"))
    assert each.note == ""
    assert "(a) case 0 of one" in texts(each)


def test_panels_are_on_a_page_each_with_its_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    without_plotly(monkeypatch)
    text = page_of(panels(plot(FEW, note="of one"), plot(MANY, note="of the other")))
    assert set(embedded(text)["charts"]) == {"plot-0-0", "plot-0-1"}
    shown = Elements(text).text
    for words in ("Several at once", "How they are read.", "(a) case 0", "(b) case 1", "of one", "of the other"):
        assert words in shown


def test_errors_that_would_lie_on_one_another_are_bars_beside_each_other() -> None:
    one, other = view(plot(FEW, replace(FEW, y=FEW.y + 0.2, colour=SELECT))).series
    for seen in (one, other):
        assert seen.stretches == []
        assert seen.bars is not None
        assert seen.bars.x.size == 3
        np.testing.assert_allclose(seen.bars.high - seen.bars.low, 1.0)
    assert one.bars is not None
    assert other.bars is not None
    width = view(plot(FEW)).across
    np.testing.assert_allclose(other.bars.x - one.bars.x, ASIDE * (width.high - width.low))
    apart = view(plot(FEW, replace(FEW, y=FEW.y + 10))).series
    assert all(seen.bars is None and len(seen.stretches) == 1 for seen in apart)


def test_the_bars_of_lines_of_many_points_are_on_the_lines_and_apart() -> None:
    lines = [replace(MANY, y=MANY.y + shift, colour=colour) for shift, colour in ((0, SELECT), (1, COMBINE))]
    one, other = (seen.bars for seen in view(plot(*lines)).series)
    assert one is not None
    assert other is not None
    assert 3 <= one.x.size <= 5
    np.testing.assert_allclose(one.y, np.interp(one.x, MANY.x, MANY.y), rtol=1e-9)
    assert np.min(np.abs(np.subtract.outer(one.x, other.x))) > 0.05 * 7.8
    steps = [replace(line, steps=True) for line in lines]
    stepped = view(plot(*steps)).series[0].bars
    assert stepped is not None
    assert set(stepped.y) <= set(MANY.y)


def test_bars_on_a_page_belong_to_their_line() -> None:
    chart = plot_chart(plot(FEW, replace(FEW, y=FEW.y + 0.2, name="other")), "x")
    assert [each.traces for each in chart.legend] == [(0, 2), (1, 3)]
    assert chart.data[0]["error_y"]["array"] == pytest.approx([0.5] * 3)


def test_a_jump_is_a_gap_between_an_open_circle_and_a_point() -> None:
    x = np.linspace(0, 1, 21)
    across, up = with_jumps(x, np.where((x == 0) | (x == 1), 0.1, 1 + 0.01 * x))
    line = Series(name="jumps", x=across, y=up, colour=COMBINE)
    (seen,) = view(plot(line)).series
    assert np.flatnonzero(seen.open).tolist() == [2, 20]
    assert np.flatnonzero(seen.alone).tolist() == [0, 22]
    missing = replace(line, x=np.where(np.isnan(across), 0.5, across))  # a value that is not known is no jump
    assert not view(plot(missing)).series[0].open.any()
    symbols = plot_chart(plot(line), "x").data[0]["marker"]["symbol"]
    assert [place for place, symbol in enumerate(symbols) if symbol == "circle-open"] == [2, 20]


def test_a_solid_line_is_wider_where_another_colour_hides_it_and_nowhere_else() -> None:
    under, over = replace(MANY, error=None), replace(MANY, error=None, colour=COMBINE, name="over")
    half = replace(over, y=np.where(over.x < 2, over.y, over.y - 20))
    seen, other = view(plot(under, half)).series
    assert other.hidden is None
    assert seen.hidden is not None
    there = np.isfinite(seen.hidden.y)
    assert seen.hidden.x[there].max() < 2
    assert seen.hidden.x[there].min() < 0.3
    np.testing.assert_allclose(seen.hidden.y[there], np.interp(seen.hidden.x[there], MANY.x, MANY.y))
    for beside in (replace(over, dashed=True), replace(over, y=over.y + 5), replace(over, y=50 - over.y)):
        assert all(each.hidden is None for each in view(plot(under, beside)).series)
    with settings():
        drawn = plot_figure(plot(under, half)).axes[0].lines
    assert sorted(line.get_linewidth() for line in drawn) == pytest.approx([STRONG, STRONG, STRONG + EDGE])


def test_the_four_kinds_of_lines_have_four_patterns() -> None:
    kinds = [replace(FEW, error=None, dashed=a, dotted=b) for a in (False, True) for b in (False, True)]
    assert len({trace["line"]["dash"] for trace in plot_chart(plot(*kinds), "x").data}) == 4
    with settings():
        lines = plot_figure(plot(*kinds)).legends[0].get_lines()
    assert len({str(line._dash_pattern) for line in lines}) == 4  # type: ignore[attr-defined]


def test_a_figure_is_written_as_pdf_the_same_every_time(tmp_path: Path) -> None:
    (file,) = write_plot_pictures([plot(FEW)], tmp_path, kinds=("pdf",))
    first = file.read_bytes()
    assert first.startswith(b"%PDF")
    assert b"CreationDate" not in first
    (file,) = write_plot_pictures([plot(FEW)], tmp_path, kinds=("pdf",))
    assert file.read_bytes() == first
