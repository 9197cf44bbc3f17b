"""The site in chromium, opened as files: no page scrolls sideways on a phone, nothing is fetched, the search finds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PHONE = {"width": 390, "height": 800}


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """On a phone; whatever is asked for must be a file of this machine, and nothing may go wrong."""
    context = browser.new_context(viewport=PHONE)
    opened = context.new_page()
    asked: list[str] = []
    troubles: list[str] = []
    opened.on("request", lambda request: asked.append(request.url))
    opened.on("pageerror", lambda error: troubles.append(str(error)))
    yield opened
    context.close()
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:", "about:"))] == []
    assert troubles == []


@pytest.mark.parametrize("name", ["reference/recording.html", "reference/api/accounting.html"])
def test_a_page_does_not_scroll_sideways_on_a_phone(page: Any, site: Path, name: str) -> None:
    page.goto((site / name).as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    wide = page.evaluate("Math.max(...[...document.querySelectorAll('article table')].map(each => each.scrollWidth))")
    assert name != "reference/recording.html" or wide > PHONE["width"], "a table wide enough to try it"


def test_the_search_finds_a_page_though_the_site_is_only_files(page: Any, site: Path) -> None:
    page.goto((site / "reference" / "index.html").as_uri())
    page.locator("label[for=__search]").first.click()
    page.locator("input.md-search__input").press_sequentially("CapExceededError")
    page.locator("a.md-search-result__link[href*='errors.html']").first.wait_for(timeout=15_000)
