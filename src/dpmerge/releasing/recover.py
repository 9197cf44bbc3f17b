"""After a crash, or a restored backup: what was charged is finished, what was released is counted again.

Guarantees: a pending release is finished with the draw it was charged with, or abandoned and still charged; an output
whose entry is missing is adopted only if its certificate verifies, and then counts as if every candidate had left; with
no signature by a key somebody states, as if every run had left as a whole, for a certificate may be forged.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from securesystemslib.signer import CryptoSigner

from dpmerge.certificate.dsse import CERTIFICATE_NAME
from dpmerge.certificate.keys import Passphrase, read_private, read_public
from dpmerge.certificate.verification import check_output
from dpmerge.errors import DpmergeError, InvalidInputError, LedgerBrokenError
from dpmerge.files import file_digest
from dpmerge.ledger.charge import Charge, Output, by_identity
from dpmerge.ledger.entries import BudgetScope
from dpmerge.ledger.head_checkpoint import check_head_checkpoint, replace_head_checkpoint, update_head_checkpoint
from dpmerge.ledger.identity import identities, noise_marks
from dpmerge.ledger.ledger import Ledger
from dpmerge.merging.staging import remove_leftovers
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.releasing.charge_notes import noting
from dpmerge.releasing.commitment_salt import require_private_salt
from dpmerge.releasing.kept_beside import kept_folder
from dpmerge.releasing.ledger_location import WITNESS_NAME, require_whole_ledger, witness, witnesses
from dpmerge.releasing.output_lock import output_lock
from dpmerge.releasing.publish import publish
from dpmerge.releasing.release_job import Progress, ReleaseJob
from dpmerge.releasing.remote_output import forget_staged, lock_place, require_not_out, withdraw
from dpmerge.releasing.settings import ReleaseSettings
from dpmerge.releasing.verifying import made_from
from dpmerge.remote.remote_path import location


@dataclass(frozen=True)
class Recovered:
    """What became of a pending release: `problem` says why it is still pending, or what failed after it was out."""

    release_id: str
    out: str
    problem: str | None
    pending: bool


def recover(
    ledger: Ledger,
    *,
    moved_to: Path | None = None,
    jobs: int = 2,
    executor: Executor | None = None,
    progress: Progress | None = None,
    passphrase: Passphrase = None,
    insecure_permissions: bool = False,
) -> Iterator[Recovered]:
    """Finish every pending release, one after the other; one that cannot be finished stays pending.

    `moved_to` is where a portfolio is now that is no longer where it was charged; `passphrase` is that of the keys.
    """
    unlock = partial(read_private, passphrase=passphrase, insecure_permissions=insecure_permissions)
    for charge in ledger.pending():
        settings, pending = ReleaseSettings.read(charge.details), True
        out = location(settings.out)
        try:
            with noting(None, out):
                portfolio = settings.load_portfolio(moved_to)
                require_whole_ledger(ledger, portfolio, None)
                require_private_salt(portfolio, insecure_permissions)
                job = ReleaseJob(
                    ledger=ledger,
                    charge=charge,
                    portfolio=portfolio,
                    jobs=jobs,
                    executor=executor,
                    progress=progress,
                    unlock=unlock,
                )
                with output_lock(lock_place(out), kept_folder(portfolio.path)) as release_lock:
                    publish(job, out, release_lock)
                pending = False
                witness(ledger, portfolio)
        except DpmergeError as error:
            yield Recovered(charge.release_id, settings.out, str(error), pending)
        else:
            yield Recovered(charge.release_id, settings.out, None, pending)


def abandon(ledger: Ledger, release_id: str, *, asker: CryptoSigner | None = None) -> None:
    """Give a pending release up: it stays charged, and what was staged of it goes.

    Where a second person has to approve that, `asker` signs the request, and nothing goes before (ApprovalNeededError).
    """
    charge = ledger.release(release_id)
    if charge is None:
        raise InvalidInputError("abandon", release_id, "the id of a release in this ledger")
    settings = ReleaseSettings.read(charge.details)
    out = location(settings.out)
    place = lock_place(out)
    # In a folder that is gone, or of another machine, nobody can be making it.
    home = kept if (kept := kept_folder(settings.home)).is_dir() else None
    with output_lock(place, home) if place.parent.is_dir() else nullcontext():
        require_not_out(charge, out)
        ledger.abandon(release_id, "given up by whoever keeps the ledger", asker=asker)
        withdraw(charge, out)
        remove_leftovers(place)
        forget_staged(charge, out)
    if home is not None:
        update_head_checkpoint(ledger, home / WITNESS_NAME)


def adopt(ledger: Ledger, out: Path, portfolio: Portfolio, *, key: str | Path | None = None) -> str:
    """Enter an output whose entry was lost; the id of the release.

    Signed with `key` it counts as its certificate says. Without a key the joint release of everything counts that any
    run of this data holds, in the portfolio and in the ledger.
    """
    verification = check_output(out, key=key)
    if verification.declared is not None:
        verification = made_from(verification, portfolio)
    declared = verification.declared
    if not verification.verified or declared is None:
        problem = f"adopt: {out} does not verify ({'; '.join(verification.problems[:3])})"
        raise InvalidInputError("adopt", str(out), "name an output as it was published", problem=problem)
    manifests = [run.manifest for run in portfolio.runs]
    names, marks = identities(manifests), noise_marks(manifests)
    records = {each.run: each.statement.document() for each in manifests}
    index = 0 if len(declared.terms.candidates) == 1 else None  # which was drawn nobody can vouch for any more
    ledger.adopt(
        declared.release,
        Charge.proposed(terms=declared.terms, identities=names, marks=marks, final=declared.final, details={}),
        output=Output(dict(verification.files), file_digest(out / CERTIFICATE_NAME), str(out.absolute())),
        entry=(declared.ledger.entry, declared.ledger.hash),
        index=index,
        signed_by=None if key is None else str(read_public(Path(key)).keyid),
        held=[(names[run], by_identity(record, names), marks[run]) for run, record in records.items()],
    )
    return declared.release


def accept(ledger: Ledger, portfolio: Portfolio, *, asker: CryptoSigner | None = None) -> None:
    """Go on with the ledger as it is: whoever says so vouches that every output whose entry was lost is adopted."""
    lost = [str(path) for path in witnesses(portfolio) if path.exists() and _lacks(ledger, path)]
    ledger.accept(
        BudgetScope(portfolio.dataset, portfolio.unit, portfolio.adjacency.value),
        f"in spite of {', '.join(lost)}",
        asker=asker,
    )
    for path in witnesses(portfolio):
        if path.exists():
            replace_head_checkpoint(ledger, path)


def _lacks(ledger: Ledger, path: Path) -> bool:
    try:
        check_head_checkpoint(ledger, path)
    except LedgerBrokenError:
        return True
    return False
