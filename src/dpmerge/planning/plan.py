"""A plan: what will be released, with which probabilities, what that costs by which theorem, and how it was chosen.

Guarantees: `guarantee` is recomputed from the candidates' own profiles after everything was chosen, and is within the
target; every premise is listed with who vouches for it. A plan that is not proved, or not charged, says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from dpmerge.errors import NoGuarantee
from dpmerge.planning.analysis import Accounting
from dpmerge.planning.candidates import Candidate
from dpmerge.planning.target import Guarantee
from dpmerge.portfolio.caveats import Caveat, caveats
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.portfolio.statement import own_losses
from dpmerge.privacy.exposure import Exposure
from dpmerge.privacy.premises import Premise, independent_draw, of_all
from dpmerge.privacy.profile import PrivacyProfile

SCHEMA = "dpmerge/plan/v1"

_OF_NO_CONCERN = ("correlated_checkpoints", "private_metrics")
"""Caveats about what might have been done with a run; a plan says what is."""

_OF_HIDDEN_STATE = ("updates_expand", "records_far_from_the_batch")
"""Caveats about what one theorem makes of a run; a plan by another does not ask."""


def release_caveats(
    *, premises: Iterable[Premise], kind: str, drawn: bool, without_privacy: bool, final: bool
) -> Iterator[Caveat]:
    """What a reader of a release's guarantee should know about how it was chosen and is made."""
    if failing := [p.name.replace("_", " ") for p in premises if not p.holds]:
        yield Caveat("assumed", "plan", f"not proved for these runs, it assumes: {'; '.join(failing)}")
    if kind == "uncharged":
        text = "chosen by looking at models that are not paid for: the guarantee does not cover the choice"
        yield Caveat("uncharged", "plan", text)
    if kind in ("public_evaluation", "private_validation"):
        text = "pays for this look set; nobody may have looked at other models, or chosen again after another look"
        yield Caveat("looked", "plan", text)
    if kind == "private_validation":
        text = "making this plan again draws again, and costs people in the validation set their ε again"
        yield Caveat("drawn_on_private_data", "plan", text)
    if without_privacy:
        yield Caveat("non_private", "plan", "a model without any privacy may be drawn, with a probability below δ")
    if drawn:
        text = "the guarantee holds before the draw; once it is known which candidate was drawn, its own ε holds"
        yield Caveat("ex_ante", "plan", text)
    if final:
        text = "holds only if nothing else of these runs is ever released, before or after"
        yield Caveat("final", "plan", text)


@dataclass(frozen=True, eq=False, kw_only=True)
class Plan:
    """Which candidates, drawn with which probabilities (one candidate: no draw)."""

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
    passed_over: float | None = None  # the noise-to-signal that checkpoints auto did not use would have made possible

    def __post_init__(self) -> None:
        if self.guarantee.epsilon > self.target.epsilon or self.guarantee.delta > self.target.delta:
            raise NoGuarantee(f"a plan for {self.target} that only meets {self.guarantee} is none")

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
        return any(candidate.is_final for candidate in self.candidates)

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
        yield from own_losses(run.manifest.statement for run in self.portfolio.runs if run.id in involved)
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
            "dataset": self.portfolio.dataset,
            "unit": self.portfolio.unit,
            "adjacency": self.portfolio.adjacency.value,
            "left_out": dict(self.left_out),
            "caveats": [{"name": c.name, "where": c.where, "text": c.text} for c in self.caveats],
        }


def _premise(premise: Premise) -> dict[str, Any]:
    return {"name": premise.name, "holds": premise.holds, "vouched_by": premise.vouched_by}
