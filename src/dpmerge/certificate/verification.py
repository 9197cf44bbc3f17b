"""Verification from scratch: is this output what its certificate says, and does the guarantee follow?

Guarantees: no stored figure is believed; every one is computed again from the mechanisms and the plan inside the
certificate, the files are hashed, the card is written again, and with the portfolio the commitments are opened.
Every reason why something does not hold is listed, not only the first. Needs neither the engine nor torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from dpmerge.certificate.card import CARD_NAME, model_card
from dpmerge.certificate.checks import Check, Verification, file_digest
from dpmerge.certificate.envelope import CERTIFICATE_NAME, Certificate, read_certificate
from dpmerge.certificate.predicate import Declared, derived, machine_error
from dpmerge.certificate.private_salt import kept_private
from dpmerge.certificate.provenance import provenance
from dpmerge.certificate.trust import Keys, signature, trusted
from dpmerge.documents import is_file, read_bytes, validated
from dpmerge.errors import DpmergeError, InvalidInput
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.portfolio.tensors import PICKLES


def verify(
    out: str | Path,
    *,
    portfolio: Portfolio | str | Path | None = None,
    key: Keys = None,
    trusted_keys: str | Path | None = None,
    insecure_permissions: bool = False,
) -> Verification:
    """Check an output folder against its certificate, and the certificate against mathematics.

    `key` is the public key it must be signed with, or several of which one must have been used; `trusted_keys` a file
    of such keys with the times they are trusted in. `portfolio` is what it was made from; a salt in it that others may
    read fails the check unless `insecure_permissions`.
    """
    path = Path(out)
    believed = trusted(key, trusted_keys)
    file = path / CERTIFICATE_NAME
    accepted = f"a folder that holds {CERTIFICATE_NAME}, as `dpmerge merge` makes it"
    if not is_file(file):
        raise InvalidInput(str(path), str(path), accepted, found="no certificate")
    text = read_bytes(file, accepted=accepted)
    try:
        certificate = read_certificate(text)
    except InvalidInput as error:
        return Verification(path, (Check("form", False, (str(error),)),), None, {}, {})
    checks = [Check("form", True), signature(certificate, believed), *_files(path, certificate)]
    try:
        declared = declared_in(certificate)
    except DpmergeError as error:
        return Verification(
            path, (*checks, Check("schema", False, (str(error),))), None, certificate.content, certificate.files
        )
    checks += [Check("schema", True), _figures(certificate, declared)]
    if checks[-1].passed:
        checks.append(_card(path, certificate))
    if declared.audit is not None:
        words = f"ε ≥ {declared.audit.lower_bound} is stated, and was not repeated; `dpmerge audit` repeats it"
        checks.append(Check("audit", None, (words,)))
    if portfolio is not None:
        loaded = _loaded(portfolio, declared)
        checks += [*kept_private(loaded, insecure_permissions), *provenance(declared, loaded)]
    return Verification(path, tuple(checks), declared, certificate.content, certificate.files)


def _loaded(portfolio: Portfolio | str | Path, declared: Declared) -> Portfolio:
    """Headers only: of the weights, those that went in are read when their commitments are opened."""
    if isinstance(portfolio, Portfolio):
        return portfolio
    return Portfolio.load(portfolio, contents=False, allow=declared.portfolio.allowed)


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
        found = file_digest(file)
    except OSError as error:
        return f"{name} cannot be read ({error.strerror})"
    return None if found == digest else f"{name} is not the file that was certified"


def declared_in(certificate: Certificate) -> Declared:
    """What a certificate declares, by whoever made it."""
    return validated(Declared, _declared_part(certificate.content), "predicate")


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
