"""Mean estimation: two Gaussian estimates of one mean, merged by random selection (RS) or linear combination (LC).

Guarantees: LC is proved here, for each estimate is one step; its ε and RS's bound are closed forms or certified solves.
Beside them stands the exact law of RS as one number with the index untold, which the paper's theorem is about.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dpmerge.accounting import (
    DEFAULT_ORDERS,
    Adjacency,
    GaussianRelease,
    LinearCombination,
    RenyiProfile,
    gaussian_epsilon,
    joint_release,
    merged_trajectory,
    merged_trajectory_mus,
    selection_epsilons,
    selection_renyi_epsilons,
)
from dpmerge.accounting.validation import Array
from reproduction import hidden_index_selection
from reproduction.mean_findings import DEVIATIONS, RECORDS, drawings, statements, value_variance
from reproduction.presets import DELTA
from reproduction.run_store import RunStore

__all__ = ["TITLE", "drawings", "measure", "settings", "statements"]

TITLE = "Mean estimation: what selecting and averaging two private means cost and give"

SENSITIVITY = 2 / RECORDS  # of the mean of numbers in [−1, 1] when one of them is replaced
CHECKED_WEIGHTS = (0.0, 0.25, 0.5, 0.75, 0.9, 1.0)

_CHUNK = 10_000
_ROUNDS = 50


def settings(store: RunStore) -> dict[str, Any]:
    return {
        "records": RECORDS,
        "data": "standard normal, clipped to [-1, 1]; the population mean is 0",
        "adjacency": "replace_one",
        "sensitivity of the mean": SENSITIVITY,
        "deviation of the noise on the mean": list(DEVIATIONS),
        "noise multipliers": [deviation / SENSITIVITY for deviation in DEVIATIONS],
        "about the noise": "the paper does not state it: these two are ours",
        "delta": DELTA,
        "RDP": f"classic conversion, the paper's, best of {DEFAULT_ORDERS.size} orders from 1.1 to 1024",
        "PLD": "exact closed forms",
        "weights": "of the first, less noisy estimate: π for RS, λ for LC",
        "points of a sweep": store.preset.mean.points,
        "data sets drawn": store.preset.mean.draws,
        "theorem": {
            "equal variance": "for every π there is one λ in [0, 1], for π = 1 two; privacy depends on variance alone",
            "orders": list(hidden_index_selection.ORDERS),
            "π": list(hidden_index_selection.PROBABILITIES),
            "σ₂/σ₁": [DEVIATIONS[1] / DEVIATIONS[0], hidden_index_selection.EXAMPLE[0][1]],
            "Δ/σ₁ order by order": "0.001 to 10, the largest for which it holds bisected to 0.1 %",
            "Δ/σ₁ in (ε, δ)": "0.0001 to 10",
        },
    }


def measure(store: RunStore) -> dict[str, Any]:
    points = store.preset.mean.points
    best = DEVIATIONS[1] ** 2 / (DEVIATIONS[0] ** 2 + DEVIATIONS[1] ** 2)  # precision weights: least variance
    weights = np.union1d(np.linspace(0, 1, points), [best])
    chances = np.union1d(np.linspace(0, 1, points), np.geomspace(1e-7, 0.01, points // 4 + 1))
    return {
        "value_variance": value_variance(),
        "inputs": _swept(np.array([1.0, 0.0]), combined_epsilons, combined_variances),
        "selection": _swept(chances, selected_epsilons, selected_variances),
        "combination": _swept(weights, combined_epsilons, combined_variances)
        | {"proved": [_proved(float(weight)) for weight in weights], "joint": _joint()},
        "frontier": {accounting: _frontier(accounting, points, best) for accounting in ("rdp", "pld")},
        "untold": hidden_index_selection.measured(DEVIATIONS, SENSITIVITY, points, DELTA),
        "monte_carlo": _monte_carlo(store.preset.mean.draws, store.noise_seed("mean", "data and noise"), best),
    }


def selected_variances(chances: Array) -> Array:
    return np.asarray(chances * DEVIATIONS[0] ** 2 + (1 - chances) * DEVIATIONS[1] ** 2)


def combined_variances(weights: Array) -> Array:
    return np.asarray(weights**2 * DEVIATIONS[0] ** 2 + (1 - weights) ** 2 * DEVIATIONS[1] ** 2)


def errors(variances: Array) -> Array:
    """Mean squared error to the population mean: the data's own, and the noise's."""
    return np.asarray(value_variance() / RECORDS + variances)


def selected_epsilons(chances: Array, accounting: str) -> Array:
    """RS with the index published: Σ π_i δ_i(ε), and log Σ π_i e^{(α−1)ε_i}/(α−1)."""
    profiles = [estimate.profile() for estimate in _estimates()]
    rows = np.stack([chances, 1 - chances], axis=-1)
    if accounting == "pld":
        return selection_epsilons(profiles, rows, DELTA)
    curves = np.array([RenyiProfile.of(profile).values for profile in profiles])
    return selection_renyi_epsilons(curves, rows, DELTA, DEFAULT_ORDERS, "classic")


def combined_epsilons(weights: Array, accounting: str) -> Array:
    """LC by merged_trajectory, which is proved here: premise (a), one step."""
    mus = merged_trajectory_mus(_estimates(), np.stack([weights, 1 - weights], axis=-1))
    if accounting == "pld":
        return gaussian_epsilon(mus, DELTA)
    curves = np.multiply.outer(mus**2 / 2, DEFAULT_ORDERS)
    # Each a selection that always takes the same member: the classic conversion of many curves at once.
    return selection_renyi_epsilons(curves, np.eye(mus.size), DELTA, DEFAULT_ORDERS, "classic")


def _estimates() -> list[GaussianRelease]:
    return [
        GaussianRelease(sensitivity=SENSITIVITY, standard_deviation=noise, adjacency=Adjacency.REPLACE_ONE, label=name)
        for noise, name in zip(DEVIATIONS, ("first", "second"), strict=True)
    ]


def _proved(weight: float) -> bool:
    """Whether every premise of merged_trajectory holds for this combination."""
    return merged_trajectory(LinearCombination.of_runs(_estimates(), (weight, 1 - weight))).certifies


def _joint() -> float | None:
    """What releasing both estimates costs, by PLD."""
    return joint_release(LinearCombination.of_runs(_estimates(), (0.5, 0.5))).epsilon(DELTA)


def _swept(
    weights: Array, epsilons: Callable[[Array, str], Array], variances: Callable[[Array], Array]
) -> dict[str, Any]:
    found = {accounting: epsilons(weights, accounting) for accounting in ("rdp", "pld")}
    return {"weights": weights, **found, "error": errors(variances(weights))}


def _frontier(accounting: str, points: int, best: float) -> dict[str, Any]:
    """The least error of both methods within each of many ε, from the most private estimate's to LC's largest."""
    least, first, most = combined_epsilons(np.array([0.0, 1.0, best]), accounting)
    targets = np.union1d(np.linspace(least, most, points), [first])
    chances = _largest_within(lambda w: selected_epsilons(w, accounting), targets, 1e-100, 1.0)
    weights = _largest_within(lambda w: combined_epsilons(w, accounting), targets, 1e-20, best)
    served = targets <= first  # beyond, RS has nothing better than the first estimate
    return {
        "targets": targets,
        "chances": chances,
        "weights": weights,
        "select": np.where(served, errors(selected_variances(chances)), np.nan),
        "combine": errors(combined_variances(weights)),
        "select_missed": np.where(served, targets - selected_epsilons(chances, accounting), np.nan),
        "combine_missed": targets - combined_epsilons(weights, accounting),
    }


def _largest_within(epsilons: Callable[[Array], Array], targets: Array, least: float, top: float) -> Array:
    """The largest weight, 0 or in [least, top], whose ε, increasing there, is at most each target.

    Bisected in the logarithm: by RDP a π of 1e-20 already costs more than none.
    """
    low, high = np.full(targets.size, np.log(least / top)), np.zeros(targets.size)
    for _ in range(_ROUNDS):
        middle = (low + high) / 2
        fits = epsilons(top * np.exp(middle)) <= targets
        low, high = np.where(fits, middle, low), np.where(fits, high, middle)
    found = np.where(low > np.log(least / top), top * np.exp(low), 0.0)
    return np.where(epsilons(np.full(targets.size, top)) <= targets, top, found)


def _monte_carlo(draws: int, seed: int, best: float) -> dict[str, Any]:
    """Squared errors over data sets drawn anew: of the mean itself, of RS and of LC, beside the formulas."""
    rng = np.random.default_rng(seed)
    weights, averaged = np.array(CHECKED_WEIGHTS), np.append(CHECKED_WEIGHTS, best)
    squares = np.empty((draws, 1 + weights.size + averaged.size))
    for start in range(0, draws, _CHUNK):
        part = squares[start : start + _CHUNK]
        mean = np.clip(rng.standard_normal((len(part), RECORDS)), -1, 1).mean(axis=1)
        first, second = mean + np.array(DEVIATIONS)[:, np.newaxis] * rng.standard_normal((2, len(part)))
        drawn = rng.random((len(part), 1)) < weights
        selected = np.where(drawn, first[:, np.newaxis], second[:, np.newaxis])
        combined = np.outer(first, averaged) + np.outer(second, 1 - averaged)
        part[:] = np.column_stack([mean, selected, combined]) ** 2
    variances = [np.zeros(1), selected_variances(weights), combined_variances(averaged)]
    return {
        "what": ["mean", *["selection"] * weights.size, *["combination"] * averaged.size],
        "weights": [np.nan, *weights, *averaged],
        "measured": squares.mean(axis=0),
        "standard_error": squares.std(axis=0, ddof=1) / np.sqrt(draws),
        "formula": errors(np.concatenate(variances)),
        "draws": draws,
    }
