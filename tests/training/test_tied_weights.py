"""Parameters with several names: recorded as one weight, released with one draw; shared memory that is no tie."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from attacks.faults import must_notice
from dpmerge.errors import TensorMismatchError
from dpmerge.merging.recipe_files import build
from dpmerge.portfolio.manifest import MANIFEST_NAME, Manifest
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.terms.recipe import Recipe
from dpmerge.training import model_tensors, recording_session
from training.loops import (
    CLASSES,
    FEATURES,
    QUIET,
    Private,
    mlp,
    private,
    recorded,
    refused_at_once,
    refusing,
    same_records,
)

pytestmark = [pytest.mark.filterwarnings(text) for text in QUIET]

WORDS, WIDTH, LENGTH = 13, 6, 5


class LanguageModel(nn.Module):
    """An embedding and a head that are one matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, words: Tensor) -> Tensor:
        return self.head(torch.tanh(self.inner(self.embedding(words).mean(1))))


class Repeated(nn.Module):
    """One layer in three places."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.Linear(FEATURES, FEATURES)
        self.layers = nn.ModuleList([layer, nn.Linear(FEATURES, FEATURES), layer, layer])
        self.head = nn.Linear(FEATURES, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        for layer in self.layers:
            inputs = torch.tanh(layer(inputs))
        return self.head(inputs)


def sentences() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    words = torch.randint(0, WORDS, (48, LENGTH), generator=generator)
    return TensorDataset(words, torch.randint(0, WORDS, (48,), generator=generator))


def language_model() -> Private:
    return private(LanguageModel(), dataset=sentences())


MODELS: dict[str, tuple[Callable[[], Private], list[list[str]]]] = {
    "embedding and head": (language_model, [["embedding.weight", "head.weight"]]),
    "a layer in three places": (
        lambda: private(Repeated()),
        [[f"layers.{place}.{kind}" for place in (0, 2, 3)] for kind in ("weight", "bias")],
    ),
    "no tie": (private, []),
}


@pytest.mark.parametrize("trained_only", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_ties_are_recorded_and_get_one_draw(tmp_path: Path, name: str, trained_only: bool) -> None:
    make, tied = MODELS[name]
    run = make()
    with recorded(run, tmp_path / "runs" / "a", run="a", trained_only=trained_only):
        run.train(2)
    manifest = Manifest.read(tmp_path / "runs" / "a" / MANIFEST_NAME)
    assert manifest.tensors is not None
    assert manifest.tensors.tied == tied
    (tmp_path / "out").mkdir()
    build(Portfolio.load(tmp_path / "runs"), Recipe.of({"a@2": 1.0}, release_noise=1.0), tmp_path / "out")
    found = load_file(tmp_path / "out" / "model.safetensors")
    alike = [{n for n in found if np.array_equal(found[n], found[name])} for name in found]
    assert sorted(map(sorted, {frozenset(names) for names in alike if len(names) > 1})) == sorted(map(sorted, tied))


def unrecorded(home: Path) -> None:
    """A record of version 0.1, which says nothing of ties."""
    run = language_model()
    with recorded(run, home / "runs" / "a", run="a"):
        run.train(2)
    file = home / "runs" / "a" / MANIFEST_NAME
    document = json.loads(file.read_text())
    assert document["tensors"].pop("tied") == [["embedding.weight", "head.weight"]]
    file.write_text(json.dumps(document))
    (home / "out").mkdir()
    recipe = Recipe.of({"a@2": 1.0}, release_noise=1.0)
    with pytest.raises(TensorMismatchError, match="the values of embedding.weight in a@2"):
        build(Portfolio.load(home / "runs"), recipe, home / "out")


def test_a_record_without_ties_is_refused(tmp_path: Path) -> None:
    unrecorded(tmp_path)


def test_tests_notice_a_recorder_that_forgets_ties(tmp_path: Path) -> None:
    def attack(home: Path) -> None:
        run = language_model()
        with recorded(run, home / "a", run="a"):
            run.train(1)
        tensors = Manifest.read(home / "a" / MANIFEST_NAME).tensors
        assert tensors is not None
        assert tensors.tied

    must_notice(attack, tmp_path, model_tensors, "tied_names", lambda parameters: [])


class Views(nn.Module):
    """A second parameter in the memory of the first."""

    def __init__(self, view: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, FEATURES, bias=False)
        self.second = nn.Parameter(view(self.first.weight.data))
        self.head = nn.Linear(FEATURES, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(torch.tanh(self.first(inputs)))


VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "all of it": lambda weight: weight,
    "transposed": lambda weight: weight.t(),
    "flat": lambda weight: weight.view(-1),
    "the last row": lambda weight: weight[-1:],
    "a column": lambda weight: weight[:, 3],
}


class Optimized:
    """As much of a private optimizer as is asked for its parameters."""

    def __init__(self, model: nn.Module) -> None:
        self.params = list(model.parameters())


@pytest.mark.parametrize("view", VIEWS)
def test_shared_memory_is_refused(view: str) -> None:
    """Opacus refuses a parameter outside of a layer by itself; so the recorder's own look is asked."""
    model = Views(VIEWS[view])
    with pytest.raises(model_tensors.RecordingError, match="shares memory with .*; make it the same parameter"):
        model_tensors.ModelTensors(model, Optimized(model), trained_only=False)


def test_parameters_side_by_side_in_memory_are_accepted() -> None:
    flat = torch.randn(2 * FEATURES * FEATURES)
    model = nn.Sequential(nn.Linear(FEATURES, FEATURES, bias=False), nn.Linear(FEATURES, FEATURES, bias=False))
    for place, layer in enumerate(model):
        layer.weight = nn.Parameter(flat[place * FEATURES**2 :][: FEATURES**2].view(FEATURES, FEATURES))
    tensors = model_tensors.ModelTensors(model, Optimized(model), trained_only=False)
    assert tensors.facts().tied == []


def transposed_layers() -> Private:
    model = nn.Sequential(
        nn.Linear(FEATURES, FEATURES), nn.Tanh(), nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, 4)
    )
    model[2].weight = nn.Parameter(model[0].weight.data.t())
    return private(model)


def two_parameters_over_one_memory(home: Path) -> None:
    refused_at_once(transposed_layers(), home / "a", "shares memory with model.0.weight and is another parameter")


def test_two_parameters_over_one_memory_are_refused_at_once(tmp_path: Path) -> None:
    two_parameters_over_one_memory(tmp_path)


def test_tests_notice_when_shared_memory_is_not_checked(tmp_path: Path) -> None:
    must_notice(two_parameters_over_one_memory, tmp_path, model_tensors, "require_own_memory", lambda parameters: None)


def exchanged(run: Private) -> None:
    run.plain[2].weight = nn.Parameter(run.plain[2].weight.detach().clone())


def memory_joined(run: Private) -> None:
    run.plain[2].weight.data = run.plain[0].weight.data[:CLASSES, :]


@pytest.mark.parametrize(
    ("change", "text"),
    [(exchanged, "another parameter than at the start"), (memory_joined, "shares memory with")],
    ids=["exchanged", "joined in memory"],
)
def test_parameters_that_are_exchanged_in_mid_run_are_refused(tmp_path: Path, change: Any, text: str) -> None:
    run = private(mlp(FEATURES))
    with refusing(run, tmp_path, text) as recorder:
        run.train(1)
        change(run)
        recorder._tensors.save(tmp_path, 1)


class Product(nn.Module):
    """A layer Opacus has no rule for."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs @ self.weight.t()


def two_kinds_of_layers(mode: str) -> Private:
    first = nn.Linear(FEATURES, FEATURES, bias=False)
    model = nn.Sequential(first, Product(first.weight), nn.Linear(FEATURES, CLASSES))
    return private(model, dataset=same_records(), mode=mode, batches="full", noise=1e-6, loss_reduction="sum")


def gradient_per_record(run: Private) -> float:
    """How long the sum of the clipped gradients of 48 equal records is, for each: at most the clip norm, 1."""
    run.step(next(iter(run.loader)))
    return float(torch.cat([p.grad.flatten() for p in run.optimizer.params]).norm()) / 48


def ghost_clipping_of_one_weight_in_two_kinds_of_layers(home: Path) -> None:
    """Recorded with the clip norm 1; a record's gradient is up to 1.3 long here, and not bounded at all."""
    refused_at_once(two_kinds_of_layers("ghost"), home / "a", "a parameter of 2 layers")


def test_ghost_clipping_of_one_weight_in_two_kinds_of_layers_is_refused(tmp_path: Path) -> None:
    torch.manual_seed(1)
    assert gradient_per_record(two_kinds_of_layers("ghost")) > 1.1
    ghost_clipping_of_one_weight_in_two_kinds_of_layers(tmp_path)
    (tmp_path / "faults").mkdir()
    fault = (recording_session, "require_measured", lambda *_: None)
    must_notice(ghost_clipping_of_one_weight_in_two_kinds_of_layers, tmp_path / "faults", *fault)


def test_hooks_clip_one_weight_in_two_kinds_of_layers(tmp_path: Path) -> None:
    run = two_kinds_of_layers("hooks")
    with recorded(run, tmp_path):
        assert gradient_per_record(run) <= 1 + 1e-4
