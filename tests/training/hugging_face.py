"""Tiny Hugging Face models made from configurations, so that nothing is downloaded, and a private Trainer of them."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from opacus import PrivacyEngine
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.utils.data import DataLoader
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    PreTrainedTokenizerFast,
    TrainingArguments,
)

from dpmerge.training import record
from dpmerge.training.transformers import PrivateTrainer, TransformersRecorder
from training.loops import QUIET

WORDS = 24
# What these libraries say of themselves.
QUIET_TRAINER = (
    *QUIET,
    "ignore:`is_gradient_checkpointing` is deprecated",
    "ignore:.*is deprecated:DeprecationWarning",
)
TASKS = ("SEQ_CLS", "CAUSAL_LM")
TARGETS = {"SEQ_CLS": ["query", "value"], "CAUSAL_LM": ["query_key_value"]}


def public_model(task: str, folder: Path) -> Path:
    """A base model on disk, the same for everybody."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        if task == "SEQ_CLS":
            made: Any = BertForSequenceClassification(
                BertConfig(
                    vocab_size=WORDS, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
                    max_position_embeddings=16, num_labels=2, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
                )
            )  # fmt: skip
        else:
            made = GPTNeoXForCausalLM(
                GPTNeoXConfig(
                    vocab_size=WORDS, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
                    max_position_embeddings=16, bos_token_id=0, eos_token_id=0,
                )
            )  # fmt: skip
    made.save_pretrained(folder)
    return folder


def base_class(task: str) -> Any:
    return BertForSequenceClassification if task == "SEQ_CLS" else GPTNeoXForCausalLM


def adapted(task: str, base: Path, **settings: Any) -> Any:
    """A base model with a new adapter, whose A begins at random."""
    config = LoraConfig(task_type=task, r=2, lora_alpha=4, target_modules=TARGETS[task], **settings)
    return get_peft_model(base_class(task).from_pretrained(base), config).train()


def tokenizer() -> PreTrainedTokenizerFast:
    words = {"[UNK]": 0, "[PAD]": 1, **{f"w{number}": number for number in range(2, WORDS)}}
    made = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))  # noqa: S106
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="[UNK]", pad_token="[PAD]")  # noqa: S106


# A first batch that is empty has no shape: with a third of 64 records drawn, once in 10¹¹ runs.
def records(task: str, count: int = 64, tokens: int = 6) -> list[dict[str, torch.Tensor]]:
    texts = torch.randint(2, WORDS, (count, tokens), generator=torch.Generator().manual_seed(3))
    if task == "SEQ_CLS":
        return [{"input_ids": text, "labels": text[0] % 2} for text in texts]
    return [{"input_ids": text, "labels": text} for text in texts]


@dataclass
class PrivateModel:
    """What make_private returned."""

    model: Any
    optimizer: Any
    loader: Any

    def trainer(self, out: Path, *, callbacks: Any = (), kind: Any = PrivateTrainer, **given: Any) -> Any:
        """A Trainer of it; TrainingArguments among the options are passed on."""
        own = {name: given.pop(name) for name in ("physical_batch_size", "compute_loss_func") if name in given}
        if kind is PrivateTrainer:
            own["train_dataloader"] = self.loader
        optimizers = given.pop("optimizers", (self.optimizer, None))
        settings = {"max_steps": 4, "max_grad_norm": 0, "logging_strategy": "no", **given}
        args = TrainingArguments(
            str(out), use_cpu=True, save_strategy="no", report_to=[], disable_tqdm=True, **settings,
        )  # fmt: skip
        return kind(model=self.model, optimizers=optimizers, args=args, callbacks=list(callbacks), **own)

    def loop(self, folder: Path, run: str, loss: Callable[[Any, Any], Any], steps: int = 4, **settings: Any) -> Any:
        """The same without any Trainer."""
        given = {"run": run, "dataset": "toy", "adjacency": "replace_one", "directory": folder / run} | settings
        with record(model=self.model, optimizer=self.optimizer, data_loader=self.loader, **given) as recorder:
            while recorder.steps < steps:
                for batch in self.loader:
                    self.optimizer.zero_grad()
                    labels = batch.pop("labels")
                    loss(self.model(**batch), labels).backward()
                    self.optimizer.step()
                    if recorder.steps == steps:
                        break
        return recorder


def private_model(
    model: Any, data: list[Any], *, batch_size: int = 24, noise: float = 1.0, **settings: Any
) -> PrivateModel:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = PrivacyEngine().make_private(
            module=model,
            optimizer=torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1),
            data_loader=DataLoader(data, batch_size=batch_size),
            noise_multiplier=noise,
            max_grad_norm=1.0,
            **settings,
        )
    return PrivateModel(*made)


def recorder_in(folder: Path, run: str = "run", **options: Any) -> TransformersRecorder:
    return TransformersRecorder(run=run, dataset="toy", adjacency="replace_one", directory=folder / run, **options)
