"""Folders that Hugging Face's loaders open as they are: recorded checkpoints and merged models, and what is refused."""

from __future__ import annotations

import base64
import copy
import json
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel, PromptTuningConfig, get_peft_model, get_peft_model_state_dict
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    pipeline,
)
from typer.testing import CliRunner

import dpmerge as dpm
from dpmerge.cli import app
from dpmerge.errors import DigestMismatchError, InvalidInputError, NotCombinableError, RecordingError
from dpmerge.training.model_files import ModelFiles
from dpmerge.training.task_losses import TaskLoss
from training.hugging_face import (
    QUIET_TRAINER,
    TASKS,
    adapted,
    base_class,
    private_model,
    public_model,
    records,
    tokenizer,
)

pytestmark = [pytest.mark.filterwarnings(line) for line in QUIET_TRAINER]
AUTO = {"SEQ_CLS": AutoModelForSequenceClassification, "CAUSAL_LM": AutoModelForCausalLM}
PIPELINES = {"SEQ_CLS": "text-classification", "CAUSAL_LM": "text-generation"}
HEADS = {"SEQ_CLS": "classifier.weight", "CAUSAL_LM": "lm_head.weight"}
PRESENT_NAMES = Path(__file__).parents[1] / "data" / "adapters_by_model_names"
TEXTS = torch.arange(2, 14).reshape(2, 6)


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """With a tokenizer beside each, as models have it that are downloaded."""
    home = tmp_path_factory.mktemp("bases")
    for task in TASKS:
        tokenizer().save_pretrained(public_model(task, home / task))
    return {task: home / task for task in TASKS}


def run_of(model: Any, task: str, folder: Path, run: str, **options: Any) -> Any:
    """Recorded, and the model as it was left, for evaluation."""
    made = private_model(model, records(task))
    made.loop(folder, run, TaskLoss(made.model), **options)
    return made.model._module.eval()


def logits_of(model: Any) -> Tensor:
    with torch.no_grad():
        return model.eval()(input_ids=TEXTS).logits


def cli(*words: str) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "200"})


def merged(folder: Path, out: Path, weights: str, *options: str) -> Any:
    result = cli("merge", folder, "--epsilon", "1000", "--delta", "1e-5", "--weights", weights, "-o", out, *options)
    assert result.exit_code == 0, result.output
    checked = cli("verify", out, "--portfolio", folder, "--rebuild")
    assert checked.exit_code == 0, checked.output
    return json.loads((out / "privacy-certificate.json").read_text())


# A recorded checkpoint


@pytest.mark.parametrize("task", TASKS)
def test_a_recorded_adapter_is_what_peft_would_have_saved(bases: dict[str, Path], tmp_path: Path, task: str) -> None:
    trained = run_of(adapted(task, bases[task]), task, tmp_path, "a", checkpoint_at=[2])
    trained.save_pretrained(tmp_path / "by-peft")
    ours, theirs = (
        load_file(home / "adapter_model.safetensors") for home in (tmp_path / "a/step-4", tmp_path / "by-peft")
    )
    assert ours.keys() == theirs.keys() == get_peft_model_state_dict(trained, save_embedding_layers=False).keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    configs = [
        json.loads((home / "adapter_config.json").read_text()) for home in (tmp_path / "a/step-4", tmp_path / "by-peft")
    ]
    for config in configs:
        for name in ("target_modules", "modules_to_save"):
            config[name] = sorted(config[name] or [])
    assert configs[0] == configs[1]
    with safe_open(tmp_path / "a/step-4/adapter_model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
    told = json.loads((tmp_path / "a/privacy.json").read_text())
    assert [each["files"][0]["name"] for each in told["checkpoints"]] == [
        "step-2/adapter_model.safetensors",
        "step-4/adapter_model.safetensors",
    ]
    assert set(told["tensors"]["trained"]) == set(told["tensors"]["initial"]) == set(ours)
    assert told["tensors"]["frozen"] == []
    if task == "SEQ_CLS":
        assert {name for name in ours if "lora" not in name} == {
            "base_model.model.classifier.weight", "base_model.model.classifier.bias",
        }  # fmt: skip


@pytest.mark.parametrize("task", TASKS)
def test_a_recorded_adapter_is_loaded_as_it_lies_there(bases: dict[str, Path], tmp_path: Path, task: str) -> None:
    trained = run_of(adapted(task, bases[task]), task, tmp_path, "a")
    checkpoint = tmp_path / "a" / "step-4"
    by_peft = PeftModel.from_pretrained(base_class(task).from_pretrained(bases[task]), checkpoint)
    assert torch.equal(logits_of(by_peft), logits_of(trained))
    assert torch.equal(logits_of(AUTO[task].from_pretrained(checkpoint)), logits_of(trained))
    assert not torch.equal(logits_of(trained), logits_of(base_class(task).from_pretrained(bases[task])))


# Merged models


@pytest.mark.parametrize("task", TASKS)
def test_adapters_averaged_as_trained_are_loaded_from_the_merged_folder(
    bases: dict[str, Path], tmp_path: Path, task: str
) -> None:
    start = adapted(task, bases[task])
    left = {run: run_of(copy.deepcopy(start), task, tmp_path / "runs", run) for run in "ab"}
    merged(tmp_path / "runs", tmp_path / "out", "a@4=0.25,b@4=0.75")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "README.md", "adapter_config.json", "adapter_model.safetensors", "privacy-certificate.json",
    }  # fmt: skip
    states = [get_peft_model_state_dict(left[run], save_embedding_layers=False) for run in "ab"]
    found = load_file(tmp_path / "out" / "adapter_model.safetensors")
    for name, value in found.items():
        torch.testing.assert_close(value, 0.25 * states[0][name] + 0.75 * states[1][name])
    loaded = PeftModel.from_pretrained(base_class(task).from_pretrained(bases[task]), tmp_path / "out")
    assert torch.equal(logits_of(loaded), logits_of(AUTO[task].from_pretrained(tmp_path / "out")))
    assert get_peft_model_state_dict(loaded, save_embedding_layers=False).keys() == found.keys()


def changed_weights(base: Any, parts: list[tuple[float, dict[str, Tensor]]], scaling: float) -> Any:
    """The base model with Σ λ s B A added to its matrices, and modules trained whole averaged, by hand."""
    state = {name: value.clone() for name, value in base.state_dict().items()}
    for name, value in state.items():
        module, _, kind = name.rpartition(".")
        key = f"base_model.model.{module}.lora_A.weight"
        if kind == "weight" and key in parts[0][1]:
            for weight, adapter in parts:
                value += weight * scaling * adapter[key.replace("_A", "_B")] @ adapter[key]
        elif f"base_model.model.{name}" in parts[0][1]:
            state[name] = sum(weight * adapter[f"base_model.model.{name}"] for weight, adapter in parts)
    base.load_state_dict(state)
    return base


@pytest.mark.parametrize("task", TASKS)
def test_concatenated_adapters_of_different_starts_do_what_the_sum_of_their_changes_does(
    bases: dict[str, Path], tmp_path: Path, task: str
) -> None:
    runs = tmp_path / "runs"
    left = {run: run_of(adapted(task, bases[task]), task, runs, run) for run in "abc"}
    starts = {json.loads((runs / run / "privacy.json").read_text())["initial_weights"] for run in "abc"}
    assert len(starts) == 3
    weights = {"a": 0.5, "b": 0.3, "c": 0.2}
    asked = ",".join(f"{run}@4={weight}" for run, weight in weights.items())
    certificate = merged(runs, tmp_path / "out", asked, "--adapters", "concatenated")
    assert "different_initial_weights" not in signed_content(certificate)
    loaded = PeftModel.from_pretrained(base_class(task).from_pretrained(bases[task]), tmp_path / "out")
    assert loaded.peft_config["default"].r == 6
    parts = [(weights[run], get_peft_model_state_dict(left[run], save_embedding_layers=False)) for run in "abc"]
    by_hand = changed_weights(base_class(task).from_pretrained(bases[task]), parts, scaling=2.0)
    torch.testing.assert_close(logits_of(loaded), logits_of(by_hand), atol=1e-6, rtol=1e-5)
    # As trained, the same runs have no common start.
    result = cli("merge", runs, "--epsilon", "1000", "--delta", "1e-5", "--weights", asked, "-o", tmp_path / "no")
    assert result.exit_code == 2
    assert "average runs that started alike" in result.output.replace("\n", " ")


def test_heads_that_started_apart_are_not_averaged_unless_that_is_allowed(
    bases: dict[str, Path], tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    for run in "ab":
        model = adapted("SEQ_CLS", bases["SEQ_CLS"])
        with torch.no_grad():
            model.base_model.model.classifier.modules_to_save["default"].weight.normal_()
        run_of(model, "SEQ_CLS", runs, run)
    asked = ("merge", runs, "--epsilon", "1000", "--delta", "1e-5", "--weights", "a@4=0.5,b@4=0.5")
    result = cli(*asked, "--adapters", "concatenated", "-o", tmp_path / "no")
    assert result.exit_code == 2
    assert "allow different_initial_weights" in result.output.replace("\n", " ")
    result = cli(*asked, "--adapters", "concatenated", "--allow", "different_initial_weights", "-o", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "different initial weights" in result.output.replace("\n", " ")
    assert cli("verify", tmp_path / "out", "--portfolio", runs, "--rebuild").exit_code == 0


@pytest.mark.parametrize("task", TASKS)
def test_a_merged_adapter_runs_in_a_pipeline(bases: dict[str, Path], tmp_path: Path, task: str) -> None:
    for run in "ab":
        run_of(
            adapted(task, bases[task]), task, tmp_path / "runs", run, save_with=[tokenizer()], who="Ann"
        )  # fmt: skip
    certificate = merged(tmp_path / "runs", tmp_path / "out", "a@4=0.5,b@4=0.5", "--adapters", "concatenated")
    assert {"tokenizer.json", "tokenizer_config.json"} <= {path.name for path in (tmp_path / "out").iterdir()}
    assert not (tmp_path / "out" / "config.json").exists()
    told = pipeline(PIPELINES[task], model=str(tmp_path / "out"))("w3 w4 w5")
    assert ("label" if task == "SEQ_CLS" else "generated_text") in told[0]
    assert "tokenizer.json, tokenizer_config.json of a (vouched for by Ann)" in signed_content(certificate)


def signed_content(certificate: Any) -> str:
    return base64.b64decode(certificate["payload"]).decode()


@pytest.mark.parametrize("task", TASKS)
def test_a_whole_model_is_loaded_with_its_configuration_and_tokenizer(
    bases: dict[str, Path], tmp_path: Path, task: str
) -> None:
    """From a recorded checkpoint, and merged; by class, by AutoModel and in a pipeline."""
    runs, left = tmp_path / "runs", {}
    for run in "ab":
        model = base_class(task).from_pretrained(bases[task]).train()
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name == HEADS[task])
        left[run] = run_of(model, task, runs, run, save_with=[tokenizer()], who="Ann")
    recorded = AUTO[task].from_pretrained(runs / "a" / "step-4")
    assert torch.equal(logits_of(recorded), logits_of(left["a"]))
    certificate = merged(runs, tmp_path / "out", "a@4=0.5,b@4=0.5")
    assert "files_beside_the_weights_are_public" in signed_content(certificate)
    loaded = AUTO[task].from_pretrained(tmp_path / "out")
    a, b, found = (model.state_dict()[HEADS[task]] for model in (left["a"], left["b"], loaded))
    assert not torch.equal(a, b)
    torch.testing.assert_close(found, (a + b) / 2)
    told = pipeline(PIPELINES[task], model=str(tmp_path / "out"))("w3 w4 w5")
    assert ("label" if task == "SEQ_CLS" else "generated_text") in told[0]


# What was recorded under the model's own names


def test_adapters_recorded_under_the_models_own_names_still_load_and_merge(tmp_path: Path) -> None:
    runs = shutil.copytree(PRESENT_NAMES, tmp_path / "runs")
    portfolio = dpm.Portfolio.load(runs)
    assert any(".default." in name for name in portfolio.saved("a@4").tensors)
    plan = dpm.prepare(portfolio, epsilon=1000, delta=1e-5, weights={"a@4": 0.5, "b@4": 0.5})
    made = dpm.release(plan, out=tmp_path / "out")
    assert sorted(made.files) == ["model.safetensors"]
    a, b = (load_file(runs / run / "step-4.safetensors") for run in "ab")
    for name, value in load_file(tmp_path / "out" / "model.safetensors").items():
        torch.testing.assert_close(value, (a[name] + b[name]) / 2)


def test_other_kinds_of_peft_models_keep_the_models_own_names(bases: dict[str, Path]) -> None:
    """PEFT saves a prompt as the numbers it comes to, which are no parameter."""
    base = base_class("CAUSAL_LM").from_pretrained(bases["CAUSAL_LM"])
    files = ModelFiles.of(get_peft_model(base, PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)))
    assert (files.adapter, files.name_of(7)) == (False, "step-7.safetensors")


# What is refused


def test_trained_tensors_that_peft_would_not_save_are_refused(bases: dict[str, Path], tmp_path: Path) -> None:
    model = adapted("SEQ_CLS", bases["SEQ_CLS"])
    model.base_model.model.bert.pooler.dense.weight.requires_grad_(True)
    with pytest.raises(RecordingError, match=r"pooler\.dense\.weight: trained, and PEFT does not.*modules_to_save"):
        run_of(model, "SEQ_CLS", tmp_path, "a")
    assert not (tmp_path / "a").exists()


def test_several_active_adapters_are_refused(bases: dict[str, Path], tmp_path: Path) -> None:
    model = adapted("CAUSAL_LM", bases["CAUSAL_LM"])
    model.add_adapter("second", copy.deepcopy(model.peft_config["default"]))
    model.base_model.set_adapter(["default", "second"])
    with pytest.raises(RecordingError, match=r"2 adapters are active \(default, second\); train one at a time"):
        run_of(model, "CAUSAL_LM", tmp_path, "a")


def test_a_folder_with_a_checkpoint_in_a_folder_is_not_recorded_into(bases: dict[str, Path], tmp_path: Path) -> None:
    run_of(adapted("CAUSAL_LM", bases["CAUSAL_LM"]), "CAUSAL_LM", tmp_path, "a")
    (tmp_path / "a" / "privacy.json").unlink()
    with pytest.raises(InvalidInputError, match="a record is never overwritten"):
        run_of(adapted("CAUSAL_LM", bases["CAUSAL_LM"]), "CAUSAL_LM", tmp_path, "a")


class Saving:
    """Something with save_pretrained, that saves these files."""

    def __init__(self, **files: bytes) -> None:
        self.files = files

    def save_pretrained(self, folder: str) -> None:
        for name, content in self.files.items():
            path = Path(folder, name.replace("__", "/").replace("_DOT_", "."))
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)


UNSAFE = {
    "a pickle": (Saving(tokenizer_DOT_pkl=pickle.dumps({})), "Saving saves tokenizer.pkl, which is not kept: a pickle"),
    "a program": (Saving(tokenization_own_DOT_py=b"print()"), "saves tokenization_own.py, which is not kept"),
    "weights": (Saving(pytorch_model_DOT_bin=b"x"), "saves pytorch_model.bin, which is not kept"),
    "a folder": (Saving(more__vocab_DOT_txt=b"x"), "saves more/vocab.txt, which is not kept"),
}


@pytest.mark.parametrize("name", UNSAFE)
def test_files_that_loaders_do_not_need_are_refused(tmp_path: Path, name: str) -> None:
    given, words = UNSAFE[name]
    with pytest.raises(RecordingError, match=words):
        ModelFiles.of(torch.nn.Linear(2, 2), [given])


def test_what_cannot_save_itself_and_files_saved_twice_are_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"save_with\[1\]: .*str.*save_pretrained"):
        ModelFiles.of(torch.nn.Linear(2, 2), [Saving(vocab_DOT_txt=b"a"), "tokenizer"])
    with pytest.raises(InvalidInputError, match=r"a second vocab\.txt"):
        ModelFiles.of(torch.nn.Linear(2, 2), [Saving(vocab_DOT_txt=b"a"), Saving(vocab_DOT_txt=b"b")])


def test_a_tokenizer_that_nobody_vouched_for_is_not_copied_in_its_place(bases: dict[str, Path], tmp_path: Path) -> None:
    run_of(adapted("CAUSAL_LM", bases["CAUSAL_LM"]), "CAUSAL_LM", tmp_path / "runs", "a", save_with=[tokenizer()])
    file = tmp_path / "runs" / "a" / "step-4" / "tokenizer.json"
    file.write_text(file.read_text().replace("w2", "Ann"))
    portfolio = dpm.Portfolio.load(tmp_path / "runs")
    plan = dpm.prepare(portfolio, epsilon=1000, delta=1e-5, weights={"a@4": 1.0})
    with pytest.raises(DigestMismatchError, match=r"tokenizer\.json: not the file that was vouched to be public"):
        dpm.release(plan, out=tmp_path / "out")


def test_different_bases_are_not_averaged(bases: dict[str, Path], tmp_path: Path) -> None:
    for run in "ab":
        model = adapted("CAUSAL_LM", bases["CAUSAL_LM"])
        if run == "b":
            model.base_model.model.gpt_neox.embed_in.weight.data += 1
        run_of(model, "CAUSAL_LM", tmp_path, run)
    portfolio = dpm.Portfolio.load(tmp_path, allow=["different_initial_weights"])
    with pytest.raises(NotCombinableError, match="frozen_weights is not the same"):
        dpm.prepare(portfolio, epsilon=1000, delta=1e-5, weights={"a@4": 0.5, "b@4": 0.5})


def test_recording_imports_no_framework() -> None:
    script = (
        "import sys, dpmerge.training;"
        "print(sorted({'transformers', 'peft', 'accelerate', 'lightning'} & {n.split('.')[0] for n in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
