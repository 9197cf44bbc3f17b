"""Runs that stop and go on, for the tests: what is on disk at a moment, and the loop built again from it."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from training.loops import Private, mlp, private, recorded, started


def momentum(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.5)


def document(folder: Path) -> Any:
    """The manifest, as it is on disk."""
    return json.loads((folder / "privacy.json").read_text())


def counted(folder: Path) -> int:
    return int(json.loads((folder / "steps.json").read_text())["steps"])


def finished_run(folder: Path, steps: int = 3, **settings: Any) -> Private:
    """A run that was closed as it should be."""
    made = private(mlp(), **{"batches": "full", **made_with(settings)})
    with recorded(made, folder, **settings):
        made.train(steps)
    return made


def killed_run(folder: Path, steps: int, kept_at: int | None, **settings: Any) -> Private:
    """A run of which only that is left which was on disk after so many steps."""
    made = private(mlp(), **{"batches": "full", **made_with(settings)})
    going = folder.with_name(folder.name + "-going")
    recorder = started(made, going, **({} if kept_at is None else {"checkpoint_at": [kept_at]}), **settings)
    made.train(steps)
    shutil.copytree(going, folder)
    recorder.close()
    shutil.rmtree(going)
    return made


def made_with(settings: dict[str, Any]) -> dict[str, Any]:
    """Those of the settings that make_private wants, taken out."""
    wanted = ("batches", "optimizer", "noise", "batch_size", "clip", "mode", "model", "loader", "dataset")
    return {name: settings.pop(name) for name in wanted if name in settings}


def rebuilt(folder: Path, **settings: Any) -> Private:
    """The loop built again, with the weights of the last checkpoint loaded by hand."""
    made = private(mlp(), **{"batches": "full", **settings})
    made.plain.load_state_dict(load_file(folder / document(folder)["checkpoints"][-1]["files"][0]["name"]))
    return made


def gaussian_mu(noises: list[float], sensitivity: float = 2.0) -> float:
    """What full-batch steps of these noise multipliers cost together, from the theorem: μ² = Σ (k/σ)²."""
    return math.sqrt(sum((sensitivity / noise) ** 2 for noise in noises))
