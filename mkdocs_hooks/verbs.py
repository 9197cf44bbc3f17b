"""Usage and options of a verb, where its page has `<!-- usage: VERB -->`: taken from the command line itself.

Guarantees: every argument and option that `--help` shows is in the table, in its words; a page cannot fall behind.
Refuses: a marker that names no command.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import typer
from mkdocs.exceptions import PluginError
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

MARKER = re.compile(r"^<!-- usage: (?P<words>[a-z -]+) -->$", re.M)

TAKES = {"<float>": "NUMBER", "<int>": "NUMBER", "<path>": "PATH"}
"""Of an option that does not name what it takes; a word needs no name, for its help lists those accepted."""


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by mkdocs for each page, before it is rendered."""
    return with_usage(markdown)


def with_usage(markdown: str) -> str:
    """The page with each marker followed by what the command line says."""
    return MARKER.sub(lambda found: f"{found[0]}\n\n{usage(found['words'])}", markdown)


def usage(words: str) -> str:
    """How one calls it, and a table of what it takes.

    >>> print(usage("example").splitlines()[1])
    dpmerge example [OPTIONS] NAME
    """
    program, command = _command(words)
    context = typer.Context(command, info_name=program, color=False)
    called = " ".join([program, *(piece.strip("{}") for piece in command.collect_usage_pieces(context))])
    rows = [_row(each, context) for each in command.params if not getattr(each, "hidden", False)]
    return "\n".join(["```text", called, "```", "", "| option | |", "|---|---|", *rows])


def _command(words: str) -> tuple[str, TyperCommand]:
    """`ledger show` is of dpmerge; `reproduction` and `reproduction audit` are modules of the repository."""
    if words.startswith("reproduction"):
        from reproduction.__main__ import audit_app, experiments_app

        program = typer.main.get_command(audit_app if words == "reproduction audit" else experiments_app)
        assert isinstance(program, TyperCommand)
        return f"python -m {words}", program
    command: object = _application()
    for word in words.split():
        command = command.commands.get(word) if isinstance(command, TyperGroup) else None
    if not isinstance(command, TyperCommand):
        raise PluginError(f"<!-- usage: {words} -->: the command line has no such verb")
    return f"dpmerge {words}", command


@cache
def _application() -> object:
    from dpmerge.cli import app

    return typer.main.get_command(app)


def _row(parameter: object, context: typer.Context) -> str:
    assert isinstance(parameter, TyperOption | TyperArgument)
    if isinstance(parameter, TyperOption):
        names = ", ".join(f"`{name}`" for name in [*parameter.opts, *parameter.secondary_opts])
        takes = parameter.metavar or TAKES.get(parameter.display_type(context), "")
        shown = f"{names} `{takes}`" if takes and not parameter.is_flag else names
    else:
        shown = f"`{parameter.display_name_raw}`"
    notes = [
        " ".join((parameter.help or "").split()),
        f"Default: {_default(parameter.default)}." if _default(parameter.default) else "",
        "Required." if parameter.required and isinstance(parameter, TyperOption) else "",
        f"Also `{parameter.envvar}` in the environment." if parameter.envvar else "",
    ]
    cells = (shown, " ".join(filter(None, notes)))
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _default(value: object) -> str:
    """What holds if it is left out, where that is a value somebody might have given."""
    if value is None or callable(value) or isinstance(value, bool) or value in ((), [], ""):
        return ""
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"
