"""Making what has been charged: the same draw, whoever finishes it and however often that is tried.

Guarantees: an output that was published is handed out again, byte for byte, and release noise is drawn anew only while
nothing was published. The ledger is told what is published before and after it is. For a store it is made in the
private home, sealed, and sent from there (`remote_output`). Whoever calls holds the lock of the place (`output_lock`).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from dpmerge.certificate.commitments import CertifiedFile
from dpmerge.certificate.dsse import CERTIFICATE_NAME, Certificate, read_certificate
from dpmerge.certificate.output_files import timestamp_in, wrong_files
from dpmerge.errors import CannotWriteError, InvalidInputError
from dpmerge.files import file_digest, is_file, open_regular, read_bytes
from dpmerge.ledger.charge import Charge
from dpmerge.merging.recipe_files import build
from dpmerge.merging.staging import StagedFolder, remove_leftovers, staged_for
from dpmerge.releasing.certify import certify, write_card
from dpmerge.releasing.release_job import ReleaseJob
from dpmerge.releasing.remote_output import deliver, made_in, tidy
from dpmerge.remote.remote_path import location

_PIECE = 2**22


def publish(job: ReleaseJob, out: Path, release_lock: Callable[[], None]) -> Certificate:
    """Make the release, or find it made, where it is wanted; `release_lock` lets go of that place early."""
    charge, settings = job.charge, job.settings
    if charge.status == "abandoned":
        problem = f"request-key: release {charge.release_id}, which was asked for with {charge.key!r}, was abandoned"
        raise InvalidInputError("request-key", charge.key, "ask for a new one with another key", problem=problem)
    if charge.status == "completed":
        return _handed_out(job, out)
    if location(settings.out) != out:
        problem = f"output: release {charge.release_id} is being made in {settings.out}, not in {out}"
        raise InvalidInputError("output", str(out), "once it is there it can be handed out elsewhere", problem=problem)
    job.require_same_runs()
    place = made_in(out, charge.release_id)
    made = published(out, charge)
    if made is None:
        made = (published(place, charge) if place != out else None) or _made(job, place)
        deliver(job.ledger, charge, place, out, made)
    else:
        tidy(charge, place, out)
    remove_leftovers(place)
    release_lock()  # who comes now finds the output, and would note the same
    digest = file_digest(out / CERTIFICATE_NAME)
    job.ledger.complete(charge.release_id, files=made.files, certificate=digest, where=str(out))
    return made


def _made(job: ReleaseJob, out: Path) -> Certificate:
    """Publish what was staged and sealed before a crash, or make it; noise that was sealed is never drawn again."""
    _require_not_newer(job, out)
    overwrite = job.settings.overwrite
    if job.charge.output is None:
        return _make_first(job, out)
    for path in staged_for(out):
        found = published(path, job.charge)
        if found is not None:
            with StagedFolder(out, overwrite=overwrite, resumed=path) as staged:
                staged.publish()
            return found
    return _make_again(job, out, overwrite=overwrite)


def _make_first(job: ReleaseJob, out: Path) -> Certificate:
    """Merge and certify; sealed in the ledger before it is published, so that it is these bytes and no others."""
    with StagedFolder(out, overwrite=job.settings.overwrite) as staged:
        certificate = _build(job, staged.path)
        staged.settle()
        if job.drawn.release_noise > 0:
            staged.keep()  # nobody could make it again
        job.ledger.seal(
            job.charge.release_id,
            files=certificate.files,
            certificate=file_digest(staged.path / CERTIFICATE_NAME),
            where=job.settings.out,
        )
        staged.publish()
    return certificate


def _make_again(job: ReleaseJob, out: Path, *, overwrite: bool) -> Certificate:
    """The bytes that were sealed, once more; with release noise nobody can."""
    sealed = job.charge.output
    assert sealed is not None, "only what was sealed is made again"
    if job.drawn.release_noise > 0:
        problem = f"output: nothing is left to hand out in {sealed.where}, and its noise was never written down"
        remedy = "bring that folder back as it was: other noise is another release"
        raise CannotWriteError("output", sealed.where, remedy, problem=problem)
    job.require_same_runs()
    with StagedFolder(out, overwrite=overwrite) as staged:
        certificate = _build(job, staged.path)
        if file_digest(staged.path / CERTIFICATE_NAME) != sealed.certificate:
            problem = f"output: made again, release {job.charge.release_id} has other bytes than were released before"
            remedy = f"bring back {sealed.where} as it was, or what it was made from and with"
            raise CannotWriteError("output", str(out), remedy, problem=problem)
        staged.publish()
    return certificate


def _build(job: ReleaseJob, folder: Path) -> Certificate:
    """The merged model, its certificate and its card, in a folder that is not published yet."""
    if job.drawn.release_noise > 0:
        job.settings.require_same_noise()
    built = build(
        job.portfolio,
        job.drawn.recipe,
        folder,
        donor=job.settings.donor,
        jobs=job.jobs,
        executor=job.executor,
        progress=job.progress,
        adapters=job.settings.adapters,
    )
    files = {file.name: CertifiedFile(file.sha256, file.size) for file in built.files}
    return certify(job, folder, files)


def _handed_out(job: ReleaseJob, out: Path) -> Certificate:
    """What was published, again: where it is, copied, or (without release noise) made once more."""
    recorded = job.charge.output
    assert recorded is not None, "a completed release has an output"
    staged = made_in(out, job.charge.release_id)
    for place in dict.fromkeys((out, staged, location(recorded.where))):
        found = published(place, job.charge)
        if found is not None:
            if place not in (out, staged):
                _copied(place, staged, found)
            if place == out:
                tidy(job.charge, staged, out)
            else:
                deliver(job.ledger, job.charge, staged, out, found)
            return found
    made = _make_again(job, staged, overwrite=False)
    deliver(job.ledger, job.charge, staged, out, made)
    return made


def _copied(place: Path, out: Path, certificate: Certificate) -> None:
    with StagedFolder(out, overwrite=False) as staged:
        try:
            for name in (*certificate.files, CERTIFICATE_NAME, *timestamp_in(place)):
                (staged.path / name).parent.mkdir(parents=True, exist_ok=True)
                with open_regular(place / name) as source, (staged.path / name).open("wb") as copy:
                    shutil.copyfileobj(source, copy, _PIECE)
            write_card(staged.path, certificate)
        except OSError as error:
            accepted = f"room for a copy of {place}"
            raise CannotWriteError.from_os(error, field="output", path=out, accepted=accepted) from None
        staged.publish()


def _require_not_newer(job: ReleaseJob, out: Path) -> None:
    """To overwrite is about what was there when it was asked for, not about what was released since."""
    certificate = _certificate(out)
    entry = None if certificate is None else certificate.content.get("ledger")
    charge = job.charge
    if isinstance(entry, dict) and entry.get("id") == job.ledger.id and entry.get("entry", 0) > charge.entry.seq:
        problem = f"output: {out} holds a later release than {charge.release_id}, which would replace it"
        remedy = f"move it elsewhere, or give this one up (`dpmerge ledger recover --abandon {charge.release_id}`)"
        raise CannotWriteError("output", str(out), remedy, problem=problem)


def published(folder: Path, charge: Charge) -> Certificate | None:
    """The certificate of this release in a folder, if all its files are there as certified, and as sealed."""
    certificate = _certificate(folder)
    if certificate is None or certificate.content.get("release") != charge.release_id:
        return None
    if charge.output is not None and file_digest(folder / CERTIFICATE_NAME) != charge.output.certificate:
        return None
    return None if wrong_files(folder, certificate) else certificate


def _certificate(folder: Path) -> Certificate | None:
    file = folder / CERTIFICATE_NAME
    try:
        return read_certificate(read_bytes(file)) if is_file(file) else None
    except InvalidInputError:
        return None
