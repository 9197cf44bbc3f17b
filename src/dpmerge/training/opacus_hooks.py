"""Where the recorder hangs on to Opacus' optimizer and model while a run lasts.

Guarantees: whatever is wrapped keeps doing what it did, the accountant's own hook included, and is put back when the
stack is closed; the recorder looks next to the step itself, so that what other hooks do is seen. Sums over several
processes it makes in Opacus' place, of all tensors at once (rank_sums).
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import Any

from opacus.optimizers import DPOptimizer

from dpmerge.errors import RecordingError
from dpmerge.training.batches import Batches
from dpmerge.training.distributed_models import DISTRIBUTED
from dpmerge.training.ghost_clipping import check_ghost_losses
from dpmerge.training.half_precision import refuse_loss_scaling
from dpmerge.training.hooks import wrap_method
from dpmerge.training.sharded_models import SHARDED
from dpmerge.training.step_observer import StepObserver
from dpmerge.training.step_reader import StepReader


def observe_steps(attached: ExitStack, observer: StepObserver, optimizer: DPOptimizer, batches: Batches) -> None:
    """Tell the observer of everything the optimizer does for a step."""
    inner, accounted = optimizer.original_optimizer, optimizer.step_hook
    before = inner.register_step_pre_hook(observer.noting_refusals(observer.before_inner_step))
    after = inner.register_step_post_hook(observer.noting_refusals(observer.after_inner_step))
    attached.callback(before.remove)
    attached.callback(after.remove)
    before_step = observer.noting_refusals(observer.before_step)

    def step_hook(optim: DPOptimizer) -> None:
        # Next to the step itself, so that what other hooks do to gradients and weights is seen.
        inner._optimizer_step_pre_hooks.move_to_end(before.id)
        inner._optimizer_step_post_hooks.move_to_end(after.id, last=False)
        before_step(optim)
        if accounted is not None:
            accounted(optim)

    optimizer.attach_step_hook(step_hook)
    attached.callback(setattr, optimizer, "step_hook", accounted)
    _observe_noise(attached, observer, optimizer)
    refuse_loss_scaling(attached, optimizer, observer.noting_refusals)
    if type(optimizer) in DISTRIBUTED:
        _observe_sums(attached, observer, optimizer)
    signal = optimizer.signal_skip_step

    require_whole_batches = observer.noting_refusals(partial(_require_whole_batches, optimizer))

    def signal_and_note(do_skip: bool = True) -> None:
        require_whole_batches()
        batches.skip_signalled(do_skip)
        signal(do_skip)

    wrap_method(attached, optimizer, "signal_skip_step", signal_and_note)


def observe_clipping(
    attached: ExitStack, observer: StepObserver, optimizer: DPOptimizer, reader: StepReader, model: Any
) -> None:
    """Tell the observer of each physical batch that is clipped; with ghost clipping, by the model in backward()."""
    gather = "accumulate" if reader.ghost else "clip_and_accumulate"
    gradients = observer.gradients
    add = optimizer.accumulate if reader.ghost else gradients.clip_and_accumulate
    clipped = observer.noting_refusals(observer.clipped)

    def clip_and_note() -> None:
        gradients.widen()
        clipped()
        add()

    wrap_method(attached, optimizer, gather, clip_and_note)
    if reader.ghost:
        factors = model.get_clipping_coef

        def compute_and_note() -> Any:
            computed = factors()
            reader.factors_computed(len(computed))
            return computed

        wrap_method(attached, model, "get_clipping_coef", compute_and_note)
        observer.ghost_gradients = check_ghost_losses(attached, optimizer, observer.stated_loss, model)


def _require_whole_batches(optimizer: DPOptimizer) -> None:
    if type(optimizer) in SHARDED:
        raise RecordingError(
            "BatchMemoryManager: physical batches of a model in shards, of which every rank would have to take as many "
            "as the others, and does not; let every rank take its batch at once"
        )


def _observe_noise(attached: ExitStack, observer: StepObserver, optimizer: DPOptimizer) -> None:
    noised = observer.noting_refusals(observer.noised)

    def add_noise_and_note() -> None:
        observer.count.noising()
        noised(observer.gradients.add_noise())

    wrap_method(attached, optimizer, "add_noise", add_noise_and_note)


def _observe_sums(attached: ExitStack, observer: StepObserver, optimizer: DPOptimizer) -> None:
    """Of several processes: sum the gradients in Opacus' place, and see what each sends and what arrives."""
    wrap_method(attached, optimizer, "reduce_gradients", observer.noting_refusals(observer.sum_over_ranks))
