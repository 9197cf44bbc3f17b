"""Setting a cap: does what has left already fit it?

Guarantees: a cap is entered only if everything so far keeps within it by its own rule, counted again from the terms;
the entry says how many releases there were before, for then the cap holds only if nobody looked at them to set it.
Refuses: another rule or order than before, a ceiling whose joint release is above the cap or that has been passed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from dpmerge.errors import CapExceeded, InvalidInput, NoGuarantee
from dpmerge.ledger.caps import MARGIN, Cap, gaussian_budget, renyi_budget
from dpmerge.ledger.rules import Proposal, adopted_cost, beyond, cost_of
from dpmerge.ledger.runs import Stated, require_same_runs
from dpmerge.ledger.state import BookState, Release, by_identity, stated
from dpmerge.portfolio.statement import RunStatement, stated_mechanisms
from dpmerge.privacy.exposure import Adjacency


def cap_body(book: BookState, cap: Cap) -> dict[str, Any]:
    """The body of the entry that sets the cap, or why it cannot be set."""
    _require_same_rule(book, cap)
    if book.uncharged:
        raise CapExceeded(f"release {book.uncharged[0]} was chosen in a way that is not charged: no cap covers it")
    if book.validation > 0:
        raise CapExceeded("a private validation shared people with the training set: no rule counts it under a cap")
    if book.conflict is not None and cap.rule != "ceiling":
        raise CapExceeded(f"no cap on {book.book} can be vouched for: {book.conflict}")
    if book.validation_apart > cap.epsilon:
        raise CapExceeded(f"the people of validation sets have paid ε {book.validation_apart:.6g} already")
    ceiling = list(_ceiling(book, cap)) if cap.rule == "ceiling" else []
    spent = spent_so_far(book, cap.rule, cap.order)
    _require_fit(book, cap, spent)
    return {
        "epsilon": cap.epsilon,
        "delta": cap.delta,
        "rule": cap.rule,
        "order": cap.order,
        "ceiling": ceiling,
        "releasesBefore": len(book.releases),
        "spentBefore": spent,
    }


def cap_in(body: Mapping[str, Any]) -> Cap:
    """The cap that an entry set."""
    runs = body["ceiling"]
    return Cap(
        epsilon=body["epsilon"],
        delta=body["delta"],
        rule=body["rule"],
        ceiling={run["identity"]: run["step"] for run in runs},
        statements={run["identity"]: RunStatement.model_validate(run["statement"]) for run in runs},
        marks={run["identity"]: run["mark"] for run in runs},
        order=body["order"],
    )


def spent_so_far(book: BookState, rule: str, order: float | None) -> float:
    """Everything so far in the rule's currency, counted again release by release."""
    if rule == "ceiling":
        return 0.0
    replayed, spent = BookState.of(book.book), 0.0
    for release in book.releases.values():
        spent += recounted(replayed, release, rule, order)
        replayed.apply(release.entry)
    return spent


def recounted(book: BookState, release: Release, rule: str, order: float | None) -> float:
    """What a release costs on top of a book as it was before, from its terms."""
    entry = release.entry
    before = book.considering(stated(entry.body))
    proposal = Proposal(release.terms, release.exposures, entry.body["final"])
    if entry.kind == "adopted":
        return adopted_cost(before, proposal, entry.body["index"], rule, order)
    return cost_of(before, proposal, rule, order)


def adoption_cost(book: BookState, release: Release) -> float | None:
    """What a release adds that is counted whether or not it may be; None where there is no number."""
    if book.cap is None:
        return 0.0
    try:
        cost = recounted(book, release, book.cap["rule"], book.cap["order"])
    except NoGuarantee:
        return None
    return cost if math.isfinite(cost) else None


def _require_same_rule(book: BookState, cap: Cap) -> None:
    for field, value in (("rule", cap.rule), ("order", cap.order)):
        if book.cap is not None and book.cap[field] != value:
            accepted = f"{book.cap[field]}, as the cap was first set: another one would count the past anew"
            raise InvalidInput(f"cap.{field}", value, accepted)


def _ceiling(book: BookState, cap: Cap) -> Iterator[dict[str, Any]]:
    """Each run of the ceiling, ancestors included, once the whole is known to fit."""
    runs = list(_ceiling_runs(cap))
    require_same_runs(book, runs)
    statements = {identity: RunStatement.model_validate(statement) for identity, statement, _ in runs}
    stated_mechanisms(statements, Adjacency(book.book.adjacency))  # refuses runs that descend from themselves
    considered = book.considering(runs)
    steps = considered.prices.with_ancestors(cap.ceiling)
    profile = considered.prices.joint(steps)
    profile.check_delta(cap.delta)
    delta = profile.delta(cap.epsilon)
    if not delta <= cap.delta:
        raise CapExceeded(
            f"the joint release of the ceiling has δ {delta:.6g} at ε {cap.epsilon:g}; accepted: at most {cap.delta:g}"
        )
    if over := beyond(steps, book.exposed):
        raise CapExceeded(f"{considered.runs[over[0]].name}@{book.exposed[over[0]]} has left and is above the ceiling")
    by_run = {identity: (statement, mark) for identity, statement, mark in runs}
    for identity, step in sorted(steps.items()):
        statement, mark = by_run[identity]
        yield {"identity": identity, "step": step, "statement": statement, "mark": mark}


def _ceiling_runs(cap: Cap) -> Iterator[Stated]:
    """A parent is named as its own statement is named, or already by identity."""
    owners: dict[str, list[str]] = {}
    for identity, statement in cap.statements.items():
        owners.setdefault(statement.run, []).append(identity)
    names = {name: found[0] for name, found in owners.items() if len(found) == 1}
    names |= {identity: identity for identity in cap.statements}
    needed, left = set[str](), list(cap.ceiling)
    while left:
        identity = left.pop()
        if identity not in needed:
            needed.add(identity)
            parent = cap.statements[identity].ancestry.run
            if parent is not None:
                if parent not in names:
                    raise InvalidInput(
                        "cap.statements", parent, "the statements of the runs' ancestors too, each by a name of its own"
                    )
                left.append(names[parent])
    for identity in sorted(needed):
        document = cap.statements[identity].model_dump(by_alias=True, exclude_none=True)
        yield identity, by_identity(document, names), cap.marks.get(identity)


def _require_fit(book: BookState, cap: Cap, spent: float) -> None:
    if cap.rule == "gaussian_filter":
        limit, used = gaussian_budget(cap.epsilon, cap.delta), book.prices.squared_mu(book.high_water) + spent
    elif cap.rule == "renyi_filter":
        assert cap.order is not None
        limit, used = renyi_budget(cap.epsilon, cap.delta, cap.order), spent
    else:
        return
    if not used * (1 + MARGIN) <= limit:
        raise CapExceeded(f"what has left already needs {used:.6g} of the {limit:.6g} that {cap.rule} allows here")
