"""Lightning under the recorder: the run it takes, and what it would do to the steps, refused by name."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.utils.data import DataLoader

from dpmerge.errors import RecordingError
from dpmerge.portfolio import Portfolio
from dpmerge.training.lightning import Recorder
from dpmerge.training.physical_batches import PhysicalBatches
from training.loops import QUIET, Private, data, private

pytestmark = [
    pytest.mark.filterwarnings(line)
    for line in (
        *QUIET,
        "ignore:.*LeafSpec",
        "ignore:The 'train_dataloader' does not have many workers",
        "ignore:You have overridden",
        "ignore:`LightningModule.configure_optimizers` returned `None`",
    )
]
EXAMPLES = Path(__file__).parents[2] / "examples"


class Module(LightningModule):
    """What make_private returned, trained step by step as Lightning wants it."""

    def __init__(self, made: Private) -> None:
        super().__init__()
        self.model, self.made = made.model, made

    def training_step(self, batch: Any, _: int) -> Any:
        return self.made.criterion(self.model(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        return self.made.optimizer


class Manual(Module):
    """Steps that the module takes itself, one for each part of a batch; ghost clipping has a loss that is no tensor."""

    automatic_optimization = False

    def training_step(self, batch: Any, _: int) -> None:
        optimizer = self.optimizers()
        for inputs, targets in batch if isinstance(batch[0], list) else [batch]:
            self.manual_backward(self.made.criterion(self.model(inputs), targets))
            optimizer.step()
            optimizer.zero_grad()


def recorder_in(folder: Path, **options: Any) -> Recorder:
    return Recorder(run="run", dataset="toy", adjacency="replace_one", directory=folder / "run", **options)


def fit(module: LightningModule, loader: Any, *callbacks: Callback, **settings: Any) -> Trainer:
    given = {"max_epochs": 2, "accelerator": "cpu", "devices": 1} | settings
    trainer = Trainer(
        callbacks=list(callbacks),
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **given,
    )
    trainer.fit(module, loader)
    return trainer


def manifest(folder: Path) -> Any:
    return json.loads((folder / "run" / "privacy.json").read_text())


@pytest.mark.parametrize(("module", "mode"), [(Module, "hooks"), (Manual, "hooks"), (Manual, "ghost")])
@pytest.mark.parametrize("batches", ["poisson", "shuffled"])
def test_a_run_of_lightning_is_recorded_as_a_loop_would_be(
    tmp_path: Path, module: type[Module], mode: str, batches: str
) -> None:
    made, recorder = private(mode=mode, batches=batches), recorder_in(tmp_path, checkpoint_every=3)
    before = type(made.loader), made.optimizer.step_hook
    fit(module(made), made.loader, recorder)
    told = manifest(tmp_path)
    assert (told["finished"], told["record_losses"]) == (True, "checked")
    assert [each["step"] for each in told["checkpoints"]] == [3, 6, 8]
    [block] = told["mechanism"]["blocks"]
    assert (block["steps"], block["noise_multiplier"], block["clip_norm"]) == (8, 1.0, 1.0)
    assert told["mechanism"]["sampling"] == batches
    if batches == "shuffled":
        assert told["mechanism"]["steps_per_epoch"] == 4
    assert recorder.recorder.steps == 8
    assert Portfolio.load(tmp_path).runs[0].id == "run"
    assert (type(made.loader), made.optimizer.step_hook) == before


def test_autocast_in_bfloat16_is_recorded(tmp_path: Path) -> None:
    made, recorder = private(), recorder_in(tmp_path)
    seen: list[torch.dtype] = []
    made.plain[0].register_forward_hook(lambda _, inputs, output: seen.append(output.dtype))
    fit(Module(made), made.loader, recorder, precision="bf16-mixed")
    assert torch.bfloat16 in seen
    assert recorder.recorder.steps == 8


def test_batches_in_parts_are_recorded_as_the_batches_that_were_drawn(tmp_path: Path) -> None:
    made, recorder = private(), recorder_in(tmp_path)
    fit(Manual(made), PhysicalBatches(made.loader, made.optimizer, size=4), recorder)
    assert recorder.recorder.steps == 8
    assert manifest(tmp_path)["record_losses"] == "checked"


def test_a_loss_that_somebody_divides_is_still_told_from_lightnings_division(tmp_path: Path) -> None:
    """By one, this time: of other records it may be another number."""

    class Divided(Module):
        def training_step(self, batch: Any, number: int) -> Any:
            return super().training_step(batch, number) / int(1 + 0 * len(batch[0]))

    recorder = recorder_in(tmp_path)
    made = private()
    fit(Divided(made), made.loader, recorder)
    assert manifest(tmp_path)["record_losses"] == "unknown"
    assert "the operation Div" in recorder.recorder.record_losses_doubts


@pytest.mark.parametrize("error", [RuntimeError("out of memory"), KeyboardInterrupt()])
def test_a_run_that_breaks_off_is_kept_as_unfinished(tmp_path: Path, error: BaseException) -> None:
    class Failing(Callback):
        def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
            if trainer.global_step == 2:
                raise error

    made = private()
    with pytest.raises((RuntimeError, KeyboardInterrupt, SystemExit)):
        fit(Module(made), made.loader, recorder_in(tmp_path), Failing())
    told = manifest(tmp_path)
    assert (told["finished"], [each["step"] for each in told["checkpoints"]]) == (False, [2])


SCALED = MixedPrecision("16-mixed", "cpu", scaler=torch.amp.GradScaler("cpu"))
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "accumulated batches": (
        {"accumulate_grad_batches": 2},
        r"accumulate_grad_batches=2\): a step of several draws.*leave it at 1.*PhysicalBatches",
    ),
    "a second clipping": ({"gradient_clip_val": 1.0}, r"gradient_clip_val=1\): a second clipping.*leave it out"),
    "a gradient scaler": ({"plugins": [SCALED]}, r"precision='16-mixed'\): its GradScaler skips steps.*32-true"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_lightning_would_do_to_the_steps_is_refused_by_its_name(tmp_path: Path, name: str) -> None:
    settings, words = REFUSED[name]
    made = private()
    with pytest.raises(RecordingError, match=words):
        fit(Module(made), made.loader, recorder_in(tmp_path), **settings)
    assert not (tmp_path / "run").exists()


def test_a_strategy_of_several_processes_is_refused_by_its_name(tmp_path: Path) -> None:
    made, recorder = private(), recorder_in(tmp_path)
    trainer = Trainer(accelerator="cpu", devices=1, strategy=DDPStrategy(), barebones=True)
    with pytest.raises(RecordingError, match=r"strategy=…\): a DDPStrategy.*devices=1"):
        recorder.on_train_start(trainer, Module(made))


def test_an_optimizer_that_adds_no_noise_is_refused_by_its_name(tmp_path: Path) -> None:
    made = private()

    class Inner(Module):
        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters())

    class Two(Module):
        def configure_optimizers(self) -> Any:
            return [made.optimizer, torch.optim.Adam(self.parameters())]

        automatic_optimization = False

    with pytest.raises(RecordingError, match="optimizer: a Adam, which adds no noise; let configure_optimizers return"):
        fit(Inner(made), made.loader, recorder_in(tmp_path))
    with pytest.raises(RecordingError, match="configure_optimizers: 2 optimizers"):
        fit(Two(made), made.loader, recorder_in(tmp_path))


def test_a_module_without_the_private_model_is_refused(tmp_path: Path) -> None:
    made = private()

    class Plain(Module):
        def __init__(self) -> None:
            super().__init__(made)
            self.model = made.plain

    with pytest.raises(RecordingError, match=r"0 modules of Plain are what make_private returns.*Recorder\(model=…\)"):
        fit(Plain(), made.loader, recorder_in(tmp_path))
    recorder = recorder_in(tmp_path, model=made.model)
    fit(Plain(), made.loader, recorder)
    assert recorder.recorder.steps == 8


def test_several_loaders_are_refused_by_their_name(tmp_path: Path) -> None:
    made = private()
    with pytest.raises(RecordingError, match="a list; pass the one that make_private returned"):
        fit(Module(made), [made.loader, made.loader], recorder_in(tmp_path))


def test_a_loader_that_opacus_did_not_make_is_recorded_as_what_it_is(tmp_path: Path) -> None:
    """Its batches are those of a pass, whatever Opacus' accountant thinks."""
    made = private()
    fit(Module(made), DataLoader(data(), batch_size=12), recorder_in(tmp_path))
    told = manifest(tmp_path)["mechanism"]
    assert (told["sampling"], told["steps_per_epoch"]) == ("shuffled", 4)


def test_going_on_from_a_checkpoint_of_lightning_is_refused(tmp_path: Path) -> None:
    made = private()
    trainer = fit(Module(made), made.loader)
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    again = private()
    with pytest.raises(RecordingError, match=r"ckpt_path=…\): the run has taken 8 steps already"):
        Trainer(
            max_epochs=4, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, callbacks=[recorder_in(tmp_path)],
        ).fit(Module(again), again.loader, ckpt_path=tmp_path / "last.ckpt", weights_only=True)  # fmt: skip


def test_linear_layers_keep_their_sharper_facts(tmp_path: Path) -> None:
    """Options of `start` go through: here the criterion."""
    made = private(nn.Linear(16, 4), clip=30.0)
    fit(
        Module(made), made.loader, recorder_in(tmp_path, criterion=made.criterion, feature_bound=20.0, who="Ann")
    )  # fmt: skip
    told = manifest(tmp_path)
    assert told["recorded_by"]["who"] == "Ann"
    assert told["mechanism"]["smoothness"]["kind"] == "softmax"


def test_the_example_of_lightning_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["with_lightning.py", "--out", str(tmp_path)])
    runpy.run_path(str(EXAMPLES / "with_lightning.py"), run_name="__main__")
    assert "16 steps, ε = 5.15 at δ = 1e-5" in capsys.readouterr().out
    assert len(Portfolio.load(tmp_path / "lightning").runs[0].checkpoints) == 2
