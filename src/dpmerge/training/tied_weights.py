"""Trained parameters that have several names, and parameters that share memory without being one.

Guarantees: names that are called tied are names of one Parameter, clipped, noised and moved once; all other trained
parameters have memory of their own.
Refuses: two Parameters over the same memory. Each is noised and moved by itself, so that the weights get the steps of
both, which no record describes; as a transposed or partial view they could not be called tied either. Under ghost
clipping, one Parameter in several layers: Opacus takes the gradient's norm from one of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from torch import Tensor, nn

from dpmerge.errors import RecordingError
from dpmerge.training.sharded_models import local


def tied_names(parameters: Mapping[str, Tensor]) -> list[list[str]]:
    """The names of each parameter that has several, in the order of the model."""
    names: dict[int, list[str]] = {}
    for name, parameter in parameters.items():
        names.setdefault(id(parameter), []).append(name)
    return [group for group in names.values() if len(group) > 1]


def require_own_memory(parameters: Mapping[str, Tensor]) -> None:
    """Refuse two parameters whose memory overlaps (or lies interleaved), by whatever view."""
    once = {id(parameter): (name, local(parameter.detach())) for name, parameter in parameters.items()}
    places = sorted(
        (str(parameter.device), *_extent(parameter), name) for name, parameter in once.values() if parameter.numel()
    )
    for (device, _, end, name), (other_device, start, _, other) in pairwise(places):
        # If no neighbours overlap, no two do.
        if device == other_device and start < end:
            raise RecordingError(
                f"model.{other}: shares memory with model.{name} and is another parameter, so that it moves with two "
                "steps and two noises; make it the same parameter, or compute it from the other in forward()"
            )


def _extent(parameter: Tensor) -> tuple[int, int]:
    """The addresses from its first value to the end of its last."""
    last = sum((size - 1) * stride for size, stride in zip(parameter.shape, parameter.stride(), strict=True))
    start = parameter.data_ptr()
    return start, start + (last + 1) * parameter.element_size()


def require_measured(model: Any, module: nn.Module) -> None:
    """Refuse, under ghost clipping, a parameter of several layers of which one is measured without its gradients.

    Opacus refuses it as well if such a layer is called after the others, and overwrites the norm if it is called first.
    """
    owners: dict[int, list[nn.Module]] = {}
    for layer in module.modules():
        for parameter in layer.parameters(recurse=False):
            owners.setdefault(id(parameter), []).append(layer)
    for name, parameter in module.named_parameters():
        layers = owners[id(parameter)]
        if parameter.requires_grad and len(layers) > 1 and any(type(layer) in model.NORM_SAMPLERS for layer in layers):
            raise RecordingError(
                f"model.{name}: a parameter of {len(layers)} layers, whose gradient ghost clipping measures in one of "
                'them alone, so that the rest is not clipped; use grad_sample_mode="hooks"'
            )
