"""Opacus' own example scripts with the recorder's lines added, run on little data."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch

from dpmerge.portfolio import Portfolio
from dpmerge.terms.mechanism_schema import DpSgdFacts
from training.loops import QUIET

pytestmark = [pytest.mark.filterwarnings(rule) for rule in QUIET]

EXAMPLES = Path(__file__).parents[2] / "examples" / "opacus"
CNN = ["-r", "240", "-b", "40", "-n", "2"]
NAMES = ["--names", "60", "-b", "36", "--epochs", "2", "--embedding-size", "8", "--hidden-size", "12"]


def example(name: str) -> ModuleType:
    found = importlib.util.spec_from_file_location(f"opacus_example_{name}", EXAMPLES / f"{name}.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


RUNS = {
    "mnist_cnn": ("mnist_cnn", CNN, (6, 1.0, 1.0)),
    "mnist_cnn under autocast": ("mnist_cnn", [*CNN, "--autocast"], (6, 1.0, 1.0)),
    "char_lstm": ("char_lstm", NAMES, (4, 1.0, 1.5)),
    "char_lstm as a GRU": ("char_lstm", [*NAMES, "--mode", "gru"], (4, 1.0, 1.5)),
}


@pytest.mark.parametrize("run", RUNS)
def test_an_example_of_opacus_is_recorded(tmp_path: Path, run: str, capsys: pytest.CaptureFixture[str]) -> None:
    name, arguments, (batches, noise, clip) = RUNS[run]
    torch.manual_seed(0)
    recorder = example(name).main([str(tmp_path / "run"), *arguments])
    [recorded] = Portfolio.load(tmp_path).runs
    facts = recorded.manifest.mechanism
    assert isinstance(facts, DpSgdFacts)
    [block] = facts.blocks
    assert (block.steps, block.noise_multiplier, block.clip_norm) == (2 * batches, noise, clip)
    assert block.sampling_rate == pytest.approx(1 / batches, rel=1e-6)
    assert (facts.sampling, facts.optimizer.name) == ("poisson", "sgd")
    assert recorded.manifest.record_losses == "checked"
    assert recorded.manifest.finished
    assert [metric.name for metric in recorded.manifest.checkpoints[-1].metrics] == ["accuracy"]
    assert f"ε = {recorder.epsilon(1e-5 if name == 'mnist_cnn' else 8e-5):.2f}" in capsys.readouterr().out


def test_names_are_padded_to_a_length_that_no_name_decides() -> None:
    names = example("char_lstm")
    short, long = (names.encoded(text) for text in ("al", "a very long name that is cut"))
    alone, _ = names.padded_collate([(short, torch.tensor(0))])
    together, _ = names.padded_collate([(short, torch.tensor(0)), (long, torch.tensor(1))])
    assert torch.equal(alone[0], together[0])
    assert together.shape == (2, names.LONGEST)
