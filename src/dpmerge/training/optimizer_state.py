"""The state of an optimizer, by its digest: momentum and moments are made of a run's noised gradients too.

Guarantees: two states with one digest have the same tensors, bit by bit, and the same numbers for each trained weight,
by its name; settings (rates, decay) are no part of it, for the record has them step by step.
Says None where a state holds something that is neither: such a run can be resumed with its optimizer reset only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

_SCALARS = (bool, int, float, str)


def state_digest(inner: torch.optim.Optimizer, names: Mapping[int, str]) -> str | None:
    """Of the state of an optimizer whose weights have these names, by their ids."""
    parts = []
    for parameter, state in inner.state.items():
        name = names.get(id(parameter))
        if name is None or not isinstance(state, Mapping):
            return None
        for path, value in _leaves(state, name):
            described = _described(value)
            if described is None:
                return None
            parts.append(f"{path}\0{described}")
    return hashlib.sha256("\n".join(sorted(parts)).encode()).hexdigest()


def fresh_digest(inner: torch.optim.Optimizer, names: Mapping[int, str]) -> str | None:
    """Of what the state is before the first step; Adagrad's is not empty."""
    try:
        fresh = type(inner)([dict(group) for group in inner.param_groups])  # type: ignore[call-arg]
    except Exception:  # a class of one's own that is made in another way
        return None
    return state_digest(fresh, names)


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}\0{type(key).__name__} {key}")
    elif isinstance(value, list | tuple):
        for place, inner in enumerate(value):
            yield from _leaves(inner, f"{path}\0{place}")
    elif value is not None:
        yield path, value


def _described(value: Any) -> str | None:
    if isinstance(value, Tensor):
        content = value.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8).numpy()
        shape = "x".join(map(str, value.shape))
        return f"{value.dtype} {shape} {hashlib.sha256(content.data).hexdigest()}"
    return f"{type(value).__name__} {value!r}" if type(value) in _SCALARS else None
