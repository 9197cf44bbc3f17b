"""zero_out from its definition: the law of noisy sums on n records, one of which is there or is a null record.

A data set is a list of gradients; the null record's is zero, and it is drawn like any other. A step draws each record
with probability q (or takes all), clips each gradient to C or the total to C, adds N(0, (sigma C)^2) and, if asked,
divides by the realised size of the batch. Its law is a finite mixture of Gaussians, over who was drawn: all 2^n sets,
one by one. Hockey-stick divergences are integrated on a grid. Nothing is taken from any accountant.

    plus  = H(record there | null)      minus = H(null | record there)
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import product

import numpy as np
from scipy.stats import binom, norm

Law = list[tuple[float, float, float]]
"""(probability, mean, deviation) of each component."""

POINTS = 200_001


def law(
    gradients: Sequence[float],
    *,
    sigma: float,
    clip: float = 1.0,
    q: float = 1.0,
    aggregate: bool = False,
    realised_divisor: bool = False,
) -> Law:
    """Of one step on these records."""
    components: Counter[tuple[float, float]] = Counter()
    for drawn in product((False, True), repeat=len(gradients)):
        size = sum(drawn)
        chance = q**size * (1 - q) ** (len(gradients) - size)
        if chance == 0:
            continue
        kept = [g for g, taken in zip(gradients, drawn, strict=True) if taken]
        if aggregate:
            total = float(np.clip(sum(kept), -clip, clip))
        else:
            total = sum(float(np.clip(g, -clip, clip)) for g in kept)
        divisor = max(size, 1) if realised_divisor else 1
        components[total / divisor, sigma * clip / divisor] += chance
    return [(chance, mean, deviation) for (mean, deviation), chance in components.items()]


def density(at: np.ndarray, mixture: Law) -> np.ndarray:
    return np.asarray(sum(chance * norm.pdf(at, mean, deviation) for chance, mean, deviation in mixture))


def _grid(laws: Sequence[Law], points: int) -> np.ndarray:
    means = [mean for each in laws for _, mean, _ in each]
    widest = max(deviation for each in laws for _, _, deviation in each)
    return np.linspace(min(means) - 12 * widest, max(means) + 12 * widest, points)


def hockey_sticks(others: Sequence[float], record: float, epsilon: float, **step: object) -> tuple[float, float]:
    """(plus, minus) of one step, by integration over its output."""
    there, null = (law([*others, last], **step) for last in (record, 0.0))  # type: ignore[arg-type]
    at = _grid([there, null], POINTS)
    p, r = density(at, there), density(at, null)
    return tuple(  # type: ignore[return-value]
        float(np.trapezoid(np.maximum(a - math.exp(epsilon) * b, 0), at)) for a, b in ((p, r), (r, p))
    )


def two_steps(others: Sequence[float], record: float, epsilon: float, **step: object) -> tuple[float, float]:
    """The same of two such steps seen together, by integration over the plane."""
    there, null = (law([*others, last], **step) for last in (record, 0.0))  # type: ignore[arg-type]
    at = _grid([there, null], 2001)
    p, r = density(at, there), density(at, null)
    both_p, both_r = np.outer(p, p), np.outer(r, r)
    cell = (at[1] - at[0]) ** 2
    return tuple(  # type: ignore[return-value]
        float(np.maximum(a - math.exp(epsilon) * b, 0).sum() * cell) for a, b in ((both_p, both_r), (both_r, both_p))
    )


def secret_order(record: float, epsilon: float, *, sigmas: Sequence[float]) -> tuple[float, float]:
    """One pass over two batches of which one, with probability one half each, holds the record; both sums are seen."""
    first, second = (np.linspace(-12 * s, 12 * s + record, 2001) for s in sigmas)
    null = np.outer(norm.pdf(first, 0, sigmas[0]), norm.pdf(second, 0, sigmas[1]))
    there = np.outer(norm.pdf(first, record, sigmas[0]), norm.pdf(second, 0, sigmas[1])) / 2
    there = there + np.outer(norm.pdf(first, 0, sigmas[0]), norm.pdf(second, record, sigmas[1])) / 2
    cell = (first[1] - first[0]) * (second[1] - second[0])
    return tuple(  # type: ignore[return-value]
        float(np.maximum(a - math.exp(epsilon) * b, 0).sum() * cell) for a, b in ((there, null), (null, there))
    )


def realised_size_seen(records: int, q: float, sigma: float, epsilon: float) -> float:
    """plus, where the realised size s of the batch is read off the scale of the noise in other coordinates.

    Given s, the record is one of those drawn with probability s/n.
    """
    total = 0.0
    for size in range(records + 1):
        chance = binom.pmf(size, records, q)
        if chance > 1e-18:
            there = [(1 - size / records, 0.0, sigma), (size / records, 1.0, sigma)]
            at = _grid([there], 20_001)
            gap = density(at, there) - math.exp(epsilon) * norm.pdf(at, 0, sigma)
            total += chance * float(np.trapezoid(np.maximum(gap, 0), at))
    return total
