"""How-to pages whose code trains, run as they stand there."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from opacus import PrivacyEngine
from safetensors.torch import save_file
from torch import Tensor, nn

import dpmerge as dpm
from page_commands import blocks, run_page
from training.distributed_loops import from_a_page
from training.loops import CLASSES, FEATURES, QUIET, data
from training.ranks import all_returned, on_ranks

pytestmark = [pytest.mark.filterwarnings(line) for line in QUIET]
HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DPMERGE_LEDGER", raising=False)
    before = signal.getsignal(signal.SIGTERM)  # a page sets it
    yield
    signal.signal(signal.SIGTERM, before)


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Linear(FEATURES, CLASSES)


class Breaking(nn.Linear):
    """A machine that goes away at the 33rd batch."""

    passes = 0

    def forward(self, features: Tensor) -> Tensor:
        if self.training and features.requires_grad is False:
            self.passes += 1
        if self.passes == 33:
            raise SystemExit(1)
        return super().forward(features)


def manifest(folder: str) -> Any:
    return json.loads(Path(folder, "privacy.json").read_text())


def test_a_job_that_is_taken_away_and_started_again_is_one_run() -> None:
    page = HOW_TO / "preempted-jobs.md"
    torch.manual_seed(1)
    breaking = Breaking(FEATURES, CLASSES)
    with pytest.raises(SystemExit):
        run_page(page, {"network": lambda: breaking, "dataset": data()})
    broken = manifest("models/adult-s32")
    assert not broken["finished"]
    last = broken["checkpoints"][-1]["step"]
    assert 20 < last < 60
    run_page(page, {"network": network, "dataset": data()})
    whole = manifest("models/adult-s32")
    assert whole["finished"]
    assert [saved["step"] for saved in whole["checkpoints"]] == [20, last, 40, 60]
    assert [stretch["after"] for stretch in whole["resumed"]] == [last]


def test_a_job_that_was_killed_pays_for_the_steps_it_lost() -> None:
    """What is left of a kill: the folder as it was at that moment."""
    page = HOW_TO / "preempted-jobs.md"
    folder = Path("models/adult-s32")
    torch.manual_seed(1)
    breaking = Breaking(FEATURES, CLASSES)
    breaking.register_forward_hook(lambda *_: shutil.copytree(folder, "left", dirs_exist_ok=True) and None)
    with pytest.raises(SystemExit):
        run_page(page, {"network": lambda: breaking, "dataset": data()})
    shutil.rmtree(folder)
    shutil.move("left", folder)
    assert [saved["step"] for saved in manifest("models/adult-s32")["checkpoints"]] == [20]
    run_page(page, {"network": network, "dataset": data()})
    [stretch] = manifest("models/adult-s32")["resumed"]
    assert stretch["after"] == 20
    assert 12 <= stretch["lost_steps"] <= 20


def test_models_in_pt_files_are_imported_released_and_verified() -> None:
    """Those of a, which the page saves, and of b and c, which are there already; the same once more with one seed."""
    for place in ("models", "seeded"):
        for run, sigma in zip("abc", (1.0, 2.0, 4.0), strict=True):
            Path(place, run).mkdir(parents=True)
            weights = {"weight": torch.full((3, 4), sigma)}
            if place == "seeded":
                save_file(weights, Path(place, run, "model.safetensors"))
            else:
                torch.save(weights, Path(place, run, "model.pt"))
            history = {"history": [[sigma, 0.01, 500]], "mechanism": "rdp"}
            Path(place, run, "history.json").write_text(json.dumps(history))
    engine = PrivacyEngine()
    engine.accountant.history = [(1.0, 0.01, 500)]
    model = nn.Linear(4, 3, bias=False)
    run = run_page(
        HOW_TO / "pt-files.md", {"torch": torch, "json": json, "Path": Path, "model": model, "privacy_engine": engine}
    )
    assert [kind for kind, _ in run] == ["python", "sh", "sh"]
    assert dpm.verify("merged", portfolio="models").verified
    assert dpm.verify("merged-seeded", portfolio="seeded").verified


def test_ddp_and_shards_are_recorded_by_the_code_of_the_page(tmp_path: Path) -> None:
    code = [content for kind, content in blocks(HOW_TO / "several-gpus.md") if kind == "python"]
    first, second = all_returned(on_ranks(2, from_a_page, code, tmp_path))
    assert first == second == {"ddp": 6, "shards": 6}
    for run, losses in (("ddp", "checked"), ("shards", "unknown")):
        recorded = manifest(f"models/{run}")
        assert (recorded["finished"], recorded["tools"]["processes"]) == (True, "2")
        assert recorded["record_losses"] == losses
