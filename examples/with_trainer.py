"""Two adapters of a small language model, recorded with Hugging Face's Trainer, merged, and loaded by PEFT.

    python examples/with_trainer.py --out models

The model is made from a configuration, so that nothing is downloaded; yours comes from `from_pretrained`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from opacus import PrivacyEngine
from peft import LoraConfig, PeftModel, get_peft_model
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, GPTNeoXConfig, GPTNeoXForCausalLM, TrainingArguments

import dpmerge as dpm
from dpmerge.training import Ancestry
from dpmerge.training.transformers import PrivateTrainer, Recorder


def public_model(folder: Path) -> None:
    """What everybody may have: the model that is adapted."""
    config = GPTNeoXConfig(
        vocab_size=32, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32
    )
    GPTNeoXForCausalLM(config).save_pretrained(folder)


def private_data(records: int = 64, tokens: int = 12) -> list[dict[str, torch.Tensor]]:
    """One dict a record, as tokenizers make them."""
    texts = torch.randint(1, 32, (records, tokens), generator=torch.Generator().manual_seed(1))
    return [{"input_ids": text, "labels": text} for text in texts]


def train(base: Path, out: Path, noise: float) -> None:
    adapted = get_peft_model(
        AutoModelForCausalLM.from_pretrained(base),
        LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["query_key_value"]),
    ).train()
    model, optimizer, loader = PrivacyEngine().make_private(
        module=adapted,
        optimizer=torch.optim.AdamW([p for p in adapted.parameters() if p.requires_grad], lr=0.01),
        data_loader=DataLoader(private_data(), batch_size=16),
        noise_multiplier=noise,
        max_grad_norm=1.0,
    )
    recorder = Recorder(
        run=out.name,
        dataset="letters",
        adjacency="replace_one",
        directory=out,
        checkpoint_every=4,
        ancestry=Ancestry(start="public", source=base.name),
        stopping="fixed",
        schedule="fixed",
    )
    PrivateTrainer(
        model=model,
        optimizers=(optimizer, None),
        train_dataloader=loader,
        physical_batch_size=8,
        args=TrainingArguments(
            str(out.parent / "trainer"),
            max_steps=8,
            max_grad_norm=0,
            use_cpu=True,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        ),
        callbacks=[recorder],
    ).train()
    run = recorder.recorder
    print(f"{out.name}: {run.steps} steps, ε = {run.epsilon(1e-5):.2f} at δ = 1e-5")


def main(out: Path) -> None:
    base, runs, merged = out / "base", out / "runs", out / "merged"
    public_model(base)
    for name, noise in (("quiet", 1.0), ("loud", 2.0)):
        train(base, runs / name, noise)
    # Put side by side, adapters need no common start; averaged they would.
    portfolio = dpm.Portfolio.load(runs, allow=["different_initial_weights"])
    plan = dpm.prepare(portfolio, epsilon=50, delta=1e-5, weights={"quiet@8": 0.7, "loud@8": 0.3})
    made = dpm.release(plan, out=merged, adapters="concatenated")
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), merged)
    print(f"merged: ε = {made.guarantee.epsilon:g}, rank {model.peft_config['default'].r}, in {merged}")


if __name__ == "__main__":
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--out", type=Path, default=Path("models"))
    main(arguments.parse_args().out)
