"""A plan's file: what `dpmerge plan -o FILE` writes, read back and priced again.

Guarantees: the release is priced afresh from the portfolio's own records; no figure of the file is believed.
Refuses: files that are no plans, plans that name other runs than the portfolio has, or that no longer meet their
target.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from dpmerge.accounting.exposure import AdjacencyName
from dpmerge.errors import InvalidInputError
from dpmerge.files import read_bytes
from dpmerge.planning.plan import SCHEMA, Plan
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.terms.candidate_terms import CandidateTerms, Choice, ChoicePremise, StepNumber, Validation
from dpmerge.terms.checkpoint_reference import CheckpointReference
from dpmerge.terms.documents import NonNegative, Strict, Text, made, schema_of, strict_json, validated
from dpmerge.terms.guarantee import Guarantee
from dpmerge.terms.noise_groups import groups_among
from dpmerge.terms.release_terms import ReleaseTerms
from dpmerge.terms.run_record import ADJACENCY, RunId
from dpmerge.terms.theorems import Theorem

_DERIVED = "computed again when the plan is read"


class PlannedTarget(Strict):
    """An (ε, δ)."""

    epsilon: NonNegative = Field(description="a finite number ≥ 0")
    delta: Annotated[float, Field(gt=0, lt=1)] = Field(description="a number in (0, 1)")


class PlannedCandidate(Strict):
    """Something that may be released."""

    weights: dict[Text, float] = Field(min_length=1, description="an object: run@step and its weight")
    release_noise: NonNegative = Field(description="a finite number ≥ 0")
    theorem: Annotated[Theorem, Field(strict=False)] = Field(description=", ".join(Theorem))
    exposure: dict[RunId, StepNumber] = Field(min_length=1, description="an object: run and the last step looked at")
    proved: Any = Field(default=None, description=_DERIVED)
    epsilon: Any = Field(default=None, description=_DERIVED)
    mu: Any = Field(default=None, description=_DERIVED)
    noise_to_signal: Any = Field(default=None, description=_DERIVED)
    lipschitz: Any = Field(default=None, description=_DERIVED)

    def terms(self) -> CandidateTerms:
        return CandidateTerms.of(self.weights.items(), self.theorem, self.exposure, release_noise=self.release_noise)


class SideCost(Strict):
    """What a choice by private validation costs one side."""

    epsilon: NonNegative = Field(description="a finite number ≥ 0")
    delta: NonNegative | None = Field(default=None, description="a number in [0, 1]")


class PlannedChoice(Strict):
    """How the candidates were chosen; objectives may add what they looked at."""

    model_config = ConfigDict(extra="allow")

    kind: Literal["data_independent", "public_evaluation", "private_validation", "uncharged"] = Field(
        description='"data_independent", "public_evaluation", "private_validation" or "uncharged"'
    )
    rule: Text = Field(description="text")
    premises: list[ChoicePremise] = Field(description="a list of objects with name, holds and vouched_by")
    sides: dict[Text, Any] | None = Field(default=None, description="an object with validation and training")

    @property
    def validation(self) -> Validation | None:
        """What the choice cost the people of a private validation set."""
        if self.sides is None:
            return None
        cost = validated(SideCost, self.sides.get("validation"), "chosen_by.sides.validation")
        disjoint = [p.vouched_by for p in self.premises if p.name == "training_and_validation_people_disjoint"]
        return made(Validation, epsilon=cost.epsilon, disjoint_vouched_by=disjoint[0] if disjoint else None)


class PlanFile(Strict):
    """A plan, as it is saved."""

    schema_: Literal["dpmerge/plan/v1"] = Field(alias="schema", description=f"{SCHEMA}, as `dpmerge plan -o` writes it")
    target: PlannedTarget = Field(description="an object with epsilon and delta")
    dataset: Text = Field(description="text: the data's name")
    unit: Text = Field(description="text: whose privacy is protected")
    adjacency: AdjacencyName = Field(description=ADJACENCY)
    accounting: Literal["pld", "rdp"] = Field(description='"pld" or "rdp"')
    asked: dict[Text, Text] = Field(default_factory=dict, description="an object: the method and theorem asked for")
    method: Text = Field(default="stated", description="text: the method that found it")
    candidates: list[PlannedCandidate] = Field(min_length=1, description="a non-empty list of candidates")
    probabilities: list[float] = Field(description="numbers in (0, 1], one a candidate")
    chosen_by: PlannedChoice = Field(description="an object with kind, rule and premises")
    left_out: dict[Text, Any] = Field(default_factory=dict, description="an object: runs that cannot be used, and why")
    joint_release_of_everything: Any = Field(default=None, description="ε of the whole portfolio, where there is one")
    guarantee: Any = Field(default=None, description=_DERIVED)
    theorem: Any = Field(default=None, description=_DERIVED)
    premises: Any = Field(default=None, description=_DERIVED)
    exposure: Any = Field(default=None, description=_DERIVED)
    proved: Any = Field(default=None, description=_DERIVED)
    charged: Any = Field(default=None, description=_DERIVED)
    final: Any = Field(default=None, description=_DERIVED)
    noise_to_signal: Any = Field(default=None, description=_DERIVED)
    above_joint_release: Any = Field(default=None, description=_DERIVED)
    single_checkpoint: Any = Field(default=None, description=_DERIVED)
    notes: Any = Field(default=None, description=_DERIVED)
    caveats: Any = Field(default=None, description=_DERIVED)

    def plan(self, portfolio: Portfolio) -> Plan:
        """The plan it is, of this portfolio."""
        involved = {run for each in self.candidates for run in each.exposure}
        involved |= {CheckpointReference.parse(n, "weights").run for each in self.candidates for n in each.weights}
        if unknown := sorted(involved - {run.id for run in portfolio.runs}):
            known = ", ".join(run.id for run in portfolio.runs)
            raise InvalidInputError("candidates", unknown[0], f"runs of this portfolio: {known}")
        subject = {"dataset": portfolio.dataset, "unit": portfolio.unit, "adjacency": portfolio.adjacency.value}
        for name, value in subject.items():
            if getattr(self, name) != value:
                raise InvalidInputError(name, getattr(self, name), f"{value!r}, as in the portfolio")
        terms = made(
            ReleaseTerms,
            dataset=self.dataset,
            unit=self.unit,
            adjacency=self.adjacency,
            accounting=self.accounting,
            runs=[run.manifest.statement for run in portfolio.runs if run.id in involved],
            candidates=[each.terms() for each in self.candidates],
            probabilities=self.probabilities,
            choice=Choice(kind=self.chosen_by.kind, rule=self.chosen_by.rule, premises=self.chosen_by.premises),
            validation=self.chosen_by.validation,
            noise_groups=groups_among({run.id: run.mechanism for run in portfolio.runs if run.id in involved}),
        )
        target = Guarantee(epsilon=self.target.epsilon, delta=self.target.delta)
        target.require_target()
        chosen_by = self.chosen_by.model_dump(exclude_none=True, exclude={"premises"})
        joint = self.joint_release_of_everything
        return Plan.of_terms(
            portfolio,
            terms,
            target,
            method=self.method,
            chosen_by=chosen_by,
            asked=self.asked,
            left_out={name: str(reason) for name, reason in self.left_out.items()},
            joint_epsilon=joint if isinstance(joint, float) else None,
        )


def read_plan(path: Path, portfolio: Portfolio) -> Plan:
    """The plan in a file, of this portfolio."""
    try:
        document = strict_json(read_bytes(path), "plan")
        return validated(PlanFile, document, "plan").plan(portfolio)
    except InvalidInputError as error:
        if type(error) is not InvalidInputError:
            raise
        problem = None if error.problem is None else f"{path}: {error.problem}"
        raise InvalidInputError(
            f"{path}: {error.field}", error.value, error.accepted, found=error.found, problem=problem
        ) from None


def plan_schema() -> dict[str, Any]:
    """The published JSON Schema of a plan."""
    return schema_of(PlanFile, SCHEMA, "A plan: what to release, and why")
