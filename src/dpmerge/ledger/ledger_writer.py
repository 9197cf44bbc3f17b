"""Writing to a ledger: entries after entries, and nothing that needs a second person before there was one.

Guarantees: what needs approval is first entered as a request, signed by whoever asks, and the caller is told so
(ApprovalNeededError); it is done by the call that finds its request approved, once, exactly as it was asked for.
Refuses: approvals of people whom the policy does not name, of one's own requests, given twice or too late.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from securesystemslib.signer import CryptoSigner
from sqlalchemy import Connection

from dpmerge.errors import ApprovalNeededError, InvalidInputError
from dpmerge.ledger.actors import stated_actor
from dpmerge.ledger.approval_policy import Policy
from dpmerge.ledger.approvals import stated
from dpmerge.ledger.database import append, entries_at, keep_snapshot, role_of, time_of
from dpmerge.ledger.entries import OF_NO_SCOPE, BudgetScope, Entry, Kind, following
from dpmerge.ledger.ledger_reader import LedgerReader, open_request
from dpmerge.ledger.signed_entries import signed_body
from dpmerge.ledger.snapshots import EVERY, snapshot_body, snapshot_text
from dpmerge.ledger.state import State
from dpmerge.ledger.waiting_requests import SHOWN

Decision = Literal["approved", "denied"]
Made = TypeVar("Made")


@dataclass(frozen=True)
class Waiting:
    """Nothing was done: this request is open, and lacks approvals."""

    request: str


class LedgerWriter(LedgerReader):
    """A ledger that entries can be added to, with a policy of who must agree."""

    def set_policy(self, policy: Policy, *, asker: CryptoSigner | None = None) -> None:
        """Say how many people must agree from now on, and who they are; by the policy in force, if there is one.

        Raises:
            ApprovalNeededError: the policy in force asks for more people; it is requested now.
        """

        def enact(connection: Connection) -> Entry | Waiting | None:
            state = self._current(connection)
            if policy == state.approvals.policy:
                return None
            return self._approved(connection, state, None, "policy", policy.body(), asker)

        self._done_or_waiting(enact, retry=False)

    def decide(self, request_id: str, decision: Decision, signer: CryptoSigner) -> None:
        """Approve a request, or deny it (whoever asked withdraws it so); signed, and final for who decides.

        Raises:
            InvalidInputError: there is no such request, or this key cannot decide so on it.
        """
        with self._lock, self._database.writing() as connection:
            state = self._current(connection)
            request, time = open_request(state, request_id), time_of(connection)
            person = state.approvals.policy.by_key(str(signer.public_key.keyid))
            if person is None:
                named = ", ".join(each.name for each in state.approvals.policy.people)
                problem = f"key: is of nobody whom the policy names ({named})"
                raise InvalidInputError("key", None, "sign with the key of one of them", problem=problem)
            if (why := state.approvals.why_not(request, decision, person, time)) is not None:
                problem = f"request: {request.hash[:SHOWN]} is one {why}"
                raise InvalidInputError(
                    "request", request_id, "`dpmerge ledger show` lists what waits", problem=problem
                )
            body = {"request": request.hash, "decision": decision}
            self._append(connection, state, None, "approval", body, time=time, signer=signer)

    def _approved(
        self,
        connection: Connection,
        state: State,
        scope: BudgetScope | None,
        kind: Kind,
        body: Mapping[str, Any],
        asker: CryptoSigner | None,
    ) -> Entry | Waiting:
        """The entry, if nobody else has to agree or enough have; else the request for it."""
        time = time_of(connection)
        approval = self._approval(connection, state, scope, kind, body, time, asker)
        if isinstance(approval, Waiting):
            return approval
        return self._append(connection, state, scope, kind, {**body, **approval}, time=time)

    def _approval(
        self,
        connection: Connection,
        state: State,
        scope: BudgetScope | None,
        kind: Kind,
        body: Mapping[str, Any],
        time: str,
        asker: CryptoSigner | None,
    ) -> dict[str, Any] | Waiting:
        """What was asked for, down to its last field, and the request's id, to be entered together; nothing where
        nobody else has to agree. Where approvals are missing, the request, made now if there is none.
        """
        if not state.approvals.needed(kind, body):
            return {}
        content, book = stated(kind, body), OF_NO_SCOPE if scope is None else scope.id
        request = state.approvals.matching(kind, book, content, time)
        if request is None:
            return self._asked(connection, state, scope, kind, content, time, asker)
        if state.approvals.missing(request):
            return Waiting(request.hash)
        asked = entries_at(connection, self.id, [request.seq])[request.seq].body["content"]
        return {**asked, "request": request.hash}

    def _asked(
        self,
        connection: Connection,
        state: State,
        scope: BudgetScope | None,
        kind: Kind,
        content: Mapping[str, Any],
        time: str,
        asker: CryptoSigner | None,
    ) -> Waiting:
        policy = state.approvals.policy
        if asker is None or policy.by_key(str(asker.public_key.keyid)) is None:
            named = ", ".join(person.name for person in policy.people)
            problem = f"requester-key: {policy.approvals} people must stand behind this, of {named}"
            found = "got the key of none of them" if asker is not None else "got no key to sign the request with"
            remedy = "ask with the private key of one of them, requester_key=FILE (--requester-key)"
            raise InvalidInputError("requester-key", None, remedy, problem=f"{problem}; {found}")
        body = {
            "kind": kind,
            "scope": None if scope is None else scope.document(),
            "content": dict(content),
            "expires": state.approvals.expiry(time),
        }
        return Waiting(self._append(connection, state, None, "request", body, time=time, signer=asker).hash)

    def _done_or_waiting(self, work: Callable[[Connection], Made | Waiting], *, retry: bool) -> Made:
        """Do something in one transaction; if a request came of it, say so once that is committed."""
        with self._lock:
            if retry:
                found = self._database.attempt(work)
            else:
                with self._database.writing() as connection:
                    found = work(connection)
        if not isinstance(found, Waiting):
            return found
        waiting = self.request(found.request)
        raise ApprovalNeededError(
            waiting.id,
            waiting.what,
            missing=waiting.missing,
            people=waiting.may_approve,
            expires=waiting.expires,
            ledger=self.where,
        )

    def _append(
        self,
        connection: Connection,
        state: State,
        scope: BudgetScope | None,
        kind: Kind,
        body: Mapping[str, Any],
        *,
        time: str | None = None,
        signer: CryptoSigner | None = None,
    ) -> Entry:
        """The entry, after one that opens its scope if that is new. The state catches up once they are committed."""
        before: list[tuple[Kind, BudgetScope | None, Mapping[str, Any]]] = []
        if state.head[0] - state.snapshot >= EVERY:
            text = snapshot_text(state)
            before.append(("snapshot", None, snapshot_body(text)))
            keep_snapshot(connection, state.head[0] + 1, text)
        if scope is not None and scope.id not in state.scopes:
            before.append(("opened", scope, scope.document()))
        by = {"by": {"role": role_of(connection), "actor": stated_actor()}}
        time = time or time_of(connection)
        entries: list[Entry] = []
        for each, of, content in (*before, (kind, scope, body)):
            head = (entries[-1].seq, entries[-1].hash) if entries else state.head
            whole = {**content, **by}
            if signer is not None and each == kind:
                whole = signed_body(self.id, head, time, kind, whole, signer)
            entries.append(following(self.id, head, kind=each, scope=of, body=whole, time=time))
        trial = deepcopy(state.approvals)
        for entry in entries:
            trial.apply(self.id, entry)  # what every reader would refuse is never written
        append(connection, entries)
        return entries[-1]
