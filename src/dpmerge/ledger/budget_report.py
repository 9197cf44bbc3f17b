"""The budget of one scope: what was released, what it has cost, what is left under its cap.

Guarantees: ε is of the joint release of the high-water mark together with each final release's own bound, which are
independent because final releases lock their runs; validations add to it. None where no theorem gives a number.
It is of what was drawn; whether it held before anything was drawn is what a cap is for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpmerge.accounting import validation
from dpmerge.accounting.composition import compose
from dpmerge.errors import NoGuaranteeError
from dpmerge.ledger.cap_setting import cap_in
from dpmerge.ledger.caps import Cap, gaussian_budget, renyi_budget, room
from dpmerge.ledger.charge import Charge
from dpmerge.ledger.entries import BudgetScope
from dpmerge.ledger.scope_state import ScopeState
from dpmerge.terms.checkpoint_reference import CheckpointReference
from dpmerge.terms.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class RunBudget:
    """How far a run was looked at, and whether it may be again; `ceiling` is how far it may be."""

    name: str
    identity: str
    step: int
    locked_by: str | None
    ceiling: int | None


@dataclass(frozen=True, kw_only=True)
class ReleaseLine:
    """One release in a list of them."""

    release_id: str
    seq: int
    time: str
    status: str
    final: bool
    adopted: bool
    candidates: int
    index: int | None
    recipe: str
    theorem: str
    key: str | None
    where: str | None


@dataclass(frozen=True)
class BudgetLeft:
    """What is left under a cap, in the currency of its privacy filter.

    `epsilon` is about what a release of unseen runs may cost, at the cap's δ; None where the filter does not tell.
    """

    currency: str
    limit: float
    spent: float
    epsilon: float | None = None

    @property
    def left(self) -> float:
        return max(0.0, self.limit - self.spent)


@dataclass(frozen=True, kw_only=True)
class BudgetReport:
    """One budget scope, now. `epsilon` is None where there is no number, and `why` says why.

    `releases` are the newest of all `release_count`, or all.
    """

    scope: BudgetScope
    delta: float
    epsilon: float | None
    why: str | None
    cap: Cap | None
    left: BudgetLeft | None
    runs: tuple[RunBudget, ...]
    release_count: int
    releases: tuple[ReleaseLine, ...]
    caveats: tuple[str, ...]


def budget_report(
    state: ScopeState, delta: float, others: Sequence[BudgetScope], *, newest: int | None = None
) -> BudgetReport:
    """What a scope has cost so far; of its releases, so many of the newest are listed, or all."""
    validation.delta("delta", delta)
    epsilon, why = _epsilon(state, delta)
    ceiling = {} if state.cap is None else {run["identity"]: run["step"] for run in state.cap["ceiling"]}
    seen = sorted({*state.exposed, *state.locks, *ceiling}, key=lambda run: (state.runs[run].name, run))
    return BudgetReport(
        scope=state.scope,
        delta=delta,
        epsilon=epsilon,
        why=why,
        cap=None if state.cap is None else cap_in(state.cap),
        left=_left(state),
        runs=tuple(
            RunBudget(
                name=state.runs[run].name,
                identity=run,
                step=state.exposed.get(run, 0),
                locked_by=state.locks.get(run),
                ceiling=ceiling.get(run),
            )
            for run in seen
        ),
        release_count=len(state.releases),
        releases=tuple(map(_line, state.releases.newest(newest))),
        caveats=tuple(_caveats(state, others)),
    )


def _epsilon(state: ScopeState, delta: float) -> tuple[float | None, str | None]:
    try:
        state.prices.require_independent(state.exposed)
        profiles = [state.prices.joint(state.high_water)]
        for release_id in state.finals:
            release = state.releases[release_id]
            counted = release.terms.counted_profile(release.body["index"])
            if counted is None:
                raise NoGuaranteeError(f"release {release_id}: its theorem gives no number")
            profiles.append(counted)
        training = compose(profiles).epsilon(delta)
    except NoGuaranteeError as reason:
        return None, str(reason)
    if not math.isfinite(training):
        return None, "a model that was trained without privacy was released"
    # Someone in a validation set that is apart from the training set has paid for validations only.
    total = max(training, state.validation_apart) + state.validation
    return (total if state.validation == 0 else math.nextafter(total, math.inf)), None


def _left(state: ScopeState) -> BudgetLeft | None:
    if state.cap is None:
        return None
    epsilon, delta, order = (state.cap[name] for name in ("epsilon", "delta", "order"))
    if state.cap["rule"] == "gaussian_filter":
        try:
            spent = state.prices.squared_mu(state.high_water) + state.spent
        except NoGuaranteeError:  # an adopted release the filter cannot count
            spent = math.inf
        limit = gaussian_budget(epsilon, delta)
        return BudgetLeft("μ²", limit, spent, epsilon=room(limit, spent, delta))
    if state.cap["rule"] == "renyi_filter":
        return BudgetLeft(f"Rényi divergence of order {order:g}", renyi_budget(epsilon, delta, order), state.spent)
    ceiling = {run["identity"]: run["step"] for run in state.cap["ceiling"]}
    taken = sum(min(state.exposed.get(run, 0), step) for run, step in ceiling.items())
    return BudgetLeft("steps of the ceiling", float(sum(ceiling.values())), float(taken))


def _line(release: Charge) -> ReleaseLine:
    body = release.body
    index, candidates = body["index"], body["terms"]["candidates"]
    shown = candidates if index is None else [candidates[index]]
    return ReleaseLine(
        release_id=release.release_id,
        seq=release.entry.seq,
        time=release.entry.time,
        status=release.status,
        final=body["final"],
        adopted=release.adopted,
        candidates=len(candidates),
        index=index,
        recipe=" or ".join(str(_recipe(candidate)) for candidate in shown),
        theorem=", ".join(sorted({c["theorem"] for c in shown})),
        key=body["key"],
        where=None if release.output is None else release.output.where,
    )


def _recipe(candidate: Mapping[str, Any]) -> Recipe:
    parts = [(str(CheckpointReference(part["run"], part["step"])), part["weight"]) for part in candidate["parts"]]
    return Recipe.of(parts, release_noise=candidate["release_noise"])


def _caveats(state: ScopeState, others: Sequence[BudgetScope]) -> Iterator[str]:
    if state.uncharged:
        yield f"ε does not cover how {len(state.uncharged)} of the releases were chosen"
    if state.cap is not None and state.cap["releases_before"]:
        before = state.cap["releases_before"]
        yield f"releases before the cap was set: {before}; it holds only if whoever set it did not look at them"
    if state.conflict is not None:
        yield f"the cap, if any, cannot be vouched for: {state.conflict}"
    if adopted := sum(row.adopted for row in state.releases.rows()):
        yield f"adopted after entries were lost: {adopted}; others may be missing"
    if unsigned := sum(row.unsigned for row in state.releases.rows()):
        yield f"adopted with no signature: {unsigned}; all runs count as released, private validations of theirs do not"
    if state.accepted:
        yield "entries were lost; somebody vouched that what is counted here is all: others may be missing"
    if same := [other for other in others if other.dataset == state.scope.dataset]:
        yield f"the same data has other budget scopes, whose releases are not counted here: {', '.join(map(str, same))}"
    if len(state.releases) > 1 and state.cap is None:
        yield "ε is of what was drawn; where later releases were chosen after earlier ones, only a cap is a guarantee"
