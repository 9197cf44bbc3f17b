"""Certified outputs made without the engine: a few bytes for a model, and the certificate of a real plan."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpmerge.certificate.commitments import CertifiedFile, release_salt
from dpmerge.certificate.dsse import CERTIFICATE_NAME, certificate_bytes, read_certificate
from dpmerge.certificate.keys import read_private
from dpmerge.certificate.model_card import CARD_NAME, model_card
from dpmerge.certificate.predicate import Input, LedgerEntry, Predicate, Target, Version
from dpmerge.planning.plan import Plan
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.releasing.commitment_salt import checkpoint_commitment, salt_of
from dpmerge.releasing.settings import portfolio_facts
from dpmerge.terms.release_terms import ReleaseTerms

RELEASE = "0123456789abcdef0123456789abcdef"


@dataclass(frozen=True)
class Output:
    """A folder with a certified model in it, and what was declared about it."""

    path: Path
    declared: Predicate
    portfolio: Portfolio

    @property
    def statement(self) -> dict[str, Any]:
        envelope = json.loads((self.path / CERTIFICATE_NAME).read_text())
        return dict(json.loads(base64.b64decode(envelope["payload"])))

    def tampered(self, change: Callable[[dict[str, Any]], object]) -> Path:
        """The same output with a statement that was changed, its signature left as it was, its card made to fit."""
        statement = self.statement
        change(statement)
        envelope = json.loads((self.path / CERTIFICATE_NAME).read_text())
        envelope["payload"] = base64.b64encode(json.dumps(statement).encode()).decode()
        (self.path / CERTIFICATE_NAME).write_text(json.dumps(envelope))
        return self.path


def declaration(
    portfolio: Portfolio, terms: ReleaseTerms, target: Target, version: Version, **overrides: Any
) -> Predicate:
    salt = release_salt(salt_of(portfolio, create=True), RELEASE)
    given: dict[str, Any] = {
        "release": RELEASE,
        "charged_at": "2026-11-16T12:00:00Z",
        "target": target,
        "terms": terms,
        "final": terms.is_final,
        "portfolio": portfolio_facts(portfolio, terms),
        "inputs": [
            Input(run=each.run, step=each.step, commitment=checkpoint_commitment(portfolio, each, salt))
            for each in terms.inputs
        ],
        "draw_number": 1 if version > 1 and len(terms.candidates) > 1 else None,
        "ledger": LedgerEntry(id="f" * 32, entry=3, hash="e" * 64),
        "tools": {"dpmerge": "0.1.0"},
    }
    return Predicate(**(given | overrides))


def certified(
    folder: Path,
    planned: Plan,
    *,
    key: Path | None = None,
    files: Mapping[str, bytes] | None = None,
    version: Version = 3,
    **overrides: Any,
) -> Output:
    """Write a model of a few bytes with its certificate and card."""
    folder.mkdir(parents=True)
    contents = files or {"config.json": b"{}", "model.safetensors": b"weights"}
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    target = Target(epsilon=planned.target.epsilon, delta=planned.target.delta)
    declared = declaration(planned.portfolio, planned.terms, target, version, **overrides)
    written = {name: CertifiedFile(hashlib.sha256(c).hexdigest(), len(c)) for name, c in contents.items()}
    if version > 1:
        declared = declared.bound(written, release_salt(salt_of(planned.portfolio), declared.release), version)
    text = certificate_bytes(declared, written, None if key is None else read_private(key), version)
    (folder / CERTIFICATE_NAME).write_bytes(text)
    certificate = read_certificate(text)
    (folder / CARD_NAME).write_text(model_card(certificate.content, certificate.files, certificate.version))
    return Output(folder, declared, planned.portfolio)
