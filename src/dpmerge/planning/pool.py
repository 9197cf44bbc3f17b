"""The pool: every candidate a plan may choose from, as arrays, so that thousands cost milliseconds.

Guarantees: each entry's cost is its theorem's formula for exactly its weights. Recipes are made only for what is
chosen, and `candidates` then asks the theorem again.

Of random selection the checkpoints; of linear combination the front of averages (`averages`) by joint release, and
weights searched by the theorems under which weights change the cost (`search`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from dpmerge.errors import NoGuarantee
from dpmerge.planning.averages import Front, front
from dpmerge.planning.candidates import Theorem
from dpmerge.planning.noise import precision_weights
from dpmerge.planning.rungs import Rung, Rungs
from dpmerge.portfolio.recipe import Recipe
from dpmerge.privacy.domain import Array
from dpmerge.privacy.exposure import Exposure
from dpmerge.privacy.gaussian import GaussianProfile, gaussian_epsilon, safe_gaussian_delta
from dpmerge.privacy.profile import PrivacyProfile
from dpmerge.privacy.renyi import RenyiProfile

MOST_CONVOLVED = 12
"""Averages of sampled runs that are priced: each takes a convolution, not a sum."""


@dataclass(frozen=True, eq=False)
class Batch:
    """Weightings of some rungs by one theorem: one row of weights each, one cost each (a μ, or a profile)."""

    rungs: tuple[Rung, ...]
    rows: Array
    theorem: Theorem
    mus: Array | None
    profiles: tuple[PrivacyProfile, ...] = ()
    release_noise: Array | float = 0.0

    def __len__(self) -> int:
        return int(self.rows.shape[0])

    @cached_property
    def noise_to_signal(self) -> Array:
        """Predicted, for one rung a run; not a number where a rung's noise is not recorded."""
        travelled = np.array([np.nan if r.noise is None else r.noise.travelled for r in self.rungs])
        variance = np.array([np.nan if r.noise is None else r.noise.variance for r in self.rungs])
        used = self.rows > 0
        unknown = (used & np.isnan(travelled)).any(axis=1)
        spread = self.rows**2 @ np.nan_to_num(variance) + np.asarray(self.release_noise) ** 2
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = spread / (self.rows @ np.nan_to_num(travelled)) ** 2
        return np.where(unknown, np.nan, ratio)

    def deltas(self, epsilon: float) -> Array:
        """δ± at ε, two rows."""
        if self.mus is not None:
            return np.tile(safe_gaussian_delta(self.mus, epsilon), (2, 1))
        return np.array([profile.deltas(epsilon) for profile in self.profiles]).T

    def epsilons(self, delta: float) -> Array:
        if self.mus is not None:
            return gaussian_epsilon(self.mus, delta)
        return np.array([profile.epsilon(delta) for profile in self.profiles])

    def curves(self, orders: Array) -> Array:
        """Rényi curves, one row each; infinite where none is known."""
        if self.mus is not None:
            return np.asarray(self.mus[:, np.newaxis] ** 2 / 2 * orders)
        return np.array([RenyiProfile.of(profile, orders).values for profile in self.profiles])

    def recipe(self, place: int) -> Recipe:
        noise = np.broadcast_to(np.asarray(self.release_noise, dtype=float), len(self))[place]
        names = [rung.name for rung in self.rungs]
        return Recipe.of(zip(names, self.rows[place].tolist(), strict=True), release_noise=float(noise))


@dataclass(frozen=True, eq=False)
class Pool:
    """Several batches, their entries counted through."""

    batches: tuple[Batch, ...]

    def __len__(self) -> int:
        return sum(len(batch) for batch in self.batches)

    def deltas(self, epsilon: float) -> Array:
        return np.concatenate([batch.deltas(epsilon) for batch in self.batches], axis=1)

    def epsilons(self, delta: float) -> Array:
        return np.concatenate([batch.epsilons(delta) for batch in self.batches])

    def curves(self, orders: Array) -> Array:
        return np.concatenate([batch.curves(orders) for batch in self.batches])

    def entry(self, place: int) -> tuple[Recipe, Theorem]:
        for batch in self.batches:
            if place < len(batch):
                return batch.recipe(place), batch.theorem
            place -= len(batch)
        raise IndexError(place)


def some_of(batch: Batch, places: npt.NDArray[np.intp]) -> Batch:
    """Some entries of a batch."""
    noise = np.broadcast_to(np.asarray(batch.release_noise, dtype=float), len(batch))
    return Batch(
        batch.rungs,
        batch.rows[places],
        batch.theorem,
        None if batch.mus is None else batch.mus[places],
        tuple(batch.profiles[int(place)] for place in places) if batch.profiles else (),
        noise[places],
    )


def checkpoints(rungs: Rungs) -> Batch:
    """Every checkpoint by itself: what random selection draws from."""
    usable = rungs.usable
    profiles = tuple(rung.profile for rung in usable)
    return Batch(usable, np.eye(len(usable)), "joint_release", _common_mus(profiles), profiles)


def averages(rungs: Rungs, squared_mu: float) -> Iterable[tuple[Front, Batch]]:
    """By joint release the fronts of all groups: of full-batch runs whole, of sampled ones what is near the budget."""
    for everyone in rungs.groups:
        # Runs whose noise may be another's have no joint cost.
        group = [of_run for of_run in everyone if of_run[0].is_independent]
        gaussian = [kept for of_run in group if (kept := tuple(r for r in of_run if r.is_gaussian))]
        if gaussian and len(found := front(rungs, gaussian)):
            yield found, _front_batch(found)
        if len(gaussian) < len(group) and len(found := front(rungs, group)):
            yield found, _priced_batch(found, squared_mu, rungs.delta)


def _front_batch(found: Front) -> Batch:
    columns, places = _columns(found)
    rows = np.zeros((len(found), len(columns)))
    weights = np.array([r.noise.weight for r in columns if r.noise is not None])
    for run, offset in enumerate(places):
        chosen = np.flatnonzero(found.chosen[:, run] >= 0)
        column = offset + found.chosen[chosen, run]
        rows[chosen, column] = weights[column]
    return Batch(columns, rows / rows.sum(axis=1, keepdims=True), "joint_release", np.sqrt(found.squared_mus))


def _priced_batch(found: Front, squared_mu: float, delta: float) -> Batch:
    """The averages of sampled runs nearest to the budget, each composed."""
    nearest = int(np.searchsorted(found.squared_mus, squared_mu))
    low = max(0, min(nearest - MOST_CONVOLVED // 2, len(found) - MOST_CONVOLVED))
    columns, _ = _columns(found)
    rows, profiles = [], []
    for place in range(low, min(low + MOST_CONVOLVED, len(found))):
        support = found.support(place)
        try:
            profile = Exposure.of(rung.checkpoint for rung in support).profile()
            profile.check_delta(delta)
        except NoGuarantee:
            continue
        row = np.zeros(len(columns))
        row[[columns.index(rung) for rung in support]] = precision_weights([r.noise for r in support if r.noise])
        rows.append(row)
        profiles.append(profile)
    return Batch(columns, np.array(rows).reshape(-1, len(columns)), "joint_release", None, tuple(profiles))


def _columns(found: Front) -> tuple[tuple[Rung, ...], list[int]]:
    """All rungs of the front one after the other, and where each run's begin."""
    offsets = np.cumsum([0, *(len(rungs) for rungs in found.runs)])[:-1]
    return tuple(rung for rungs in found.runs for rung in rungs), offsets.tolist()


def _common_mus(profiles: Sequence[PrivacyProfile]) -> Array | None:
    mus = [profile.mu for profile in profiles if isinstance(profile, GaussianProfile)]
    return np.array(mus) if len(mus) == len(profiles) else None
