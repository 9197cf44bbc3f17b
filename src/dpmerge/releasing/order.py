"""An order: all that is needed to make a release that has been charged, now or after a crash.

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
from dpmerge.certificate.commitments import CertifiedFile, commitment, release_salt, salt_of
from dpmerge.certificate.predicate import (
    NEWEST,
    Declared,
    Hex256,
    Input,
    LedgerEntry,
    PortfolioFacts,
    Target,
    Version,
    input_names,
)
from dpmerge.documents import validated
from dpmerge.errors import DigestMismatch
from dpmerge.ledger.identity import identity_of
from dpmerge.ledger.request import Charged
from dpmerge.planning.planned import Planned
from dpmerge.planning.terms import Stated, Terms
from dpmerge.portfolio.facts import Text
from dpmerge.portfolio.listing import Allowance
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.portfolio.statement import RunId

Adapters = Literal["as_trained", "concatenated"]


class Order(Stated):
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
    asked: dict[Text, Text] = Field(default_factory=dict, description="an object: in whose words it was asked for")
    tools: dict[Text, Text] = Field(description="an object of names and versions")
    certificate_version: Version = Field(default=1, description="1 or 2; what was ordered by version 0.1 does not say")
    nonce: Hex256 = Field(description="64 random hexadecimal digits: they blind the entry's hash, which is public")

    @classmethod
    def of(
        cls,
        planned: Planned,
        *,
        out: Path,
        donor: str | None,
        adapters: Adapters,
        reveal_draw: bool,
        key: Path | None,
        overwrite: bool,
        audit: Audited | None = None,
    ) -> Order:
        portfolio = planned.portfolio
        return cls(
            portfolio=str((portfolio.listing or portfolio.path).absolute()),
            allow=sorted(portfolio.allowed),  # type: ignore[arg-type]
            out=str(out),
            target=Target(epsilon=planned.target.epsilon, delta=planned.target.delta),
            facts=PortfolioFacts.of(portfolio, planned.terms),
            donor=donor,
            adapters=adapters,
            reveal_draw=reveal_draw,
            key=None if key is None else str(key.absolute()),
            overwrite=overwrite,
            inputs=input_digests(portfolio, planned.terms),
            audit=audit,
            asked=dict(planned.asked),
            tools={"dpmerge": __version__},
            certificate_version=NEWEST,
            nonce=secrets.token_hex(32),
        )

    @classmethod
    def read(cls, details: Mapping[str, Any]) -> Order:
        """As it was written down with the charge."""
        return validated(cls, dict(details), "order")

    def document(self) -> dict[str, Any]:
        return self.model_dump(by_alias=True, exclude_none=True)

    @property
    def home(self) -> Path:
        """The portfolio's folder."""
        path = Path(self.portfolio)
        return path.parent if path.suffix in (".yaml", ".yml") else path

    def require_same(self, charged: Charged, portfolio: Portfolio) -> None:
        """Refuse runs that were trained, or recorded, anew since they were charged."""
        for stated in charged.terms.runs:
            manifest = portfolio.run(stated.run).manifest
            same = manifest.statement == stated and identity_of(manifest) == charged.identities[stated.run]
            if not same:
                accepted = f"run {stated.run} as it was charged in release {charged.release_id}"
                raise DigestMismatch(portfolio.run(stated.run).file, "run", stated.run, accepted, found="another run")
        if input_digests(portfolio, charged.terms) != self.inputs:
            accepted = f"the checkpoints that were charged in release {charged.release_id}"
            raise DigestMismatch(portfolio.path, "checkpoints", None, accepted, found="others")

    def load_portfolio(self, moved_to: Path | None = None) -> Portfolio:
        """The portfolio it was charged for; weights are read, and checked, when they are merged."""
        place = self.portfolio if moved_to is None or Path(self.portfolio).exists() else moved_to
        return Portfolio.load(place, contents=False, allow=self.allow)

    def declared(self, charged: Charged, portfolio: Portfolio, files: Mapping[str, CertifiedFile]) -> Declared:
        """What the certificate of this order declares of these files."""
        salt = release_salt(salt_of(portfolio, create=True), charged.release_id)
        drawn = len(charged.terms.candidates) > 1 and self.reveal_draw
        declared = Declared(
            release=charged.release_id,
            charged_at=charged.entry.time,
            target=self.target,
            terms=charged.terms,
            final=charged.final,
            portfolio=self.facts,
            adapters=self.adapters,
            donor=self.donor,
            drawn=charged.index if drawn else None,
            draw_number=charged.draw_number if self.certificate_version > 1 else None,
            inputs=[
                Input(run=run, step=step, commitment=commitment(portfolio, run, step, salt))
                for run, step in input_names(charged.terms)
            ],
            ledger=LedgerEntry(id=charged.entry.ledger, entry=charged.entry.seq, hash=charged.entry.hash),
            tools=self.tools,
            audit=self.audit,
        )
        return declared.bound(files, salt) if self.certificate_version > 1 else declared


def input_digests(portfolio: Portfolio, terms: Terms) -> dict[str, list[str]]:
    """Every checkpoint that some candidate is made of, by the recorded digests of its files."""
    names = [f"{run}@{step}" for run, step in input_names(terms)]
    return {name: list(portfolio.saved(name).file_digests) for name in names}
