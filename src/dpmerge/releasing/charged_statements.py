"""Statements that a ledger holds runs to: what a run stated when it was charged, it states for good.

Guarantees: a manifest whose run is known to the ledger beside it (or beside its portfolio, or to the one named) is not
given another statement; neither is one that remembers a ledger which cannot be asked.
Refuses (`ManifestError`, `LedgerError`): such changes. Cannot see: a ledger that nothing beside the run names.
"""

from __future__ import annotations

from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path

from dpmerge.errors import DpmergeError, ManifestError
from dpmerge.files import is_file
from dpmerge.ledger.head_checkpoint import check_head_checkpoint, read_head_checkpoint
from dpmerge.ledger.identity import identity_of
from dpmerge.ledger.ledger import Ledger
from dpmerge.ledger.run_checks import first_difference
from dpmerge.ledger.state import fold
from dpmerge.portfolio.manifest import Manifest
from dpmerge.releasing.ledger_location import LEDGER_NAME, WITNESS_NAME


def require_statement_free(
    path: Path, before: Manifest, after: Manifest, *, ledger: str | Path | None, insecure_permissions: bool
) -> None:
    """Refuse another statement for a run that a ledger has charged, or may have."""
    homes = (path.parent, path.parent.parent)
    beside = [home / LEDGER_NAME for home in homes if is_file(home / LEDGER_NAME)]
    with ExitStack() as closing:
        opened: dict[str, Ledger] = {}
        for place in [*beside, *([] if ledger is None else [ledger])]:
            found = closing.enter_context(Ledger.open(place, create=False, insecure_permissions=insecure_permissions))
            opened[found.id] = found
        for home in homes:
            _require_known_ledger(home / WITNESS_NAME, before.run, opened)
        for each in opened.values():
            _require_as_charged(path, before, after, each)


def charged_beside(path: Path, manifest: Manifest) -> str | None:
    """The ledger beside a run, or beside its portfolio, that has charged it; None if none can be asked that has."""
    for place in (home / LEDGER_NAME for home in (path.parent, path.parent.parent)):
        with suppress(DpmergeError), Ledger.open(place, create=False) if is_file(place) else nullcontext() as ledger:
            scopes = [] if ledger is None else fold(ledger.id, ledger.entries()).scopes.values()
            if any(identity_of(manifest) in scope.runs for scope in scopes):
                return str(place)
    return None


def _require_known_ledger(witness: Path, run: str, opened: dict[str, Ledger]) -> None:
    seen = read_head_checkpoint(witness)
    if seen is None:
        return
    if seen.ledger not in opened:
        where = seen.where or seen.ledger
        problem = f"ledger: it remembers {where}, which is not beside the run"
        remedy = f"name that ledger, ledger=… (--ledger): only it knows whether run {run} was charged"
        raise ManifestError(witness, "ledger", where, remedy, problem=problem)
    check_head_checkpoint(opened[seen.ledger], witness)


def _require_as_charged(path: Path, before: Manifest, after: Manifest, ledger: Ledger) -> None:
    identity = identity_of(before)
    stated = after.statement.model_dump(exclude_none=True)
    for scope in fold(ledger.id, ledger.entries()).scopes.values():
        known = scope.runs.get(identity)
        if known is None:
            continue
        # A ledger names parents by identity; which parent it is does not change.
        parent = {"run": known.statement["ancestry"]["run"]} if "run" in known.statement["ancestry"] else {}
        field = first_difference(known.statement, {**stated, "ancestry": {**stated["ancestry"], **parent}})
        if field is not None or identity_of(after) != identity:
            field = field or "mechanism"
            problem = f"{field}: {ledger.where} has charged run {before.run} as it is stated now"
            remedy = (
                "add tensors.tied alone, which is no part of what it states: with another statement the ledger would "
                "refuse the run, and certificates made from it would no longer fit their portfolio"
            )
            raise ManifestError(path, field, None, remedy, problem=problem)
