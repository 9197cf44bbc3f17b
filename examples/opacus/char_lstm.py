"""Opacus' char-LSTM (examples/char-lstm-classification.py of its repository) with the recorder's lines.

Which language is a name from? `python examples/opacus/char_lstm.py models/names` trains on invented names, so that it
runs anywhere; put your files where `invented_names` is called. Marked with →: what recording adds, and what it cures.

Opacus' script pads each batch to its longest name and reads the last position, so that every record's gradient depends
on that longest name: one record changes all of them, and clipping does not bound that. Nobody can see it from the
loop. Here names are cut and padded to one length, fixed beforehand.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

import torch
from opacus import PrivacyEngine
from opacus.layers import DPGRU, DPLSTM, DPRNN
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, random_split

from dpmerge.training import Ancestry, Recorder, record  # →

START, END, PAD = 256, 257, 258
VOCABULARY = 256 + 3  # the values of a byte, and three marks
LONGEST = 16  # →
LAYERS = {"lstm": DPLSTM, "gru": DPGRU, "rnn": DPRNN}
LANGUAGES = {"north": "bdgkrst", "south": "aeioumnl", "east": "chzjyvu"}


def encoded(name: str) -> Tensor:
    """The bytes of a name between two marks."""
    return torch.tensor([START, *name.encode(), END])


class NamesDataset(Dataset[tuple[Tensor, Tensor]]):
    """Names and the numbers of their languages."""

    def __init__(self, names: dict[str, list[str]]) -> None:
        self.labels = sorted(names)
        self.samples = [
            (encoded(name), torch.tensor(number)) for number, label in enumerate(self.labels) for name in names[label]
        ]

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.samples[index]

    def __len__(self) -> int:
        return len(self.samples)


def invented_names(each: int) -> dict[str, list[str]]:
    chance = random.Random(0)  # noqa: S311
    return {
        language: ["".join(chance.choices(letters, k=chance.randint(3, 12))) for _ in range(each)]
        for language, letters in LANGUAGES.items()
    }


class CharNNClassifier(nn.Module):
    """Embedding, recurrent layers, and a linear layer on the last position."""

    def __init__(self, recurrent: type[nn.Module], embedding_size: int, hidden_size: int, output_size: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, embedding_size)
        self.rnn = recurrent(embedding_size, hidden_size, num_layers=1, batch_first=True)
        self.out_layer = nn.Linear(hidden_size, output_size)

    def forward(self, x: Tensor) -> Tensor:
        x, _ = self.rnn(self.embedding(x))
        return self.out_layer(x[:, -1, :])  # type: ignore[no-any-return]


def padded_collate(batch: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Names of one length, whatever the other names of the batch are."""
    rows = torch.full((len(batch), LONGEST), PAD)  # → Opacus' script: pad_sequence, to the longest of the batch
    for row, (name, _) in zip(rows, batch, strict=True):
        row[: len(name)] = name[:LONGEST]
    return rows, torch.stack([label for _, label in batch]).long()


def train(
    model: nn.Module, criterion: nn.Module, optimizer: torch.optim.Optimizer, loader: DataLoader[tuple[Tensor, Tensor]]
) -> None:
    model.train()
    for x, y in loader:
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def test(model: nn.Module, loader: DataLoader[tuple[Tensor, Tensor]]) -> float:
    model.eval()
    with torch.no_grad():
        right = sum(int((model(x).argmax(-1) == y).sum()) for x, y in loader)
    return right / len(loader.dataset)  # type: ignore[arg-type]


def main(arguments: list[str] | None = None) -> Recorder:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("directory", type=Path, help="where the record goes")
    parser.add_argument("-b", "--batch-size", type=int, default=800)
    parser.add_argument("--mode", default="lstm", choices=LAYERS)
    parser.add_argument("--embedding-size", type=int, default=64)
    parser.add_argument("--hidden-size", type=int, default=128)
    parser.add_argument("--learning-rate", type=float, default=2.0)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--names", type=int, default=2000, help="of each language")
    parser.add_argument("--sigma", type=float, default=1.0)
    parser.add_argument("-c", "--max-per-sample-grad-norm", type=float, default=1.5)
    parser.add_argument("--delta", type=float, default=8e-5)
    args = parser.parse_args(arguments)

    names = NamesDataset(invented_names(args.names))
    kept = len(names) // 5
    train_names, test_names = random_split(names, [len(names) - kept, kept])
    train_loader = DataLoader(train_names, batch_size=args.batch_size, collate_fn=padded_collate)
    test_loader = DataLoader(test_names, batch_size=2 * args.batch_size, collate_fn=padded_collate)
    model = CharNNClassifier(LAYERS[args.mode], args.embedding_size, args.hidden_size, len(names.labels))
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.learning_rate)
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
        dataset="names",
        adjacency="replace_one",
        directory=args.directory,
        ancestry=Ancestry(start="random"),
        stopping="fixed",
        schedule="fixed",
    ) as recorder:
        for epoch in range(args.epochs):
            train(private, criterion, optimizer, train_loader)
            print(f"epoch {epoch}: (ε = {recorder.epsilon(args.delta):.2f}, δ = {args.delta})")
    accuracy = test(private, test_loader)
    recorder.metric("accuracy", accuracy, measured_on="private", data="names held out")  # →
    print(f"accuracy on names held out: {accuracy:.1%}")
    return recorder


if __name__ == "__main__":
    main()
