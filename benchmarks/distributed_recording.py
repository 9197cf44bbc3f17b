"""What recording costs on several processes: the same DDP loop with and without the recorder, step by step in turns."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from rich.console import Console
from rich.table import Table
from torch import nn

from benchmarks.recording import BATCH, GOAL, MODELS, STEPS, TURNS, _Loop, _turn

PROCESSES = 2


def run(console: Console) -> dict[str, float]:
    """Print what was measured; return how fast a recorded loop is, of 1."""
    ratios: dict[str, float] = {}
    console.print(
        f"\n[bold]recording on {PROCESSES} processes[/]: {TURNS} turns of {STEPS} steps each way, {BATCH} records each"
    )
    table = Table("loop", "ms a step", "recorded", "overhead", "±")
    for name in ("CNN, hooks", "MLP, hooks"):
        turns = np.array(_measured(name))
        overheads = turns[:, 1] / turns[:, 0] - 1
        ratios[f"recorded on {PROCESSES} processes, {name}"] = float(1 / (1 + np.median(overheads)))
        table.add_row(
            name,
            f"{1e3 * np.median(turns[:, 0]):.2f}",
            f"{1e3 * np.median(turns[:, 1]):.2f}",
            f"{np.median(overheads):+.2%}",
            f"{overheads.std(ddof=1) / np.sqrt(TURNS):.2%}",
        )
    console.print(table)
    console.print(f"goal: below {GOAL:.0%} for the CNN; a step of the MLP is hardly more than its exchange")
    return ratios


def _measured(name: str) -> list[list[float]]:
    """Seconds a step on rank 0, of the loop by itself and of the recorded one, turn by turn."""
    with tempfile.TemporaryDirectory() as place:
        torch.multiprocessing.spawn(_rank, args=(Path(place), name), nprocs=PROCESSES)
        measured: list[list[float]] = json.loads((Path(place) / "turns.json").read_text())
        return measured


def _rank(rank: int, place: Path, name: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{place}/meeting", rank=rank, world_size=PROCESSES)
    make, shape, mode = MODELS[name]

    def shared() -> nn.Module:
        return DifferentiallyPrivateDistributedDataParallel(make())

    torch.manual_seed(0)  # the same records on both
    plain, watched = (_Loop(shared, shape, mode, processes=PROCESSES) for _ in range(2))
    with watched.recorded():
        loops = (plain.steps(), watched.steps())
        _turn(loops)
        turns = [_turn(loops) for _ in range(TURNS)]
    if rank == 0:
        (place / "turns.json").write_text(json.dumps(turns))
    dist.destroy_process_group()
