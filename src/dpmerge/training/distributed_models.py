"""Which of the ways in which Opacus trains on several processes are recorded, and the model within them.

Guarantees: the tensors of a run on several processes have the names they have on one.
Refuses, by name: layers clipped apart, torch's own DistributedDataParallel under ghost clipping,
secure_mode, whose streams nobody can compare.
"""

from __future__ import annotations

from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from opacus.optimizers import (
    DistributedDPOptimizer,
    DPOptimizer,
    SimpleDistributedPerLayerOptimizer,
)
from opacus.optimizers.ddpoptimizer_fast_gradient_clipping import DistributedDPOptimizerFastGradientClipping
from opacus.optimizers.optimizer_fast_gradient_clipping import DPOptimizerFastGradientClipping
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dpmerge.errors import RecordingError
from dpmerge.training.half_precision import HALF
from dpmerge.training.sharded_models import SHARDED, require_shards

DISTRIBUTED = (DistributedDPOptimizer, DistributedDPOptimizerFastGradientClipping)
"""Optimizers for several processes that are recorded."""
_WRAPPED = (DifferentiallyPrivateDistributedDataParallel, DistributedDataParallel)


def require_recordable(optimizer: DPOptimizer) -> None:
    """Refuse the optimizers for several processes whose sums, or noise, cannot be seen as they are made."""
    if isinstance(optimizer, SimpleDistributedPerLayerOptimizer):
        raise RecordingError(
            "optimizer: a SimpleDistributedPerLayerOptimizer, whose layers are clipped and summed over the ranks one "
            'by one in backward(); use clipping="flat" with DifferentiallyPrivateDistributedDataParallel'
        )


def plain_module(module: nn.Module, optimizer: DPOptimizer, *, several: bool) -> nn.Module:
    """The model within the wrapper of a distributed one; what is recorded has its names."""
    if not several:
        return module
    if optimizer.secure_mode:
        raise RecordingError(
            "optimizer: secure_mode on several processes; that their streams differ cannot be seen of its generators, "
            "so leave it out, and record() draws each stream from the operating system"
        )
    if any(parameter.dtype in HALF for parameter in optimizer.params):
        raise RecordingError(
            "model: trained parameters in half precision on several processes, whose gradients would be rounded before "
            "they are summed; train float32 parameters (autocast, and a frozen half-precision base, are fine)"
        )
    if type(optimizer) in SHARDED:
        require_shards(module, optimizer)
        return module
    if isinstance(module, DistributedDataParallel) and isinstance(optimizer, DPOptimizerFastGradientClipping):
        raise RecordingError(
            "model: ghost clipping in torch's DistributedDataParallel, whose backward() mixes the ranks' gradients "
            "before they are measured; use Opacus' DifferentiallyPrivateDistributedDataParallel"
        )
    if not isinstance(module, _WRAPPED):
        raise RecordingError(
            f"model: a {type(module).__name__} with an optimizer for several processes; pass what make_private "
            "returned for a model in Opacus' DifferentiallyPrivateDistributedDataParallel"
        )
    inner: nn.Module = module.module
    return inner
