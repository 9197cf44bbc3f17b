"""Does a ledger hold? Every entry read again, every cost counted again.

Guarantees: a ledger that passes is a whole chain from its first entry to its head, each release of which its own filter
allowed when it was made; no stored figure is believed. The first entry that fails is named.
Refuses: nothing; a broken ledger is an answer. (Entries cut off at the end, together with the head, show only to
someone who has seen them: see `head_checkpoint`.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from dpmerge.errors import DpmergeError, LedgerBrokenError
from dpmerge.ledger.cap_setting import adoption_cost, cap_body, cap_in
from dpmerge.ledger.charge import Charge
from dpmerge.ledger.entries import Entry, canonical
from dpmerge.ledger.group_locks import require_own_noise, require_stated_groups
from dpmerge.ledger.privacy_filters import Proposal, admit
from dpmerge.ledger.run_checks import require_own_dataset, require_same_runs, require_unlocked_elsewhere
from dpmerge.ledger.scope_state import ScopeState
from dpmerge.ledger.snapshots import require_true_snapshot
from dpmerge.ledger.state import State, require_next

_AGREE = 1e-9  # relative: what another version of numpy may do to the last digits of a sum


@dataclass(frozen=True)
class Verdict:
    """Whether a ledger holds; if not, at which entry, and why. `doubt` is what its portfolio has seen and it lacks."""

    ok: bool
    count: int
    broken: int | None = None
    why: str | None = None
    doubt: str | None = None


def verified(ledger: str, entries: Iterable[Entry], head: tuple[int, str]) -> Verdict:
    """Every entry in order, then the head."""
    state = State(ledger)
    for entry in entries:
        try:
            require_next(ledger, state.head, entry)
            _require_true(state, entry)
            state.apply(entry)
        except (DpmergeError, KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            why = str(error) if isinstance(error, DpmergeError) else f"its body is not what its kind has ({error!r})"
            prefix = f"entry {state.head[0] + 1}: "
            return Verdict(False, state.head[0], state.head[0] + 1, why.removeprefix(prefix))
    if state.head != head:
        why = f"missing: the ledger says that its last entry is {head[0]}"
        return Verdict(False, state.head[0], min(state.head[0] + 1, max(head[0], 1)), why)
    return Verdict(True, state.head[0])


def _require_true(state: State, entry: Entry) -> None:
    if canonical(entry.content) != entry.text:
        raise LedgerBrokenError(f"entry {entry.seq}: its body is not canonical JSON")
    if entry.kind == "snapshot":
        require_true_snapshot(state, entry)
    known = state.scopes.get(entry.book)
    check = _CHECKS.get(entry.kind)
    if known is not None and check is not None:
        check(state, known, entry)


def _require_cap(_: State, known: ScopeState, entry: Entry) -> None:
    body = entry.body
    again = cap_body(known, cap_in(body))
    if not math.isclose(again.pop("spent_before"), body["spent_before"], rel_tol=_AGREE, abs_tol=_AGREE):
        raise LedgerBrokenError(f"entry {entry.seq}: what had been spent before the cap is not what it says")
    if canonical(again) != canonical(
        {name: value for name, value in body.items() if name not in ("spent_before", "by", "request")}
    ):
        raise LedgerBrokenError(f"entry {entry.seq}: the cap is not what its privacy filter makes of it")


def _require_release(state: State, known: ScopeState, entry: Entry) -> None:
    body = entry.body
    charge = Charge(entry=entry)
    runs = list(charge.runs)
    require_own_dataset(state, known.scope, runs)
    require_same_runs(known, runs)
    require_stated_groups(charge)
    require_own_noise(state, known.scope, runs)
    if not 0 <= body["index"] < len(charge.exposures):
        raise LedgerBrokenError(f"entry {entry.seq}: a candidate was drawn that the terms do not have")
    proposal = Proposal(charge.terms, charge.exposures, body["final"])
    require_unlocked_elsewhere(state, known.scope, proposal.exposures, final=body["final"])
    admitted = admit(known.considering(runs), proposal)
    _require_counted(entry, admitted.counted, admitted.cost)


def _require_adopted(_: State, known: ScopeState, entry: Entry) -> None:
    body = entry.body
    charge = Charge(entry=entry)
    if "everything" in body:
        everything = known.considering(charge.runs).everything()
        if body["index"] is not None or "signed_by" in body or canonical(everything) != canonical(body["everything"]):
            raise LedgerBrokenError(f"entry {entry.seq}: adopted with no signature, and it does not count everything")
    cost = adoption_cost(known, charge)
    proposal = Proposal(charge.terms, charge.exposures, body["final"])
    by_theorem = proposal.bounds is not None and body["index"] is not None
    _require_counted(entry, "theorem" if by_theorem else "joint", cost)


def _require_counted(entry: Entry, counted: str, cost: float | None) -> None:
    said = entry.body["cost"]
    unknown = cost is None or said is None
    agree = cost is said if unknown else math.isclose(said, cost or 0.0, rel_tol=_AGREE, abs_tol=_AGREE)
    if entry.body["counted"] != counted or not agree:
        raise LedgerBrokenError(f"entry {entry.seq}: its cost, counted again from its terms, is not what it says")


_CHECKS: dict[str, Callable[[State, ScopeState, Entry], None]] = {
    "cap": _require_cap,
    "release": _require_release,
    "adopted": _require_adopted,
}
