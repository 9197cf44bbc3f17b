"""Linear combinations for many weight vectors at once: μ for each row, to be turned into ε by `gaussian_epsilon`.

Guarantees: each function returns its theorem's μ for every row of weights, runs of weight zero not counted, and all
but one are proofs: they refuse checkpoints that do not meet the theorem's premises. The exception is
`merged_trajectory_mus`, the paper's formula: whether it is a proof, only `merged_trajectory` says.
Refuses: weights off the simplex, premises that fail (named).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from dpmerge.accounting import validation
from dpmerge.accounting.exposure import Checkpoint, Mechanism
from dpmerge.accounting.hidden_state_shifts import chain_mus, linear_chain_mus, ratio
from dpmerge.accounting.mechanisms import DpSgd
from dpmerge.accounting.premises import (
    NoisyRun,
    Premise,
    full_batch,
    hidden_state_premises,
    independent_noise,
    linear_last_update,
    separate_runs,
    started_afresh,
    unbroken,
)
from dpmerge.accounting.update_chain import Chain
from dpmerge.accounting.validation import Array
from dpmerge.errors import InvalidInputError, NoGuaranteeError

Alignment = Literal["appended", "prepended", "best"]
"""Where a shorter run's virtual steps stand: after its own (the paper's), before them, or whichever costs less."""

_CHUNK = 2**13


Candidate = Checkpoint | Mechanism
"""A checkpoint, or a run standing for its last one."""


def joint_release_mus(candidates: Sequence[Candidate], weights: npt.ArrayLike) -> Array:
    """√Σ over the support of Σ_t (k/σ_t)², for full-batch runs (theory 4.1).

    Args:
        candidates: Checkpoints of different runs, or runs for their last ones.
        weights: One row of weights for each combination.

    Returns:
        μ of each row; `gaussian_epsilon` turns it into ε.

    Raises:
        NoGuaranteeError: A premise that fails, named.
        InvalidInputError: Weights off the simplex.

    >>> from dpmerge.accounting import DpSgd, StepBlock
    >>> blocks = [StepBlock(steps=20, noise_multiplier=s, clip_norm=2, learning_rate=4) for s in (32, 64)]
    >>> runs = [DpSgd(blocks=[block], adjacency="replace_one") for block in blocks]
    >>> joint_release_mus(runs, [[0.2, 0.8], [0.5, 0.5]]).round(6)
    array([0.3125, 0.3125])
    """
    checkpoints = _checkpoints(candidates)
    _require([*_apart(checkpoints), full_batch(checkpoints)])
    rows = _rows(checkpoints, weights)
    totals = np.array([float(np.sum(_run(c).step_mus(c.step) ** 2)) for c in checkpoints])
    return np.sqrt(_supported_sum(rows, totals))


def last_step_mus(candidates: Sequence[Candidate], weights: npt.ArrayLike, release_noise: npt.ArrayLike = 0.0) -> Array:
    """Joint release of all steps but each run's last with a positive rate, plus one merged step.

    The merged step costs (Σ λ_i a_i)² / (Σ (λ_i b_i)² + τ²), a and b counting the coefficient the optimizer gives
    a gradient in its own update (theory 4.2).

    Args:
        candidates: Checkpoints of different runs, or runs for their last ones.
        weights: One row of weights for each combination.
        release_noise: τ, one number or one for each row.

    Returns:
        μ of each row; `gaussian_epsilon` turns it into ε.

    Raises:
        NoGuaranteeError: A premise that fails, named.
        InvalidInputError: Weights off the simplex.

    >>> from dpmerge.accounting import DpSgd, StepBlock
    >>> blocks = [StepBlock(steps=20, noise_multiplier=s, clip_norm=2, learning_rate=4) for s in (32, 64)]
    >>> runs = [DpSgd(blocks=[block], adjacency="replace_one") for block in blocks]
    >>> last_step_mus(runs, [[0.2, 0.8], [0.5, 0.5]]).round(6)
    array([0.307044, 0.309675])
    """
    checkpoints = _checkpoints(candidates)
    _require([*_apart(checkpoints), *unbroken(checkpoints), full_batch(checkpoints), linear_last_update(checkpoints)])
    return last_step_formula(checkpoints, weights, release_noise)


def last_step_formula(checkpoints: Sequence[Checkpoint], weights: npt.ArrayLike, release_noise: npt.ArrayLike) -> Array:
    """μ of the runs' own steps, given where they started; the premises are the caller's to check."""
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
    merged = ratio((rows @ shift) ** 2, (rows**2) @ (noise**2) + tau**2)
    return np.sqrt(_supported_sum(rows, earlier) + merged)


def merged_trajectory_mus(
    candidates: Sequence[Candidate], weights: npt.ArrayLike, alignment: Alignment = "appended"
) -> Array:
    """√Σ_t (Σ λ_i a_i^t)² / Σ (λ_i b_i^t)²: the paper's Algorithm 2, whose convolution is closed under composition.

    Steps at which nothing moves cost nothing. **Not a proof by itself**: it is one exactly where `merged_trajectory`
    certifies, which for ordinary DP-SGD of two or more steps it does not (theory 4.3).

    Args:
        candidates: Checkpoints of different runs, or runs for their last ones.
        weights: One row of weights for each combination.
        alignment: Where a shorter run's virtual steps stand.

    Returns:
        μ of each row; `gaussian_epsilon` turns it into ε.

    Raises:
        NoGuaranteeError: A premise that fails, named.
        InvalidInputError: Weights off the simplex.

    >>> from dpmerge.accounting import DpSgd, StepBlock
    >>> blocks = [StepBlock(steps=20, noise_multiplier=s, clip_norm=2, learning_rate=4) for s in (32, 64)]
    >>> runs = [DpSgd(blocks=[block], adjacency="replace_one") for block in blocks]
    >>> merged_trajectory_mus(runs, [[0.2, 0.8], [0.5, 0.5]]).round(6)
    array([0.173344, 0.25    ])
    """
    checkpoints = _checkpoints(candidates)
    _require([*_apart(checkpoints), *unbroken(checkpoints)])
    return merged_trajectory_formula(checkpoints, weights, alignment)


def merged_trajectory_formula(checkpoints: Sequence[Checkpoint], weights: npt.ArrayLike, alignment: Alignment) -> Array:
    """μ of the runs' own steps, given where they started."""
    if alignment not in get_args(Alignment):
        raise InvalidInputError("alignment", alignment, ", ".join(get_args(Alignment)))
    if alignment == "best":
        return np.minimum(
            merged_trajectory_formula(checkpoints, weights, "appended"),
            merged_trajectory_formula(checkpoints, weights, "prepended"),
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
            moved = ratio(moved, spread)
        squares[start : start + _CHUNK] = moved.sum(axis=1)
    return np.sqrt(squares)


def hidden_state_mus(
    candidates: Sequence[Candidate], weights: npt.ArrayLike, release_noise: npt.ArrayLike = 0.0
) -> Array:
    """The hidden-state theorem's best μ (theory 4.6, theory 9.4).

    Args:
        candidates: Checkpoints of different runs, or runs for their last ones.
        weights: One row of weights for each combination, or one row and many τ.
        release_noise: τ, one number or one for each row.

    Returns:
        μ of each row; `gaussian_epsilon` turns it into ε.

    Raises:
        NoGuaranteeError: A premise that fails, named.
        InvalidInputError: Weights off the simplex.

    >>> from dpmerge.accounting import Adjacency, DeclaredLipschitz, DpSgd, StepBlock
    >>> runs = [
    ...     DpSgd(
    ...         blocks=[StepBlock(steps=20, noise_multiplier=noise, clip_norm=1, learning_rate=4)],
    ...         adjacency=Adjacency.REPLACE_ONE,
    ...         smoothness=DeclaredLipschitz(factors=1),
    ...     )
    ...     for noise in (64, 32)
    ... ]
    >>> hidden_state_mus(runs, [[0.95, 0.05], [0.7, 0.3]]).round(6)
    array([0.150376, 0.255325])
    """
    return chain_mus(chains(candidates), weights, release_noise)


def linear_mus(candidates: Sequence[Candidate], weights: npt.ArrayLike, release_noise: npt.ArrayLike = 0.0) -> Array:
    """What the same releases cost exactly if all losses are linear: a *lower* bound of hidden_state_mus.

    Args:
        candidates: Checkpoints of different runs, or runs for their last ones.
        weights: One row of weights for each combination.
        release_noise: τ, one number or one for each row.

    Returns:
        μ of each row; `gaussian_epsilon` turns it into ε.

    Raises:
        NoGuaranteeError: A premise that fails, named.
        InvalidInputError: Weights off the simplex.

    >>> from dpmerge.accounting import DeclaredLipschitz, DpSgd, StepBlock
    >>> blocks = [StepBlock(steps=20, noise_multiplier=s, clip_norm=2, learning_rate=4) for s in (32, 64)]
    >>> smooth = DeclaredLipschitz(factors=1)
    >>> runs = [DpSgd(blocks=[block], adjacency="replace_one", smoothness=smooth) for block in blocks]
    >>> linear_mus(runs, [[0.2, 0.8], [0.5, 0.5]]).round(6)
    array([0.173344, 0.25    ])
    """
    return linear_chain_mus(chains(candidates), weights, release_noise)


def chains(candidates: Sequence[Candidate]) -> list[Chain]:
    """The updates of each run as the hidden-state theorem sees them; refused where a premise of it fails."""
    checkpoints = _checkpoints(candidates)
    _require([independent_noise(checkpoints), *hidden_state_premises(checkpoints)])
    result = []
    for checkpoint in checkpoints:
        run = checkpoint.run
        assert isinstance(run, DpSgd)
        factors, moves = run.lipschitz(checkpoint.step), run.moves(checkpoint.step)
        assert factors is not None, "smoothness premises hold but give no Lipschitz factor"
        acting = moves.shift > 0  # a step of rate zero does nothing to the weights
        if np.any(acting):
            result.append(Chain(moves.shift[acting], moves.noise[acting], factors[acting]))
        else:
            result.append(Chain(np.zeros(1), np.zeros(1), np.ones(1)))
    return result


def _checkpoints(candidates: Sequence[Candidate]) -> list[Checkpoint]:
    checkpoints = []
    for position, candidate in enumerate(candidates):
        kinds = (Checkpoint, Mechanism)
        validation.instance(f"candidates[{position}]", candidate, kinds, "a checkpoint, or a run for its last one")
        last = candidate if isinstance(candidate, Checkpoint) else Checkpoint(candidate, candidate.steps)
        checkpoints.append(last)
    if not checkpoints:
        raise InvalidInputError("candidates", [], "at least one checkpoint")
    return checkpoints


def _apart(checkpoints: Sequence[Checkpoint]) -> list[Premise]:
    """What every formula here takes for granted: runs that have nothing to do with one another."""
    return [independent_noise(checkpoints), *separate_runs(checkpoints), started_afresh(checkpoints)]


def _require(premises: Sequence[Premise]) -> None:
    failing = [premise for premise in premises if not premise.holds]
    if failing:
        raise NoGuaranteeError("; ".join(f"{premise.name} fails ({premise.vouched_by})" for premise in failing))


def _run(checkpoint: Checkpoint) -> NoisyRun:
    if not isinstance(checkpoint.run, NoisyRun):
        kind = type(checkpoint.run).__name__
        raise InvalidInputError(checkpoint.run.label, kind, "a run whose steps are known", found=f"a {kind}")
    return checkpoint.run


def _rows(checkpoints: Sequence[Checkpoint], weights: npt.ArrayLike) -> Array:
    return validation.simplex_rows("weights", weights, len(checkpoints), least=validation.SMALLEST)


def _supported_sum(rows: Array, values: Array) -> Array:
    """Σ of the values of the runs with positive weight; an infinite value of an unused run does not count."""
    finite = np.where(np.isfinite(values), values, 0.0)
    infinite = ((rows > 0) & np.isinf(values)).any(axis=1)
    return np.where(infinite, np.inf, (rows > 0) @ finite)
