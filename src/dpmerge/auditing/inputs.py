"""What is to be attacked: a plan with its portfolio, or a release, all of which is in its certificate.

Guarantees: a plan is priced again from the portfolio; what a certificate states is taken as it is stated, so that a
figure that does not follow from its terms is attacked, and said to be such.
Refuses: files that are neither, a plan without its portfolio, certificates that state no figure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpmerge.certificate.dsse import CERTIFICATE_NAME, read_certificate
from dpmerge.certificate.verification import declared_in
from dpmerge.errors import InvalidInputError
from dpmerge.files import read_bytes
from dpmerge.planning.plan import Plan
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.terms.documents import strict_json
from dpmerge.terms.release_terms import ReleaseTerms

SAME = 1e-5
"""Figures are stated with six digits."""


@dataclass(frozen=True, kw_only=True)
class AuditInput:
    """What is released, at which δ; the ε that is stated for it (None: what the terms give), and what to know of it."""

    terms: ReleaseTerms
    delta: float
    stated: float | None = None
    note: str = ""


def read_subject(path: Path, portfolio: Portfolio | Path | str | None) -> AuditInput:
    """A plan's file (its portfolio must be named), a release's folder, or its certificate under any name."""
    accepted = "a plan (`dpmerge plan -o FILE`), a release's folder or its certificate"
    file = path / CERTIFICATE_NAME if path.is_dir() else path
    content = read_bytes(file, accepted=accepted)
    document = strict_json(content, str(file))
    if path.is_dir() or (isinstance(document, dict) and "payload" in document):
        if portfolio is not None:
            problem = "portfolio: a certificate says itself what it was made of"
            raise InvalidInputError("portfolio", str(portfolio), "leave it out", problem=problem)
        return _certified(file, content)
    if portfolio is None:
        problem = "portfolio: a plan names runs, and does not say how they were trained"
        raise InvalidInputError("portfolio", None, "say where they are (--portfolio DIR)", problem=problem)
    loaded = portfolio if isinstance(portfolio, Portfolio) else Portfolio.load(portfolio, contents=False)
    planned = Plan.load(path, loaded)
    return AuditInput(terms=planned.terms, delta=planned.target.delta)


def _certified(file: Path, content: bytes) -> AuditInput:
    try:
        certificate = read_certificate(content)
        declared = declared_in(certificate)
    except InvalidInputError as error:
        raise error.within(str(file)) if type(error) is InvalidInputError else error from None
    terms, delta = declared.terms, declared.target.delta
    stated, computed = _stated(file, certificate.content.get("guarantee"), delta), terms.epsilon(delta)
    if math.isclose(stated, computed, rel_tol=SAME):
        return AuditInput(terms=terms, delta=delta, stated=max(stated, computed))
    note = f"{file} states ε = {stated:g}, and its terms give {computed:g}; what is stated is attacked"
    return AuditInput(terms=terms, delta=delta, stated=stated, note=note)


def _stated(file: Path, guarantee: Any, delta: float) -> float:
    fields: Mapping[str, Any] = guarantee if isinstance(guarantee, dict) else {}
    found = fields.get("epsilon")
    epsilon = math.inf if found == "inf" else float(found) if type(found) in (int, float) else math.nan  # type: ignore[arg-type]
    if not epsilon >= 0 or fields.get("delta") != delta:
        accepted = f"an epsilon ≥ 0 at the target's delta, {delta!r}; `dpmerge verify` says what else is wrong"
        raise InvalidInputError(f"{file}.guarantee", guarantee, accepted)
    return epsilon
