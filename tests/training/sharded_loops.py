"""What the ranks of the tests do where each holds a shard of the model (FSDP2), run by `training.ranks.on_ranks`."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import torch
from opacus.utils.fsdp_utils import FSDP2Wrapper
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from dpmerge.training import sharded_processes
from training.loops import FEATURES, Private, data, mlp, private, recorded


def in_shards(model: nn.Module | None = None, **settings: Any) -> Private:
    """A private loop on all ranks, each with a shard of the model (FSDP2)."""
    torch.manual_seed(42)
    settings.setdefault("dataset", data(settings.pop("records", 48)))
    return private(FSDP2Wrapper(model or mlp()), mode="ghost_fsdp", **settings)


def gathered(made: Private) -> Tensor:
    """All trained weights of a model in shards, in one vector; asked for on all ranks."""
    return torch.cat([p.detach().full_tensor().flatten() for p in made.optimizer.params])


def trained_in_shards(
    _: int, folder: Path, *, steps: int = 8, said: Any = None, model: Any = None, **settings: Any
) -> dict[str, Any]:
    """The same as `trained`, of a model in shards."""
    made = in_shards(None if model is None else model(), **settings)
    seen: list[tuple[Tensor, Tensor, Tensor]] = []
    with recorded(made, folder, **(said or {})) as recorder:
        backward = made.backward

        def noted(inputs: Tensor, targets: Tensor) -> None:
            seen.append((gathered(made), inputs.clone(), targets.clone()))
            backward(inputs, targets)

        made.backward = noted  # type: ignore[method-assign]
        made.train(steps)
    return {
        "seen": [tuple(each.numpy() for each in step) for step in seen],
        "weights": gathered(made).numpy(),
        "manifest": recorder.manifest().model_dump(mode="json", exclude_none=True),
        "epsilon": recorder.epsilon(1e-5),
        "doubts": recorder.record_losses_doubts,
    }


def with_adam_and_a_frozen_layer(_: int, folder: Path) -> tuple[dict[str, Any], float]:
    """Evaluated between the steps, when some tensors stay whole."""
    model = nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.ReLU(), mlp())
    model[0].requires_grad_(False)
    made = in_shards(model, optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.01))
    inputs = data(5).tensors[0]
    with recorded(made, folder) as recorder:
        for _ in range(3):
            made.train(1)
            with torch.no_grad():
                made.model(inputs)
            recorder.checkpoint()
    named = {name: value.full_tensor().numpy() for name, value in made.plain.state_dict().items()}
    return named, recorder.manifest().mechanism.blocks[0].noise_multiplier  # type: ignore[union-attr]


def of_one_layer(_: int, folder: Path) -> list[int]:
    """The root itself has the parameters, which stay whole after a pass without gradients."""
    torch.manual_seed(42)
    model = nn.Linear(FEATURES, 4)
    fully_shard(model)
    made = private(model, mode="ghost_fsdp")
    inputs = data(5).tensors[0]
    with recorded(made, folder, checkpoint_every=2) as recorder:
        for _ in range(4):
            made.train(1)
            with torch.no_grad():
                made.model(inputs)
    return [saved.step for saved in recorder.manifest().checkpoints]


def held_at_once(_: int, folder: Path) -> list[int]:
    """How many whole tensors there were at each moment of a checkpoint, the one just gathered included."""
    made = in_shards()
    alive: list[weakref.ref[Tensor]] = []
    counts = []
    saving: Any = sharded_processes
    gather = saving.whole

    def counted(shard: Tensor) -> Tensor:
        tensor = gather(shard)
        alive.append(weakref.ref(tensor))
        counts.append(sum(each() is not None for each in alive))
        return tensor

    with recorded(made, folder) as recorder:
        made.train(2)
        saving.whole = counted
        recorder.checkpoint()
    return counts


def changed_at_the_end(rank: int, folder: Path) -> Any:
    """Something is loaded into the shards of one rank after the last step."""
    made = in_shards()
    with recorded(made, folder):
        made.train(3)
        left = gathered(made).numpy()
        if rank == 1:
            for parameter in made.optimizer.params:
                parameter._local_tensor.data.add_(0.01)  # type: ignore[attr-defined]
    return left


def broken_off_everywhere(_: int, folder: Path) -> None:
    """The same exception on all ranks, between two steps."""
    made = in_shards()
    with recorded(made, folder, checkpoint_every=2):
        made.train(3)
        raise ArithmeticError("enough")


# What is refused


def summed_losses(_: int, folder: Path) -> None:
    with recorded(in_shards(loss_reduction="sum"), folder):
        pass


def in_half_precision(_: int, folder: Path, policy: dict[str, Any]) -> None:
    torch.manual_seed(42)
    model = FSDP2Wrapper(mlp(), mp_policy=MixedPrecisionPolicy(**policy))
    made = private(model, mode="ghost_fsdp")
    with recorded(made, folder):
        made.train(1)


def with_a_whole_tensor(_: int, folder: Path) -> None:
    """FSDP leaves it alone: each rank would add a noise of its own to it."""
    torch.manual_seed(42)
    model = mlp()
    fully_shard(model, ignored_params={model[0].bias})
    with recorded(private(model, mode="ghost_fsdp"), folder):
        pass


def on_a_mesh_of_copies(_: int, folder: Path) -> None:
    """HSDP: several ranks hold the same rows."""
    torch.manual_seed(42)
    model = mlp()
    fully_shard(model, mesh=init_device_mesh("cpu", (2, 1), mesh_dim_names=("copies", "shards")))
    with recorded(private(model, mode="ghost_fsdp"), folder):
        pass


def with_tied_layers(_: int, folder: Path) -> None:
    """All in one piece: layers that are cut apart cannot be tied."""
    torch.manual_seed(42)
    model = nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, FEATURES), mlp())
    model[1].weight = model[0].weight
    fully_shard(model)
    made = private(model, mode="ghost_fsdp")
    with recorded(made, folder):
        made.train(1)


def in_physical_batches(_: int, folder: Path) -> None:
    made = in_shards()
    with recorded(made, folder):
        made.train(1, physical=4)


def resumed(_: int, folder: Path) -> None:
    with recorded(in_shards(), folder, resume=True):
        pass


def with_a_penalty(_: int, folder: Path, what: str) -> None:
    """A part of the loss that no layer sees: of the whole tensor while it is there, or of the shards."""
    made = in_shards()
    layer: Any = made.plain[0]  # type: ignore[index]
    if what == "whole":
        layer.register_forward_hook(lambda module, _, output: output + module.weight.square().sum(), prepend=True)
    else:

        def backward(inputs: Tensor, targets: Tensor) -> None:
            made.optimizer.zero_grad()
            loss = made.criterion(made.model(inputs), targets)
            (loss + layer.weight.square().sum().full_tensor()).backward()

        made.backward = backward  # type: ignore[method-assign]
    with recorded(made, folder):
        made.train(1)


def with_a_layer_in_evaluation_mode(_: int, folder: Path) -> None:
    """Opacus does not measure its gradients, and torch computes them."""
    made = in_shards()
    with recorded(made, folder):
        made.train(1)
        made.plain[0].eval()
        made.train(1)
