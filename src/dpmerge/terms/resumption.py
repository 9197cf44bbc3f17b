"""A run that was broken off and went on: from which step, what was lost on the way, and who vouches for what.

Guarantees: steps that were taken and lost are among the run's steps, where they cost what any step costs; from there on
the weights no longer follow from every counted step, so that theorems about updates do not apply.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Literal

from pydantic import Field, model_validator

from dpmerge.accounting.premises import Premise
from dpmerge.errors import InvalidInputError
from dpmerge.terms.documents import Strict, Text

UNSEEN = "lost_steps_unseen_and_no_cause_of_the_stop"

_Count = Annotated[int, Field(ge=0, le=10**12)]


class Resumption(Strict):
    """Once that a run went on from weights it had kept."""

    after: _Count = Field(description="an integer ≥ 0: the step whose weights it went on from")
    lost_steps: _Count = Field(
        default=0,
        description="an integer ≥ 0: how many steps after it were taken and lost; they are counted as the next steps",
    )
    unseen_steps: _Count = Field(
        default=0, description="an integer ≥ 0: how many more were lost that somebody vouches nobody saw; not counted"
    )
    vouched_by: Text | None = Field(
        default=None,
        description="text: who says that nothing of the unseen steps was seen, nor did the stop depend on them",
    )
    optimizer: Literal["restored", "reset"] = Field(
        default="restored", description='"restored" (its state is that of the step) or "reset" (it began anew)'
    )

    @model_validator(mode="after")
    def _somebody_vouches(self) -> Resumption:
        if (self.unseen_steps > 0) != (self.vouched_by is not None):
            accepted = "who vouches for steps that nobody saw, and left out where there are none"
            raise InvalidInputError("vouched_by", self.vouched_by, accepted)
        return self

    @property
    def breaks(self) -> bool:
        """Whether the weights that follow are not what the counted steps, one after another, make."""
        return self.lost_steps > 0 or self.optimizer == "reset"


def unbroken_steps(resumed: Iterable[Resumption] | None) -> int | None:
    """After how many steps the updates of a run no longer follow one from another; None if they all do."""
    return next((each.after for each in resumed or () if each.breaks), None)


def require_order(resumed: Iterable[Resumption], steps: int) -> None:
    """A run goes on from steps it has, one time after another, what it lost in between counted."""
    least = 0
    for place, each in enumerate(resumed):
        if not least <= each.after <= steps - each.lost_steps:
            accepted = f"an integer from {least} to {steps - each.lost_steps}: steps of the run, with what it lost"
            raise InvalidInputError(f"resumed[{place}].after", each.after, accepted)
        least = each.after + each.lost_steps


def unseen_premises(run: str, resumed: Iterable[Resumption] | None) -> Iterator[Premise]:
    """That lost steps may be left out is somebody's word."""
    for each in resumed or ():
        if each.vouched_by is not None:
            said = f"{each.vouched_by} for {each.unseen_steps} steps of {run} after step {each.after}"
            yield Premise(UNSEEN, True, said)
