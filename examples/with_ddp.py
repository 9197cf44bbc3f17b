"""Opacus' tutorial on several processes, with the recorder's lines added: a CNN on small pictures.

    python examples/with_ddp.py --processes 2 --out models

Every process runs the same lines; rank 0 writes. The loader is made as for one process, and make_private deals the
records out. Data here are drawn on the spot: pictures with a bright patch, whose place is the class.
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from opacus import PrivacyEngine
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from dpmerge.training import record


def pictures(records: int, *, seed: int) -> TensorDataset:
    """The same on every process: record 5 has to be record 5 everywhere."""
    numbers = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 10, (records,), generator=numbers)
    images = 0.3 * torch.randn(records, 1, 28, 28, generator=numbers)
    for image, label in zip(images, labels.tolist(), strict=True):
        image[0, 3 + 14 * (label // 5) :, 1 + 5 * (label % 5) :][:8, :5] += 1
    return TensorDataset(images, labels)


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, 2, padding=3),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, 2),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(512, 32),
        nn.ReLU(),
        nn.Linear(32, 10),
    )


def accuracy(model: nn.Module, public: TensorDataset) -> float:
    images, labels = public.tensors
    model.eval()
    with torch.no_grad():
        right = model(images).argmax(1) == labels
    model.train()
    return float(right.float().mean())


def launch(rank: int, processes: int, meeting: Path, out: Path, records: int, epochs: int) -> None:
    """What each process does."""
    warnings.filterwarnings("ignore", module="opacus|torch")
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=processes)
    model: nn.Module = DifferentiallyPrivateDistributedDataParallel(network())
    public = pictures(500, seed=2)
    model, optimizer, loader = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
        data_loader=DataLoader(pictures(records, seed=1), batch_size=50),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    criterion = nn.CrossEntropyLoss()
    with record(
        model=model,
        optimizer=optimizer,
        data_loader=loader,
        run="ddp",
        dataset="patches",
        adjacency="replace_one",
        directory=out / "ddp",
        stopping="fixed",
        schedule="fixed",
    ) as recorder:
        for _ in range(epochs):
            batch: tuple[Tensor, Tensor]
            for batch in loader:
                optimizer.zero_grad()
                criterion(model(batch[0]), batch[1]).backward()
                optimizer.step()
            recorder.checkpoint()  # on every rank: all of them must have the same weights
            if rank == 0:
                recorder.metric("accuracy", accuracy(model, public), measured_on="public", data="500 test pictures")
    if rank == 0:
        print(f"{recorder.steps} steps, ε = {recorder.epsilon(1e-5):.2f} at δ = 1e-5, in {recorder.folder}")
    dist.destroy_process_group()


def main(processes: int, out: Path, records: int, epochs: int) -> None:
    with tempfile.TemporaryDirectory() as place:
        torch.multiprocessing.spawn(
            launch, args=(processes, Path(place) / "meeting", out, records, epochs), nprocs=processes
        )


if __name__ == "__main__":
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--processes", type=int, default=2)
    arguments.add_argument("--out", type=Path, default=Path("models"))
    arguments.add_argument("--records", type=int, default=1000)
    arguments.add_argument("--epochs", type=int, default=3)
    asked = arguments.parse_args()
    main(asked.processes, asked.out, asked.records, asked.epochs)
