"""From accuracies to answers: what a draw is expected to give, which single model somebody had, what the spread is.

Guarantees: functions of numbers alone; nothing here trains, plans or reads a file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import mean, stdev

import numpy as np

TARGETS = 5
ABOVE = 1.5
"""The largest target, as a multiple of what the least private model costs."""


def targets(finished: Sequence[float], count: int = TARGETS) -> list[float]:
    """Values of ε from just above the cheapest finished model to well above the least private, to three digits.

    >>> targets([0.5, 1.0, 2.0], 3)
    [0.51, 1.24, 3.0]
    """
    spread = np.geomspace(1.02 * min(finished), ABOVE * max(finished), count)
    return [_rounded_up(float(epsilon)) for epsilon in spread]


def _rounded_up(value: float) -> float:
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    return float(f"{math.ceil(round(value / unit, 6)) * unit:.3g}")


def expected(probabilities: Sequence[float], accuracies: Sequence[Sequence[float]]) -> list[float]:
    """The accuracy of what is released, expected over the draw: one number a seed, of one list a candidate.

    >>> expected([0.25, 0.75], [[1.0, 0.0], [0.5, 0.75]])
    [0.625, 0.5625]
    """
    return [
        math.fsum(p * accuracy for p, accuracy in zip(probabilities, of_seed, strict=True))
        for of_seed in zip(*accuracies, strict=True)
    ]


def least_private(costs: Mapping[str, float], epsilon: float) -> str:
    """The model that somebody who has only single models would release: the one that uses most of ε.

    >>> least_private({"a@9": 0.5, "b@9": 1.0, "c@9": 2.0}, 1.5)
    'b@9'
    """
    within = {name: cost for name, cost in costs.items() if cost <= epsilon}
    return max(within, key=lambda name: within[name])


def best_by_test(
    costs: Mapping[str, float], accuracies: Mapping[str, Sequence[float]], epsilon: float
) -> list[tuple[str, float]]:
    """For each seed the checkpoint within ε with the best test accuracy, which nobody can know without a test set.

    >>> best_by_test({"a@1": 0.5, "a@2": 1.0}, {"a@1": [0.7, 0.6], "a@2": [0.6, 0.8]}, 1.0)
    [('a@1', 0.7), ('a@2', 0.8)]
    """
    within = [name for name, cost in costs.items() if cost <= epsilon]
    seeds = range(len(next(iter(accuracies.values()))))
    best = [max(within, key=lambda name: accuracies[name][seed]) for seed in seeds]
    return [(name, accuracies[name][seed]) for seed, name in zip(seeds, best, strict=True)]


def spread(values: Sequence[float]) -> float:
    """The standard deviation over seeds; zero for one."""
    return stdev(values) if len(values) > 1 else 0.0


def differences(first: Sequence[float], second: Sequence[float]) -> list[float]:
    """Seed by seed: both are of the same trained models."""
    return [a - b for a, b in zip(first, second, strict=True)]


def verdict(gains: Sequence[float]) -> str:
    """What the seeds say of a difference: `better` or `worse` if all of them do, `same` if there is none.

    >>> verdict([0.01, 0.02, 0.001]), verdict([0.01, -0.02, 0.0]), verdict([0.0, 0.0, 0.0])
    ('better', 'undecided', 'same')
    """
    if all(gain == 0 for gain in gains):
        return "same"
    if all(gain > 0 for gain in gains):
        return "better"
    return "worse" if all(gain < 0 for gain in gains) else "undecided"


def percent(values: Sequence[float], *, sign: bool = False) -> str:
    """Mean and spread in percent.

    >>> percent([0.5, 0.52, 0.54]), percent([-0.01, -0.03], sign=True)
    ('52.0 ± 2.0', '−2.0 ± 1.4')
    """
    middle = round(100 * mean(values), 1) + 0.0
    shown = f"{middle:+.1f}" if sign and middle else f"{middle:.1f}"
    return f"{shown} ± {100 * spread(values):.1f}".replace("-", "−")
