"""Evaluators that ask for a folder see the values that others see, in files that load, which are gone afterwards."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import stat
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dpmerge as dpm
from dpmerge import Portfolio
from dpmerge.errors import CannotWriteError, DigestMismatchError, EvaluationError, InvalidInputError
from dpmerge.evaluation import candidate_folder as scratch
from dpmerge.evaluation.evaluate import evaluate
from dpmerge.evaluation.evaluators import NamedEvaluator, load_evaluator, takes_folder
from dpmerge.evaluation.merged_model import StoredModel
from dpmerge.evaluation.path_evaluator import PathEvaluator
from dpmerge.merging.recipe_files import build
from dpmerge.terms.recipe import Recipe
from evaluation import folder_evaluators
from evaluation.scored_portfolios import Tensors
from merging.models import Tensor, bits_of, header_json, model, read_model, tensor, tree, values_of, write_run
from merging.test_adapters import FILE, adapter, config
from portfolio.portfolios import edit_manifest, write_json

THIRDS = Recipe.of({"a@4": 0.25, "b@4": 0.5, "c@4": 0.25})
NOISY = Recipe.of({"a@4": 0.25, "b@4": 0.5, "c@4": 0.25}, release_noise=0.5)
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def without_wild(seed: int) -> dict[str, Tensor]:
    """A tensor of each kind; two names of one weight, and one that nobody trained."""
    made: dict[str, Tensor] = {name: each for name, each in model(seed).items() if not name.endswith("wild")}
    tied = tensor("F32", (4, 3), seed + 70)
    return {**made, "tied.in": tied, "tied.out": tied, "steps": model(0)["steps"], "frozen": tensor("F16", (6,), 99)}


def write_runs(home: Path, *, shards: int = 2) -> Portfolio:
    """Runs of every dtype, in one file or two, each with a configuration of its own."""
    for seed, run in enumerate("abc"):
        tensors = without_wild(seed)
        names = list(tensors)
        files = {SHARDS[0]: names[:5], SHARDS[1]: names[5:]} if shards == 2 else {"step-4.safetensors": names}
        small = {"config.json": f'{{"of": "{run}"}}', "tokenizer.json": "{}", "trainer_state.json": "{}"}
        folder = write_run(
            home, run, {file: {name: tensors[name] for name in part} for file, part in files.items()},
            frozen=["frozen", "steps", "mask"], small=small, metadata={"format": "pt"},
        )  # fmt: skip
        edit_manifest(folder, "tensors", "tied", to=[["tied.in", "tied.out"]])
    return Portfolio.load(home)


@pytest.fixture(scope="module")
def abc(tmp_path_factory: pytest.TempPathFactory) -> Portfolio:
    return write_runs(tmp_path_factory.mktemp("abc"))


@pytest.fixture(autouse=True)
def scratch_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where scratch goes, and nothing is left."""
    place = tmp_path / "scratch"
    place.mkdir()
    monkeypatch.setenv("TMPDIR", str(place))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return place


def folders_of(portfolio: Portfolio, recipe: Recipe, **options: Any) -> list[dict[str, bytes]]:
    """All files of the folders that an evaluator is shown for a recipe."""
    seen = []

    @dpm.path_evaluator
    def look(folder: Path) -> float:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        seen.append(tree(folder))
        return 0.0

    evaluate(portfolio, [recipe], look, **options)
    return seen


def models_of(portfolio: Portfolio, recipe: Recipe, tmp_path: Path) -> list[dict[str, Tensor]]:
    found = []
    for place, files in enumerate(folders_of(portfolio, recipe)):
        folder = tmp_path / f"seen-{place}"
        folder.mkdir()
        for name, content in files.items():
            (folder / name).write_bytes(content)
        found.append(read_model(folder))
    return found


def tensors_of(portfolio: Portfolio, recipe: Recipe) -> list[Tensors]:
    seen: list[Tensors] = []
    evaluate(portfolio, [recipe], lambda tensors: seen.append(tensors) or 0.0)  # type: ignore[func-returns-value]
    return seen


# What is in the folder.


@pytest.mark.parametrize("recipe", [THIRDS, NOISY, Recipe.of({"c@4": 1.0}), Recipe.of({"c@4": 1.0}, release_noise=0.1)])
def test_the_values_in_the_folder_are_those_that_an_evaluator_of_tensors_is_given(
    abc: Portfolio, recipe: Recipe, tmp_path: Path
) -> None:
    in_memory, in_folders = tensors_of(abc, recipe), models_of(abc, recipe, tmp_path)
    assert len(in_memory) == len(in_folders) == (8 if recipe.release_noise else 1)
    for given, stored in zip(in_memory, in_folders, strict=True):
        assert given.keys() == stored.keys()
        for name, values in given.items():
            dtype, shape, content = stored[name]
            assert shape == values.shape
            if dtype != "BF16":
                assert content == values.tobytes(), name
            elif values.size:  # handed over as float32; stored as the nearest bfloat16
                error = np.abs(values_of(dtype, content) - values.ravel())
                assert np.all(error <= np.abs(values.ravel()) * 2.0**-8)
                apart = np.abs(bits_of(dtype, content).astype(int) - (values.ravel().view(np.uint32) >> 16).astype(int))
                assert set(apart) <= {0, 1}
    if recipe.release_noise:
        assert in_folders[0]["f32.weight"] != in_folders[1]["f32.weight"]
        assert all(each["tied.in"] == each["tied.out"] for each in in_folders)
        assert all(each["frozen"] == without_wild(0)["frozen"] for each in in_folders)


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("recipe", [THIRDS, Recipe.of({"c@4": 1.0})])
def test_without_noise_the_folder_is_what_a_merge_would_write(tmp_path: Path, recipe: Recipe, shards: int) -> None:
    portfolio = write_runs(tmp_path / "runs", shards=shards)
    (tmp_path / "merged").mkdir()
    build(portfolio, recipe, tmp_path / "merged")
    [seen] = folders_of(portfolio, recipe)
    merged = tree(tmp_path / "merged")
    assert seen.keys() == merged.keys()
    donor = b"c" if recipe.is_one_checkpoint else b"b"
    assert seen["config.json"] == merged["config.json"] == b'{"of": "%s"}' % donor
    for place, files in (("seen", seen), ("merged", merged)):
        (tmp_path / f"{place}-files").mkdir()
        for name, content in files.items():
            (tmp_path / f"{place}-files" / name).write_bytes(content)
    assert read_model(tmp_path / "seen-files") == read_model(tmp_path / "merged-files")
    assert header_json(next((tmp_path / "seen-files").glob("*.safetensors")))["__metadata__"] == {"format": "pt"}


def test_bfloat16_is_rounded_to_the_nearest_and_ties_go_to_even() -> None:
    import torch

    values = np.random.default_rng(0).standard_normal(20_000).astype(np.float32)
    bits = values.view(np.uint32)
    bits[::3] = (bits[::3] & np.uint32(0xFFFF0000)) | np.uint32(0x8000)  # halfway
    expected = torch.from_numpy(values).to(torch.bfloat16).view(torch.int16).numpy().tobytes()
    assert scratch.stored_bytes("BF16", values) == expected


def test_adapters_are_in_the_files_that_peft_loads(tmp_path: Path) -> None:
    for seed, run in enumerate("ab"):
        write_run(tmp_path / "runs", run, {FILE: adapter(seed, 2, "F32")}, metadata={"format": "pt"})
        write_json(tmp_path / "runs" / run / "adapter_config.json", config(2, 4))
    [seen] = folders_of(Portfolio.load(tmp_path / "runs"), Recipe.of({"a@4": 0.5, "b@4": 0.5}))
    assert sorted(seen) == ["adapter_config.json", FILE]


def test_adapters_that_are_scaled_differently_are_refused_as_by_a_merge(tmp_path: Path) -> None:
    for seed, run in enumerate("ab"):
        write_run(tmp_path / "runs", run, {FILE: adapter(seed, 2, "F32")})
        write_json(tmp_path / "runs" / run / "adapter_config.json", config(2, 4 + seed))
    portfolio = Portfolio.load(tmp_path / "runs")
    with pytest.raises(InvalidInputError, match="lora_alpha: it scales by 2.5"):
        evaluate(portfolio, [Recipe.of({"a@4": 0.5, "b@4": 0.5})], folder_evaluators.counted)
    assert evaluate(portfolio, [Recipe.of({name: 1.0}) for name in ("a@4", "b@4")], folder_evaluators.counted) == [2, 2]


SCRIPT = """
import re, sys
from pathlib import Path
import dpmerge as dpm
from dpmerge.evaluation.evaluate import evaluate
from dpmerge.terms.recipe import Recipe
def peak():  # getrusage would count what this process was before it became Python
    return int(re.search("VmHWM:\\\\s+(\\\\d+)", Path("/proc/self/status").read_text())[1])
portfolio = dpm.Portfolio.load(sys.argv[1], contents=False)
recipes = [Recipe.of({"a@4": 0.5, "b@4": 0.5}, release_noise=noise) for noise in (0.0, 0.1)]
one = dpm.path_evaluator(lambda folder: 1.0)
before = peak()
evaluate(portfolio, recipes, one, noise_draws=2)
print(peak() - before)
"""


def test_memory_grows_with_the_largest_tensor_and_not_with_the_model(tmp_path: Path) -> None:
    """24 tensors of 4 MB: a model of 96 MB."""
    for seed, run in enumerate("ab"):
        values = np.random.default_rng(seed).standard_normal(2**20, dtype=np.float32).tobytes()
        tensors: dict[str, Tensor] = {f"w{place}": ("F32", (2**20,), values) for place in range(24)}
        write_run(tmp_path / "runs", run, {"step-4.safetensors": tensors})
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "runs")]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(result.stdout) < 64 * 1024


# What is left behind.


def test_nothing_is_left_after_a_score_an_error_or_an_interrupt(abc: Portfolio, scratch_place: Path) -> None:
    seen: list[Path] = []
    raised: list[BaseException | None] = [None, ValueError("no"), KeyboardInterrupt()]

    @dpm.path_evaluator
    def look(folder: Path) -> float:
        seen.append(folder)
        if (error := raised[len(seen) - 1]) is not None:
            raise error
        return 1.0

    assert evaluate(abc, [THIRDS], look) == [1.0]
    with pytest.raises(EvaluationError, match="ValueError: no"):
        evaluate(abc, [THIRDS], look)
    with pytest.raises(KeyboardInterrupt):
        evaluate(abc, [THIRDS], look)
    assert [folder.parent for folder in seen] == [scratch_place] * 3
    assert list(scratch_place.iterdir()) == []
    with pytest.raises(EvaluationError, match="SystemExit: gave up on 5 files"):
        evaluate(abc, [THIRDS], folder_evaluators.quits)
    assert list(scratch_place.iterdir()) == []


def test_what_a_killed_process_left_is_removed_and_what_another_is_writing_is_not(
    abc: Portfolio, scratch_place: Path
) -> None:
    left = [scratch_place / f".dpmerge-candidate-{os.getuid()}.0000000{place}.partial" for place in (1, 2)]

    @dpm.path_evaluator
    def look(folder: Path) -> float:
        if not left[0].exists() and not left[1].exists():
            for each in left:
                each.mkdir()
            with scratch.candidate_folder(StoredModel.of(abc, "a@4"), ()) as other:  # removes both
                assert not left[0].exists()
                assert folder.exists()
                assert other != folder
        return float(folder.exists())

    assert evaluate(abc, [THIRDS], look) == [1.0]
    assert list(scratch_place.iterdir()) == []


def test_scratch_that_cannot_be_written_is_one_clear_error(abc: Portfolio, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/proc")
    with pytest.raises(CannotWriteError, match="/proc/dpmerge-candidate"):
        evaluate(abc, [THIRDS], folder_evaluators.counted)


# Where it is scored, and what is kept.


def test_other_processes_give_the_same_scores_and_initialise_once_each(abc: Portfolio, scratch_place: Path) -> None:
    recipes = [THIRDS, NOISY, *(Recipe.of({name: 1.0}) for name in ("a@4", "b@4", "c@4"))]
    here = evaluate(abc, recipes, folder_evaluators.squares, noise_draws=2)
    assert folder_evaluators.INITIALISED.count(os.getpid()) == 1
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=spawn) as pool:
        assert evaluate(abc, recipes, folder_evaluators.squares, noise_draws=2, executor=pool) == here
        named = load_evaluator("evaluation.folder_evaluators:squares")
        assert evaluate(abc, recipes, named, noise_draws=2, executor=pool) == here
    assert len(set(here)) == len(here)
    assert list(scratch_place.iterdir()) == []


def test_evaluators_travel_by_name_or_with_their_function() -> None:
    assert pickle.loads(pickle.dumps(folder_evaluators.squares)) is folder_evaluators.squares  # noqa: S301
    again = pickle.loads(pickle.dumps(folder_evaluators.counted))  # noqa: S301
    assert isinstance(again, PathEvaluator)
    assert again.function is folder_evaluators.counted.function
    assert again.initialise is folder_evaluators.load_data


def test_named_ones_ask_for_a_folder_too() -> None:
    named = load_evaluator("evaluation.folder_evaluators:squares")
    assert isinstance(named, NamedEvaluator)
    assert takes_folder(named)
    assert str(named.identity).endswith(" squares/1")
    assert not takes_folder(load_evaluator("statistics:mean"))


def test_scores_are_found_again_until_a_small_file_changes(tmp_path: Path) -> None:
    portfolio = write_runs(tmp_path / "runs")
    calls = []

    @dpm.path_evaluator(identity="calls/1")
    def look(folder: Path) -> float:
        calls.append(folder)
        return float(len((folder / "tokenizer.json").read_bytes()))

    cache = tmp_path / "scores.jsonl"
    assert evaluate(portfolio, [THIRDS], look, cache=cache) == evaluate(portfolio, [THIRDS], look, cache=cache) == [2.0]
    assert len(calls) == 1
    (tmp_path / "runs" / "b" / "tokenizer.json").write_text('{"another": 1}')
    assert evaluate(portfolio, [THIRDS], look, cache=cache) == [14.0]


def test_a_small_file_that_changes_meanwhile_is_noticed(tmp_path: Path, scratch_place: Path) -> None:
    portfolio = write_runs(tmp_path / "runs")

    @dpm.path_evaluator
    def look(folder: Path) -> float:
        (tmp_path / "runs" / "b" / "config.json").write_text("{}")
        return 1.0

    with pytest.raises(DigestMismatchError, match="config.json: it changed while merges were being scored"):
        evaluate(portfolio, [NOISY], look, noise_draws=2)
    assert list(scratch_place.iterdir()) == []


# What is refused.


def test_tensors_are_no_folder() -> None:
    with pytest.raises(InvalidInputError, match="folder: got a dict; accepted: the path of a model's folder"):
        folder_evaluators.squares({})


@pytest.mark.parametrize("options", [{"initialise": 3}, {"initialise": "load"}])
def test_what_is_no_function_is_refused(options: Any) -> None:
    with pytest.raises(InvalidInputError, match="initialise: got a (int|str); accepted: a function"):
        dpm.path_evaluator(**options)
    with pytest.raises(InvalidInputError, match="path_evaluator: got a int; accepted: a function"):
        dpm.path_evaluator(3)  # type: ignore[call-overload]
