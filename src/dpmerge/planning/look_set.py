"""Look sets: which models may be looked at to choose among merges, fixed before anything is looked at.

Guarantees: the joint release of a look set fits the target, whatever is then done inside it; picked by the planner, it
depends on noise levels alone.
Refuses: declared look sets that cost more than the target, targets no checkpoint fits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import comb

import numpy as np

from dpmerge.accounting.exposure import Exposure
from dpmerge.accounting.premises import Premise
from dpmerge.accounting.renyi import DEFAULT_ORDERS, RenyiProfile, renyi_epsilon
from dpmerge.errors import InvalidInputError, NoGuaranteeError, TargetOutOfReachError
from dpmerge.planning.analysis import Accounting
from dpmerge.planning.candidate_arrays import CandidateBatch, averages, single_checkpoints
from dpmerge.planning.candidate_search import Method
from dpmerge.planning.feasible_weights import lattice, mu_budget
from dpmerge.planning.pareto_front import precision_average
from dpmerge.planning.unreachable_targets import no_finite_cost
from dpmerge.planning.usable_checkpoints import UsableCheckpoint, UsableCheckpoints
from dpmerge.terms.guarantee import Guarantee
from dpmerge.terms.recipe import Recipe

MOST_TRIED = 200
"""Checkpoints of sampled runs that are tried beside a look set."""


@dataclass(frozen=True, eq=False)
class LookSet:
    """The checkpoints that may be looked at: of each run one, and with it all earlier ones that were kept."""

    latest: tuple[UsableCheckpoint, ...]
    everything: tuple[UsableCheckpoint, ...]
    declared: bool

    @property
    def exposure(self) -> Exposure:
        return Exposure.of(checkpoint.prefix for checkpoint in self.latest)

    def premise(self) -> Premise:
        who = "whoever declared it" if self.declared else "dpmerge, which picked it by noise levels alone"
        return Premise("look_set_fixed_before_looking", True, who)


def look_set(
    usable: UsableCheckpoints, target: Guarantee, declared: Sequence[str] | None, accounting: Accounting
) -> LookSet:
    """The look set as declared, or the one whose precision-weighted average carries the least noise, and then some."""
    if declared is not None:
        latest: dict[object, UsableCheckpoint] = {}
        for name in declared:
            checkpoint = usable[name]
            before = latest.get(checkpoint.run)
            latest[checkpoint.run] = (
                checkpoint if before is None or checkpoint.saved.step > before.saved.step else before
            )
        if not latest:
            raise InvalidInputError("look", [], "at least one checkpoint, as run@step")
        chosen = list(latest.values())
        Exposure.of(checkpoint.prefix for checkpoint in chosen).profile()  # where there is no number, this says why
        if (cost := _joint(chosen, accounting, target.delta)) > target.epsilon:
            words = f"the look set {', '.join(checkpoint.name for checkpoint in chosen)}"
            raise TargetOutOfReachError(target.epsilon, target.delta, cost, words, "look at less, or raise the target")
    else:
        chosen = _extended(usable, target, _least_noisy(usable, target, accounting), accounting)
    exposed = {checkpoint.run: checkpoint.saved.step for checkpoint in chosen}
    everything = tuple(r for r in usable.checkpoints if r.saved.step <= exposed.get(r.run, 0))
    return LookSet(tuple(chosen), everything, declared is not None)


def _least_noisy(usable: UsableCheckpoints, target: Guarantee, accounting: Accounting) -> list[UsableCheckpoint]:
    best: tuple[float, CandidateBatch, int] | None = None
    singles = single_checkpoints(usable)
    mu = mu_budget(target, accounting)
    for batch in (singles, *(batch for _, batch in averages(usable, mu**2))):
        if accounting == "pld":
            fits = batch.deltas(target.epsilon).max(axis=0, initial=0.0) <= target.delta * (1 - 1e-9)
        else:
            own = renyi_epsilon(DEFAULT_ORDERS, batch.curves(DEFAULT_ORDERS), target.delta, "improved")
            fits = own <= target.epsilon * (1 - 1e-9)
        ratios = np.where(fits, np.nan_to_num(batch.noise_to_signal, nan=1e300), np.inf)
        if ratios.size and np.isfinite(ratios.min()) and (best is None or ratios.min() < best[0]):
            best = float(ratios.min()), batch, int(np.argmin(ratios))
    if best is None:
        cost, least = min(
            ((_joint([r], accounting, target.delta), r.name) for r in usable.checkpoints), key=lambda pair: pair[0]
        )
        if np.isinf(cost):
            raise no_finite_cost(accounting)
        raise TargetOutOfReachError(target.epsilon, target.delta, cost, least)
    return _support(best[1], best[2])


def _support(batch: CandidateBatch, index: int) -> list[UsableCheckpoint]:
    return [checkpoint for checkpoint, weight in zip(batch.checkpoints, batch.rows[index], strict=True) if weight > 0]


def _extended(
    usable: UsableCheckpoints, target: Guarantee, chosen: list[UsableCheckpoint], accounting: Accounting
) -> list[UsableCheckpoint]:
    """Whatever else fits the target, the dearest checkpoints first; of sampled ones MOST_TRIED, each is composed."""
    within = [r for r in usable.checkpoints if np.isfinite(r.epsilon) and r.epsilon <= target.epsilon]
    composed = 0
    for checkpoint in sorted(within, key=lambda r: -r.epsilon):
        composed += not checkpoint.is_gaussian
        if checkpoint.is_gaussian or composed <= MOST_TRIED:
            others = [other for other in chosen if other.run is not checkpoint.run]
            later = any(other.run is checkpoint.run and other.saved.step >= checkpoint.saved.step for other in chosen)
            if not later and _joint([*others, checkpoint], accounting, target.delta) <= target.epsilon:
                chosen = [*others, checkpoint]
    return sorted(chosen, key=usable.checkpoints.index)


def _joint(chosen: Sequence[UsableCheckpoint], accounting: Accounting, delta: float) -> float:
    """ε of looking at these; infinite where nobody knows."""
    try:
        profile = Exposure.of(checkpoint.prefix for checkpoint in chosen).profile()
        return (RenyiProfile.of(profile) if accounting == "rdp" else profile).epsilon(delta)
    except NoGuaranteeError:
        return float(np.inf)


def inside(usable: UsableCheckpoints, look: LookSet, method: Method, most: int) -> Iterator[Recipe]:
    """Merges of the look set, the likeliest first: checkpoints, nested averages, then a lattice of weights."""
    yielded: set[str] = set()
    for recipe in _proposed(usable, look, method, most):
        if recipe.digest not in yielded:
            yielded.add(recipe.digest)
            yield recipe


def _proposed(usable: UsableCheckpoints, look: LookSet, method: Method, most: int) -> Iterator[Recipe]:
    for checkpoint in look.everything:
        yield Recipe.of({checkpoint.name: 1.0})
    if method == "select":
        return
    for together in averageable(usable, look):
        ordered = sorted(together, key=lambda r: -(r.noise.precision if r.noise is not None else 0.0))
        for count in range(2, len(ordered) + 1):
            yield precision_average(ordered[:count])
            yield Recipe.of({checkpoint.name: 1 / count for checkpoint in ordered[:count]})
        kept = [r for r in look.everything if any(r.run is other.run for other in together)]
        names = [checkpoint.name for checkpoint in (kept if len(kept) <= len(together) + 4 else together)]
        if len(names) > 1:
            for row in lattice(len(names), _resolution(len(names), most)):
                yield Recipe.of(zip(names, row.tolist(), strict=True))


def averageable(usable: UsableCheckpoints, look: LookSet) -> Iterator[list[UsableCheckpoint]]:
    for group in usable.groups:
        members = {checkpoint.run for of_run in group for checkpoint in of_run}
        if len(together := [checkpoint for checkpoint in look.latest if checkpoint.run in members]) > 1:
            yield together


def _resolution(dimension: int, most: int) -> int:
    """The finest lattice that leaves room for refining."""
    resolution = 2
    while comb(resolution + dimension, dimension - 1) <= most // 2:
        resolution += 1
    return resolution
