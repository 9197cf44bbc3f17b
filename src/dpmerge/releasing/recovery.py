"""After a crash, or a restored backup: what was charged is finished, what has left is counted again.

Guarantees: a pending release is finished with the draw it was charged with, or abandoned and still charged; an output
whose entry is missing is adopted only if its certificate verifies, and then counts as if every candidate had left; with
no signature by a key somebody states, as if every run had left as a whole, for a certificate may be forged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from dpmerge.certificate.envelope import CERTIFICATE_NAME
from dpmerge.certificate.keys import Passphrase, read_private, read_public
from dpmerge.certificate.private_salt import require_private_salt
from dpmerge.certificate.verification import check_output
from dpmerge.documents import read_bytes
from dpmerge.errors import DpmergeError, InvalidInput, LedgerBroken
from dpmerge.ledger.entries import Book, sha256
from dpmerge.ledger.identity import identities, noise_marks
from dpmerge.ledger.ledger import Ledger
from dpmerge.ledger.state import by_identity
from dpmerge.ledger.witness import check_witness, replace_witness, update_witness
from dpmerge.merging.staging import remove_leftovers
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.releasing.finishing import finish, only_one
from dpmerge.releasing.order import Order
from dpmerge.releasing.place import WITNESS_NAME, require_whole_ledger, witness, witnesses
from dpmerge.releasing.release import noting
from dpmerge.releasing.verifying import made_from

Progress = Callable[[int, int], object]


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
    progress: Progress | None = None,
    passphrase: Passphrase = None,
    insecure_permissions: bool = False,
) -> Iterator[Recovered]:
    """Finish every pending release, one after the other; one that cannot be finished stays pending.

    `moved_to` is where a portfolio is now that is no longer where it was charged; `passphrase` is that of the keys.
    """
    unlock = partial(read_private, passphrase=passphrase, insecure_permissions=insecure_permissions)
    for charged in ledger.pending():
        order, pending = Order.read(charged.details), True
        out = Path(order.out)
        try:
            with noting(None, out):
                portfolio = order.load_portfolio(moved_to)
                require_whole_ledger(ledger, portfolio, None)
                require_private_salt(portfolio, insecure_permissions)
                with only_one(out) as let_go:
                    finish(
                        ledger, charged, portfolio, out=out, let_go=let_go, jobs=jobs, progress=progress, unlock=unlock
                    )
                pending = False
                witness(ledger, portfolio)
        except DpmergeError as error:
            yield Recovered(charged.release_id, order.out, str(error), pending)
        else:
            yield Recovered(charged.release_id, order.out, None, pending)


def abandon(ledger: Ledger, release_id: str) -> None:
    """Give a pending release up: it stays charged, and what was staged of it goes."""
    charged = ledger.release(release_id)
    if charged is None:
        raise InvalidInput("abandon", release_id, "the id of a release in this ledger")
    order = Order.read(charged.details)
    out = Path(order.out)
    # In a folder that is gone, or of another machine, nobody can be making it.
    with only_one(out) if out.parent.is_dir() else nullcontext():
        ledger.abandon(release_id, "given up by whoever keeps the ledger")
        remove_leftovers(out)
    if order.home.is_dir():
        update_witness(ledger, order.home / WITNESS_NAME)


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
        raise InvalidInput("adopt", str(out), "an output that verifies", found="; ".join(verification.problems[:3]))
    manifests = [run.manifest for run in portfolio.runs]
    names, marks = identities(manifests), noise_marks(manifests)
    stated = {each.run: each.statement.model_dump(by_alias=True, exclude_none=True) for each in manifests}
    index = 0 if len(declared.terms.candidates) == 1 else None  # which was drawn nobody can vouch for any more
    ledger.adopt(
        declared.release,
        terms=declared.terms,
        final=declared.final,
        identities=names,
        marks=marks,
        index=index,
        entry=(declared.ledger.entry, declared.ledger.hash),
        files=dict(verification.files),
        certificate=sha256(read_bytes(out / CERTIFICATE_NAME).decode()),
        signed_by=None if key is None else str(read_public(Path(key)).keyid),
        held=[(names[run], by_identity(statement, names), marks[run]) for run, statement in stated.items()],
        where=str(out.absolute()),
    )
    return declared.release


def accept(ledger: Ledger, portfolio: Portfolio) -> None:
    """Go on with the ledger as it is: whoever says so vouches that every output whose entry was lost is adopted."""
    lost = [str(path) for path in witnesses(portfolio) if path.exists() and _lacks(ledger, path)]
    ledger.accept(Book(portfolio.dataset, portfolio.unit, portfolio.adjacency.value), f"in spite of {', '.join(lost)}")
    for path in witnesses(portfolio):
        if path.exists():
            replace_witness(ledger, path)


def _lacks(ledger: Ledger, path: Path) -> bool:
    try:
        check_witness(ledger, path)
    except LedgerBroken:
        return True
    return False
