"""Recording with Hugging Face's Trainer: a callback, and a Trainer that leaves alone what `make_private` returned.

    trainer = PrivateTrainer(model=model, optimizers=(optimizer, None), train_dataloader=loader,
                             args=TrainingArguments("out", max_grad_norm=0),
                             callbacks=[Recorder(run="imdb-s32", dataset="imdb", adjacency="replace_one",
                                                 directory="models/imdb-s32")])
    trainer.train()

Guarantees: the run is recorded as `record` would record a loop; with PrivateTrainer each record has a loss of its own,
the loader is the private one, and an exception closes the record as unfinished.
Refuses, before the first step and by the argument's name: accumulated batches, a second clipping, a GradScaler, several
devices, a loader or an optimizer that accelerate or Trainer made, weights that are swapped at the end.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from opacus.optimizers import DPOptimizer
from torch import Tensor
from torch.utils.data import DataLoader

from dpmerge.errors import RecordingError
from dpmerge.extras import needs_extra
from dpmerge.training.callback_run import CallbackRun, private_optimizer
from dpmerge.training.physical_batches import PhysicalBatches
from dpmerge.training.recorder import Recorder as RunRecorder
from dpmerge.training.task_losses import TaskLoss

with needs_extra("huggingface", by="dpmerge.training.transformers"):
    from accelerate.optimizer import AcceleratedOptimizer
    from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

_CURE = "say optimizers=(optimizer, None), with the one that make_private returned"


class TransformersRecorder(TrainerCallback):
    """Records the run that `trainer.train()` trains.

    Args:
        run: the name of the run.
        dataset: the name of the data.
        adjacency: what a neighbouring data set is.
        directory: a folder for the checkpoints and the manifest.
        options: every other argument of `dpmerge.training.start`. Model, optimizer and loader are found in the trainer;
            say `model=` if `make_private` did not wrap it (`wrap_model=False`).
    """

    def __init__(self, *, run: str, dataset: str, adjacency: str, directory: str | Path, **options: Any) -> None:
        self._run = CallbackRun(
            {"run": run, "dataset": dataset, "adjacency": adjacency, "directory": directory, **options}
        )

    @property
    def recorder(self) -> RunRecorder:
        """The run so far: `epsilon`, `checkpoint`, `metric`, `manifest`."""
        return self._run.recorder

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        """Everything is prepared, and no batch has been drawn."""
        del control
        _require_recordable(args)
        if state.global_step and not self._run.resumes:
            raise RecordingError(
                f"train(resume_from_checkpoint=…): the run has taken {state.global_step} steps already; record it from "
                "its first step on"
            )
        loader = given["train_dataloader"]
        if type(loader).__module__.startswith("accelerate"):
            raise RecordingError(
                f"train_dataloader: accelerate has put the loader into a {type(loader).__name__}, which hands out "
                "batches of its own; PrivateTrainer(train_dataloader=loader) leaves the one of make_private alone"
            )
        self._run.start(model=given["model"], optimizer=_unwrapped(given["optimizer"]), data_loader=loader)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        """Trainer clears the gradients of the model, but not the sums that the optimizer keeps."""
        del args, state, control
        _unwrapped(given["optimizer"]).zero_grad()

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        """The run ended as planned."""
        del args, state, control, given
        self.close()

    def close(self, error: BaseException | None = None) -> None:
        """PrivateTrainer calls this when an exception ends the run, of which Trainer tells no callback."""
        self._run.close(error)


Recorder = TransformersRecorder


class PrivateTrainer(Trainer):
    """Trainer for what `make_private` returned: its loader is left alone, and each record has a loss of its own.

    Args:
        train_dataloader: the loader that `make_private` returned.
        physical_batch_size: how many records are in memory at once; a batch is drawn, clipped and noised as one.
        options: every argument of Trainer. `compute_loss_func` is `TaskLoss` by default.
    """

    def __init__(
        self, *, train_dataloader: DataLoader[Any], physical_batch_size: int | None = None, **options: Any
    ) -> None:
        optimizer = private_optimizer((options.get("optimizers") or (None, None))[0], _CURE)
        if options.get("compute_loss_func") is None:
            options["compute_loss_func"] = TaskLoss(options.get("model"), reduction=optimizer.loss_reduction)
        options["args"] = options.get("args") or TrainingArguments()
        _require_recordable(options["args"])
        super().__init__(**options)
        # Otherwise the number of tokens in the batch would enter the model beside each record, and divide its loss.
        self.model_accepts_loss_kwargs = False
        self.loss_is_scaled_for_ga = True
        self.accelerator.backward = _backward
        self._private_loader: Any = train_dataloader
        if physical_batch_size is not None:
            self._private_loader = PhysicalBatches(train_dataloader, optimizer, size=physical_batch_size)

    def get_train_dataloader(self) -> Any:
        """The private loader itself, which accelerate would otherwise replace by one that shards and prefetches."""
        return self._private_loader

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """As Trainer does, but for the number of tokens in the batch, by which it would scale each record's loss."""
        del num_items_in_batch
        return super().compute_loss(model, inputs, return_outputs)

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """One draw: forward and backward, in parts if it is split; Trainer takes the step of the last part."""
        if not isinstance(self._private_loader, PhysicalBatches):
            return super().training_step(model, inputs, num_items_in_batch)
        optimizer = _unwrapped(self.optimizer)
        for part in inputs[:-1]:
            super().training_step(model, part, num_items_in_batch)
            optimizer.step()
            optimizer.zero_grad()
        return super().training_step(model, inputs[-1], num_items_in_batch)

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> None:
        """Nothing: Trainer would log the norm of a sum without noise, and multiply that sum by one on the way."""
        del model, grad_norm

    def train(self, *args: Any, **options: Any) -> Any:
        """As Trainer does; and what ends it too early is told to the recorder."""
        try:
            return super().train(*args, **options)
        except BaseException as error:
            for callback in _recorders(self.callback_handler.callbacks):
                callback.close(error)
            raise


def _backward(loss: Any, **options: Any) -> None:
    """Without accelerate's division by the number of accumulated batches, 1, after which no check knows the loss."""
    loss.backward(**options)


def _recorders(callbacks: Iterable[Any]) -> list[TransformersRecorder]:
    return [each for each in callbacks if isinstance(each, TransformersRecorder)]


def _unwrapped(optimizer: Any) -> DPOptimizer:
    """The optimizer in accelerate's wrapper, which only passes steps on; a scaler in it would skip some."""
    if isinstance(optimizer, AcceleratedOptimizer):
        if optimizer.scaler is not None:
            raise _skipping("accelerate's GradScaler")
        optimizer = optimizer.optimizer
    return private_optimizer(optimizer, _CURE)


def _skipping(what: str) -> RecordingError:
    return RecordingError(f"{what}: it skips steps by what the gradients are, which tells of them; say bf16 or neither")


def _require_recordable(args: TrainingArguments) -> None:
    """Refuse by name what Trainer would do to the steps, before it does it to the first."""
    if args.gradient_accumulation_steps != 1:
        raise _refused(
            f"gradient_accumulation_steps={args.gradient_accumulation_steps}",
            "a step of several draws, in which a record may be more than once; leave it at 1, draw larger batches, and "
            "say PrivateTrainer(physical_batch_size=…) to have them split",
        )
    if args.max_grad_norm:
        raise _refused(
            f"max_grad_norm={args.max_grad_norm:g}",
            "a second clipping, of the sum of all records before the noise is there; say max_grad_norm=0: make_private "
            "clips each record",
        )
    if args.fp16:
        raise _skipping("TrainingArguments(fp16=True)")
    if args.n_gpu > 1 or args.world_size > 1:
        raise _refused(
            f"… {max(args.n_gpu, args.world_size)} devices",
            "accelerate puts model and optimizer into wrappers of its own; train on one device",
        )
    if args.auto_find_batch_size:
        raise _refused("auto_find_batch_size=True", "it begins anew in mid-run; say physical_batch_size=… instead")
    if args.load_best_model_at_end:
        raise _refused(
            "load_best_model_at_end=True",
            "the last weights would not be those of the record; keep checkpoints with Recorder(checkpoint_every=…)",
        )
    if args.label_smoothing_factor:
        raise _refused(
            f"label_smoothing_factor={args.label_smoothing_factor:g}",
            "a mean over all tokens of the batch, which mixes records; smooth in a compute_loss_func with one loss a "
            "record",
        )


def _refused(argument: str, why: str) -> RecordingError:
    return RecordingError(f"TrainingArguments({argument}): {why}")
