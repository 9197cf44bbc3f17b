"""The planner's desk: all candidates for a target laid out once, and the best plan of each method read off.

Guarantees: the plan returned meets the target by its own accountant, recomputed from the candidates chosen. `mix` is
at least as good as `select` and as `combine` by its objective: its pool holds both, and its program is exact.
Refuses: targets nothing in the portfolio meets, naming the smallest ε that something does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np

from dpmerge.errors import InvalidInput, NoGuarantee, TargetOutOfReach
from dpmerge.planning.analysis import Accounting
from dpmerge.planning.averages import Front
from dpmerge.planning.candidates import FINAL_THEOREMS, Candidate, Theorem, candidate, covered, require_theorem
from dpmerge.planning.objectives import LeastNoise, Objective
from dpmerge.planning.plan import Plan
from dpmerge.planning.pool import Batch, Pool, averages, checkpoints
from dpmerge.planning.program import Mixture, best_alone, best_mixture, best_renyi_mixture
from dpmerge.planning.rungs import Rungs
from dpmerge.planning.search import covered_rungs, searched
from dpmerge.planning.target import Guarantee
from dpmerge.planning.weights import mu_budget
from dpmerge.portfolio.inspection import cost_of
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.portfolio.recipe import Recipe
from dpmerge.privacy.domain import Array
from dpmerge.privacy.profile import PrivacyProfile
from dpmerge.privacy.renyi import DEFAULT_ORDERS, RenyiProfile, renyi_epsilon
from dpmerge.privacy.selection import SelectionProfile

Method = Literal["auto", "select", "combine", "mix"]

PREFERENCE = 0.02
"""By this share of the score `auto` prefers plans without a draw, that lock no run, of fewer models."""

FINISHED = 0.8
"""The share of a run's whole rate from which `auto` counts a checkpoint as trained."""

LESS_NOISE = 3.0
"""How many times less noise makes up, for `auto`, for checkpoints that are not."""

_SLACKS = (1e-9, 1e-7, 1e-5, 1e-3)
_SEARCHED: tuple[Theorem, ...] = ("last_step", "hidden_state", "merged_trajectory")


def require_method(method: str, theorem: str) -> None:
    if method not in get_args(Method):
        raise InvalidInput("method", method, ", ".join(get_args(Method)))
    require_theorem(theorem)
    if method == "select" and theorem != "auto":
        raise InvalidInput("theorem", theorem, "auto with method select: theorems are about combinations")


@dataclass(frozen=True, eq=False)
class Desk:
    """All that was computed once for a target: the candidates, by whether they are checkpoints or combinations."""

    rungs: Rungs
    target: Guarantee
    objective: Objective
    theorem: Theorem
    accounting: Accounting
    singles: Batch
    combined: tuple[Batch, ...]

    @classmethod
    def of(
        cls,
        usable: Rungs,
        target: Guarantee,
        objective: Objective,
        theorem: Theorem,
        accounting: Accounting,
        *,
        combining: bool = True,
    ) -> Desk:
        """Lay out everything that may be chosen for a target; combinations only where they may be."""
        if not combining:
            return cls(usable, target, objective, theorem, accounting, checkpoints(usable), ())
        # A shade below the budget, so that what is solved for it fits whatever is rounded on the way.
        shade = 1 - 10 * _SLACKS[0]
        by_pld = accounting == "pld"
        shaded = Guarantee(
            epsilon=target.epsilon * (1 if by_pld else shade), delta=target.delta * (shade if by_pld else 1)
        )
        mu = mu_budget(shaded, accounting)
        fronts: list[Front] = []
        combined: list[Batch] = []
        for front, batch in averages(usable, mu**2):
            fronts.append(front)
            combined += [batch] if theorem in ("auto", "joint_release") else []
        for name in _SEARCHED:
            if theorem in (name, "auto"):
                combined += searched(
                    usable,
                    name,
                    mu,
                    fronts,
                    lambda batch: objective.scores(batch, usable),
                    release_noise=objective.uses_release_noise,
                    by_name=theorem == name,
                )
        if theorem not in ("auto", "joint_release") and not combined:
            raise _uncovered(usable, theorem)
        return cls(usable, target, objective, theorem, accounting, checkpoints(usable), tuple(combined))

    def plan(self, method: Method) -> Plan:
        """The best plan of one method."""
        batches = self._batches(method)
        return self._settled(method, batches, asked=method)

    def preferred(self) -> Plan:
        """What `auto` means: the best mix of trained models, or nearly as good without a draw, or without locks.

        Only noise is predicted, and a checkpoint from the middle of its run may be far from where it was going; such
        ones are used where nothing else meets the target, or with LESS_NOISE.
        """
        whole = self._batches("auto")
        anything = self._mixture(whole, drawn=True, biased=True)
        if anything is None:
            raise self._out_of_reach("auto", whole)
        if isinstance(self.objective, LeastNoise) and (finished := self.rungs.at_least(FINISHED)) is not None:
            desk = self._restricted(finished)
            trained = None if desk is None else desk._mixture(desk._batches("auto"), drawn=True, biased=True)
            if desk is not None and trained is not None and abs(trained.score) <= LESS_NOISE * abs(anything.score):
                best = self._mixture(whole, drawn=True, biased=False)
                return replace(desk.preferred(), passed_over=None if best is None else -best.score)
        unlocked = tuple(batch for batch in whole if batch.theorem not in FINAL_THEOREMS)
        choices: tuple[tuple[Method, tuple[Batch, ...]], ...] = (
            ("combine", unlocked), ("mix", unlocked), ("combine", whole), ("mix", whole),
        )  # fmt: skip
        for method, batches in choices:
            found = self._mixture(batches, drawn=method == "mix", biased=True)
            if found is not None and anything.score - found.score <= PREFERENCE * abs(anything.score):
                break
        return self._settled(method, batches, asked="auto")

    def _restricted(self, some: Rungs) -> Desk | None:
        """The same with fewer checkpoints; None if the theorem asked for covers none of them."""
        try:
            return Desk.of(some, self.target, self.objective, self.theorem, self.accounting)
        except NoGuarantee:
            return None

    def _batches(self, method: Method) -> tuple[Batch, ...]:
        if method == "select":
            return (self.singles,)
        # A theorem asked for by name is not got around by releasing one model as it is.
        named = self.theorem not in ("auto", "joint_release")
        return self.combined if named and method != "mix" else (self.singles, *self.combined)

    def _mixture(
        self, batches: Sequence[Batch], *, drawn: bool, biased: bool, slack: float = _SLACKS[0]
    ) -> Mixture | None:
        """The program's answer; without a draw, the best single candidate that fits."""
        if not batches:
            return None
        scores = self._scores(batches, biased)
        limit = self.target.delta * (1 - slack)
        pool = Pool(tuple(batches))
        if self.accounting == "rdp":
            curves = pool.curves(DEFAULT_ORDERS)
            if drawn:
                found = best_renyi_mixture(
                    curves, scores, self.target.epsilon * (1 - slack), self.target.delta, DEFAULT_ORDERS
                )
                return None if found is None else found[0]
            costs = renyi_epsilon(DEFAULT_ORDERS, curves, self.target.delta, "improved")
            return best_alone(costs, scores, self.target.epsilon)
        costs = pool.deltas(self.target.epsilon)
        return best_mixture(costs, scores, limit) if drawn else best_alone(costs.max(axis=0), scores, limit)

    def _scores(self, batches: Sequence[Batch], biased: bool) -> Array:
        """Higher is better; candidates of which nothing is known are not numbers, and are never chosen."""
        scores = np.concatenate([self.objective.scores(batch, self.rungs) for batch in batches])
        if biased:
            doubts = np.concatenate([self.objective.doubts(batch, self.rungs) for batch in batches])
            scores = scores - PREFERENCE * np.abs(scores) * doubts
        return scores

    def _settled(self, method: Method, batches: Sequence[Batch], *, asked: Method) -> Plan:
        """The chosen candidates asked again, one by one: what comes out is within the target or does not come out."""
        pool = Pool(tuple(batches))
        for slack in _SLACKS:
            mixture = self._mixture(batches, drawn=method != "combine", biased=asked == "auto", slack=slack)
            if mixture is None:
                break
            candidates = tuple(self._candidate(*pool.entry(place)) for place in mixture.places)
            profile = selected_profile(candidates, mixture.probabilities, self.accounting)
            epsilon = profile.epsilon(self.target.delta)
            if epsilon <= self.target.epsilon:
                return Plan(
                    portfolio=self.rungs.portfolio,
                    target=self.target,
                    guarantee=Guarantee(epsilon=epsilon, delta=self.target.delta),
                    method=method,
                    accounting=self.accounting,
                    candidates=candidates,
                    probabilities=mixture.probabilities,
                    profile=profile,
                    chosen_by=self.objective.document(),
                    asked={"method": asked, "theorem": self.theorem},
                    further_premises=self.objective.premises(),
                    joint_epsilon=joint_epsilon(self.rungs.portfolio, self.target.delta),
                    left_out=self.rungs.left_out,
                    non_private=self.rungs.non_private,
                )
        raise self._out_of_reach(method, batches)

    def _candidate(self, recipe: Recipe, theorem: Theorem) -> Candidate:
        return candidate(self.rungs.portfolio, recipe, delta=self.target.delta, theorem=theorem)

    def _out_of_reach(self, method: Method, batches: Sequence[Batch]) -> NoGuarantee | InvalidInput:
        if not sum(len(batch) for batch in batches):
            return NoGuarantee("no candidate is left to choose from; accepted: more evaluations, or another method")
        pool, delta = Pool(tuple(batches)), self.target.delta
        known = np.isfinite(self._scores(batches, biased=False))
        if not known.any():
            accepted = "an objective that knows these checkpoints"
            if isinstance(self.objective, LeastNoise):
                accepted = "saturate, prior or public_evaluation: nobody recorded the rates and noise of these runs"
            return InvalidInput("objective", self.objective.name, accepted)
        if self.accounting == "rdp":
            epsilons = renyi_epsilon(DEFAULT_ORDERS, pool.curves(DEFAULT_ORDERS), delta, "improved")
        else:
            epsilons = pool.epsilons(delta)
        place = int(np.argmin(np.where(known, epsilons, np.inf)))
        recipe, _ = pool.entry(place)
        if np.isinf(epsilons[place]):
            return NoGuarantee(f"none of these has a finite cost by {self.accounting} accounting; accepted: pld")
        hint = ""
        noisy = self.objective.uses_release_noise and any(covered_rungs(self.rungs, "hidden_state", by_name=False))
        if method == "select" and noisy:
            hint = "method combine or mix reaches any epsilon here, by adding release noise"
        return TargetOutOfReach(self.target.epsilon, delta, float(epsilons[place]), str(recipe), hint)


def _uncovered(usable: Rungs, theorem: Theorem) -> NoGuarantee:
    last = usable.groups[0][0][-1]
    bound = covered(usable.portfolio, [last.name], theorem)
    missing = [premise.name.replace("_", " ") for premise in bound.premises if not premise.holds]
    return NoGuarantee(
        f"theorem: got {theorem}, which covers none of these runs ({last.run.id} lacks: "
        f"{', '.join(missing) or 'a formula'}); accepted: auto, or one that `dpmerge inspect` shows for them"
    )


def selected_profile(
    candidates: Sequence[Candidate], probabilities: Sequence[float], accounting: Accounting
) -> PrivacyProfile:
    """What drawing one of these candidates costs; one candidate costs what it costs."""
    members = tuple(candidate.profile for candidate in candidates)
    profile = members[0] if len(members) == 1 else SelectionProfile(members, tuple(probabilities))
    return RenyiProfile.of(profile) if accounting == "rdp" else profile


def joint_epsilon(portfolio: Portfolio, delta: float) -> float | None:
    """What releasing everything costs; None where there is no number."""
    epsilon = cost_of([portfolio.last(run) for run in portfolio.runs], delta).epsilon
    return epsilon if epsilon is not None and np.isfinite(epsilon) else None
