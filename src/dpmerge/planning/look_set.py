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

from dpmerge.errors import InvalidInput, NoGuarantee, TargetOutOfReach
from dpmerge.planning.analysis import Accounting
from dpmerge.planning.averages import precision_average
from dpmerge.planning.desk import Method
from dpmerge.planning.pool import Batch, averages, checkpoints
from dpmerge.planning.rungs import Rung, Rungs
from dpmerge.planning.target import Guarantee
from dpmerge.planning.weights import lattice, mu_budget
from dpmerge.portfolio.recipe import Recipe
from dpmerge.privacy.exposure import Exposure
from dpmerge.privacy.premises import Premise
from dpmerge.privacy.renyi import DEFAULT_ORDERS, RenyiProfile, renyi_epsilon


@dataclass(frozen=True, eq=False)
class LookSet:
    """The checkpoints that may be looked at: of each run one, and with it all earlier ones that were kept."""

    latest: tuple[Rung, ...]
    everything: tuple[Rung, ...]
    declared: bool

    @property
    def exposure(self) -> Exposure:
        return Exposure.of(rung.checkpoint for rung in self.latest)

    def premise(self) -> Premise:
        who = "whoever declared it" if self.declared else "dpmerge, which picked it by noise levels alone"
        return Premise("look_set_fixed_before_looking", True, who)


def look_set(rungs: Rungs, target: Guarantee, declared: Sequence[str] | None, accounting: Accounting) -> LookSet:
    """The look set as declared, or the one whose precision-weighted average carries the least noise, and then some."""
    if declared is not None:
        latest: dict[object, Rung] = {}
        for name in declared:
            rung = rungs[name]
            before = latest.get(rung.run)
            latest[rung.run] = rung if before is None or rung.saved.step > before.saved.step else before
        if not latest:
            raise InvalidInput("look", [], "at least one checkpoint, as run@step")
        chosen = list(latest.values())
        Exposure.of(rung.checkpoint for rung in chosen).profile()  # where there is no number, this says why
        if (cost := _joint(chosen, accounting, target.delta)) > target.epsilon:
            words = f"the look set {', '.join(rung.name for rung in chosen)}"
            raise TargetOutOfReach(target.epsilon, target.delta, cost, words, "look at less, or raise the target")
    else:
        chosen = _extended(rungs, target, _least_noisy(rungs, target, accounting), accounting)
    exposed = {rung.run: rung.saved.step for rung in chosen}
    everything = tuple(r for r in rungs.usable if r.saved.step <= exposed.get(r.run, 0))
    return LookSet(tuple(chosen), everything, declared is not None)


def _least_noisy(rungs: Rungs, target: Guarantee, accounting: Accounting) -> list[Rung]:
    best: tuple[float, Batch, int] | None = None
    singles = checkpoints(rungs)
    mu = mu_budget(target, accounting)
    for batch in (singles, *(batch for _, batch in averages(rungs, mu**2))):
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
            ((_joint([r], accounting, target.delta), r.name) for r in rungs.usable), key=lambda pair: pair[0]
        )
        if np.isinf(cost):
            raise NoGuarantee(f"none of these has a finite cost by {accounting} accounting; accepted: pld")
        raise TargetOutOfReach(target.epsilon, target.delta, cost, least)
    return _support(best[1], best[2])


def _support(batch: Batch, place: int) -> list[Rung]:
    return [rung for rung, weight in zip(batch.rungs, batch.rows[place], strict=True) if weight > 0]


def _extended(rungs: Rungs, target: Guarantee, chosen: list[Rung], accounting: Accounting) -> list[Rung]:
    """Whatever else fits the target, latest checkpoints first; sampled runs are not tried, each is a convolution."""
    if not all(rung.is_gaussian for rung in chosen):
        return chosen
    for rung in sorted(rungs.usable, key=lambda r: -r.epsilon):
        if rung.is_gaussian and np.isfinite(rung.epsilon):
            others = [other for other in chosen if other.run is not rung.run]
            later = any(other.run is rung.run and other.saved.step >= rung.saved.step for other in chosen)
            if not later and _joint([*others, rung], accounting, target.delta) <= target.epsilon:
                chosen = [*others, rung]
    return sorted(chosen, key=rungs.usable.index)


def _joint(chosen: Sequence[Rung], accounting: Accounting, delta: float) -> float:
    """ε of looking at these; infinite where nobody knows."""
    try:
        profile = Exposure.of(rung.checkpoint for rung in chosen).profile()
        return (RenyiProfile.of(profile) if accounting == "rdp" else profile).epsilon(delta)
    except NoGuarantee:
        return float(np.inf)


def inside(rungs: Rungs, look: LookSet, method: Method, most: int) -> Iterator[Recipe]:
    """Merges of the look set, the likeliest first: checkpoints, nested averages, then a lattice of weights."""
    yielded: set[str] = set()
    for recipe in _proposed(rungs, look, method, most):
        if recipe.digest not in yielded:
            yielded.add(recipe.digest)
            yield recipe


def _proposed(rungs: Rungs, look: LookSet, method: Method, most: int) -> Iterator[Recipe]:
    for rung in look.everything:
        yield Recipe.of({rung.name: 1.0})
    if method == "select":
        return
    for together in averageable(rungs, look):
        ordered = sorted(together, key=lambda r: -(r.noise.precision if r.noise is not None else 0.0))
        for count in range(2, len(ordered) + 1):
            yield precision_average(ordered[:count])
            yield Recipe.of({rung.name: 1 / count for rung in ordered[:count]})
        kept = [r for r in look.everything if any(r.run is other.run for other in together)]
        names = [rung.name for rung in (kept if len(kept) <= len(together) + 4 else together)]
        if len(names) > 1:
            for row in lattice(len(names), _resolution(len(names), most)):
                yield Recipe.of(zip(names, row.tolist(), strict=True))


def averageable(rungs: Rungs, look: LookSet) -> Iterator[list[Rung]]:
    for group in rungs.groups:
        members = {rung.run for of_run in group for rung in of_run}
        if len(together := [rung for rung in look.latest if rung.run in members]) > 1:
            yield together


def _resolution(dimension: int, most: int) -> int:
    """The finest lattice that leaves room for refining."""
    resolution = 2
    while comb(resolution + dimension, dimension - 1) <= most // 2:
        resolution += 1
    return resolution
