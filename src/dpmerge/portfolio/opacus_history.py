"""An Opacus accountant's saved history, read as a mechanism that claims no more than the history knows.

Guarantees: only noise multipliers, sampling rates and step counts are taken over. How batches were really drawn is
*not* in a history (Opacus accounts for shuffled batches as if they were sampled): the caller says, and who vouches.
Refuses: pickles, rates outside (0, 1], histories that contradict what the caller says about batches.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from dpmerge.errors import InvalidInputError, ManifestError, PickleRefusedError
from dpmerge.files import read_bytes
from dpmerge.terms.documents import strict_json

History = list[tuple[float, float, int]]
"""Noise multiplier, sampling rate and number of steps, stretch by stretch."""

SAVED_BY = "json.dump(privacy_engine.accountant.state_dict(), file)"


def read_history(path: Path) -> History:
    """The steps of a saved accountant: its state dict, or the bare history."""
    try:
        content = read_bytes(path)
    except InvalidInputError as error:
        raise ManifestError(path, "file", path, error.accepted, found=error.found) from None
    if content.startswith((b"\x80", b"PK")):
        problem = "file: a pickle, a format that can run code when loaded"
        raise PickleRefusedError(path, "file", path, f"save it as JSON, by {SAVED_BY}", problem=problem)
    try:
        history = strict_json(content, "history")
    except InvalidInputError as error:
        raise ManifestError.of(path, error) from None
    return checked_history(path, history)


def checked_history(path: Path, history: Any) -> History:
    """The steps of what was found in a file, if they are a history."""
    if isinstance(history, dict):
        history = history.get("history")
    if not isinstance(history, list) or not history:
        accepted = f"a non-empty list of [noise multiplier, sampling rate, steps], as saved by {SAVED_BY}"
        raise ManifestError(path, "history", history, accepted)
    return [_entry(path, place, entry) for place, entry in enumerate(history)]


def _entry(path: Path, place: int, entry: Any) -> tuple[float, float, int]:
    accepted = "[noise multiplier ≥ 0, sampling rate in (0, 1], steps ≥ 1]"
    if not isinstance(entry, list) or len(entry) != 3 or any(isinstance(value, bool) for value in entry):
        raise ManifestError(path, f"history[{place}]", entry, accepted)
    noise, rate, steps = entry
    numbers = isinstance(noise, int | float) and isinstance(rate, int | float) and isinstance(steps, int)
    if not numbers or not (0 <= noise < float("inf") and 0 < rate <= 1 and steps >= 1):
        raise ManifestError(path, f"history[{place}]", entry, accepted)
    return float(noise), float(rate), steps


def history_facts(
    history: History,
    *,
    sampling: str,
    steps_per_epoch: int | None,
    clipping: str,
    public_divisor: bool,
    vouched_by: str,
) -> dict[str, Any]:
    """The manifest's `mechanism`. Batches that were not Poisson have no rate, whatever the accountant was told."""
    poisson = sampling in ("poisson", "unknown")
    if sampling == "shuffled" and steps_per_epoch is not None:
        # Opacus' rate is one over the number of batches in an epoch.
        batches = min(1 / rate for _, rate, _ in history)
        if steps_per_epoch >= batches + 1:
            accepted = f"at most {math.ceil(batches)}, by the history's sampling rate"
            raise InvalidInputError("steps_per_epoch", steps_per_epoch, accepted)
    if sampling == "full_batch" and (sampled := [rate for _, rate, _ in history if rate < 1]):
        raise InvalidInputError(
            "sampling", sampling, "poisson or shuffled", found=f"full_batch, at a rate of {sampled[0]:g}"
        )
    return {
        "kind": "accountant_history",
        "blocks": [
            {"steps": steps, "noise_multiplier": noise, "sampling_rate": rate if poisson else 1.0}
            for noise, rate, steps in history
        ],
        "sampling": sampling,
        "steps_per_epoch": steps_per_epoch,
        "clipping": clipping,
        "public_divisor": public_divisor,
        "sampling_vouched_by": vouched_by,
    }


def steps_of(history: History) -> int:
    return sum(steps for _, _, steps in history)


def is_prefix(first: History, second: History) -> bool:
    """Whether a history is how another one began."""
    left = [[noise, rate, steps] for noise, rate, steps in second]
    for noise, rate, steps in first:
        missing = steps
        while missing and left and left[0][:2] == [noise, rate]:
            taken = min(missing, int(left[0][2]))
            missing, left[0][2] = missing - taken, left[0][2] - taken
            if not left[0][2]:
                left.pop(0)
        if missing:
            return False
    return True
