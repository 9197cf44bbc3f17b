"""One run: Opacus against the closed form of clipping, interruptions, seeds, and the number of steps."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn
from torch.utils.data import TensorDataset

from dpmerge import Portfolio
from dpmerge.errors import NoGuaranteeError
from dpmerge.portfolio.manifest import MANIFEST_NAME, Manifest
from reproduction import training
from reproduction.run_store import RunStore
from reproduction.tasks import cifar_task
from reproduction.training import SECONDS_NAME, Setup, Task, steps_per_epoch, train, warm_up_and_decay
from tiny_experiments import TINY, TinyImages

RATES = (1.0, 2.0, 0.5, 0.25)
SILENT = 1e-9
"""A noise multiplier of which nothing is seen."""


def weights(directory: Path, step: int) -> dict[str, torch.Tensor]:
    [saved] = [c for c in Manifest.read(directory / MANIFEST_NAME).checkpoints if c.step == step]
    return safetensors.torch.load_file(directory / saved.files[0].name)


def closed_form(task: Task, clip_norm: float, rates: tuple[float, ...]) -> np.ndarray:
    """Softmax regression from zero, every record in every step: [10, features + 1].

    The gradient of a record is (p − y) ⊗ [x, 1]; its norm is |p − y| · √(|x|² + 1).
    """
    features, labels = (tensor.numpy() for tensor in task.private.tensors)
    inputs = np.hstack([features, np.ones((len(features), 1))]).astype(float)
    wanted = np.eye(10)[labels]
    found = np.zeros((10, inputs.shape[1]))
    lengths = np.linalg.norm(inputs, axis=1)
    acted = []
    for rate in rates:
        logits = inputs @ found.T
        chances = np.exp(logits - logits.max(axis=1, keepdims=True))
        errors = chances / chances.sum(axis=1, keepdims=True) - wanted
        factors = np.minimum(1, clip_norm / (np.linalg.norm(errors, axis=1) * lengths + 1e-6))
        acted.append(np.mean(factors < 1))
        found -= rate * (factors[:, np.newaxis] * errors).T @ inputs / len(inputs)
    assert 0.05 < np.mean(acted) <= 1
    return found


@pytest.mark.parametrize("clip_norm", [2.0, 20.0])
@pytest.mark.parametrize("physical_batch", [None, 250])
def test_a_linear_model_is_clipped_as_the_closed_form_says(
    store: RunStore, tmp_path: Path, clip_norm: float, physical_batch: int | None
) -> None:
    """Ghost clipping all at once, and gradients record by record in physical batches: the same run."""
    task = replace(store.mnist, physical_batch=physical_batch)
    train(task, Setup(clip_norm=clip_norm, noise_multiplier=SILENT, rates=RATES), tmp_path / "run", noise_seed=1)
    found = weights(tmp_path / "run", len(RATES))
    expected = closed_form(task, clip_norm, RATES)
    assert found["weight"].numpy() == pytest.approx(expected[:, :-1], abs=2e-5)
    assert found["bias"].numpy() == pytest.approx(expected[:, -1], abs=2e-5)


def small_task() -> Task:
    generator = torch.Generator().manual_seed(3)
    features, labels = torch.randn(50, 6, generator=generator), torch.randint(0, 3, (50,), generator=generator)

    def model() -> nn.Module:
        torch.manual_seed(5)
        return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))

    def score(_: object) -> float:
        return 0.0

    return Task(
        dataset="small",
        described="a small network",
        settings={},
        model=model,
        private=TensorDataset(features, labels),
        evaluators=(score, score),
        physical_batch=16,
    )


def test_a_network_is_clipped_record_by_record_across_physical_batches(tmp_path: Path) -> None:
    task, clip_norm = small_task(), 0.3
    train(task, Setup(clip_norm=clip_norm, noise_multiplier=SILENT, rates=RATES), tmp_path / "run", noise_seed=1)
    network = task.model()
    parameters = list(network.parameters())
    for rate in RATES:
        total = [torch.zeros_like(p) for p in parameters]
        for features, label in zip(*task.private.tensors, strict=True):
            loss = nn.functional.cross_entropy(network(features[None]), label[None])
            gradients = torch.autograd.grad(loss, parameters)
            norm = torch.sqrt(sum((g**2).sum() for g in gradients))  # type: ignore[arg-type]
            total = [t + g * min(1.0, clip_norm / (float(norm) + 1e-6)) for t, g in zip(total, gradients, strict=True)]
        with torch.no_grad():
            for parameter, summed in zip(parameters, total, strict=True):
                parameter -= rate * summed / task.records
    for name, found in weights(tmp_path / "run", len(RATES)).items():
        assert found.numpy() == pytest.approx(network.state_dict()[name].numpy(), abs=1e-5), name


def test_the_noise_has_the_size_it_is_recorded_with(store: RunStore, tmp_path: Path) -> None:
    """One step from zero weights: what is left after the closed form is N(0, (rate · σ · C / n)²)."""
    task = store.mnist
    train(task, Setup(clip_norm=2.0, noise_multiplier=8.0, rates=(4.0,)), tmp_path / "run", noise_seed=1)
    noise = weights(tmp_path / "run", 1)["weight"].numpy() - closed_form(task, 2.0, (4.0,))[:, :-1]
    assert noise.std() == pytest.approx(4.0 * 8.0 * 2.0 / task.records, rel=0.03)
    assert abs(noise.mean()) < 4 * noise.std() / np.sqrt(noise.size)


def test_rates_warm_up_and_then_decay_linearly() -> None:
    rates = warm_up_and_decay(4.0, 20)
    assert rates[:3] == (2.0, 4.0, 4.0)
    assert rates[3:] == pytest.approx([4.0 * (18 - t) / 18 for t in range(1, 18)])
    assert all(later < earlier for earlier, later in pairwise(rates[2:]))
    assert rates[-1] > 0
    assert warm_up_and_decay(1.0, 100)[9:11] == (1.0, 1.0)
    assert [steps_per_epoch(60_000, 256), steps_per_epoch(800, 64), steps_per_epoch(48, 16)] == [235, 13, 3]


def test_an_interrupted_run_is_trained_again_and_a_finished_one_is_not(store: RunStore, tmp_path: Path) -> None:
    run, setup = tmp_path / "run", Setup(clip_norm=2.0, noise_multiplier=1.0, rates=RATES, keep=(1,))

    def interrupted(done: int, _: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(store.mnist, setup, run, noise_seed=1, progress=interrupted)
    assert not (run / SECONDS_NAME).exists()
    seen: list[tuple[int, int]] = []
    took = train(store.mnist, setup, run, noise_seed=1, progress=lambda *at: seen.append(at))
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert Manifest.read(run / MANIFEST_NAME).finished
    before = {file: (file.stat().st_mtime_ns, file.read_bytes()) for file in run.iterdir()}
    assert train(store.mnist, setup, run, noise_seed=1, progress=lambda *at: seen.append(at)) == took
    assert len(seen) == 4
    assert {file: (file.stat().st_mtime_ns, file.read_bytes()) for file in run.iterdir()} == before
    uninterrupted = tmp_path / "elsewhere" / "run"
    train(store.mnist, setup, uninterrupted, noise_seed=1)
    assert _bytes(uninterrupted) == _bytes(run)


def _bytes(run: Path) -> list[bytes]:
    return [file.read_bytes() for file in sorted(run.glob("*.safetensors"))]


@pytest.mark.parametrize("batch", [None, 64])
def test_the_same_seed_gives_the_same_bytes_and_another_does_not(
    store: RunStore, tmp_path: Path, batch: int | None
) -> None:
    setup = Setup(clip_norm=2.0, noise_multiplier=1.0, rates=(0.1,) * 13, batch=batch)
    for place, seed in enumerate((1, 1, 2)):
        train(store.mnist, setup, tmp_path / str(place) / "run", noise_seed=seed)
    first, again, other = (_bytes(tmp_path / str(place) / "run") for place in range(3))
    assert len(first) == 1
    assert first == again
    assert first != other


def test_runs_that_share_noise_are_refused_and_the_store_makes_none(store: RunStore, tmp_path: Path) -> None:
    setup = Setup(clip_norm=2.0, noise_multiplier=1.0, rates=(0.1,))
    for name in ("one", "two"):
        train(store.mnist, replace(setup, clip_norm=1.0 + (name == "two")), tmp_path / name, noise_seed=1)
    with pytest.raises(NoGuaranteeError, match="share a noise seed"):
        Portfolio.load(tmp_path).everything().profile()
    names = [(name, str(repeat), run) for name in ("a", "b") for repeat in range(20) for run in ("x", "y", "z")]
    seeds = [store.noise_seed(*name) for name in names]
    assert len(set(seeds)) == len(names)
    assert seeds == [store.noise_seed(*name) for name in names]
    assert store.noise_seed("a", "1", "x") != replace(store, seed=43).noise_seed("a", "1", "x")


@pytest.mark.parametrize("physical_batch", [None, 16])
def test_poisson_batches_take_exactly_the_steps_asked_for(
    store: RunStore, tmp_path: Path, physical_batch: int | None
) -> None:
    """Two epochs of thirteen batches, some of which are larger than what fits at once."""
    task = replace(store.mnist, physical_batch=physical_batch)
    setup = Setup(clip_norm=2.0, noise_multiplier=1.0, rates=(0.1,) * 26, keep=(13,), batch=64)
    train(task, setup, tmp_path / "run", noise_seed=1)
    manifest = Manifest.read(tmp_path / "run" / MANIFEST_NAME)
    assert [checkpoint.step for checkpoint in manifest.checkpoints] == [13, 26]
    [run] = Portfolio.load(tmp_path).runs
    assert run.mechanism.steps == 26
    assert run.mechanism.adjacency == "add_remove"
    assert run.mechanism.sampling_rates == pytest.approx(1 / 13)  # type: ignore[attr-defined]
    assert run.mechanism.rates == pytest.approx(0.1 / int(800 / 13), rel=0.02)  # type: ignore[attr-defined]


@pytest.mark.parametrize("physical_batch", [None, 32])
@pytest.mark.parametrize("steps", [3, 15])
def test_steps_that_are_no_whole_epochs_are_taken_and_no_more(
    store: RunStore, tmp_path: Path, steps: int, physical_batch: int | None
) -> None:
    """Of an epoch of thirteen batches."""
    setup = Setup(clip_norm=2.0, noise_multiplier=1.0, rates=(0.1,) * steps, keep=(1, 2), batch=64)
    train(replace(store.mnist, physical_batch=physical_batch), setup, tmp_path / "run", noise_seed=1)
    manifest = Manifest.read(tmp_path / "run" / MANIFEST_NAME)
    assert [checkpoint.step for checkpoint in manifest.checkpoints] == [1, 2, steps]
    [run] = Portfolio.load(tmp_path).runs
    assert run.mechanism.steps == steps


def test_channels_last_as_on_a_gpu_changes_neither_pretraining_nor_scores_and_is_not_trained_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pretrained(folder: Path) -> tuple[Task, dict[str, torch.Tensor]]:
        task = cifar_task(TinyImages().cifar10(), replace(TINY.cifar, epochs=1), folder, 42)
        return task, dict(task.model().state_dict())

    before, usual = pretrained(tmp_path / "usual")
    weights = {name: tensor.numpy() for name, tensor in usual.items()}
    scores = [score(weights) for score in before.evaluators]
    laid = list[torch.memory_format]()
    monkeypatch.setattr(training, "layout", lambda _: laid.append(torch.channels_last) or torch.channels_last)
    task, last = pretrained(tmp_path / "last")
    assert laid
    for name, tensor in usual.items():
        torch.testing.assert_close(last[name], tensor, rtol=1e-3, atol=1e-4)
    assert scores == [score(weights) for score in task.evaluators]
    asked = len(laid)
    train(task, Setup(clip_norm=2.0, noise_multiplier=1.0, rates=(0.1,)), tmp_path / "run", noise_seed=1)
    assert len(laid) == asked


def test_records_that_workers_fetch_are_the_same(store: RunStore, tmp_path: Path) -> None:
    setup = Setup(clip_norm=2.0, noise_multiplier=1.0, rates=(0.1, 0.1))
    for name, workers in (("alone", 0), ("fetched", 1)):
        train(replace(store.cifar10, workers=workers), setup, tmp_path / name, noise_seed=1)
    alone, fetched = (next((tmp_path / run).glob("*.safetensors")).read_bytes() for run in ("alone", "fetched"))
    assert alone == fetched
