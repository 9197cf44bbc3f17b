"""The figures of `dpmerge inspect`: what checkpoints cost, alone and all together, and which theorem applies to what.

Guarantees: an ε is given only where the records prove one, else the reason; every caveat is listed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np

from dpmerge import notebook
from dpmerge.accounting import validation
from dpmerge.accounting.combination import THEOREMS, Bound, LinearCombination
from dpmerge.accounting.exposure import Checkpoint, Exposure
from dpmerge.accounting.gaussian import GaussianProfile
from dpmerge.accounting.mechanisms import DpSgd
from dpmerge.accounting.one_shot_mechanisms import AccountantHistory
from dpmerge.accounting.premises import Premise
from dpmerge.accounting.rounding import format_up
from dpmerge.accounting.training_settings import Sampling
from dpmerge.console import PlainConsole
from dpmerge.errors import InvalidInputError, NoGuaranteeError
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.portfolio.portfolio_caveats import caveats
from dpmerge.portfolio.recorded_runs import Run, SavedCheckpoint
from dpmerge.portfolio.trained_tensors import of_the_same_tensors
from dpmerge.terms.caveats import Caveat
from dpmerge.terms.checkpoint_reference import CheckpointReference
from dpmerge.terms.portfolio_facts import Allowance
from dpmerge.terms.theorems import NAMED

TABLE_WIDTH = 100


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
    """Everything `dpmerge inspect` says about a portfolio; `str()` is its tables, `document()` its figures as JSON."""

    portfolio: Portfolio
    delta: float
    costs: dict[str, tuple[tuple[SavedCheckpoint, Cost], ...]]
    groups: tuple[tuple[tuple[str, ...], tuple[Scope, ...]], ...]
    everything: Cost
    caveats: tuple[Caveat, ...]

    def __str__(self) -> str:
        from dpmerge.portfolio.inspection_table import print_inspection  # which is written in terms of this class

        text = StringIO()
        print_inspection(self, PlainConsole(file=text, width=TABLE_WIDTH))
        return "\n".join(line.rstrip() for line in text.getvalue().splitlines())

    def __repr__(self) -> str:
        together = "no figure" if self.everything.epsilon is None else f"ε = {format_up(self.everything.epsilon)}"
        count = sum(map(len, self.costs.values()))
        place = str(self.portfolio.path)
        return f"Inspection({place!r}: {count} checkpoints; everything at once: {together} at δ = {self.delta:g})"

    def _repr_html_(self) -> str:
        """In a notebook."""
        return notebook.cell_html(self)

    def to_frame(self) -> Any:
        """Its checkpoints as a frame of pandas, with what each costs."""
        return notebook.frame(self)

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


def inspect(
    portfolio: Portfolio | str | Path,
    delta: float = 1e-5,
    *,
    headers_only: bool = False,
    rehash: bool = False,
    allow: Iterable[Allowance] = (),
) -> Inspection:
    """Account for every checkpoint, for all of them together, and ask each theorem what it covers.

    Args:
        portfolio: A portfolio, or where it is: a folder of runs, one run's folder, or a `portfolio.yaml`; or a URL, of
            which headers alone are read, and what is remembered of its weights.
        delta: The δ at which every ε is given.
        headers_only: Do not read the weights of a portfolio that is given by its place: faster, but digests are not
            checked, and a caveat says so.
        rehash: Read every byte of a portfolio that is given by its place, whatever is remembered of its files.
        allow: Differences in spite of which models of a portfolio given by its place are averaged:
            `different_initial_weights`, `different_frozen_tensors`.

    Returns:
        What each checkpoint costs alone, what all cost together, which theorem covers which average, and every caveat.

    Raises:
        PortfolioError: If the portfolio cannot be used; which file and field, and what would be accepted.
        InvalidInputError: If δ is not between 0 and 1, or a loaded portfolio is to be loaded otherwise.

    Example:
        >>> found = inspect("examples/probe", delta=1e-5)
        >>> [run["run"] for run in found.document()["runs"]]
        ['s16', 's32', 's64']
        >>> str(found).splitlines()[0]
        '3 runs on mnist-train (60,000 records)'
    """
    validation.delta("delta", delta)
    if not isinstance(portfolio, Portfolio):
        portfolio = Portfolio.load(portfolio, contents=False if headers_only else None, rehash=rehash, allow=allow)
    elif headers_only or rehash or tuple(allow):
        problem = "portfolio: it is loaded already, with headers_only and allow of its own"
        raise InvalidInputError("portfolio", portfolio, "pass the place of its files instead", problem=problem)
    groups = tuple(
        (tuple(run.id for run in group), tuple(scope(portfolio, group, theorem.value) for theorem in NAMED))
        for group in portfolio.combinable()
    )
    return Inspection(
        portfolio,
        delta,
        {run.id: tuple(zip(run.checkpoints, checkpoint_costs(run, delta), strict=True)) for run in portfolio.runs},
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
    return Scope(theorem, tuple(str(CheckpointReference(run.id, alone[run].step)) for run in together), missing)


def _ask(portfolio: Portfolio, theorem: str, runs: Sequence[Run], checkpoints: Sequence[Checkpoint]) -> Bound:
    """The theorem's word on the plain average; its premises do not depend on the weights."""
    weights = [1 / len(checkpoints)] * len(checkpoints)
    voucher = portfolio.affine_voucher(runs)
    average = LinearCombination(checkpoints=checkpoints, weights=weights, shared_affine=voucher)
    return of_the_same_tensors(THEOREMS[theorem](average), runs)


def _failing(bound: Bound) -> tuple[Premise, ...]:
    return tuple(premise for premise in bound.premises if not premise.holds)


def checkpoint_costs(run: Run, delta: float) -> list[Cost]:
    """ε at each checkpoint: of a sampled run all prefixes at once."""
    steps = [saved.step for saved in run.checkpoints]
    sampled = run.mechanism.costs if isinstance(run.mechanism, AccountantHistory) else run.mechanism
    shuffled = isinstance(sampled, DpSgd) and sampled.sampling is Sampling.SHUFFLED
    if isinstance(sampled, DpSgd) and not sampled.is_full_batch and not shuffled and steps:
        try:
            return [Cost(float(epsilon)) for epsilon in sampled.prefix_epsilons(delta, steps)]
        except NoGuaranteeError as reason:
            return [Cost(None, reason=str(reason)) for _ in steps]
    return [cost_of([run.at(step)], delta) for step in steps]


def cost_of(checkpoints: Sequence[Checkpoint], delta: float) -> Cost:
    """What looking at these checkpoints costs, or why nobody knows."""
    try:
        profile = Exposure.of(checkpoints).fixed_steps_profile()
        return Cost(profile.epsilon(delta), profile.mu if isinstance(profile, GaussianProfile) else None)
    except NoGuaranteeError as reason:
        return Cost(None, reason=str(reason))


def cost_numbers(cost: Cost) -> dict[str, float | str | None]:
    """JSON has no infinity: the string "inf" stands for it."""
    numbers: dict[str, float | str | None] = {}
    for name, value in (("epsilon", cost.epsilon), ("mu", cost.mu)):
        numbers[name] = "inf" if value is not None and np.isinf(value) else value
    return {**numbers, "reason": cost.reason} if cost.reason else numbers
