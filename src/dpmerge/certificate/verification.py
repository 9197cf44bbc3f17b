"""Verification from scratch: is this output what its certificate says, and does the guarantee follow?

Guarantees: no stored figure is believed; every one is computed again from the mechanisms and the plan inside the
certificate, the files are hashed, the card is written again, and with the portfolio the commitments are opened.
Every reason why something does not hold is listed, not only the first. Needs neither the engine nor torch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from dpmerge.certificate.card import CARD_NAME, model_card
from dpmerge.certificate.commitments import commitment, release_salt, salt_of
from dpmerge.certificate.envelope import CERTIFICATE_NAME, Certificate, read_certificate
from dpmerge.certificate.keys import read_public
from dpmerge.certificate.predicate import Declared, PortfolioFacts, derived, machine_error
from dpmerge.documents import is_file, read_bytes, validated
from dpmerge.errors import DpmergeError, InvalidInput
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.portfolio.tensors import PICKLES

_PIECE = 2**20


@dataclass(frozen=True)
class Check:
    """One thing that was looked at: `passed` is None where it could not be, and `found` says why or what is wrong."""

    name: str
    passed: bool | None
    found: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        return {"check": self.name, "passed": self.passed, "found": list(self.found)}


@dataclass(frozen=True, eq=False)
class Verification:
    """What a verification found. `declared` is None if the certificate cannot be read as one."""

    path: Path
    checks: tuple[Check, ...]
    declared: Declared | None
    content: Mapping[str, Any]
    files: Mapping[str, str]  # name → sha256, as certified

    @property
    def verified(self) -> bool:
        return all(check.passed is not False for check in self.checks)

    @property
    def problems(self) -> list[str]:
        """Every reason why it is not verified."""
        return [f"{check.name}: {reason}" for check in self.checks if check.passed is False for reason in check.found]

    def with_check(self, check: Check) -> Verification:
        return replace(self, checks=(*self.checks, check))

    def document(self) -> dict[str, Any]:
        return {
            "path": str(self.path),
            "verified": self.verified,
            "guarantee": self.content.get("guarantee") if self.verified else None,
            "checks": [check.document() for check in self.checks],
            "problems": self.problems,
        }


def verify(
    out: str | Path, *, portfolio: Portfolio | str | Path | None = None, key: str | Path | None = None
) -> Verification:
    """Check an output folder against its certificate, and the certificate against mathematics.

    `key` is the public key it must be signed with; `portfolio` is what it was made from.
    """
    path = Path(out)
    public = None if key is None else read_public(Path(key))
    loaded = Portfolio.load(portfolio) if isinstance(portfolio, str | Path) else portfolio
    file = path / CERTIFICATE_NAME
    accepted = f"a folder that holds {CERTIFICATE_NAME}, as `dpmerge merge` makes it"
    if not is_file(file):
        raise InvalidInput(str(path), str(path), accepted, found="no certificate")
    text = read_bytes(file, accepted=accepted)
    try:
        certificate = read_certificate(text)
    except InvalidInput as error:
        return Verification(path, (Check("form", False, (str(error),)),), None, {}, {})
    checks = [Check("form", True), _signature(certificate, public), *_files(path, certificate)]
    try:
        declared = validated(Declared, _declared_part(certificate.content), "predicate")
    except DpmergeError as error:
        return Verification(
            path, (*checks, Check("schema", False, (str(error),))), None, certificate.content, certificate.files
        )
    checks += [Check("schema", True), _figures(certificate, declared)]
    if checks[-1].passed:
        checks.append(_card(path, certificate))
    if loaded is not None:
        checks += _portfolio(declared, loaded)
    return Verification(path, tuple(checks), declared, certificate.content, certificate.files)


def _signature(certificate: Certificate, key: Any) -> Check:
    if key is None:
        words = "signed, but no key was given to check it with" if certificate.is_signed else "not signed"
        return Check("signature", None, (words,))
    if not certificate.is_signed:
        return Check("signature", False, ("not signed, and a key was given",))
    try:
        good = certificate.signed_by(key)
    except InvalidInput as error:
        return Check("signature", False, (str(error),))
    return Check("signature", good, () if good else ("not made with this key, or changed since",))


def wrong_files(path: Path, certificate: Certificate) -> list[str]:
    """What is wrong with the files that a certificate is about."""
    return [reason for name, digest in sorted(certificate.files.items()) if (reason := _wrong(path, name, digest))]


def _files(path: Path, certificate: Certificate) -> Iterator[Check]:
    wrong = wrong_files(path, certificate)
    known = {*certificate.files, CARD_NAME, CERTIFICATE_NAME}
    extra = sorted(
        str(f.relative_to(path)) for f in path.rglob("*") if f.is_file() and str(f.relative_to(path)) not in known
    )
    weights = [name for name in extra if name.lower().endswith((".safetensors", *PICKLES))]
    wrong += [f"{name} holds weights that the certificate does not cover" for name in weights]
    yield Check("files", not wrong, tuple(wrong))
    if others := [name for name in extra if name not in weights]:
        yield Check("other files", None, (f"not covered: {', '.join(others[:10])}{' …' if len(others) > 10 else ''}",))


def _wrong(path: Path, name: str, digest: str) -> str | None:
    parts = PurePosixPath(name).parts
    if not name.isprintable() or name.startswith("/") or ".." in parts or "\\" in name:
        return f"{name!r} leads out of the folder"
    try:
        file = path / name
        if not file.resolve().is_relative_to(path.resolve()):
            return f"{name} is a link out of the folder"
        found = hashlib.sha256()
        with file.open("rb") as stream:
            while piece := stream.read(_PIECE):
                found.update(piece)
    except OSError as error:
        return f"{name} cannot be read ({error.strerror})"
    return None if found.hexdigest() == digest else f"{name} is not the file that was certified"


def _declared_part(content: Mapping[str, Any]) -> dict[str, Any]:
    fields = {field.alias or name for name, field in Declared.model_fields.items()}
    return {name: value for name, value in content.items() if name in fields}


def _figures(certificate: Certificate, declared: Declared) -> Check:
    """Everything that follows from the declared terms, computed again."""
    try:
        error = machine_error(declared.terms)
        computed = [derived(declared, shade) for shade in (1.0, 1 - error, 1 + error)]
    except DpmergeError as reason:
        return Check("guarantee", False, (f"nothing follows from its terms: {reason}",))
    stored = {
        name: value for name, value in certificate.content.items() if name not in _declared_part(certificate.content)
    }
    wrong = list(_differences("", stored, computed))
    return Check("guarantee", not wrong, tuple(wrong[:20]))


def _differences(place: str, stored: Any, computed: list[Any]) -> Iterator[str]:
    """Where a stored value is none of the computed ones."""
    first = computed[0]
    if isinstance(first, dict) and isinstance(stored, dict):
        for name in sorted({*first, *stored}):
            inside = f"{place}.{name}" if place else name
            if name not in first:
                yield f"{inside} is in the certificate, and does not follow from its terms"
            elif name not in stored:
                yield f"{inside} is missing"
            else:
                yield from _differences(inside, stored[name], [each[name] for each in computed])
    elif isinstance(first, list) and isinstance(stored, list) and len(first) == len(stored):
        for number, value in enumerate(stored):
            yield from _differences(f"{place}[{number}]", value, [each[number] for each in computed])
    elif not any(type(stored) is type(value) and stored == value for value in computed) and not _same(stored, computed):
        yield f"{place} is stated as {_short(stored)}, and comes out as {_short(first)}"


def _same(stored: Any, computed: list[Any]) -> bool:
    """JSON does not tell 1 from 1.0."""
    numbers = (int, float)
    return type(stored) in numbers and any(type(value) in numbers and stored == value for value in computed)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else text[:119] + "…"


def _card(path: Path, certificate: Certificate) -> Check:
    try:
        text = read_bytes(path / CARD_NAME, accepted="the model card").decode()
    except (InvalidInput, UnicodeDecodeError) as error:
        return Check("model card", False, (f"{CARD_NAME} cannot be read ({error})",))
    same = text == model_card(certificate.content, certificate.files)
    return Check("model card", same, () if same else (f"{CARD_NAME} does not say what the certificate says",))


def _portfolio(declared: Declared, portfolio: Portfolio) -> Iterator[Check]:
    terms = declared.terms
    wrong = []
    subject = {"dataset": portfolio.dataset, "unit": portfolio.unit, "adjacency": portfolio.adjacency.value}
    for name, value in subject.items():
        if getattr(terms, name) != value:
            wrong.append(f"{name} is {getattr(terms, name)!r} in the certificate and {value!r} in the portfolio")
    known = {run.id: run for run in portfolio.runs}
    for stated in terms.runs:
        if stated.run not in known:
            wrong.append(f"run {stated.run} is not in the portfolio")
        elif known[stated.run].manifest.statement != stated:
            wrong.append(f"the manifest of {stated.run} says something else")
    if not wrong and PortfolioFacts.of(portfolio, terms) != declared.portfolio:
        wrong.append("what is said of the portfolio as a whole (complete, allowed differences) is something else")
    yield Check("manifests", not wrong, tuple(wrong))
    yield _commitments(declared, portfolio)


def _commitments(declared: Declared, portfolio: Portfolio) -> Check:
    try:
        salt = release_salt(salt_of(portfolio), declared.release)
    except InvalidInput as error:
        return Check("commitments", False, (str(error),))
    wrong = []
    for each in declared.inputs:
        try:
            opened = commitment(portfolio, each.run, each.step, salt) == each.commitment
        except InvalidInput:
            opened = False
        if not opened:
            wrong.append(f"that of {each.run}@{each.step} does not open to what the portfolio holds")
    return Check("commitments", not wrong, tuple(wrong))
