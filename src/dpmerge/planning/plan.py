"""A plan: what will be released, with which probabilities, what that costs by which theorem, and how it was chosen.

Guarantees: `guarantee` is recomputed from the candidates' own profiles after everything was chosen, and is within the
target; every premise is listed with who vouches for it. A plan that is not proved, or not charged, says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpmerge import notebook
from dpmerge.accounting.exposure import Exposure
from dpmerge.accounting.premises import Premise, independent_draw, of_all
from dpmerge.accounting.profile import PrivacyProfile
from dpmerge.errors import InvalidInputError, NoGuaranteeError, TargetOutOfReachError
from dpmerge.planning.analysis import Accounting
from dpmerge.planning.candidates import Candidate
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.portfolio.portfolio_caveats import caveats
from dpmerge.portfolio.trained_tensors import differently_trained
from dpmerge.remote.remote_path import location
from dpmerge.terms.candidate_terms import CandidateTerms, Choice, ChoicePremise, Validation
from dpmerge.terms.caveats import Caveat, release_caveats
from dpmerge.terms.guarantee import Guarantee
from dpmerge.terms.noise_groups import group_premises, groups_among
from dpmerge.terms.release_terms import ReleaseTerms
from dpmerge.terms.run_record import stated_premises

if TYPE_CHECKING:
    from dpmerge.planning.single_checkpoint import SingleCheckpoint
    from dpmerge.planning.suggestions import Suggestion

SCHEMA = "dpmerge/plan/v1"

_OF_NO_CONCERN = ("correlated_checkpoints", "private_metrics")
"""Caveats about what might have been done with a run; a plan says what is."""

_OF_HIDDEN_STATE = ("updates_expand", "records_far_from_the_batch")
"""Caveats about what one theorem makes of a run; a plan by another does not ask."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Plan:
    """Which candidates, drawn with which probabilities (one candidate: no draw).

    `dpm.plan` makes one; `terms` is everything its cost depends on, `guarantee` what it costs, `premises` and `caveats`
    what that rests on. `str(plan)` explains it; `document()` is what `dpmerge plan -o` saves and `Plan.load` reads.

    >>> from dpmerge import Portfolio, plan
    >>> made = plan(Portfolio.load("examples/mnist"), epsilon=0.12, delta=1e-5)
    >>> [str(candidate.recipe) for candidate in made.candidates], made.is_final
    (['average of ladder-1…4@20', 'average of ladder-1…5@20'], False)
    """

    portfolio: Portfolio
    target: Guarantee
    guarantee: Guarantee
    method: str
    accounting: Accounting
    candidates: tuple[Candidate, ...]
    probabilities: tuple[float, ...]
    profile: PrivacyProfile
    chosen_by: Mapping[str, Any]
    asked: Mapping[str, str]  # the method and theorem as they were asked for
    further_premises: tuple[Premise, ...] = ()
    joint_epsilon: float | None = None  # of everything in the portfolio; None where there is no number
    left_out: Mapping[str, str] = field(default_factory=dict)
    non_private: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()  # of whoever made it
    passed_over: float | None = None  # the noise-to-signal that checkpoints auto did not use would have made possible
    request: Mapping[str, str] = field(default_factory=dict)  # the words a release of it was asked for in
    stated: ReleaseTerms | None = None  # the terms it was made of, where it was not searched for

    def __post_init__(self) -> None:
        if self.guarantee.epsilon > self.target.epsilon or self.guarantee.delta > self.target.delta:
            raise NoGuaranteeError(f"a plan for {self.target} that only meets {self.guarantee} is none")

    @classmethod
    def of_terms(
        cls,
        portfolio: Portfolio,
        terms: ReleaseTerms,
        target: Guarantee,
        *,
        method: str = "stated",
        chosen_by: Mapping[str, Any] | None = None,
        **found: Any,
    ) -> Plan:
        """The plan of terms that somebody states, priced afresh from the portfolio's own records.

        Raises:
            InvalidInputError: the terms are not of this portfolio's runs.
            TargetOutOfReachError: they do not meet the target.
        """
        require_current(portfolio, terms, target)
        priced = zip(terms.candidates, terms.bounds, strict=True)
        return cls(
            portfolio=portfolio,
            target=target,
            guarantee=Guarantee(epsilon=terms.epsilon(target.delta), delta=target.delta),
            method=method,
            accounting=terms.accounting,
            candidates=tuple(Candidate(each.recipe, bound, terms.exposure(each), None) for each, bound in priced),
            probabilities=tuple(terms.probabilities),
            profile=terms.profile,
            chosen_by=chosen_by or {"kind": terms.choice.kind, "rule": terms.choice.rule},
            further_premises=tuple(Premise(p.name, p.holds, p.vouched_by) for p in terms.choice.premises),
            stated=terms,
            **{"asked": {"method": method, "theorem": "auto"}, **found},
        )

    @classmethod
    def load(cls, path: str | Path, portfolio: Portfolio) -> Plan:
        """The plan that `dpmerge plan -o FILE` saved; no figure of the file is believed.

        Args:
            path: the file.
            portfolio: what it is a plan of.

        Returns:
            The same plan, priced again.

        Raises:
            InvalidInputError: it is not a plan, or one of other runs.
            TargetOutOfReachError: it no longer meets its target.
        """
        from dpmerge.planning.plan_file import read_plan

        return read_plan(location(path, "plan"), portfolio)

    @cached_property
    def terms(self) -> ReleaseTerms:
        """Everything the cost of this release depends on, to be priced again by whoever reads it."""
        if self.stated is not None:
            return self.stated
        portfolio = self.portfolio
        involved = {run.label for run in self.exposure.steps}
        sides = self.chosen_by.get("sides")
        disjoint = [p for p in self.further_premises if p.name == "training_and_validation_people_disjoint"]
        return ReleaseTerms(
            dataset=portfolio.dataset,
            unit=portfolio.unit,
            adjacency=portfolio.adjacency.value,
            accounting=self.accounting,
            runs=[run.manifest.statement for run in portfolio.runs if run.id in involved],
            candidates=[
                CandidateTerms.of(
                    each.recipe.parts, each.theorem, each.exposed(), release_noise=each.recipe.release_noise
                )
                for each in self.candidates
            ],
            probabilities=list(self.probabilities),
            choice=Choice(
                kind=self.chosen_by["kind"],
                rule=self.chosen_by["rule"],
                premises=[
                    ChoicePremise(name=p.name, holds=p.holds, vouched_by=p.vouched_by) for p in self.further_premises
                ],
            ),
            validation=None
            if sides is None
            else Validation(
                epsilon=sides["validation"]["epsilon"],
                disjoint_vouched_by=disjoint[0].vouched_by if disjoint else None,
            ),
            noise_groups=self.noise_groups,
        )

    @property
    def theorem(self) -> str:
        return self.candidates[0].theorem if len(self.candidates) == 1 else "random_selection"

    @property
    def exposure(self) -> Exposure:
        """The high-water mark of every candidate that may be drawn."""
        exposure = self.candidates[0].exposure
        for candidate in self.candidates[1:]:
            exposure = exposure.joined(candidate.exposure)
        return exposure

    @property
    def proved(self) -> bool:
        return all(c.proved for c in self.candidates) and all(premise.holds for premise in self.further_premises)

    @property
    def charged(self) -> bool:
        """Whether the guarantee covers how the plan was chosen."""
        return bool(self.chosen_by["kind"] != "uncharged")

    @property
    def is_final(self) -> bool:
        """Whether the guarantee holds only if nothing else of the runs involved is ever released."""
        return self.noise_groups is not None or any(candidate.is_final for candidate in self.candidates)

    @property
    def noise_groups(self) -> list[list[str]] | None:
        """Of the runs involved, those that share a noise seed."""
        return groups_among({run.label: run for run in self.exposure.steps})

    @property
    def above_joint_release(self) -> bool:
        """Whether releasing the whole portfolio would meet the target as well."""
        return self.joint_epsilon is not None and self.joint_epsilon <= self.target.epsilon

    @property
    def premises(self) -> tuple[Premise, ...]:
        """Of all candidates together: a premise holds if it does for each."""
        return of_all(self._each_premise())

    def _each_premise(self) -> Iterator[Premise]:
        for candidate in self.candidates:
            yield from candidate.bound.premises
        involved = {run.label for run in self.exposure.steps}
        yield from stated_premises(run.manifest.statement for run in self.portfolio.runs if run.id in involved)
        yield from group_premises(self.noise_groups)
        if len(self.candidates) > 1:
            yield independent_draw()
        yield from self.further_premises

    @property
    def noise_to_signal(self) -> float | None:
        """Expected over the draw, where every candidate's is known."""
        known = [c.noise_to_signal for c in self.candidates if c.noise_to_signal is not None]
        if len(known) < len(self.candidates):
            return None
        return sum(p * ratio for p, ratio in zip(self.probabilities, known, strict=True))

    @property
    def caveats(self) -> list[Caveat]:
        """What no check can settle about the runs involved, and about the plan itself."""
        involved = {run.label for run in self.exposure.steps}
        runs = {run.id for run in self.portfolio.runs}
        hidden = any(candidate.theorem == "hidden_state" for candidate in self.candidates)
        no_concern = _OF_NO_CONCERN if hidden else (*_OF_NO_CONCERN, *_OF_HIDDEN_STATE)
        found = list(self._own_caveats())
        for caveat in caveats(self.portfolio):
            if caveat.where not in runs:
                found.append(Caveat(caveat.name, "portfolio", caveat.text))
            elif caveat.where in involved and caveat.name not in no_concern:
                found.append(caveat)
        return found

    def _own_caveats(self) -> Iterator[Caveat]:
        return release_caveats(
            premises=self.premises,
            kind=self.chosen_by["kind"],
            drawn=len(self.candidates) > 1,
            without_privacy=any(math.isinf(c.profile.epsilon(self.target.delta)) for c in self.candidates),
            final=self.is_final,
        )

    def __repr__(self) -> str:
        outcomes = zip(self.probabilities, self.candidates, strict=True)
        words = "; ".join(f"{p:.4g}: {c.recipe}" if p < 1 else str(c.recipe) for p, c in outcomes)
        marks = ("" if self.proved else ", not proved") + ("" if self.charged else ", not paid for")
        return (
            f"Plan({words}; ε = {self.guarantee.epsilon:.6g} at δ = {self.guarantee.delta:g} by {self.theorem}{marks})"
        )

    def __str__(self) -> str:
        """As `dpmerge plan` explains it."""
        from dpmerge.planning.plan_table import explained

        return explained(self)

    @cached_property
    def single_checkpoint(self) -> SingleCheckpoint | None:
        """The least private finished checkpoint within the target: what there was before; None if none meets it."""
        from dpmerge.planning.single_checkpoint import single_checkpoint

        return single_checkpoint(self)

    @cached_property
    def notes(self) -> list[str]:
        """What to know before releasing it: averages that may be poor, what was left out, a δ that is too large."""
        from dpmerge.planning.plan_notes import plan_notes

        return [*self.remarks, *plan_notes(self)]

    def _repr_html_(self) -> str:
        """In a notebook."""
        return notebook.cell_html(self)

    def plot(self) -> Any:
        """δ at each ε: what the plan promises beside what its candidates would, as a figure of plotly."""
        return notebook.figure(self)

    def to_frame(self) -> Any:
        """Its candidates as a frame of pandas: probability, recipe, own ε, theorem, predicted noise."""
        return notebook.frame(self)

    def suggestions(self) -> list[Suggestion]:
        """What one more run or checkpoint would save: plans up to eight times, so only when asked.

        Returns:
            At most two, each in words and with the share of the noise it saves; none for plans not made by noise.
        """
        from dpmerge.planning.suggestions import suggestions

        return suggestions(self)

    def document(self) -> dict[str, Any]:
        """As `dpmerge plan --json` prints it and `-o` saves it."""
        delta = self.target.delta
        joint = self.joint_epsilon
        return {
            "schema": SCHEMA,
            "target": {"epsilon": self.target.epsilon, "delta": delta},
            "guarantee": {"epsilon": self.guarantee.epsilon, "delta": self.guarantee.delta},
            "asked": dict(self.asked),
            "method": self.method,
            "theorem": self.theorem,
            "accounting": self.accounting,
            "candidates": [candidate.document(delta) for candidate in self.candidates],
            "probabilities": list(self.probabilities),
            "chosen_by": {
                **self.chosen_by,
                "premises": [_premise(p) for p in self.further_premises],
            },
            "premises": [_premise(p) for p in self.premises],
            "exposure": {run.label: step for run, step in self.exposure.steps.items()},
            "proved": self.proved,
            "charged": self.charged,
            "final": self.is_final,
            "noise_to_signal": self.noise_to_signal,
            "joint_release_of_everything": joint,
            "above_joint_release": self.above_joint_release,
            "single_checkpoint": None if self.single_checkpoint is None else self.single_checkpoint.document(),
            "notes": self.notes,
            "dataset": self.portfolio.dataset,
            "unit": self.portfolio.unit,
            "adjacency": self.portfolio.adjacency.value,
            "left_out": dict(self.left_out),
            "caveats": [{"name": c.name, "where": c.where, "text": c.text} for c in self.caveats],
        }


def require_current(portfolio: Portfolio, terms: ReleaseTerms, target: Guarantee) -> None:
    """Refuse terms that are not of this portfolio as it is now, or that do not meet the target."""
    for candidate in terms.candidates:
        runs = list(dict.fromkeys(portfolio.run(part.run) for part in candidate.parts))
        portfolio.require_combinable(runs)
        if candidate.is_final and (reason := differently_trained(runs)) is not None:
            raise reason
        for part in candidate.parts:
            portfolio.saved(str(part.checkpoint))
    groups = groups_among({record.run: portfolio.run(record.run).mechanism for record in terms.runs})
    if groups != terms.noise_groups:
        accepted = f"{groups or 'none'}: as the seeds of the manifests have it"
        raise InvalidInputError("noise_groups", terms.noise_groups, accepted)
    for record in terms.runs:
        if portfolio.run(record.run).manifest.statement != record:
            accepted = f"what the manifest of {record.run} says"
            raise InvalidInputError(f"runs.{record.run}", None, accepted, found="something else")
    epsilon = terms.epsilon(target.delta)
    if not epsilon <= target.epsilon:
        words = " or ".join(str(each.recipe) for each in terms.candidates[:3])
        raise TargetOutOfReachError(target.epsilon, target.delta, epsilon, words)


def _premise(premise: Premise) -> dict[str, Any]:
    return {"name": premise.name, "holds": premise.holds, "vouched_by": premise.vouched_by}
