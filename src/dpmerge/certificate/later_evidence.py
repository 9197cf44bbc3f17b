"""What others say of a certificate after it was made: an authority's timestamp, and a list of revocations.

Guarantees: a certificate passes as not revoked only by a list that is signed with a key that may revoke, and is
current; and only where a trusted key has signed the certificate itself: one that nobody signed can be rewritten until
no list names it. Of a key that is revoked since a time, what a checked timestamp shows to be older stays, nothing else.
Refuses: lists with no key to check them with. A list or a timestamp that does not hold is a check that failed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from dpmerge.certificate.checks import Check
from dpmerge.certificate.dsse import Certificate
from dpmerge.certificate.output_files import LARGEST_TIMESTAMP, TIMESTAMP_NAME
from dpmerge.certificate.trust import Keys, TrustedKey, signers, trusted
from dpmerge.errors import InvalidInputError
from dpmerge.files import is_file, read_bytes

if TYPE_CHECKING:
    from cryptography.x509 import Certificate as Root

    from dpmerge.certificate.revocation_list import Revocation, RevocationList
    from dpmerge.certificate.timestamp_token import Stamp


@dataclass(frozen=True, kw_only=True)
class LaterEvidence:
    """What is to be looked at: a list of revocations (None: none), and the roots of timestamps (empty: none)."""

    path: Path
    believed: tuple[TrustedKey, ...]
    revocations: str | Path | None
    revokers: tuple[TrustedKey, ...]
    roots: tuple[Root, ...]
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)

    @classmethod
    def asked_for(
        cls,
        path: Path,
        believed: tuple[TrustedKey, ...],
        *,
        revocations: str | Path | None,
        revocation_key: Keys,
        timestamp_roots: str | Path | None,
    ) -> LaterEvidence:
        """With keys and roots read."""
        revokers = believed if revocation_key is None else trusted(revocation_key)
        if revocations is None and revocation_key is not None:
            problem = "revocation-key: there is no list that it could have signed"
            raise InvalidInputError("revocation-key", None, "name one, revocations=… (--revocations)", problem=problem)
        if revocations is not None and not revokers:
            problem = "revocations: there is no key to check the list with"
            remedy = "give the certificate's, key=… (--key), or another that may revoke, revocation_key=…"
            raise InvalidInputError("revocations", str(revocations), remedy, problem=problem)
        roots: tuple[Root, ...] = ()
        if timestamp_roots is not None:
            from dpmerge.certificate.timestamp_token import read_roots

            roots = read_roots(Path(timestamp_roots))
        return cls(path=path, believed=believed, revocations=revocations, revokers=revokers, roots=roots)

    def checks(self, certificate: Certificate, text: bytes) -> Iterator[Check]:
        """Of a certificate, and of the bytes of its file."""
        stamp = None
        if self.roots or is_file(self.path / TIMESTAMP_NAME):
            stamp, check = self._timestamp(text)
            yield check
        if self.revocations is not None:
            yield self._revocations(certificate, stamp)

    def _timestamp(self, text: bytes) -> tuple[Stamp | None, Check]:
        if not self.roots:
            return None, Check("timestamp", None, ("not checked: no roots were given to check it with",))
        if not is_file(self.path / TIMESTAMP_NAME):
            return None, Check("timestamp", False, (f"there is none ({TIMESTAMP_NAME}), and roots were given",))
        from dpmerge.certificate.timestamp_token import checked

        try:
            response = read_bytes(self.path / TIMESTAMP_NAME, LARGEST_TIMESTAMP, "a timestamp of the certificate")
            stamp = checked(response, text, self.roots)
        except InvalidInputError as error:
            return None, Check("timestamp", False, (error.problem or str(error),))
        return stamp, Check("timestamp", True, (f"existed by {stamp.existed_by.isoformat()}, says {stamp.authority}",))

    def _revocations(self, certificate: Certificate, stamp: Stamp | None) -> Check:
        assert self.revocations is not None
        try:
            listed = believed_list(self.revocations, self.revokers, self.clock())
        except InvalidInputError as error:
            why = error.problem or str(error)
            return Check("revocations", False, (f"not known whether it is revoked: {why}",))
        which = f"by list {listed.content.sequence} of {listed.content.issued}"
        named = [f"revoked {which}: {each.words()}" for each in listed.about(certificate)]
        made = signers(certificate, self.believed)
        if not made:
            # Nobody else's word is needed to refuse.
            keys = {each.keyid for each in certificate.signatures}
            named += [f"its key is revoked {which}: {r.words()}" for k in sorted(keys) for r in listed.about_key(k)]
            unknown = "not known whether it is revoked: no key that was given has signed it, so anybody may have"
            return Check("revocations", False, tuple(named) or (f"{unknown} changed it until no list names it",))
        by_key = [_refusals(listed.about_key(str(key.key.keyid)), key, stamp) for key in made]
        if all(by_key):
            named += [f"its key is revoked {which}: {why}" for reasons in by_key for why in reasons]
        if named:
            return Check("revocations", False, tuple(named))
        excused = any(listed.about_key(str(key.key.keyid)) for key in made)
        older = ("its key is revoked, and its timestamp is older",) if excused and stamp is not None else ()
        return Check("revocations", True, (f"not on list {listed.content.sequence} of {listed.content.issued}", *older))


def _refusals(entries: list[Revocation], key: TrustedKey, stamp: Stamp | None) -> list[str]:
    """Why a key's signature does not count: entries that no timestamp is older than."""
    from dpmerge.certificate.revocation_list import moment

    found = []
    for each in entries:
        if each.since is not None and stamp is not None and stamp.existed_by < moment(each.since, "since"):
            continue
        proof = ""
        if each.since is not None:
            proof = "; no checked timestamp shows that it is older" if stamp is None else "; its timestamp is not older"
        found.append(f"{key.name}: {each.words()}{proof}")
    return found


def believed_list(where: str | Path, keys: tuple[TrustedKey, ...], now: datetime) -> RevocationList:
    """The list at a place, signed with one of the keys while it was trusted, and current.

    Raises:
        InvalidInputError: It cannot be read, or says nothing that counts.
    """
    from dpmerge.certificate.revocation_list import LARGEST_LIST, read_list
    from dpmerge.certificate.web_documents import read_document

    listed = read_list(read_document(where, LARGEST_LIST, "a list of revocations"))
    if (why := why_not_believed(listed, keys, now)) is not None:
        raise InvalidInputError("revocations", None, "get the newest list from who keeps it", problem=why)
    return listed


def why_not_believed(listed: RevocationList, keys: tuple[TrustedKey, ...], now: datetime) -> str | None:
    """Why a list says nothing that counts; None if it does."""
    if not listed.signatures:
        return "the list is not signed"
    made = [key for key in keys if listed.signed_by(key.key)]
    if not made:
        return "the list is not signed with a key that may revoke, or was changed since"
    late = [why for key in made if (why := key.why_not(listed.content.issued, did="issued")) is not None]
    if len(late) == len(made):
        return f"the list was {late[0]}"
    old = listed.why_not_current(now)
    return None if old is None else f"the list is {old}"
