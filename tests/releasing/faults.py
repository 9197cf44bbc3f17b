"""Faults by name: processes that kill themselves at an exact point of a release, disks and files that fail."""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from soak.kills import Child, Ended, Wanted, loaded
from typer.testing import CliRunner, Result

from dpmerge.cli import app
from dpmerge.ledger.charge import Charge
from dpmerge.ledger.ledger import Ledger
from dpmerge.merging import staging
from dpmerge.merging.staging import StagedFolder
from dpmerge.releasing.ledger_location import LEDGER_NAME
from dpmerge.releasing.recover import recover
from dpmerge.releasing.release import release

NOTE = "is charged; `dpmerge ledger recover` finishes it"


def die(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def before(owner: Any, name: str) -> Callable[[], None]:
    return lambda: setattr(owner, name, die)


def after(owner: Any, name: str) -> Callable[[], None]:
    def install() -> None:
        original = getattr(owner, name)

        def called(*given: Any, **named: Any) -> Any:
            result = original(*given, **named)
            die()
            return result

        setattr(owner, name, called)

    return install


POINTS: dict[str, Callable[[], None]] = {
    "charged": after(Ledger, "charge"),
    "merging": lambda: None,  # by its progress
    "certified": before(StagedFolder, "publish"),
    "published": before(Ledger, "complete"),
    "completed": after(Ledger, "complete"),
    "replaced": after(staging, "exchange"),  # what was there before is not yet removed
}
"""How far a release has come → what makes the process die there."""


def release_killed_at(point: str, home: Path, out: Path, wanted: Wanted, **how: Any) -> None:
    """Make a release in a child that kills itself at a point."""
    planned = wanted.plan(loaded(home))

    def partway(done: int, total: int) -> None:
        assert done < total, "the models are too small to be killed in between"
        die()

    def work() -> None:
        POINTS[point]()
        release(planned, out=out, final=wanted.final, progress=partway if point == "merging" else None, **how)

    ended = Child(work).ended()
    assert ended == Ended("killed"), ended.error


def recovery_killed_at(point: str, home: Path) -> None:
    """Recover in a child that kills itself at a point."""

    def work() -> None:
        POINTS[point]()
        with Ledger.open(home / LEDGER_NAME) as ledger:
            list(recover(ledger))

    ended = Child(work).ended()
    assert ended == Ended("killed"), ended.error


def failing_writes(after_bytes: int) -> Callable[..., int]:
    """A disk that is full after so many bytes."""
    write, lock, written = os.pwrite, threading.Lock(), [0]

    def pwrite(descriptor: int, content: Any, offset: int) -> int:
        with lock:
            written[0] += len(content)
            if written[0] > after_bytes:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, content, offset)

    return pwrite


def after_charging(fault: Callable[[], object]) -> Callable[..., Charge]:
    """`Ledger.charge`, after which something happens."""
    charge = Ledger.charge

    def then(*given: Any, **named: Any) -> Charge:
        result = charge(*given, **named)
        fault()
        return result

    return then


def pending(home: Path) -> list[Charge]:
    with Ledger.open(home / LEDGER_NAME, create=False) as ledger:
        assert ledger.verify().ok
        return ledger.pending()


def charged(home: Path) -> list[Charge]:
    """Every release in the ledger beside a portfolio, in their order; none where no ledger was ever made."""
    if not (home / LEDGER_NAME).exists():
        return []
    with Ledger.open(home / LEDGER_NAME, create=False) as ledger:
        assert ledger.verify().ok
        names = [entry.body["release"] for entry in ledger.entries() if entry.kind in ("release", "adopted")]
        found = [ledger.release(name) for name in names]
    return [each for each in found if each is not None]


def ran(*arguments: object) -> Result:
    """The command line."""
    return CliRunner().invoke(app, [*map(str, arguments)], env={"COLUMNS": "80"})


def recovered(home: Path) -> None:
    """`dpmerge ledger recover`, which must finish everything."""
    result = ran("ledger", "recover", home)
    assert result.exit_code == 0, result.output
    assert pending(home) == []
