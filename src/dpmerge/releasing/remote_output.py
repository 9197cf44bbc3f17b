"""Outputs in an object store: made on this machine, then published there, the certificate last.

Guarantees: until its release is sealed in the ledger nothing of it leaves the private home; under the prefix are files
of one release, for it is claimed by an object that is made only where there is none; without the certificate, which is
the last to come, it is unfinished. Published again, or by another process, it is the same bytes or an error.
Refuses (CannotWriteError): prefixes that hold something else or are claimed, stores that cannot make an object only
where there is none, and to overwrite: no store replaces many objects in one step.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from dpmerge.certificate.dsse import CERTIFICATE_NAME, Certificate
from dpmerge.certificate.model_card import CARD_NAME
from dpmerge.errors import CannotWriteError, InvalidInputError
from dpmerge.files import file_digest, is_file, read_bytes
from dpmerge.ledger.charge import Charge
from dpmerge.ledger.ledger import Ledger
from dpmerge.merging.staging import remove_leftovers
from dpmerge.private_home import private_folder
from dpmerge.remote.remote_path import RemotePath
from dpmerge.remote.stores import Store, store_of
from dpmerge.terms.documents import strict_json

CLAIM = "dpmerge/claim/v1"


def lock_place(out: Path) -> Path:
    """What is locked on this machine while a release is made for a place."""
    return private_folder("staging") / _known_as(out) if isinstance(out, RemotePath) else out


def made_in(out: Path, release_id: str) -> Path:
    """Where a release is made, whole, before it is published: there, or in the private home for a store."""
    return private_folder("staging") / f"{_known_as(out)}-{release_id}" if isinstance(out, RemotePath) else out


def _known_as(out: RemotePath) -> str:
    return sha256(str(out).encode()).hexdigest()[:32]


def require_publishable(out: RemotePath, *, overwrite: bool, inputs: Iterable[Path] = ()) -> None:
    """Refuse a prefix before any work is done for it."""
    if "/" not in out.key.strip("/"):
        raise CannotWriteError("output", str(out), "a prefix within a bucket, as s3://bucket/model")
    if overwrite:
        problem = f"output: {out} is in a store, which cannot replace many objects in one step"
        raise CannotWriteError("output", str(out), "name a new prefix", problem=problem)
    for folder in inputs:
        if out.is_relative_to(folder) or folder.is_relative_to(out):
            problem = f"output: {out} overlaps {folder}, which is read"
            raise CannotWriteError("output", str(out), "name a prefix apart from it", problem=problem)
    store = _creating(out)
    try:
        taken = sorted(store.files(out)) or (["an object of that name"] if store.kind(out) == "file" else [])
    except OSError as error:
        raise _failed(out, error) from None
    if taken:
        problem = f"output: {out} is not empty ({taken[0]})"
        raise CannotWriteError("output", str(out), "name a new prefix", problem=problem)
    if (other := _claimed_by(out)) is not None:
        raise _claimed(out, other)


def deliver(ledger: Ledger, charge: Charge, place: Path, out: Path, certificate: Certificate) -> None:
    """Publish what was made in `place`; nothing is left to do where that is `out`. It may be tried any number of times.

    Raises:
        CannotWriteError: The store fails, or the prefix holds what is not of this release.
    """
    if not isinstance(out, RemotePath):
        return
    store = _creating(out)
    try:
        _require_alive(ledger, charge)
        _claim(store, out, charge.release_id)
        _send(store, ledger, charge, place, out, certificate)
    except OSError as error:
        raise _failed(out, error) from None
    tidy(charge, place, out)


def tidy(charge: Charge, place: Path, out: Path) -> None:
    """After all of it is out: the claim goes, and then what was made in `place`, of which a part may be gone."""
    if not isinstance(out, RemotePath):
        return
    try:
        if _claimed_by(out) == charge.release_id:
            _creating(out).remove(_claim_file(out))
    except OSError as error:
        raise _failed(out, error) from None
    shutil.rmtree(place, ignore_errors=True)
    remove_leftovers(place)


def require_not_out(charge: Charge, out: Path) -> None:
    """Refuse to give up a release that was published as a whole, and of which only the ledger's note is missing."""
    if not isinstance(out, RemotePath) or charge.status != "pending":
        return
    try:
        is_out = _claimed_by(out) == charge.release_id and is_file(out / CERTIFICATE_NAME)
    except OSError as error:
        raise _failed(out, error) from None
    if is_out:
        problem = f"abandon: release {charge.release_id} is out, in {out}"
        raise InvalidInputError("abandon", charge.release_id, "`dpmerge ledger recover` notes it", problem=problem)


def withdraw(charge: Charge, out: Path) -> None:
    """After a release was given up: remove what of it was published. Tried again, it removes what is left."""
    if not isinstance(out, RemotePath):
        return
    store = _creating(out)
    try:
        if _claimed_by(out) != charge.release_id:
            return  # nothing of it was ever sent
        with suppress(PermissionError):
            store.drop_unfinished(out)
        for name in sorted(store.files(out)):
            store.remove(out / name)
        store.remove(_claim_file(out))
    except OSError as error:
        raise _failed(out, error) from None


def forget_staged(charge: Charge, out: Path) -> None:
    """Remove what was made on this machine for a store, and not published."""
    if isinstance(out, RemotePath):
        place = made_in(out, charge.release_id)
        shutil.rmtree(place, ignore_errors=True)
        remove_leftovers(place)


def _send(store: Store, ledger: Ledger, charge: Charge, place: Path, out: RemotePath, certificate: Certificate) -> None:
    """Every file that is not there yet, then the certificate."""
    card = file_digest(place / CARD_NAME)
    wanted = {**certificate.files, CARD_NAME: card, CERTIFICATE_NAME: file_digest(place / CERTIFICATE_NAME)}
    _require_nothing_else(store, out, wanted)
    with suppress(PermissionError):  # parts that nobody can read cost money, and no more
        store.drop_unfinished(out)
    for name in (*sorted(certificate.files), CARD_NAME):
        _send_one(store, place / name, out / name, wanted[name])
    sizes = {name: (place / name).stat().st_size for name in wanted if name != CERTIFICATE_NAME}
    _require_nothing_else(store, out, wanted)
    found = store.files(out)
    if missing := sorted(name for name, size in sizes.items() if found.get(name) != size):
        problem = f"output: {missing[0]} is not in {out} as it was sent"
        raise CannotWriteError("output", str(out), "try again: `dpmerge ledger recover`", problem=problem)
    _require_alive(ledger, charge)
    _send_one(store, place / CERTIFICATE_NAME, out / CERTIFICATE_NAME, wanted[CERTIFICATE_NAME])


def _send_one(store: Store, file: Path, to: RemotePath, digest: str) -> None:
    """Make the object; one that is there is of an earlier attempt, or in the way."""
    try:
        store.upload(file, to, lambda _: None)
    except FileExistsError:
        if file_digest(to) != digest:
            problem = f"output: {to} is there, and is not of this release"
            raise CannotWriteError(
                "output", str(to), "remove it, then `dpmerge ledger recover`", problem=problem
            ) from None


def _require_nothing_else(store: Store, out: RemotePath, wanted: Mapping[str, str]) -> None:
    if others := sorted(set(store.files(out)) - set(wanted)):
        problem = f"output: {out} holds {others[0]}, which is not of this release"
        raise CannotWriteError("output", str(out), "remove it, then `dpmerge ledger recover`", problem=problem)


def _require_alive(ledger: Ledger, charge: Charge) -> None:
    """Somebody on another machine may have given it up."""
    now = ledger.release(charge.release_id)
    if now is None or now.status == "abandoned" or now.output is None:
        problem = f"release {charge.release_id} was given up, or never sealed"
        raise InvalidInputError("release", charge.release_id, "ask for a new one", problem=problem)


def _claim(store: Store, out: RemotePath, release_id: str) -> None:
    """Make the prefix this release's: of two who try, one does."""
    content = json.dumps({"schema": CLAIM, "release": release_id}).encode()
    try:
        store.create(_claim_file(out), content)
    except FileExistsError:
        if (other := _claimed_by(out)) != release_id:
            raise _claimed(out, other) from None


def _claim_file(out: RemotePath) -> RemotePath:
    """Beside the prefix, as the lock of a folder on disk is."""
    path = out.parent / f".{out.name}.claim"
    assert isinstance(path, RemotePath)
    return path


def _claimed_by(out: RemotePath) -> str | None:
    """The release that is being published there."""
    file = _claim_file(out)
    if not is_file(file):
        return None
    try:
        found = strict_json(read_bytes(file, 1000), "claim")
    except InvalidInputError:
        found = None
    return str(found.get("release")) if isinstance(found, dict) else "that nobody knows"


def _claimed(out: RemotePath, other: str | None) -> CannotWriteError:
    problem = f"output: release {other} is being published in {out}"
    remedy = f"name another prefix; if nobody knows of it any more, remove {_claim_file(out)}"
    return CannotWriteError("output", str(out), remedy, problem=problem)


def _creating(out: RemotePath) -> Store:
    try:
        store = store_of(out)
    except OSError as error:
        raise _failed(out, error) from None
    if not store.creates:
        problem = f"output: nobody can say that {out.scheme}:// makes an object only where there is none"
        raise CannotWriteError("output", str(out), "publish to s3://, gs:// or az://, or to a folder", problem=problem)
    return store


def _failed(out: RemotePath, error: OSError) -> CannotWriteError:
    if isinstance(error, CannotWriteError):
        return error
    return CannotWriteError.from_os(error, field="output", path=out, accepted="a store that can be written to")
