"""What the ranks of the tests do: one function a loop, run in each process by `training.ranks.on_ranks`."""

from __future__ import annotations

import os
import runpy
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from opacus.utils.uniform_sampler import DistributedUniformWithReplacementSampler
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from training.loops import data, mlp, private, recorded
from training.ranks import shared

EXAMPLES = Path(__file__).parents[2] / "examples"


def trained(
    _: int, folder: Path, *, steps: int = 8, physical: int | None = None, said: Any = None, **settings: Any
) -> dict[str, Any]:
    """A recorded loop, and all that an oracle needs to do its steps again."""
    made = shared(**settings)
    seen: list[tuple[Tensor, Tensor, Tensor]] = []
    with recorded(made, folder, **(said or {})) as recorder:
        backward = made.backward

        def noted(inputs: Tensor, targets: Tensor) -> None:
            seen.append((made.weights, inputs.clone(), targets.clone()))
            backward(inputs, targets)

        made.backward = noted  # type: ignore[method-assign]
        made.train(steps, physical)
    return {
        "seen": [tuple(each.numpy() for each in step) for step in seen],
        "weights": made.weights.numpy(),
        "manifest": recorder.manifest().model_dump(mode="json", exclude_none=True),
        "epsilon": recorder.epsilon(1e-5),
        "doubts": recorder.record_losses_doubts,
        "class": type(made.loader.batch_sampler).__name__,
        "own_steps": made.engine.accountant.history,
    }


class Numbers(Dataset[Any]):
    """Records that are their own numbers."""

    def __init__(self, records: int) -> None:
        self._records = records

    def __len__(self) -> int:
        return self._records

    def __getitem__(self, place: int) -> Any:
        return torch.tensor([float(place)]), int(place) % 2


def drawn(
    _: int, folder: Path, *, records: int, batch_size: int, passes: int, epochs: bool = False
) -> list[list[list[int]]]:
    """The numbers of the records in each batch of each pass, of a recorded run."""
    made = shared(nn.Linear(1, 2), dataset=Numbers(records), batch_size=batch_size)
    batches: list[list[list[int]]] = []
    with recorded(made, folder):
        for epoch in range(passes):
            if epochs:
                made.loader.batch_sampler.set_epoch(epoch)
            batches.append([])
            for batch in made.loader:
                batches[-1].append([int(place) for place in batch[0].flatten()])
                made.step(batch)
    return batches


def drawn_by_opacus(rank: int, *, records: int, steps: int) -> tuple[list[list[int]], int]:
    """Positions within its share that Opacus' own sampler draws on a rank, after the usual seed."""
    torch.manual_seed(42)
    sampler = DistributedUniformWithReplacementSampler(total_size=records, sample_rate=0.1, shuffle=False, steps=steps)
    world = dist.get_world_size()
    batches = [[(int(place) - rank) // world for place in batch] for batch in sampler]
    return batches, len(batches)


def kept_by_hand(rank: int, folder: Path) -> tuple[int, list[int]]:
    """Checkpoints that were asked for in the loop, a figure of merit noted by rank 0 alone."""
    made = shared()
    with recorded(made, folder) as recorder:
        for step in range(1, 7):
            made.train(1)
            if step in (2, 5):
                recorder.checkpoint()
                recorder.checkpoint()
                if rank == 0:
                    recorder.metric("accuracy", 0.5, measured_on="public", data="test set")
    return recorder.steps, [saved.step for saved in recorder.manifest().checkpoints]


def one_after_the_other(_: int, folder: Path) -> list[int]:
    """Two records in one program, the second of a model that goes on training."""
    steps = []
    for run in ("first", "second"):
        made = shared()
        with recorded(made, folder / run, run=run) as recorder:
            made.train(4)
        steps.append(recorder.steps)
    return steps


def broken_off_everywhere(_: int, folder: Path) -> None:
    """The same exception on all ranks, between two steps."""
    made = shared()
    with recorded(made, folder, checkpoint_every=4):
        made.train(6)
        raise ArithmeticError("enough")


def example(rank: int, *args: Any) -> None:
    """The example script's own function, as `spawn` would call it."""
    runpy.run_path(str(EXAMPLES / "with_ddp.py"))["launch"](rank, *args)


def from_a_page(_: int, code: list[str], home: Path) -> dict[str, int]:
    """The blocks of a page, which has a network and a data set; how many steps each of its runs took."""
    os.chdir(home)
    torch.manual_seed(42)
    names: dict[str, Any] = {"network": mlp, "dataset": data()}
    steps = {}
    for block in code:
        exec(compile(block, "page", "exec"), names)  # noqa: S102
        steps[names["about"]["run"]] = names["recorder"].steps
    return steps


# What is refused at once


def per_layer(_: int, folder: Path) -> None:
    torch.manual_seed(42)
    made = private(DistributedDataParallel(mlp()), clip=[1.0] * 4)
    with recorded(made, folder):
        made.train(1)


def in_torchs_wrapper(_: int, folder: Path, mode: str) -> int:
    torch.manual_seed(42)
    made = private(DistributedDataParallel(mlp()), mode=mode)
    with recorded(made, folder) as recorder:
        made.train(6)
    return recorder.steps


def with_secure_mode(_: int, folder: Path) -> None:
    made = shared()
    made.optimizer.secure_mode = True
    with recorded(made, folder):
        made.train(1)


def unwrapped(_: int, folder: Path) -> None:
    made = shared()
    made.model = made.plain.module
    with recorded(made, folder):
        made.train(1)


def all_records_on_each_rank(_: int, folder: Path, batches: str) -> None:
    dataset = data()
    loader: DataLoader[Any] = DataLoader(dataset, batch_size=12)
    if batches == "distributed sampler":
        loader = DataLoader(dataset, batch_size=12, sampler=DistributedSampler(dataset))
    made = shared(loader=loader, batches="in order")
    with recorded(made, folder):
        made.train(1)
