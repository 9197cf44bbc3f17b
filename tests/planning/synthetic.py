"""Portfolios made in memory, of any size and settings: what planning needs of one, without files."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dpmerge.portfolio.compatibility import mechanisms
from dpmerge.portfolio.manifest import Manifest
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.portfolio.recorded_runs import RecordedRun, Run, SavedCheckpoint
from portfolio.portfolios import DP_SGD, manifest, replaced

SMOOTH = {"kind": "softmax", "feature_bound": 1.0, "records": 100, "vouched_by": "the tests"}


def run_document(
    name: str,
    *,
    noise_multiplier: float,
    steps: int = 20,
    clip_norm: float = 2.0,
    learning_rate: float | Sequence[float] = 0.01,
    sampling_rate: float | None = None,
    adjacency: str = "replace_one",
    smooth: bool = False,
    **overrides: Any,
) -> dict[str, Any]:
    """The manifest of one DP-SGD run, checkpoints not listed."""
    block = {
        "steps": steps,
        "noise_multiplier": float(noise_multiplier),
        "clip_norm": float(clip_norm),
        "learning_rate": learning_rate if isinstance(learning_rate, float) else list(learning_rate),
    }
    mechanism = {**DP_SGD, "blocks": [block]}
    if sampling_rate is not None:
        block["sampling_rate"] = sampling_rate
        mechanism["sampling"] = "poisson"
    if smooth:
        mechanism["smoothness"] = SMOOTH
    document = manifest(name, mechanism=mechanism, **overrides)
    document = replaced(document, "adjacency", to=adjacency)
    if adjacency == "add_remove":
        document["dataset"].pop("size", None)
    return document


def portfolio(runs: Mapping[str, tuple[dict[str, Any], Sequence[int]]]) -> Portfolio:
    """A portfolio of these manifests, with checkpoints kept after these steps."""
    recorded = []
    for name, (document, steps) in runs.items():
        parsed = Manifest.model_validate(document)
        saved = tuple(checkpoint(name, step) for step in steps)
        recorded.append(RecordedRun(parsed, Path(name), saved))
    made = mechanisms(tuple(recorded))
    return Portfolio(
        Path("synthetic"),
        tuple(Run(r.manifest, r.folder, made[r.manifest.run], r.checkpoints) for r in recorded),
        True,
        frozenset(),
        True,
    )


def checkpoint(name: str, step: int) -> SavedCheckpoint:
    return SavedCheckpoint(
        run=name,
        step=step,
        files=(),
        file_digests=(),
        tensors={},
        metrics=(),
        digests=None,
        recorded_weights=hashlib.sha256(f"{name}@{step}".encode()).hexdigest(),
        manifest_file=Path(name) / "privacy.json",
    )


def ladder(
    count: int, kept: Sequence[int] = (20,), *, noise: Sequence[float] | float = 64.0, **settings: Any
) -> Portfolio:
    """`count` runs of equal noise, or of the noise given for each."""
    levels = np.broadcast_to(np.asarray(noise, dtype=float), count).tolist()
    return portfolio(
        {
            f"run-{place}": (run_document(f"run-{place}", noise_multiplier=level, **settings), kept)
            for place, level in enumerate(levels, start=1)
        }
    )
