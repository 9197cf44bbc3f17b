"""Two steps of full-batch DP-SGD on logistic regression with one feature: the law of the merged weight, by histograms.

Written from the definition and slowly: gradients record by record, the hidden weights after the first step on an even
grid, what a run adds to the merged weight as a histogram, sums of independent parts by direct convolution (all terms
are positive, so that small probabilities keep their digits). Two grids say how well a figure is known.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def gradient_sum(
    weight: np.ndarray, feature: float, labels: Sequence[int], clip_norm: float, total: bool
) -> np.ndarray:
    """Of log(1 + exp(-y x theta)) over the records, each gradient clipped, or their total."""
    found = np.zeros_like(weight)
    for label in (1, -1):
        with np.errstate(over="ignore"):
            gradient = -label * feature / (1 + np.exp(label * feature * weight))
        if not total:
            gradient = gradient / np.maximum(1, np.abs(gradient) / clip_norm)
        for _ in range(labels.count(label)):
            found = found + gradient
    return found / np.maximum(1, np.abs(found) / clip_norm) if total else found


def histogram(values: np.ndarray, chances: np.ndarray, width: float, reach: int) -> np.ndarray:
    """Each value's chance on its two neighbouring cells, so that means are kept, for cells from -reach to reach."""
    place = values / width
    below = np.floor(place)
    share = place - below
    cells = below.astype(int) + reach
    size = 2 * reach + 2
    return (np.bincount(cells, chances * (1 - share), size) + np.bincount(cells + 1, chances * share, size))[:-1]


def merged_law(
    *,
    labels: Sequence[int],
    feature: float,
    noises: Sequence[float],
    weights: Sequence[float],
    total: bool,
    width: float,
    points: int,
) -> np.ndarray:
    """Probabilities of the merged weight on cells of this width about zero: clip norm 1, rate 1, two steps from 0."""
    law = np.ones(1)
    for noise, weight in zip(noises, weights, strict=True):
        start = -gradient_sum(np.zeros(1), feature, labels, 1.0, total)[0]
        if noise:
            offsets = (np.arange(points) + 0.5) / points * 20 - 10
            hidden, chances = start + noise * offsets, np.exp(-(offsets**2) / 2)
            # Where the others turn round a hidden weight matters to a thousandth: the same grid again, finer.
            inside = np.abs(hidden) < 0.15
            fine = (np.arange(points) + 0.5) / points * 0.3 - 0.15
            hidden = np.append(hidden[~inside], fine)
            dense = np.exp(-(((fine - start) / noise) ** 2) / 2)
            left_out = chances[inside].sum()
            chances = np.append(chances[~inside], dense * (left_out / dense.sum() if left_out else 0.0))
            chances = chances / chances.sum()
        else:
            hidden, chances = np.array([start]), np.ones(1)
        moved = weight * (hidden - gradient_sum(hidden, feature, labels, 1.0, total))
        reach = int(np.ceil(np.abs(moved).max() / width)) + 1
        law = np.convolve(law, histogram(moved, chances, width, reach))
    spread = float(np.hypot.reduce(np.asarray(noises) * np.asarray(weights)))
    cells = np.arange(-int(12 * spread / width), int(12 * spread / width) + 1)
    bell = np.exp(-((cells * width / spread) ** 2) / 2)
    return np.convolve(law, bell / bell.sum())


def delta(law: np.ndarray, other: np.ndarray, epsilon: float) -> float:
    return float(np.maximum(law - np.exp(epsilon) * other, 0).sum())


def epsilon(law: np.ndarray, other: np.ndarray, at: float) -> float:
    """The smallest epsilon with both divergences at most `at`, by bisection."""
    low, high = 0.0, 100.0
    for _ in range(60):
        middle = (low + high) / 2
        worse = max(delta(law, other, middle), delta(other, law, middle)) > at
        low, high = (middle, high) if worse else (low, middle)
    return high


def flipped_label(
    records: int, noises: Sequence[float], *, total: bool = False, width: float = 0.25, points: int = 40_000
) -> tuple[np.ndarray, np.ndarray]:
    """The laws with the one label 1 and with it -1; all others are half and half. Both on the same cells."""
    others = [1, -1] * ((records - 1) // 2)
    made = [
        merged_law(
            labels=[*others, label],
            feature=200.0,
            noises=noises,
            weights=(0.9, 0.1),
            total=total,
            width=width,
            points=points,
        )
        for label in (1, -1)
    ]
    size = max(map(len, made))
    first, second = (np.pad(law, (size - len(law)) // 2) for law in made)
    return first, second
