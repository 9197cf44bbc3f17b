"""Language models small enough for a test: built from a configuration, with a tokenizer and benchmarks made here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from dpmerge import Portfolio
from evaluation.scored_portfolios import write_models
from merging.models import write_run
from merging.test_adapters import FILE, config

WORDS = ["<eos>", "<unk>", *(f"w{place}" for place in range(62))]
HOW = {"vocab_size": 64, "n_positions": 48, "n_embd": 16, "n_layer": 2, "n_head": 2, "bos_token_id": 0}
MODULES = {f"base_model.model.transformer.h.{layer}.attn.c_attn": (48, 16) for layer in range(2)}


def save_model(folder: Path, seed: int) -> dict[str, Any]:
    """A model as save_pretrained writes it, and its tensors; far from zero, so that models differ in what they say."""
    words = Tokenizer(models.WordLevel({word: place for place, word in enumerate(WORDS)}, unk_token="<unk>"))  # noqa: S106
    words.pre_tokenizer = pre_tokenizers.Whitespace()  # type: ignore[assignment]
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<eos>", bos_token="<eos>", unk_token="<unk>")  # noqa: S106
    torch.manual_seed(seed)
    model = GPT2LMHeadModel(GPT2Config(**HOW, eos_token_id=0, initializer_range=0.6))  # type: ignore[arg-type]
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    tensors = {name: value.numpy() for name, value in model.state_dict().items() if name != "lm_head.weight"}
    return {name: np.ascontiguousarray(value) for name, value in tensors.items()}


def write_language_models(home: Path) -> Portfolio:
    """Three runs of whole models, with the small files beside them that transformers needs."""
    tensors = {run: save_model(home.parent / f"saved-{run}", seed) for seed, run in enumerate("abc")}
    write_models(home, tensors)
    for run in tensors:
        for file in (home.parent / f"saved-{run}").glob("*.json"):
            (home / run / file.name).write_bytes(file.read_bytes())
    return Portfolio.load(home)


def write_adapter_runs(home: Path, base: Path) -> Portfolio:
    """Two runs of LoRA adapters for one model."""
    stated = config(2, 4, base_model_name_or_path=str(base), target_modules=["c_attn"], fan_in_fan_out=True,
                    lora_dropout=0.0, task_type="CAUSAL_LM")  # fmt: skip
    for seed, run in enumerate("ab"):
        random = np.random.default_rng(seed)
        tensors = {}
        for name, (out, inputs) in MODULES.items():
            for which, shape in (("A", (2, inputs)), ("B", (out, 2))):
                values = random.standard_normal(shape).astype(np.float32)
                tensors[f"{name}.lora_{which}.weight"] = ("F32", shape, values.tobytes())
        small = {"adapter_config.json": json.dumps(stated)}
        write_run(home, run, {FILE: tensors}, metadata={"format": "pt"}, small=small)
    return Portfolio.load(home)


CHOICE: dict[str, Any] = {
    "task": "tiny_choice",
    "tag": "tiny_tag",
    "dataset_path": "json",
    "test_split": "test",
    "training_split": "test",
    "output_type": "multiple_choice",
    "doc_to_text": "{{question}}",
    "doc_to_target": "answer",
    "doc_to_choice": "{{choices}}",
    "metric_list": [{"metric": each, "aggregation": "mean", "higher_is_better": True} for each in ("acc", "acc_norm")],
    "metadata": {"version": 1.0},
}  # fmt: skip
PERPLEXITY: dict[str, Any] = {
    "task": "tiny_perplexity",
    "tag": "tiny_tag",
    "dataset_path": "json",
    "test_split": "test",
    "output_type": "loglikelihood_rolling",
    "doc_to_text": "",
    "doc_to_target": "{{question}}",
    "metric_list": [{"metric": "word_perplexity"}],
}


def write_tasks(folder: Path, *, examples: int = 40, **changed: Mapping[str, Any]) -> Path:
    """Two tasks on one file of data and a group of two more; `changed` replaces fields of a task."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(5)
    rows = []
    for place in range(examples):
        words = [WORDS[each] for each in random.integers(2, 64, 8)]
        rows.append({"question": " ".join(words[:4]), "choices": words[4:], "answer": place % 4})
    data = folder / "data.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tasks = {
        "choice": CHOICE,
        "perplexity": PERPLEXITY,
        "first": {**CHOICE, "task": "tiny_first", "tag": None, "metric_list": CHOICE["metric_list"][:1]},
        "second": {**CHOICE, "task": "tiny_second", "tag": None, "doc_to_target": "{{3 - answer}}"},
    }
    for name, task in tasks.items():
        whole = {**task, "dataset_kwargs": {"data_files": {"test": str(data)}}, **changed.get(name, {})}
        stated = {key: value for key, value in whole.items() if value is not None}
        (folder / f"{name}.yaml").write_text(json.dumps(stated))
    grouped = {"group": "tiny_group", "task": ["tiny_first", "tiny_second"],
               "aggregate_metric_list": [{"metric": "acc", "weight_by_size": True}]}  # fmt: skip
    (folder / "group.yaml").write_text(json.dumps(grouped))
    return folder
