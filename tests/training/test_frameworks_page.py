"""The code of docs/how-to/frameworks.md, run as it stands there."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch import Trainer

from dpmerge.training.task_losses import TaskLoss
from training.hugging_face import (
    QUIET_TRAINER,
    adapted,
    base_class,
    private_model,
    public_model,
    records,
)
from training.loops import private

pytestmark = [
    pytest.mark.filterwarnings(line)
    for line in (*QUIET_TRAINER, "ignore:.*LeafSpec", "ignore:The 'train_dataloader' does not have many workers")
]
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "frameworks.md"


def blocks(title: str) -> list[str]:
    [section] = re.findall(rf"^## {title}\n(.*?)(?=^## )", PAGE.read_text(), re.S | re.M)
    return re.findall(r"^```python\n(.*?)^```", section, re.S | re.M)


def run(code: str, names: dict[str, Any]) -> None:
    exec(compile(code, str(PAGE), "exec"), names)  # noqa: S102


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def manifest(name: str) -> Any:
    return json.loads(Path("models", name, "privacy.json").read_text())


def test_the_code_of_lightning_runs(tmp_path: Path) -> None:
    whole, in_parts = blocks("Lightning")
    made = private()
    names = {"model": made.model, "optimizer": made.optimizer, "loader": made.loader, "__name__": "page"}
    run(whole, names)
    assert (manifest("adult-s32")["finished"], names["recorder"].recorder.steps) == (True, 8)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["models"]
    made = private()
    names |= {"model": made.model, "optimizer": made.optimizer, "loader": made.loader}
    run(in_parts, names)
    recorder = names["Recorder"](run="parts", dataset="x", adjacency="replace_one", directory="models/parts")
    trainer = Trainer(max_epochs=1, callbacks=[recorder], logger=False, enable_checkpointing=False)
    trainer.fit(names["InParts"](), names["parts"])
    assert recorder.recorder.steps == 4


def test_the_code_of_trainer_and_peft_runs(tmp_path: Path) -> None:
    base = public_model("CAUSAL_LM", tmp_path / "base")
    made = private_model(adapted("CAUSAL_LM", base), records("CAUSAL_LM"))
    names = {"model": made.model, "optimizer": made.optimizer, "loader": made.loader}
    [code] = blocks("Trainer")
    # On a CPU, whatever this machine has, and without what Trainer prints.
    run(code.replace('save_strategy="no"', 'save_strategy="no", use_cpu=True, report_to=[]'), names)
    assert names["trainer"].state.global_step == names["recorder"].recorder.steps == 20
    other = private_model(adapted("CAUSAL_LM", base), records("CAUSAL_LM"))
    other.loop(Path("models"), "letters-s64", TaskLoss(other.model), steps=20, dataset="letters")
    [code] = blocks("PEFT")
    run(code, {"public_model": lambda: base_class("CAUSAL_LM").from_pretrained(base)})
    assert Path("merged", "adapter_model.safetensors").exists()


def test_every_argument_that_is_refused_by_name_is_on_the_page() -> None:
    """By the messages themselves, as they are written in the code."""
    source = Path(__file__).parents[2] / "src" / "dpmerge" / "training"
    page = PAGE.read_text()
    for file, pattern in (
        ("lightning.py", r"f?\"Trainer(?:\.fit)?\((\w+)="),
        ("transformers.py", r"(?:_refused\(\s*f?\"|TrainingArguments\(|train\()(\w+)="),
    ):
        found = set(re.findall(pattern, (source / file).read_text()))
        assert len(found) >= 5
        assert [name for name in sorted(found) if f"`{name}" not in page] == []
