"""Linear combinations of full-batch runs for many weight vectors at once: μ for each, in closed form.

Guarantees: each function returns the theorem's μ for every row of weights, runs of weight zero not counted.
Whether a theorem's premises hold is `combination`'s question; these are its formulas.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from dpmerge.errors import InvalidInput
from dpmerge.privacy import domain
from dpmerge.privacy.domain import Array
from dpmerge.privacy.exposure import Checkpoint
from dpmerge.privacy.hidden_state import Chain
from dpmerge.privacy.mechanisms import DpSgd
from dpmerge.privacy.premises import NoisyRun

Alignment = Literal["appended", "prepended", "best"]
"""Where a shorter run's virtual steps stand: after its own (the paper's), before them, or whichever costs less."""

_CHUNK = 2**13


def joint_release_mus(checkpoints: Sequence[Checkpoint], weights: npt.ArrayLike) -> Array:
    """√Σ over the support of Σ_t (k/σ_t)²."""
    rows = _rows(checkpoints, weights)
    totals = np.array([float(np.sum(_run(c).step_mus(c.step) ** 2)) for c in checkpoints])
    return np.sqrt(_supported_sum(rows, totals))


def last_step_mus(
    checkpoints: Sequence[Checkpoint], weights: npt.ArrayLike, release_noise: npt.ArrayLike = 0.0
) -> Array:
    """Joint release of all steps but each run's last with a positive rate, plus one merged step.

    The merged step costs (Σ λ_i a_i)² / (Σ (λ_i b_i)² + τ²), a and b counting the coefficient the optimizer gives
    a gradient in its own update.
    """
    rows = _rows(checkpoints, weights)
    earlier, shift, noise = np.zeros((3, len(checkpoints)))
    for column, checkpoint in enumerate(checkpoints):
        run = _run(checkpoint)
        costs, moves = run.step_mus(checkpoint.step) ** 2, run.moves(checkpoint.step)
        acting = np.flatnonzero(moves.shift)
        if acting.size:
            last = acting[-1]
            coefficient = run.optimizer.gradient_coefficient(first_step=bool(last == 0))
            shift[column], noise[column] = coefficient * moves.shift[last], coefficient * moves.noise[last]
            costs = np.delete(costs, last)
        earlier[column] = float(np.sum(costs))
    tau = np.asarray(release_noise, dtype=float)
    merged = _ratio((rows @ shift) ** 2, (rows**2) @ (noise**2) + tau**2)
    return np.sqrt(_supported_sum(rows, earlier) + merged)


def merged_trajectory_mus(
    checkpoints: Sequence[Checkpoint], weights: npt.ArrayLike, alignment: Alignment = "appended"
) -> Array:
    """√Σ_t (Σ λ_i a_i^t)² / Σ (λ_i b_i^t)²: the paper's Algorithm 2, whose convolution is closed under composition.

    Steps at which nothing moves cost nothing.
    """
    if alignment not in get_args(Alignment):
        raise InvalidInput("alignment", alignment, ", ".join(get_args(Alignment)))
    if alignment == "best":
        return np.minimum(
            merged_trajectory_mus(checkpoints, weights, "appended"),
            merged_trajectory_mus(checkpoints, weights, "prepended"),
        )
    rows = _rows(checkpoints, weights)
    longest = max(checkpoint.step for checkpoint in checkpoints)
    shift, variance = np.zeros((2, len(checkpoints), longest))
    for row, checkpoint in enumerate(checkpoints):
        moves = _run(checkpoint).moves(checkpoint.step)
        place = slice(0, checkpoint.step) if alignment == "appended" else slice(longest - checkpoint.step, longest)
        shift[row, place], variance[row, place] = moves.shift, moves.noise**2
    acting = shift.any(axis=0)
    shift, variance = shift[:, acting], variance[:, acting]
    squares = np.empty(rows.shape[0])
    for start in range(0, rows.shape[0], _CHUNK):
        part = rows[start : start + _CHUNK]
        moved, spread = part @ shift, (part * part) @ variance
        moved *= moved
        if spread.min(initial=1.0) > 0:
            moved /= spread
        else:
            moved = _ratio(moved, spread)
        squares[start : start + _CHUNK] = moved.sum(axis=1)
    return np.sqrt(squares)


def chains(checkpoints: Sequence[Checkpoint]) -> list[Chain] | None:
    """The updates of each run as the hidden-state theorem sees them; None where a Lipschitz factor is not known."""
    result = []
    for checkpoint in checkpoints:
        run = checkpoint.run
        factors = run.lipschitz(checkpoint.step) if isinstance(run, DpSgd) else None
        if factors is None or not isinstance(run, DpSgd):
            return None
        moves = run.moves(checkpoint.step)
        acting = moves.shift > 0  # a step of rate zero does nothing to the weights
        if np.any(acting):
            result.append(Chain(moves.shift[acting], moves.noise[acting], factors[acting]))
        else:
            result.append(Chain(np.zeros(1), np.zeros(1), np.ones(1)))
    return result


def _run(checkpoint: Checkpoint) -> NoisyRun:
    if not isinstance(checkpoint.run, NoisyRun):
        raise InvalidInput(checkpoint.run.label, type(checkpoint.run).__name__, "a run whose steps are known")
    return checkpoint.run


def _rows(checkpoints: Sequence[Checkpoint], weights: npt.ArrayLike) -> Array:
    rows = np.atleast_2d(np.asarray(weights, dtype=float))
    usable = (rows == 0) | ((rows >= domain.SMALLEST) & (rows <= 1 + domain.SIMPLEX_TOLERANCE))
    if rows.ndim != 2 or rows.shape[1] != len(checkpoints) or not np.all(usable):
        accepted = f"rows of {len(checkpoints)} numbers, one a checkpoint: 0, or from {domain.SMALLEST:g} to 1"
        raise InvalidInput("weights", f"an array of shape {rows.shape}", accepted)
    return rows


def _supported_sum(rows: Array, values: Array) -> Array:
    """Σ of the values of the runs with positive weight; an infinite value of an unused run does not count."""
    finite = np.where(np.isfinite(values), values, 0.0)
    infinite = ((rows > 0) & np.isinf(values)).any(axis=1)
    return np.where(infinite, np.inf, (rows > 0) @ finite)


def _ratio(numerator: Array, denominator: Array) -> Array:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(numerator == 0, 0.0, np.asarray(numerator / denominator))
