"""One workshop for all tests of the experiments: what one of them trained, the others find."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpmerge.experiments.workshop import Workshop
from experiments.tiny import TINY, TinyImages


@pytest.fixture(scope="session")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where `reproduce` writes; its runs are the workshop's."""
    return tmp_path_factory.mktemp("output")


@pytest.fixture(scope="session")
def workshop(output: Path) -> Workshop:
    runs = output / "reproduction" / "runs"
    runs.mkdir(parents=True)
    return Workshop(runs, TINY, TinyImages())
