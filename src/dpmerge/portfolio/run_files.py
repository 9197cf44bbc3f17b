"""The files of a run: names that stay inside its folder, writes that are whole or not at all.

Guarantees: a name that passed leads nowhere but into the folder; whoever reads a file that is replaced finds the old
content or the new one.
Refuses (`UnsafePathError`): absolute names, `..`, backslashes, names no file system can hold.
"""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

from dpmerge.errors import CannotWriteError, InvalidInputError, UnsafePathError
from dpmerge.files import partial_file, read_bytes, sync_folder
from dpmerge.remote.remote_path import RemotePath
from dpmerge.terms.documents import strict_json

LONGEST_NAME = 255


def require_plain_path(file: object, field: str, name: str) -> None:
    """Refuse a name that is not a plain relative path: it could lead anywhere."""
    accepted = "a relative path inside the run's folder, without .. or \\"
    parts = PurePosixPath(name).parts
    plain = name == "/".join(parts) and not name.startswith("/") and ".." not in parts and name.isprintable()
    if not plain or any(mark in name for mark in ("\\", "\0", ":")):
        raise UnsafePathError(file, field, name, accepted)
    if any(len(part.encode()) > LONGEST_NAME for part in parts):
        raise UnsafePathError(file, field, name, f"names of at most {LONGEST_NAME} bytes")


def require_replaceable(path: Path, schema: str) -> None:
    """Refuse to replace a file that is not an earlier document of the same kind.

    Args:
        path: Where a document is about to be written.
        schema: Its schema, such as dpmerge/plan/v1.

    Raises:
        CannotWriteError: There is something else.
    """
    if not path.exists():
        return
    try:
        found = strict_json(read_bytes(path), "document")
    except InvalidInputError:
        found = None
    kind = schema.rpartition("/")[0]
    if not isinstance(found, dict) or not str(found.get("schema", "")).startswith(f"{kind}/"):
        remedy = f"name another file: only an earlier document of the same kind ({kind}) is replaced"
        raise CannotWriteError("output", str(path), remedy, problem=f"output: {path} is something else")


def write_atomically(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Write beside, flush to disk, rename; an object of a store appears whole by itself."""
    if isinstance(path, RemotePath):
        from dpmerge.remote.stores import store_of

        store_of(path).replace(path, content)
        return
    # For its owner alone, unless said otherwise: digests of unreleased weights, and seeds, are private.
    with partial_file(path, mode) as (beside, file):
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
        beside.replace(path)
    sync_folder(path.parent)


def inside(path: Path, folder: Path) -> bool:
    """Whether a path, its links followed, lies in a folder; a link that leads nowhere does not."""
    try:
        return path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError):
        return False


def require_free(out: Path, name: str) -> Path:
    """Where a new file goes: the one named, or `name` in the folder named. A record is never replaced."""
    out = out / name if out.is_dir() else out
    if out.exists():
        accepted = "a file that does not exist yet: a record is never overwritten"
        raise InvalidInputError("output", str(out), accepted)
    if not out.parent.is_dir():
        raise InvalidInputError("output", str(out), "a file in a folder that exists")
    return out
