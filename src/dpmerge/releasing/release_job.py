"""What it takes to make a release that has been charged: the charge, its inputs, and who does the work."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from securesystemslib.signer import CryptoSigner

from dpmerge.certificate.keys import read_private
from dpmerge.errors import InvalidInputError
from dpmerge.ledger.charge import Charge
from dpmerge.ledger.ledger import Ledger
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.releasing.settings import ReleaseSettings
from dpmerge.terms.candidate_terms import CandidateTerms

Progress = Callable[[int, int], object]
"""Told how many bytes of how many are done."""
Unlock = Callable[[Path], CryptoSigner]
"""Reads the private key in a file."""


@dataclass(frozen=True, kw_only=True)
class ReleaseJob:
    """A charged release that is to be made, or found made."""

    ledger: Ledger
    charge: Charge
    portfolio: Portfolio
    jobs: int = 2
    executor: Executor | None = None
    progress: Progress | None = None
    unlock: Unlock = read_private

    @cached_property
    def settings(self) -> ReleaseSettings:
        """As they were written down with the charge."""
        return ReleaseSettings.read(self.charge.details)

    @property
    def drawn(self) -> CandidateTerms:
        """The candidate that this release is."""
        return drawn(self.charge)

    def require_same_runs(self) -> None:
        """Refuse runs that were trained, or recorded, anew since they were charged."""
        self.settings.require_same(self.charge, self.portfolio)


def drawn(charge: Charge) -> CandidateTerms:
    """The candidate that was drawn for a release."""
    if charge.index is None:
        problem = f"release {charge.release_id} was adopted from its certificate: what was drawn is not known"
        raise InvalidInputError("release", charge.release_id, "copy its output instead", problem=problem)
    return charge.terms.candidates[charge.index]
