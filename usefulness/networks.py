"""The networks of the benchmark: a perceptron, a convolutional network, and a transformer with low-rank adapters.

Guarantees: none mixes the records of a batch; each is made of layers that Opacus knows.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


def perceptron(width: int = 64) -> nn.Module:
    """One hidden layer on the 784 pixels of an image of MNIST."""
    return nn.Sequential(nn.Linear(784, width), nn.ReLU(), nn.Linear(width, 10))


def convolutional() -> nn.Module:
    """Two convolutions and two linear layers on images of 28 × 28: 26,000 weights, as in Opacus' own example."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 28, 28)),
        nn.Conv2d(1, 16, 8, stride=2, padding=3),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, stride=2),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(512, 32),
        nn.ReLU(),
        nn.Linear(32, 10),
    )


class LowRank(nn.Module):
    """A frozen linear layer and an adapter beside it: W x + b + B A x, where B begins at zero."""

    def __init__(self, frozen: nn.Linear, rank: int) -> None:
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        self.down = nn.Linear(frozen.in_features, rank, bias=False)
        self.up = nn.Linear(rank, frozen.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.frozen(inputs) + self.up(self.down(inputs))
        return outputs


class Block(nn.Module):
    """Attention and a perceptron, each after a norm and with a way around it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        self.inner_norm = nn.LayerNorm(width)
        self.inner = nn.Linear(width, 2 * width)
        self.outer = nn.Linear(2 * width, width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        shown = self.attention_norm(tokens)
        split = [
            layer(shown).unflatten(2, (self.heads, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        ]
        scores = split[0] @ split[1].transpose(2, 3) / split[0].shape[3] ** 0.5
        tokens = tokens + self.out((scores.softmax(3) @ split[2]).transpose(1, 2).flatten(2))
        around: torch.Tensor = tokens + self.outer(functional.gelu(self.inner(self.inner_norm(tokens))))
        return around


class VisionTransformer(nn.Module):
    """16 patches of 7 × 7 pixels of an image of MNIST, two blocks, and the mean of the tokens to one linear layer."""

    def __init__(self, width: int = 48, heads: int = 4, blocks: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Linear(49, width)
        self.places = nn.Parameter(0.02 * torch.randn(16, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(blocks)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        patches = pixels.view(-1, 4, 7, 4, 7).transpose(2, 3).reshape(-1, 16, 49)
        tokens = self.blocks(self.embedding(patches) + self.places)
        logits: torch.Tensor = self.head(self.norm(tokens).mean(1))
        return logits


def with_adapters(network: VisionTransformer, rank: int = 4) -> VisionTransformer:
    """The network frozen, but for adapters beside the linear layers of its blocks and its head."""
    network.requires_grad_(False)
    for block in network.blocks:
        for name in ("query", "value", "inner", "outer"):
            setattr(block, name, LowRank(getattr(block, name), rank))
    network.head = LowRank(network.head, rank)  # type: ignore[assignment]
    return network
