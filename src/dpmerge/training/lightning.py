"""Recording in Lightning: a callback, and a module that trains what `make_private` returned.

    trainer = Trainer(max_epochs=3, callbacks=[Recorder(run="adult-s32", dataset="adult-2026",
                      adjacency="replace_one", directory="models/adult-s32")])
    trainer.fit(module, loader)  # the loader that make_private returned; configure_optimizers returns its optimizer

Guarantees: the run is recorded as `record` would record a loop; an exception closes it as unfinished.
Refuses, before the first step and by the argument's name: accumulated batches, a second clipping, a GradScaler, several
devices, several optimizers or loaders, checkpoints that somebody goes on from.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from opacus.grad_sample import AbstractGradSampleModule
from torch import Tensor
from torch.utils.data import DataLoader

from dpmerge.errors import RecordingError
from dpmerge.extras import needs_extra
from dpmerge.training.callback_run import CallbackRun, private_optimizer
from dpmerge.training.loss_graph import divided_by_one
from dpmerge.training.physical_batches import PhysicalBatches
from dpmerge.training.recorder import Recorder as RunRecorder

with needs_extra("lightning", by="dpmerge.training.lightning"):
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.strategies import SingleDeviceStrategy


class LightningRecorder(Callback):
    """Records the run that `trainer.fit` trains.

    Args:
        run: the name of the run.
        dataset: the name of the data.
        adjacency: what a neighbouring data set is.
        directory: a folder for the checkpoints and the manifest.
        options: every other argument of `dpmerge.training.start`. Model, optimizer and loader are found in the trainer;
            say `model=` if `make_private` did not wrap it (`wrap_model=False`).
    """

    def __init__(self, *, run: str, dataset: str, adjacency: str, directory: str | Path, **options: Any) -> None:
        self._options = {"run": run, "dataset": dataset, "adjacency": adjacency, "directory": directory, **options}
        self._run = CallbackRun(self._options)

    @property
    def recorder(self) -> RunRecorder:
        """The run so far: `epsilon`, `checkpoint`, `metric`, `manifest`."""
        return self._run.recorder

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Everything is in place, and no batch has been used."""
        _require_recordable(trainer, resumes=self._run.resumes)
        cure = "let configure_optimizers return the one that make_private returned"
        optimizer = private_optimizer(trainer.optimizers[0], cure)
        model = self._options.get("model") or _private_model(pl_module)
        self._run.start(model=model, optimizer=optimizer, data_loader=_only_loader(trainer))
        # Lightning has begun its first pass already, unseen; nothing of it was used.
        iter(trainer.fit_loop._data_fetcher)  # type: ignore[arg-type]

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        """In automatic optimization Lightning divides every loss by `accumulate_grad_batches`."""
        if pl_module.automatic_optimization and trainer.accumulate_grad_batches == 1:
            divided_by_one(loss)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """The run ended as planned."""
        self._run.close()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:  # noqa: ARG002
        """The run broke off: what was learned so far is kept, as unfinished."""
        self._run.close(exception)


Recorder = LightningRecorder


def _private_model(module: LightningModule) -> AbstractGradSampleModule:
    found = [each for each in module.modules() if isinstance(each, AbstractGradSampleModule)]
    if len(found) != 1:
        raise RecordingError(
            f"model: {len(found)} modules of {type(module).__name__} are what make_private returns; keep the one in an "
            "attribute of the module, or pass it, Recorder(model=…)"
        )
    return found[0]


def _only_loader(trainer: Trainer) -> Any:
    loader = trainer.train_dataloader
    if not isinstance(loader, DataLoader | PhysicalBatches):
        raise RecordingError(
            f"Trainer.fit(train_dataloaders=…): a {type(loader).__name__}; pass the one that make_private returned"
        )
    return loader


def _require_recordable(trainer: Trainer, *, resumes: bool) -> None:
    """Refuse by name what Lightning would do to the steps, before it does it to the first."""
    if trainer.accumulate_grad_batches != 1:
        raise RecordingError(
            f"Trainer(accumulate_grad_batches={trainer.accumulate_grad_batches}): a step of several draws, in which a "
            "record may be more than once; leave it at 1, draw larger batches, and let PhysicalBatches split them"
        )
    if trainer.gradient_clip_val:
        raise RecordingError(
            f"Trainer(gradient_clip_val={trainer.gradient_clip_val:g}): a second clipping, of the sum of all records "
            "before the noise is there; leave it out: make_private clips each record"
        )
    if getattr(trainer.precision_plugin, "scaler", None) is not None:
        raise RecordingError(
            f"Trainer(precision={trainer.precision!r}): its GradScaler skips steps by what the gradients are, which "
            'tells of the data; use "32-true" or "bf16-mixed"'
        )
    if not isinstance(trainer.strategy, SingleDeviceStrategy):
        raise RecordingError(
            f"Trainer(strategy=…): a {type(trainer.strategy).__name__}, which puts model, optimizer and loader into "
            "wrappers of its own; use Trainer(devices=1)"
        )
    if len(trainer.optimizers) != 1:
        raise RecordingError(
            f"configure_optimizers: {len(trainer.optimizers)} optimizers; a run is recorded with one, which trains all"
        )
    if trainer.global_step and not resumes:
        raise RecordingError(
            f"Trainer.fit(ckpt_path=…): the run has taken {trainer.global_step} steps already; record it from its "
            "first step on"
        )
