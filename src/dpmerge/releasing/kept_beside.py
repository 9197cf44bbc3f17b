"""What is kept beside a portfolio: its salt, and which ledger counts it. For one in a store that is on this machine.

Guarantees: nothing of it is ever written to a store, where who may read it cannot be seen.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

from dpmerge.private_home import private_folder, private_home
from dpmerge.remote.remote_path import is_url, without_commit


def kept_folder(folder: Path, *, create: bool = False) -> Path:
    """Where what belongs beside a folder is kept: in it, or for one in a store in the private home."""
    if not is_url(folder):
        return folder
    names = ("portfolios", sha256(without_commit(str(folder)).encode()).hexdigest()[:32])
    return private_folder(*names) if create else private_home().joinpath(*names)
