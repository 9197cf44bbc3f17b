"""Who writes to a ledger, as far as they say: beside the database's role, which says who logged in.

Guarantees: nothing; anybody can state any name. An approval is worth more, for it is signed.
Refuses: names that are not one line of printable text.
"""

from __future__ import annotations

import getpass
import os

from dpmerge.errors import InvalidInputError

VARIABLE = "DPMERGE_ACTOR"
_LONGEST = 200


def stated_actor() -> str | None:
    """What DPMERGE_ACTOR says, or the name by which the user is known to the operating system."""
    stated = os.environ.get(VARIABLE)
    if stated is None:
        try:
            return getpass.getuser()
        except (OSError, KeyError):  # a container's user without a name
            return None
    if not (stated.isprintable() and 0 < len(stated) <= _LONGEST):
        raise InvalidInputError(VARIABLE, stated, f"1 to {_LONGEST} printable characters")
    return stated
