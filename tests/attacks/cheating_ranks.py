"""Ranks of a run that do not do as the others do: one function a cheat, run in each process by `on_ranks`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from opacus.utils.uniform_sampler import UniformWithReplacementSampler
from torch import nn
from torch.utils.data import TensorDataset

from training.loops import Private, data, mlp, recorded
from training.ranks import shared

CHEAT = 5
"""The step before which a rank begins to cheat; checkpoints are kept after steps 2, 4, 6, …"""


def honest(_: Private, __: int) -> None:
    """Nobody cheats: what the attacks are compared with."""


def run(rank: int, folder: Path, cheat: str, who: tuple[int, ...] = (1,), **settings: Any) -> int:
    """Eight recorded steps; from the fifth on some ranks cheat."""
    made = shared(**settings)
    with recorded(made, folder, checkpoint_every=2, stopping="fixed") as recorder:
        made.train(CHEAT - 1)
        if rank in who:
            CHEATS[cheat](made, rank)
        made.train(8 - recorder.steps)
    return recorder.steps


# Disagreeing


def another_rate(made: Private, _: int) -> None:
    made.optimizer.param_groups[0]["lr"] = 0.2


def more_noise(made: Private, _: int) -> None:
    made.optimizer.noise_multiplier *= 2


def another_clip_norm(made: Private, _: int) -> None:
    made.optimizer.max_grad_norm = 0.5


def other_weights(made: Private, _: int) -> None:
    for parameter in made.optimizer.params:
        parameter.data.add_(0.01)


def other_records(made: Private, _: int) -> None:
    made.loader.batch_sampler.set_epoch(1)


def the_same_records(made: Private, _: int) -> None:
    made.loader.batch_sampler.rank = 0


def a_seeded_stream(made: Private, _: int) -> None:
    made.loader.batch_sampler.generator.manual_seed(42)


# Leaving, dying, skipping


def dies(_: Private, __: int) -> None:
    os._exit(1)


def leaves(_: Private, __: int) -> None:
    raise KeyError("a bug of its own")


def skips_a_step(made: Private, _: int) -> None:
    """As scripts do that leave out what is empty, or too large for the memory."""

    def train(*_: Any) -> None:
        for place, batch in enumerate(made.loader):
            if place:
                made.step(batch)

    made.train = train  # type: ignore[method-assign]


def stops_early(made: Private, _: int) -> None:
    made.train = lambda *_: None  # type: ignore[method-assign]


def without_the_gradients_of_others(made: Private, _: int) -> None:
    """Noise is drawn on rank 0 alone: what another rank has by itself has none."""

    def step() -> None:
        if made.optimizer.pre_step():
            made.optimizer.original_optimizer.step()

    made.optimizer.step = step


# Sending something else


def _around(made: Private, name: str, extra: Callable[[], None]) -> None:
    kept = getattr(made.optimizer, name)

    def changed() -> None:
        kept()
        extra()

    setattr(made.optimizer, name, changed)


def unclipped_sum(made: Private, _: int) -> None:
    def extra() -> None:
        for parameter in made.optimizer.params:
            parameter.summed_grad = parameter.summed_grad * 100

    _around(made, "clip_and_accumulate", extra)


def something_in_place_of_noise(made: Private, _: int) -> None:
    kind = type(made.optimizer)
    add_noise = kind.add_noise

    def changed(optimizer: Any) -> None:
        add_noise(optimizer)
        for parameter in optimizer.params:
            parameter.grad = parameter.grad + 0.01

    kind.add_noise = changed


def scaled_sum(made: Private, _: int) -> None:
    _around(made, "scale_grad", lambda: [p.grad.mul_(3) for p in made.optimizer.params] and None)


def no_noise_anywhere(made: Private, _: int) -> None:
    """Opacus asks this number whether to draw the noise."""
    made.optimizer.rank = 1


def noise_of_its_own(made: Private, _: int) -> None:
    made.optimizer.rank = 0


def another_divisor(made: Private, _: int) -> None:
    made.optimizer.world_size = 1


def sends_something_else(made: Private, _: int) -> None:
    """What goes over the wire is ten times what the rank has."""
    reduce = dist.all_reduce

    def changed(tensor: torch.Tensor, *args: Any, **options: Any) -> Any:
        tensor.mul_(10)
        return reduce(tensor, *args, **options)

    dist.all_reduce = changed
    torch.distributed.all_reduce = changed
    assert made.optimizer is not None


def adds_its_own_sum(made: Private, _: int) -> None:
    """What has arrived gets, without noise, the rank's own gradients on top."""
    reduce = dist.all_reduce

    def changed(tensor: torch.Tensor, *args: Any, **options: Any) -> Any:
        own = tensor.clone()
        done = reduce(tensor, *args, **options)
        tensor.add_(own)
        return done

    dist.all_reduce = changed
    assert made.optimizer is not None


def changes_what_arrived(made: Private, _: int) -> None:
    def hook(*_: Any) -> None:
        for parameter in made.optimizer.params:
            parameter.grad.add_(0.1)

    made.optimizer.original_optimizer.register_step_pre_hook(hook)


CHEATS = {
    name: cheat
    for name, cheat in list(globals().items())
    if callable(cheat) and getattr(cheat, "__module__", "") == __name__ and not name.startswith("_") and name != "run"
}


# From the start


def told_otherwise(rank: int, folder: Path, **of_rank_1: Any) -> None:
    """The record itself is begun with other arguments on rank 1."""
    made = shared()
    with recorded(made, folder, **(of_rank_1 if rank == 1 else {})):
        made.train(1)


def made_otherwise(rank: int, folder: Path, **of_rank_1: Any) -> None:
    made = shared(**(of_rank_1 if rank == 1 else {}))
    with recorded(made, folder):
        made.train(1)


def other_start(rank: int, folder: Path) -> None:
    """Opacus broadcasts the weights of rank 0; a rank may move them afterwards."""
    made = shared()
    if rank == 1:
        other_weights(made, rank)
    with recorded(made, folder):
        made.train(1)


def other_order(rank: int, folder: Path) -> None:
    """The same records, in another order: a share by number is then another one."""
    inputs, targets = data(48).tensors
    order = torch.arange(47, -1, -1) if rank == 1 else torch.arange(48)
    made = shared(dataset=TensorDataset(inputs[order], targets[order]))
    with recorded(made, folder):
        made.train(1)


def all_records(rank: int, folder: Path) -> None:
    """A sampler that draws from the whole data on one of the ranks."""
    made = shared()
    if rank == 1:
        sampler = UniformWithReplacementSampler(num_samples=48, sample_rate=0.25)
        object.__setattr__(made.loader, "batch_sampler", sampler)
    with recorded(made, folder):
        made.train(1)


def forked_streams(_: int, folder: Path) -> None:
    """Generators that were made before the processes parted: every rank has the same."""
    from dpmerge.training import recording_session  # noqa: PLC0415

    from_system = recording_session.run_generators

    def inherited(device: torch.device, _: Any, **options: Any) -> Any:
        return from_system(device, 5, **(options | {"rank": 0}))

    recording_session.run_generators = inherited  # type: ignore[assignment]
    made = shared()
    with recorded(made, folder):
        made.train(1)


def no_record(rank: int, folder: Path) -> None:
    """One rank trains without a recorder."""
    made = shared()
    if rank == 1:
        made.train(2)
        return
    with recorded(made, folder):
        made.train(2)


def checkpoint_on_one_rank(rank: int, folder: Path) -> None:
    made = shared()
    with recorded(made, folder, checkpoint_every=2) as recorder:
        made.train(3)
        if rank == 0:
            recorder.checkpoint()
        made.train(3)


def swallowed(rank: int, folder: Path) -> bool:
    """A loop that goes on whatever the recorder says."""
    made = shared()
    with recorded(made, folder, checkpoint_every=2) as recorder:
        made.train(4)
        for _ in range(3):
            if rank == 1:
                another_rate(made, rank)
            try:
                made.train(1)
            except Exception:  # noqa: S110
                pass
            made.optimizer.zero_grad()
    return recorder.manifest().finished


class Mixing(nn.Module):
    """Rows that depend on each other once somebody says so."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.mixing = mlp(), False

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.inner(inputs - inputs.mean(0, keepdim=True) if self.mixing and len(inputs) > 1 else inputs)


def mixes_records(rank: int, folder: Path) -> None:
    """On one rank the model mixes records, from the fifth step on."""
    model = Mixing()
    made = shared(model, batch_size=24)
    with recorded(made, folder, checkpoint_every=2):
        made.train(4)
        model.mixing = rank == 1
        for _ in range(6):
            made.train(4)


def unlike_losses(rank: int, folder: Path) -> None:
    """On one rank nobody can tell whether each record has a loss of its own."""
    made = shared()
    loss = nn.CrossEntropyLoss()
    if rank == 1:
        made.criterion = lambda output, targets: loss(output, targets) / 2
    with recorded(made, folder):
        made.train(4)
