"""ResNet18 for images of 32 × 32, normalised by groups: batch normalisation mixes the records of a batch.

The first layer is 3 × 3 with stride 1 and there is no max-pooling, as in the paper; `width` is the number of channels
of the first stage, 64 in the original.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class Residual(nn.Module):
    """Two 3 × 3 convolutions and a way around them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.first_norm = _norm(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.second_norm = _norm(outputs)
        self.around: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.around = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), _norm(outputs))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        inner = functional.relu(self.first_norm(self.first(images)))
        return functional.relu(self.second_norm(self.second(inner)) + self.around(images))


class ResNet18(nn.Module):
    """Four stages of two blocks each, then one linear layer."""

    def __init__(self, width: int = 64, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.stem_norm = _norm(width)
        blocks: list[nn.Module] = []
        inputs = width
        for stage in range(4):
            outputs = width << stage
            blocks += [Residual(inputs, outputs, 2 if stage else 1), Residual(outputs, outputs, 1)]
            inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(inputs, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        inner: torch.Tensor = self.blocks(functional.relu(self.stem_norm(self.stem(images))))
        logits: torch.Tensor = self.head(inner.mean(dim=(2, 3)))
        return logits


def _norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(min(32, channels // 2), channels)
