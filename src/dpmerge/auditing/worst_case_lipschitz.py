"""By how much other records stretch a hidden state between two steps, chosen so that an attack sees most.

Guarantees: `worst` stretches no further than each run's record allows, and is the best that such factors can do for an
attacker who sees the merged model alone (a convex program, solved exactly up to one root).
Refuses: `even` for steps without noise, runs of different length; `worst` for runs whose stretches are not known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq

from dpmerge.auditing.attacks import Array
from dpmerge.auditing.gradients import pushes
from dpmerge.auditing.outputs import Part, products_after, require_parts
from dpmerge.auditing.schedules import Schedule
from dpmerge.errors import InvalidInputError

_FAR = 1e100
"""A product of factors as good as unbounded."""


def even(parts: Sequence[Part]) -> Array:
    """Factors, the same for all runs, under which every step tells as much as if it were seen by itself.

    A step that moves the merged model by a, with noise b, is then counted a/b² times: the likelihood ratio of all.
    """
    require_parts(parts, 0.0)
    lengths = {step for _, step, _ in parts}
    if len(lengths) != 1:
        raise InvalidInputError("parts", sorted(lengths), "runs of equal length, which one map can move")
    steps = lengths.pop()
    moved, variance = np.zeros(steps), np.zeros(steps)
    for run, step, weight in parts:
        reach = weight * run.rates[:step] * run.clip_norms[:step]
        moved += _width(run) * reach
        variance += (reach * run.noise_multipliers[:step]) ** 2
    acting = np.flatnonzero(moved)
    if np.any(variance[acting] == 0):
        problem = "noise_multipliers: a step without noise leaves nothing to even out"
        raise InvalidInputError("noise_multipliers", 0.0, "give every step some", problem=problem)
    return _gains(moved[acting] / variance[acting], acting, steps)


def worst(parts: Sequence[Part], release_noise: float) -> list[Array]:
    """Factors for each run, none above what its record states, that tell most about the record.

    Let w_t be how much of step t's gradient is in the output, so that w_{t−1}/w_t is the factor of step t. Given the
    last w of run i, κ·λ_i, the rest maximise Σ w_t a_t − ½ Σ (w_t b_t)² with w_{t−1} ≤ L_t w_t: an isotonic regression
    in other units, cut off at κ·λ_i·L_{t+1}⋯L_T. The best κ is a root. (The program is the dual of the one that proves
    hidden_state, theory 9: attack and proof meet.)
    """
    require_parts(parts, release_noise)
    chains = [_Chain.of(part) for part in parts]
    moving = [chain for chain in chains if chain.acting.size]
    last_variance = release_noise**2 + sum((chain.weight * float(chain.noise[-1])) ** 2 for chain in moving)
    if last_variance == 0 or not moving:
        # Nothing moves, or the last step is seen as it is, and the past would only add noise.
        return [chain.gains(np.eye(1, chain.acting.size, chain.acting.size - 1)[0]) for chain in chains]

    def slope(scale: float) -> float:
        return scale * last_variance - sum(chain.gain(scale) for chain in moving)

    low = high = 1.0
    while slope(high) < 0:
        high *= 2
    while slope(low) > 0:
        low /= 2
    scale = high if low == high else float(brentq(slope, low, high, xtol=1e-300, rtol=1e-12))
    return [chain.gains(chain.counted(scale)) for chain in chains]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Chain:
    """The acting steps of one run: how far the record moves the state, the noise, and the most a step may stretch."""

    weight: float
    steps: int
    acting: npt.NDArray[np.intp]
    shift: Array
    noise: Array
    most: Array
    later: Array  # the product of what all later steps may stretch
    alone: Array  # how all steps but the last would be counted, were there no last

    @classmethod
    def of(cls, part: Part) -> _Chain:
        run, step, weight = part
        if run.stretches is None:
            problem = f"{run.name}.stretches: nobody says how far an update may pull two hidden states apart"
            raise InvalidInputError(f"{run.name}.stretches", None, "state the run's smoothness", problem=problem)
        acting = np.flatnonzero(run.rates[:step])
        reach = (run.rates * run.clip_norms)[acting]
        shift, noise, most = _width(run) * reach, reach * run.noise_multipliers[acting], run.stretches[acting]
        with np.errstate(over="ignore", invalid="ignore"):
            later = np.minimum(np.nan_to_num(products_after(most), nan=0.0, posinf=_FAR), _FAR)
        return cls(
            weight=weight,
            steps=step,
            acting=acting,
            shift=shift,
            noise=noise,
            most=most,
            later=later,
            alone=_pooled(shift[:-1], noise[:-1] ** 2, most[:-1]),
        )

    def counted(self, scale: float) -> Array:
        bound = scale * self.weight * self.later
        return np.append(np.minimum(self.alone, bound[:-1]), bound[-1:])

    def gain(self, scale: float) -> float:
        """Minus the slope in `scale` of what this run adds to the program, the noise of its last step aside."""
        each = self.weight * self.later[:-1]
        cut = self.alone > scale * each
        steep = (self.shift[:-1] - self.noise[:-1] ** 2 * scale * each)[cut] @ each[cut]
        return float(steep + self.weight * self.shift[-1])

    def gains(self, counted: Array) -> Array:
        factors = _gains(counted, self.acting, self.steps)
        factors[self.acting[1:]] = np.minimum(factors[self.acting[1:]], self.most[1:])
        return factors


def _pooled(shift: Array, variance: Array, most: Array) -> Array:
    """The w that maximises Σ w a − ½ Σ w² b² with w_{t−1} ≤ L_t w_t: neighbours that violate it are pooled."""
    pools: list[tuple[int, float, float, float]] = []  # first step; a and b² in units of the last w; first w over last
    for step, own in enumerate(zip(shift.tolist(), variance.tolist(), strict=True)):
        first, (a, b2), head = step, own, 1.0
        while pools:
            begun, before, before2, tail = pools[-1]
            link = float(most[first]) * head
            if not _ratio(before, before2) > link * _ratio(a, b2):
                break
            pools.pop()
            first, a, b2, head = begun, a + link * before, b2 + link**2 * before2, tail * link
        pools.append((first, a, b2, head))
    best = np.empty(len(shift))
    end = len(shift)
    for first, a, b2, _ in reversed(pools):
        best[end - 1] = _ratio(a, b2)
        for step in range(end - 1, first, -1):
            best[step - 1] = float(most[step]) * best[step]
        end = first
    return best


def _ratio(a: float, b2: float) -> float:
    return a / b2 if b2 > 0 else math.inf


def _gains(counted: Array, acting: npt.NDArray[np.intp], steps: int) -> Array:
    """The factor of each step that makes the acting ones count so; a step that does not act leaves the state alone."""
    gains = np.ones(steps)
    before, after = counted[:-1], counted[1:]
    gains[acting[1:]] = np.divide(before, after, out=np.zeros(len(after)), where=after > 0)
    return gains


def _width(run: Schedule) -> float:
    without, within = pushes(run)
    return within - without
