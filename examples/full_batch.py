"""A full-batch Opacus loop under the recorder: what both example portfolios are trained with."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dpmerge.training import Ancestry, record


def train(
    model: nn.Module,
    data: TensorDataset,
    public: TensorDataset,
    *,
    noise_multiplier: float,
    clip_norm: float,
    rates: Sequence[float],
    keep: Collection[int],
    directory: Path,
    feature_bound: float | None = None,
    **recording: Any,
) -> None:
    """Train from zero weights, keep some checkpoints, note their accuracy on public data."""
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    private, optimizer, criterion, loader = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=max(rates)),
        criterion=nn.CrossEntropyLoss(),
        data_loader=DataLoader(data, batch_size=len(data)),
        noise_multiplier=noise_multiplier,
        max_grad_norm=clip_norm,
        grad_sample_mode="ghost",
    )
    [(features, labels)] = loader
    with record(
        model=private,
        optimizer=optimizer,
        data_loader=loader,
        run=directory.name,
        adjacency="replace_one",
        directory=directory,
        checkpoint_at=keep,
        criterion=criterion if feature_bound is not None else None,
        feature_bound=feature_bound,
        ancestry=Ancestry(start="random"),
        stopping="fixed",
        schedule="fixed",
        **recording,
    ) as recorder:
        for step, rate in enumerate(rates, start=1):
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.zero_grad()
            criterion(private(features), labels).backward()
            optimizer.step()
            if step in keep:
                accuracy = accuracy_of(model, public)
                recorder.metric("accuracy", accuracy, measured_on="public", data="public.npz")
    print(f"{directory.name}: ε = {recorder.epsilon(1e-5):.4f} at δ = 1e-5, public accuracy {accuracy:.3f}")


def accuracy_of(model: nn.Module, public: TensorDataset) -> float:
    """The share of public examples the model labels right."""
    features, labels = public.tensors
    with torch.no_grad():
        return float((model(features).argmax(1) == labels).double().mean())
