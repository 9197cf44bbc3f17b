"""Concatenated LoRA adapters against ΔW = Σ λ_i s_i B_i A_i, written out in float64."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from dpmerge.errors import CheckpointError, DigestMismatchError, InvalidInputError, TensorMismatchError
from dpmerge.merging.adapters import Located, concatenate, require_one_scaling
from dpmerge.portfolio.portfolio import Portfolio
from merging.models import Tensor, read_model, stored, tensor, tree, values_of, write_run
from portfolio.portfolios import sha256

MODULES = {"base_model.model.layers.0.q_proj": (6, 5), "base_model.model.layers.0.v_proj": (3, 5)}
FILE = "adapter_model.safetensors"


def config(rank: int = 2, alpha: float = 4, **others: Any) -> dict[str, Any]:
    return {
        "peft_type": "LORA", "r": rank, "lora_alpha": alpha, "target_modules": ["q_proj", "v_proj"], "bias": "none",
        "use_rslora": False, "use_dora": False, "modules_to_save": None, "rank_pattern": {}, "alpha_pattern": {},
        "base_model_name_or_path": "base", "lora_dropout": 0.05, "init_lora_weights": True, "fan_in_fan_out": False,
        **others,
    }  # fmt: skip


def adapter(seed: int, rank: int, dtype: str) -> dict[str, Tensor]:
    tensors = {}
    for place, (name, (out, inputs)) in enumerate(MODULES.items()):
        tensors[f"{name}.lora_A.weight"] = tensor(dtype, (rank, inputs), 10 * seed + 2 * place)
        tensors[f"{name}.lora_B.weight"] = tensor(dtype, (out, rank), 10 * seed + 2 * place + 1)
    return tensors


def write_adapters(
    home: Path, configs: list[dict[str, Any]], dtype: str = "F32", weights: list[float] | None = None
) -> Located:
    """Runs a, b, … with one adapter each; loaded one by one, since ranks may differ."""
    located = []
    for seed, (run, given) in enumerate(zip("abc", configs, strict=False)):
        folder = write_run(home, run, {FILE: adapter(seed, given["r"], dtype)}, metadata={"format": "pt"},
                           small={"adapter_config.json": json.dumps(given)})  # fmt: skip
        (loaded,) = Portfolio.load(folder, contents=False).runs
        located.append((loaded, loaded.checkpoints[0], (weights or [0.5, 0.3, 0.2])[seed]))
    return located


def scaling(given: dict[str, Any]) -> float:
    return float(given["lora_alpha"]) / (math.sqrt(given["r"]) if given.get("use_rslora") else given["r"])


def change(tensors: dict[str, Tensor], module: str, scale: float) -> npt.NDArray[np.float64]:
    """What an adapter adds to a module's weights."""
    a, b = (
        values_of(dtype, content).reshape(shape)
        for dtype, shape, content in (tensors[f"{module}.lora_{which}.weight"] for which in "AB")
    )
    return scale * b @ a


CONFIGS = {
    "alike": [config(), config(), config()],
    "other scalings": [config(2, 4), config(2, 1), config(2, 16)],
    "other ranks": [config(2, 4), config(1, 3), config(4, 4)],
    "rank-stabilised": [config(2, 4, use_rslora=True), config(2, 4, use_rslora=True), config(2, 4, use_rslora=True)],
    "some rank-stabilised": [config(2, 4, use_rslora=True), config(2, 4), config(3, 5, use_rslora=True)],
    "fractions": [config(3, 1), config(3, 1), config(3, 1)],
}


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize(("dtype", "precision"), [("F64", 1e-14), ("F32", 1e-6), ("F16", 1e-3), ("BF16", 8e-3)])
def test_the_concatenation_does_what_the_sum_does(tmp_path: Path, name: str, dtype: str, precision: float) -> None:
    configs = CONFIGS[name]
    parts = write_adapters(tmp_path / "runs", configs, dtype)
    (tmp_path / "out").mkdir()
    concatenate(parts, tmp_path / "out", donor=parts[0][1])
    found, told = read_model(tmp_path / "out"), json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert told["r"] == sum(each["r"] for each in configs)
    for module, (out, inputs) in MODULES.items():
        assert found[f"{module}.lora_A.weight"][1] == (told["r"], inputs)
        assert found[f"{module}.lora_B.weight"][1] == (out, told["r"])
        models = [adapter(seed, each["r"], dtype) for seed, each in enumerate(configs)]
        terms = [w * change(m, module, scaling(c)) for (_, _, w), m, c in zip(parts, models, configs, strict=True)]
        size = sum(abs(term) for term in terms).max()
        np.testing.assert_allclose(change(found, module, scaling(told)), sum(terms), rtol=0, atol=precision * size)


def test_the_configuration_is_the_donors_but_for_rank_and_scaling(tmp_path: Path) -> None:
    parts = write_adapters(tmp_path / "runs", [config(), config(lora_dropout=0.5)])
    (tmp_path / "out").mkdir()
    written = concatenate(parts, tmp_path / "out", donor=parts[1][1])
    told = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert told == config(rank=4, alpha=8, lora_dropout=0.5)
    assert type(told["lora_alpha"]) is int
    assert {f.name: (f.sha256, f.size) for f in written} == {
        name: (sha256(tmp_path / "out" / name), len(content)) for name, content in tree(tmp_path / "out").items()
    }


def test_a_common_scaling_is_kept_and_different_ones_become_one(tmp_path: Path) -> None:
    for name, expected in {"alike": 2.0, "other scalings": 1.0, "rank-stabilised": 4 / math.sqrt(2)}.items():
        parts = write_adapters(tmp_path / name / "runs", CONFIGS[name])
        (tmp_path / name / "out").mkdir()
        concatenate(parts, tmp_path / name / "out", donor=parts[0][1])
        told = json.loads((tmp_path / name / "out" / "adapter_config.json").read_text())
        assert scaling(told) == pytest.approx(expected, rel=1e-15)


HEAD = "base_model.model.head.weight"


def write_with_heads(home: Path, dtype: str, others: list[dict[str, Any]]) -> Located:
    """Adapters beside which a module was trained whole."""
    located = []
    for seed, (run, given) in enumerate(zip("abc", others, strict=True)):
        tensors = {**adapter(seed, 2, dtype), HEAD: tensor(dtype, (3, 5), 100 + seed)}
        folder = write_run(home, run, {FILE: tensors}, metadata={"format": "pt"},
                           small={"adapter_config.json": json.dumps(given)})  # fmt: skip
        (loaded,) = Portfolio.load(folder, contents=False).runs
        located.append((loaded, loaded.checkpoints[0], [0.5, 0.3, 0.2][seed]))
    return located


@pytest.mark.parametrize(("dtype", "precision"), [("F64", 1e-15), ("F32", 1e-6), ("F16", 1e-3), ("BF16", 8e-3)])
def test_modules_that_were_trained_whole_are_averaged_beside_the_concatenation(
    tmp_path: Path, dtype: str, precision: float
) -> None:
    given = [config(modules_to_save=["classifier", "head"]), config(modules_to_save=["head", "classifier"], alpha=8)]
    parts = write_with_heads(tmp_path / "runs", dtype, [*given, given[0]])
    (tmp_path / "out").mkdir()
    concatenate(parts, tmp_path / "out", donor=parts[0][1])
    found = read_model(tmp_path / "out")
    heads = [values_of(dtype, tensor(dtype, (3, 5), 100 + seed)[2]) for seed in range(3)]
    wanted = 0.5 * heads[0] + 0.3 * heads[1] + 0.2 * heads[2]
    assert found[HEAD][:2] == (dtype, (3, 5))
    size = max(abs(head).max() for head in heads)
    np.testing.assert_allclose(values_of(dtype, found[HEAD][2]), wanted, rtol=0, atol=precision * size)
    for module in MODULES:
        models = [adapter(seed, 2, dtype) for seed in range(3)]
        scalings = [scaling(each) for each in [*given, given[0]]]
        terms = [w * change(m, module, s) for (_, _, w), m, s in zip(parts, models, scalings, strict=True)]
        told = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
        largest = sum(abs(term) for term in terms).max()
        np.testing.assert_allclose(
            change(found, module, scaling(told)), sum(terms), rtol=0, atol=2 * precision * largest
        )
    assert told["modules_to_save"] == ["classifier", "head"]


REFUSED = {
    "other modules": (config(target_modules=["q_proj"]), "target_modules"),
    "bias": (config(bias="lora_only"), "bias"),
    "modules saved whole": (config(modules_to_save=["head"]), "modules_to_save"),
    "a pattern of ranks": (config(rank_pattern={"q_proj": 1}), "rank_pattern"),
    "a pattern of scalings": (config(alpha_pattern={"q_proj": 1}), "alpha_pattern"),
    "block-diagonal LoRA": (config(use_bdlora={"blocks": 2}), "use_bdlora"),
    "DoRA": (config(use_dora=True), "use_dora"),
    "a start that changes the base": (config(init_lora_weights="pissa"), "init_lora_weights"),
    "another kind of adapter": (config(peft_type="IA3"), "peft_type"),
    "no scaling": (config(lora_alpha=0), "lora_alpha"),
    "a fraction of a rank": (config(r=2) | {"r": 2.5}, ": r: "),
    "transposed weights": (config(fan_in_fan_out=True), "fan_in_fan_out"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_settings_that_cannot_be_concatenated_are_refused(tmp_path: Path, name: str) -> None:
    given, field = REFUSED[name]
    parts = write_adapters(tmp_path / "runs", [config(), config()])
    (parts[1][0].folder / "adapter_config.json").write_text(json.dumps(given))
    (tmp_path / "out").mkdir()
    with pytest.raises(InvalidInputError, match=field) as raised:
        concatenate(parts, tmp_path / "out", donor=parts[0][1])
    assert "b/adapter_config.json" in str(raised.value)
    assert tree(tmp_path / "out") == {}


def test_the_order_of_target_modules_does_not_matter(tmp_path: Path) -> None:
    parts = write_adapters(tmp_path / "runs", [config(), config(target_modules=["v_proj", "q_proj"])])
    (tmp_path / "out").mkdir()
    assert len(concatenate(parts, tmp_path / "out", donor=parts[0][1])) == 2


def test_a_missing_configuration_is_refused(tmp_path: Path) -> None:
    parts = write_adapters(tmp_path / "runs", [config(), config()])
    (parts[1][0].folder / "adapter_config.json").unlink()
    with pytest.raises(InvalidInputError, match="there is no adapter_config.json, .* beside the weights"):
        concatenate(parts, tmp_path, donor=parts[0][1])


@pytest.mark.parametrize(("extra", "words"), [
    ({"base_model.model.head.weight": tensor("F32", (2, 2), 1)}, "head.weight"),
    ({"base_model.model.own.counted": ("I64", (1,), bytes(8))}, "own.counted.*modules_to_save, in floats"),
    ({"m.lora_A.weight": tensor("F32", (3, 5), 1)}, "rank 2"),
    ({"m.lora_B.weight": tensor("F32", (2, 5, 1, 1), 1)}, "rank 2"),
    ({"m.lora_A.weight": ("I64", (2, 1), bytes(16))}, "in floats"),
])  # fmt: skip
def test_tensors_that_are_no_low_rank_factors_are_refused(tmp_path: Path, extra: dict[str, Tensor], words: str) -> None:
    folder = write_run(tmp_path / "runs", "a", {FILE: {**adapter(0, 2, "F32"), **extra}},
                       small={"adapter_config.json": json.dumps(config(modules_to_save=["own"]))})  # fmt: skip
    (run,) = Portfolio.load(folder, contents=False).runs
    with pytest.raises(TensorMismatchError, match=words):
        concatenate([(run, run.checkpoints[0], 1.0)], tmp_path, donor=run.checkpoints[0])


def test_modules_of_other_sizes_are_refused(tmp_path: Path) -> None:
    parts = write_adapters(tmp_path / "runs", [config()])
    tensors = adapter(1, 2, "F32")
    tensors["base_model.model.layers.0.v_proj.lora_B.weight"] = tensor("F32", (4, 2), 1)
    folder = write_run(tmp_path / "runs", "b", {FILE: tensors}, small={"adapter_config.json": json.dumps(config())})
    (run,) = Portfolio.load(folder, contents=False).runs
    with pytest.raises(TensorMismatchError, match="missing, in a@4; concatenate adapters of the same modules"):
        concatenate([*parts, (run, run.checkpoints[0], 0.5)], tmp_path, donor=parts[0][1])


def test_adapters_that_are_not_what_was_recorded_are_refused(tmp_path: Path) -> None:
    parts = write_adapters(tmp_path / "runs", [config(), config()])
    file = parts[1][1].files[0]
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(DigestMismatchError, match="the file has the digest .* was recorded; put back"):
        concatenate(parts, tmp_path, donor=parts[0][1])


def test_values_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    tensors = adapter(0, 2, "F16")
    name = "base_model.model.layers.0.v_proj.lora_B.weight"
    tensors[name] = ("F16", (3, 2), stored("F16", [1, 2, 3, 4, 5, np.inf]))
    folder = write_run(tmp_path / "runs", "a", {FILE: tensors}, small={"adapter_config.json": json.dumps(config())})
    (run,) = Portfolio.load(folder, contents=False).runs
    with pytest.raises(CheckpointError, match="v_proj.lora_B.weight"):
        concatenate([(run, run.checkpoints[0], 1.0)], tmp_path, donor=run.checkpoints[0])


def test_adapters_averaged_as_trained_must_be_scaled_alike(tmp_path: Path) -> None:
    require_one_scaling(write_adapters(tmp_path / "alike", CONFIGS["alike"]))
    with pytest.raises(InvalidInputError, match="it scales by 0.5, and .* by 2; concatenate them"):
        require_one_scaling(write_adapters(tmp_path / "other", CONFIGS["other scalings"]))
