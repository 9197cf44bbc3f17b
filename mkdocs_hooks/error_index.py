"""The index of errors and warnings, where a page has `<!-- errors -->` or `<!-- warnings -->`: from their docstrings.

Guarantees: every class of dpmerge.errors and every warning of the recorder is there, with what it means and what to do.
Refuses: one that does not say what to do.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError

SOURCE = Path(__file__).parents[1] / "src" / "dpmerge"
FILES = {"errors": SOURCE / "errors.py", "warnings": SOURCE / "training" / "user_warnings.py"}
MARKER = re.compile(r"^<!-- (?P<which>errors|warnings) -->$", re.M)
TO_DO = "What to do: "


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by mkdocs for each page, before it is rendered."""
    return with_index(markdown)


def with_index(markdown: str) -> str:
    """The page with each marker followed by its part of the index."""
    return MARKER.sub(lambda found: f"{found[0]}\n\n{index(FILES[found['which']])}", markdown)


def index(file: Path) -> str:
    """A section for each class: its name, what it is a kind of, what it means, what to do."""
    module = ast.parse(file.read_text(encoding="utf-8"))
    classes = {each.name: each for each in module.body if isinstance(each, ast.ClassDef)}
    return "\n\n".join(_section(each, classes) for each in classes.values())


def _section(each: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> str:
    meaning, what = _said(each)
    kinds = ", ".join(
        f"[`{name}`](#{name.lower()})" if name in classes else f"`{name}`" for name in map(ast.unparse, each.bases)
    )
    return f"### `{each.name}`\n\n{meaning} A kind of {kinds}.\n\n**What to do:** {what}"


def _said(each: ast.ClassDef) -> tuple[str, str]:
    paragraphs = [" ".join(part.split()) for part in (ast.get_docstring(each) or "").split("\n\n")]
    to_do = [part.removeprefix(TO_DO) for part in paragraphs if part.startswith(TO_DO)]
    if len(to_do) != 1:
        raise PluginError(f"{each.name}: its docstring needs one paragraph that begins {TO_DO!r}")
    return paragraphs[0], to_do[0][:1].upper() + to_do[0][1:]
