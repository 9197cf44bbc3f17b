"""Are these the runs they seem to be? What is checked before anything is counted.

Guarantees: a run that was charged before states the same as then; no run of one data set is charged in the scope of
another; a final release is of runs that nobody has seen. (Runs that share seeded noise: `group_locks`.)
Refuses (NoGuaranteeError, RunsLockedError, InvalidInputError): anything else, naming run and field.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any

from dpmerge.errors import InvalidInputError, NoGuaranteeError, RunsLockedError
from dpmerge.ledger.entries import BudgetScope
from dpmerge.ledger.run_costs import joined
from dpmerge.ledger.scope_state import ScopeState
from dpmerge.ledger.state import State
from dpmerge.terms.documents import differences

Stated = tuple[str, dict[str, Any], str | None]
"""Identity, statement (parents by identity), noise mark."""


def require_same_runs(scope: ScopeState, runs: Iterable[Stated]) -> None:
    """Refuse a run whose statement, or noise seed, has changed."""
    for identity, statement, mark in runs:
        known = scope.runs.get(identity)
        if known is not None and (field := first_difference(known.statement, statement)) is not None:
            raise NoGuaranteeError(
                f"{statement['run']}: {field} is not what it was when the run was first charged (as {known.name}); "
                "a run does not change after it was made, so one of the two records is wrong"
            )
        if mark is not None and known is not None and known.mark not in (None, mark):
            raise NoGuaranteeError(f"{statement['run']}: noise.seed is not what it was when the run was first charged")


def first_difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> str | None:
    """The first field in which two statements differ, the run's name aside."""
    found = next(differences({**before, "run": None}, {**after, "run": None}), None)
    return None if found is None else found[0]


def require_own_dataset(state: State, scope: BudgetScope, runs: Iterable[Stated]) -> None:
    """Refuse a run that is known as one of other data, and a data set whose name is nearly another's."""
    others = [other for other in state.scopes.values() if other.scope.dataset != scope.dataset]
    for other in others:
        if _folded(other.scope.dataset) == _folded(scope.dataset):
            accepted = f"{other.scope.dataset!r}, as it was written before; or a name that nobody takes for it"
            raise InvalidInputError("dataset", scope.dataset, accepted)
    for identity, statement, _ in runs:
        for other in others:
            if identity in other.runs:
                raise NoGuaranteeError(
                    f"{statement['run']}: dataset {scope.dataset!r} is not what it was when the run was first charged "
                    f"({other.scope.dataset!r}); a run is of one data set"
                )


def _folded(name: str) -> str:
    return re.sub(r"[\s_-]+", " ", unicodedata.normalize("NFKC", name).casefold()).strip()


def require_unlocked_elsewhere(
    state: State, scope: BudgetScope, exposures: Iterable[Mapping[str, int]], *, final: bool
) -> None:
    """A run is locked, or was seen, whatever unit or adjacency it was counted under."""
    touched = sorted(joined(*exposures))
    for other in state.scopes.values():
        if other.scope != scope:
            require_unlocked(other, [dict.fromkeys((run for run in touched if run in other.runs), 0)], final=final)


def require_unlocked(scope: ScopeState, exposures: Iterable[Mapping[str, int]], *, final: bool) -> None:
    """Refuse runs that a final release has locked, and a final release of runs seen before."""
    touched = sorted(joined(*exposures))
    if locked := [run for run in touched if run in scope.locks]:
        raise RunsLockedError(
            f"{_named(scope, locked, scope.locks)}: locked by a final release, which holds only if nothing else of its "
            "runs is ever released; release from other runs"
        )
    if final and (seen := [run for run in touched if run in scope.exposed]):
        raise RunsLockedError(
            f"{_named(scope, seen, scope.seen_in)}: seen before, so that no release of them can be final; without "
            "final=True (--final) it is charged as joint release"
        )


def _named(scope: ScopeState, identities: list[str], releases: Mapping[str, str]) -> str:
    shown = [f"{scope.runs[run].name} (release {releases[run]})" for run in identities[:5]]
    more = f" and {len(identities) - 5} more" if len(identities) > 5 else ""
    return ", ".join(shown) + more
