"""The weights that meet a target: the paper's Algorithm 2 as a test, a lattice, and an exact boundary along any ray.

Guarantees: weights said to be feasible are, by the theorem named and with its premises met over all checkpoints given
(`merged_trajectory` by its formula alone: whether that is a proof, `candidates` says). A boundary is the safe end of an
interval of 1e-15 of the ray.
Refuses: runs whose steps are not known, for every theorem but joint_release.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from math import comb

import numpy as np
import numpy.typing as npt

from dpmerge.accounting import validation
from dpmerge.accounting.epsilon_solver import smallest_epsilon
from dpmerge.accounting.exposure import Checkpoint, Exposure
from dpmerge.accounting.gaussian import gaussian_epsilon, largest_mu
from dpmerge.accounting.hidden_state_shifts import chain_mus, linear_chain_noises
from dpmerge.accounting.linear_combination_mu import chains, last_step_mus, merged_trajectory_mus
from dpmerge.accounting.renyi import DEFAULT_ORDERS, Conversion, RenyiProfile, renyi_epsilon
from dpmerge.accounting.update_chain import Chain
from dpmerge.accounting.validation import Array
from dpmerge.errors import InvalidInputError, NoGuaranteeError
from dpmerge.planning.analysis import Accounting
from dpmerge.planning.candidates import AskedTheorem
from dpmerge.terms.guarantee import Guarantee

MOST_LATTICE_POINTS = 2_000_000

_SAMPLES = 257


@dataclass(frozen=True, eq=False)
class Weightings:
    """What every weighting of some checkpoints costs by one theorem (theory 4).

    Args:
        checkpoints: The models weighted.
        theorem: `joint_release`, `last_step`, `hidden_state` or `merged_trajectory`.
        accounting: `pld` or `rdp`.
        conversion: How a Rényi divergence becomes an ε.

    Raises:
        InvalidInputError: Another theorem.

    >>> from dpmerge.accounting import GaussianRelease
    >>> releases = [GaussianRelease(sensitivity=1, standard_deviation=s, adjacency="replace_one") for s in (4, 8)]
    >>> models = tuple(Checkpoint(release, 1) for release in releases)
    >>> Weightings(models, "last_step").epsilons([[1, 0], [0.5, 0.5], [0, 1]], 1e-5).round(4)
    array([0.9263, 0.8197, 0.4344])
    """

    checkpoints: tuple[Checkpoint, ...]
    theorem: AskedTheorem
    accounting: Accounting = "pld"
    conversion: Conversion = "improved"
    _of_support: dict[tuple[float, ...], float] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        known = ("joint_release", "hidden_state", *_FORMULAS)
        if self.theorem not in known:
            raise InvalidInputError("theorem", self.theorem, ", ".join(known))

    @cached_property
    def _chains(self) -> list[Chain]:
        """The runs as hidden_state sees them, its premises checked once for all weights."""
        return chains(self.checkpoints)

    def mus(self, weights: npt.ArrayLike, release_noise: npt.ArrayLike = 0.0) -> Array:
        """μ of each row of weights, for the theorems under which every cost is Gaussian."""
        if self.theorem == "hidden_state":
            return chain_mus(self._chains, weights, release_noise)
        return _FORMULAS[self.theorem](self.checkpoints, weights, release_noise)

    def least_release_noise(self, weights: Array, mus: Array) -> Array:
        """For each row the smallest τ with which hidden_state costs at most the given μ, from the safe side.

        The closed form of linear losses needs no more; where it is what the theorem says, that is the answer.
        """
        noise = linear_chain_noises(self._chains, weights, mus) * (1 + 1e-12)
        within = np.isfinite(noise) & (noise <= validation.LARGEST)
        noise = np.where(within, np.where(noise < validation.SMALLEST, 0.0, noise), np.inf)
        again = np.flatnonzero(within)
        again = again[self.mus(weights[again], noise[again]) > mus[again]] if again.size else again
        if again.size:
            # In units of the noise there is: beyond 2⁴⁰ times that nothing is left of a model.
            scale = np.maximum(noise[again], validation.SMALLEST)
            known = noise[(noise > 0) & np.isfinite(noise)]
            scale = np.where(noise[again] > 0, scale, np.median(known) if known.size else 1.0)
            found = smallest_epsilon(
                lambda x, which: self.mus(weights[again[which]], np.minimum(x * scale[which], validation.LARGEST)),
                mus[again],
            )
            noise[again] = found * scale
        return rounded_up(noise)

    def epsilons(self, weights: npt.ArrayLike, delta: float, release_noise: npt.ArrayLike = 0.0) -> Array:
        """ε at δ of each row of weights."""
        if self.theorem == "joint_release":
            return self._joint_epsilons(weights, delta)
        mus = self.mus(weights, release_noise)
        if self.accounting == "pld":
            return gaussian_epsilon(mus, delta)
        return renyi_epsilon(DEFAULT_ORDERS, mus[:, np.newaxis] ** 2 / 2 * DEFAULT_ORDERS, delta, self.conversion)

    def _joint_epsilons(self, weights: npt.ArrayLike, delta: float) -> Array:
        """Joint release asks only which weights are positive: one cost for each support that occurs."""
        rows = validation.simplex_rows("weights", weights, len(self.checkpoints))
        supports, which = np.unique(rows > 0, axis=0, return_inverse=True)
        epsilons = []
        for support in supports:
            key = (delta, *support.tolist())
            if key not in self._of_support:
                exposed = [c for c, positive in zip(self.checkpoints, support, strict=True) if positive]
                profile = Exposure.of(exposed).profile()
                by_pld = self.accounting == "pld"
                whole = profile if by_pld else RenyiProfile.of(profile).converted(self.conversion)
                self._of_support[key] = whole.epsilon(delta)
            epsilons.append(self._of_support[key])
        return np.array(epsilons)[which.ravel()]


def _without_noise(
    formula: Callable[[Sequence[Checkpoint], npt.ArrayLike], Array],
) -> Callable[[Sequence[Checkpoint], npt.ArrayLike, npt.ArrayLike], Array]:
    return lambda checkpoints, weights, _: formula(checkpoints, weights)


_FORMULAS: dict[str, Callable[[Sequence[Checkpoint], npt.ArrayLike, npt.ArrayLike], Array]] = {
    "last_step": last_step_mus,
    "merged_trajectory": _without_noise(merged_trajectory_mus),
}


@dataclass(frozen=True, eq=False)
class FeasibleWeights:
    """The weightings that meet a target."""

    weightings: Weightings
    target: Guarantee
    release_noise: float = 0.0

    @cached_property
    def largest_mu(self) -> float:
        """Costs that are Gaussian meet the target exactly up to this μ."""
        return mu_budget(self.target, self.weightings.accounting, self.weightings.conversion)

    def contains(self, weights: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """Which rows of weights meet the target."""
        if self.weightings.theorem == "joint_release":
            return np.asarray(self.weightings.epsilons(weights, self.target.delta) <= self.target.epsilon)
        return np.asarray(self.weightings.mus(weights, self.release_noise) <= self.largest_mu)

    def lattice(self, resolution: int) -> Array:
        """Every feasible row of multiples of 1/resolution."""
        rows = lattice(len(self.weightings.checkpoints), resolution)
        return np.asarray(rows[self.contains(rows)])

    def boundary(self, inside: Sequence[float], towards: Sequence[float]) -> Array:
        """The last feasible weights on the way from feasible ones towards others, before the first that are not."""
        count = len(self.weightings.checkpoints)
        start, end = (validation.simplex(name, v, count) for name, v in (("inside", inside), ("towards", towards)))
        if not self.contains(start[np.newaxis])[0]:
            raise NoGuaranteeError(f"inside: got {start.tolist()}; accepted: weights that meet the target themselves")
        # The first infeasible one of many points, ever denser towards both ends: costs may jump as soon as a weight is
        # positive, and the noise of very unequal runs balances in a narrow window beside one of them.
        dense = np.geomspace(1e-15, 0.5, _SAMPLES)
        points = np.unique(np.concatenate([[0.0, 1.0], np.linspace(0, 1, _SAMPLES), dense, 1 - dense]))
        feasible = self.contains(_between(start, end, points))
        if feasible.all():
            return end
        first = int(np.argmin(feasible))
        low, high = points[first - 1], points[first]
        while high - low > 1e-15:
            middle = (low + high) / 2
            if middle in (low, high):
                break
            fits = bool(self.contains(_between(start, end, np.array([middle])))[0])
            low, high = (middle, high) if fits else (low, middle)
        return np.asarray(_between(start, end, np.array([low]))[0])


def rounded_up(noise: Array) -> Array:
    """To six digits, as recipes are printed, so that what is read off a plan costs no more than the plan says."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        unit = 10.0 ** (np.floor(np.log10(noise)) - 5)
        above = np.ceil(noise / unit) * unit
    short = np.array([float(f"{value:.6g}") if np.isfinite(value) else value for value in above.ravel()])
    return np.where((noise > 0) & (short.reshape(noise.shape) >= noise), short.reshape(noise.shape), noise)


def mu_budget(target: Guarantee, accounting: Accounting, conversion: Conversion = "improved") -> float:
    """The largest μ (from below) of a Gaussian cost that meets the target by an accounting."""
    if accounting == "pld":
        return largest_mu(target.epsilon, target.delta)
    low, high = 0.0, largest_mu(target.epsilon, target.delta)
    while high - low > 1e-15 * high:
        middle = (low + high) / 2
        if middle in (low, high):
            break
        fits = renyi_epsilon(DEFAULT_ORDERS, middle**2 / 2 * DEFAULT_ORDERS, target.delta, conversion) <= target.epsilon
        low, high = (middle, high) if fits else (low, middle)
    return low


def lattice(dimension: int, resolution: int) -> Array:
    """All weights that are multiples of 1/resolution: C(resolution + dimension − 1, dimension − 1) rows.

    >>> lattice(3, 2).tolist()[:3]
    [[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.5, 0.0, 0.5]]
    """
    validation.integer("dimension", dimension, least=1)
    validation.integer("resolution", resolution, least=1)
    if comb(resolution + dimension - 1, dimension - 1) > MOST_LATTICE_POINTS:
        raise InvalidInputError("resolution", resolution, f"one with at most {MOST_LATTICE_POINTS:,} points")
    indices = list(combinations(range(resolution + dimension - 1), dimension - 1))
    bars = np.array(indices, dtype=int).reshape(len(indices), dimension - 1)
    edges = np.column_stack([np.full(len(bars), -1), bars, np.full(len(bars), resolution + dimension - 1)])
    counts = np.diff(edges, axis=1) - 1
    return np.asarray(counts[::-1] / resolution)


def _between(start: Array, end: Array, points: Array) -> Array:
    rows = (1 - points)[:, np.newaxis] * start + points[:, np.newaxis] * end
    # A weight that is nothing but rounding is none.
    rows = np.where(rows < validation.SMALLEST, 0.0, rows)
    return np.asarray(rows / rows.sum(axis=1, keepdims=True))
