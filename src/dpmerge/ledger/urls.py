"""Where a ledger may be: a file of one's own on a local disk, or a PostgreSQL database.

Guarantees: a file is readable by its owner only before anything is in it; passwords of addresses are never shown.
Refuses (LedgerError): network file systems, whose locks cannot be trusted; unknown schemes; a missing driver; a
missing file unless it may be made; a file, or a folder, that everybody may write to.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from dpmerge.errors import LedgerError, LedgerUnavailableError
from dpmerge.extras import needs_extra
from dpmerge.permissions import LEDGER, replaceable, too_open

NETWORK = frozenset(
    ["nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ncpfs", "ceph", "lustre", "glusterfs", "beegfs", "gpfs", "davfs"]
)
NETWORK_IN_USER_SPACE = frozenset(["sshfs", "s3fs", "rclone", "gcsfuse", "glusterfs", "ceph", "davfs", "davfs2"])
_BESIDE = ("-journal", "-wal", "-shm")
"""What SQLite looks for beside its file, and opens without asking what it is."""

ACCEPTED = "a path, sqlite:///path or postgresql://user@host/database"


def address(where: str | Path, *, create: bool, insecure_permissions: bool = False) -> URL:
    """The address for the database driver; a file that is to be made is made, empty, for its owner only."""
    text = str(where)
    if isinstance(where, Path) or "://" not in text:
        return _file(Path(where), create=create, insecure=insecure_permissions)
    scheme = text.split("://", 1)[0]
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        raise LedgerError(
            f"ledger: got an address of scheme {scheme!r} that cannot be read; accepted: {ACCEPTED}"
        ) from None
    if scheme == "sqlite":
        if not url.database or url.database == ":memory:":
            raise LedgerError("ledger: a database in memory would be forgotten; name a file: sqlite:///path")
        return _file(Path(url.database), create=create, insecure=insecure_permissions)
    if scheme not in ("postgresql", "postgresql+psycopg"):
        raise LedgerError(f"ledger: got scheme {scheme!r}; accepted: {ACCEPTED}")
    with needs_extra("postgres", by="a ledger in PostgreSQL"):
        import_module("psycopg")
    return url.set(drivername="postgresql+psycopg")


def _file(path: Path, *, create: bool, insecure: bool) -> URL:
    # Absolute from the start: a later change of folder must not lead to another ledger.
    path = Path(os.path.abspath(path))
    if any("\ud800" <= letter <= "\udfff" for letter in str(path)):
        raise LedgerError(f"{path}: is not UTF-8, and the ledger's path is recorded; name a path in UTF-8")
    kind = file_system(path) or ""
    if kind in NETWORK or kind.removeprefix("fuse.") in NETWORK_IN_USER_SPACE:
        raise LedgerError(
            f"{path}: is on a network file system ({kind}), where locks cannot be trusted; use a local disk, or "
            "postgresql://…"
        )
    try:
        _own(path, create=create, insecure=insecure)
    except OSError as error:
        raise LedgerUnavailableError.from_os(error, path=path, failed="cannot be opened as a ledger") from None
    return URL.create("sqlite", database=str(path))


def _own(path: Path, *, create: bool, insecure: bool) -> None:
    """Make the file, or see that it is one, for its owner only: it names unreleased runs."""
    if create:
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    try:
        found = path.stat()
    except FileNotFoundError:
        raise LedgerError(f"{path}: there is no ledger; name the path of one") from None
    if not stat.S_ISREG(found.st_mode):
        raise LedgerError(f"{path}: is not a file; name {ACCEPTED}")
    for beside in (path.with_name(path.name + suffix) for suffix in _BESIDE):
        with suppress(FileNotFoundError):  # a journal comes and goes
            if stat.S_ISREG(beside.lstat().st_mode):
                continue
            raise LedgerError(f"{beside}: is not a file, and the database would wait for it; remove it")
    if not insecure and (open_to := too_open(path, LEDGER) or replaceable(path)) is not None:
        raise LedgerError(f"the ledger cannot be trusted: {open_to}")
    if stat.S_IMODE(found.st_mode) & 0o077 and found.st_uid == os.geteuid() and not insecure:
        path.chmod(stat.S_IMODE(found.st_mode) & 0o700)


def file_system(path: Path) -> str | None:
    """The kind of file system a path is on, where the system tells (Linux)."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text(errors="replace").splitlines()
    except OSError:
        return None
    place = Path(os.path.realpath(path.parent))
    best, kind = -1, None
    for line in mounts:
        left, _, right = line.partition(" - ")
        fields = left.split(" ")
        if len(fields) < 5 or not right:
            continue
        point = Path(fields[4].replace("\\040", " "))
        # Of two mounts on one point the later hides the earlier.
        if (place == point or point in place.parents) and len(point.parts) >= best:
            best, kind = len(point.parts), right.split(" ")[0]
    return kind
