"""Files written whole or not at all.

Guarantees: a reader sees the old file or the new one, never half of it. Files are for their owner alone: they
show models that nobody has released.
Refuses: folders that do not exist.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from dpmerge.errors import CannotWriteError, InvalidInputError


def existing_folder(folder: Path) -> Path:
    """The folder, if it is one."""
    if not folder.is_dir():
        raise InvalidInputError("folder", folder, "a folder that exists", found=str(folder))
    return folder


def write_whole(file: Path, content: bytes) -> Path:
    """Write beside it under another name, then rename."""
    existing_folder(file.parent)
    try:
        descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    except OSError as error:
        raise _cannot_write(file, error) from None
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
        os.replace(name, file)
    except OSError as error:
        with suppress(OSError):  # it would hide what went wrong
            Path(name).unlink(missing_ok=True)
        raise _cannot_write(file, error) from None
    return file


def _cannot_write(file: Path, error: OSError) -> CannotWriteError:
    return CannotWriteError.from_os(error, field="file", path=file, accepted="a file that can be written")
