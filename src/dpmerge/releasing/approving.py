"""Second persons, by the files of their keys: what `dpmerge ledger policy`, `approve` and `deny` do.

Guarantees: a key is read, and its passphrase asked for, before anything is written; what is approved was read from the
ledger at that moment, under the policy then in force.
Refuses: keys that cannot sign, or that others may read.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from securesystemslib.signer import CryptoSigner

from dpmerge.certificate.keys import Passphrase, read_private, read_public
from dpmerge.ledger.approval_policy import Person, Policy
from dpmerge.ledger.ledger import Ledger
from dpmerge.ledger.ledger_writer import Decision
from dpmerge.ledger.waiting_requests import WaitingRequest


class ApprovingLedger(Ledger):
    """A ledger whose policy people change, and on whose requests they decide, with the keys in their files."""

    _insecure: bool = False

    def change_policy(
        self,
        *,
        approvals: int | None = None,
        people: Mapping[str, str | Path] | None = None,
        days: int | None = None,
        requester_key: str | Path | None = None,
        passphrase: Passphrase = None,
    ) -> Policy:
        """Say how many people must stand behind final releases, caps, `accept`, `abandon` and this policy itself.

        Args:
            approvals: So many, the one who asks included: 2 is who asks and one more, 1 is nobody else.
            people: Everybody who counts: a name, and the file of their public key. By default as before.
            days: For how long a request is open; by default as before, and 7 at first.
            requester_key: Your private key, to sign the request where the policy in force asks for others.
            passphrase: The key's, or a function that asks for it.

        Returns:
            The policy in force. What is not given stays as it is.

        Raises:
            ApprovalNeededError: The policy in force asks for others; the change was requested.
            InvalidInputError: Fewer people than are to approve, or one of them twice.
        """
        now = self.policy()
        wanted = Policy(
            approvals=now.approvals if approvals is None else approvals,
            people=now.people if people is None else tuple(_person(name, file) for name, file in people.items()),
            days=now.days if days is None else days,
        )
        if wanted != now:
            asker = asker_of(requester_key, passphrase, insecure_permissions=self._insecure)
            self.set_policy(wanted, asker=asker)
        return self.policy()

    def approve(self, request: str, *, key: str | Path, passphrase: Passphrase = None) -> WaitingRequest:
        """Approve exactly what a request asks for; it can be carried out, once, when nobody is missing any more.

        Args:
            request: The beginning of its id, 12 digits or more.
            key: Your private key: of somebody whom the policy names, and not of who asked.
            passphrase: The key's, or a function that asks for it.

        Returns:
            The request as it stands now.

        Raises:
            InvalidInputError: There is no such request, or this key cannot approve it.
        """
        found = self._decided(request, "approved", key, passphrase)
        return self.request(found.id)

    def deny(self, request: str, *, key: str | Path, passphrase: Passphrase = None) -> WaitingRequest:
        """Close a request for good: by whoever asked that withdraws it, by anybody else of the policy it is denied.

        Args:
            request: The beginning of its id, 12 digits or more.
            key: Your private key: of somebody whom the policy names.
            passphrase: The key's, or a function that asks for it.

        Returns:
            The request as it was.

        Raises:
            InvalidInputError: There is no such request, or the policy does not name this key.
        """
        return self._decided(request, "denied", key, passphrase)

    def _decided(self, request: str, decision: Decision, key: str | Path, passphrase: Passphrase) -> WaitingRequest:
        found = self.request(request)
        signer = read_private(Path(key), passphrase=passphrase, insecure_permissions=self._insecure)
        self.decide(found.id, decision, signer)
        return found


def asker_of(
    key: str | Path | None, passphrase: Passphrase, *, insecure_permissions: bool = False
) -> CryptoSigner | None:
    """The key to sign requests with, if one is given."""
    if key is None:
        return None
    return read_private(Path(key), passphrase=passphrase, insecure_permissions=insecure_permissions)


def _person(name: str, file: str | Path) -> Person:
    return Person(name, str(read_public(Path(file)).keyval["public"]))
