"""The one door out: a plan is charged and drawn, then merged, certified and recorded.

Guarantees: nothing of an output exists before its charge is durable; an output appears whole, with its certificate, or
not at all; the same request key gives the same draw and the same bytes. Noise that was published is never drawn again.
Refuses: whatever the ledger refuses (caps, locked runs), targets that are there already, plans that no longer hold.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, get_args

from dpmerge.certificate.audited import Audited
from dpmerge.certificate.envelope import CERTIFICATE_NAME
from dpmerge.certificate.keys import Passphrase, read_private
from dpmerge.certificate.predicate import input_names
from dpmerge.certificate.private_salt import require_private_salt
from dpmerge.documents import is_file
from dpmerge.errors import CannotWrite, InvalidInput, note_charge
from dpmerge.ledger.identity import identity_of, noise_mark
from dpmerge.ledger.ledger import Ledger
from dpmerge.ledger.request import ChargeRequest
from dpmerge.merging.draw import draw
from dpmerge.merging.readiness import require_ready, require_recorded
from dpmerge.merging.staging import require_writable
from dpmerge.merging.ties import require_ties
from dpmerge.planning.plan import Plan
from dpmerge.planning.planned import Planned
from dpmerge.planning.target import Guarantee
from dpmerge.portfolio.parents import require_named_parents
from dpmerge.portfolio.runs import require_frozen_still, sampled
from dpmerge.releasing.finishing import finish, is_being_made, only_one
from dpmerge.releasing.known_weights import require_runs_as_charged
from dpmerge.releasing.order import Adapters, Order
from dpmerge.releasing.place import default_ledger, opened_ledger, require_whole_ledger, witness, witnesses

_SHOWN = (
    "guarantee", "target", "theorem", "proved", "final", "choice", "tuning", "outcomes", "ledger", "caveats",
)  # fmt: skip

LONGEST_PATH = 500
"""Characters of a path that is written down."""

_NO_TEXT = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")

LETTING_GO = 1.0
"""Seconds. Between letting go of a place and noting completion lies one transaction."""

Progress = Callable[[int, int], object]


@dataclass(frozen=True, eq=False)
class Release:
    """A release that was made: where it is, what its certificate says, and whether it was there already."""

    path: Path
    release_id: str
    content: Mapping[str, Any]  # of the certificate
    files: Mapping[str, str]
    signed: bool
    already: bool

    def __repr__(self) -> str:
        stated = self.guarantee
        return f"Release({str(self.path)!r}: ε = {stated.epsilon:g} at δ = {stated.delta!r}, {self.release_id})"

    @property
    def guarantee(self) -> Guarantee:
        """As certified."""
        return Guarantee(epsilon=float(self.content["guarantee"]["epsilon"]), delta=self.content["guarantee"]["delta"])

    def document(self) -> dict[str, Any]:
        content = self.content
        return {
            "path": str(self.path),
            "release": self.release_id,
            "already": self.already,
            "signed": self.signed,
            "files": dict(self.files),
            **{
                name: content[name]
                for name in ("guarantee", "target", "theorem", "proved", "final", "choice", "tuning")
            },
            "outcomes": content["outcomes"],
            "drawn": content.get("drawn"),
            "audit": content.get("audit"),
            "auditFinding": content.get("auditFinding"),
            "ledger": content["ledger"],
            "caveats": content["caveats"],
        }


def release(
    plan: Plan | Planned,
    *,
    out: str | Path,
    ledger: str | Path | None = None,
    final: bool = False,
    key: str | Path | None = None,
    request_key: str | None = None,
    overwrite: bool = False,
    reveal_draw: bool = False,
    donor: str | None = None,
    adapters: Adapters = "as_trained",
    audit: Audited | None = None,
    jobs: int = 2,
    progress: Progress | None = None,
    passphrase: Passphrase = None,
    insecure_permissions: bool = False,
) -> Release:
    """Make what a plan says, in the folder `out`, with its certificate and model card.

    `ledger` is a file or a database's URL, by default a file beside the portfolio. `final` declares that nothing else
    of these runs will be released: they are locked, and theorems sharper than joint release apply. `key` is the private
    key to sign with. The same `request_key` returns the same release. `reveal_draw` says in the certificate which
    candidate was drawn. `donor` names the run whose configuration files are copied. `audit` is what an attack on the
    simulated release has shown, for the certificate to carry. `passphrase` is the key's, or a function that asks
    for it. A key or salt that others may read, and a ledger that everybody may write to, are refused unless
    `insecure_permissions`.

    An error after the charge has a note that says so (`__notes__`).
    """
    planned = plan if isinstance(plan, Planned) else Planned.of(_is_plan(plan))
    planned = planned if final else planned.lasting()
    portfolio, target = planned.portfolio, Path(out).absolute()
    if adapters not in get_args(Adapters):
        raise InvalidInput("adapters", adapters, ", ".join(get_args(Adapters)))
    key = None if key is None else Path(key)
    unlock = partial(read_private, passphrase=passphrase, insecure_permissions=insecure_permissions)
    if key is not None:
        unlock(key)  # a key that cannot sign is noticed before anything is charged
    if audit is not None:
        audit.judged(planned.terms.epsilon(planned.target.delta))
    for field, path in (("output", target), ("portfolio", portfolio.path.absolute()), ("key", key)):
        _require_writable_name(field, path)
    order = Order.of(
        planned,
        out=target,
        donor=donor,
        adapters=adapters,
        reveal_draw=reveal_draw,
        key=key,
        overwrite=overwrite,
        audit=audit,
    )
    place = default_ledger(portfolio) if ledger is None else ledger
    require_writable(target, overwrite=True)
    with only_one(target) as let_go, opened_ledger(place, portfolio, insecure_permissions) as book:
        require_whole_ledger(book, portfolio, target)
        request = _request(planned, final, request_key, order)
        known = book.by_key(request.book, request_key) if request_key is not None else None
        require_private_salt(portfolio, insecure_permissions)
        if known is None:
            require_runs_as_charged(book, [portfolio.run(stated.run).manifest for stated in planned.terms.runs])
            once = final or book.is_capped(request.book)
            require_makeable(planned, order, place, jobs, every_byte=once)
            require_nothing_pending(book, planned, target)
        charged = book.charge(request, draw)
        left = f"release {charged.release_id} is charged; `dpmerge ledger recover` finishes it"
        with noting(left if charged.status == "pending" else None, target):
            witness(book, portfolio)
            made = finish(
                book, charged, portfolio, out=target, let_go=let_go, jobs=jobs, progress=progress, unlock=unlock
            )
        with noting(f"release {charged.release_id} is out, in {target}: it is charged and complete", target):
            witness(book, portfolio)
    return Release(Path(out), charged.release_id, made.content, made.files, made.is_signed, charged.already)


@contextmanager
def noting(words: str | None, out: Path) -> Iterator[None]:
    """Whatever fails says what has become of the release; what the system complains of is an error of ours."""
    try:
        yield
    except BrokenPipeError as error:  # standard output: there is nothing to mend
        if words is not None:
            note_charge(error, words)
        raise
    except OSError as error:
        failed = cannot_go_on(out, error)
        if words is not None:
            note_charge(failed, words)
        raise failed from error
    except BaseException as error:
        if words is not None:
            note_charge(error, words)
        raise


def cannot_go_on(out: Path, error: OSError) -> CannotWrite:
    where = "" if error.filename is None else f" with {error.filename}"
    accepted = "files and folders that can be read and written"
    return CannotWrite("output", str(out), accepted, found=f"an error{where}: {error.strerror or error}")


def _require_writable_name(field: str, path: Path | None) -> None:
    """What a release needs is written down with its charge, as text."""
    if path is not None and (len(str(path.absolute())) > LONGEST_PATH or _NO_TEXT.search(str(path))):
        accepted = f"a path in UTF-8 without control characters, of at most {LONGEST_PATH} characters"
        raise InvalidInput(field, str(path), accepted)


def _is_plan(plan: object) -> Plan:
    if not isinstance(plan, Plan):
        raise InvalidInput("plan", plan, "a Plan, as dpm.plan returns it", found=type(plan).__name__)
    return plan


def _request(planned: Planned, final: bool, request_key: str | None, order: Order) -> ChargeRequest:
    manifests = {stated.run: planned.portfolio.run(stated.run).manifest for stated in planned.terms.runs}
    return ChargeRequest(
        terms=planned.terms,
        identities={name: identity_of(manifest) for name, manifest in manifests.items()},
        marks={name: noise_mark(manifest) for name, manifest in manifests.items()},
        final=final,
        key=request_key,
        details=order.document(),
    )


def require_makeable(
    planned: Planned, order: Order, ledger: str | Path, jobs: int, *, every_byte: bool = False
) -> None:
    """Refuse before charging what could not be made, or would destroy something, afterwards.

    Where there is a draw, and where asked for, every byte that could be merged is read.
    """
    portfolio, out = planned.portfolio, Path(order.out)
    require_writable(out, overwrite=order.overwrite, inputs=[run.folder for run in portfolio.runs])
    protected = [portfolio.path, *(Path(each) for each in (order.key, ledger) if each is not None and _is_path(each))]
    for path in protected:
        if path.resolve().is_relative_to(out.resolve()):
            raise CannotWrite("output", str(out), f"a folder without {path} in it")
    if out.is_dir() and any(out.iterdir()) and not is_file(out / CERTIFICATE_NAME):
        raise CannotWrite(
            "output", str(out), "to overwrite an earlier release, and nothing else", found="another folder"
        )
    for place in witnesses(portfolio):
        if not os.access(place.parent, os.W_OK):
            accepted = "a folder that can be written to: what is released is noted there"
            raise CannotWrite("portfolio", str(place.parent), accepted)
    recipes = [each.recipe for each in planned.terms.candidates]
    needed = max(require_ready(portfolio, r, donor=order.donor, adapters=order.adapters) for r in recipes)
    if (free := shutil.disk_usage(out.parent).free) < needed:
        raise CannotWrite("output", str(out), f"a place with room for {needed:,} bytes", found=f"room for {free:,}")
    if not portfolio.contents_read:
        # Planning compares all this too; but who merges may not have planned here.
        looked_at = [sampled(run) for run in portfolio.runs]
        require_named_parents(looked_at)
        for run in looked_at:
            require_frozen_still(run)
    require_ties(portfolio, [(each.recipe, each.is_final) for each in planned.terms.candidates], jobs)
    if every_byte or len(recipes) > 1:
        require_recorded([portfolio.saved(f"{run}@{step}") for run, step in input_names(planned.terms)], jobs)


def _is_path(place: str | Path) -> bool:
    return isinstance(place, Path) or "://" not in place


def require_nothing_pending(ledger: Ledger, planned: Planned, out: Path) -> None:
    """Refuse to charge again, or to draw again, what was charged and drawn by a process that died."""
    for pending in ledger.pending():
        order = Order.read(pending.details)
        again = len(planned.terms.candidates) > 1 and pending.terms == planned.terms
        other = Path(order.out)
        if other == out or (again and not is_being_made(other) and _stays_pending(ledger, pending.release_id)):
            accepted = (
                f"to finish it (`dpmerge ledger recover {planned.portfolio.path}`), to give it up "
                f"(`… --abandon {pending.release_id}`), or its own request key"
            )
            found = f"release {pending.release_id}, charged and not finished"
            raise CannotWrite("output", order.out, accepted, found=found)


def _stays_pending(ledger: Ledger, release_id: str) -> bool:
    """Whether it does for longer than who has just let go of its lock needs to say that it is complete."""
    until = time.monotonic() + LETTING_GO
    while time.monotonic() < until:
        found = ledger.release(release_id)
        if found is None or found.status != "pending":
            return False
        time.sleep(LETTING_GO / 20)
    return True
