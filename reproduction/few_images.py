"""Training on a data set of few distinct images, many trials at once: the paper's MNIST runs, exactly and fast.

A linear model never leaves the span of its images but by noise, and noise outside it changes nothing inside. So a run
on 60,000 records of which only a dozen are distinct is the same run in a dozen coordinates, and a million runs take a
minute.

Guarantees: softmax regression with a bias from zero weights, full batch, each record's gradient clipped as Opacus does
(its factor is C/(norm + 1e-6)), Gaussian noise on the sum, plain SGD on the mean: in the law of the final weights on
the span, what `reproduction.training` does; tests compare the two.
Refuses: images that are not bytes, counts that are negative.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np
import numpy.typing as npt
import torch

from dpmerge.errors import InvalidInputError
from reproduction.images import Bytes
from reproduction.tasks import standardised
from reproduction.training import Setup

CLASSES = 10
PIXELS = 784
GREY = 33
"""The byte that standardising sends nearest to zero."""

_CHUNK = 2048  # trials at a time: what is worked on stays in the cache


@dataclass(frozen=True, eq=False)
class FewImages:
    """Distinct images [images, pixels] as bytes, and how many records each has of each label [images, classes]."""

    images: Bytes
    counts: npt.NDArray[np.int64]

    def __post_init__(self) -> None:
        if self.images.dtype != np.uint8 or self.images.ndim != 2:
            raise InvalidInputError("images", self.images.dtype, "bytes, one image a row")
        if self.counts.shape != (len(self.images), CLASSES) or self.counts.min() < 0:
            raise InvalidInputError("counts", self.counts.shape, "a number ≥ 0 for every image and class")

    @property
    def records(self) -> int:
        return int(self.counts.sum())

    def exchanged(self, image: int, label: int, other: int) -> FewImages:
        """The neighbour in which one record of this image has another label."""
        counts = self.counts.copy()
        counts[image, label] -= 1
        counts[image, other] += 1
        return FewImages(self.images, counts)

    @cached_property
    def features(self) -> npt.NDArray[np.float64]:
        """What the model sees of each image: its pixels, standardised, and a one for the bias."""
        pixels = standardised(self.images).numpy().astype(float)
        return np.column_stack([pixels, np.ones(len(pixels))])

    @cached_property
    def basis(self) -> npt.NDArray[np.float64]:
        """Orthonormal directions [directions, pixels + 1] that span the features."""
        _, sizes, directions = np.linalg.svd(self.features, full_matrices=False)
        return np.asarray(directions[sizes > 1e-6 * sizes[0]])

    def whole(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Every record, as an ordinary data set has it: features without the one, and labels."""
        image, label = np.nonzero(self.counts)
        order = np.repeat(np.arange(len(image)), self.counts[image, label])
        return standardised(self.images[image[order]]), torch.from_numpy(label[order])

    def trained(self, setup: Setup, trials: int, generator: torch.Generator) -> torch.Tensor:
        """The final weights of so many runs in the coordinates of `basis`: [trials, directions · classes]."""
        found = [
            self._trained(setup, min(_CHUNK, trials - begun), generator) for begun in range(0, trials, _CHUNK)
        ]  # fmt: skip
        return torch.cat(found)

    def _trained(self, setup: Setup, trials: int, generator: torch.Generator) -> torch.Tensor:
        features = torch.from_numpy(self.features @ self.basis.T).float()
        images, directions = features.shape
        squares = (features**2).sum(1)[:, None]
        labels = np.flatnonzero(self.counts.any(axis=0)).tolist()
        counts = torch.from_numpy(self.counts).float()
        state = torch.zeros(directions, CLASSES * trials)
        for rate in setup.rates:
            chances = (features @ state).view(images, CLASSES, trials)
            chances -= chances.amax(1, keepdim=True)
            chances.exp_()
            chances /= chances.sum(1, keepdim=True)
            lengths = (chances**2).sum(1).add_(1.0)
            clipped = []  # of the records of each label: how many, each times its factor
            for label in labels:
                norms = (lengths - 2 * chances[:, label]).mul_(squares).clamp_min_(0).sqrt_().add_(1e-6)
                clipped.append(norms.reciprocal_().mul_(setup.clip_norm).clamp_max_(1.0).mul_(counts[:, [label]]))
            chances *= torch.stack(clipped).sum(0)[:, None]
            for label, factor in zip(labels, clipped, strict=True):
                chances[:, label] -= factor
            step = rate / self.records
            state.sub_(features.T @ chances.view(images, -1), alpha=step)
            noise = torch.randn(state.shape, generator=generator)
            state.sub_(noise, alpha=step * setup.noise_multiplier * setup.clip_norm)
        return state.view(directions * CLASSES, trials).T


def merged(
    data: FewImages, setups: Sequence[Setup], weights: Sequence[float], trials: int, generator: torch.Generator
) -> torch.Tensor:
    """Averages of independent runs on the same data: [trials, directions · classes]."""
    found = torch.zeros(trials, len(data.basis) * CLASSES)
    for begun in range(0, trials, _CHUNK):
        part = slice(begun, min(begun + _CHUNK, trials))
        for setup, weight in zip(setups, weights, strict=True):
            found[part] += weight * data.trained(setup, part.stop - begun, generator)
    return found


def faint_walls(
    records: int, *, contrast: int, signal: int, gates: Sequence[int], walled: int, bright: int = GREY
) -> tuple[FewImages, int]:
    """Grey images, faint patterns of two labels in equal number, and one record of the signal's own; its place.

    `signal` pixels, half a little lighter and half darker, are the pattern that the record shows, at the contrast
    `bright`; each of `gates` is a pattern of so many pixels of its own. The others of `walled` records, half of label 0
    and half of 1, show the signal's pattern together with every gate's, in each combination of signs, `contrast` bytes
    off the grey; all else is grey. The record is there with label 0.
    """
    if signal % 2 or any(size % 2 for size in gates) or signal + sum(gates) > PIXELS:
        raise InvalidInputError("pixels", (signal, *gates), f"even numbers, together at most {PIXELS}")
    patterns, begun = [], 0
    for size in (signal, *gates):
        pattern = np.zeros(PIXELS, dtype=int)
        pattern[begun : begun + size] = np.tile([1, -1], size // 2)
        patterns.append(pattern)
        begun += size
    signs = np.array([(1, *chosen) for chosen in product((1, -1), repeat=len(gates))])
    offsets = [np.zeros(PIXELS, dtype=int), bright * patterns[0], *(contrast * signs @ np.array(patterns))]
    images = (GREY + np.array(offsets)).astype(np.uint8)
    counts = np.zeros((len(images), CLASSES), dtype=np.int64)
    each = walled // (2 * len(signs))
    counts[2:, :2] = each
    counts[1, 0] = 1
    rest = records - int(counts.sum())
    if rest < 0:
        raise InvalidInputError("walled", walled, f"at most {records - 1} records")
    counts[0, :2] = (rest + 1) // 2, rest // 2
    return FewImages(images, counts), 1
