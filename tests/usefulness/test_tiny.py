"""The whole benchmark of usefulness, a few records at a time: trained, planned, merged and scored."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from dpmerge.terms.recipe import Recipe
from tiny_experiments import TinyImages
from usefulness.measure import Trained, measured, train
from usefulness.networks import LowRank, VisionTransformer, with_adapters
from usefulness.page import ORDER, page, read, write_results
from usefulness.portfolios import KINDS, Kind, Scale

SEEDS = (0, 1)
TINY = Scale(
    records=64, tests=200, batch=16, noises=(1.0, 2.0), resnet_public=32, transformer_public=200, pretraining=1, width=4
)
QUICK: dict[str, Kind] = {name: replace(kind, epochs=1) for name, kind in KINDS.items()}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def test_every_kind_has_its_place_on_the_page() -> None:
    assert tuple(KINDS) == ORDER


def told(_: str) -> None:
    pass


def trained(name: str, cache: Path) -> Trained:
    return train(QUICK[name], TINY, SEEDS, TinyImages(), cache, told)


def test_from_training_to_the_page(cache: Path, tmp_path: Path) -> None:
    found = measured(QUICK["mlp"], TINY, SEEDS, TinyImages(), cache, told)
    assert len(found["targets"]) == 5
    assert len(found["checkpoints"]) == 8
    assert all(len(row["auto"]["accuracy"]) == len(SEEDS) for row in found["targets"])
    lines: list[str] = []
    train(QUICK["mlp"], TINY, SEEDS, TinyImages(), cache, lines.append)
    assert lines == [], "finished runs are found again"
    scale = {"tests": 200, "records": 64, "batch": 16, "clip_norm": 1.0, "noises": [1.0, 2.0]}
    public = {"resnet_public": 32, "transformer_public": 200}
    write_results(tmp_path / "results.json", "mlp", found, {**scale, **public}, SEEDS, {})
    assert "| mlp |" in page(read(tmp_path / "results.json"))


def test_an_average_is_scored_as_the_model_of_averaged_weights(cache: Path) -> None:
    models = trained("mlp", cache)
    files = [run.checkpoints[-1].files[0] for run in models.portfolios[0].runs]
    first, second = (load_file(file) for file in files)
    mean = {name: (first[name].astype(np.float64) + second[name]) / 2 for name in first}
    images = TinyImages().mnist()
    pixels = (images.test / 255 - 0.1307) / 0.3081
    hidden = np.maximum(pixels @ mean["0.weight"].T + mean["0.bias"], 0)
    by_hand = ((hidden @ mean["2.weight"].T + mean["2.bias"]).argmax(1) == images.test_labels).mean()
    recipe = Recipe.of({run.checkpoints[-1].name: 0.5 for run in models.portfolios[0].runs})
    assert models.accuracy(recipe)[0] == pytest.approx(by_hand, abs=0.0051), "one image in 200 may be a tie"


def test_seeds_have_starts_of_their_own_and_runs_of_a_seed_share_one(cache: Path) -> None:
    starts = [
        {run.manifest.initial_weights for run in portfolio.runs} for portfolio in trained("mlp", cache).portfolios
    ]
    assert [len(each) for each in starts] == [1, 1]
    assert starts[0] != starts[1]


def test_adapters_are_trained_and_what_they_stand_beside_is_not(cache: Path) -> None:
    run = trained("lora", cache).portfolios[0].runs[0]
    assert run.manifest.ancestry.start == "public"
    assert run.manifest.tensors is not None
    assert run.manifest.tensors.trained
    assert all(".up." in name or ".down." in name for name in run.manifest.tensors.trained)
    assert "embedding.weight" in run.manifest.tensors.frozen


def test_an_adapter_begins_without_any_effect() -> None:
    torch.manual_seed(0)
    network, images = VisionTransformer(), torch.randn(5, 784)
    before = network(images)
    assert torch.equal(with_adapters(network)(images), before)
    assert sum(isinstance(module, LowRank) for module in network.modules()) == 9


@pytest.mark.parametrize("name", ["linear", "cnn", "resnet"])
def test_every_other_kind_trains_and_is_scored(name: str, cache: Path) -> None:
    models = trained(name, cache)
    start = {run.manifest.ancestry.start for run in models.portfolios[0].runs}
    assert start == {"public" if name == "resnet" else "random"}
    accuracy = models.accuracy(Recipe.of({models.portfolios[0].runs[0].checkpoints[-1].name: 1.0}))
    assert all(0 <= value <= 1 for value in accuracy)
