"""The page in a browser: drawn without an error and without the network, answering to the target, fitting a phone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpmerge.report.analysis_page import write_page
from report.analyses import HOSTILE, bare, hostile, losses, ordinary

DESKTOP, PHONE = {"width": 1200, "height": 800}, {"width": 390, "height": 844}
ANALYSES = {"ordinary": ordinary, "hostile": hostile, "bare": bare, "losses": losses}
DRAWN = """() => [...document.querySelectorAll(".js-plotly-plot")].map((div) => [
  div.id, div.querySelectorAll(".main-svg").length, div.querySelectorAll(".trace, .hm image, .contour").length])"""


@dataclass
class Opened:
    """A page, and what went wrong on it."""

    page: Any
    troubles: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def target(self, value: str) -> None:
        self.page.locator("#target").fill(value)

    @property
    def plan(self) -> str:
        return str(self.page.locator("#plan").inner_text())

    @property
    def message(self) -> str:
        return str(self.page.locator("#message").inner_text())

    def drawn(self) -> dict[str, Any]:
        """What the target moves in the figures."""
        script = """() => Object.fromEntries([...document.querySelectorAll(".js-plotly-plot")].map((div) => [div.id,
          div.id.startsWith("face-") ? [div._fullData[2].contours.start, JSON.stringify(div.data[1].z)]
          : [div.layout.shapes[0].x0, div.layout.shapes[0].y0, JSON.stringify(div.data.at(-1).x)]]))"""
        return dict(self.page.evaluate(script))


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    for name, analysis in ANALYSES.items():
        write_page(analysis(), folder / f"{name}.html")
    return {name: folder / f"{name}.html" for name in ANALYSES}


@pytest.fixture
def opened(browser: Any, pages: dict[str, Path], request: pytest.FixtureRequest) -> Iterator[Opened]:
    """The page named by the parameter; nothing may go wrong on it, and nothing may be fetched."""
    name, viewport = request.param
    context = browser.new_context(viewport=viewport)
    seen = Opened(context.new_page())
    seen.page.on("console", lambda message: seen.troubles.append(f"{message.type}: {message.text}"))
    seen.page.on("pageerror", lambda error: seen.troubles.append(str(error)))
    seen.page.on("dialog", lambda dialog: (seen.troubles.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    seen.page.on("request", lambda made: seen.requests.append(made.url))
    seen.page.goto(pages[name].as_uri())
    seen.page.wait_for_selector("html[data-ready]", timeout=60_000)
    yield seen
    context.close()
    assert seen.troubles == []
    assert seen.requests == [pages[name].as_uri()]


def on(*names: str, viewport: dict[str, int] = DESKTOP) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("opened", [(name, viewport) for name in names], indirect=True, ids=names)


@on(*ANALYSES)
def test_every_figure_of_an_analysis_is_drawn_in_a_browser(opened: Opened, request: pytest.FixtureRequest) -> None:
    name = request.node.callspec.id
    analysis = ANALYSES[name]()
    expected = {"frontier"}
    expected |= {f"face-{n}-{place}" for n, face in enumerate(analysis.faces) for place in range(len(face.panels))}
    if name == "hostile":
        expected.remove("face-0-1")  # all of that panel is infinite
    expected |= {f"{kind}-{n}" for n in range(len(analysis.edges)) for kind in ("edge", "theorems")}
    drawn = {name: (layers, traces) for name, layers, traces in opened.page.evaluate(DRAWN)}
    assert set(drawn) == expected
    assert all(layers > 0 for layers, _ in drawn.values())
    empty = {name for name, (_, traces) in drawn.items() if traces == 0}
    assert empty == set()
    lines = opened.page.evaluate("() => document.querySelectorAll('#frontier .scatterlayer .trace').length")
    assert lines >= sum(bool(np.any(np.isfinite(curve.utilities))) for curve in analysis.curves)


@on(*ANALYSES, viewport=PHONE)
def test_the_page_of_an_analysis_fits_the_width_of_a_phone(opened: Opened) -> None:
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    # Parts of a figure that its frame cuts off, and heads of tables that only a screen reader sees, do not count.
    wide = opened.page.evaluate(
        """() => [...document.querySelectorAll('main *:not(thead, thead *, .main-svg *)')]
          .filter((e) => e.getBoundingClientRect().right > innerWidth).map((e) => e.outerHTML.slice(0, 200))"""
    )
    assert wide == []


@on("ordinary")
def test_another_target_moves_every_figure_and_the_plan(opened: Opened) -> None:
    before, plan = opened.drawn(), opened.plan
    opened.target("0.75")
    after = opened.drawn()
    assert after["frontier"][0] == 0.75
    assert all(after[name] != before[name] for name in before)
    assert after["face-0-0"][0] == 0.75
    assert after["edge-0"][1] == 0.75
    assert opened.plan != plan
    assert "target ε = 0.7:" in opened.plan
    assert "a plan for a smaller target also meets a larger one" in opened.plan
    assert "87.5%: middle-s64@20" in opened.plan
    assert "0.6964" in opened.plan
    assert "random_selection" in opened.plan
    opened.target("50")
    assert "last_step" in opened.plan
    assert "0.75 × middle-s64@20" in opened.plan


@on("ordinary")
def test_the_veil_of_a_panel_covers_what_costs_more_than_the_target(opened: Opened) -> None:
    opened.target("0.7")
    for place, panel in enumerate(ordinary().faces[0].panels):
        veil, text = opened.page.evaluate(
            "(id) => { const [costs, veil] = document.getElementById(id).data; return [veil.z, costs.text]; }",
            f"face-0-{place}",
        )
        for i, (row, costs) in enumerate(zip(veil, panel.epsilons, strict=True)):
            assert row == [None if np.isnan(cost) else int(cost > 0.7) for cost in costs]
            assert len(text[i]) == len(costs) - i


@on("ordinary")
def test_the_box_shows_the_plan_of_the_command_it_prints(opened: Opened) -> None:
    for typed, target in (("0.75", 0.7), ("0.7", 0.7), ("50", 1.0), ("0.3155", 0.35)):
        opened.target(typed)
        plan = next(plan for plan in ordinary().recommendations if plan.target == target)
        assert f"dpmerge plan PORTFOLIO --epsilon {target!r} --delta 1e-05" in opened.plan
        assert all(recipe in opened.plan for _, recipe in plan.outcomes)


@on("ordinary", "losses")
def test_a_figure_is_seen_within_two_seconds(opened: Opened) -> None:
    painted = opened.page.evaluate("() => performance.getEntriesByName('first-contentful-paint')[0].startTime")
    assert painted < 2000
    assert opened.page.evaluate("() => performance.getEntriesByName('first figure')[0].startTime") < 2000


NO_LABELS_MEET = """() => [...document.querySelectorAll('.js-plotly-plot')].flatMap((div) => {
  const texts = [...div.querySelectorAll('.annotation-text, .xtick text, .ytick text, .xtitle, .ytitle')];
  const boxes = texts.map((text) => [text.textContent, text.getBoundingClientRect()]);
  return boxes.flatMap(([one, a], n) => boxes.slice(n + 1).filter(([, b]) =>
    a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1)
    .map(([other]) => `${div.id}: ${one} / ${other}`)); })"""


@on("ordinary", "losses")
def test_no_labels_of_a_figure_meet(opened: Opened) -> None:
    assert opened.page.evaluate(NO_LABELS_MEET) == []


@on("ordinary", "losses", viewport=PHONE)
def test_no_labels_of_a_figure_meet_on_a_phone(opened: Opened) -> None:
    assert opened.page.evaluate(NO_LABELS_MEET) == []


@on("ordinary")
def test_a_target_below_the_smallest_shows_no_plan_and_names_the_smallest(opened: Opened) -> None:
    opened.target("0.1")
    assert "No plan for ε = 0.1" in opened.plan
    assert "0.3155" in opened.plan
    opened.target("0.3155")  # what it names can be had
    assert "noisy-s96@20" in opened.plan


@on("ordinary")
def test_a_bad_target_shows_a_message_and_changes_no_figure(opened: Opened) -> None:
    opened.target("0.5")
    before, plan = opened.drawn(), opened.plan
    for bad in ("", "-1", "0"):
        opened.target(bad)
        assert "Enter a number above 0" in opened.message
        assert opened.page.locator("#target").get_attribute("aria-invalid") == "true"
        assert (opened.drawn(), opened.plan) == (before, plan)
    opened.target("")
    opened.page.locator("#target").press_sequentially("e+-")
    assert "Enter a number above 0" in opened.message
    assert (opened.drawn(), opened.plan) == (before, plan)
    opened.page.locator("#target").press("Enter")
    opened.target("0.8")
    assert "Enter" not in opened.message
    assert opened.page.locator("#target").get_attribute("aria-invalid") == "false"


@on("ordinary")
def test_clicking_a_legend_hides_and_shows_its_line(opened: Opened) -> None:
    button = opened.page.locator("[data-chart=frontier] button").first
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert opened.page.evaluate("document.getElementById('frontier').data[0].visible") is False
    button.click()
    assert opened.page.evaluate("document.getElementById('frontier').data[0].visible") is True


@on("hostile")
def test_html_in_names_is_shown_as_text_and_not_run(opened: Opened) -> None:
    assert opened.page.locator("h1").inner_text() == f"{HOSTILE[0]} & 'title'"
    opened.target("0.4")
    assert HOSTILE[1] in opened.plan
    assert opened.page.evaluate("document.querySelectorAll('main script, main img, main i').length") == 0
    axis = opened.page.evaluate(
        "[...document.querySelectorAll('#face-0-0 .annotation-text')].map((e) => e.textContent).join()"
    )
    assert "<b>&amp;" in axis


@on("losses")
def test_a_logarithmic_axis_marks_the_target_where_it_is(opened: Opened) -> None:
    opened.target("1")
    place = opened.page.evaluate(
        """() => { const div = document.getElementById("frontier");
          const box = div.querySelector(".shapelayer path").getBoundingClientRect();
          const axis = div._fullLayout.xaxis;
          return [box.x + box.width / 2 - div.getBoundingClientRect().x, axis._offset + axis.d2p(1)]; }"""
    )
    assert place[0] == pytest.approx(place[1], abs=2)


@on("ordinary")
def test_figures_shrink_to_the_width_of_paper_for_printing(opened: Opened) -> None:
    widths = "() => [...document.querySelectorAll('.js-plotly-plot .main-svg')].map((e) => e.getAttribute('width') | 0)"
    screen = opened.page.evaluate(widths)
    opened.page.evaluate(f"() => window.addEventListener('beforeprint', () => {{ window.onPaper = ({widths})(); }})")
    assert opened.page.pdf(format="A4").startswith(b"%PDF")
    assert max(opened.page.evaluate("window.onPaper")) <= 660
    opened.page.wait_for_timeout(300)
    assert opened.page.evaluate(widths) == screen
