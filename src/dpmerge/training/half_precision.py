"""Where a loop computes in less than single precision: autocast, layers in bfloat16 or float16.

Guarantees: `computed_in_half` finds every such step of the way from tensors back to what they were computed of, for it
reads torch's own graph.
Refuses: GradScaler, which scales losses and leaves steps out by what it finds in gradients without noise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import wraps
from typing import Any

import torch
from opacus.optimizers import DPOptimizer
from torch import Tensor

from dpmerge.errors import RecordingError

HALF = frozenset({torch.bfloat16, torch.float16})


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Every operation in the precision of what it is given."""
    active = torch.is_autocast_enabled(device.type)
    return torch.autocast(device.type, enabled=False) if active else nullcontext()


def autocast_state(device: torch.device) -> dict[str, Any]:
    """How autocast is set now, as arguments that set it so again."""
    kind = device.type
    return {"device_type": kind, "dtype": torch.get_autocast_dtype(kind), "enabled": torch.is_autocast_enabled(kind)}


def graph_nodes(tensors: Iterable[Tensor]) -> Iterator[Any]:
    """All that tensors were computed by, each once."""
    seen, waiting = set[Any](), [tensor.grad_fn for tensor in tensors]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            waiting += [following for following, _ in node.next_functions]


def gradient_dtypes(node: Any) -> list[torch.dtype]:
    """In which precision gradients come to a node of a graph."""
    return [passed.dtype for passed in getattr(node, "_input_metadata", ())]


def computed_in_half(tensors: Iterable[Tensor]) -> bool:
    """Whether gradients of these tensors pass through numbers in half precision."""
    return any(dtype in HALF for node in graph_nodes(tensors) for dtype in gradient_dtypes(node))


def refuse_loss_scaling(
    attached: ExitStack, optimizer: DPOptimizer, noting_refusals: Callable[[Callable[..., None]], Callable[..., None]]
) -> None:
    """Until the stack is closed, refuse a GradScaler that is switched on and has to do with this optimizer."""
    trained = {id(parameter) for parameter in optimizer.params}

    @noting_refusals
    def require_other(scaler: Any, what: Any) -> None:
        if scaler.is_enabled() and (_is_ours(what, optimizer) or _depends_on(what, trained)):
            raise RecordingError(
                "GradScaler: it scales losses and leaves steps out by what it finds in gradients without noise, which "
                "tells; leave it out: record() clips in float32 and counts a record whose gradient overflows as zero, "
                "and in bfloat16 nothing overflows that would not in float32"
            )

    for name in ("scale", "unscale_", "step"):
        _check_first(attached, torch.amp.GradScaler, name, require_other)


def _check_first(attached: ExitStack, owner: Any, name: str, check: Callable[[Any, Any], None]) -> None:
    kept = getattr(owner, name)

    @wraps(kept)
    def checked(self: Any, what: Any, *args: Any, **kwargs: Any) -> Any:
        check(self, what)
        return kept(self, what, *args, **kwargs)

    setattr(owner, name, checked)
    attached.callback(setattr, owner, name, kept)


def _is_ours(what: Any, optimizer: DPOptimizer) -> bool:
    """The optimizer, the one within it, or a loss of ghost clipping for it."""
    return any(each is optimizer for each in (what, getattr(what, "optimizer", None))) or (
        what is optimizer.original_optimizer
    )


def _depends_on(what: Any, trained: set[int]) -> bool:
    """Whether losses are computed of trained parameters."""
    losses = [each for each in (what if isinstance(what, list | tuple) else [what]) if isinstance(each, Tensor)]
    return any(id(getattr(node, "variable", None)) in trained for node in graph_nodes(losses))
