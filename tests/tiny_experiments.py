"""Every experiment at a scale of seconds: the thousand images of MNIST beside the examples, and made-up colours.

And how numbers come back from a results file.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from reproduction.images import Images
from reproduction.presets import CifarScale, MeanScale, MnistScale, Preset
from reproduction.results import read_back, written

_PUBLIC = Path(__file__).parents[1] / "examples" / "mnist" / "public.npz"

TINY = Preset(
    "tiny",
    mean=MeanScale(draws=20_000, points=21),
    mnist=MnistScale(records=800, tests=200, seeds=3, noise=1 / 16, rungs=4, resolution=10, batch=64),
    cifar=CifarScale(
        width=4, pretraining=32, records=24, tests=40, epochs=30, augmented=False, physical_batch=16, seeds=2, steps=5,
        rungs=2, resolution=2, batch=8,
    ),
)  # fmt: skip


class TinyImages:
    """800 images for training and 200 for testing; and colours that tell four classes apart, soon learnt."""

    def mnist(self) -> Images:
        return _mnist()

    def cifar10(self) -> Images:
        rng = np.random.default_rng(7)
        colours = rng.integers(0, 256, size=(4, 3, 4, 4)).repeat(8, axis=2).repeat(8, axis=3)
        labels = rng.integers(0, 4, size=260).astype(np.uint8)
        pictures = np.clip(colours[labels] + rng.normal(0, 10, size=(260, 3, 32, 32)), 0, 255).astype(np.uint8)
        rows = pictures.reshape(len(labels), -1)
        return Images(rows[:200], labels[:200], rows[200:], labels[200:])


@cache
def _mnist() -> Images:
    with np.load(_PUBLIC) as arrays:
        pixels = np.rint((arrays["features"] * 0.3081 + 0.1307) * 255).clip(0, 255).astype(np.uint8)
        labels = arrays["labels"].astype(np.uint8)
    return Images(pixels[:800], labels[:800], pixels[800:], labels[800:])


def roundtrip(numbers: dict[str, Any]) -> dict[str, Any]:
    """Numbers as they come back from a results file."""
    back: dict[str, Any] = read_back(json.loads(json.dumps(written(numbers), allow_nan=False)))
    return back
