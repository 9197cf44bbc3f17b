"""What is known about a portfolio as a whole, as far as a release of it is concerned."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from dpmerge.terms.caveats import Caveat, completeness_caveats, unknown_start_caveats
from dpmerge.terms.documents import Strict
from dpmerge.terms.run_record import RunId

Allowance = Literal["different_initial_weights", "different_frozen_tensors"]
"""What must be allowed by name before models that differ in it are averaged."""


class PortfolioFacts(Strict):
    """What is known about the portfolio as a whole."""

    complete: bool | None = Field(
        default=None, description="true or false: are these all runs made on this data? Left out if nobody says"
    )
    allowed: list[Allowance] = Field(default_factory=list, description="a list of differences that were averaged over")
    unknown_start: list[RunId] = Field(
        default_factory=list, description="a list of runs whose initial weights are not recorded"
    )

    def caveats(self) -> Iterator[Caveat]:
        yield from completeness_caveats(self.complete, "portfolio")
        for name in self.allowed:
            yield Caveat(name, "portfolio", f"averaged in spite of {name.replace('_', ' ')}, as allowed")
        yield from unknown_start_caveats(self.unknown_start, "portfolio")
