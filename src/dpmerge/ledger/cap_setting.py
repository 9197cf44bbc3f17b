"""Setting a cap: does what was released already fit it?

Guarantees: a cap is entered only if everything so far keeps within it by its own privacy filter, counted again from the
terms; the entry says how many releases there were before, for then the cap holds only if nobody looked at them to set
it.
Refuses: another privacy filter or order than before, a ceiling whose joint release is above the cap or that has been
passed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from dpmerge.accounting.exposure import Adjacency
from dpmerge.accounting.gaussian import gaussian_epsilon
from dpmerge.errors import CapExceededError, InvalidInputError, NoGuaranteeError
from dpmerge.ledger.caps import MARGIN, Cap, gaussian_budget, renyi_budget
from dpmerge.ledger.charge import Charge, by_identity
from dpmerge.ledger.entries import Entry
from dpmerge.ledger.group_locks import require_no_known_seed
from dpmerge.ledger.privacy_filters import Proposal, adopted_cost, beyond, cost_of
from dpmerge.ledger.run_checks import Stated, require_same_runs
from dpmerge.ledger.scope_state import ScopeState
from dpmerge.terms.ancestry import mechanisms_of
from dpmerge.terms.checkpoint_reference import CheckpointReference
from dpmerge.terms.documents import validated
from dpmerge.terms.run_record import RunRecord


def cap_body(state: ScopeState, cap: Cap) -> dict[str, Any]:
    """The body of the entry that sets the cap, or why it cannot be set."""
    _require_same_rule(state, cap)
    if state.uncharged:
        raise CapExceededError(
            f"release {state.uncharged[0]} was chosen in a way that is not charged: no cap covers it"
        )
    if state.validation > 0:
        raise CapExceededError(
            "a private validation shared people with the training set: no privacy filter counts it under a cap"
        )
    if state.conflict is not None and cap.rule != "ceiling":
        raise CapExceededError(f"no cap on {state.scope} can be vouched for: {state.conflict}")
    if state.validation_apart > cap.epsilon:
        raise CapExceededError(f"the people of validation sets have paid ε {state.validation_apart:.6g} already")
    ceiling = list(_ceiling(state, cap)) if cap.rule == "ceiling" else []
    spent = spent_so_far(state, cap.rule, cap.order)
    _require_fit(state, cap, spent)
    return {
        "epsilon": cap.epsilon,
        "delta": cap.delta,
        "rule": cap.rule,
        "order": cap.order,
        "ceiling": ceiling,
        "releases_before": len(state.releases),
        "spent_before": spent,
    }


def cap_in(body: Mapping[str, Any]) -> Cap:
    """The cap that an entry set."""
    runs = body["ceiling"]
    return Cap(
        epsilon=body["epsilon"],
        delta=body["delta"],
        rule=body["rule"],
        ceiling={run["identity"]: run["step"] for run in runs},
        statements={run["identity"]: validated(RunRecord, run["statement"], "statement") for run in runs},
        marks={run["identity"]: run["mark"] for run in runs},
        order=body["order"],
    )


def spent_so_far(state: ScopeState, rule: str, order: float | None) -> float:
    """Everything so far in the filter's currency, counted again release by release."""
    if rule == "ceiling":
        return 0.0
    replayed, spent = ScopeState.of(state.scope), 0.0
    for release in state.releases.newest(None):
        spent += recounted(replayed, release, rule, order)
        replayed.apply(release.entry)
    return spent


def recounted(state: ScopeState, charge: Charge, rule: str, order: float | None) -> float:
    """What a release costs on top of a scope as it was before, from its terms."""
    before = state.considering(charge.runs)
    proposal = Proposal(charge.terms, charge.exposures, charge.final)
    if charge.adopted:
        return adopted_cost(before, proposal, charge.index, rule, order)
    return cost_of(before, proposal, rule, order)


def adoption_cost(state: ScopeState, charge: Charge) -> float | None:
    """What a release adds that is counted whether or not it may be; None where there is no number."""
    if state.cap is None:
        return 0.0
    try:
        cost = recounted(state, charge, state.cap["rule"], state.cap["order"])
    except NoGuaranteeError:
        return None
    return cost if math.isfinite(cost) else None


def adopted_body(state: ScopeState, body: Mapping[str, Any]) -> dict[str, Any]:
    """The body of an entry that adopts a release, with how it is counted and what it costs."""
    charge = Charge(entry=Entry.draft("adopted", state.scope, body))
    proposal = Proposal(charge.terms, charge.exposures, charge.final)
    by_theorem = proposal.bounds is not None and charge.index is not None
    return {**body, "counted": "theorem" if by_theorem else "joint", "cost": adoption_cost(state, charge)}


def _require_same_rule(state: ScopeState, cap: Cap) -> None:
    for field, name, value in (("rule", "privacy_filter", cap.rule), ("order", "order", cap.order)):
        if state.cap is not None and state.cap[field] != value:
            problem = (
                f"cap.{name}: the cap was first set with {state.cap[field]}, and {value} would count the past anew"
            )
            raise InvalidInputError(f"cap.{name}", value, "keep to the first", problem=problem)


def _ceiling(state: ScopeState, cap: Cap) -> Iterator[dict[str, Any]]:
    """Each run of the ceiling, ancestors included, once the whole is known to fit."""
    runs = list(_ceiling_runs(cap))
    require_same_runs(state, runs)
    require_no_known_seed(state, runs, {identity for identity, _, _ in runs})
    statements = {identity: validated(RunRecord, statement, "statement") for identity, statement, _ in runs}
    mechanisms_of(statements, Adjacency(state.scope.adjacency))  # refuses runs that descend from themselves
    considered = state.considering(runs)
    steps = considered.prices.with_ancestors(cap.ceiling)
    profile = considered.prices.joint(steps)
    profile.check_delta(cap.delta)
    delta = profile.delta(cap.epsilon)
    if not delta <= cap.delta:
        raise CapExceededError(
            f"the joint release of the ceiling has δ {delta:.6g} at ε {cap.epsilon:g}, above the "
            f"{cap.delta:g} of the cap; lower the ceiling or raise the cap"
        )
    if over := beyond(steps, state.exposed):
        furthest = CheckpointReference(considered.runs[over[0]].name, state.exposed[over[0]])
        raise CapExceededError(f"{furthest} was released and is above the ceiling; raise it")
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
                    raise InvalidInputError(
                        "cap.statements", parent, "the statements of the runs' ancestors too, each by a name of its own"
                    )
                left.append(names[parent])
    for identity in sorted(needed):
        document = cap.statements[identity].document()
        yield identity, by_identity(document, names), cap.marks.get(identity)


def _require_fit(state: ScopeState, cap: Cap, spent: float) -> None:
    if cap.rule == "gaussian_filter":
        limit, used = gaussian_budget(cap.epsilon, cap.delta), state.prices.squared_mu(state.high_water) + spent
        currency, epsilon = "μ²", float(gaussian_epsilon(math.sqrt(used), cap.delta))
    elif cap.rule == "renyi_filter":
        assert cap.order is not None
        limit, used = renyi_budget(cap.epsilon, cap.delta, cap.order), spent
        currency, epsilon = f"Rényi divergence of order {cap.order:g}", cap.epsilon + used - limit
    else:
        return
    if not used * (1 + MARGIN) <= limit:
        raise CapExceededError(
            f"what was released already has ε of about {epsilon:.4g} by {cap.rule}, above the {cap.epsilon:g} of the "
            f"cap ({currency} {used:.6g}, and {limit:.6g} is allowed); raise the cap"
        )
