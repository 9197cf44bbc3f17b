"""Opacus' MNIST example (examples/mnist.py of its repository) with the recorder's lines: the same model and loop.

`python examples/opacus/mnist_cnn.py models/cnn` trains on synthetic digits, so that it runs anywhere; put your MNIST
where `digits` is called. Marked with →: what recording adds. Left out: the mean training loss that Opacus' script
prints, which is a function of private data without noise.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from opacus import PrivacyEngine
from torch import Tensor, nn, optim
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from dpmerge.training import Ancestry, Recorder, record  # →


class SampleConvNet(nn.Module):
    """Two convolutions, two linear layers: 26,010 weights."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 8, 2, padding=3)
        self.conv2 = nn.Conv2d(16, 32, 4, 2)
        self.fc1 = nn.Linear(32 * 4 * 4, 32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(functional.relu(self.conv1(x)), 2, 1)
        x = functional.max_pool2d(functional.relu(self.conv2(x)), 2, 1)
        x = functional.relu(self.fc1(x.view(-1, 32 * 4 * 4)))
        return self.fc2(x)  # type: ignore[no-any-return]


def digits(records: int, seed: int) -> TensorDataset:
    """Ten blurred patterns and noise, as large as MNIST's images."""
    patterns = functional.interpolate(torch.randn(10, 1, 7, 7, generator=torch.Generator().manual_seed(0)), size=28)
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 10, (records,), generator=generator)
    return TensorDataset(patterns[labels] + 0.5 * torch.randn(records, 1, 28, 28, generator=generator), labels)


def train(
    model: nn.Module, loader: DataLoader[tuple[Tensor, ...]], optimizer: optim.Optimizer, *, autocast: bool
) -> None:
    model.train()
    criterion = nn.CrossEntropyLoss()
    for data, target in loader:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = criterion(model(data), target)
        loss.backward()
        optimizer.step()


def test(model: nn.Module, loader: DataLoader[tuple[Tensor, ...]]) -> float:
    model.eval()
    with torch.no_grad():
        right = sum(int((model(data).argmax(1) == target).sum()) for data, target in loader)
    return right / len(loader.dataset)  # type: ignore[arg-type]


def main(arguments: list[str] | None = None) -> Recorder:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("directory", type=Path, help="where the record goes")
    parser.add_argument("-b", "--batch-size", type=int, default=64)
    parser.add_argument("-n", "--epochs", type=int, default=10)
    parser.add_argument("-r", "--records", type=int, default=6000)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--sigma", type=float, default=1.0)
    parser.add_argument("-c", "--max-per-sample-grad-norm", type=float, default=1.0)
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--autocast", action="store_true", help="forward passes in bfloat16")
    args = parser.parse_args(arguments)

    train_loader = DataLoader(digits(args.records, seed=1), batch_size=args.batch_size)
    test_loader = DataLoader(digits(1000, seed=2), batch_size=1024)
    model = SampleConvNet()
    optimizer = optim.SGD(model.parameters(), lr=args.lr, momentum=0)
    private, optimizer, train_loader = PrivacyEngine().make_private(
        module=model,
        optimizer=optimizer,
        data_loader=train_loader,
        noise_multiplier=args.sigma,
        max_grad_norm=args.max_per_sample_grad_norm,
    )
    with record(  # →
        model=private,
        optimizer=optimizer,
        data_loader=train_loader,
        run=args.directory.name,
        dataset="digits",
        adjacency="replace_one",
        directory=args.directory,
        ancestry=Ancestry(start="random"),
        stopping="fixed",
        schedule="fixed",
    ) as recorder:
        for epoch in range(1, args.epochs + 1):
            train(private, train_loader, optimizer, autocast=args.autocast)
            print(f"epoch {epoch}: (ε = {recorder.epsilon(args.delta):.2f}, δ = {args.delta})")
    accuracy = test(private, test_loader)
    recorder.metric("accuracy", accuracy, measured_on="public", data="1,000 other digits")  # →
    print(f"accuracy on public digits: {accuracy:.1%}")
    return recorder


if __name__ == "__main__":
    main()
