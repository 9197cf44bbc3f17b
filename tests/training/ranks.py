"""Several processes for the tests: each runs one function, as a rank of a gloo group, and what it returned is read back.

They are forked off a server that has imported torch and Opacus once, so that starting one takes a few milliseconds.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel as DPDDP

from training.loops import Private, data, mlp, private

_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["torch._dynamo", "opacus", "dpmerge.training"])

TIMEOUT = 4
"""Seconds after which a rank stops waiting for another one."""
PATIENCE = 90
"""Seconds after which a test gives up on a rank."""


@dataclass(frozen=True)
class Outcome:
    """What a rank returned, or how it ended."""

    returned: Any = None
    error: str = ""  # its kind and its message
    seconds: float = 0.0
    died: bool = False


def on_ranks(world: int, function: Callable[..., Any], *args: Any, **options: Any) -> list[Outcome]:
    """Run `function(rank, *args, **options)` on each rank, and wait for all of them."""
    with tempfile.TemporaryDirectory() as place:
        called = [(Path(place), rank, world, function, args, options) for rank in range(world)]
        running = [_processes.Process(target=_run, args=each) for each in called]
        for process in running:
            process.start()
        until = time.monotonic() + PATIENCE
        for process in running:
            process.join(max(0.0, until - time.monotonic()))
        hanging = [rank for rank, process in enumerate(running) if process.is_alive()]
        for rank in hanging:
            running[rank].kill()
        assert not hanging, f"ranks {hanging} hang"
        return [_read(Path(place), rank) for rank in range(world)]


def all_returned(outcomes: list[Outcome]) -> list[Any]:
    """What every rank returned; none may have ended by an error."""
    assert [each.error for each in outcomes] == [""] * len(outcomes)
    return [each.returned for each in outcomes]


def _run(place: Path, rank: int, world: int, function: Callable[..., Any], args: Any, options: Any) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115
    dist.init_process_group(
        "gloo", init_method=f"file://{place}/store", rank=rank, world_size=world, timeout=timedelta(seconds=TIMEOUT)
    )
    begun = time.monotonic()
    try:
        outcome = Outcome(function(rank, *args, **options), seconds=time.monotonic() - begun)
    except BaseException as error:
        outcome = Outcome(error=f"{type(error).__name__}: {error}", seconds=time.monotonic() - begun)
    (place / f"rank-{rank}").write_bytes(pickle.dumps(outcome))


def _read(place: Path, rank: int) -> Outcome:
    file = place / f"rank-{rank}"
    return pickle.loads(file.read_bytes()) if file.exists() else Outcome(died=True)  # noqa: S301


def shared(model: torch.nn.Module | None = None, **settings: Any) -> Private:
    """A private loop on all ranks, after the same seed on each of them, as most scripts have it."""
    torch.manual_seed(42)
    settings.setdefault("dataset", data(settings.pop("records", 48)))
    return private(DPDDP(model or mlp()), **settings)
