"""Pages as they are read: their commands and code run in order, in one folder, and what they print compared.

A block of `text` that has lines with `$` shows commands and what they print; there `…` by itself stands for any lines.
A block of `sh` shows commands alone, one a line. A comment `# exits with 1` says that one is refused. A block of
`python` is run as it stands, and where its last line is a comment, that is what it prints.
Commands of dpmerge run in this process; others (`cp`, `mv`, `printf`) in a shell.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from dpmerge.cli import app

Block = tuple[str, str]


def blocks(page: Path) -> list[Block]:
    """What is fenced, in order: language and content."""
    return re.findall(r"^```(\w+)\n(.*?)^```", page.read_text(), re.S | re.M)


def run_page(page: Path, names: dict[str, Any] | None = None, **words: str) -> list[Block]:
    """Run everything on a page in the current folder, with these names in its Python; returns what was run.

    `words` are those which a reader replaces in a command, such as RELEASE.
    """
    names = {"__name__": "page"} if names is None else names
    run = [(kind, content) for kind, content in blocks(page) if kind in {"sh", "text", "python"}]
    for kind, content in run:
        if kind == "python":
            run_python(content, names, page)
        elif kind == "sh":
            for command in re.sub(r"\\\n\s*", "", content).strip().splitlines():
                run_command(" ".join(words.get(word, word) for word in command.split(" ")))
        else:
            compare(content)
    return run


def run_python(code: str, names: dict[str, Any], page: Path) -> None:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, str(page), "exec"), names)  # noqa: S102
    last = code.strip().splitlines()[-1]
    if last.startswith("# "):
        assert printed.getvalue().strip() == last.removeprefix("# ")


def run_command(line: str) -> str:
    """What it prints, errors included; that it ends as the page says is asserted."""
    command, _, comment = line.partition(" #")
    said = re.search(r"exits with (\d+)", comment)
    wanted = int(said[1]) if said else 0
    if not command.startswith("dpmerge "):
        done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)  # noqa: S602
        assert done.returncode == wanted, done.stderr
        return done.stdout
    result = CliRunner().invoke(app, shlex.split(command)[1:], env={"COLUMNS": "80"})
    assert result.exit_code == wanted, f"{command}\n{result.output}"
    return result.output


def compare(shown: str) -> None:
    """Run what is behind each `$`, and compare what is below it."""
    for command, expected in sessions(shown):
        printed = [line.rstrip() for line in run_command(command).strip("\n").splitlines()]
        parts = [re.escape("\n".join(part)) for part in split(expected.strip("\n").splitlines())]
        pattern = r"(?:.*\n)*?".join(f"{part}\n" if part else "" for part in parts)
        assert re.fullmatch(pattern, "".join(f"{line}\n" for line in printed)), "\n".join([command, *printed])


def sessions(shown: str) -> Iterator[tuple[str, str]]:
    """Each command of a block, and what stands below it."""
    for part in re.split(r"^\$ ", shown, flags=re.M)[1:]:
        command, _, below = part.partition("\n")
        # A refusal is part of what is shown: the page need not say it twice.
        yield command + (" # exits with 1" if re.search(r"^(error: |NOT VERIFIED)", below, re.M) else ""), below


def split(lines: list[str]) -> list[list[str]]:
    """Around the lines that stand for others."""
    parts: list[list[str]] = [[]]
    for line in lines:
        if line == "…":
            parts.append([])
        else:
            parts[-1].append(line)
    return parts
