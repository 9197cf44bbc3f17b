"""The hidden-state theorem: what a linear combination costs when nothing but the merged model is ever seen.

Guarantees: every μ returned is proved by a feasible choice of shifts. With a, b, L the shift, noise and Lipschitz
factor of each update, any s ≥ 0 whose gaps z_t = L_t z_{t−1} + a_t − s_t stay ≥ 0 and end at 0 proves
    μ² = Σ_{t<T} Σ_i (s_i^t/b_i^t)² + (Σ_i λ_i s_i^T)² / (Σ_i (λ_i b_i^T)² + τ²).
The best shifts form a convex quadratic program, solved here exactly and for a million weightings at once.
Refuses nothing: whether a run meets the premises is `combination`'s question.

The solution. Count each step in units of the end of training, G_t = L_{t+1}⋯L_T. For one run the feasible sums
S_t = Σ_{r≤t} G_r s_r are those that stay below A_t = Σ_{r≤t} G_r a_r, and the cost Σ (ΔS)²/(G b)² is the energy of
a string over the time v_t = Σ_{r≤t} (G_r b_r)²: pulled taut it is the greatest convex minorant of A, whose slopes
pool-adjacent-violators gives. The last step is shared by all runs; its price is one number c (the shift of the
merged model over its variance), under which run i follows its own minorant as far as the slopes stay below c·λ_i
and a straight line of slope c·λ_i from there. The condition that c be the price it causes is one equation,
decreasing and piecewise linear in c; Newton's method from the left ends after finitely many steps. Its first
iterate is the closed form of linear losses, and when no slope lies below c·λ_i that is also the last.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dpmerge.accounting import validation
from dpmerge.accounting.update_chain import Chain
from dpmerge.accounting.validation import Array
from dpmerge.errors import InvalidInputError

_CHUNK = 2**15


def linear_chain_mus(chains: Sequence[Chain], weights: npt.ArrayLike, release_noise: npt.ArrayLike) -> Array:
    """μ = Σ λA / √(Σ λ²B² + τ²), the exact value for linear losses; elsewhere *not* a bound but a lower one."""
    rows, tau = _broadcast(weights, release_noise, len(chains))
    reach, variance, unit = _linear_totals(chains)
    return ratio(rows @ reach, np.sqrt(rows**2 @ variance + (tau / unit) ** 2))


def linear_chain_noises(chains: Sequence[Chain], weights: npt.ArrayLike, mus: Array) -> Array:
    """The release noise with which linear losses cost μ: no more than the theorem itself needs; 0 if they cost less."""
    rows, _ = _broadcast(weights, 0.0, len(chains))
    reach, variance, unit = _linear_totals(chains)
    return np.asarray(unit * np.sqrt(np.maximum((rows @ reach / mus) ** 2 - rows**2 @ variance, 0.0)))


def _linear_totals(chains: Sequence[Chain]) -> tuple[Array, Array, float]:
    """A_i and B_i² of each run, in units of the largest growth (which is returned), so that no product overflows."""
    logarithms = []
    for chain in chains:
        with np.errstate(divide="ignore"):
            steps = np.log(np.minimum(chain.lipschitz[:0:-1], 1e300))
        logarithms.append(np.append(np.cumsum(steps)[::-1], 0.0))
    unit = max(float(each.max()) for each in logarithms)
    growths = [np.exp(each - unit) for each in logarithms]
    reach = np.array([growth @ chain.shift for growth, chain in zip(growths, chains, strict=True)])
    variance = np.array([growth**2 @ chain.noise**2 for growth, chain in zip(growths, chains, strict=True)])
    with np.errstate(over="ignore"):
        return reach, variance, float(np.exp(unit))


def chain_mus(chains: Sequence[Chain], weights: npt.ArrayLike, release_noise: npt.ArrayLike = 0.0) -> Array:
    """The theorem's best μ for each row of weights (and each τ), rounded up by its rounding error."""
    rows, tau = _broadcast(weights, release_noise, len(chains))
    rounding = 1e-15 * max(chain.largest_growth for chain in chains)
    result = np.empty(rows.shape[0])
    for start in range(0, rows.shape[0], _CHUNK):
        part = slice(start, start + _CHUNK)
        _, cost, _ = _solve(chains, rows[part], tau[part])
        result[part] = np.sqrt(cost) * (1 + rounding)
    return result


def best_shifts(chains: Sequence[Chain], weights: Array, release_noise: float) -> list[Array]:
    """A proof: the optimal shifts of every run, step by step (`proved_mu` says what they prove)."""
    price, _, vertices = _solve(chains, weights[np.newaxis, :], np.array([release_noise]))
    shifts = []
    for chain, weight, vertex in zip(chains, weights, vertices, strict=True):
        shifts.append(_shifts_of(chain, float(price[0] * weight), int(vertex[0])))
    return shifts


def proved_mu(chains: Sequence[Chain], weights: Array, release_noise: float, shifts: Sequence[Array]) -> float:
    """μ as proved by given shifts, after projecting them to feasibility: any input gives a true bound.

    Steps before a factor of zero are forgotten and need no shift. A shift that would make a gap negative is cut down
    to close it; the last one closes the gap whatever it is.
    """
    spent, moved, variance = 0.0, 0.0, release_noise**2
    for chain, weight, proposed in zip(chains, weights, shifts, strict=True):
        if weight == 0:
            continue
        closing = {segment.stop - 1 for segment in chain.segments}
        gap, last = 0.0, chain.shift.size - 1
        for step in range(chain.start, last):
            grown = _grown(chain, step, gap)
            wanted = float(proposed[step]) if proposed[step] > 0 else 0.0  # NaN asks for nothing
            taken = grown if step in closing else min(wanted, grown)
            gap = grown - taken
            if taken > 0:
                spent += (taken / chain.noise[step]) ** 2 if chain.noise[step] > 0 else np.inf
        moved += weight * _grown(chain, last, gap)
        variance += (weight * chain.noise[last]) ** 2
    shared = moved**2 / variance if variance > 0 else (np.inf if moved > 0 else 0.0)
    price = float(np.sqrt(spent + shared))
    return price if price >= 0 else np.inf  # a NaN is no proof


def _grown(chain: Chain, step: int, gap: float) -> float:
    """The gap after a step's map and before its shift; at the first step that matters there is none to grow."""
    grown = float(chain.factors[step]) * gap if gap > 0 and step > chain.start else 0.0
    return grown + float(chain.shift[step])


def _solve(chains: Sequence[Chain], rows: Array, tau: Array) -> tuple[Array, Array, list[npt.NDArray[np.intp]]]:
    """The price c, the cost μ² and the vertex each run leaves its minorant at, for each row of weights."""
    last_variance = rows**2 @ np.array([chain.noise[-1] ** 2 for chain in chains]) + tau**2
    envelopes = [chain.envelope for chain in chains]
    vertices = [np.zeros(rows.shape[0], dtype=np.intp) for _ in chains]
    most = sum(envelope.slopes.size for envelope in envelopes) + 1
    for _ in range(most):
        moved = np.zeros(rows.shape[0])
        variance = last_variance.copy()
        for column, (chain, envelope) in enumerate(zip(chains, envelopes, strict=True)):
            weight, vertex = rows[:, column], vertices[column]
            moved += weight * (chain.shift[-1] + envelope.reach[vertex])
            variance += weight**2 * envelope.time[vertex]
        price = ratio(moved, variance)
        # Newton from the left: prices rise on the way (or fall by a rounding at a tie); no vertex is returned to.
        following = [
            np.maximum(vertex, envelope.vertex(np.where(rows[:, column] > 0, price, 0.0) * rows[:, column]))
            for column, (vertex, envelope) in enumerate(zip(vertices, envelopes, strict=True))
        ]
        if all(np.array_equal(new, old) for new, old in zip(following, vertices, strict=True)):
            break
        vertices = following
    spent = np.zeros(rows.shape[0])
    for column, (envelope, vertex) in enumerate(zip(envelopes, vertices, strict=True)):
        spent += np.where(rows[:, column] > 0, envelope.cost[vertex], 0.0)
    with np.errstate(invalid="ignore"):
        cost = spent + ratio(moved**2, variance)
    return price, cost, vertices


def _shifts_of(chain: Chain, slope: float, vertex: int) -> Array:
    """Undo the scaling: along the minorant up to the vertex, along the line after it; the last step is left over."""
    shifts = np.where(np.arange(chain.shift.size) < chain.start, 0.0, chain.shift)
    for segment, envelope in zip(chain.segments, [*chain.closed, chain.envelope], strict=True):
        slopes = envelope.slopes
        if envelope is chain.envelope:
            slopes = np.where(np.arange(slopes.size) < vertex, slopes, slope)
        per_step = np.repeat(slopes, envelope.lengths)
        steps = slice(segment.start, segment.start + per_step.size)
        with np.errstate(invalid="ignore"):
            shifts[steps] = per_step * chain.growth(segment)[: per_step.size] * chain.noise[steps] ** 2
    return np.nan_to_num(shifts, nan=np.inf, posinf=np.inf)


def _broadcast(weights: npt.ArrayLike, release_noise: npt.ArrayLike, count: int) -> tuple[Array, Array]:
    rows = validation.simplex_rows("weights", weights, count, least=validation.SMALLEST)
    tau = np.asarray(release_noise, dtype=float)
    if not np.all((tau == 0) | ((tau >= validation.SMALLEST) & (tau <= validation.LARGEST))):
        accepted = f"0, or numbers from {validation.SMALLEST:g} to {validation.LARGEST:g}"
        raise InvalidInputError("release_noise", release_noise, accepted)
    if tau.ndim and rows.shape[0] == 1:
        rows = np.broadcast_to(rows, (tau.size, rows.shape[1]))
    return rows, np.broadcast_to(tau, rows.shape[0]).astype(float)


def ratio(numerator: Array, denominator: Array) -> Array:
    """numerator/denominator with 0/0 = 0 and x/0 = ∞: nothing moved costs nothing, moved without noise everything."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(numerator == 0, 0.0, np.asarray(numerator / denominator))
