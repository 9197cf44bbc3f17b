"""A manifest that is written again gets a new stream of noise, and is a new run to the ledger: without locks.

σ = (2, 0.5), one step, weights (.99, .01) and then (.98, .02), each declared final: 4.43 + 4.48 claimed, 25.4 true.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from attacks.faults import must_notice
from dpmerge.cli import app
from dpmerge.errors import RunsLockedError
from dpmerge.ledger.ledger import Ledger
from dpmerge.portfolio.manifest import Manifest
from dpmerge.releasing import release as releasing
from dpmerge.releasing.known_weights import require_runs_as_charged
from portfolio.portfolios import DP_SGD, manifest, model, replaced, write_portfolio

NOISE = {"a": 2.0, "b": 0.5}


def two_runs(home: Path) -> Path:
    blocks = {n: {"steps": 1, "noise_multiplier": s, "clip_norm": 1.0, "learning_rate": 0.01} for n, s in NOISE.items()}
    manifests = {n: manifest(n, mechanism=replaced(DP_SGD, "blocks", 0, to=block)) for n, block in blocks.items()}
    models = {name: {1: model(place)} for place, name in enumerate(NOISE)}
    return write_portfolio(home, runs=NOISE, manifests=manifests, models=models)


def written_again(home: Path) -> None:
    """As `manifest new` would: the same facts, another stream."""
    for name in NOISE:
        file = home / name / "privacy.json"
        stated = Manifest.read(file)
        fresh = stated.noise.model_copy(update={"stream": ("f" if name == "a" else "e") * 32})
        stated.model_copy(update={"noise": fresh}).write(file)


def merged(home: Path, weights: str, out: Path) -> Result:
    arguments = ["merge", home, "--weights", weights, "--epsilon", "5", "--delta", "1e-5", "--final"]
    settings = ["--theorem", "last_step", "-o", out]
    return CliRunner().invoke(app, [*map(str, [*arguments, *settings])], env={"DPMERGE_LEDGER": None})


def released_twice(folder: Path) -> None:
    home = two_runs(folder / "runs")
    first = merged(home, "a@1=0.99,b@1=0.01", folder / "first")
    assert first.exit_code == 0, first.output
    written_again(home)
    second = merged(home, "a@1=0.98,b@1=0.02", folder / "second")
    assert second.exit_code == 1
    assert "has charged these weights as a@1" in " ".join(second.output.split())
    assert not (folder / "second").exists()


def test_runs_stay_locked_after_their_manifests_are_written_again(tmp_path: Path) -> None:
    must_notice(released_twice, tmp_path, releasing, "require_runs_as_charged", lambda *_: None)


def test_a_common_start_is_not_refused_as_charged_weights(tmp_path: Path) -> None:
    home = two_runs(tmp_path / "runs")
    assert merged(home, "a@1=0.99,b@1=0.01", tmp_path / "first").exit_code == 0
    with Ledger.open(home / "privacy-ledger.sqlite") as ledger:
        a, b = (Manifest.read(home / name / "privacy.json") for name in NOISE)
        require_runs_as_charged(ledger, [a, b])
        start = a.checkpoints[0].model_copy(update={"step": 0})
        require_runs_as_charged(ledger, [b.model_copy(update={"checkpoints": [start]})])
        with pytest.raises(RunsLockedError, match="charged these weights as a@1"):
            require_runs_as_charged(ledger, [b.model_copy(update={"checkpoints": a.checkpoints})])
