"""Planning by exhaustion: the best release of a small portfolio, found by trying everything.

Written from the theorems and from the numbers in a manifest, with nothing of the library. Notation: a run has rates
eta_t, noise multipliers sigma_t and clip norms C_t; R = sum eta_t, V = sum (eta_t sigma_t C_t)^2,
mu^2 = sum (k/sigma_t)^2, k = 2 under replace_one or where a whole batch is clipped as one, 1 otherwise. A merge with
weights lambda has the noise-to-signal (sum lambda^2 V + tau^2) / (sum lambda R)^2.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from oracle import gaussian_mp
from oracle.hidden_state_taut import exact_mu


@dataclass(frozen=True)
class Prefix:
    """The first steps of a run: all that is known of a checkpoint."""

    rates: tuple[float, ...]
    noise: tuple[float, ...]
    clips: tuple[float, ...]
    k: int
    steps_per_epoch: int | None = None
    momentum: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0

    @property
    def travelled(self) -> float:
        return math.fsum(self.rates)

    @property
    def variance(self) -> float:
        return math.fsum((r * s * c) ** 2 for r, s, c in zip(self.rates, self.noise, self.clips, strict=True))

    @property
    def precision(self) -> float:
        return self.travelled**2 / self.variance

    @property
    def ratio(self) -> float:
        return self.variance / self.travelled**2

    @property
    def squared_mu(self) -> float:
        """What releasing every iterate costs; of shuffled batches, one Gaussian step an epoch begun."""
        noise: Sequence[float] = self.noise
        if self.steps_per_epoch is not None:
            size = self.steps_per_epoch
            noise = [min(noise[start : start + size]) for start in range(0, len(noise), size)]
        return math.fsum((self.k / sigma) ** 2 for sigma in noise)

    def shifts(self) -> list[float]:
        return [r * self.k * c for r, c in zip(self.rates, self.clips, strict=True)]

    def deviations(self) -> list[float]:
        return [r * s * c for r, s, c in zip(self.rates, self.noise, self.clips, strict=True)]


def prefix(document: Mapping[str, Any], step: int) -> Prefix:
    """What a manifest says of the first `step` steps of its run."""
    facts = document["mechanism"]
    rates: list[float] = []
    noise: list[float] = []
    clips: list[float] = []
    for block in facts["blocks"]:
        count, rate = block["steps"], block["learning_rate"]
        rates += list(rate) if isinstance(rate, list) else [rate] * count
        noise += [block["noise_multiplier"]] * count
        clips += [block["clip_norm"]] * count
    k = 2 if document["adjacency"] == "replace_one" or facts["clipping"] == "aggregate" else 1
    optimizer = facts["optimizer"]
    return Prefix(
        tuple(rates[:step]),
        tuple(noise[:step]),
        tuple(clips[:step]),
        k,
        facts.get("steps_per_epoch"),
        optimizer.get("momentum") or 0.0,
        optimizer.get("dampening") or 0.0,
        bool(optimizer.get("nesterov")),
        optimizer.get("weight_decay") or 0.0,
    )


def noise_to_signal(support: Sequence[Prefix], weights: Sequence[float], release_noise: float = 0.0) -> float:
    """Of checkpoints of different runs."""
    noise = math.fsum(w * w * p.variance for p, w in zip(support, weights, strict=True)) + release_noise**2
    return noise / math.fsum(w * p.travelled for p, w in zip(support, weights, strict=True)) ** 2


def joint_release_mu(support: Sequence[Prefix], weights: Sequence[float]) -> float:
    return math.sqrt(math.fsum(p.squared_mu for p, w in zip(support, weights, strict=True) if w > 0))


def last_step_mu(support: Sequence[Prefix], weights: Sequence[float], release_noise: float = 0.0) -> float:
    """All steps but each run's last acting one as they are, and that one merged."""
    total, shift, variance = 0.0, 0.0, release_noise**2
    for p, w in zip(support, weights, strict=True):
        if w <= 0:
            continue
        last = max((t for t, rate in enumerate(p.rates) if rate > 0), default=None)
        if last is None:
            total += p.squared_mu
            continue
        total += math.fsum((p.k / sigma) ** 2 for t, sigma in enumerate(p.noise) if t != last)
        coefficient = 1.0 if last == 0 else 1.0 - p.dampening
        if p.nesterov:
            coefficient = 1.0 + p.momentum * coefficient
        shift += w * coefficient * p.rates[last] * p.k * p.clips[last]
        variance += (w * coefficient * p.rates[last] * p.noise[last] * p.clips[last]) ** 2
    if shift > 0:
        total += shift**2 / variance
    return math.sqrt(total)


def merged_trajectory_mu(support: Sequence[Prefix], weights: Sequence[float], *, prepended: bool = False) -> float:
    """The paper's Algorithm 2: step by step one Gaussian release of the merged update, shorter runs padded."""
    length = max(len(p.rates) for p, w in zip(support, weights, strict=True) if w > 0)
    total = 0.0
    for t in range(length):
        shift = variance = 0.0
        for p, w in zip(support, weights, strict=True):
            place = t - (length - len(p.rates)) if prepended else t
            if w > 0 and 0 <= place < len(p.rates):
                shift += w * p.rates[place] * p.k * p.clips[place]
                variance += (w * p.rates[place] * p.noise[place] * p.clips[place]) ** 2
        if shift > 0:
            total += shift**2 / variance
    return math.sqrt(total)


def hidden_state_mu(
    support: Sequence[Prefix],
    weights: Sequence[float],
    release_noise: float,
    *,
    beta: float,
    records: float,
) -> float:
    """The quadratic program of a convex model, exactly; the rate of the mean gradient is the rate times the records."""
    factors = [
        [
            max(
                abs(1 - rate * records * p.weight_decay),
                abs(1 - rate * records * (beta + p.weight_decay)),
            )
            for rate in p.rates
        ]
        for p in support
    ]
    moved, noise = [p.shifts() for p in support], [p.deviations() for p in support]
    return float(exact_mu(moved, noise, factors, list(weights), release_noise))


def best_selection(mus: Sequence[float], ratios: Sequence[float], epsilon: float, delta: float) -> float | None:
    """The least expected ratio of drawing a Gaussian candidate: one that fits, perhaps with one that does not."""
    exact = [Fraction(str(gaussian_mp.delta(mu, epsilon))) for mu in mus]
    limit = Fraction(delta)
    return _best_pair(exact, ratios, limit)


def best_renyi_selection(
    squared_mus: Sequence[float], ratios: Sequence[float], epsilon: float, delta: float, orders: Sequence[float]
) -> float | None:
    """The same by Renyi divergence: for each order one constraint, sum pi_i e^((a-1) a mu_i^2 / 2) <= e^((a-1) B_a)."""
    best: float | None = None
    for order in orders:
        room = epsilon - math.log((order - 1) / order) + (math.log(delta) + math.log(order)) / (order - 1)
        exponents = [(order - 1) * (order * squared / 2 - room) for squared in squared_mus]
        # Beyond e^600 a probability would be below 2^-53 by far.
        costs = [Fraction(math.exp(min(exponent, 600.0))) for exponent in exponents]
        found = _best_pair(costs, ratios, Fraction(1)) if room >= 0 else None
        if found is not None and (best is None or found < best):
            best = found
    return best


def _best_pair(costs: Sequence[Fraction], ratios: Sequence[float], limit: Fraction) -> float | None:
    fitting = [i for i, cost in enumerate(costs) if cost <= limit]
    options = [Fraction(ratios[i]) for i in fitting]
    for i, j in itertools.product(fitting, range(len(costs))):
        if costs[j] > limit:
            share = (limit - costs[i]) / (costs[j] - costs[i])
            options.append(share * Fraction(ratios[j]) + (1 - share) * Fraction(ratios[i]))
    return float(min(options)) if options else None


def best_vertex(
    costs: Sequence[Sequence[float]], scores: Sequence[float], limits: Sequence[float]
) -> tuple[Fraction, dict[int, Fraction]] | None:
    """The linear program max sum pi_i scores_i, costs pi <= limits (one or two rows), over all its vertices, exactly.

    Candidates with a score or cost that is not finite are left out.
    """
    usable = [
        i for i, score in enumerate(scores) if math.isfinite(score) and all(math.isfinite(row[i]) for row in costs)
    ]
    table = [{i: Fraction(row[i]) for i in usable} for row in costs]
    bounds = [Fraction(limit) for limit in limits]
    value = {i: Fraction(scores[i]) for i in usable}
    best: tuple[Fraction, dict[int, Fraction]] | None = None
    for shares in _vertices(usable, table, bounds):
        if all(sum(row[i] * s for i, s in shares.items()) <= bound for row, bound in zip(table, bounds, strict=True)):
            total = sum((value[i] * s for i, s in shares.items()), Fraction(0))
            if best is None or total > best[0]:
                best = total, shares
    return best


def _vertices(
    usable: Sequence[int], table: Sequence[Mapping[int, Fraction]], bounds: Sequence[Fraction]
) -> Iterator[dict[int, Fraction]]:
    for i in usable:
        yield {i: Fraction(1)}
    for i, j in itertools.combinations(usable, 2):
        for row, bound in zip(table, bounds, strict=True):
            if row[i] != row[j]:
                share = (bound - row[j]) / (row[i] - row[j])
                if 0 < share < 1:
                    yield {i: share, j: 1 - share}
    if len(table) == 2:
        first, second = table
        for i, j, k in itertools.combinations(usable, 3):
            a, b = first[i] - first[k], first[j] - first[k]
            c, d = second[i] - second[k], second[j] - second[k]
            determinant = a * d - b * c
            if determinant == 0:
                continue
            x, y = bounds[0] - first[k], bounds[1] - second[k]
            shares = {i: (x * d - b * y) / determinant, j: (a * y - c * x) / determinant}
            shares[k] = 1 - shares[i] - shares[j]
            if all(share > 0 for share in shares.values()):
                yield shares


def supports(runs: Sequence[Sequence[Prefix]]) -> Iterator[list[Prefix]]:
    """Every way to take one checkpoint or none from each run."""
    for chosen in itertools.product(*[(None, *kept) for kept in runs]):
        if support := [p for p in chosen if p is not None]:
            yield support


def best_average(runs: Sequence[Sequence[Prefix]], largest_mu: float) -> float | None:
    """The least noise-to-signal of any average that joint release allows: precision weights are the best weights."""
    fitting = [s for s in supports(runs) if math.sqrt(math.fsum(p.squared_mu for p in s)) <= largest_mu]
    return min((1 / math.fsum(p.precision for p in s) for s in fitting), default=None)


def pareto(points: Sequence[tuple[float, float]], tolerance: float = 1e-11) -> list[tuple[float, float]]:
    """Of (cost, precision) the pairs that no other has both as cheap and as precise; ties up to rounding once."""
    front: list[tuple[float, float]] = []
    for cost, precision in sorted(points, key=lambda point: (point[0], -point[1])):
        if front and precision <= front[-1][1] * (1 + tolerance):
            continue
        if front and cost <= front[-1][0] * (1 + tolerance):
            front.pop()
        front.append((cost, precision))
    return front


def mixture_delta(mus: Sequence[float], probabilities: Sequence[float], epsilon: float) -> float:
    """The certified delta of drawing one of several Gaussian candidates, rounded from fifty digits."""
    return float(gaussian_mp.rs_delta(mus, probabilities, epsilon))


def smallest_epsilon(mu: float, delta: float) -> float:
    return float(gaussian_mp.epsilon(mu, delta))


def random_simplex(rng: np.random.Generator, dimension: int) -> list[float]:
    """Weights that are often on or near a face of the simplex."""
    row = rng.dirichlet(np.full(dimension, rng.choice([0.2, 1.0, 5.0])))
    kept = int(np.argmax(row))
    row[(row < 1e-6) | ((rng.random(dimension) < rng.choice([0.0, 0.5])) & (np.arange(dimension) != kept))] = 0.0
    return (row / row.sum()).tolist()
