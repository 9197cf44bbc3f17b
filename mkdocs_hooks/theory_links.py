"""`theory 4.2`, as code and results cite it, becomes a link to that section wherever it is on the site.

Guarantees: the number is an anchor of a page in docs/theory/.
Refuses: a number that is not (strict builds fail; tests/test_docs.py finds it earlier).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page
from mkdocs.utils import get_relative_url

THEORY = Path(__file__).parents[1] / "docs" / "theory"
ANCHOR = re.compile(r'^<a id="(\d+(?:\.\d+)*)"></a>$', re.M)
# Words of the page, not of a tag, a link, code or a heading.
CITED = re.compile(
    r"<(?P<tag>a|code|pre|h\d|title|script)\b.*?</(?P=tag)>|<[^>]*>|\btheory (?P<number>\d+(?:\.\d+)*)\b", re.S
)


def sections() -> dict[str, str]:
    """Number → the page it is on, as docs/ has it."""
    return {
        number: f"theory/{page.name}"
        for page in sorted(THEORY.glob("*.md"))
        for number in ANCHOR.findall(page.read_text(encoding="utf-8"))
    }


def on_page_content(html: str, page: Page, files: Files, **_: Any) -> str:
    """Called by mkdocs for each page, once it is rendered."""
    known = sections()

    def link(found: re.Match[str]) -> str:
        number = found["number"]
        if number is None:
            return found[0]
        target = files.get_file_from_path(known.get(number, ""))
        if target is None:
            raise PluginError(f"{page.file.src_uri}: theory has no section {number}")
        return f'<a href="{get_relative_url(target.url, page.url)}#{number}">theory {number}</a>'

    return CITED.sub(link, html)
