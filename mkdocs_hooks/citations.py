"""`theory 4.2` and `docs/concepts/adjacency.md`, as code and results cite them, become links on the site.

Docstrings and computed pages name a section of the theory by its number and a page by its file: both can be found in
the repository without the site.

Guarantees: the number is an anchor of a page in docs/theory/, and the page exists.
Refuses: what does not (tests/test_docs.py finds such a number earlier).
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
# In words of the page: tags are passed over, and so is what is in a link, in code or in a heading.
CITED = re.compile(
    r"<(?P<tag>a|code|pre|h\d|title|script)\b.*?</(?P=tag)>|<[^>]*>"
    r"|\btheory (?P<number>\d+(?:\.\d+)*)\b"
    r"|\bdocs/(?P<path>[\w/-]+\.md)\b",
    re.S,
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
        number, path = found["number"], found["path"]
        if number is None and path is None:
            return found[0]
        target = files.get_file_from_path(path or known.get(number, ""))
        if target is None:
            raise PluginError(f"{page.file.src_uri}: there is no {found[0]}")
        anchor = f"#{number}" if number else ""
        return f'<a href="{get_relative_url(target.url, page.url)}{anchor}">{found[0]}</a>'

    return CITED.sub(link, html)
