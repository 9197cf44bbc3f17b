"""Noise groups in a ledger: runs that share a noise seed, known by a mark of it, across portfolios, names and time.

One selection among them, as a final release, is all that may ever be released of a group: what two of its runs cost
together nobody knows. Whichever is drawn, nothing of the group was seen before it and nothing will be after it, so that
it composes with everything else as one mechanism with the cost of the draw (theory 6.2).

Guarantees: runs with one mark are one group, whatever their terms or names say; a candidate exposes one run of it; a
group of which anything was seen is closed, run by run, in every scope of the ledger, of other data too.
Refuses (NoGuaranteeError, RunsLockedError, CapExceededError): anything else, naming the runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from dpmerge.accounting.exposure import one_seed
from dpmerge.errors import CapExceededError, NoGuaranteeError, RunsLockedError
from dpmerge.ledger.charge import Charge
from dpmerge.ledger.entries import BudgetScope
from dpmerge.ledger.scope_state import KnownRun, ScopeState
from dpmerge.ledger.state import State

Stated = tuple[str, Mapping[str, object], str | None]
"""Identity, statement (parents by identity), noise mark."""


def require_stated_groups(charge: Charge) -> None:
    """Refuse a release whose terms do not say which of its runs share a noise seed."""
    groups = {run: place for place, group in enumerate(charge.terms.noise_groups or ()) for run in group}
    first: dict[str, str] = {}
    for name, mark in charge.marks.items():
        other = name if mark is None else first.setdefault(mark, name)
        if other != name and (name not in groups or groups[name] != groups.get(other)):
            raise NoGuaranteeError(
                f"{name} and {other} were made with the same noise seed: their noise is not independent, together they "
                "cost more than their sum, and the terms do not say so (noise_groups)"
            )


def require_own_noise(state: State, scope: BudgetScope, runs: Iterable[Stated]) -> None:
    """Refuse a run that shares its seed with one that is known already, and is not part of the same release."""
    stated = list(runs)
    ours = {identity for identity, _, _ in stated}
    # Of other data too: what was released of it tells its noise to who knows it, and so takes the noise off this.
    for other in state.scopes.values():
        require_no_known_seed(other, stated, ours, everything=other.scope == scope)


def require_no_known_seed(
    scope: ScopeState, runs: Iterable[Stated], ours: set[str], *, everything: bool = True
) -> None:
    """The same in one scope; of another scope only what was seen there counts."""
    known: dict[str, KnownRun] = {}
    for run in scope.runs.values():
        if run.mark is not None and run.identity not in ours and (everything or run.identity in scope.exposed):
            known.setdefault(run.mark, run)
    for _, statement, mark in runs:
        if mark is None or mark not in known:
            continue
        other = known[mark]
        if (by := scope.locks.get(other.identity)) is not None:
            raise RunsLockedError(
                f"{statement['run']}: shares its noise seed with {other.name}, and final release {by} has locked "
                "all runs of that seed for ever; release from other runs"
            )
        raise NoGuaranteeError(
            f"{statement['run']} and {other.name} were made with the same noise seed: their noise is not independent, "
            "and together they cost more than their sum"
        )


def require_one_of_a_group(scope: ScopeState, exposures: Iterable[Mapping[str, int]]) -> None:
    """Refuse a candidate that exposes two runs of one seed."""
    for exposure in exposures:
        if (pair := _shared(scope, exposure)) is not None:
            raise NoGuaranteeError(f"{one_seed(*pair)}: no release may depend on both")


def require_no_selection_of_a_group(scope: ScopeState, exposures: Sequence[Mapping[str, int]]) -> None:
    """Under a ceiling nothing is drawn from a group: what it allows is one exposure, and the whole of it has a cost."""
    if (pair := _shared(scope, {run for exposure in exposures for run in exposure})) is not None:
        raise CapExceededError(
            f"the privacy filter ceiling allows what lies within one exposure fixed beforehand, and {one_seed(*pair)}: "
            "no ceiling holds both; release one of them alone, or keep such runs under another filter"
        )


def _shared(scope: ScopeState, runs: Iterable[str]) -> tuple[str, str] | None:
    first: dict[str, str] = {}
    for run in sorted(runs):
        mark = scope.runs[run].mark
        if mark is not None and (other := first.setdefault(mark, run)) != run:
            return scope.runs[other].name, scope.runs[run].name
    return None
