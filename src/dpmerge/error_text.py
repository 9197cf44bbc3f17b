"""Values and texts of strangers in a message: short, on one line, every character to be seen."""

from __future__ import annotations


def value_shown(value: object) -> str:
    try:
        return shortened(repr(value), 80)
    except RecursionError:
        return "a value nested too deeply"


def shortened(text: str, limit: int = 200) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def printable(text: str) -> str:
    """Text of strangers as one line that shows every character it has.

    What comes from a file may hold anything: line breaks that begin a line of ours, bytes that a terminal obeys,
    characters that turn the text round or cannot be seen.

    >>> printable("a\\n✓ signature")
    'a\\\\n✓ signature'
    """
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
