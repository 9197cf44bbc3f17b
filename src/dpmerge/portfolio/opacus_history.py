"""An Opacus accountant's saved history, read as a manifest that claims no more than the history knows.

Guarantees: only noise multipliers, sampling rates and step counts are taken over. How batches were really drawn is
*not* in a history (Opacus accounts for shuffled batches as if they were sampled): unless the caller says, it is
unknown, and the run has no number.
Refuses: pickles, rates outside (0, 1], histories that contradict what the caller says about batches.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from dpmerge.documents import read_bytes, strict_json
from dpmerge.errors import BadManifest, InvalidInput, PickleRefused

SAVED_BY = "json.dump(privacy_engine.accountant.state_dict(), file)"


def read_history(path: Path) -> list[tuple[float, float, int]]:
    """The steps of a saved accountant: its state dict, or the bare history."""
    try:
        content = read_bytes(path)
    except InvalidInput as error:
        raise BadManifest(path, "file", path, error.accepted, found=error.found) from None
    if content.startswith((b"\x80", b"PK")):
        accepted = f"JSON, saved by {SAVED_BY}"
        raise PickleRefused(path, "file", path, accepted, found="a pickle, a format that can run code when loaded")
    try:
        history = strict_json(content, "history")
    except InvalidInput as error:
        raise BadManifest.of(path, error) from None
    if isinstance(history, dict):
        history = history.get("history")
    if not isinstance(history, list) or not history:
        accepted = f"a non-empty list of [noise multiplier, sampling rate, steps], as saved by {SAVED_BY}"
        raise BadManifest(path, "history", history, accepted)
    return [_entry(path, place, entry) for place, entry in enumerate(history)]


def _entry(path: Path, place: int, entry: Any) -> tuple[float, float, int]:
    accepted = "[noise multiplier ≥ 0, sampling rate in (0, 1], steps ≥ 1]"
    if not isinstance(entry, list) or len(entry) != 3 or any(isinstance(value, bool) for value in entry):
        raise BadManifest(path, f"history[{place}]", entry, accepted)
    noise, rate, steps = entry
    numbers = isinstance(noise, int | float) and isinstance(rate, int | float) and isinstance(steps, int)
    if not numbers or not (0 <= noise < float("inf") and 0 < rate <= 1 and steps >= 1):
        raise BadManifest(path, f"history[{place}]", entry, accepted)
    return float(noise), float(rate), steps


def history_facts(
    history: list[tuple[float, float, int]], *, sampling: str, steps_per_epoch: int | None, public_divisor: bool
) -> dict[str, Any]:
    """The manifest's `mechanism`. Batches that were not Poisson have no rate, whatever the accountant was told."""
    poisson = sampling in ("poisson", "unknown")
    if sampling == "shuffled" and steps_per_epoch is not None:
        # Opacus' rate is one over the number of batches in an epoch.
        batches = min(1 / rate for _, rate, _ in history)
        if steps_per_epoch >= batches + 1:
            accepted = f"at most {math.ceil(batches)}, by the history's sampling rate"
            raise InvalidInput("steps_per_epoch", steps_per_epoch, accepted)
    if sampling == "full_batch" and (sampled := [rate for _, rate, _ in history if rate < 1]):
        raise InvalidInput(
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
        "clipping": "per_example",
        "public_divisor": public_divisor,
    }
