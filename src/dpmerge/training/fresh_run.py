"""What must be true before a run is recorded: it has not begun, and its folder is its own.

Refuses: optimizers that have taken steps or hold gradients, folders that hold a record, or the count of a lost one.
"""

from __future__ import annotations

import inspect
from functools import partial
from pathlib import Path

from opacus.accountants.accountant import IAccountant
from opacus.optimizers import DPOptimizer

from dpmerge.errors import InvalidInputError, RecordingError
from dpmerge.portfolio.manifest import MANIFEST_NAME
from dpmerge.training.step_count import COUNT_NAME


def require_fresh(optimizer: DPOptimizer, folder: Path) -> None:
    """A record covers a run from its first step, in a folder of its own."""
    _require_private(optimizer)
    kept = any(any(folder.glob(pattern)) for pattern in ("*.safetensors", "step-*/*.safetensors"))
    if kept or (folder / MANIFEST_NAME).exists():
        problem = f"directory: {folder} holds a {MANIFEST_NAME} or checkpoints, and a record is never overwritten"
        remedy = "name another folder, or say resume=True to go on with the run in it"
        raise InvalidInputError("directory", str(folder), remedy, problem=problem)
    if (folder / COUNT_NAME).exists():
        problem = f"directory: {folder} holds the {COUNT_NAME} of a run that was killed before its first checkpoint"
        remedy = "name another folder, or say resume=True, which counts the steps it took"
        raise InvalidInputError("directory", str(folder), remedy, problem=problem)
    require_unused(optimizer)


def require_unused(optimizer: DPOptimizer) -> None:
    """No step was taken with this optimizer, by anybody's count."""
    _require_private(optimizer)
    accountant = accountant_of(optimizer)
    if accountant is not None and accountant.history:
        taken = sum(steps for _, _, steps in accountant.history)
        raise RecordingError(
            f"optimizer: its accountant has counted {taken} steps already; record a run from its first step on (to "
            "go on from a private checkpoint, make a new PrivacyEngine and name the parent in ancestry=; to go on with "
            "a run that was recorded, say resume=True and name its folder)"
        )
    # Adagrad fills its state when it is made.
    if any(float(state.get("step", 1)) > 0 for state in optimizer.state.values()):
        raise RecordingError("optimizer: it has taken steps already; record a run from its first step on")
    require_no_gradients(optimizer)


def require_no_gradients(optimizer: DPOptimizer) -> None:
    """Nothing waits to be used in the first step that is recorded."""
    _require_private(optimizer)
    waiting = optimizer._step_skip_queue or optimizer._is_last_step_skipped
    if waiting or any(p.grad is not None or p.summed_grad is not None for p in optimizer.params):
        raise RecordingError(
            "optimizer: it has gradients already; record a run from its first step on (after a warm-up on public data, "
            "set every parameter's .grad to None before make_private)"
        )


def _require_private(optimizer: DPOptimizer) -> None:
    if not isinstance(optimizer, DPOptimizer):
        raise RecordingError(
            f"optimizer: a {type(optimizer).__name__}; pass the one PrivacyEngine.make_private returned"
        )


def accountant_of(optimizer: DPOptimizer) -> IAccountant | None:
    """Opacus' accountant behind the step hook, also if the hook is wrapped in functions of one's own."""
    waiting, seen = [optimizer.step_hook], set[int]()
    while waiting:
        found = waiting.pop()
        if isinstance(found, IAccountant):
            return found
        if id(found) in seen:
            continue
        seen.add(id(found))
        if inspect.ismethod(found):
            waiting += [found.__self__, found.__func__]
        elif isinstance(found, partial):
            waiting += [found.func, *found.args, *found.keywords.values()]
        elif inspect.isfunction(found):
            waiting += inspect.getclosurevars(found).nonlocals.values()
    return None
