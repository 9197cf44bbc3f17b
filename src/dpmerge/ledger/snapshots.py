"""Snapshots of a ledger's state, so that a charge does not read all entries again.

Guarantees: a snapshot is used only if an entry of the chain holds its digest, and that entry and all after it are
whole; what is read from it is the state that the entries before it give (`verify` folds them again, and compares). One
that does not fit, or that another version wrote, is left aside, and the entries are read instead.
Only the newest is kept: older ones can be made again.
"""

from __future__ import annotations

import json
from typing import Any

from dpmerge.errors import InvalidInputError, LedgerBrokenError
from dpmerge.ledger.approval_policy import NOBODY_ELSE
from dpmerge.ledger.approvals import Approvals
from dpmerge.ledger.entries import BudgetScope, Entry, canonical, sha256
from dpmerge.ledger.releases import EntriesAt, ReleaseRow, Releases
from dpmerge.ledger.scope_state import ScopeState
from dpmerge.ledger.state import State, require_next

EVERY = 500
"""Entries: so many are read again at most, some tenths of a second."""
FORMAT, WITH_POLICY = 1, 2
"""Versions that know of no policies cannot read the second, and so read the entries, of which they refuse some."""

_AS_THEY_ARE = (
    "draws", "high_water", "exposed", "seen_in", "locks", "cap", "spent", "uncharged", "validation",
    "validation_apart", "accepted", "conflict",
)  # fmt: skip


def snapshot_text(state: State) -> str:
    """All that is known up to the state's head, as canonical JSON."""
    content = {"format": _format(state), "head": list(state.head), "scopes": [*map(_written, state.scopes.values())]}
    if content["format"] == WITH_POLICY:
        content["approvals"] = state.approvals.document()
    return canonical(content)


def _format(state: State) -> int:
    return FORMAT if state.approvals.policy == NOBODY_ELSE else WITH_POLICY


def snapshot_body(text: str) -> dict[str, Any]:
    """The body of the entry that seals a snapshot."""
    return {"format": json.loads(text)["format"], "state": sha256(text)}


def restored(ledger: str, sealed_by: Entry, text: str, entries_at: EntriesAt) -> State | None:
    """The state after the entry that sealed a snapshot; None if it is no snapshot that can be used here."""
    try:
        body = sealed_by.body
        if sealed_by.kind != "snapshot" or body["state"] != sha256(text):
            return None
        content = json.loads(text)
        if content["format"] != body["format"] or body["format"] not in (FORMAT, WITH_POLICY):
            return None
        seq, digest = content["head"]
        state = State(ledger, head=(seq, digest))
        if content["format"] == WITH_POLICY:
            state.approvals = Approvals.read(content["approvals"])
        for written in content["scopes"]:
            scope = _read(written, entries_at)
            state.scopes[scope.scope.id] = scope
            state.releases.update(dict.fromkeys(scope.releases, scope))
        state.apply(sealed_by)
    except (LedgerBrokenError, InvalidInputError, KeyError, TypeError, ValueError):
        return None
    return state


def require_true_snapshot(state: State, sealed_by: Entry) -> None:
    """Refuse an entry that seals another state than the entries before it give."""
    require_next(state.ledger, state.head, sealed_by)
    body = sealed_by.body
    if body["format"] in (FORMAT, WITH_POLICY) and body["state"] != sha256(snapshot_text(state)):
        raise LedgerBrokenError(f"entry {sealed_by.seq}: seals a state that the entries before it do not give")


def _written(scope: ScopeState) -> dict[str, Any]:
    return {
        "scope": scope.scope.document(),
        "runs": [[run.identity, run.statement, run.mark] for run in scope.runs.values()],
        "releases": [list(row) for row in scope.releases.rows()],
        "finals": {release_id: sorted(runs) for release_id, runs in scope.finals.items()},
        **{name: getattr(scope, name) for name in _AS_THEY_ARE},
    }


def _read(written: dict[str, Any], entries_at: EntriesAt) -> ScopeState:
    scope = ScopeState.of(BudgetScope(**written["scope"]))
    for identity, statement, mark in written["runs"]:
        scope.know(identity, statement, mark)
    scope.releases = Releases((ReleaseRow(*row) for row in written["releases"]), entries_at)
    for row in scope.releases.rows():
        if row.key is not None:
            scope.keys.setdefault(row.key, row.release_id)
    scope.finals = {release_id: frozenset(runs) for release_id, runs in written["finals"].items()}
    for name in _AS_THEY_ARE:
        setattr(scope, name, written[name])
    return scope
