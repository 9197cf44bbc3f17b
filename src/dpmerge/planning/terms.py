"""The terms of a release: everything its cost depends on, as a document that stands by itself.

Guarantees: the cost is computed from what is written here, the mechanisms of the runs, the candidates and their
probabilities, and from nothing else: whoever has the terms can price the release again. No stored figure is believed.
Refuses: candidates of runs that are not stated, probabilities that no draw over whole numbers has, unknown fields.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

from dpmerge.documents import Strict, validated
from dpmerge.errors import InvalidInput, NoGuarantee
from dpmerge.planning.candidates import FINAL_THEOREMS
from dpmerge.planning.plan import Plan, release_caveats
from dpmerge.planning.program import UNITS
from dpmerge.planning.validation import ROUNDING_DELTA
from dpmerge.portfolio.caveats import Caveat, statement_caveats
from dpmerge.portfolio.facts import Text
from dpmerge.portfolio.portfolio import shared_map_voucher
from dpmerge.portfolio.recipe import Recipe
from dpmerge.portfolio.statement import RunId, RunStatement, own_losses, stated_mechanisms
from dpmerge.privacy.combination import THEOREMS, Bound, LinearCombination
from dpmerge.privacy.exposure import Adjacency, Checkpoint, Exposure, Mechanism
from dpmerge.privacy.gaussian import GaussianProfile
from dpmerge.privacy.premises import Premise, independent_draw, of_all
from dpmerge.privacy.profile import PrivacyProfile
from dpmerge.privacy.renyi import RenyiProfile
from dpmerge.privacy.selection import SelectionProfile

TheoremName = Literal["joint_release", "last_step", "hidden_state", "merged_trajectory", "merged_trajectory_prepended"]
StepNumber = Annotated[int, Field(ge=0)]


class Stated(Strict):
    """A part of a document whose fields are written in lowerCamelCase."""

    model_config = ConfigDict(alias_generator=to_camel, validate_by_name=True, validate_by_alias=True)


class Seen(Stated):
    """How far a run was looked at."""

    run: RunId = Field(description="the name of a stated run")
    step: StepNumber = Field(description="an integer ≥ 0")


class Part(Stated):
    """A checkpoint and its weight."""

    run: RunId = Field(description="the name of a stated run")
    step: StepNumber = Field(description="an integer ≥ 0")
    weight: Annotated[float, Field(gt=0, le=1)] = Field(description="a number in (0, 1]")


class CandidateTerms(Stated):
    """Something that may be released, and by which theorem it is priced."""

    parts: list[Part] = Field(min_length=1, description="a non-empty list of objects with run, step and weight")
    release_noise: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(description="a finite number ≥ 0")
    theorem: TheoremName = Field(description=", ".join(THEOREMS))
    seen: list[Seen] = Field(min_length=1, description="a non-empty list of objects with run and step")

    @property
    def recipe(self) -> Recipe:
        return Recipe.of(
            [(f"{part.run}@{part.step}", part.weight) for part in self.parts], release_noise=self.release_noise
        )

    @property
    def is_final(self) -> bool:
        return self.theorem in FINAL_THEOREMS


class ChoicePremise(Stated):
    """What has to be true of the choice itself, by whose word."""

    name: Text = Field(description="text")
    holds: bool = Field(description="true or false")
    vouched_by: Text = Field(description="text: who says so")


class Choice(Stated):
    """How the candidates and their probabilities were chosen."""

    kind: Literal["data_independent", "public_evaluation", "private_validation", "uncharged"] = Field(
        description='"data_independent", "public_evaluation", "private_validation" or "uncharged"'
    )
    rule: Text = Field(description="text")
    premises: list[ChoicePremise] = Field(default_factory=list, description="a list of objects with name and vouchedBy")

    @classmethod
    def stated(cls, rule: str, premise: str) -> Choice:
        """A choice by somebody's word, who vouches for not having looked."""
        return cls(
            kind="data_independent",
            rule=rule,
            premises=[ChoicePremise(name=premise, holds=True, vouched_by="whoever stated them")],
        )


class Validation(Stated):
    """What the choice cost the people of a private validation set."""

    epsilon: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(description="a finite number > 0")
    disjoint_vouched_by: Text | None = Field(
        default=None, description="text: who vouches that nobody is in both sets; left out if nobody does"
    )


class Terms(Stated):
    """The terms of one release of a portfolio."""

    dataset: Text = Field(description="text: the data's name")
    unit: Text = Field(description="text: whose privacy is protected")
    adjacency: Literal["replace_one", "add_remove"] = Field(description='"replace_one" or "add_remove"')
    accounting: Literal["pld", "rdp"] = Field(description='"pld" or "rdp"')
    runs: list[RunStatement] = Field(min_length=1, description="a non-empty list of runs as their manifests state them")
    candidates: list[CandidateTerms] = Field(min_length=1, description="a non-empty list of candidates")
    probabilities: list[Annotated[float, Field(gt=0, le=1)]] = Field(description="numbers in (0, 1], one a candidate")
    choice: Choice = Field(description="an object with kind and rule")
    validation: Validation | None = Field(default=None, description="an object with epsilon")

    @classmethod
    def of(cls, plan: Plan) -> Terms:
        """The terms of a plan."""
        portfolio = plan.portfolio
        involved = {run.label for run in plan.exposure.steps}
        sides = plan.chosen_by.get("sides")
        disjoint = [p for p in plan.further_premises if p.name == "training_and_validation_people_disjoint"]
        return cls(
            dataset=portfolio.dataset,
            unit=portfolio.unit,
            adjacency=portfolio.adjacency.value,
            accounting=plan.accounting,
            runs=[run.manifest.statement for run in portfolio.runs if run.id in involved],
            candidates=[
                CandidateTerms(
                    parts=[part_of(name, weight) for name, weight in candidate.recipe.parts],
                    release_noise=candidate.recipe.release_noise,
                    theorem=candidate.theorem,  # type: ignore[arg-type]
                    seen=[Seen(run=run, step=step) for run, step in sorted(candidate.exposed().items())],
                )
                for candidate in plan.candidates
            ],
            probabilities=list(plan.probabilities),
            choice=Choice(
                kind=plan.chosen_by["kind"],
                rule=plan.chosen_by["rule"],
                premises=[
                    ChoicePremise(name=p.name, holds=p.holds, vouched_by=p.vouched_by) for p in plan.further_premises
                ],
            ),
            validation=None
            if sides is None
            else Validation(
                epsilon=sides["validation"]["epsilon"],
                disjoint_vouched_by=disjoint[0].vouched_by if disjoint else None,
            ),
        )

    @model_validator(mode="after")
    def _consistent(self) -> Terms:
        if len({statement.run for statement in self.runs}) != len(self.runs):
            raise InvalidInput("runs", [s.run for s in self.runs], "each run once")
        _require_units(self.probabilities, len(self.candidates))
        for place, candidate in enumerate(self.candidates):
            self._require_seen(f"candidates[{place}]", candidate)
        if self.choice.kind in ("public_evaluation", "private_validation"):
            if self.is_final:
                accepted = "joint_release: a choice made by looking voids all other theorems"
                raise InvalidInput("candidates.theorem", [c.theorem for c in self.candidates], accepted)
            if len(self.candidates) > 1:
                accepted = "one candidate: a draw whose candidates were chosen by looking is not random selection"
                raise InvalidInput("candidates", len(self.candidates), accepted)
        if (self.choice.kind == "private_validation") != (self.validation is not None):
            raise InvalidInput("validation", None, "the cost of the choice, for private_validation and nothing else")
        return self

    def _require_seen(self, where: str, candidate: CandidateTerms) -> None:
        """What was looked at is stated in full: all the candidate is made of, and all that anything descends from."""
        seen = {each.run: each.step for each in candidate.seen}
        if len(seen) != len(candidate.seen):
            raise InvalidInput(f"{where}.seen", list(seen), "each run once")
        for run in (*seen, *(part.run for part in candidate.parts)):
            if run not in self.statements:
                raise InvalidInput(where, run, f"runs that are stated: {', '.join(self.statements)}")
        exposed = {run.label: step for run, step in Exposure.of(self._checkpoints(candidate)).steps.items()}
        for run, step in exposed.items():
            if seen.get(run, -1) < step:
                accepted = f"at least step {step} of {run}, which the candidate is made of or descends from"
                raise InvalidInput(f"{where}.seen", seen.get(run), accepted)
        if candidate.theorem != "joint_release" and seen != exposed:
            accepted = "what the candidate is made of, and no more, unless it is priced as a joint release"
            raise InvalidInput(f"{where}.seen", seen, accepted)
        looked = {run.label: step for run, step in self.exposure(candidate).steps.items()}
        if looked != seen:
            accepted = "every run that was looked at with all it descends from"
            raise InvalidInput(f"{where}.seen", seen, accepted)
        candidate.recipe  # noqa: B018  weights that are no recipe are refused here

    @cached_property
    def statements(self) -> dict[str, RunStatement]:
        return {statement.run: statement for statement in self.runs}

    @cached_property
    def mechanisms(self) -> Mapping[str, Mechanism]:
        return stated_mechanisms(self.statements, Adjacency(self.adjacency))

    def _checkpoints(self, candidate: CandidateTerms) -> list[Checkpoint]:
        return [Checkpoint(self.mechanisms[part.run], part.step) for part in candidate.parts]

    def exposure(self, candidate: CandidateTerms) -> Exposure:
        """All that was looked at to make a candidate."""
        return Exposure.of(Checkpoint(self.mechanisms[seen.run], seen.step) for seen in candidate.seen)

    def bound(self, candidate: CandidateTerms) -> Bound:
        """What a candidate's theorem says of it; joint release is of everything that was looked at."""
        if candidate.theorem == "joint_release":
            seen = [Checkpoint(run, step) for run, step in self.exposure(candidate).steps.items()]
            return THEOREMS["joint_release"](LinearCombination(checkpoints=seen, weights=[1 / len(seen)] * len(seen)))
        support = dict.fromkeys(part.run for part in candidate.parts)
        return THEOREMS[candidate.theorem](
            LinearCombination(
                checkpoints=self._checkpoints(candidate),
                weights=[part.weight for part in candidate.parts],
                release_noise=candidate.release_noise,
                shared_affine=shared_map_voucher(self.statements[run].mechanism for run in support),
            )
        )

    @cached_property
    def bounds(self) -> tuple[Bound, ...]:
        return tuple(self.bound(candidate) for candidate in self.candidates)

    @cached_property
    def profile(self) -> PrivacyProfile:
        """What the release costs the people the models were trained on."""
        members = []
        for candidate, bound in zip(self.candidates, self.bounds, strict=True):
            if bound.profile is None:
                missing = "; ".join(p.name.replace("_", " ") for p in bound.premises if not p.holds)
                raise NoGuarantee(f"{candidate.recipe}: {candidate.theorem} has no figure for it ({missing})")
            members.append(bound.profile)
        whole = members[0] if len(members) == 1 else SelectionProfile(tuple(members), tuple(self.probabilities))
        return RenyiProfile.of(whole) if self.accounting == "rdp" else whole

    def epsilon(self, delta: float) -> float:
        """ε at δ for one person, who may be in the training and in the validation set."""
        if self.validation is None:
            return self.profile.epsilon(delta)
        training = self.profile.epsilon(math.nextafter(delta, 0.0))
        if self.validation.disjoint_vouched_by is not None:
            return max(training, self.validation.epsilon)
        return math.nextafter(training + self.validation.epsilon, math.inf)

    def delta(self, epsilon: float) -> float:
        """δ at ε, likewise; 1 where nothing is known."""
        if self.validation is None:
            return self.profile.delta(epsilon)
        if epsilon < self.validation.epsilon:
            return 1.0
        disjoint = self.validation.disjoint_vouched_by is not None
        left = epsilon if disjoint else math.nextafter(epsilon - self.validation.epsilon, 0.0)
        return min(1.0, math.nextafter(self.profile.delta(left) + ROUNDING_DELTA, 1.0))

    @property
    def mu(self) -> float | None:
        """The one number of a Gaussian guarantee, where it is one."""
        profile = self.profile
        return profile.mu if isinstance(profile, GaussianProfile) and self.validation is None else None

    @property
    def premises(self) -> tuple[Premise, ...]:
        return of_all(self._each_premise())

    def _each_premise(self) -> Iterator[Premise]:
        for bound in self.bounds:
            yield from bound.premises
        yield from own_losses(self.runs)
        if len(self.candidates) > 1:
            yield independent_draw()
        for premise in self.choice.premises:
            yield Premise(premise.name, premise.holds, premise.vouched_by)

    @property
    def proved(self) -> bool:
        return all(premise.holds for premise in self.premises)

    @property
    def charged(self) -> bool:
        """Whether the guarantee covers how the release was chosen."""
        return self.choice.kind != "uncharged"

    @property
    def is_final(self) -> bool:
        """Whether it holds only if nothing else of these runs is ever released."""
        return any(candidate.is_final for candidate in self.candidates)

    @property
    def units(self) -> tuple[int, ...]:
        """The probabilities as whole numbers, to draw by."""
        return tuple(int(probability * UNITS) for probability in self.probabilities)

    def caveats(self, delta: float) -> list[Caveat]:
        """What a reader should know that no check can settle."""
        own = release_caveats(
            premises=self.premises,
            kind=self.choice.kind,
            drawn=len(self.candidates) > 1,
            without_privacy=any(b.profile is None or math.isinf(b.profile.epsilon(delta)) for b in self.bounds),
            final=self.is_final,
        )
        return [*own, *(caveat for statement in self.runs for caveat in statement_caveats(statement))]

    def document(self) -> dict[str, Any]:
        """As JSON values."""
        return self.model_dump(by_alias=True, exclude_none=True)


def part_of(name: str, weight: float) -> Part:
    """The part of a recipe written as run@step."""
    run, _, step = name.rpartition("@")
    if not step.isdecimal():
        raise InvalidInput("weights", name, "checkpoints as run@step")
    return validated(Part, {"run": run, "step": int(step), "weight": weight}, name)


def _require_units(probabilities: list[float], candidates: int) -> None:
    whole = [probability * UNITS for probability in probabilities]
    if len(whole) != candidates or any(not each.is_integer() for each in whole) or sum(map(int, whole)) != UNITS:
        accepted = f"{candidates} multiples of 2⁻⁵³ that sum to exactly 1"
        raise InvalidInput("probabilities", probabilities, accepted)
