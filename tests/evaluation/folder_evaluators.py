"""Evaluators of folders that processes other than the test's can import by name."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

import dpmerge as dpm
from merging.models import read_model

INITIALISED: list[int] = []


def load_data() -> None:
    INITIALISED.append(os.getpid())


@dpm.path_evaluator(initialise=load_data, identity="squares/1")
def squares(folder: Path) -> float:
    """Every stored byte counts, and so does the configuration; a second initialisation would show."""
    assert INITIALISED.count(os.getpid()) == 1
    stored = b"".join(content for _, _, content in read_model(folder).values())
    small = sum(len(file.read_bytes()) for file in folder.glob("*.json"))
    return float(np.sum(np.frombuffer(stored, np.uint8).astype(float) ** 2) / 1000 + small)


def _plain(folder: Path) -> float:
    return float(len(list(folder.iterdir())))


counted = dpm.path_evaluator(initialise=load_data)(_plain)
"""Not found by pickle under the function's name."""


@dpm.path_evaluator
def quits(folder: Path) -> float:
    raise SystemExit(f"gave up on {len(list(folder.iterdir()))} files")
