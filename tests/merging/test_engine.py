"""Whole merges of models on disk: every value, every file name, every byte of the headers."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file

from dpmerge.errors import TensorMismatchError
from dpmerge.merging.engine import merge
from dpmerge.merging.writing import WrittenFile
from dpmerge.portfolio.tensors import SIZES
from merging.models import (
    FLOATS,
    Model,
    Tensor,
    bits_of,
    checkpoints,
    header_json,
    model,
    read_model,
    stored,
    tensor,
    tree,
    values_of,
    write_run,
)
from oracle.merged_values import merged

WEIGHTS = {"a": 0.5, "b": 0.3, "c": 0.2}
ONE_FILE = "step-4.safetensors"


def in_shards(tensors: Model, names: list[str], order: list[str] | None = None) -> dict[str, dict[str, Tensor]]:
    """The tensors dealt out to files, in order."""
    ordered = order or list(tensors)
    size = math.ceil(len(ordered) / len(names))
    return {name: {t: tensors[t] for t in ordered[k * size : (k + 1) * size]} for k, name in enumerate(names)}


def write_three(home: Path, files: Mapping[str, Any] | None = None, **settings: Any) -> None:
    """Runs a, b and c, each in files of its own choice."""
    for seed, run in enumerate("abc"):
        split = (files or {}).get(run, lambda tensors: {ONE_FILE: tensors})
        write_run(home, run, split(model(seed)), **settings)


def merge_three(home: Path, out: Path, **settings: Any) -> tuple[WrittenFile, ...]:
    saved = {checkpoint.run: checkpoint for checkpoint in checkpoints(home)}
    donor = saved[settings.pop("donor", "a")]
    settings.setdefault("trained", None)
    out.mkdir(exist_ok=True)
    return merge([(saved[run], weight) for run, weight in WEIGHTS.items()], out, donor=donor, **settings)


def expected(dtype: str, contents: list[bytes], weights: list[float]) -> bytes:
    columns = zip(*(bits_of(dtype, content).tolist() for content in contents), strict=True)
    kind = bits_of(dtype, b"").dtype
    return np.array([merged(column, weights, dtype)[0] for column in columns], kind).tobytes()


def test_every_dtype_is_merged_as_specified(tmp_path: Path) -> None:
    write_three(tmp_path / "runs")
    merge_three(tmp_path / "runs", tmp_path / "out")
    found, models = read_model(tmp_path / "out"), [model(seed) for seed in range(3)]
    assert {name: (dtype, shape) for name, (dtype, shape, _) in found.items()} == {
        name: (dtype, shape) for name, (dtype, shape, _) in models[0].items()
    }
    for name, (dtype, _, content) in found.items():
        contents = [each[name][2] for each in models]
        if dtype in FLOATS:
            assert content == expected(dtype, contents, list(WEIGHTS.values())), name
            exact = sum(w * values_of(dtype, c) for w, c in zip(WEIGHTS.values(), contents, strict=True))
            if name.endswith("weight"):
                np.testing.assert_allclose(values_of(dtype, content), exact, rtol=2**-8, atol=1e-7)
        else:
            assert content == contents[0], name


@pytest.mark.parametrize("settings", [
    {"jobs": 2}, {"jobs": 3}, {"jobs": 2, "buffer": 8}, {"jobs": 3, "buffer": 16}, {"jobs": 1, "buffer": 8},
    {"jobs": 2, "buffer": 48}, {"jobs": 3, "buffer": 4096}, {"jobs": 2, "hashing": False}, {"jobs": 16, "buffer": 24},
], ids=str)  # fmt: skip
def test_threads_and_buffers_do_not_change_a_byte(tmp_path: Path, settings: dict[str, Any]) -> None:
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    write_three(tmp_path / "runs", {run: lambda t: in_shards(t, names) for run in "abc"}, frozen=["f16.wild"])
    trained = set(model(0)) - {"f16.wild"}
    merge_three(tmp_path / "runs", tmp_path / "one", jobs=1, trained=trained, frozen_may_differ=True)
    merge_three(tmp_path / "runs", tmp_path / "other", **settings, trained=trained, frozen_may_differ=True)
    assert tree(tmp_path / "one") == tree(tmp_path / "other")


SHARDINGS = {
    "one file": lambda t: {ONE_FILE: t},
    "two files": lambda t: in_shards(t, ["x-1.safetensors", "x-2.safetensors"]),
    "three files": lambda t: in_shards(t, ["1.safetensors", "2.safetensors", "3.safetensors"]),
    "other order": lambda t: {ONE_FILE: {name: t[name] for name in reversed(list(t))}},
    "other order, two files": lambda t: in_shards(t, ["y.safetensors", "x.safetensors"], sorted(t, reverse=True)),
    "a file of nothing": lambda t: {"all.safetensors": t, "none.safetensors": {}},
}


@pytest.mark.parametrize("weights", [True, False], ids=["weights recorded", "files recorded"])
@pytest.mark.parametrize("second", list(SHARDINGS))
def test_inputs_may_be_sharded_and_ordered_differently(tmp_path: Path, second: str, weights: bool) -> None:
    write_three(tmp_path / "alike")
    write_three(tmp_path / "mixed", {"b": SHARDINGS[second], "c": SHARDINGS["two files"]}, weights=weights)
    merge_three(tmp_path / "alike", tmp_path / "one")
    merge_three(tmp_path / "mixed", tmp_path / "other", buffer=64)
    assert tree(tmp_path / "one") == tree(tmp_path / "other")


@pytest.mark.parametrize("donor", list(SHARDINGS))
def test_the_output_has_the_donors_files_and_order(tmp_path: Path, donor: str) -> None:
    write_three(tmp_path / "runs", {"b": SHARDINGS[donor]})
    written = merge_three(tmp_path / "runs", tmp_path / "out", donor="b")
    split = list(SHARDINGS[donor](model(1)).values())
    files = [file for file in written if file.name.endswith(".safetensors")]
    assert len(files) == len(split)
    for file, tensors in zip(files, split, strict=True):
        entries = header_json(tmp_path / "out" / file.name)
        filled = [name for name, (_, _, content) in tensors.items() if content]
        assert sorted(filled, key=lambda name: entries[name]["data_offsets"]) == filled
        assert set(entries) == set(tensors)
    write_three(tmp_path / "alike")
    merge_three(tmp_path / "alike", tmp_path / "plain")
    assert read_model(tmp_path / "out") == read_model(tmp_path / "plain")


def test_what_was_written_is_listed_with_its_digest(tmp_path: Path) -> None:
    write_three(tmp_path / "runs", {"a": SHARDINGS["three files"]})
    written = merge_three(tmp_path / "runs", tmp_path / "out", buffer=64, jobs=3)
    assert {f.name: (f.sha256, f.size) for f in written} == {
        name: (hashlib.sha256(content).hexdigest(), len(content)) for name, content in tree(tmp_path / "out").items()
    }
    assert {file.sha256 for file in merge_three(tmp_path / "runs", tmp_path / "unhashed", hashing=False)} == {""}


@pytest.mark.parametrize(("names", "files", "index"), [
    (["step-4.safetensors"], ["model.safetensors"], None),
    (["checkpoint/adapter_model.safetensors"], ["adapter_model.safetensors"], None),
    (["model.safetensors"], ["model.safetensors"], None),
    (["w-00001-of-00002.safetensors", "w-00002-of-00002.safetensors"],
     ["w-00001-of-00002.safetensors", "w-00002-of-00002.safetensors"], "w.safetensors.index.json"),
    (["w-00001-of-00003.safetensors", "w-00002-of-00003.safetensors"],
     ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"], "model.safetensors.index.json"),
    (["w-00001-of-00002.safetensors", "v-00002-of-00002.safetensors"],
     ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"], "model.safetensors.index.json"),
    (["p/w.safetensors", "q/w.safetensors"],
     ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"], "model.safetensors.index.json"),
])  # fmt: skip
def test_files_have_the_usual_names(tmp_path: Path, names: list[str], files: list[str], index: str | None) -> None:
    write_three(tmp_path / "runs", {run: lambda t: in_shards(t, names) for run in "abc"})
    merge_three(tmp_path / "runs", tmp_path / "out")
    assert sorted(tree(tmp_path / "out")) == sorted([*files, *([index] if index else [])])
    if index is not None:
        content = (tmp_path / "out" / index).read_text()
        told = json.loads(content)
        assert content == json.dumps(told, indent=2, sort_keys=True) + "\n"
        size = sum(len(data) for _, _, data in model(0).values())
        assert told["metadata"] == {"total_size": size}
        for tensor_name, file in told["weight_map"].items():
            assert tensor_name in header_json(tmp_path / "out" / file)
        assert set(told["weight_map"]) == set(model(0))


@pytest.mark.parametrize(("metadata", "kept"), [
    (None, None), ({}, None), ({"format": "pt"}, {"format": "pt"}), ({"format": "np"}, None),
    ({"format": "pt", "trained_on": "ward 7"}, {"format": "pt"}), ({"trained_on": "ward 7"}, None),
])  # fmt: skip
def test_of_metadata_only_the_format_is_kept(tmp_path: Path, metadata: Any, kept: Any) -> None:
    write_three(tmp_path / "runs", metadata=metadata)
    merge_three(tmp_path / "runs", tmp_path / "out")
    header = header_json(tmp_path / "out" / "model.safetensors")
    assert header.get("__metadata__") == kept
    content = (tmp_path / "out" / "model.safetensors").read_bytes()
    length = int.from_bytes(content[:8], "little")
    assert length % 8 == 0
    canonical = json.dumps(header, sort_keys=True, separators=(",", ":"))
    assert content[8 : 8 + length].decode() == canonical.ljust(length)
    assert b"ward" not in content


def test_the_output_loads_with_the_loaders_own_library(tmp_path: Path) -> None:
    write_three(tmp_path / "runs", {"a": SHARDINGS["two files"]}, metadata={"format": "pt"})
    written = merge_three(tmp_path / "runs", tmp_path / "out")
    loaded: dict[str, torch.Tensor] = {}
    for file in written:
        if file.name.endswith(".safetensors"):
            loaded |= load_file(tmp_path / "out" / file.name)
            with safe_open(tmp_path / "out" / file.name, framework="pt") as opened:
                assert opened.metadata() == {"format": "pt"}
    for name, (dtype, shape, content) in read_model(tmp_path / "out").items():
        assert tuple(loaded[name].shape) == shape
        if dtype in FLOATS:
            np.testing.assert_array_equal(
                loaded[name].to(torch.float64).numpy().ravel(), values_of(dtype, content), strict=True
            )


def test_frozen_tensors_are_kept_where_equal_and_averaged_where_not(tmp_path: Path) -> None:
    for dtype in FLOATS:
        home = tmp_path / dtype
        same = tensor(dtype, (50,), 1)
        other = bytearray(same[2])
        size = SIZES[dtype]
        other[20 * size : 21 * size] = stored(dtype, [7.0])
        models = {"a": same, "b": (dtype, (50,), bytes(other)), "c": same}
        for run, frozen in models.items():
            write_run(home / "runs", run, {ONE_FILE: {"kept": same, "mixed": frozen}}, frozen=["kept", "mixed"])
        for place, buffer in enumerate((8, 64, None)):
            merge_three(home / "runs", home / f"out-{place}", trained=[], buffer=buffer, frozen_may_differ=True)
            found = read_model(home / f"out-{place}")
            assert found["kept"] == same
            average = expected(dtype, [models[run][2] for run in "abc"], list(WEIGHTS.values()))
            at = slice(20 * size, 21 * size)
            assert found["mixed"][2][at] == average[at]
            assert found["mixed"][2][: at.start] == same[2][: at.start]
            assert found["mixed"][2][at.stop :] == same[2][at.stop :]


def test_frozen_tensors_that_must_not_differ_are_refused_where_they_do(tmp_path: Path) -> None:
    same = tensor("F32", (50,), 1)
    for run, frozen in {"a": same, "b": tensor("F32", (50,), 2), "c": same}.items():
        write_run(tmp_path / "runs", run, {ONE_FILE: {"kept": same, "mixed": frozen}}, frozen=["kept", "mixed"])
    message = "mixed: it has other values in b@4 than in a@4; average models whose frozen tensors are the same"
    with pytest.raises(TensorMismatchError, match=message):
        merge_three(tmp_path / "runs", tmp_path / "out", trained=[])


def test_one_checkpoint_alone_is_copied_bit_for_bit(tmp_path: Path) -> None:
    write_three(tmp_path / "runs")
    saved = checkpoints(tmp_path / "runs")[0]
    (tmp_path / "out").mkdir()
    merge([(saved, 1.0)], tmp_path / "out", donor=saved, trained=None, buffer=32)
    assert read_model(tmp_path / "out") == model(0)


def test_checkpoints_that_were_read_when_loaded_are_merged_alike(tmp_path: Path) -> None:
    write_three(tmp_path / "runs", {"b": SHARDINGS["other order"]}, weights=False)
    saved = checkpoints(tmp_path / "runs", contents=True)
    (tmp_path / "out").mkdir()
    weights = list(WEIGHTS.values())
    merge(list(zip(saved, weights, strict=True)), tmp_path / "out", donor=saved[0], trained=None)
    merge_three(tmp_path / "runs", tmp_path / "plain")
    assert tree(tmp_path / "out") == tree(tmp_path / "plain")


def test_progress_ends_with_everything(tmp_path: Path) -> None:
    write_three(tmp_path / "runs")
    told: list[tuple[int, int]] = []
    merge_three(tmp_path / "runs", tmp_path / "out", progress=lambda done, total: told.append((done, total)), buffer=8)
    total = sum(len(content) for _, _, content in model(0).values())
    assert max(told) == (total, total)
    assert len(told) < 50


@settings(max_examples=25)
@given(data=st.data())
def test_any_layout_gives_the_same_tensors(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    home = tmp_path_factory.mktemp("layouts")
    names = list(model(0))
    for seed, run in enumerate("abc"):
        order = data.draw(st.permutations(names))
        shards = [f"s-{k}.safetensors" for k in range(data.draw(st.integers(1, 4)))]
        frozen = ["f32.wild", "bf16.wild"]
        write_run(home / "runs", run, in_shards(model(seed), shards, order), frozen=frozen,
                  weights=data.draw(st.booleans()))  # fmt: skip
    buffer = data.draw(st.sampled_from([8, 40, 1024]))
    trained = set(names) - {"f32.wild", "bf16.wild"}
    merge_three(
        home / "runs",
        home / "out",
        jobs=data.draw(st.integers(1, 3)),
        buffer=buffer,
        trained=trained,
        frozen_may_differ=True,
    )
    for name, (dtype, _, content) in read_model(home / "out").items():
        contents = [model(seed)[name][2] for seed in range(3)]
        if dtype in FLOATS:
            assert content == expected(dtype, contents, list(WEIGHTS.values())), name
