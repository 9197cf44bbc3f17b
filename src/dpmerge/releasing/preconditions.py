"""What is asked before anything is charged: can this release be made, and is nothing else in its way?

Refuses (CannotWriteError and others, nothing is charged): what could not be made, or would destroy something,
afterwards; what was charged by a process that died.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from concurrent.futures import Executor
from pathlib import Path

from dpmerge.certificate.dsse import CERTIFICATE_NAME
from dpmerge.errors import CannotWriteError, InvalidInputError
from dpmerge.files import is_file
from dpmerge.ledger.ledger import Ledger
from dpmerge.merging.preflight import require_ready, require_recorded
from dpmerge.merging.staging import require_writable
from dpmerge.merging.tied_tensors import require_ties
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.portfolio.recorded_runs import require_frozen_still, sampled
from dpmerge.portfolio.undeclared_parents import require_named_parents
from dpmerge.releasing.ledger_location import witnesses
from dpmerge.releasing.output_lock import is_being_made
from dpmerge.releasing.remote_output import lock_place, require_publishable
from dpmerge.releasing.settings import ReleaseSettings
from dpmerge.remote.remote_path import RemotePath, is_url, location
from dpmerge.terms.release_terms import ReleaseTerms

LONGEST_PATH = 500
"""Characters of a path that is written down."""

_NO_TEXT = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")

LETTING_GO = 1.0
"""Seconds. Between letting go of a place and noting completion lies one transaction."""


def require_writable_name(field: str, path: Path | None) -> None:
    """What a release needs is written down with its charge, as text."""
    if path is not None and (len(str(path.absolute())) > LONGEST_PATH or _NO_TEXT.search(str(path))):
        accepted = f"a path in UTF-8 without control characters, of at most {LONGEST_PATH} characters"
        raise InvalidInputError(field, str(path), accepted)


def require_makeable(
    portfolio: Portfolio,
    terms: ReleaseTerms,
    settings: ReleaseSettings,
    ledger: str | Path,
    jobs: int,
    *,
    executor: Executor | None = None,
    every_byte: bool = False,
) -> None:
    """Refuse before charging what could not be made, or would destroy something, afterwards.

    Where there is a draw, and where asked for, every byte that could be merged is read.
    """
    out, inputs = location(settings.out), [run.folder for run in portfolio.runs]
    if isinstance(out, RemotePath):
        require_publishable(out, overwrite=settings.overwrite, inputs=[portfolio.path, *inputs])
    else:
        require_writable(out, overwrite=settings.overwrite, inputs=inputs)
    kept = (each for each in (settings.key, ledger) if each is not None and _is_path(each))
    protected = [portfolio.path, *map(location, kept)]
    for path in protected:
        if path.resolve().is_relative_to(out.resolve()):
            problem = f"output: {path} is in {out}, which would be replaced"
            raise CannotWriteError("output", str(out), "name another folder", problem=problem)
    if not is_url(out) and out.is_dir() and any(out.iterdir()) and not is_file(out / CERTIFICATE_NAME):
        problem = f"output: {out} holds no earlier release, and nothing else is overwritten"
        raise CannotWriteError("output", str(out), "name another folder", problem=problem)
    for place in witnesses(portfolio):
        if not os.access(place.parent, os.W_OK):
            problem = f"portfolio: {place.parent} cannot be written to, and what is released is noted there"
            raise CannotWriteError("portfolio", str(place.parent), "make it writable", problem=problem)
    recipes = [each.recipe for each in terms.candidates]
    needed = max(require_ready(portfolio, r, donor=settings.donor, adapters=settings.adapters) for r in recipes)
    if (free := shutil.disk_usage((place := lock_place(out)).parent).free) < needed:
        problem = f"output: there is room for {free:,} bytes where {place} would be, and {needed:,} are needed"
        raise CannotWriteError("output", str(out), "make room, or name another place", problem=problem)
    if not portfolio.contents_read or any(each.recalled for each in portfolio.checkpoints()):
        # Planning compares all this too; but who merges may not have planned here.
        looked_at = [sampled(run) for run in portfolio.runs]
        require_named_parents(looked_at)
        for run in looked_at:
            require_frozen_still(run)
    require_ties(portfolio, [(each.recipe, each.is_final) for each in terms.candidates], jobs, executor)
    if every_byte or len(recipes) > 1:
        require_recorded([portfolio.saved(str(each)) for each in terms.inputs], jobs, executor)


def _is_path(place: str | Path) -> bool:
    return isinstance(place, Path) or "://" not in place


def require_nothing_pending(ledger: Ledger, portfolio: Portfolio, terms: ReleaseTerms, out: Path) -> None:
    """Refuse to charge again, or to draw again, what was charged and drawn by a process that died."""
    for pending in ledger.pending():
        other = location(ReleaseSettings.read(pending.details).out)
        again = len(terms.candidates) > 1 and pending.terms == terms
        if other == out or (
            again and not is_being_made(lock_place(other)) and _stays_pending(ledger, pending.release_id)
        ):
            problem = f"output: release {pending.release_id}, for {other}, is charged and not finished"
            remedy = (
                f"finish it (`dpmerge ledger recover {portfolio.path}`), give it up "
                f"(`… --abandon {pending.release_id}`), or ask with its own request key"
            )
            raise CannotWriteError("output", str(other), remedy, problem=problem)


def _stays_pending(ledger: Ledger, release_id: str) -> bool:
    """Whether it does for longer than who has just let go of its lock needs to say that it is complete."""
    until = time.monotonic() + LETTING_GO
    while time.monotonic() < until:
        found = ledger.release(release_id)
        if found is None or found.status != "pending":
            return False
        time.sleep(LETTING_GO / 20)
    return True
