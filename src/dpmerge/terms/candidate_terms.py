"""What may be released, and how that was chosen: the parts of a release's terms.

Guarantees: a candidate names the checkpoints it is made of, the theorem that prices it and all that was looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Literal

from pydantic import Field

from dpmerge.terms.checkpoint_reference import CheckpointReference
from dpmerge.terms.documents import Strict, Text, made
from dpmerge.terms.recipe import Recipe
from dpmerge.terms.run_record import RunId
from dpmerge.terms.theorems import Theorem

StepNumber = Annotated[int, Field(ge=0)]


class Seen(Strict):
    """How far a run was looked at."""

    run: RunId = Field(description="the name of a stated run")
    step: StepNumber = Field(description="an integer ≥ 0")


class Part(Strict):
    """A checkpoint and its weight."""

    run: RunId = Field(description="the name of a stated run")
    step: StepNumber = Field(description="an integer ≥ 0")
    weight: Annotated[float, Field(gt=0, le=1)] = Field(description="a number in (0, 1]")

    @property
    def checkpoint(self) -> CheckpointReference:
        return CheckpointReference(self.run, self.step)


class CandidateTerms(Strict):
    """Something that may be released, and by which theorem it is priced."""

    parts: list[Part] = Field(min_length=1, description="a non-empty list of objects with run, step and weight")
    release_noise: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(description="a finite number ≥ 0")
    theorem: Annotated[Theorem, Field(strict=False)] = Field(description=", ".join(Theorem))
    seen: list[Seen] = Field(min_length=1, description="a non-empty list of objects with run and step")

    @classmethod
    def of(
        cls,
        weights: Iterable[tuple[str, float]],
        theorem: str,
        exposed: Mapping[str, int],
        *,
        release_noise: float = 0.0,
    ) -> CandidateTerms:
        """Checkpoints (run@step) and their weights, priced by a theorem, of runs looked at up to these steps."""
        parts = ((CheckpointReference.parse(name, "weights"), weight) for name, weight in weights)
        return made(
            cls,
            parts=[made(Part, run=checkpoint.run, step=checkpoint.step, weight=weight) for checkpoint, weight in parts],
            release_noise=release_noise,
            theorem=Theorem(theorem),
            seen=[Seen(run=run, step=step) for run, step in sorted(exposed.items())],
        )

    @property
    def recipe(self) -> Recipe:
        return Recipe.of([(str(part.checkpoint), part.weight) for part in self.parts], release_noise=self.release_noise)

    @property
    def is_final(self) -> bool:
        return self.theorem.is_final

    @property
    def exposed(self) -> dict[str, int]:
        """Run → the last step looked at."""
        return {seen.run: seen.step for seen in self.seen}


class ChoicePremise(Strict):
    """What has to be true of the choice itself, and who vouches for it."""

    name: Text = Field(description="text")
    holds: bool = Field(description="true or false")
    vouched_by: Text = Field(description="text: who says so")


class Choice(Strict):
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


class Validation(Strict):
    """What the choice cost the people of a private validation set."""

    epsilon: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(description="a finite number > 0")
    disjoint_vouched_by: Text | None = Field(
        default=None, description="text: who vouches that nobody is in both sets; left out if nobody does"
    )
