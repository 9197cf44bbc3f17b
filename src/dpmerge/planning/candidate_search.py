"""All candidates for a target, laid out once, and the best plan of each method read off them.

Guarantees: the plan returned meets the target by its own accountant, recomputed from the candidates chosen. `mix` is
at least as good as `select` and as `combine` by its objective: its candidates hold both, and its program is exact.
Refuses: targets nothing in the portfolio meets, naming the smallest ε that something does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np

from dpmerge.accounting.profile import PrivacyProfile
from dpmerge.accounting.random_selection import SelectionProfile
from dpmerge.accounting.renyi import DEFAULT_ORDERS, Conversion, RenyiProfile, renyi_epsilon
from dpmerge.accounting.validation import Array
from dpmerge.errors import InvalidInputError, NoGuaranteeError
from dpmerge.planning.analysis import Accounting
from dpmerge.planning.candidate_arrays import CandidateArrays, CandidateBatch, averages, single_checkpoints
from dpmerge.planning.candidates import FINAL_NAMES, AskedTheorem, Candidate, candidate, covered, require_theorem
from dpmerge.planning.feasible_weights import mu_budget
from dpmerge.planning.objectives import LeastNoise, Objective
from dpmerge.planning.plan import Plan
from dpmerge.planning.sampled_last_steps import sampled_last_steps
from dpmerge.planning.selection_program import Mixture, best_alone, best_mixture, best_renyi_mixture
from dpmerge.planning.unreachable_targets import nothing_scored, smallest_reachable
from dpmerge.planning.usable_checkpoints import UsableCheckpoints
from dpmerge.planning.weight_search import searched
from dpmerge.portfolio.inspection import cost_of
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.terms.guarantee import Guarantee
from dpmerge.terms.recipe import Recipe
from dpmerge.terms.theorems import Theorem

Method = Literal["auto", "select", "combine", "mix"]

SIMPLICITY = 0.02
"""By this share of the score `auto` prefers plans without a draw, that lock no run, of fewer models."""

_SLACKS = (1e-9, 1e-7, 1e-5, 1e-3)
"""Shares of the target left unused, tried in turn until the recomputed cost fits."""

_JOINT = ("auto", "joint_release")
"""Asked for like this, joint release may be used."""


def require_method(method: str, theorem: str) -> None:
    """Refuse methods and theorems that do not exist, or not together."""
    if method not in get_args(Method):
        raise InvalidInputError("method", method, ", ".join(get_args(Method)))
    require_theorem(theorem)
    if method == "select" and theorem != "auto":
        raise InvalidInputError("theorem", theorem, "auto with method select: theorems are about combinations")


@dataclass(frozen=True, eq=False)
class CandidateSearch:
    """All that was computed once for a target: the candidates, by whether they are checkpoints or combinations."""

    usable: UsableCheckpoints
    target: Guarantee
    objective: Objective
    theorem: AskedTheorem
    accounting: Accounting
    singles: CandidateBatch
    combined: tuple[CandidateBatch, ...]
    conversion: Conversion = "improved"

    @classmethod
    def of(
        cls,
        usable: UsableCheckpoints,
        target: Guarantee,
        objective: Objective,
        theorem: AskedTheorem,
        accounting: Accounting,
        *,
        combining: bool = True,
        conversion: Conversion = "improved",
    ) -> CandidateSearch:
        """Lay out everything that may be chosen for a target; combinations only where they may be."""
        singles = single_checkpoints(usable)
        if not combining:
            return cls(usable, target, objective, theorem, accounting, singles, (), conversion)
        budget = _nearly_the_budget(target, accounting, conversion)
        combined = tuple(_combinations(usable, budget, objective, theorem))
        if theorem not in _JOINT and not combined:
            raise _uncovered(usable, theorem)
        return cls(usable, target, objective, theorem, accounting, singles, combined, conversion)

    def restricted(self, some: UsableCheckpoints) -> CandidateSearch | None:
        """The same search among fewer checkpoints; None if the theorem asked for covers none of them."""
        try:
            return CandidateSearch.of(
                some, self.target, self.objective, self.theorem, self.accounting, conversion=self.conversion
            )
        except NoGuaranteeError:
            return None

    def by_joint_release(self) -> CandidateSearch:
        """What a search by joint release finds, of a search by all theorems: its plans lock no run."""
        assert self.theorem == "auto", "a search by one theorem has nothing else in it"
        joint = tuple(batch for batch in self.combined if batch.theorem == "joint_release")
        return replace(self, theorem="joint_release", combined=joint)

    def plan(self, method: Method) -> Plan:
        """The best plan of one method."""
        return self.certified(method, self.allowed(method), asked=method)

    def allowed(self, method: Method) -> tuple[CandidateBatch, ...]:
        """The candidates a method may choose from."""
        if method == "select":
            return (self.singles,)
        # A theorem asked for by name is not got around by releasing one model as it is.
        only_combined = self.theorem not in _JOINT and method != "mix"
        return self.combined if only_combined else (self.singles, *self.combined)

    def without_locks(self, batches: Sequence[CandidateBatch]) -> tuple[CandidateBatch, ...]:
        """Those of them whose release leaves every run free for others."""
        return tuple(batch for batch in batches if not Theorem(batch.theorem).is_final)

    def mixture(
        self, batches: Sequence[CandidateBatch], *, drawn: bool, biased: bool, slack: float = _SLACKS[0]
    ) -> Mixture | None:
        """The best probabilities that meet the target; without a draw, the best single candidate.

        `biased`: by scores that count what speaks against a candidate, as `auto` does.
        """
        if not batches:
            return None
        scores = self._scores(batches, biased)
        candidates = CandidateArrays(tuple(batches))
        if self.accounting == "rdp":
            return self._renyi_mixture(candidates, scores, drawn, slack)
        costs, limit = candidates.deltas(self.target.epsilon), self.target.delta * (1 - slack)
        return best_mixture(costs, scores, limit) if drawn else best_alone(costs.max(axis=0), scores, limit)

    def _renyi_mixture(self, candidates: CandidateArrays, scores: Array, drawn: bool, slack: float) -> Mixture | None:
        curves, delta = candidates.curves(DEFAULT_ORDERS), self.target.delta
        if not drawn:
            return best_alone(
                renyi_epsilon(DEFAULT_ORDERS, curves, delta, self.conversion), scores, self.target.epsilon
            )
        within = self.target.epsilon * (1 - slack)
        found = best_renyi_mixture(curves, scores, within, delta, DEFAULT_ORDERS, self.conversion)
        return None if found is None else found[0]

    def _scores(self, batches: Sequence[CandidateBatch], biased: bool) -> Array:
        """Higher is better; candidates of which nothing is known are not numbers, and are never chosen."""
        scores = np.concatenate([self.objective.scores(batch, self.usable) for batch in batches])
        if biased:
            drawbacks = np.concatenate([self.objective.drawbacks(batch, self.usable) for batch in batches])
            scores = scores - SIMPLICITY * np.abs(scores) * drawbacks
        return scores

    def certified(self, method: Method, batches: Sequence[CandidateBatch], *, asked: Method) -> Plan:
        """The best plan, its candidates asked again one by one: it is within the target, or it is not returned."""
        candidates = CandidateArrays(tuple(batches))
        for slack in _SLACKS:
            mixture = self.mixture(batches, drawn=method != "combine", biased=asked == "auto", slack=slack)
            if mixture is None:
                break
            chosen = tuple(self._candidate(*candidates.entry(index)) for index in mixture.indices)
            profile = selected_profile(chosen, mixture.probabilities, self.accounting, self.conversion)
            epsilon = profile.epsilon(self.target.delta)
            if epsilon <= self.target.epsilon:
                return self._plan(method, asked, chosen, mixture.probabilities, profile, epsilon)
        raise self.out_of_reach(method, batches)

    def _candidate(self, recipe: Recipe, theorem: AskedTheorem) -> Candidate:
        return candidate(self.usable.portfolio, recipe, delta=self.target.delta, theorem=theorem)

    def _plan(
        self,
        method: Method,
        asked: Method,
        candidates: tuple[Candidate, ...],
        probabilities: tuple[float, ...],
        profile: PrivacyProfile,
        epsilon: float,
    ) -> Plan:
        return Plan(
            portfolio=self.usable.portfolio,
            target=self.target,
            guarantee=Guarantee(epsilon=epsilon, delta=self.target.delta),
            method=method,
            accounting=self.accounting,
            candidates=candidates,
            probabilities=probabilities,
            profile=profile,
            chosen_by=self.objective.document(),
            asked={"method": asked, "theorem": self.theorem, **self._further_asked},
            further_premises=self.objective.premises(),
            joint_epsilon=joint_epsilon(self.usable.portfolio, self.target.delta),
            left_out=self.usable.left_out,
            non_private=self.usable.non_private,
        )

    @property
    def _further_asked(self) -> dict[str, str]:
        """What else of the request a plan says, where it is not what plans are made by anyway."""
        return {} if self.conversion == "improved" else {"conversion": self.conversion}

    def out_of_reach(self, method: Method, batches: Sequence[CandidateBatch]) -> NoGuaranteeError | InvalidInputError:
        """Why none of these candidates meets the target, and what would."""
        if not sum(len(batch) for batch in batches):
            return NoGuaranteeError(
                f"No candidate is left to choose from by method {method}; allow more evaluations, or another method."
            )
        scored = np.isfinite(self._scores(batches, biased=False))
        if not scored.any():
            return nothing_scored(self.objective.name, predicts_noise=isinstance(self.objective, LeastNoise))
        candidates = CandidateArrays(tuple(batches))
        may_add_noise = method == "select" and self.objective.uses_release_noise
        return smallest_reachable(
            self.usable, self.target, self.accounting, candidates, scored, may_add_noise, self.conversion
        )


def _nearly_the_budget(target: Guarantee, accounting: Accounting, conversion: Conversion) -> float:
    """The μ to search weights for: a shade below the target's, so that what is found fits whatever is rounded."""
    shade = 1 - 10 * _SLACKS[0]
    by_pld = accounting == "pld"
    shaded = Guarantee(epsilon=target.epsilon * (1 if by_pld else shade), delta=target.delta * (shade if by_pld else 1))
    return mu_budget(shaded, accounting, conversion)


def _combinations(
    usable: UsableCheckpoints, mu: float, objective: Objective, theorem: AskedTheorem
) -> Iterator[CandidateBatch]:
    """The Pareto front of averages by joint release, then weights searched under each other theorem asked for."""
    fronts = []
    for front, batch in averages(usable, mu**2):
        fronts.append(front)
        if theorem in _JOINT:
            yield batch
    for name in FINAL_NAMES:
        if theorem in (name, "auto"):
            yield from searched(
                usable,
                name,
                mu,
                fronts,
                lambda batch: objective.scores(batch, usable),
                release_noise=objective.uses_release_noise,
                by_name=theorem == name,
            )
        if name == "last_step" and theorem in (name, "auto"):
            yield from sampled_last_steps(usable, mu, fronts, by_name=theorem == name)


def _uncovered(usable: UsableCheckpoints, theorem: AskedTheorem) -> NoGuaranteeError:
    last = usable.groups[0][0][-1]
    bound = covered(usable.portfolio, [last.name], theorem)
    missing = [premise.name.replace("_", " ") for premise in bound.premises if not premise.holds]
    return NoGuaranteeError(
        f"Theorem {theorem} covers none of these runs ({last.run.id} lacks: {', '.join(missing) or 'a formula'}); "
        "use auto, or a theorem that `dpmerge inspect` shows for them."
    )


def selected_profile(
    candidates: Sequence[Candidate],
    probabilities: Sequence[float],
    accounting: Accounting,
    conversion: Conversion = "improved",
) -> PrivacyProfile:
    """What drawing one of these candidates costs; one candidate costs what it costs."""
    members = tuple(candidate.profile for candidate in candidates)
    profile = members[0] if len(members) == 1 else SelectionProfile(members, tuple(probabilities))
    return RenyiProfile.of(profile).converted(conversion) if accounting == "rdp" else profile


def joint_epsilon(portfolio: Portfolio, delta: float) -> float | None:
    """What releasing everything costs; None where there is no number."""
    epsilon = cost_of([portfolio.last(run) for run in portfolio.runs], delta).epsilon
    return epsilon if epsilon is not None and np.isfinite(epsilon) else None
