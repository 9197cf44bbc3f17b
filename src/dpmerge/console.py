"""A console on which text of strangers is text and nothing else.

Guarantees: of what is printed only the styles and line breaks that we put there reach the terminal; every other
character that cannot be seen (escape bytes, C1 controls, marks that turn text round) is shown by its escape. Text in
square brackets is no markup.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from typing import IO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from dpmerge.errors import printable


class PlainConsole(Console):
    """A console for tables and lines with names in them that somebody else chose."""

    def __init__(self, *, file: IO[str] | None = None, width: int | None = None) -> None:
        # In a notebook a console prints to the cell, whatever file it was given.
        super().__init__(
            file=file, width=width, markup=False, emoji=False, force_jupyter=None if file is None else False
        )

    def on_broken_pipe(self) -> None:
        """Left to itself a console would end the program with 1, which means something else here."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Every piece of text passes here, also the cells of tables, before it is folded into lines."""
        if isinstance(renderable, str):
            renderable = lines_of_text(renderable)
        elif isinstance(renderable, Text) and (shown := lines_of_text(renderable.plain)) != renderable.plain:
            renderable = Text(
                shown, renderable.style, justify=renderable.justify, overflow=renderable.overflow, end=renderable.end
            )
        return super().render(renderable, options)


def lines_of_text(text: str) -> str:
    """Lines of ours, each of them printable. A name with a line break in it has to be made `printable` before."""
    return "\n".join(map(printable, text.split("\n")))
