"""Making what has been charged: the same draw, whoever finishes it and however often that is tried.

Guarantees: one process at a time makes a release; an output that was published is handed out again, byte for byte, and
release noise is drawn anew only while nothing was published. The ledger is told what left when it has left.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from securesystemslib.signer import CryptoSigner

from dpmerge.certificate.card import CARD_NAME, model_card
from dpmerge.certificate.commitments import CertifiedFile
from dpmerge.certificate.envelope import CERTIFICATE_NAME, Certificate, certificate_bytes, read_certificate
from dpmerge.certificate.keys import read_private
from dpmerge.certificate.output_files import wrong_files
from dpmerge.documents import is_file, read_bytes
from dpmerge.errors import CannotWrite, InvalidInput
from dpmerge.ledger.ledger import Ledger
from dpmerge.ledger.request import Charged
from dpmerge.merging.recipe_files import build
from dpmerge.merging.staging import StagedFolder, no_locks, remove_leftovers, staged_for
from dpmerge.planning.terms import CandidateTerms
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.releasing.order import Order

Progress = Callable[[int, int], object]
Unlock = Callable[[Path], CryptoSigner]
"""Reads the private key in a file."""


def finish(
    ledger: Ledger,
    charged: Charged,
    portfolio: Portfolio,
    *,
    out: Path,
    let_go: Callable[[], None],
    jobs: int = 2,
    progress: Progress | None = None,
    unlock: Unlock = read_private,
) -> Certificate:
    """Make the release, or find it made; `out` is where it is wanted, and whoever calls holds its lock (`only_one`)."""
    order = Order.read(charged.details)
    if charged.status == "abandoned":
        accepted = "a key of a release that was not abandoned"
        raise InvalidInput("request-key", charged.key, accepted, found=f"release {charged.release_id}, abandoned")
    if charged.status == "completed":
        return _handed_out(charged, portfolio, order, out, jobs, progress, unlock)
    if Path(order.out) != out:
        accepted = f"{order.out}, where this release is being made; once it is there it can be handed out elsewhere"
        raise InvalidInput("output", str(out), accepted)
    order.require_same(charged, portfolio)
    made = published(out, charged) or _settled(ledger, charged, portfolio, order, jobs, progress, unlock)
    remove_leftovers(out)
    let_go()  # who comes now finds the output, and would note the same
    ledger.complete(charged.release_id, files=made.files, certificate=_digest(out / CERTIFICATE_NAME), where=str(out))
    return made


def _settled(
    ledger: Ledger,
    charged: Charged,
    portfolio: Portfolio,
    order: Order,
    jobs: int,
    progress: Progress | None,
    unlock: Unlock,
) -> Certificate:
    """Publish what was staged and sealed before a crash, or make it; noise that was sealed is never drawn again."""
    out = Path(order.out)
    _require_not_newer(ledger, charged, out)
    sealed = charged.output
    if sealed is None:
        return _make(charged, portfolio, order, out, jobs, progress, unlock, overwrite=order.overwrite, ledger=ledger)
    for path in staged_for(out):
        found = published(path, charged)
        if found is not None:
            with StagedFolder(out, overwrite=order.overwrite, resumed=path) as staged:
                staged.publish()
            return found
    _require_no_noise(charged)
    return _make(charged, portfolio, order, out, jobs, progress, unlock, overwrite=order.overwrite)


def _require_not_newer(ledger: Ledger, charged: Charged, out: Path) -> None:
    """An order to overwrite is about what was there when it was given, not about what was released since."""
    certificate = _certificate(out)
    entry = None if certificate is None else certificate.content.get("ledger")
    if isinstance(entry, dict) and entry.get("id") == ledger.id and entry.get("entry", 0) > charged.entry.seq:
        accepted = f"what was there when release {charged.release_id} was charged; or give that release up"
        raise CannotWrite("output", str(out), accepted, found="a later release")


def _require_no_noise(charged: Charged) -> None:
    assert charged.output is not None
    if drawn(charged).release_noise > 0:
        accepted = f"{charged.output.where} as it was: its noise was never written down; other noise is another release"
        raise CannotWrite("output", charged.output.where, accepted, found="nothing left to hand out")


def published(folder: Path, charged: Charged) -> Certificate | None:
    """The certificate of this release in a folder, if all its files are there as certified, and as sealed."""
    certificate = _certificate(folder)
    if certificate is None or certificate.content.get("release") != charged.release_id:
        return None
    if charged.output is not None and _digest(folder / CERTIFICATE_NAME) != charged.output.certificate:
        return None
    return None if wrong_files(folder, certificate) else certificate


def _certificate(folder: Path) -> Certificate | None:
    file = folder / CERTIFICATE_NAME
    try:
        return read_certificate(read_bytes(file)) if is_file(file) else None
    except InvalidInput:
        return None


def _make(
    charged: Charged,
    portfolio: Portfolio,
    order: Order,
    out: Path,
    jobs: int,
    progress: Progress | None,
    unlock: Unlock,
    *,
    overwrite: bool,
    ledger: Ledger | None = None,
) -> Certificate:
    """Merge, certify and publish; what is new is sealed in the ledger first, what is not must be the same bytes."""
    recipe = drawn(charged).recipe
    with StagedFolder(out, overwrite=overwrite) as staged:
        built = build(
            portfolio,
            recipe,
            staged.path,
            donor=order.donor,
            jobs=jobs,
            progress=progress,
            adapters=order.adapters,
        )
        files = {file.name: CertifiedFile(file.sha256, file.size) for file in built.files}
        certificate = _certify(charged, portfolio, order, staged.path, files, unlock)
        digest = _digest(staged.path / CERTIFICATE_NAME)
        if ledger is not None:
            staged.settle()
            if recipe.release_noise > 0:
                staged.keep()  # nobody could make it again
            ledger.seal(charged.release_id, files=certificate.files, certificate=digest, where=order.out)
        elif charged.output is None or digest != charged.output.certificate:
            raise CannotWrite("output", str(out), "the bytes that were released before", found="other bytes")
        staged.publish()
    return certificate


def drawn(charged: Charged) -> CandidateTerms:
    """The candidate that this release is."""
    if charged.index is None:
        accepted = "a release that was drawn in this ledger"
        raise InvalidInput("release", charged.release_id, accepted, found="one that was adopted from its certificate")
    return charged.terms.candidates[charged.index]


def _certify(
    charged: Charged,
    portfolio: Portfolio,
    order: Order,
    folder: Path,
    files: Mapping[str, CertifiedFile],
    unlock: Unlock,
) -> Certificate:
    signer = None if order.key is None else unlock(Path(order.key))
    declared = order.declared(charged, portfolio, files)
    content = certificate_bytes(declared, files, signer, order.certificate_version)
    certificate = read_certificate(content)
    try:
        (folder / CERTIFICATE_NAME).write_bytes(content)
        _write_card(folder, certificate)
    except OSError as error:
        found = f"an error: {error.strerror}"
        raise CannotWrite("output", str(folder), "room for the certificate", found=found) from None
    return certificate


def _handed_out(
    charged: Charged,
    portfolio: Portfolio,
    order: Order,
    out: Path,
    jobs: int,
    progress: Progress | None,
    unlock: Unlock,
) -> Certificate:
    """What was published, again: where it is, copied, or (without release noise) made once more."""
    assert charged.output is not None, "a completed release has an output"
    recorded = charged.output
    for place in dict.fromkeys((out, Path(recorded.where))):
        found = published(place, charged)
        if found is not None:
            if place != out:
                _copied(place, out, found)
            return found
    _require_no_noise(charged)
    order.require_same(charged, portfolio)
    return _make(charged, portfolio, order, out, jobs, progress, unlock, overwrite=False)


def _copied(place: Path, out: Path, certificate: Certificate) -> None:
    with StagedFolder(out, overwrite=False) as staged:
        try:
            for name in (*certificate.files, CERTIFICATE_NAME):
                (staged.path / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(place / name, staged.path / name)
            _write_card(staged.path, certificate)
        except OSError as error:
            found = f"an error: {error.strerror}"
            raise CannotWrite("output", str(out), f"room for a copy of {place}", found=found) from None
        staged.publish()


def _write_card(folder: Path, certificate: Certificate) -> None:
    (folder / CARD_NAME).write_text(model_card(certificate.content, certificate.files), encoding="utf-8")


def _digest(file: Path) -> str:
    return hashlib.sha256(read_bytes(file)).hexdigest()


def is_being_made(out: Path) -> bool:
    """Whether a process is making a release in this place at this moment."""
    try:
        descriptor = os.open(_lock(out), os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False  # nobody can tell; who asks then waits for nobody
    finally:
        os.close(descriptor)
    return False


def _lock(out: Path) -> Path:
    return out.with_name(f".{out.name}.lock")


@contextmanager
def only_one(out: Path) -> Iterator[Callable[[], None]]:
    """Let one process make releases in a place: two would draw noise twice. What is yielded removes the lock early."""
    lock = _lock(out)
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        found = f"an error: {error.strerror}"
        raise CannotWrite("output", str(out), "a folder that can be written to", found=found) from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            accepted = "a place where no other process is making a release"
            raise CannotWrite("output", str(out), accepted, found="a release that is being made") from None
        except OSError as error:
            raise no_locks(out, error) from None
        try:
            yield lambda: _removed(lock)
        finally:
            _removed(lock)
    finally:
        with suppress(OSError):
            os.close(descriptor)


def _removed(lock: Path) -> None:
    """A file of no lock that stays behind harms nobody; an error here would hide what has happened to the release."""
    with suppress(OSError):
        lock.unlink(missing_ok=True)
