"""Notebooks in docs/ as pages: what was written, the code, and what it printed, as they are stored in the file.

Nothing is run here: outputs are those that were committed, and tests run the notebooks. The notebook itself stays a
file beside the page, to be downloaded.

Guarantees: text, tables (text/html) and pictures (image/png) appear where they were printed; nothing is fetched.
Refuses: an output that loads something from a server, and one of a kind it does not know.
"""

from __future__ import annotations

import html
import json
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

SUFFIX = ".ipynb"
PLACE = re.compile(r'<div data-output="(?P<cell>\d+)-(?P<output>\d+)"></div>')
LOADED = re.compile(r"""<(?:script|img|iframe|link|source)\b[^>]*\b(?:src|href)\s*=\s*["']?\s*(?:https?:)?//""", re.I)
TO_NOTEBOOK = re.compile(r"(\]\((?!\w+:)[^)#\s]+)\.ipynb((?:#[^)\s]*)?\))")
ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


def on_files(files: Files, config: MkDocsConfig, **_: Any) -> Files:
    """Called by mkdocs once it knows the files in docs/: each notebook gets a page of its name."""
    for file in list(files):
        if file.src_uri.endswith(SUFFIX):
            page = File.generated(config, file.src_uri.removesuffix(SUFFIX) + ".md", content=markdown(_cells(file)))
            files.append(page)
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by mkdocs for each page, before it is rendered: who links to a notebook means its page."""
    return TO_NOTEBOOK.sub(r"\1.md\2", markdown)


def on_page_content(html: str, page: Page, files: Files, **_: Any) -> str:
    """Called by mkdocs for each page, once it is rendered: outputs are put in as they are."""
    notebook = files.get_file_from_path(posixpath.splitext(page.file.src_uri)[0] + SUFFIX)
    if notebook is None:
        return html
    cells = _cells(notebook)
    filled = PLACE.sub(lambda at: shown(cells[int(at["cell"])]["outputs"][int(at["output"])]), html)
    name = posixpath.basename(notebook.src_uri)
    return f'{filled}\n<p class="notebook-file"><a href="{name}" download>Download this notebook</a></p>'


def markdown(cells: list[dict[str, Any]]) -> str:
    """The page, with a place for each output.

    >>> print(markdown([{"cell_type": "code", "source": ["1 + 1"], "outputs": [{}]}]))
    ```python
    1 + 1
    ```
    <BLANKLINE>
    <div data-output="0-0"></div>
    """
    return "\n\n".join(_parts(cells))


def _parts(cells: list[dict[str, Any]]) -> Iterator[str]:
    for number, cell in enumerate(cells):
        source = _text(cell["source"]).strip("\n")
        if cell["cell_type"] == "markdown":
            yield source
        elif cell["cell_type"] == "code" and source:
            yield f"```python\n{source}\n```"
            yield from (f'<div data-output="{number}-{each}"></div>' for each in range(len(cell["outputs"])))


def shown(output: dict[str, Any]) -> str:
    """One output as HTML: the richest form that can be shown without a server.

    >>> shown({"output_type": "stream", "name": "stdout", "text": ["ε < 1\\n"]})
    '<div class="output"><pre><code>ε &lt; 1</code></pre></div>'
    """
    data = output.get("data", {})
    if "image/png" in data:
        inner = (
            f'<img alt="{html.escape(_text(data.get("text/plain", "")))}" src="data:image/png;base64,{_packed(data)}">'
        )
    elif "text/html" in data:
        inner = _text(data["text/html"])
        if LOADED.search(inner):
            raise PluginError("a notebook's output loads something from a server")
    elif "text/plain" in data or "text" in output:
        text = ESCAPES.sub("", _text(data.get("text/plain", output.get("text", ""))))
        inner = f"<pre><code>{html.escape(text.rstrip(), quote=False)}</code></pre>"
    else:
        raise PluginError(f"a notebook's output of kind {output.get('output_type')}: {', '.join(data)}")
    return f'<div class="output">{inner}</div>'


def _packed(data: dict[str, Any]) -> str:
    return re.sub(r"\s", "", _text(data["image/png"]))


def _text(lines: str | list[str]) -> str:
    """Notebooks keep text as lines or as a whole."""
    return lines if isinstance(lines, str) else "".join(lines)


def _cells(file: File) -> list[dict[str, Any]]:
    assert file.abs_src_path is not None
    cells: list[dict[str, Any]] = json.loads(Path(file.abs_src_path).read_text(encoding="utf-8"))["cells"]
    return cells
