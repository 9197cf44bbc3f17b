"""The one door out: a plan is charged and drawn, then merged, certified and recorded.

Guarantees: nothing of an output exists before its charge is durable; an output appears whole, with its certificate, or
not at all; the same request key gives the same draw and the same bytes. Noise that was published is never drawn again.
Refuses: whatever the ledger refuses (caps, locked runs), targets that are there already, plans that no longer hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, get_args

from dpmerge import notebook
from dpmerge.accounting.rounding import format_up
from dpmerge.certificate.audited import Audited
from dpmerge.certificate.keys import Passphrase, read_private
from dpmerge.errors import (
    InvalidInputError,
    NoGuaranteeError,
    TargetOutOfReachError,
)
from dpmerge.ledger.entries import BudgetScope
from dpmerge.ledger.ledger import Ledger
from dpmerge.merging.draw import draw
from dpmerge.merging.staging import require_writable
from dpmerge.planning.plan import Plan, require_current
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.releasing.approving import asker_of
from dpmerge.releasing.charge_notes import noting
from dpmerge.releasing.chargeable import proposed_charge
from dpmerge.releasing.commitment_salt import require_private_salt
from dpmerge.releasing.kept_beside import kept_folder
from dpmerge.releasing.known_weights import require_runs_as_charged
from dpmerge.releasing.ledger_location import (
    default_ledger,
    is_missing,
    opened_ledger,
    require_shared,
    require_whole_ledger,
    witness,
)
from dpmerge.releasing.output_lock import output_lock
from dpmerge.releasing.preconditions import require_makeable, require_nothing_pending, require_writable_name
from dpmerge.releasing.publish import publish
from dpmerge.releasing.release_job import Progress, ReleaseJob
from dpmerge.releasing.remote_output import lock_place
from dpmerge.releasing.settings import Adapters, ReleaseSettings
from dpmerge.remote.remote_path import RemotePath, location
from dpmerge.terms.guarantee import Guarantee
from dpmerge.terms.release_terms import ReleaseTerms


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

    def _repr_html_(self) -> str:
        """In a notebook."""
        return notebook.cell_html(self)

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
    plan: Plan,
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
    audit: bool | Audited = False,
    jobs: int = 2,
    executor: Executor | None = None,
    progress: Progress | None = None,
    requester_key: str | Path | None = None,
    passphrase: Passphrase = None,
    insecure_permissions: bool = False,
) -> Release:
    """Make what a plan says, in the folder `out`, with its certificate and model card.

    Args:
        plan: what to release, from `dpm.plan`, `Plan.load` or `dpm.prepare`.
        out: the folder to make; it appears whole or not at all. Or the URL of a prefix: its certificate comes last.
        ledger: a file or a database's URL; by default a file beside the portfolio.
        final: nothing else of these runs will ever be released: they are locked, and theorems sharper than joint
            release apply. Without it the release is priced so that others may follow.
        key: the file of the private key to sign with.
        request_key: a name for this request; asked again, it returns the same release.
        overwrite: replace an earlier release in `out`.
        reveal_draw: say in the certificate which candidate was drawn.
        donor: the run whose configuration files are copied; by default that of the largest weight.
        adapters: LoRA adapters are averaged `as_trained`, or `concatenated` (exactly Σ λ ΔW).
        audit: attack the simulated release first (or the result of such an attack), for the certificate to carry.
        jobs: threads that read, add up, hash and write (of each worker, where there is an executor).
        executor: where files of weights are read and written, one at a time by each worker, on storage that all see;
            what is drawn, sealed, certified and entered in the ledger is so here.
        progress: called with bytes done and bytes in all.
        requester_key: your private key, to sign the request where a second person has to approve a final release.
        passphrase: of the keys, or a function that asks for it.
        insecure_permissions: go on although others may read the key or the salt, or write the ledger.

    Returns:
        The release: where it is, and what its certificate says.

    Raises:
        NoGuaranteeError: it does not meet its target as a release that others may follow.
        LedgerError: the ledger is a file, and the executor's workers may be on other machines.
        CapExceededError: a cap on this data does not allow it; nothing was charged.
        RunsLockedError: its runs are locked, or cannot be in a final release; nothing was charged.
        ApprovalNeededError: others have to approve it first; it was requested, and nothing was charged or drawn.
        CannotWriteError: the output cannot be written. An error after the charge has a note that says so
            (`__notes__`).

    >>> from tempfile import TemporaryDirectory
    >>> from dpmerge.examples import write_example
    >>> from dpmerge import Portfolio, plan
    >>> with TemporaryDirectory() as place:
    ...     _ = write_example("mnist", f"{place}/models")
    ...     made = release(
    ...         plan(Portfolio.load(f"{place}/models"), epsilon=0.12, delta=1e-5), out=f"{place}/merged"
    ...     )
    >>> made.guarantee, sorted(made.files)
    (Guarantee(epsilon=0.12, delta=1e-05), ['model.safetensors'])
    """
    terms = releasable(plan, final=final)
    portfolio, target = plan.portfolio, location(out, "output").absolute()
    if adapters not in get_args(Adapters):
        raise InvalidInputError("adapters", adapters, ", ".join(get_args(Adapters)))
    key = None if key is None else Path(key)
    unlock = partial(read_private, passphrase=passphrase, insecure_permissions=insecure_permissions)
    if key is not None:
        unlock(key)  # a key that cannot sign is noticed before anything is charged
    asker = asker_of(requester_key, passphrase, insecure_permissions=insecure_permissions)
    for field, path in (("output", target), ("portfolio", portfolio.path.absolute()), ("key", key)):
        require_writable_name(field, path)
    settings = ReleaseSettings.of(
        portfolio,
        terms,
        plan.target,
        out=target,
        donor=donor,
        adapters=adapters,
        reveal_draw=reveal_draw,
        key=key,
        overwrite=overwrite,
        audit=_audited(terms, plan.target, audit),
        asked=plan.request,
    )
    place = default_ledger(portfolio) if ledger is None else ledger
    require_shared(place, executor)
    if not isinstance(target, RemotePath):
        require_writable(target, overwrite=True)
    if new := is_missing(place):  # nothing can be known or pending there: what cannot be made leaves no ledger behind
        require_makeable(portfolio, terms, settings, place, jobs, executor=executor, every_byte=final)
    with (  # the ledger first: who is killed here leaves something that `recover` can be asked about
        opened_ledger(place, portfolio, insecure_permissions) as opened,
        output_lock(lock_place(target), kept_folder(portfolio.path)) as release_lock,
    ):
        require_whole_ledger(opened, portfolio, target)
        proposed = proposed_charge(portfolio, terms, details=settings.document(), final=final, request_key=request_key)
        require_private_salt(portfolio, insecure_permissions)
        if request_key is None or opened.by_key(proposed.scope, request_key) is None:
            _require_new(opened, portfolio, terms, settings, place, jobs, executor, final=final, looked_at=new)
        charge = opened.charge(proposed, draw, asker=asker)
        job = ReleaseJob(
            ledger=opened,
            charge=charge,
            portfolio=portfolio,
            jobs=jobs,
            executor=executor,
            progress=progress,
            unlock=unlock,
        )
        left = f"release {charge.release_id} is charged; `dpmerge ledger recover` finishes it"
        with noting(left if charge.status == "pending" else None, target):
            witness(opened, portfolio)
            made = publish(job, target, release_lock)
        with noting(f"release {charge.release_id} is out, in {target}: it is charged and complete", target):
            witness(opened, portfolio)
    return Release(location(out), charge.release_id, made.content, made.files, made.is_signed, charge.already)


def releasable(plan: Plan, *, final: bool) -> ReleaseTerms:
    """The terms a plan is released on: as they are if it is final, else so that other releases may follow.

    Raises:
        NoGuaranteeError: priced as a joint release it does not meet its target.
    """
    if not isinstance(plan, Plan):
        raise InvalidInputError("plan", plan, "a Plan, as dpm.plan returns it", found=type(plan).__name__)
    terms, target = plan.terms if final else plan.terms.as_joint_release(), plan.target
    try:
        require_current(plan.portfolio, terms, target)
    except TargetOutOfReachError as error:
        if terms is plan.terms:
            raise
        locked = ", ".join(sorted({run for each in terms.candidates for run in each.exposed}))
        raise NoGuaranteeError(
            f"as a release that others may follow this has ε = {format_up(error.smallest)}, above {target.epsilon:g} "
            f"at δ = {target.delta:g}; plan it with the theorem joint_release, or make it a final release, final=True "
            f"(--final), which locks {locked} for good"
        ) from None
    return terms


def _audited(terms: ReleaseTerms, target: Guarantee, audit: bool | Audited) -> Audited | None:
    """What an attack on the simulated release has shown; refused if it shows more than is certified."""
    if audit is False:
        return None
    if audit is True:
        from dpmerge.auditing.release_attacks import audited

        audit = audited(terms, delta=target.delta)
    audit.judged(terms.epsilon(target.delta))
    return audit


def _require_new(
    ledger: Ledger,
    portfolio: Portfolio,
    terms: ReleaseTerms,
    settings: ReleaseSettings,
    place: str | Path,
    jobs: int,
    executor: Executor | None,
    *,
    final: bool,
    looked_at: bool,
) -> None:
    """Refuse before charging what could not be made (unless that was `looked_at`), or was charged already."""
    require_runs_as_charged(ledger, [portfolio.run(record.run).manifest for record in terms.runs])
    once = final or ledger.is_capped(BudgetScope(portfolio.dataset, portfolio.unit, portfolio.adjacency.value))
    if not looked_at:
        require_makeable(portfolio, terms, settings, place, jobs, executor=executor, every_byte=once)
    require_nothing_pending(ledger, portfolio, terms, location(settings.out))
