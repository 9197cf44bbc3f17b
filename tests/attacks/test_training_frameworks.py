"""Trainer, accelerate and Lightning made to do something else than was recorded: refused, whoever does it and when."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from torch.nn import functional
from transformers import TrainerCallback

from dpmerge.errors import RecordingError
from dpmerge.training.lightning import Recorder
from dpmerge.training.model_files import ModelFiles
from training.hugging_face import QUIET_TRAINER, adapted, private_model, public_model, recorder_in, records
from training.loops import Private, private
from training.test_lightning import Module, fit

pytestmark = [
    pytest.mark.filterwarnings(line)
    for line in (*QUIET_TRAINER, "ignore:.*LeafSpec", "ignore:The 'train_dataloader' does not have many workers")
]

# By what it is seen that a batch was not used: of the draws, or of two losses in one step.
UNUSED = r"batches drawn in this pass only|a mean over \d+ numbers for \d+ records"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return public_model("CAUSAL_LM", tmp_path_factory.mktemp("base"))


def trained(base: Path, folder: Path, *callbacks: Any, first: bool = False, **settings: Any) -> None:
    """Six steps under a recorder, with these callbacks before or after it."""
    made = private_model(adapted("CAUSAL_LM", base), records("CAUSAL_LM"))
    recorder = recorder_in(folder, checkpoint_at=[1])
    ordered = [*callbacks, recorder] if first else [recorder, *callbacks]
    made.trainer(folder / "out", callbacks=ordered, max_steps=6, **settings).train()


def manifest(folder: Path) -> Any:
    return json.loads((folder / "run" / "privacy.json").read_text())


class Skipping(TrainerCallback):
    """Has accelerate take no step for some batches: which, the data could decide."""

    def __init__(self, *steps: int) -> None:
        self.steps = steps

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        if state.global_step + 1 in self.steps:
            given["optimizer"].gradient_state._set_sync_gradients(False)


@pytest.mark.parametrize("steps", [(3,), (2, 3), (4,)])
@pytest.mark.parametrize("first", [True, False])
def test_steps_that_accelerate_skips_are_noticed(
    base: Path, tmp_path: Path, steps: tuple[int, ...], first: bool
) -> None:
    with pytest.raises(RecordingError, match=UNUSED):
        trained(base, tmp_path, Skipping(*steps), first=first)
    told = manifest(tmp_path)
    assert told["finished"] is False
    assert told["checkpoints"][0]["step"] == 1


def test_a_last_step_that_is_skipped_is_told_of(base: Path, tmp_path: Path) -> None:
    """That the run stopped there may be the doing of the batch that was left out."""
    with pytest.raises(RecordingError, match="batches drawn in this pass only 2 were used"):
        trained(base, tmp_path, Skipping(6))
    told = manifest(tmp_path)
    assert (told["finished"], told["stopping"], told["checkpoints"][-1]["step"]) == (False, "private", 5)


class Denoising(TrainerCallback):
    """Puts the sum without its noise into the gradient, next to the update, from one step on."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        self.optimizer = given["optimizer"].optimizer
        self.taken = 0
        self.optimizer.original_optimizer.register_step_pre_hook(self.restore)

    def restore(self, *_: Any) -> None:
        self.taken += 1
        if self.taken >= 3:
            for parameter in self.optimizer.params:
                parameter.grad = parameter.summed_grad.clone().view_as(parameter)


class Moving(TrainerCallback):
    """Moves the weights after a step, by what it likes."""

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        if state.global_step == 3:
            next(iter(given["optimizer"].optimizer.params)).data += 1e-3


@pytest.mark.parametrize("attack", [Denoising, Moving])
@pytest.mark.parametrize("first", [True, False])
def test_gradients_and_weights_changed_by_another_callback_are_noticed(
    base: Path, tmp_path: Path, attack: type[TrainerCallback], first: bool
) -> None:
    words = {"Denoising": "gradients", "Moving": "changed by something else than the private optimizer"}
    with pytest.raises(RecordingError, match=words[attack.__name__]):
        trained(base, tmp_path, attack(), first=first)
    told = manifest(tmp_path)
    assert told["finished"] is False
    assert max(each["step"] for each in told["checkpoints"]) <= 3


def test_a_loss_over_all_tokens_of_the_batch_is_noticed(base: Path, tmp_path: Path) -> None:
    def mixing(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
        """As causal models have it: a mean over all tokens that count, of whichever record."""
        counting = labels[:, 1:].masked_fill(labels[:, 1:] > 12, -100)
        return functional.cross_entropy(outputs.logits[:, :-1].flatten(0, 1), counting.flatten())

    made = private_model(adapted("CAUSAL_LM", base), records("CAUSAL_LM"))
    trainer = made.trainer(tmp_path / "out", callbacks=[recorder_in(tmp_path)], compute_loss_func=mixing)
    with pytest.raises(RecordingError, match="each record's gradient is scaled by the others"):
        trainer.train()


class Choosing(Module):
    """Takes no step for batches that have a certain record in them."""

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
        if self.trainer.global_step >= 2 and self.skips:
            optimizer_closure()
            self.skips = False
        else:
            optimizer.step(closure=optimizer_closure)

    skips = True


def in_lightning(folder: Path, module: type[Module], made: Private | None = None) -> None:
    made = made or private()
    recorder = Recorder(run="run", dataset="toy", adjacency="replace_one", directory=folder / "run", checkpoint_at=[1])
    fit(module(made), made.loader, recorder)


def test_steps_that_a_module_of_lightning_skips_are_noticed(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match=UNUSED):
        in_lightning(tmp_path, Choosing)
    assert manifest(tmp_path)["finished"] is False


def test_weights_that_lightning_averages_in_the_end_are_noticed(tmp_path: Path) -> None:
    class Swapping(Module):
        def on_train_end(self) -> None:
            pass

        def on_train_epoch_end(self) -> None:
            for parameter in self.model.parameters():
                parameter.data.mul_(0.5)

    assert issubclass(Swapping, LightningModule)
    with pytest.raises(RecordingError, match="changed by something else than the private optimizer"):
        in_lightning(tmp_path, Swapping)


class Linked:
    """A tokenizer that saves a link to something else."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def save_pretrained(self, folder: str) -> None:
        Path(folder, "vocab.txt").symlink_to(self.target)


def test_a_tokenizer_that_saves_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "private.csv").write_text("Ann,1\n")
    with pytest.raises(RecordingError, match=r"Linked saves vocab\.txt, which is not kept"):
        ModelFiles.of(torch.nn.Linear(2, 2), [Linked(tmp_path / "private.csv")])


class Growing:
    """A tokenizer that learns while the model trains; what it would save later is never asked for."""

    words = b"public\n"

    def save_pretrained(self, folder: str) -> None:
        Path(folder, "vocab.txt").write_bytes(self.words)


def test_a_vocabulary_that_grows_in_training_is_kept_as_it_was_before(base: Path, tmp_path: Path) -> None:
    made, vocabulary = private_model(adapted("CAUSAL_LM", base), records("CAUSAL_LM")), Growing()

    class Learning(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            vocabulary.words += b"Ann\n"

    made.trainer(
        tmp_path / "out", callbacks=[recorder_in(tmp_path, save_with=[vocabulary], checkpoint_every=2), Learning()]
    ).train()
    assert {path.read_bytes() for path in tmp_path.glob("run/step-*/vocab.txt")} == {b"public\n"}
    assert len(list(tmp_path.glob("run/step-*/vocab.txt"))) == 2
