"""CONTRIBUTING.md, SECURITY.md and CHANGELOG.md as pages of the site, and links that fit both places.

In the repository pages link to each other as files: `../CONTRIBUTING.md` from docs/, `docs/…` from outside. The site
has what is in docs/ at its root, so both kinds are rewritten while it is built.

Guarantees: such a link leads to the page. A link to a file that the site does not have becomes its name in words.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PAGES = {"CONTRIBUTING.md": "contributing.md", "SECURITY.md": "security.md", "CHANGELOG.md": "changes.md"}
# Code is passed over: `table[row](value)` is no link.
LINK = re.compile(
    r"^```.*?^```|`[^`\n]*`|(?<!!)\[(?P<words>[^\]]*)\]\((?P<target>(?!\w+:)[^)#\s]+)(?P<anchor>#[^)\s]*)?\)",
    re.S | re.M,
)


def on_files(files: Files, config: MkDocsConfig, **_: Any) -> Files:
    """Called by mkdocs once it knows the files in docs/."""
    for source, place in PAGES.items():
        files.append(File.generated(config, place, content=(ROOT / source).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Called by mkdocs for each page, before it is rendered."""
    sources = {place: source for source, place in PAGES.items()}
    place = page.file.src_uri
    return rewritten(markdown, sources.get(place, f"docs/{place}"), place)


def rewritten(markdown: str, source: str, place: str) -> str:
    """The page `source` of the repository with its links as they must be at `place` on the site.

    >>> rewritten("[how](../CONTRIBUTING.md), [μ](concepts/glossary.md#μ)", "docs/architecture.md", "architecture.md")
    '[how](contributing.md), [μ](concepts/glossary.md#μ)'
    >>> rewritten("[glossary](docs/concepts/glossary.md), [mnist](examples/mnist)", "CHANGELOG.md", "changes.md")
    '[glossary](concepts/glossary.md), mnist'
    """

    def link(found: re.Match[str]) -> str:
        if found["target"] is None:
            return found[0]
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), found["target"]))
        on_site = PAGES.get(target, target.removeprefix("docs/") if target.startswith("docs/") else None)
        if on_site is None:
            return found["words"]
        near = posixpath.relpath(on_site, posixpath.dirname(place) or ".")
        return f"[{found['words']}]({near}{found['anchor'] or ''})"

    return LINK.sub(link, markdown)
