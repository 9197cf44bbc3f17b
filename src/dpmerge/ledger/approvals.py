"""What waits for a second person, and whether what was done had one: a fold of policies, requests and approvals.

Guarantees: while a policy asks for more than one person, no final release, cap, vow, abandonment or policy counts
unless its entry names an open request for exactly that, signed by one person of the policy and approved by enough
others; each request is good for one entry. A person who leaves the policy takes their word along.
Refuses (LedgerBrokenError): every entry that breaks this, whoever wrote it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from dpmerge.errors import LedgerBrokenError
from dpmerge.ledger.approval_policy import NOBODY_ELSE, Person, Policy
from dpmerge.ledger.entries import OF_NO_SCOPE, BudgetScope, Entry, canonical, sha256, written
from dpmerge.ledger.signed_entries import require_signature

OF_APPROVALS = ("policy", "request", "approval")
"""Kinds of entries that are of the whole ledger, and charge nothing."""

FOLLOWING: dict[str, frozenset[str]] = {
    "release": frozenset({"release", "counted", "cost", "index"}),
    "cap": frozenset({"releases_before", "spent_before"}),
    "abandoned": frozenset(),
    "accepted": frozenset(),
    "policy": frozenset(),
}
"""What needs approval → the fields that follow from the ledger, or are drawn, when it is done."""

_OF_EVERY_ENTRY = frozenset({"by", "request"})
_ONE_AT_A_TIME = ("cap", "policy")
"""Done once, others of the kind that were asked for before are about a state that is no more."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """Something that was asked for: the digest of exactly what, who asked, and who has approved (ids of keys)."""

    seq: int
    hash: str
    time: str
    expires: str
    kind: str
    book: str
    digest: str
    meaning: str
    """The digest without what is random in it: by this the same command finds its request again."""
    asker: str
    approvals: tuple[str, ...] = ()


@dataclass
class Approvals:
    """The policy in force, and what is open under it."""

    policy: Policy = NOBODY_ELSE
    open: dict[str, Request] = field(default_factory=dict)
    latest: str = ""
    """The latest time of an entry: a clock that was put back makes nothing younger."""

    def needed(self, kind: str, body: Mapping[str, Any]) -> bool:
        """Whether an entry of this kind, with this body, needs a second person."""
        return self.policy.needs_others and kind in FOLLOWING and (kind != "release" or bool(body["final"]))

    def missing(self, request: Request) -> int:
        """How many people are still to approve."""
        return max(0, self.policy.approvals - 1 - len(request.approvals))

    def is_expired(self, request: Request, time: str) -> bool:
        return self.moment(time) > _moment(request.expires)

    def moment(self, time: str) -> datetime:
        return max(_moment(time), _moment(self.latest or time))

    def expiry(self, time: str) -> str:
        """When a request of this time is no longer open."""
        return written(self.moment(time) + timedelta(days=self.policy.days))

    def matching(self, kind: str, book: str, content: Mapping[str, Any], time: str) -> Request | None:
        """The open request for this, the oldest if there are several; one that is approved goes first."""
        wanted = (kind, book, meaning(content))
        found = [
            each
            for each in self.open.values()
            if (each.kind, each.book, each.meaning) == wanted and not self.is_expired(each, time)
        ]
        return min(found, key=lambda each: (self.missing(each), each.seq), default=None)

    def apply(self, ledger: str, entry: Entry) -> None:
        """The next entry of the ledger, of whatever kind."""
        if entry.kind in OF_APPROVALS and entry.book != OF_NO_SCOPE:
            raise LedgerBrokenError(f"entry {entry.seq}: of a budget scope, and its kind is of the whole ledger")
        if self.needed(entry.kind, entry.body if entry.kind == "release" else {}):
            self._use(entry)
        if entry.kind == "policy":
            self._enact(Policy.of(entry.body))
        elif entry.kind == "request":
            self._ask(ledger, entry)
        elif entry.kind == "approval":
            self._decide(ledger, entry)
        if self.policy.needs_others and self.moment(entry.time) == _moment(entry.time):
            self.latest = entry.time

    def _use(self, entry: Entry) -> None:
        """What needed approval was done: refused unless it had it, and then the request is used up."""
        request = self.open.get(str(entry.body.get("request")))
        if request is None:
            raise LedgerBrokenError(
                f"entry {entry.seq}: {entry.kind} without an approved request, where {self.policy.approvals} people "
                "must stand behind one"
            )
        if (request.kind, request.book, request.digest) != (entry.kind, entry.book, digest(content_of(entry))):
            raise LedgerBrokenError(f"entry {entry.seq}: is not what request {request.hash[:16]} asked for")
        if missing := self.missing(request):
            raise LedgerBrokenError(f"entry {entry.seq}: request {request.hash[:16]} lacks {missing} approvals")
        if self.is_expired(request, entry.time):
            raise LedgerBrokenError(f"entry {entry.seq}: request {request.hash[:16]} had expired {request.expires}")
        del self.open[request.hash]
        if entry.kind in _ONE_AT_A_TIME:
            same = [each.hash for each in self.open.values() if (each.kind, each.book) == (entry.kind, entry.book)]
            for stale in same:
                del self.open[stale]

    def _enact(self, policy: Policy) -> None:
        """Requests of who is no longer in the policy lapse, and so do their approvals."""
        self.policy = policy
        if not policy.needs_others:
            self.open, self.latest = {}, ""
        known = {person.key_id for person in policy.people}
        self.open = {
            each.hash: replace(each, approvals=tuple(key for key in each.approvals if key in known))
            for each in self.open.values()
            if each.asker in known
        }

    def _ask(self, ledger: str, entry: Entry) -> None:
        body, asker = entry.body, self._signed_by(ledger, entry)
        if body["kind"] not in FOLLOWING:
            raise LedgerBrokenError(f"entry {entry.seq}: asks for a {body['kind']!r}, which needs no approval")
        if _moment(body["expires"]) > _moment(self.expiry(entry.time)):
            raise LedgerBrokenError(f"entry {entry.seq}: would be open for more than {self.policy.days} days")
        self.open = {each.hash: each for each in self.open.values() if not self.is_expired(each, entry.time)}
        self.open[entry.hash] = Request(
            seq=entry.seq,
            hash=entry.hash,
            time=entry.time,
            expires=body["expires"],
            kind=body["kind"],
            book=book_of(body["scope"]),
            digest=digest(body["content"]),
            meaning=meaning(body["content"]),
            asker=asker.key_id,
        )

    def _decide(self, ledger: str, entry: Entry) -> None:
        body, person = entry.body, self._signed_by(ledger, entry)
        request = self.open.get(str(body["request"]))
        why = "that is not open" if request is None else self.why_not(request, body["decision"], person, entry.time)
        if request is None or why is not None:
            raise LedgerBrokenError(f"entry {entry.seq}: decides on a request {why}")
        if body["decision"] == "denied":
            del self.open[request.hash]
        else:
            self.open[request.hash] = replace(request, approvals=(*request.approvals, person.key_id))

    def why_not(self, request: Request, decision: str, person: Person, time: str) -> str | None:
        """Why somebody cannot decide so on a request; None if they can."""
        if decision not in ("approved", "denied"):
            return f"neither approved nor denied, but {decision!r}"
        if self.is_expired(request, time):
            return f"that expired {request.expires}"
        if decision == "approved" and person.key_id == request.asker:
            return f"of {person.name}'s own: another person has to approve it"
        if decision == "approved" and person.key_id in request.approvals:
            return f"that {person.name} has approved already, and nobody counts twice"
        return None

    def _signed_by(self, ledger: str, entry: Entry) -> Person:
        if not self.policy.needs_others:
            raise LedgerBrokenError(f"entry {entry.seq}: a {entry.kind}, and no policy asks for a second person")
        person = self.policy.by_key(entry.body["key"])
        if person is None:
            raise LedgerBrokenError(f"entry {entry.seq}: signed with a key that the policy in force does not name")
        require_signature(ledger, entry, person.key)
        return person

    def document(self) -> dict[str, Any]:
        """As a snapshot holds it."""
        return {
            "policy": self.policy.body(),
            "open": [asdict(request) for request in self.open.values()],
            "latest": self.latest,
        }

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Approvals:
        requests = [Request(**{**each, "approvals": tuple(each["approvals"])}) for each in document["open"]]
        policy = Policy.of(document["policy"])
        return cls(policy=policy, open={each.hash: each for each in requests}, latest=document["latest"])


def book_of(scope: Mapping[str, str] | None) -> str:
    """Where an entry of this budget scope stands; of the whole ledger without one."""
    return OF_NO_SCOPE if scope is None else BudgetScope(**scope).id


def content_of(entry: Entry) -> dict[str, Any]:
    """What an entry does, as far as somebody decided it."""
    return stated(entry.kind, entry.body)


def stated(kind: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a body that is asked for, and approved."""
    left_out = FOLLOWING[kind] | _OF_EVERY_ENTRY
    return {name: value for name, value in body.items() if name not in left_out}


def digest(content: Mapping[str, Any]) -> str:
    return sha256(canonical(dict(content)))


def meaning(content: Mapping[str, Any]) -> str:
    """The digest of a content without the random number that blinds a release's entry."""
    details = content.get("details")
    if not isinstance(details, dict) or "nonce" not in details:
        return digest(content)
    return digest({**content, "details": {name: value for name, value in details.items() if name != "nonce"}})


def _moment(time: str) -> datetime:
    found = datetime.fromisoformat(time)
    if found.tzinfo is None:
        raise ValueError(f"{time!r} has no time zone")
    return found
