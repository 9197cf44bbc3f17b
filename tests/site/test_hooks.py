"""What the hooks make of a page, a notebook and a link; and what they refuse."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from mkdocs.exceptions import PluginError

from mkdocs_hooks.error_index import index, with_index
from mkdocs_hooks.notebooks import shown
from mkdocs_hooks.repository_pages import rewritten
from mkdocs_hooks.verbs import with_usage

ROOT = Path(__file__).parents[2]
PIXEL = base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()


def code(source: str, *outputs: dict[str, Any]) -> dict[str, Any]:
    return {"cell_type": "code", "execution_count": 1, "metadata": {}, "source": source, "outputs": list(outputs)}


NOTEBOOK = {
    "cells": [
        {"cell_type": "markdown", "metadata": {}, "source": ["# A tutorial\n", "\n", "See [home](../index.md).\n"]},
        code("print('ε < 1')", {"output_type": "stream", "name": "stdout", "text": ["\x1b[1mε\x1b[0m < 1\n"]}),
        code(
            "table",
            {"output_type": "execute_result", "data": {"text/html": ["<table>\n\n", "<tr><td>7</td></tr></table>"]}},
        ),
        code("plot", {"output_type": "display_data", "data": {"image/png": PIXEL, "text/plain": "<Figure>"}}),
        code("1 + 1", {"output_type": "execute_result", "data": {"text/plain": ["2"]}}),
        code(""),
    ],
    "metadata": {},
    "nbformat": 4,
    "nbformat_minor": 5,
}


def test_a_notebook_is_a_page_with_its_outputs(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    (docs / "tutorials").mkdir(parents=True)
    (docs / "index.md").write_text("# Home\n\nBegin with [the first](tutorials/first.ipynb#a-tutorial).\n")
    (docs / "tutorials" / "first.ipynb").write_text(json.dumps(NOTEBOOK))
    shutil.copytree(ROOT / "mkdocs_hooks", tmp_path / "mkdocs_hooks", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "mkdocs.yml").write_text(
        "site_name: one notebook\nuse_directory_urls: false\nhooks: [mkdocs_hooks/notebooks.py]\n"
        "nav: [index.md, tutorials/first.md]\nvalidation: {links: {anchors: warn}}\nplugins: []\n"
    )
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"]
    built = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert built.returncode == 0, built.stderr
    assert 'href="tutorials/first.html#a-tutorial"' in (tmp_path / "site" / "index.html").read_text()
    page = (tmp_path / "site" / "tutorials" / "first.html").read_text()
    assert 'href="../index.html"' in page
    assert '<div class="output"><pre><code>ε &lt; 1</code></pre></div>' in page
    assert '<div class="output"><table>\n\n<tr><td>7</td></tr></table></div>' in page
    assert f'src="data:image/png;base64,{PIXEL}"' in page
    assert '<div class="output"><pre><code>2</code></pre></div>' in page
    assert "data-output" not in page
    assert 'href="first.ipynb" download' in page
    assert (tmp_path / "site" / "tutorials" / "first.ipynb").exists()


@pytest.mark.parametrize(
    "written",
    [
        '<script src="https://cdn.example/plotly.js"></script>',
        "<img src=//example/x.png>",
        "<LINK HREF='http://a/b.css'>",
    ],
)
def test_an_output_that_loads_something_is_refused(written: str) -> None:
    with pytest.raises(PluginError, match="from a server"):
        shown({"output_type": "display_data", "data": {"text/html": written}})


def test_an_output_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(PluginError, match="application/pdf"):
        shown({"output_type": "display_data", "data": {"application/pdf": ""}})
    with pytest.raises(PluginError, match="error"):
        shown({"output_type": "error", "ename": "ValueError"})


def test_a_verb_that_does_not_exist_is_refused() -> None:
    with pytest.raises(PluginError, match="no such verb"):
        with_usage("# Page\n\n<!-- usage: ledger burn -->\n")
    with pytest.raises(PluginError, match="no such verb"):
        with_usage("<!-- usage: ledger -->")


def test_usage_has_names_help_defaults_and_what_is_required() -> None:
    page = with_usage("Before.\n\n<!-- usage: plan -->\n\nAfter.\n")
    assert "\n```text\ndpmerge plan [OPTIONS] PORTFOLIO\n```\n" in page
    assert "| `--epsilon` `NUMBER` | The ε to meet. Required. |" in page
    assert "| `--jobs` `NUMBER` |" in page
    assert "Default: `1`. |" in page
    assert r"| `--ledger` `FILE\|URL` |" in page
    assert "Also `DPMERGE_LEDGER` in the environment. |" in page
    assert page.endswith("\n\nAfter.\n")


def test_an_error_that_does_not_say_what_to_do_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "errors.py"
    file.write_text(
        'class OddError(ValueError):\n    """Something odd.\n\n    What to do: look\n    closer.\n    """\n'
    )
    assert index(file) == "### `OddError`\n\nSomething odd. A kind of `ValueError`.\n\n**What to do:** Look closer."
    file.write_text('class OddError(ValueError):\n    """Something odd."""\n')
    with pytest.raises(PluginError, match="OddError"):
        index(file)
    assert with_index("no marker") == "no marker"


def test_links_between_pages_and_the_repository_fit_the_site() -> None:
    assert rewritten("[a](../../SECURITY.md#x)", "docs/how-to/a.md", "how-to/a.md") == "[a](../security.md#x)"
    assert rewritten("[a](docs/theory/index.md#4.2)", "CHANGELOG.md", "changes.md") == "[a](theory/index.md#4.2)"
    assert rewritten("[a](../tests/test_docs.py)", "docs/a.md", "a.md") == "a"
    assert rewritten("[a](https://example.org/docs/a.md), [b](#b)", "docs/a.md", "a.md").count("](") == 2
    assert rewritten("![a](a.png)", "docs/x/a.md", "x/a.md") == "![a](a.png)"
    assert rewritten("[`a`](b.md), [c](../x)", "docs/a.md", "a.md") == "[`a`](b.md), c"
    code = "`table[row](value)`\n\n```python\ntable[row](value)\n```\n"
    assert rewritten(code, "docs/a.md", "a.md") == code
