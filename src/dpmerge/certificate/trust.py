"""Whose signatures count: keys, each with a name and the time in which it is trusted.

Guarantees: a signature passes only if it was made with a trusted key and the certificate says that it was charged while
that key was trusted. That time is the signer's word: who has a stolen key can write any, so a key that was stolen is
taken off the list, not given an end.
Refuses: files above 100 kB, unknown fields, periods that end before they begin.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field
from securesystemslib.signer import SSlibKey

from dpmerge.certificate.checks import Check, not_signed_for
from dpmerge.certificate.dsse import Certificate
from dpmerge.certificate.keys import public_key, read_public
from dpmerge.errors import CannotReadError, InvalidInputError, ManifestError
from dpmerge.strict_yaml import read_yaml
from dpmerge.terms.documents import Strict, Text, validated

Keys = str | Path | Sequence[str | Path] | None
"""One public key's file, or several."""

_MOMENT = "a date, or a date and time of day, such as 2026-01-31 or 2026-01-31T12:00:00Z (without a zone: UTC)"


@dataclass(frozen=True, eq=False)
class TrustedKey:
    """A public key, and when what it signs is believed: from `not_before` on, until before `not_after`."""

    name: str
    key: SSlibKey
    not_before: datetime | None = None
    not_after: datetime | None = None

    def why_not(self, moment: object, did: str = "charged") -> str | None:
        """Why something that was charged, or issued, at a moment is not believed; None if it is."""
        if self.not_before is None and self.not_after is None:
            return None
        charged = utc_moment(moment)
        if charged is None:
            return f"signed with {self.name}, which is trusted for a time, and does not say when it was {did}"
        if self.not_before is not None and charged < self.not_before:
            return f"{did} {moment}, before {self.name} was trusted (from {self.not_before.isoformat()})"
        if self.not_after is not None and charged >= self.not_after:
            return f"{did} {moment}, when {self.name} was no longer trusted (until {self.not_after.isoformat()})"
        return None


class ListedKey(Strict):
    """One entry of a file of trusted keys."""

    key: Annotated[str, Field(min_length=1, max_length=10_000)] = Field(
        description="a public key's file, beside this one or by its whole path; or the key itself as PEM text"
    )
    name: Text | None = Field(default=None, description="text: whose key it is")
    not_before: str | None = Field(default=None, description=_MOMENT)
    not_after: str | None = Field(default=None, description=_MOMENT)


class KeyList(Strict):
    """A file of trusted keys."""

    schema_: Literal["dpmerge/trusted-keys/v1"] = Field(alias="schema", description='"dpmerge/trusted-keys/v1"')
    keys: Annotated[list[ListedKey], Field(min_length=1)] = Field(description="a non-empty list of objects with a key")


def trusted(keys: Keys = None, listed: str | Path | None = None) -> tuple[TrustedKey, ...]:
    """The keys named one by one, and those of a file; none at all if neither is given."""
    single = [keys] if isinstance(keys, str | Path) else keys
    if single is not None and not single:
        raise InvalidInputError("key", single, "at least one key, or None to check no signature")
    found = [TrustedKey(str(path), read_public(Path(path))) for path in single or ()]
    return (*found, *(read_trusted(Path(listed)) if listed is not None else ()))


def read_trusted(file: Path) -> tuple[TrustedKey, ...]:
    """The keys of a file (YAML, or JSON)."""
    try:
        content = _with_text_for_dates(read_yaml(file, "trusted keys"))
        keys = validated(KeyList, content, "trusted keys").keys
        return tuple(_listed(each, f"keys[{place}]", file.parent) for place, each in enumerate(keys))
    except InvalidInputError as error:
        raise ManifestError.of(file, error) if type(error) in (InvalidInputError, CannotReadError) else error from None


def _listed(each: ListedKey, place: str, folder: Path) -> TrustedKey:
    key = public_key(each.key.encode(), place) if "-----BEGIN" in each.key else read_public(folder / each.key)
    first, last = _period(each.not_before, f"{place}.not_before"), _period(each.not_after, f"{place}.not_after")
    if first is not None and last is not None and last <= first:
        raise InvalidInputError(f"{place}.not_after", each.not_after, "a time after not_before")
    return TrustedKey(each.name or str(key.keyid)[:16], key, first, last)


def _period(text: str | None, field: str) -> datetime | None:
    found = None if text is None else utc_moment(text)
    if text is not None and found is None:
        raise InvalidInputError(field, text, _MOMENT)
    return found


def utc_moment(text: object) -> datetime | None:
    """A time of day in UTC, unless it says another zone; None if it is no time at all."""
    try:
        found = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def _with_text_for_dates(content: Any) -> Any:
    """YAML makes dates of text that looks like one."""
    if isinstance(content, dict):
        return {name: _with_text_for_dates(value) for name, value in content.items()}
    if isinstance(content, list):
        return [_with_text_for_dates(value) for value in content]
    return content.isoformat() if isinstance(content, date) else content


def signature(certificate: Certificate, keys: Iterable[TrustedKey]) -> Check:
    """Whether a certificate was signed with one of the keys, at a time when that one was trusted."""
    keys = tuple(keys)
    if not keys:
        return not_signed_for(certificate)
    if not certificate.is_signed:
        return Check("signature", False, ("not signed, and a key was given",))
    try:
        made = [key for key in keys if certificate.signed_by(key.key)]
    except InvalidInputError as error:
        return Check("signature", False, (str(error),))
    if not made:
        what = "this key" if len(keys) == 1 else f"any of {len(keys)} keys"
        return Check("signature", False, (f"not made with {what}, or changed since",))
    wrong = [why for key in made if (why := key.why_not(certificate.content.get("chargedAt"))) is not None]
    if len(wrong) == len(made):
        return Check("signature", False, tuple(wrong))
    named = [key.name for key in signers(certificate, keys) if len(keys) > 1]
    return Check("signature", True, tuple(f"with {name}" for name in named))


def signers(certificate: Certificate, keys: Iterable[TrustedKey]) -> tuple[TrustedKey, ...]:
    """Those of the keys that have signed a certificate, at a time when they were trusted."""
    try:
        made = [key for key in keys if certificate.signed_by(key.key)]
    except InvalidInputError:
        return ()
    return tuple(key for key in made if key.why_not(certificate.content.get("chargedAt")) is None)
