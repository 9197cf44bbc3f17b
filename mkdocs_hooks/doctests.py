"""Examples in docstrings as code: a doctest is fenced before it is rendered (an extension of griffe, not a hook).

Markdown would take `>>>` for a quotation of a quotation, and lists of names for links.
"""

from __future__ import annotations

from typing import Any

import griffe


class FencedDoctests(griffe.Extension):
    """Every docstring that is shown passes here."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(docstring: str) -> str:
    """The docstring with each block of `>>> …` and its output between fences.

    >>> fenced("Twice:\\n\\n>>> 2 * 2\\n4\\n\\nDone.").splitlines()
    ['Twice:', '', '```pycon', '>>> 2 * 2', '4', '```', '', 'Done.']
    """
    lines: list[str] = []
    inside: str | None = None  # how far the block is indented
    for line in docstring.splitlines():
        indent = line[: len(line) - len(line.lstrip())]
        if inside is None and line.lstrip().startswith(">>> "):
            inside = indent
            lines.append(f"{inside}```pycon")
        elif inside is not None and (not line.strip() or len(indent) < len(inside)):
            lines.append(f"{inside}```")
            inside = None
        lines.append(line)
    return "\n".join(lines if inside is None else [*lines, f"{inside}```"])
