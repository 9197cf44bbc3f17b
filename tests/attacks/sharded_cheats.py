"""Ranks of a model in shards that cheat: one function a cheat, run in each process by `on_ranks`."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.distributed.fsdp._fully_shard import _fsdp_collectives

from dpmerge.training import recording_session
from training.loops import Private, recorded
from training.sharded_loops import in_shards

CHEAT = 3
"""The step before which a rank begins to cheat; checkpoints are kept after steps 2, 4, …"""


def run(rank: int, folder: Path, cheat: str, who: tuple[int, ...] = (1,)) -> int:
    """Four recorded steps; from the third on some ranks cheat."""
    made = in_shards()
    with recorded(made, folder, checkpoint_every=2, stopping="fixed") as recorder:
        made.train(CHEAT - 1)
        if rank in who:
            CHEATS[cheat](made)
        made.train(4 - recorder.steps)
    return recorder.steps


def noise_for_more_ranks_from_the_start(_: int, folder: Path) -> None:
    made = in_shards()
    made.optimizer.world_size = 4
    with recorded(made, folder):
        made.train(1)


def dies(rank: int, folder: Path) -> None:
    made = in_shards()
    with recorded(made, folder, checkpoint_every=2):
        made.train(CHEAT - 1)
        if rank == 1:
            os._exit(1)
        made.train(2)


def the_same_noise(_: int, folder: Path) -> None:
    """The generators of noise of all ranks begin alike; those of the batches do not."""
    make = recording_session.run_generators

    def alike(device: torch.device, seed: int | None, *, rank: int = 0) -> Any:
        return replace(make(device, seed, rank=rank), noise=torch.Generator(device).manual_seed(42))

    recording_session.run_generators = alike
    with recorded(in_shards(), folder):
        pass


def honest(_: Private) -> None:
    """Nobody cheats: what the attacks are compared with."""


def without_noise(made: Private) -> None:
    kind: Any = type(made.optimizer)

    def nothing_added(optimizer: Any) -> None:
        for parameter in optimizer.params:
            parameter.grad = optimizer.grad_state[parameter]["summed_grad"].clone()

    kind.add_noise = nothing_added


def less_noise(made: Private) -> None:
    """As if the sum were divided by the number of ranks twice."""
    kind: Any = type(made.optimizer)
    add_noise = kind.add_noise

    def halved(optimizer: Any) -> None:
        optimizer.noise_multiplier /= 2
        add_noise(optimizer)
        optimizer.noise_multiplier *= 2

    kind.add_noise = halved


def noise_multiplier_of_zero(made: Private) -> None:
    made.optimizer.noise_multiplier = 0.0


def noise_for_more_ranks(made: Private) -> None:
    """Opacus divides the noise by this number."""
    made.optimizer.world_size = 4


def a_seeded_generator(made: Private) -> None:
    made.optimizer.generator.manual_seed(42)


def another_generator(made: Private) -> None:
    made.optimizer.generator = torch.Generator().manual_seed(42)


def other_shards(made: Private) -> None:
    with torch.no_grad():
        for parameter in made.optimizer.params:
            parameter._local_tensor.add_(0.01)  # type: ignore[attr-defined]


def an_undivided_sum(made: Private) -> None:
    """The sum in the place of the mean, to which Opacus adds the noise of a mean."""
    for layer in made.plain.modules():
        if hasattr(layer, "set_gradient_divide_factor"):
            layer.set_force_sum_reduction_for_comms(True)
            layer.set_gradient_divide_factor(1.0)


def _after(made: Private, name: str, extra: Callable[[], None]) -> None:
    kept = getattr(made, name)

    def changed(*args: Any) -> None:
        kept(*args)
        extra()

    setattr(made, name, changed)


def gradients_added_to(made: Private) -> None:
    """Between backward() and the step, past torch's count of writes."""

    def extra() -> None:
        for parameter in made.optimizer.params:
            parameter.grad._local_tensor.data.add_(1.0)  # type: ignore[union-attr]

    _after(made, "backward", extra)


def sends_more(_: Private) -> None:
    """Behind the recorder's back: what is sent is twice what this rank has."""
    collectives: Any = _fsdp_collectives
    copy_in = collectives.foreach_reduce_scatter_copy_in

    def doubled(gradients: Any, target: Any, world: int) -> None:
        copy_in(gradients, target, world)
        target.mul_(2)

    collectives.foreach_reduce_scatter_copy_in = doubled


def unclipped(made: Private) -> None:
    """Every record counts a hundredfold."""
    factors = made.model.get_clipping_coef
    made.model.get_clipping_coef = lambda: 100 * factors()


CHEATS = {
    name: cheat
    for name, cheat in list(globals().items())
    if callable(cheat)
    and getattr(cheat, "__module__", "") == __name__
    and not name.startswith("_")
    and name not in ("run", "the_same_noise", "noise_for_more_ranks_from_the_start", "dies")
}
