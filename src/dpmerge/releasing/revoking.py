"""Lists of revocations on disk: made, extended, signed again before they are stale, and shown.

Guarantees: a list is written whole or not at all, by one process at a time; its sequence number grows, and no entry is
ever taken off it. What is signed again was signed before by the same key, or by one that is named.
Refuses: to extend what is no list, what others may have changed, and to enter twice what is revoked already.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from securesystemslib.signer import CryptoSigner, SSlibKey

from dpmerge.certificate.dsse import CERTIFICATE_NAME, read_certificate
from dpmerge.certificate.keys import Passphrase, read_private, read_public
from dpmerge.certificate.later_evidence import why_not_believed
from dpmerge.certificate.revocation_list import (
    LARGEST_LIST,
    LIST_TYPE,
    Reason,
    Revocation,
    RevocationList,
    Revocations,
    list_bytes,
    moment,
    payload_digest,
    read_list,
)
from dpmerge.certificate.trust import Keys, trusted, utc_moment
from dpmerge.certificate.web_documents import read_document
from dpmerge.errors import CannotWriteError, InvalidInputError
from dpmerge.files import read_bytes
from dpmerge.merging.staging import no_locks
from dpmerge.portfolio.run_files import write_atomically
from dpmerge.terms.documents import made

DAYS = 30
"""So long a list counts, unless said otherwise."""
_LONGEST = 3660


def revoke(
    listed: str | Path,
    certificate: str | Path | None = None,
    *,
    key: str | Path,
    reason: Reason,
    public_key: str | Path | None = None,
    since: str | None = None,
    note: str | None = None,
    days: int = DAYS,
    previous_key: str | Path | None = None,
    passphrase: Passphrase = None,
    insecure_permissions: bool = False,
) -> RevocationList:
    """Enter a certificate, or a key, into a list of revocations, and sign the list again; a new one if there is none.

    Args:
        listed: The file of the list.
        certificate: What is revoked: a release's folder, or its certificate under any name.
        key: The private key to sign the list with.
        reason: `epsilon_too_small`, `false_statement`, `key_compromised`, `superseded` or `withdrawn`.
        public_key: What is revoked instead of a certificate: a key, with all it has signed.
        since: Of a key: what a timestamp shows to be older stays valid; a date, or a date and time.
        note: More about the reason, one line.
        days: How long the list counts; sign it again before then.
        previous_key: The public key that the list was signed with before, where that was another.
        passphrase: Of the private key, or a function that asks for it.
        insecure_permissions: Go on although others may read the private key.

    Returns:
        The list as it stands now.

    Raises:
        InvalidInputError: Nothing to revoke, or revoked already; or the file holds something else, or a list that was
            signed with another key.
        CannotWriteError: The file cannot be written; what was there is as it was.

    >>> from tempfile import TemporaryDirectory
    >>> from dpmerge.certificate.keys import generate
    >>> with TemporaryDirectory() as place:
    ...     for name in ("office", "stolen"):
    ...         _ = generate(Path(place, name))
    ...     found = revoke(f"{place}/revoked.json", key=f"{place}/office", public_key=f"{place}/stolen.pub",
    ...         reason="key_compromised", since="2025-01-31")
    >>> found.content.sequence, [(each.reason, each.since) for each in found.content.entries]
    (1, [('key_compromised', '2025-01-31T00:00:00Z')])
    """
    if (certificate is None) == (public_key is None):
        problem = "revoke: name a release or a public key, and not both"
        raise InvalidInputError("certificate", certificate, "one of the two is revoked at a time", problem=problem)
    now = datetime.now(UTC)
    entry = made(
        Revocation,
        certificate=None if certificate is None else _digest(Path(certificate)),
        key=None if public_key is None else str(read_public(Path(public_key)).keyid),
        since=None if since is None else _since(since, now),
        reason=reason,
        note=note,
        revoked_at=_written(now),
    )
    signer = read_private(Path(key), passphrase=passphrase, insecure_permissions=insecure_permissions)
    return _signed_again(Path(listed), signer, previous_key, now, days, entry)


def renew(
    listed: str | Path,
    *,
    key: str | Path,
    days: int = DAYS,
    previous_key: str | Path | None = None,
    passphrase: Passphrase = None,
    insecure_permissions: bool = False,
) -> RevocationList:
    """Sign a list of revocations again, as it is, so that it counts for longer; an empty one if there is none.

    Args:
        listed: The file of the list.
        key: The private key to sign it with.
        days: How long it counts.
        previous_key: The public key that it was signed with before, where that was another.
        passphrase: Of the private key, or a function that asks for it.
        insecure_permissions: Go on although others may read the private key.

    Returns:
        The list as it stands now.

    Raises:
        InvalidInputError: The file holds something else, or a list that was signed with another key.
        CannotWriteError: The file cannot be written; what was there is as it was.
    """
    signer = read_private(Path(key), passphrase=passphrase, insecure_permissions=insecure_permissions)
    return _signed_again(Path(listed), signer, previous_key, datetime.now(UTC), days, None)


@dataclass(frozen=True, eq=False)
class ListShown:
    """A list as it was read, whether its signature was looked at, and why it does not count (empty: it does)."""

    listed: RevocationList
    signature_checked: bool
    problems: tuple[str, ...]

    def document(self) -> dict[str, Any]:
        return {
            **self.listed.document(),
            "signatureChecked": self.signature_checked,
            "problems": list(self.problems),
        }


def read_revocations(listed: str | Path, *, key: Keys = None) -> ListShown:
    """Read a list of revocations, and say whether it counts.

    Args:
        listed: Its file, or an http(s) address.
        key: The public key it must be signed with, or several of which one must have been used.

    Returns:
        The list, and everything that keeps it from being believed.

    Raises:
        InvalidInputError: It cannot be read, or is no list of revocations.
    """
    keys = () if key is None else trusted(key)
    found = read_list(read_document(listed, LARGEST_LIST, "a list of revocations"))
    now = datetime.now(UTC)
    why = found.why_not_current(now) if key is None else why_not_believed(found, keys, now)
    return ListShown(found, key is not None, () if why is None else (why,))


def _signed_again(
    file: Path,
    signer: CryptoSigner,
    previous_key: str | Path | None,
    now: datetime,
    days: int,
    entry: Revocation | None,
) -> RevocationList:
    if not 1 <= days <= _LONGEST:
        raise InvalidInputError("days", days, f"an integer from 1 to {_LONGEST:,}")
    keys = [signer.public_key, *([] if previous_key is None else [read_public(Path(previous_key))])]
    with _alone(file):
        before = _existing(file, keys)
        entries = [] if before is None else list(before.content.entries)
        if entry is not None:
            _require_new(entry, entries)
            entries.append(entry)
        content = made(
            Revocations,
            type_=LIST_TYPE,
            issuer=str(signer.public_key.keyid),
            sequence=1 if before is None else before.content.sequence + 1,
            issued=_written(now),
            next_update=_written(now + timedelta(days=days)),
            entries=entries,
        )
        text = list_bytes(content, signer)
        try:
            write_atomically(file, text, mode=0o644)  # a list is for everybody
        except OSError as error:
            accepted = "a file that can be written"
            raise CannotWriteError.from_os(error, field="list", path=file, accepted=accepted) from None
    return read_list(text)


def _existing(file: Path, keys: list[SSlibKey]) -> RevocationList | None:
    if not file.exists() and not file.is_symlink():
        return None
    try:
        found = read_list(read_bytes(file, LARGEST_LIST, "a list of revocations"))
    except InvalidInputError as error:
        problem = f"list: {file} is there, and is no list of revocations ({error})"
        raise InvalidInputError("list", str(file), "name another file", problem=problem) from None
    if not any(found.signed_by(each) for each in keys):
        problem = f"list: {file} was not signed with this key, or was changed since"
        remedy = "bring back the one that you published, or name the key it was signed with (--previous-key)"
        raise InvalidInputError("list", str(file), remedy, problem=problem)
    return found


def _require_new(entry: Revocation, entries: list[Revocation]) -> None:
    """A key may be entered again, if it turns out that it was stolen earlier; nothing else."""
    for each in entries:
        if (each.certificate, each.key) != (entry.certificate, entry.key):
            continue
        if each.since is None or (entry.since is not None and _not_before(entry.since, each.since)):
            problem = f"list: that is revoked already: {each.words()}"
            raise InvalidInputError("list", None, "there is nothing to add", problem=problem)


def _not_before(new: str, old: str) -> bool:
    return moment(new, "since") >= moment(old, "since")


def _digest(place: Path) -> str:
    file = place / CERTIFICATE_NAME if place.is_dir() else place
    accepted = "a release's folder, or its certificate"
    return payload_digest(read_certificate(read_bytes(file, accepted=accepted)))


def _since(text: str, now: datetime) -> str:
    found = utc_moment(text)
    if found is None or found > now:
        raise InvalidInputError(
            "since", text, "a date, or a date and time of day, that has passed (without a zone: UTC)"
        )
    return _written(found)


def _written(when: datetime) -> str:
    """In whole seconds: cut off, never later than it was."""
    return when.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@contextmanager
def _alone(file: Path) -> Iterator[None]:
    """While one process extends a list others wait; the folder is locked, so that no file is left behind."""
    try:
        descriptor = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        accepted = "a file in a folder that exists"
        raise CannotWriteError.from_os(error, field="list", path=file, accepted=accepted) from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError as error:
            raise no_locks(file, error) from None
        yield
    finally:
        os.close(descriptor)
