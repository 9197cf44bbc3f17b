"""One store for all tests of the experiments: what one of them trained, the others find."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from reproduction.run_store import RunStore
from tiny_experiments import TINY, TinyImages


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    """Networks this small are faster without threads, and far faster where something else has a core."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where `reproduce` writes; its runs are the store's."""
    return tmp_path_factory.mktemp("output")


@pytest.fixture(scope="session")
def store(output: Path) -> RunStore:
    runs = output / "reproduction" / "runs"
    runs.mkdir(parents=True)
    return RunStore(runs, TINY, TinyImages())
