"""How a charged release is to be made: everything but its terms that whoever finishes it needs, now or after a crash.

Guarantees: written down with the charge, so that whoever finishes makes the same release: the same draw, the same
terms, the same certificate. No noise and no weights are in it.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from dpmerge import __version__
from dpmerge.certificate.audited import Audited
from dpmerge.certificate.predicate import NEWEST, Hex256, Target, Version
from dpmerge.errors import DigestMismatchError, InvalidInputError
from dpmerge.ledger.charge import Charge
from dpmerge.ledger.identity import identity_of
from dpmerge.merging.adapter_starts import needed_allowances
from dpmerge.merging.gaussian_sampler import SAMPLER
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.remote.remote_path import location
from dpmerge.terms.documents import Strict, Text, validated
from dpmerge.terms.guarantee import Guarantee
from dpmerge.terms.portfolio_facts import Allowance, PortfolioFacts
from dpmerge.terms.release_terms import ReleaseTerms
from dpmerge.terms.run_record import RunId

Adapters = Literal["as_trained", "concatenated"]

SAMPLED_BY = "release noise"
"""The tool, in certificates, that makes release noise."""


class ReleaseSettings(Strict):
    """How a release is to be made."""

    portfolio: Text = Field(description="the portfolio's folder or listing")
    allow: list[Allowance] = Field(description="a list of differences that may be averaged over")
    out: Text = Field(description="the folder to be made")
    target: Target = Field(description="an object with epsilon and delta")
    facts: PortfolioFacts = Field(description="an object")
    donor: RunId | None = Field(default=None, description="the run whose configuration files are copied")
    adapters: Adapters = Field(description='"as_trained" or "concatenated"')
    reveal_draw: bool = Field(description="true or false")
    key: Text | None = Field(default=None, description="the file of the private key to sign with")
    overwrite: bool = Field(description="true or false")
    inputs: dict[Text, list[Hex256]] = Field(description="an object of checkpoints and the digests of their files")
    audit: Audited | None = Field(default=None, description="what an attack on the simulated release has shown")
    asked: dict[Text, Text] = Field(default_factory=dict, description="an object: the words it was asked for in")
    tools: dict[Text, Text] = Field(description="an object of names and versions")
    certificate_version: Version = Field(default=1, description="1, 2 or 3; version 0.1 did not say")
    nonce: Hex256 = Field(description="64 random hexadecimal digits: they blind the entry's hash, which is public")

    @classmethod
    def of(
        cls,
        portfolio: Portfolio,
        terms: ReleaseTerms,
        target: Guarantee,
        *,
        out: Path,
        donor: str | None,
        adapters: Adapters,
        reveal_draw: bool,
        key: Path | None,
        overwrite: bool,
        audit: Audited | None = None,
        asked: Mapping[str, str],
    ) -> ReleaseSettings:
        return cls(
            portfolio=str((portfolio.listing or portfolio.path).absolute()),
            allow=sorted(portfolio.allowed),  # type: ignore[arg-type]
            out=str(out),
            target=Target(epsilon=target.epsilon, delta=target.delta),
            facts=portfolio_facts(portfolio, terms, adapters),
            donor=donor,
            adapters=adapters,
            reveal_draw=reveal_draw,
            key=None if key is None else str(key.absolute()),
            overwrite=overwrite,
            inputs=input_digests(portfolio, terms),
            audit=audit,
            asked=dict(asked),
            tools={"dpmerge": __version__, **({SAMPLED_BY: SAMPLER} if _is_noisy(terms) else {})},
            certificate_version=NEWEST,
            nonce=secrets.token_hex(32),
        )

    @classmethod
    def read(cls, details: Mapping[str, Any]) -> ReleaseSettings:
        """As they were written down with the charge."""
        return validated(cls, dict(details), "details")

    @property
    def guarantee(self) -> Guarantee:
        """What was asked for."""
        return Guarantee(epsilon=self.target.epsilon, delta=self.target.delta)

    @property
    def home(self) -> Path:
        """The portfolio's folder."""
        path = location(self.portfolio)
        return path.parent if path.suffix in (".yaml", ".yml") else path

    def require_same(self, charge: Charge, portfolio: Portfolio) -> None:
        """Refuse runs that were trained, or recorded, anew since they were charged."""
        for record in charge.terms.runs:
            manifest = portfolio.run(record.run).manifest
            if manifest.statement != record or identity_of(manifest) != charge.identities[record.run]:
                problem = f"run: {record.run} is another run than was charged in release {charge.release_id}"
                file, remedy = portfolio.run(record.run).file, "bring back the run as it was recorded then"
                raise DigestMismatchError(file, "run", record.run, remedy, problem=problem)
        if input_digests(portfolio, charge.terms) != self.inputs:
            problem = f"checkpoints: they are others than were charged in release {charge.release_id}"
            remedy = "bring back the files that were recorded then"
            raise DigestMismatchError(portfolio.path, "checkpoints", None, remedy, problem=problem)

    def require_same_noise(self) -> None:
        """Refuse to draw noise by another sampler than the certificate is going to name."""
        if (stated := self.tools.get(SAMPLED_BY, SAMPLER)) != SAMPLER:
            problem = f"release noise: it was charged to be made by {stated}, and this version makes it by {SAMPLER}"
            remedy = f"finish it with dpmerge {self.tools.get('dpmerge', 'of then')}"
            raise InvalidInputError("tools", stated, remedy, problem=problem)

    def load_portfolio(self, moved_to: Path | None = None) -> Portfolio:
        """The portfolio it was charged for; weights are read, and checked, when they are merged."""
        place = self.portfolio if moved_to is None or location(self.portfolio).exists() else moved_to
        return Portfolio.load(place, contents=False, allow=self.allow)


def _is_noisy(terms: ReleaseTerms) -> bool:
    return any(each.release_noise > 0 for each in terms.candidates)


def input_digests(portfolio: Portfolio, terms: ReleaseTerms) -> dict[str, list[str]]:
    """Every checkpoint that some candidate is made of, by the recorded digests of its files."""
    return {str(each): list(portfolio.saved(str(each)).file_digests) for each in terms.inputs}


def portfolio_facts(portfolio: Portfolio, terms: ReleaseTerms, adapters: Adapters = "as_trained") -> PortfolioFacts:
    """What a certificate says of the portfolio, as far as the runs of a release are concerned."""
    averaged = {p.run for c in terms.candidates if len({q.run for q in c.parts}) > 1 for p in c.parts}
    runs = [portfolio.run(name) for name in sorted(averaged)]
    used: list[Allowance] = sorted({each for each, _ in portfolio.differences(runs)} & portfolio.allowed)  # type: ignore[arg-type]
    return PortfolioFacts(
        complete=portfolio.complete,
        allowed=needed_allowances(used, runs) if adapters == "concatenated" else used,
        unknown_start=sorted(run.id for run in runs if run.manifest.initial_weights is None),
    )
