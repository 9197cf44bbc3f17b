"""The figures of `dpmerge inspect`: what checkpoints cost, alone and all together, and which theorem applies to what.

Guarantees: an ε is given only where the records prove one, else the reason; every caveat is listed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpmerge.errors import NoGuarantee
from dpmerge.portfolio.caveats import Caveat, caveats
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.portfolio.runs import Run, SavedCheckpoint
from dpmerge.privacy import domain
from dpmerge.privacy.combination import THEOREMS, Bound, LinearCombination
from dpmerge.privacy.exposure import Checkpoint, Exposure
from dpmerge.privacy.gaussian import GaussianProfile
from dpmerge.privacy.mechanisms import DpSgd
from dpmerge.privacy.premises import Premise
from dpmerge.privacy.releases import AccountantHistory

SHOWN_THEOREMS = ("joint_release", "last_step", "hidden_state", "merged_trajectory")


@dataclass(frozen=True)
class Cost:
    """What something costs at the given δ, or why there is no number; μ where it is exactly Gaussian."""

    epsilon: float | None
    mu: float | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Scope:
    """A theorem, the checkpoints it covers when they are averaged together, and what keeps the other runs out."""

    theorem: str
    members: tuple[str, ...]
    missing: dict[str, tuple[Premise, ...]]


@dataclass(frozen=True)
class Inspection:
    """Everything `dpmerge inspect` says about a portfolio."""

    portfolio: Portfolio
    delta: float
    costs: dict[str, tuple[tuple[SavedCheckpoint, Cost], ...]]
    groups: tuple[tuple[tuple[str, ...], tuple[Scope, ...]], ...]
    everything: Cost
    caveats: tuple[Caveat, ...]

    def document(self) -> dict[str, Any]:
        """As the JSON that `--json` prints."""
        portfolio = self.portfolio
        return {
            "path": str(portfolio.path),
            "dataset": portfolio.runs[0].manifest.dataset.model_dump(exclude_none=True),
            "unit": portfolio.unit,
            "adjacency": portfolio.adjacency.value,
            "complete": portfolio.complete,
            "delta": self.delta,
            "runs": [self._run(run) for run in portfolio.runs],
            "averaging": [
                {
                    "runs": list(group),
                    "theorems": {
                        scope.theorem: {
                            "applies_to": list(scope.members),
                            "missing": {run: [p.name for p in premises] for run, premises in scope.missing.items()},
                        }
                        for scope in scopes
                    },
                }
                for group, scopes in self.groups
            ],
            "joint_release_of_everything": cost_numbers(self.everything),
            "caveats": [{"name": c.name, "where": c.where, "text": c.text} for c in self.caveats],
        }

    def _run(self, run: Run) -> dict[str, Any]:
        manifest = run.manifest
        return {
            "run": run.id,
            "mechanism": manifest.mechanism.model_dump(exclude_none=True),
            "steps": run.mechanism.steps,
            "noise": manifest.noise.source,
            "start": manifest.ancestry.start,
            "tuning": manifest.tuning,
            "finished": manifest.finished,
            "vouched_by": manifest.statement.voice,
            "checkpoints": [
                {
                    "checkpoint": saved.name,
                    "step": saved.step,
                    **cost_numbers(cost),
                    "public_metrics": {m.name: m.value for m in saved.metrics if m.measured_on == "public"},
                }
                for saved, cost in self.costs[run.id]
            ],
        }


def inspect(portfolio: Portfolio, delta: float) -> Inspection:
    """Account for every checkpoint, for all of them together, and ask each theorem what it covers."""
    domain.delta("delta", delta)
    groups = tuple(
        (tuple(run.id for run in group), tuple(scope(portfolio, group, theorem) for theorem in SHOWN_THEOREMS))
        for group in portfolio.combinable()
    )
    return Inspection(
        portfolio,
        delta,
        {run.id: tuple(zip(run.checkpoints, _costs(run, delta), strict=True)) for run in portfolio.runs},
        groups,
        cost_of([portfolio.last(run) for run in portfolio.runs], delta),
        tuple(caveats(portfolio)),
    )


def scope(portfolio: Portfolio, group: Sequence[Run], theorem: str) -> Scope:
    """Which runs of a group a theorem covers together: of each the latest checkpoint it covers alone."""
    alone: dict[Run, Checkpoint] = {}
    missing: dict[str, tuple[Premise, ...]] = {}
    for run in group:
        steps = [saved.step for saved in run.checkpoints if saved.step > 0] or [run.mechanism.steps]
        covered = next((s for s in reversed(steps) if _ask(portfolio, theorem, [run], [run.at(s)]).certifies), None)
        if covered is None:
            missing[run.id] = _failing(_ask(portfolio, theorem, [run], [run.at(steps[-1])]))
        else:
            alone[run] = run.at(covered)
    together: list[Run] = []
    if alone and _ask(portfolio, theorem, list(alone), list(alone.values())).certifies:
        together = list(alone)
    else:
        for run in alone:
            tried = [*together, run]
            bound = _ask(portfolio, theorem, tried, [alone[r] for r in tried])
            if bound.certifies:
                together = tried
            else:
                missing[run.id] = _failing(bound)
    return Scope(theorem, tuple(f"{run.id}@{alone[run].step}" for run in together), missing)


def _ask(portfolio: Portfolio, theorem: str, runs: Sequence[Run], checkpoints: Sequence[Checkpoint]) -> Bound:
    """The theorem's word on the plain average; its premises do not depend on the weights."""
    weights = [1 / len(checkpoints)] * len(checkpoints)
    voucher = portfolio.affine_voucher(runs)
    return THEOREMS[theorem](LinearCombination(checkpoints=checkpoints, weights=weights, shared_affine=voucher))


def _failing(bound: Bound) -> tuple[Premise, ...]:
    return tuple(premise for premise in bound.premises if not premise.holds)


def _costs(run: Run, delta: float) -> list[Cost]:
    """ε at each checkpoint: of a sampled run all prefixes at once."""
    steps = [saved.step for saved in run.checkpoints]
    sampled = run.mechanism.costs if isinstance(run.mechanism, AccountantHistory) else run.mechanism
    if isinstance(sampled, DpSgd) and not sampled.is_full_batch and steps:
        try:
            return [Cost(float(epsilon)) for epsilon in sampled.prefix_epsilons(delta, steps)]
        except NoGuarantee as reason:
            return [Cost(None, reason=str(reason)) for _ in steps]
    return [cost_of([run.at(step)], delta) for step in steps]


def cost_of(checkpoints: Sequence[Checkpoint], delta: float) -> Cost:
    """What looking at these checkpoints costs, or why nobody knows."""
    try:
        profile = Exposure.of(checkpoints).profile()
        return Cost(profile.epsilon(delta), profile.mu if isinstance(profile, GaussianProfile) else None)
    except NoGuarantee as reason:
        return Cost(None, reason=str(reason))


def cost_numbers(cost: Cost) -> dict[str, float | str | None]:
    """JSON has no infinity: the string "inf" stands for it."""
    numbers: dict[str, float | str | None] = {}
    for name, value in (("epsilon", cost.epsilon), ("mu", cost.mu)):
        numbers[name] = "inf" if value is not None and np.isinf(value) else value
    return {**numbers, "reason": cost.reason} if cost.reason else numbers
