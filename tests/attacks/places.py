"""A small portfolio with a release of it, made once and copied for each attack; and the command line beside it."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from types import FrameType

from soak.kills import write_models
from typer.testing import CliRunner, Result

from dpmerge.cli import app
from dpmerge.releasing.ledger_location import LEDGER_NAME
from releasing.faults import charged

WEIGHTS = ("--epsilon", 50, "--delta", 1e-5, "--weights", "a@20=0.25,b@20=0.25,c@20=0.5")


def ran(*arguments: object) -> Result:
    """The command line, with a terminal of 80 columns."""
    return CliRunner().invoke(app, [*map(str, arguments)], env={"COLUMNS": "80", "DPMERGE_LEDGER": None})


@cache
def _template() -> Path:
    home = Path(mkdtemp(prefix="dpmerge-attacks-"))
    write_models(home / "portfolio", 200, tensors=2)
    assert ran("keygen", "-o", home / "key").exit_code == 0
    made = ran("merge", home / "portfolio", *WEIGHTS, "-o", home / "out", "--key", home / "key")
    assert made.exit_code == 0, made.output
    return home


def place(folder: Path, *, released: bool = True) -> Path:
    """A folder with `portfolio`, `key`, `key.pub` and, if it was released from, `out`."""
    shutil.copytree(_template(), folder, dirs_exist_ok=True)
    if not released:
        shutil.rmtree(folder / "out")
        for file in [folder / "portfolio" / LEDGER_NAME, *(folder / "portfolio").rglob(".*")]:
            file.unlink()
    return folder


def forget() -> None:
    """Remove what was made once."""
    if _template.cache_info().currsize:
        shutil.rmtree(_template())
        _template.cache_clear()


def charges(home: Path) -> int:
    """How many releases the ledger beside a portfolio has charged."""
    file = home / LEDGER_NAME
    return len(charged(home)) if file.exists() and file.stat().st_size else 0  # what is empty was never opened


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Fail what takes longer, wherever it waits."""

    def hangs(number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"it hangs: more than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, hangs)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def pipe(path: Path) -> None:
    """A named pipe in the place of a file: opened the usual way, it waits for a writer that never comes."""
    path.unlink(missing_ok=True)
    os.mkfifo(path)
