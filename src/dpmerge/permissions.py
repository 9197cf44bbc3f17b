"""Who else may read or write the files that a certificate's worth hangs on: keys, salts, ledgers.

Guarantees: what others may read (a private key: also the group) or write is named, with the command that mends it.
Looks at the mode alone: whoever owns the folder, is root, or is let in by an access list, is trusted.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

PRIVATE_KEY, SALT, LEDGER = 0o077, 0o007, 0o002
"""Bits that must not be set. A team shares a portfolio, with its salt and ledger, by a group; a key is one's own."""

OVERRIDE = "--insecure-permissions (in Python insecure_permissions=True)"


def too_open(path: Path, forbidden: int) -> str | None:
    """Why a file is not kept as it should be; None if it is, or is not there."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return None
    if not mode & forbidden:
        return None
    who = "others" if mode & forbidden & 0o007 else "its group"
    may = "write" if mode & forbidden & 0o022 else "read"
    mended = f"chmod {mode & ~forbidden:o} mends it, {OVERRIDE} goes on in spite of it"
    return f"{path}, which {who} may {may} (mode {mode:04o}; {mended})"


def replaceable(path: Path) -> str | None:
    """Why anybody could put another file in the place of this one; None if not anybody can."""
    try:
        folder = os.stat(path.parent).st_mode
    except OSError:
        return None
    return None if folder & stat.S_ISVTX else too_open(path.parent, 0o002)
