"""What waits for approval, for whoever has to decide: exactly what would be done, who asked, who is still missing.

Guarantees: everything shown is read from the request's own entry; a release's ε is counted from its terms, and not
what somebody states of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dpmerge.accounting.rounding import format_up
from dpmerge.errors import NoGuaranteeError
from dpmerge.ledger.approval_policy import Policy
from dpmerge.ledger.approvals import Approvals, Request
from dpmerge.ledger.cap_setting import cap_in
from dpmerge.ledger.charge import Charge
from dpmerge.ledger.entries import BudgetScope, Entry

SHOWN = 16
"""Hexadecimal digits of a request's id that are shown, and typed."""


@dataclass(frozen=True, kw_only=True)
class WaitingRequest:
    """A request that is open: `missing` people have still to approve it, and then it can be carried out, once.

    `id` is the hash of its entry. `content` is exactly what would be entered.
    """

    id: str
    seq: int
    time: str
    expires: str
    kind: str
    what: str
    scope: dict[str, str] | None
    asked_by: str
    actor: str | None
    approved_by: tuple[str, ...]
    missing: int
    may_approve: tuple[str, ...]
    content: Mapping[str, Any]

    @property
    def short_id(self) -> str:
        return self.id[:SHOWN]

    @property
    def needed(self) -> str:
        """Who is still missing: all of those who may approve, or some of them."""
        if self.missing == len(self.may_approve):
            return " and ".join(self.may_approve)
        return f"{self.missing} of {', '.join(self.may_approve)}"

    @classmethod
    def of(cls, approvals: Approvals, request: Request, entry: Entry) -> WaitingRequest:
        body, policy = entry.body, approvals.policy
        others = (each.key_id for each in policy.people if each.key_id not in (request.asker, *request.approvals))
        return cls(
            id=request.hash,
            seq=request.seq,
            time=request.time,
            expires=request.expires,
            kind=request.kind,
            what=described(request.kind, body["scope"], body["content"]),
            scope=body["scope"],
            asked_by=policy.names([request.asker])[0],
            actor=(body.get("by") or {}).get("actor"),
            approved_by=tuple(policy.names(request.approvals)),
            missing=approvals.missing(request),
            may_approve=tuple(policy.names(others)),
            content=body["content"],
        )


def described(kind: str, scope: Mapping[str, str] | None, content: Mapping[str, Any]) -> str:
    """What would be done, in one line."""
    if kind == "policy":
        return described_policy(Policy.of(content))
    assert scope is not None, "everything but a policy is of a budget scope"
    whose = BudgetScope(**scope)
    if kind == "cap":
        return f"{_cap(content)} on {whose}"
    if kind == "release":
        return f"{_release(whose, content)} of {whose}"
    if kind == "abandoned":
        return f"give up release {content['release']} of {whose}; it stays charged"
    return f"vouch that nothing of {whose} is missing in the ledger, {content['why']}"


def described_policy(policy: Policy) -> str:
    """A policy in one line, with the keys it names: they are what counts."""
    if not policy.needs_others:
        return "policy: nobody else has to approve anything"
    people = ", ".join(f"{person.name} (key {person.key_id[:SHOWN]})" for person in policy.people)
    return (
        f"policy: {policy.approvals} people, who asks included, of {people}; requests are open for {policy.days} days"
    )


def _cap(content: Mapping[str, Any]) -> str:
    cap = cap_in(content)
    order = "" if cap.order is None else f" of order {cap.order:g}"
    steps = [f"{cap.statements[each].run}@{step}" for each, step in cap.ceiling.items()]
    ceiling = f" ({', '.join(steps)})" if steps else ""
    return f"cap ε = {cap.epsilon!r} at δ = {cap.delta!r} by {cap.rule}{order}{ceiling}"


def _release(scope: BudgetScope, content: Mapping[str, Any]) -> str:
    charge = Charge(entry=Entry.draft("release", scope, content))
    terms, details = charge.terms, charge.details
    made = " or ".join(str(each.recipe) for each in terms.candidates)
    drawn = f"one of {len(terms.candidates)}, drawn: " if len(terms.candidates) > 1 else ""
    delta = (details.get("target") or {}).get("delta", 1e-5)
    try:
        cost = f"ε = {format_up(terms.epsilon(delta))} at δ = {delta!r}"
    except NoGuaranteeError as error:
        cost = f"no ε at δ = {delta!r} ({error})"
    where = f", to {details['out']}" if "out" in details else ""
    where += ", replacing what is there" if details.get("overwrite") else ""
    return f"final release ({drawn}{made}; {cost}{where})"
