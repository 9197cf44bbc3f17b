"""The folder of what is nobody else's: remembered digests, staged outputs, and what a remote portfolio keeps to itself.

Guarantees: it is made for its owner alone, and used only while nobody else may read it.
Refuses (InvalidInputError): a home that others may read or write, or that cannot be made.
"""

from __future__ import annotations

import os
from pathlib import Path

from dpmerge.errors import CannotWriteError, InvalidInputError
from dpmerge.permissions import PRIVATE_KEY, too_open
from dpmerge.remote.remote_path import is_url

VARIABLE = "DPMERGE_HOME"


def private_home() -> Path:
    """Where it is: DPMERGE_HOME, or `dpmerge` where the system keeps states of programs. It need not exist."""
    if named := os.environ.get(VARIABLE):
        if is_url(named):
            raise InvalidInputError(VARIABLE, None, "a folder on disk", found="a URL")
        return Path(named).absolute()
    kept = os.environ.get("XDG_STATE_HOME", "")
    base = Path(kept) if kept.startswith("/") else Path("~/.local/state").expanduser()
    return base / "dpmerge"


def private_folder(*names: str) -> Path:
    """A folder in it, made if it is not there.

    Raises:
        InvalidInputError: Others may read the home.
        CannotWriteError: It cannot be made.
    """
    home = private_home()
    folder = home.joinpath(*names)
    try:
        home.parent.mkdir(parents=True, exist_ok=True)
        for place in (home, *reversed([each for each in folder.parents if each.is_relative_to(home)]), folder):
            place.mkdir(0o700, exist_ok=True)
    except OSError as error:
        accepted = f"a folder that can be written to, or another one in {VARIABLE}"
        raise CannotWriteError.from_os(error, field=VARIABLE, path=folder, accepted=accepted) from None
    if (found := too_open(home, PRIVATE_KEY)) is not None:
        problem = f"{VARIABLE}: digests and staged models would be kept in {found}"
        raise InvalidInputError(VARIABLE, str(home), "keep it to yourself", problem=problem)
    return folder
