"""Hugging Face's Trainer under the recorder: the run it takes, and what it would do to the steps, refused by name."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from opacus import PrivacyEngine
from torch.nn import functional
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback

from dpmerge.errors import InvalidInputError, RecordingError
from dpmerge.portfolio import Portfolio
from dpmerge.training import per_record_loss
from dpmerge.training.task_losses import TaskLoss
from training.hugging_face import (
    QUIET_TRAINER,
    TASKS,
    PrivateModel,
    adapted,
    private_model,
    public_model,
    recorder_in,
    records,
)

pytestmark = [pytest.mark.filterwarnings(line) for line in QUIET_TRAINER]
EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    home = tmp_path_factory.mktemp("bases")
    return {task: public_model(task, home / task) for task in TASKS}


def made(bases: dict[str, Path], task: str = "CAUSAL_LM", **settings: Any) -> PrivateModel:
    return private_model(adapted(task, bases[task]), records(task), **settings)


def manifest(folder: Path) -> Any:
    return json.loads((folder / "privacy.json").read_text())


@pytest.mark.parametrize("physical", [None, 8])
@pytest.mark.parametrize("task", TASKS)
def test_a_run_of_trainer_is_recorded_as_a_loop_would_be(
    bases: dict[str, Path], tmp_path: Path, task: str, physical: int | None
) -> None:
    recorder = recorder_in(tmp_path, checkpoint_every=3)
    private = made(bases, task)
    trainer = private.trainer(tmp_path / "out", callbacks=[recorder], max_steps=7, physical_batch_size=physical)
    trainer.train()
    told = manifest(tmp_path / "run")
    assert told["finished"] is True
    assert told["record_losses"] == "checked"
    assert [each["step"] for each in told["checkpoints"]] == [3, 6, 7]
    [block] = told["mechanism"]["blocks"]
    assert (block["steps"], block["noise_multiplier"], block["clip_norm"]) == (7, 1.0, 1.0)
    assert block["sampling_rate"] == pytest.approx(1 / 3, rel=1e-6)
    # A linear warm-down: Trainer's own schedule, seen at every step.
    assert block["learning_rate"] == pytest.approx([0.1 * (7 - step) / 7 / 21 for step in range(7)])
    assert recorder.recorder.steps == trainer.state.global_step == 7
    assert Portfolio.load(tmp_path / "run").runs[0].id == "run"
    assert type(private.loader).__name__ == "DPDataLoader"


def test_batches_in_parts_are_the_batches_that_were_drawn(bases: dict[str, Path], tmp_path: Path) -> None:
    """Several parts a step, and no part larger than asked for."""
    private = made(bases, batch_size=32)
    sizes: list[int] = []
    private.model.register_forward_pre_hook(
        lambda _, args, kwargs: sizes.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    recorder = recorder_in(tmp_path)
    private.trainer(tmp_path / "out", callbacks=[recorder], physical_batch_size=5).train()
    assert max(sizes) <= 5
    assert len(sizes) > recorder.recorder.steps == 4


def test_autocast_in_bfloat16_is_recorded(bases: dict[str, Path], tmp_path: Path) -> None:
    private, recorder = made(bases), recorder_in(tmp_path)
    seen: list[torch.dtype] = []
    layer = next(each for name, each in private.model.named_modules() if name.endswith("dense"))
    layer.register_forward_hook(lambda _, inputs, output: seen.append(output.dtype))
    private.trainer(tmp_path / "out", callbacks=[recorder], bf16=True).train()
    assert set(seen) == {torch.bfloat16}
    assert (recorder.recorder.steps, manifest(tmp_path / "run")["record_losses"]) == (4, "checked")


class OwnLosses(torch.nn.Module):
    """A criterion as ghost clipping wants it: Opacus sets its reduction."""

    reduction = "mean"

    def forward(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return per_record_loss(logits, labels, reduction=self.reduction)  # type: ignore[arg-type]


def test_ghost_clipping_is_recorded_with_its_own_criterion(bases: dict[str, Path], tmp_path: Path) -> None:
    model = adapted("CAUSAL_LM", bases["CAUSAL_LM"])
    made = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1),
        data_loader=DataLoader(records("CAUSAL_LM"), batch_size=24),
        criterion=OwnLosses(),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        grad_sample_mode="ghost",
    )
    private, criterion, recorder = PrivateModel(made[0], made[1], made[3]), made[2], recorder_in(tmp_path)
    trainer = private.trainer(
        tmp_path / "out",
        callbacks=[recorder],
        compute_loss_func=lambda outputs, labels, num_items_in_batch=None: criterion(outputs.logits, labels),
        logging_strategy="steps",
        logging_steps=1,
    )
    trainer.train()
    assert (recorder.recorder.steps, manifest(tmp_path / "run")["record_losses"]) == (4, "checked")
    assert not [each for each in trainer.state.log_history if "grad_norm" in each]


class Failing(TrainerCallback):
    """Breaks off after some steps."""

    def __init__(self, after: int, error: BaseException) -> None:
        self.after, self.error = after, error

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.after:
            raise self.error


@pytest.mark.parametrize("error", [RuntimeError("out of memory"), KeyboardInterrupt()])
def test_a_run_that_breaks_off_is_kept_as_unfinished(
    bases: dict[str, Path], tmp_path: Path, error: BaseException
) -> None:
    private = made(bases)
    before = type(private.loader), private.optimizer.step_hook
    trainer = private.trainer(tmp_path / "out", callbacks=[recorder_in(tmp_path), Failing(2, error)])
    with pytest.raises(type(error)):
        trainer.train()
    told = manifest(tmp_path / "run")
    assert (told["finished"], [each["step"] for each in told["checkpoints"]]) == (False, [2])
    assert (type(private.loader), private.optimizer.step_hook) == before


REFUSED = {
    "accumulated batches": (
        {"gradient_accumulation_steps": 2},
        r"gradient_accumulation_steps=2\): a step of several draws.*physical_batch_size",
    ),
    "a second clipping": ({"max_grad_norm": 1.0}, r"max_grad_norm=1\): a second clipping.*say max_grad_norm=0"),
    "weights that are swapped": (
        {"load_best_model_at_end": True, "eval_strategy": "no"},
        r"load_best_model_at_end=True\): .*checkpoint_every",
    ),
    "a run that begins anew": ({"auto_find_batch_size": True}, "auto_find_batch_size=True.*physical_batch_size"),
    "smoothed labels": ({"label_smoothing_factor": 0.1}, "label_smoothing_factor.*mixes records"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_trainer_would_do_to_the_steps_is_refused_by_its_name(
    bases: dict[str, Path], tmp_path: Path, name: str
) -> None:
    settings, words = REFUSED[name]
    with pytest.raises(RecordingError, match=words):
        made(bases).trainer(tmp_path / "out", callbacks=[recorder_in(tmp_path)], **settings)
    assert not (tmp_path / "run").exists()


def test_a_gradient_scaler_is_refused_by_its_name(bases: dict[str, Path], tmp_path: Path) -> None:
    """On a CPU TrainingArguments refuses fp16 itself; what it says is seen all the same, and so is accelerate's."""
    recorder = recorder_in(tmp_path)
    trainer = made(bases).trainer(tmp_path / "out", callbacks=[recorder])
    trainer.args.fp16 = True
    with pytest.raises(RecordingError, match=r"fp16=True\): it skips steps by what the gradients are"):
        trainer.train()
    trainer = made(bases).trainer(tmp_path / "out", callbacks=[Scaling(), recorder_in(tmp_path)])
    with pytest.raises(RecordingError, match="accelerate's GradScaler: it skips steps"):
        trainer.train()


class Scaling(TrainerCallback):
    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        given["optimizer"].scaler = torch.amp.GradScaler("cpu")


class Prepared(Trainer):
    """What somebody writes who does not know of accelerate: the private loader, prepared."""

    loader: Any = None

    def get_train_dataloader(self) -> Any:
        return self.accelerator.prepare(self.loader)


def test_a_loader_that_accelerate_wrapped_is_refused_by_its_name(bases: dict[str, Path], tmp_path: Path) -> None:
    private = made(bases)
    trainer = private.trainer(tmp_path / "out", callbacks=[recorder_in(tmp_path)], kind=Prepared)
    trainer.loader = private.loader
    with pytest.raises(RecordingError, match=r"accelerate has put the loader into a DataLoaderShard.*PrivateTrainer"):
        trainer.train()
    assert not (tmp_path / "run").exists()


def test_an_optimizer_that_trainer_made_is_refused_by_its_name(bases: dict[str, Path], tmp_path: Path) -> None:
    private = made(bases)
    with pytest.raises(RecordingError, match=r"optimizer: a NoneType, which adds no noise; say optimizers=\("):
        private.trainer(tmp_path / "out", optimizers=(None, None))

    class Unprivate(Trainer):
        def get_train_dataloader(self) -> Any:
            return private.loader

    trainer = private.trainer(
        tmp_path / "out", callbacks=[recorder_in(tmp_path)], kind=Unprivate, optimizers=(None, None)
    )
    with pytest.raises(RecordingError, match="optimizer: a AdamW, which adds no noise; say optimizers="):
        trainer.train()


def test_a_trainer_of_ones_own_is_recorded_as_it_is(bases: dict[str, Path], tmp_path: Path) -> None:
    """The callback alone, where somebody overrides what has to be."""
    private = made(bases)

    class Own(Trainer):
        def get_train_dataloader(self) -> Any:
            return private.loader

        def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            labels = inputs.pop("labels")
            return per_record_loss(model(**inputs).logits, labels)

    recorder = recorder_in(tmp_path)
    private.trainer(tmp_path / "out", callbacks=[recorder], kind=Own).train()
    assert recorder.recorder.steps == 4


def test_the_loss_that_a_causal_model_returns_is_refused(bases: dict[str, Path], tmp_path: Path) -> None:
    """What Trainer would use by default: a mean over all tokens of the batch."""
    data = records("CAUSAL_LM")
    for place, record in enumerate(data):
        record["labels"] = torch.where(torch.arange(6) < place % 5, -100, record["labels"])
    private = private_model(adapted("CAUSAL_LM", bases["CAUSAL_LM"]), data)

    class Plain(Trainer):
        def get_train_dataloader(self) -> Any:
            return private.loader

    private.model.accepts_loss_kwargs = False
    trainer = private.trainer(tmp_path / "out", callbacks=[recorder_in(tmp_path)], kind=Plain)
    with pytest.raises(RecordingError, match="per_record_loss|not, row by row"):
        trainer.train()


def test_a_resumed_trainer_and_a_second_run_are_refused(bases: dict[str, Path], tmp_path: Path) -> None:
    recorder = recorder_in(tmp_path)
    trainer = made(bases).trainer(tmp_path / "out", callbacks=[recorder])
    with pytest.raises(RecordingError, match="nothing is recorded yet"):
        _ = recorder.recorder
    trainer.train()
    with pytest.raises(RecordingError, match="has recorded a run already; make one for each"):
        trainer.train()
    trainer.state.global_step = 3
    with pytest.raises(RecordingError, match=r"resume_from_checkpoint=…\): the run has taken 3 steps already"):
        recorder_in(tmp_path, "other").on_train_begin(trainer.args, trainer.state, trainer.control)


def test_options_of_start_are_passed_on_and_unknown_ones_refused(bases: dict[str, Path], tmp_path: Path) -> None:
    trainer = made(bases).trainer(tmp_path / "out", callbacks=[recorder_in(tmp_path, who="Ann", stopping="fixed")])
    trainer.train()
    told = manifest(tmp_path / "run")
    assert (told["recorded_by"]["who"], told["stopping"]) == ("Ann", "fixed")
    trainer = made(bases).trainer(tmp_path / "out", callbacks=[recorder_in(tmp_path, "b", chekpoint_every=2)])
    with pytest.raises(TypeError, match="chekpoint_every"):
        trainer.train()


def test_losses_are_those_of_the_models_but_for_the_mean() -> None:
    """Against the formulas, written out."""
    generator = torch.Generator().manual_seed(0)
    tokens, classes = torch.randn(3, 4, 5, generator=generator), torch.randn(3, 5, generator=generator)
    labels = torch.tensor([[1, 2, 3, 4], [0, 1, -100, -100], [2, -100, 4, 0]])
    causal = TaskLoss(type("SomeForCausalLM", (), {})())
    by_hand = []
    for row in range(3):
        own = [
            -functional.log_softmax(tokens[row, place], 0)[labels[row, place + 1]]
            for place in range(3)
            if labels[row, place + 1] != -100
        ]
        by_hand.append(sum(own) / len(own))  # type: ignore[arg-type]
    assert float(causal({"logits": tokens}, labels)) == pytest.approx(float(sum(by_hand) / 3))  # type: ignore[arg-type]
    plain = TaskLoss(None)
    targets = torch.tensor([0, 3, 4])
    expected = -functional.log_softmax(classes, 1)[range(3), targets].mean()
    assert float(plain((classes,), targets)) == pytest.approx(float(expected))
    assert float(TaskLoss(None, reduction="sum")((classes,), targets)) == pytest.approx(3 * float(expected))
    several = torch.tensor([[0.0, 1, 1, 0, 1]] * 3)
    logs = several * functional.logsigmoid(classes) + (1 - several) * functional.logsigmoid(-classes)
    assert float(plain((classes,), several)) == pytest.approx(float(-logs.mean()))
    numbers = torch.tensor([0.5, 1.0, -2.0])
    assert float(plain((classes[:, :1],), numbers)) == pytest.approx(float(((classes[:, 0] - numbers) ** 2).mean()))


@pytest.mark.parametrize("labels", [None, torch.zeros(2, dtype=torch.long), torch.zeros(3, 2, 2)])
def test_labels_of_another_task_are_refused(labels: torch.Tensor | None) -> None:
    with pytest.raises(InvalidInputError, match="otherwise pass a compute_loss_func"):
        TaskLoss(None)((torch.zeros(3, 5) if labels is None or labels.dim() == 1 else torch.zeros(3, 2),), labels)


def test_the_example_of_trainer_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["with_trainer.py", "--out", str(tmp_path)])
    runpy.run_path(str(EXAMPLES / "with_trainer.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert "quiet: 8 steps, ε = 7.16" in printed
    assert "rank 4" in printed
    assert (tmp_path / "merged" / "adapter_model.safetensors").exists()
