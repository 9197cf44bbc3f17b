"""A run recorded in Lightning: a private module, its loader, and one callback.

python examples/with_lightning.py --out models
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from lightning.pytorch import LightningModule, Trainer
from opacus import PrivacyEngine
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from dpmerge.training.lightning import Recorder


class Classifier(LightningModule):
    """Trains what make_private returned, with the optimizer it returned."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        super().__init__()
        self.model, self.private_optimizer = model, optimizer

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        features, labels = batch
        return nn.functional.cross_entropy(self.model(features), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self.private_optimizer


def main(out: Path) -> None:
    numbers = torch.Generator().manual_seed(1)
    features = torch.randn(256, 8, generator=numbers)
    data = TensorDataset(features, (features.sum(1) > 0).long())
    network = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))
    model, optimizer, loader = PrivacyEngine().make_private(
        module=network,
        optimizer=torch.optim.SGD(network.parameters(), lr=0.5),
        data_loader=DataLoader(data, batch_size=32),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    recorder = Recorder(
        run="lightning",
        dataset="signs",
        adjacency="replace_one",
        directory=out / "lightning",
        checkpoint_every=8,
        stopping="fixed",
        schedule="fixed",
    )
    trainer = Trainer(
        max_epochs=2,
        callbacks=[recorder],
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Classifier(model, optimizer), loader)
    run = recorder.recorder
    print(f"{run.steps} steps, ε = {run.epsilon(1e-5):.2f} at δ = 1e-5, in {run.folder}")


if __name__ == "__main__":
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--out", type=Path, default=Path("models"))
    main(arguments.parse_args().out)
