"""The model of a recipe in a folder: from a portfolio to files that load."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpmerge.errors import InvalidInputError, NotCombinableError
from dpmerge.merging.recipe_files import Built, build, trained_by
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.terms.recipe import Recipe
from merging.models import Model, read_model, tensor, tree, values_of, write_run
from merging.test_adapters import adapter, change, config, scaling
from portfolio.portfolios import OTHER_START, START, edit_manifest, read_manifest, sha256, write_json

ONE_FILE = "step-4.safetensors"
FROZEN = tensor("F32", (8,), 99)


def tensors_of(seed: int) -> Model:
    return {"w": tensor("BF16", (40, 5), seed), "b": tensor("F32", (5,), seed + 50), "frozen": FROZEN}


def write_runs(home: Path, runs: str = "abc", **settings: Any) -> Path:
    for seed, run in enumerate(runs):
        small = {"config.json": f'{{"of": "{run}"}}', "trainer_state.json": "{}"}
        write_run(home, run, {ONE_FILE: tensors_of(seed)}, frozen=["frozen"], small=small, **settings)
    return home


def built(home: Path, recipe: Recipe, out: Path, *, contents: bool = False, **settings: Any) -> Built:
    out.mkdir()
    return build(Portfolio.load(home, contents=contents), recipe, out, **settings)


@pytest.mark.parametrize("contents", [True, False])
def test_a_merge_is_written_with_its_small_files(tmp_path: Path, contents: bool) -> None:
    home = write_runs(tmp_path / "runs")
    recipe = Recipe.of({"a@4": 0.25, "b@4": 0.5, "c@4": 0.25})
    found = built(home, recipe, tmp_path / "out", contents=contents)
    assert found.donor == "b"
    assert found.left == ("trainer_state.json",)
    assert [file.name for file in found.files] == ["config.json", "model.safetensors"]
    assert all(file.sha256 == sha256(tmp_path / "out" / file.name) for file in found.files)
    assert (tmp_path / "out" / "config.json").read_text() == '{"of": "b"}'
    merged = read_model(tmp_path / "out")
    assert merged["frozen"] == FROZEN
    for name, dtype in (("w", "BF16"), ("b", "F32")):
        models = [values_of(dtype, tensors_of(seed)[name][2]) for seed in range(3)]
        exact = 0.25 * models[0] + 0.5 * models[1] + 0.25 * models[2]
        np.testing.assert_allclose(values_of(dtype, merged[name][2]), exact, rtol=2**-8, atol=1e-8)


@pytest.mark.parametrize(("weights", "donor"), [
    ({"a@4": 0.25, "b@4": 0.75}, "b"), ({"b@4": 0.5, "a@4": 0.5}, "a"), ({"c@4": 1.0}, "c"),
])  # fmt: skip
def test_the_donor_is_the_run_that_weighs_most_and_then_the_first_by_name(
    tmp_path: Path, weights: dict[str, float], donor: str
) -> None:
    home = write_runs(tmp_path / "runs")
    assert built(home, Recipe.of(weights), tmp_path / "out").donor == donor


def test_another_donor_may_be_named_and_an_unknown_one_is_refused(tmp_path: Path) -> None:
    home = write_runs(tmp_path / "runs")
    recipe = Recipe.of({"a@4": 0.75, "b@4": 0.25})
    assert built(home, recipe, tmp_path / "out", donor="b").donor == "b"
    assert (tmp_path / "out" / "config.json").read_text() == '{"of": "b"}'
    with pytest.raises(InvalidInputError, match="a run of the recipe: a, b"):
        built(home, recipe, tmp_path / "other", donor="c")


def test_one_checkpoint_is_copied(tmp_path: Path) -> None:
    home = write_runs(tmp_path / "runs")
    built(home, Recipe.of({"b@4": 1.0}), tmp_path / "out")
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == (home / "b" / ONE_FILE).read_bytes()


def test_one_checkpoint_with_noise_is_not_copied(tmp_path: Path) -> None:
    home = write_runs(tmp_path / "runs")
    built(home, Recipe.of({"b@4": 1.0}, release_noise=1.0), tmp_path / "out")
    found, plain = read_model(tmp_path / "out"), tensors_of(1)
    assert found["frozen"] == FROZEN
    assert np.all(values_of("F32", found["b"][2]) != values_of("F32", plain["b"][2]))


def test_runs_that_may_not_be_averaged_are_refused_until_that_is_allowed(tmp_path: Path) -> None:
    home = write_runs(tmp_path / "runs")
    for run, start in (("a", START), ("b", OTHER_START)):
        write_json(home / run / "privacy.json", {**read_manifest(home / run), "initial_weights": start})
    recipe = Recipe.of({"a@4": 0.5, "b@4": 0.5})
    with pytest.raises(NotCombinableError):
        built(home, recipe, tmp_path / "out")
    assert tree(tmp_path / "out") == {}
    (tmp_path / "allowed").mkdir()
    portfolio = Portfolio.load(home, contents=False, allow=["different_initial_weights"])
    assert build(portfolio, recipe, tmp_path / "allowed").donor == "a"


def test_what_any_run_trained_is_trained(tmp_path: Path) -> None:
    home = write_runs(tmp_path / "runs")
    runs = Portfolio.load(home, contents=False).runs
    assert trained_by(runs) == {"w", "b"}
    edit_manifest(home / "b", "tensors", to={"trained": ["w", "b", "frozen"], "frozen": []})
    assert trained_by(Portfolio.load(home, contents=False).runs) == {"w", "b", "frozen"}
    document = read_manifest(home / "c")
    del document["tensors"]
    write_json(home / "c" / "privacy.json", document)
    assert trained_by(Portfolio.load(home, contents=False).runs) is None


def test_several_checkpoints_of_one_run_are_averaged(tmp_path: Path) -> None:
    home = write_runs(tmp_path / "runs", "a")
    from merging.models import write_tensors

    write_tensors(home / "a" / "later.safetensors", tensors_of(7))
    entry = {"step": 3, "files": [{"name": "later.safetensors", "sha256": sha256(home / "a" / "later.safetensors")}]}
    document = read_manifest(home / "a")
    write_json(home / "a" / "privacy.json", {**document, "checkpoints": [entry, *document["checkpoints"]]})
    found = built(home, Recipe.of({"a@3": 0.5, "a@4": 0.5}), tmp_path / "out")
    assert found.donor == "a"
    exact = (values_of("F32", tensors_of(0)["b"][2]) + values_of("F32", tensors_of(7)["b"][2])) / 2
    np.testing.assert_allclose(values_of("F32", read_model(tmp_path / "out")["b"][2]), exact, rtol=1e-6)


def write_adapter_runs(home: Path) -> Path:
    for seed, run in enumerate("ab"):
        small = {"adapter_config.json": json.dumps(config()), "tokenizer.json": "{}"}
        write_run(home, run, {"last/adapter_model.safetensors": adapter(seed, 2, "F32")}, small=small)
    return home


def test_adapters_are_averaged_as_trained(tmp_path: Path) -> None:
    home = write_adapter_runs(tmp_path / "runs")
    found = built(home, Recipe.of({"a@4": 0.5, "b@4": 0.5}), tmp_path / "out")
    assert [f.name for f in found.files] == ["adapter_config.json", "adapter_model.safetensors", "tokenizer.json"]
    assert json.loads((tmp_path / "out" / "adapter_config.json").read_text()) == config()
    for name, (dtype, _, content) in read_model(tmp_path / "out").items():
        exact = sum(0.5 * values_of(dtype, adapter(seed, 2, dtype)[name][2]) for seed in range(2))
        np.testing.assert_allclose(values_of(dtype, content), exact, rtol=1e-6, atol=1e-9)


def test_adapters_are_concatenated_where_asked_for(tmp_path: Path) -> None:
    home = write_adapter_runs(tmp_path / "runs")
    found = built(home, Recipe.of({"a@4": 0.75, "b@4": 0.25}), tmp_path / "out", adapters="concatenated")
    assert [f.name for f in found.files] == ["adapter_config.json", "adapter_model.safetensors", "tokenizer.json"]
    told, merged = json.loads((tmp_path / "out" / "adapter_config.json").read_text()), read_model(tmp_path / "out")
    module = "base_model.model.layers.0.q_proj"
    exact = sum(w * change(adapter(seed, 2, "F32"), module, 2.0) for seed, w in enumerate([0.75, 0.25]))
    np.testing.assert_allclose(change(merged, module, scaling(told)), exact, atol=1e-8)


def test_concatenation_is_refused_with_noise_and_other_ways_by_name(tmp_path: Path) -> None:
    home = write_adapter_runs(tmp_path / "runs")
    weights = {"a@4": 0.75, "b@4": 0.25}
    with pytest.raises(InvalidInputError, match="release_noise"):
        built(home, Recipe.of(weights, release_noise=1.0), tmp_path / "noise", adapters="concatenated")
    with pytest.raises(InvalidInputError, match="as_trained, concatenated"):
        built(home, Recipe.of(weights), tmp_path / "other", adapters="averaged")
