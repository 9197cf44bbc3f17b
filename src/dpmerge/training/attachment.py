"""What the recorder hangs on to while a run lasts, and what must be true before it does.

Guarantees: a run is recorded from its first step, in a folder of its own; whatever is wrapped keeps doing what it did,
and is put back at the end, whatever happens.
Refuses: optimizers that have taken steps or hold gradients, folders that hold a record.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opacus.accountants.accountant import IAccountant
from opacus.optimizers import DPOptimizer

from dpmerge.errors import CannotRecord, InvalidInput
from dpmerge.portfolio.manifest import MANIFEST_NAME
from dpmerge.training.batches import Batches
from dpmerge.training.ghost import GhostGradients, watch_losses
from dpmerge.training.loss_watch import LossWatch
from dpmerge.training.steps import StepReader

if TYPE_CHECKING:
    from dpmerge.training.recorder import Recorder


def require_fresh(optimizer: DPOptimizer, folder: Path) -> None:
    """A record covers a run from its first step, in a folder of its own."""
    if not isinstance(optimizer, DPOptimizer):
        raise CannotRecord(f"optimizer: a {type(optimizer).__name__}; pass the one PrivacyEngine.make_private returned")
    if (folder / MANIFEST_NAME).exists() or any(folder.glob("*.safetensors")):
        accepted = f"a folder without a {MANIFEST_NAME} or checkpoints: a record is never overwritten"
        raise InvalidInput("directory", str(folder), accepted)
    accountant = _accountant(optimizer)
    if accountant is not None and accountant.history:
        taken = sum(steps for _, _, steps in accountant.history)
        raise CannotRecord(
            f"optimizer: its accountant has counted {taken} steps already; record a run from its first step on (to "
            "go on from a private checkpoint, make a new PrivacyEngine and name the parent in ancestry=)"
        )
    # Adagrad fills its state when it is made.
    if any(float(state.get("step", 1)) > 0 for state in optimizer.state.values()):
        raise CannotRecord("optimizer: it has taken steps already; record a run from its first step on")
    waiting = optimizer._step_skip_queue or optimizer._is_last_step_skipped
    if waiting or any(p.grad is not None or p.summed_grad is not None for p in optimizer.params):
        raise CannotRecord(
            "optimizer: it has gradients already; record a run from its first step on (after a warm-up on public data, "
            "set every parameter's .grad to None before make_private)"
        )


def _accountant(optimizer: DPOptimizer) -> IAccountant | None:
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


def attach(
    attached: ExitStack,
    recorder: Recorder,
    reader: StepReader,
    batches: Batches,
    optimizer: DPOptimizer,
    model: Any,
    loss: LossWatch | None,
) -> GhostGradients | None:
    """Wrap what the optimizer already does; everything is put back at the end, whatever happens."""
    accounted = optimizer.step_hook

    inner = optimizer.original_optimizer
    before = inner.register_step_pre_hook(noting(recorder, recorder.before_inner_step))
    after = inner.register_step_post_hook(noting(recorder, recorder.after_inner_step))
    attached.callback(before.remove)
    attached.callback(after.remove)

    def step_hook(optim: DPOptimizer) -> None:
        # Next to the step itself, so that what other hooks do to gradients and weights is seen.
        inner._optimizer_step_pre_hooks.move_to_end(before.id)
        inner._optimizer_step_post_hooks.move_to_end(after.id, last=False)
        noting(recorder, recorder.before_step)(optim)
        if accounted is not None:
            accounted(optim)

    optimizer.attach_step_hook(step_hook)
    attached.callback(setattr, optimizer, "step_hook", accounted)

    gather = "accumulate" if reader.ghost else "clip_and_accumulate"
    add, signal = getattr(optimizer, gather), optimizer.signal_skip_step

    def clip_and_note() -> None:
        noting(recorder, recorder.clipped)()
        add()

    def signal_and_note(do_skip: bool = True) -> None:
        batches.signalled(do_skip)
        signal(do_skip)

    def add_noise_and_note() -> None:
        type(optimizer).add_noise(optimizer)
        noting(recorder, recorder.noised)()

    _wrap(attached, optimizer, gather, clip_and_note)
    _wrap(attached, optimizer, "add_noise", add_noise_and_note)
    _wrap(attached, optimizer, "signal_skip_step", signal_and_note)
    gradients = None
    if reader.ghost:
        factors = model.get_clipping_coef

        def compute_and_note() -> Any:
            computed = factors()
            reader.factors_computed(len(computed))
            return computed

        _wrap(attached, model, "get_clipping_coef", compute_and_note)
        gradients = watch_losses(attached, optimizer, loss)
    return gradients


def noting(recorder: Recorder, look: Callable[..., None]) -> Callable[..., None]:
    """The same, and the recorder knows when it refused something, also where the loop goes on in spite of it."""

    def looked(*args: Any) -> None:
        try:
            look(*args)
        except CannotRecord:
            recorder.refused()
            raise

    return looked


def _wrap(attached: ExitStack, owner: Any, name: str, wrapper: Any) -> None:
    """Put a wrapper before a method of one object; afterwards the object is as it was."""
    own = vars(owner).get(name)
    vars(owner)[name] = wrapper
    if own is None:
        attached.callback(vars(owner).pop, name)
    else:
        attached.callback(vars(owner).__setitem__, name, own)
