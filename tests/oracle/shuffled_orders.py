"""A shuffled mechanism written out: every order of a few records, and what its batches show, by integration.

Each step shows the sum of its batch, one number a record, with Gaussian noise. The data sets differ in record 0, whose
number is +1 in one and -1 in the other; the others' numbers are given. The order is drawn anew for each pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import permutations, product

import numpy as np
from scipy.stats import norm

Means = tuple[float, ...]


def laws(others: Sequence[float], batch: int, steps: int, record: float) -> dict[Means, float]:
    """The means of the steps, over all orders of as many passes as are begun; how likely each is."""
    numbers = [record, *others]
    per_pass = -(-len(numbers) // batch)
    one_pass = Counter(
        tuple(sum(numbers[i] for i in order[start : start + batch]) for start in range(0, len(numbers), batch))
        for order in permutations(range(len(numbers)))
    )
    begun = -(-steps // per_pass)
    total = sum(one_pass.values())
    found: dict[Means, float] = {}
    for passes in product(one_pass.items(), repeat=begun):
        means = tuple(m for mean, _ in passes for m in mean)[:steps]
        found[means] = found.get(means, 0.0) + float(np.prod([count / total for _, count in passes]))
    return found


def secret_delta(eps: float, others: Sequence[float], batch: int, steps: int, sigma: float, points: int = 121) -> float:
    """delta(eps) of what is seen, the order kept secret, by the trapezoid rule in as many dimensions as steps."""
    axis = np.linspace(-1 - 7.5 * sigma - batch, 1 + 7.5 * sigma + batch, points)
    width = axis[1] - axis[0]
    densities = []
    for record in (1.0, -1.0):
        law = np.zeros((points,) * steps)
        for means, chance in laws(others, batch, steps, record).items():
            part = np.array(chance)
            for mean in means:
                part = np.multiply.outer(part, norm.pdf(axis, mean, sigma))
            law += part
        densities.append(law)
    return float(np.maximum(densities[0] - np.exp(eps) * densities[1], 0).sum() * width**steps)


def published_delta(eps: float, records: int, batch: int, steps: int, sigma: float) -> float:
    """The same with the order published: given it, two Gaussians that are 2 apart in each batch that has record 0."""
    per_pass = -(-records // batch)
    begun = -(-steps // per_pass)
    seen = Counter(
        sum(order.index(0) // batch + which * per_pass < steps for which, order in enumerate(orders))
        for orders in product(list(permutations(range(records))), repeat=begun)
    )
    total = sum(seen.values())
    return float(sum(count / total * _gaussian_delta(eps, 2 * np.sqrt(times) / sigma) for times, count in seen.items()))


def _gaussian_delta(eps: float, mu: float) -> float:
    if mu == 0:
        return max(0.0, 1 - np.exp(eps))
    return float(norm.cdf(-eps / mu + mu / 2) - np.exp(eps) * norm.cdf(-eps / mu - mu / 2))
