"""What the recorder warns of, and at which line: the caller's, however deep inside the recorder it was noticed."""

from __future__ import annotations

import sys
import warnings

_INSIDE = ("dpmerge.training", "contextlib")


class InsecureNoiseWarning(UserWarning):
    """The noise comes from a generator whose output gives away its state.

    What to do: accept the caveat in every certificate, or train in Opacus' `secure_mode`, which needs torchcsprng.
    """


class UnknownLossesWarning(UserWarning):
    """Nobody can say that each record had a loss of its own; the message says why.

    What to do: change what the message names, or vouch for it: `separate_records` of `record`.
    """


class OtherAccountingWarning(UserWarning):
    """What is recorded costs more than Opacus' accountant says; the message says why, and what to do.

    What to do: believe the larger figure, or train with what the message names.
    """


class ChangedWeightsWarning(UserWarning):
    """The model ends with other weights than the record, which has those that the private optimizer left.

    What to do: release what is recorded, or keep other weights by `recorder.checkpoint(weights=…, who=…)`.
    """


class LostStepsWarning(UserWarning):
    """A run that goes on pays for steps of which nothing was kept; the message says how many, and what to do.

    What to do: pay for them, or say `lost_steps="unseen"` if nobody has seen anything of them.
    """


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn, and point at the line that called the recorder."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_INSIDE):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
