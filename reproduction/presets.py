"""How large each experiment is: the paper's own sizes, and CIFAR-10 small enough for two cores, in minutes or hours.

Guarantees: a preset is plain data, written in full into every result that was computed with it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

DELTA = 1e-5
"""Of every ε here, as in the paper."""


@dataclass(frozen=True)
class MeanScale:
    """Mean estimation: how many data sets are drawn to check the formulas, and how fine the grids are."""

    draws: int = 200_000
    points: int = 101


@dataclass(frozen=True)
class MnistScale:
    """Logistic regression on MNIST. The paper's noise is multiplied by `noise`, for trials on fewer records."""

    records: int = 60_000
    tests: int = 10_000
    seeds: int = 5
    steps: int = 20
    noise: float = 1.0
    rungs: int = 12  # equal runs of the ladder
    resolution: int = 50  # weights are multiples of 1/resolution
    batch: int = 256  # of the run whose checkpoints are mixed


@dataclass(frozen=True)
class CifarScale:
    """ResNet18 on CIFAR-10: channels of its first layer, images, pretraining."""

    width: int = 64
    pretraining: int = 25_000
    records: int = 25_000
    tests: int = 10_000
    epochs: int = 100  # of pretraining
    augmented: bool = True  # random crops and flips while pretraining
    physical_batch: int = 128  # gradients in memory at once
    workers: int = 4  # processes that fetch records for a GPU
    seeds: int = 3
    steps: int = 20
    rungs: int = 4
    resolution: int = 5
    batch: int = 256


SMALL_CIFAR = CifarScale(
    width=8,
    pretraining=20_000,
    records=2_000,
    epochs=8,
    augmented=False,
    physical_batch=64,
    batch=32,  # of so few records 256 would be an eighth, and no sampling to speak of
)

MEDIUM_CIFAR = CifarScale(
    width=16,
    epochs=30,
    physical_batch=32,  # of two cores the fastest: the gradients of so few stay near the processor
    seeds=1,
)
"""The paper's images, clipping and noise; a network of a sixteenth of the parameters."""


@dataclass(frozen=True)
class Preset:
    """The sizes of all experiments."""

    name: str
    mean: MeanScale = field(default_factory=MeanScale)
    mnist: MnistScale = field(default_factory=MnistScale)
    cifar: CifarScale = field(default_factory=CifarScale)

    def document(self) -> dict[str, Any]:
        return asdict(self)


PRESETS = {
    preset.name: preset
    for preset in (Preset("paper"), Preset("medium", cifar=MEDIUM_CIFAR), Preset("small", cifar=SMALL_CIFAR))
}
"""They differ in CIFAR-10 only: everything else runs in minutes at the paper's own size."""

USUAL = "small"

LARGER = ("medium", "paper")
"""Presets whose results stand beside those of the usual one, in folders of their own."""
