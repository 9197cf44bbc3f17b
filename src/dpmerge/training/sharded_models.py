"""Models in shards (FSDP2): which of them are recorded, and their tensors, of which each process holds a part.

Guarantees: every trained tensor is cut along its first dimension over all processes, each row of it on one of them.
Refuses: tensors that are whole on every rank or kept by several of them (HSDP: each would have a noise of its own),
other ways of cutting them; parameters of several layers, of which Opacus adds up the norms as if they were two; sums of
losses, of which FSDP divides the gradients by the number of ranks and Opacus does not divide the noise.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from opacus.optimizers import DPOptimizer, FSDPOptimizerFastGradientClipping
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from dpmerge.errors import RecordingError

SHARDED = (FSDPOptimizerFastGradientClipping,)
"""Optimizers of models in shards that are recorded."""


def local(tensor: Tensor) -> Tensor:
    """What this process holds of a tensor: all of it, unless it is in shards."""
    if not isinstance(tensor, DTensor):
        return tensor
    with torch.no_grad():
        held: Tensor = tensor.to_local()
        return held


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor; if it is in shards, all processes must ask for it together."""
    if not isinstance(tensor, DTensor):
        return tensor
    with torch.no_grad():
        return tensor.full_tensor()


def like(held: Tensor, tensor: Tensor) -> Tensor:
    """What this process holds, as its shard of a tensor like this one."""
    if not isinstance(tensor, DTensor) or isinstance(held, DTensor):
        return held
    return DTensor.from_local(
        held.detach(), tensor.device_mesh, tensor.placements, shape=tensor.shape, stride=tensor.stride()
    )


def reshard(module: nn.Module) -> None:
    """After a pass without gradients some tensors are whole still: leave each process its shard."""
    if isinstance(module, FSDPModule):
        module.reshard()


def first_row(tensor: Tensor) -> int:
    """At which row of the tensor this process' shard begins."""
    assert isinstance(tensor, DTensor)
    _, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return int(offset[0])


def require_shards(module: nn.Module, optimizer: DPOptimizer) -> None:
    """Refuse a model whose tensors are not cut as the recorder expects it."""
    if not isinstance(module, FSDPModule):
        raise RecordingError(
            f"model: a {type(module).__name__} with an optimizer for shards; pass what make_private returned for a "
            "model in Opacus' FSDP2Wrapper"
        )
    if optimizer.loss_reduction != "mean":
        raise RecordingError(
            "loss_reduction: a sum of losses on a model in shards, of which FSDP divides the gradients by the number "
            'of ranks and Opacus does not divide the noise; use loss_reduction="mean"'
        )
    _require_untied(module)
    named = {id(parameter): name for name, parameter in module.named_parameters()}
    for parameter in optimizer.params:
        cut = isinstance(parameter, DTensor) and list(parameter.placements) == [Shard(0)]
        if not cut or parameter.device_mesh.size() != dist.get_world_size():
            raise RecordingError(
                f"model.{named.get(id(parameter), '?')}: not cut along its first dimension over all "
                f"{dist.get_world_size()} processes, so that several of them hold it, each with a noise of its own; "
                "use FSDP2Wrapper on one mesh of all processes, without ignored parameters"
            )


def _require_untied(module: nn.Module) -> None:
    """The gradient of a parameter of two layers may be as long as both of its parts together."""
    owner: dict[int, str] = {}
    for name, layer in module.named_modules():
        for key, parameter in layer.named_parameters(recurse=False, remove_duplicate=False):
            if parameter.requires_grad and id(parameter) in owner:
                raise RecordingError(
                    f"model.{name}.{key}: the same parameter as model.{owner[id(parameter)]}, whose gradient Opacus "
                    "measures in each layer apart, so that it may be longer than the clip norm; untie them, or use one "
                    'process with grad_sample_mode="hooks"'
                )
            owner[id(parameter)] = f"{name}.{key}"
