"""Verification from scratch: is this output what its certificate says, and does the guarantee follow?

Guarantees: no stored figure is believed; every one is computed again from the mechanisms and the plan inside the
certificate, by the version it states; the files are hashed and the card is written again. Every reason why something
does not hold is listed, not only the first. Needs neither the engine nor torch, neither portfolio nor ledger: what
those add, and when a certificate beside them is believed, is in `releasing.verifying`. What others say of a certificate
after it was made (timestamps, revocations) is looked at where it is asked for, by `certificate.later_evidence`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpmerge.certificate.checks import Check, Verification, not_signed_for
from dpmerge.certificate.dsse import CERTIFICATE_NAME, Certificate, read_certificate
from dpmerge.certificate.model_card import CARD_NAME, model_card
from dpmerge.certificate.output_files import TIMESTAMP_NAME, file_checks
from dpmerge.certificate.predicate import Predicate, derived, is_numerical, machine_error
from dpmerge.errors import DpmergeError, InvalidInputError
from dpmerge.files import is_file, read_bytes
from dpmerge.remote.remote_path import RemotePath, location, pinned
from dpmerge.terms.documents import MISSING, differences, validated

if TYPE_CHECKING:
    from dpmerge.certificate.trust import Keys, TrustedKey

UNBOUND = (
    "1: without a signature nothing binds its terms to its files, or to who keeps the runs, and repeated draws are not "
    "counted; beside a portfolio it is believed only where the ledger has this very certificate"
)


def check_output(
    out: str | Path,
    *,
    key: Keys = None,
    trusted_keys: str | Path | None = None,
    allow_extra: Iterable[str] = (),
    revocations: str | Path | None = None,
    revocation_key: Keys = None,
    timestamp_roots: str | Path | None = None,
) -> Verification:
    """Check an output folder against its certificate, and the certificate against mathematics.

    `key` is the public key it must be signed with, or several of which one must have been used; `trusted_keys` a file
    of such keys with the times they are trusted in. `allow_extra` names files and folders that need not be covered.
    `revocations` is a list, a file or an address, on which it must not be, signed with one of those keys or with
    `revocation_key`; `timestamp_roots` the roots of authorities whose timestamp it must have.
    """
    path = pinned(location(out, "output"))
    believed = _believed(key, trusted_keys)
    later = _later_checks(path, believed, revocations, revocation_key, timestamp_roots)
    file = path / CERTIFICATE_NAME
    accepted = f"a folder that holds {CERTIFICATE_NAME}, as `dpmerge merge` makes it"
    if not is_file(file):
        if isinstance(path, RemotePath) and path.is_dir():
            problem = f"{path}: unfinished: a release has its certificate last, and there is none"
            remedy = "who made it finishes it (`dpmerge ledger recover`); until then it is no release"
            raise InvalidInputError(str(path), str(path), remedy, problem=problem)
        raise InvalidInputError(str(path), str(path), f"name {accepted}", problem=f"{path}: there is no certificate")
    text = read_bytes(file, accepted=accepted)
    try:
        certificate = read_certificate(text)
    except InvalidInputError as error:
        return Verification(path, (Check("form", False, (str(error),)),), None, {}, {})
    checks = [Check("form", True)]
    if certificate.version == 1:
        checks.append(Check("version", None, (UNBOUND,)))
    checks += [_signature(certificate, believed), *file_checks(path, certificate, allow_extra)]
    checks += later(certificate, text)
    declared: Predicate | None = None
    try:
        declared = declared_in(certificate)
    except DpmergeError as error:
        checks.append(Check("schema", False, (str(error),)))
    else:
        checks += [Check("schema", True), *_follows(path, certificate, declared)]
    return Verification(path, tuple(checks), declared, certificate.content, certificate.files, certificate)


def _believed(key: Keys, trusted_keys: str | Path | None) -> tuple[TrustedKey, ...]:
    """The keys that were given; those that cannot be read are refused before anything is looked at."""
    if key is None and trusted_keys is None:
        return ()
    from dpmerge.certificate.trust import trusted

    return trusted(key, trusted_keys)


def _signature(certificate: Certificate, believed: tuple[TrustedKey, ...]) -> Check:
    if not believed:
        return not_signed_for(certificate)
    from dpmerge.certificate.trust import signature

    return signature(certificate, believed)


def _later_checks(
    path: Path,
    believed: tuple[TrustedKey, ...],
    revocations: str | Path | None,
    revocation_key: Keys,
    timestamp_roots: str | Path | None,
) -> Callable[[Certificate, bytes], Iterable[Check]]:
    """How a timestamp and revocations are checked; roots and keys that cannot be read are refused at once."""
    if revocations is None and revocation_key is None and timestamp_roots is None:
        return lambda _certificate, _text: _unchecked_timestamp(path)
    from dpmerge.certificate.later_evidence import LaterEvidence

    return LaterEvidence.asked_for(
        path, believed, revocations=revocations, revocation_key=revocation_key, timestamp_roots=timestamp_roots
    ).checks


def _unchecked_timestamp(path: Path) -> Iterator[Check]:
    if is_file(path / TIMESTAMP_NAME):
        yield Check("timestamp", None, ("not checked: no roots were given to check it with",))


def _follows(path: Path, certificate: Certificate, declared: Predicate) -> Iterator[Check]:
    """What is computed again from what is declared."""
    figures = _figures(certificate, declared)
    yield figures
    if figures.passed:
        yield _card(path, certificate)
    if declared.audit is not None:
        words = f"ε ≥ {declared.audit.lower_bound} is stated, and was not repeated; `dpmerge audit` repeats it"
        yield Check("audit", None, (words,))


LOOSER_GRID = 0.05
"""By this share a cost that was composed on a grid may be stated larger than it comes out: grids become finer."""


def declared_in(certificate: Certificate) -> Predicate:
    """What a certificate declares, by whoever made it."""
    content = _declared_part(certificate.content)
    if certificate.version < 3:
        from dpmerge.certificate.old_versions import in_camel_case

        content = in_camel_case(content)
    declared = validated(Predicate, content, "predicate", case="camel")
    declared.require_version(certificate.version)
    return declared


def _declared_part(content: Mapping[str, Any]) -> dict[str, Any]:
    fields = {field.alias or name for name, field in Predicate.model_fields.items()}
    return {name: value for name, value in content.items() if name in fields}


def _figures(certificate: Certificate, declared: Predicate) -> Check:
    """Everything that follows from the declared terms, computed again."""
    try:
        error = machine_error(declared.terms)
        computed = [derived(declared, shade, version=certificate.version) for shade in (1.0, 1 - error, 1 + error)]
    except DpmergeError as reason:
        return Check("guarantee", False, (f"nothing follows from its terms: {reason}",))
    stored = {
        name: value for name, value in certificate.content.items() if name not in _declared_part(certificate.content)
    }
    wrong = list(_wrong(stored, computed, looser=LOOSER_GRID if is_numerical(declared.terms) else 0.0))
    return Check("guarantee", not wrong, tuple(wrong[:20]))


def _wrong(stored: Any, computed: list[Any], *, looser: float) -> Iterator[str]:
    """Where a stored value is none of the computed ones, nor a cost that another grid may have given."""
    found = [{place: value for place, _, value in differences(stored, each)} for each in computed]
    for place, said, value in differences(stored, computed[0]):
        if not all(place in each for each in found) or _is_looser(place, said, value, looser):
            continue
        if value is MISSING:
            yield f"{place} is in the certificate, and does not follow from its terms"
        elif said is MISSING:
            yield f"{place} is missing"
        else:
            yield f"{place} is stated as {_short(said)}, and comes out as {_short(value)}"


def _is_looser(place: str, said: Any, value: Any, share: float) -> bool:
    """Whether a cost is stated that is above the one computed, but not by more than this share of it."""
    field = place.rpartition(".")[2]
    if not share or field not in ("epsilon", "delta") or not isinstance(said, float) or not isinstance(value, float):
        return False
    return value <= said <= value * (1 + share)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else text[:119] + "…"


def _card(path: Path, certificate: Certificate) -> Check:
    try:
        text = read_bytes(path / CARD_NAME, accepted="the model card").decode()
    except (InvalidInputError, UnicodeDecodeError) as error:
        return Check("model card", False, (f"{CARD_NAME} cannot be read ({error})",))
    same = text == model_card(certificate.content, certificate.files, certificate.version)
    return Check("model card", same, () if same else (f"{CARD_NAME} does not say what the certificate says",))
