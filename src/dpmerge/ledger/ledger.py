"""The ledger: every release, charged before it is made.

Guarantees: a release is checked, charged, drawn and committed in one transaction before `charge` returns; two
processes can never together pass a cap; asking again with the same key gives the same draw.
Refuses: whatever the rules refuse, and a ledger whose chain does not hold.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from securesystemslib.signer import CryptoSigner
from sqlalchemy import Connection

from dpmerge.errors import InvalidInputError, LedgerBrokenError, LedgerError
from dpmerge.ledger.cap_setting import adopted_body, cap_body
from dpmerge.ledger.caps import Cap
from dpmerge.ledger.charge import Charge, Output
from dpmerge.ledger.database import time_of
from dpmerge.ledger.entries import BudgetScope, Entry, Kind, canonical
from dpmerge.ledger.group_locks import require_own_noise, require_stated_groups
from dpmerge.ledger.ledger_writer import LedgerWriter, Waiting
from dpmerge.ledger.privacy_filters import Admitted, Proposal, admit
from dpmerge.ledger.run_checks import Stated, require_own_dataset, require_same_runs, require_unlocked_elsewhere
from dpmerge.ledger.state import State

_SAME = ("terms", "identities", "final")


class Ledger(LedgerWriter):
    """One ledger, in a file or a database, read and written; use it in a `with`, or close it."""

    def charge(
        self,
        proposed: Charge,
        draw: Callable[[Sequence[int]], int],
        *,
        release_id: str | None = None,
        asker: CryptoSigner | None = None,
    ) -> Charge:
        """Check, charge, draw and commit, in one transaction.

        If the connection is lost while committing, ask `release(release_id)` or `by_key`, or charge again with the
        same id or key: what was charged is returned, not charged twice.

        Args:
            proposed: what is to be released.
            draw: given the probabilities as whole numbers, the index of a candidate.
            release_id: an id of one's own, by which the outcome can be asked for.
            asker: the key of whoever asks, to sign the request where a final release needs a second person.

        Returns:
            The charge, or the one that was made before with the same id or key.

        Raises:
            CapExceededError: a cap on this data does not allow it.
            RunsLockedError: a final release has locked its runs, or it is final and they were released from before.
            ApprovalNeededError: it is final, and others have to approve it; nothing was charged or drawn.
            LedgerError: whether it was charged is not known; the message says how to find out.
        """
        release_id = release_id or secrets.token_hex(16)
        charged: Charge | None = None
        once = cache(lambda: _drawn(draw, proposed.terms.units))  # a server that went away must not draw again

        def charge(connection: Connection) -> Charge | Waiting:
            nonlocal charged
            state = self._current(connection)
            known = self._charged_before(state, proposed, release_id)
            if known is not None:
                return replace(known, ledger=self.id, already=charged is None)
            charged = None  # if there was a first attempt, it was not committed
            made = self._charge(connection, state, proposed, once, release_id, asker)
            charged = None if isinstance(made, Waiting) else made
            return made

        try:
            return self._done_or_waiting(charge, retry=True)
        except LedgerError as error:
            if charged is None:
                raise
            told = f"whether release {release_id} was charged is not known: ask for it, or ask again with the same key"
            raise LedgerError(f"{error}; {told}") from None

    def _charge(
        self,
        connection: Connection,
        state: State,
        proposed: Charge,
        draw: Callable[[], int],
        release_id: str,
        asker: CryptoSigner | None,
    ) -> Charge | Waiting:
        admitted = _admitted(state, proposed)
        followed = {"release": release_id, "counted": admitted.counted, "cost": admitted.cost}
        time = time_of(connection)
        approval = self._approval(connection, state, proposed.scope, "release", proposed.body, time, asker)
        if isinstance(approval, Waiting):
            return approval
        body = {**proposed.body, **approval, **followed, "index": draw()}
        entry = self._append(connection, state, proposed.scope, "release", body, time=time)
        return replace(state.of(proposed.scope).charged(entry), ledger=self.id)

    def _charged_before(self, state: State, proposed: Charge, release_id: str) -> Charge | None:
        """What was charged with the same id or key; refused if that was something else."""
        before = state.of(proposed.scope)
        by_id = state.find(release_id)
        by_key = None if proposed.key is None else before.keys.get(proposed.key)
        found = by_id or (None if by_key is None else before.releases[by_key])
        if found is not None and (differing := _differing(proposed, found)) is not None:
            field, value = ("request-key", proposed.key) if by_id is None else ("release", release_id)
            problem = f"{field}: {value!r} was used before, for a release with other {differing}"
            raise InvalidInputError(field, value, "name another release otherwise", problem=problem)
        return found

    def seal(self, release_id: str, *, files: Mapping[str, str], certificate: str, where: str) -> None:
        """Note what is about to be published: from now on this release is these bytes, and no others."""
        self._note("sealed", release_id, Output(dict(files), certificate, where))

    def complete(self, release_id: str, *, files: Mapping[str, str], certificate: str, where: str) -> None:
        """Note what was published; saying the same again changes nothing."""
        self._note("completed", release_id, Output(dict(files), certificate, where))

    def _note(self, kind: Kind, release_id: str, output: Output) -> None:
        def note(connection: Connection) -> None:
            state = self._current(connection)
            release = _required(state, release_id)
            noted = release.output is not None and (kind == "sealed" or release.status == "completed")
            if noted and release.output == output:
                return
            if release.status != "pending" or (release.output is not None and release.output != output):
                status = "sealed" if release.status == "pending" else release.status
                problem = f"release {release_id} is {status}, and not as these files"
                raise InvalidInputError("release", release_id, "publish what was sealed, or nothing", problem=problem)
            body = {"release": release_id, **_written(output)}
            self._append(connection, state, state.releases[release_id].scope, kind, body)

        with self._lock:
            self._database.attempt(note)

    def abandon(self, release_id: str, reason: str, *, asker: CryptoSigner | None = None) -> None:
        """Note that nothing will be written; it stays charged."""

        def give_up(connection: Connection) -> Entry | Waiting | None:
            state = self._current(connection)
            release = _required(state, release_id)
            if release.status == "abandoned":
                return None
            if release.status != "pending":
                problem = f"release {release_id} is {release.status}: only a pending one can be abandoned"
                raise InvalidInputError("release", release_id, "`dpmerge ledger show` lists them", problem=problem)
            body = {"release": release_id, "reason": reason}
            return self._approved(connection, state, state.releases[release_id].scope, "abandoned", body, asker)

        self._done_or_waiting(give_up, retry=True)

    def adopt(
        self,
        release_id: str,
        proposed: Charge,
        *,
        output: Output,
        entry: tuple[int, str],
        index: int | None,
        signed_by: str | None,
        held: Iterable[Stated] = (),
    ) -> None:
        """Count a release whose output proves that it was published, after entries were lost.

        It is counted even if it passes the cap or breaks a lock.

        Args:
            release_id: as its certificate names it.
            proposed: its terms, as its certificate states them.
            output: what was published, and where.
            entry: number and hash of the entry that was lost.
            index: the candidate that was drawn; None: nobody knows, and every candidate counts as released.
            signed_by: the key whose owner vouches for the terms. Without one a certificate may be anybody's, and name a
                cheap run for a costly one: what counts is the joint release of all that is `held` and of every run of
                the scope, each to its last step.
            held: the runs of the portfolio.

        Raises:
            LedgerBrokenError: the ledger has this release with other terms.
        """
        count = len(proposed.terms.candidates)
        if index is not None and not 0 <= index < count:
            raise InvalidInputError("index", index, f"an integer from 0 to {count - 1}, or None")
        with self._lock, self._database.writing() as connection:
            state = self._current(connection)
            if (known := state.find(release_id)) is not None:
                if _differing(proposed, known) is not None:
                    raise LedgerBrokenError(
                        f"release {release_id} is in the ledger with other terms than its certificate's"
                    )
                return
            scope = proposed.scope
            before = state.of(scope)
            runs = list(proposed.runs) + ([] if signed_by is not None else list(held))
            require_own_dataset(state, scope, runs)
            require_same_runs(before, runs)
            require_stated_groups(proposed)
            require_own_noise(state, scope, runs)
            body = {**proposed.body, "release": release_id, "entry": list(entry), **_written(output)}
            if signed_by is not None:
                body |= {"index": index, "signed_by": signed_by}
            else:
                body |= {"index": None, "everything": before.considering(runs).everything()}
            self._append(connection, state, scope, "adopted", adopted_body(before, body))

    def accept(self, scope: BudgetScope, why: str, *, asker: CryptoSigner | None = None) -> None:
        """Note that somebody vouches for this ledger being whole, although it was known to lack entries."""

        def vouch(connection: Connection) -> Entry | Waiting:
            return self._approved(connection, self._current(connection), scope, "accepted", {"why": why}, asker)

        self._done_or_waiting(vouch, retry=False)

    def set_cap(self, scope: BudgetScope, cap: Cap, *, asker: CryptoSigner | None = None) -> None:
        """Promise that everything that ever leaves of this scope keeps within (ε, δ)."""

        def promise(connection: Connection) -> Entry | Waiting:
            state = self._current(connection)
            require_own_dataset(state, scope, [])
            return self._approved(connection, state, scope, "cap", cap_body(state.of(scope), cap), asker)

        self._done_or_waiting(promise, retry=False)

    def require_chargeable(self, proposed: Charge) -> None:
        """Refuse what could not be charged as things are now, as `charge` would; nothing is charged."""
        _admitted(self._read(), proposed)


def _admitted(state: State, proposed: Charge) -> Admitted:
    """How a release would be counted, on top of everything so far; or why it may not be made."""
    scope, runs = proposed.scope, list(proposed.runs)
    require_own_dataset(state, scope, runs)
    require_same_runs(state.of(scope), runs)
    require_stated_groups(proposed)
    require_own_noise(state, scope, runs)
    proposal = Proposal(proposed.terms, proposed.exposures, proposed.final)
    require_unlocked_elsewhere(state, scope, proposal.exposures, final=proposed.final)
    return admit(state.of(scope).considering(runs), proposal)


def _required(state: State, release_id: str) -> Charge:
    release = state.find(release_id)
    if release is None:
        raise InvalidInputError("release", release_id, "the id of a release in this ledger")
    return release


def _differing(proposed: Charge, charged: Charge) -> str | None:
    """In what a proposed charge is not the one that was made."""
    return next((name for name in _SAME if canonical(proposed.body[name]) != canonical(charged.body[name])), None)


def _written(output: Output) -> dict[str, Any]:
    return {"files": dict(output.files), "certificate": output.certificate, "where": output.where}


def _drawn(draw: Callable[[Sequence[int]], int], units: Sequence[int]) -> int:
    index = draw(units)
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < len(units):
        raise LedgerError(f"the draw gave {index!r}; accepted: an integer from 0 to {len(units) - 1}")
    return index
