"""Every candidate a plan may choose from, as arrays, so that thousands cost milliseconds.

Guarantees: each entry's cost is its theorem's formula for exactly its weights. Recipes are made only for what is
chosen, and `candidates` then asks the theorem again.
Refuses nothing: averages without a proved cost are not in what comes back.

Of random selection the checkpoints; of linear combination the front of averages (`pareto_front`) by joint release, and
weights searched by the theorems under which weights change the cost (`weight_search`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from dpmerge.accounting.exposure import Exposure
from dpmerge.accounting.gaussian import GaussianProfile, gaussian_epsilon, safe_gaussian_delta
from dpmerge.accounting.profile import PrivacyProfile
from dpmerge.accounting.renyi import RenyiProfile
from dpmerge.accounting.validation import Array
from dpmerge.errors import NoGuaranteeError
from dpmerge.planning.candidates import AskedTheorem
from dpmerge.planning.noise_prediction import precision_weights
from dpmerge.planning.pareto_front import ParetoFront, front
from dpmerge.planning.usable_checkpoints import UsableCheckpoint, UsableCheckpoints
from dpmerge.terms.recipe import Recipe

NEAREST = 12
"""Averages of sampled runs that are composed because their effective cost is nearest to the budget."""

MOST_PRECISE = 24
"""Further ones, the most precise first, until one of them is within it."""

NEARLY_ADDITIVE = 0.1
"""By what share the effective costs of sampled runs may be off, when they are added up."""


@dataclass(frozen=True, eq=False)
class CandidateBatch:
    """Weightings of some checkpoints by one theorem: one row of weights each, one cost each (a μ, or a profile)."""

    checkpoints: tuple[UsableCheckpoint, ...]
    rows: Array
    theorem: AskedTheorem
    mus: Array | None
    profiles: tuple[PrivacyProfile, ...] = ()
    release_noise: Array | float = 0.0
    _deltas: dict[float, Array] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return int(self.rows.shape[0])

    @cached_property
    def noise_to_signal(self) -> Array:
        """Predicted, for one checkpoint a run; not a number where a checkpoint's noise is not recorded."""
        travelled = np.array([np.nan if r.noise is None else r.noise.travelled for r in self.checkpoints])
        variance = np.array([np.nan if r.noise is None else r.noise.variance for r in self.checkpoints])
        used = self.rows > 0
        unknown = (used & np.isnan(travelled)).any(axis=1)
        spread = self.rows**2 @ np.nan_to_num(variance) + np.asarray(self.release_noise) ** 2
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = spread / (self.rows @ np.nan_to_num(travelled)) ** 2
        if any(r.noise is not None and r.noise.relative for r in self.checkpoints):
            unknown |= np.asarray(self.release_noise) > 0  # in units of the weights, and so not comparable
        return np.where(unknown, np.nan, ratio)

    def deltas(self, epsilon: float) -> Array:
        """δ± at ε, two rows."""
        if self.mus is not None:
            return np.tile(safe_gaussian_delta(self.mus, epsilon), (2, 1))
        if epsilon not in self._deltas:  # one target is asked about several times
            self._deltas[epsilon] = np.array([profile.deltas(epsilon) for profile in self.profiles]).T
        return self._deltas[epsilon]

    def epsilons(self, delta: float) -> Array:
        if self.mus is not None:
            return gaussian_epsilon(self.mus, delta)
        return np.array([profile.epsilon(delta) for profile in self.profiles])

    def curves(self, orders: Array) -> Array:
        """Rényi curves, one row each; infinite where none is known."""
        if self.mus is not None:
            return np.asarray(self.mus[:, np.newaxis] ** 2 / 2 * orders)
        return np.array([RenyiProfile.of(profile, orders).values for profile in self.profiles])

    def recipe(self, index: int) -> Recipe:
        noise = np.broadcast_to(np.asarray(self.release_noise, dtype=float), len(self))[index]
        names = [checkpoint.name for checkpoint in self.checkpoints]
        return Recipe.of(zip(names, self.rows[index].tolist(), strict=True), release_noise=float(noise))


@dataclass(frozen=True, eq=False)
class CandidateArrays:
    """Several batches, their entries counted through."""

    batches: tuple[CandidateBatch, ...]

    def __len__(self) -> int:
        return sum(len(batch) for batch in self.batches)

    def deltas(self, epsilon: float) -> Array:
        return np.concatenate([batch.deltas(epsilon) for batch in self.batches], axis=1)

    def epsilons(self, delta: float) -> Array:
        return np.concatenate([batch.epsilons(delta) for batch in self.batches])

    def curves(self, orders: Array) -> Array:
        return np.concatenate([batch.curves(orders) for batch in self.batches])

    def entry(self, index: int) -> tuple[Recipe, AskedTheorem]:
        for batch in self.batches:
            if index < len(batch):
                return batch.recipe(index), batch.theorem
            index -= len(batch)
        raise IndexError(index)


def some_of(batch: CandidateBatch, indices: npt.NDArray[np.intp]) -> CandidateBatch:
    """Some entries of a batch."""
    noise = np.broadcast_to(np.asarray(batch.release_noise, dtype=float), len(batch))
    return CandidateBatch(
        batch.checkpoints,
        batch.rows[indices],
        batch.theorem,
        None if batch.mus is None else batch.mus[indices],
        tuple(batch.profiles[int(index)] for index in indices) if batch.profiles else (),
        noise[indices],
    )


def single_checkpoints(usable: UsableCheckpoints) -> CandidateBatch:
    """Every checkpoint by itself: what random selection draws from."""
    profiles = tuple(checkpoint.released_alone for checkpoint in usable.checkpoints)
    return CandidateBatch(usable.checkpoints, np.eye(len(profiles)), "joint_release", _common_mus(profiles), profiles)


def averages(usable: UsableCheckpoints, squared_mu: float) -> Iterable[tuple[ParetoFront, CandidateBatch]]:
    """By joint release the fronts of all groups: of full-batch runs whole, of sampled ones what is near the budget."""
    for everyone in usable.groups:
        # Runs whose noise may be another's have no joint cost.
        group = [of_run for of_run in everyone if of_run[0].is_independent]
        gaussian = [kept for of_run in group if (kept := tuple(r for r in of_run if r.is_gaussian))]
        if gaussian and len(found := front(usable, gaussian)):
            yield found, _front_batch(found)
        if len(gaussian) < len(group) and len(found := front(usable, group, tolerance=NEARLY_ADDITIVE)):
            yield found, _composed_batch(found, squared_mu, usable.delta)


def _front_batch(found: ParetoFront) -> CandidateBatch:
    columns, offsets = _columns(found)
    rows = np.zeros((len(found), len(columns)))
    weights = np.array([r.noise.weight for r in columns if r.noise is not None])
    for run, offset in enumerate(offsets):
        chosen = np.flatnonzero(found.chosen[:, run] >= 0)
        column = offset + found.chosen[chosen, run]
        rows[chosen, column] = weights[column]
    return CandidateBatch(columns, rows / rows.sum(axis=1, keepdims=True), "joint_release", np.sqrt(found.squared_mus))


def _composed_batch(found: ParetoFront, squared_mu: float, delta: float) -> CandidateBatch:
    """Averages of sampled runs, composed: those nearest to the budget, and the most precise that may be within it."""
    columns, _ = _columns(found)
    place_of = {checkpoint: place for place, checkpoint in enumerate(columns)}
    budget = float(gaussian_epsilon(np.sqrt([squared_mu]), delta)[0])
    priced: dict[int, PrivacyProfile] = {}
    costs: dict[int, float] = {}

    def price(index: int) -> None:
        try:
            profile = Exposure.of(checkpoint.prefix for checkpoint in found.support(index)).profile()
            epsilon = profile.epsilon(delta)
        except NoGuaranteeError:
            return
        priced[index], costs[index] = profile, epsilon

    nearest = int(np.searchsorted(found.squared_mus, squared_mu))
    low = max(0, min(nearest - NEAREST // 2, len(found) - NEAREST))
    for index in range(low, min(low + NEAREST, len(found))):
        price(index)
    # Costs that were added up are too large by about as much as they are for the nearest ones; ε goes as μ, nearly.
    added_up = gaussian_epsilon(np.sqrt(found.squared_mus[list(costs)]), delta)
    ratio = min(((cost / sum_) ** 2 for cost, sum_ in zip(costs.values(), added_up, strict=True) if sum_), default=1.0)
    possible = np.flatnonzero(found.squared_mus * ratio * (1 - NEARLY_ADDITIVE / 2) <= squared_mu)
    for index in possible[np.argsort(-found.precisions[possible], kind="stable")][:MOST_PRECISE].tolist():
        if index not in priced:
            price(index)
        if costs.get(index, np.inf) <= budget:
            break
    rows = np.zeros((len(priced), len(columns)))
    for row, index in zip(rows, priced, strict=True):
        support = found.support(index)
        row[[place_of[checkpoint] for checkpoint in support]] = precision_weights([r.noise for r in support if r.noise])
    return CandidateBatch(columns, rows, "joint_release", None, tuple(priced.values()))


def _columns(found: ParetoFront) -> tuple[tuple[UsableCheckpoint, ...], list[int]]:
    """All checkpoints of the front one after the other, and where each run's begin."""
    offsets = np.cumsum([0, *(len(of_run) for of_run in found.runs)])[:-1]
    return tuple(checkpoint for of_run in found.runs for checkpoint in of_run), offsets.tolist()


def _common_mus(profiles: Sequence[PrivacyProfile]) -> Array | None:
    mus = [profile.mu for profile in profiles if isinstance(profile, GaussianProfile)]
    return np.array(mus) if len(mus) == len(profiles) else None
