"""Deliberate faults: with a check taken out, the attack it stands against gets through, and its own test fails."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def must_notice(attack: Callable[[Path], object], folder: Path, owner: object, name: str, fault: Any) -> None:
    """The attack's test passes on the code as it is, and fails once `owner.name` is replaced by the fault.

    `attack` is the body of a test, which fails by an assertion or because nothing was raised; it gets an empty folder.
    """
    for each in ("sound", "faulty"):
        (folder / each).mkdir()
    attack(folder / "sound")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, fault)
        try:
            attack(folder / "faulty")
        except (AssertionError, pytest.fail.Exception):
            return
    pytest.fail(f"{name} was replaced by a fault, and the test of the attack still passes")
