"""An Opacus accountant's saved history, read as a manifest that claims no more than the history knows.

Guarantees: only noise multipliers, sampling rates and step counts are taken over. How batches were really drawn is
*not* in a history (Opacus accounts for shuffled batches as if they were sampled): unless the caller says, it is
unknown, and the run has no number.
Refuses: pickles, rates outside (0, 1], histories that contradict what the caller says about batches.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dpmerge.errors import InvalidInputError, ManifestError, PickleRefusedError
from dpmerge.files import read_bytes
from dpmerge.portfolio.manifest import MANIFEST_NAME, SCHEMA, Manifest
from dpmerge.portfolio.manifest_draft import recorded_files
from dpmerge.portfolio.run_files import require_free
from dpmerge.terms.checkpoint_reference import CheckpointReference
from dpmerge.terms.documents import strict_json, validated

SAVED_BY = "json.dump(privacy_engine.accountant.state_dict(), file)"


def import_opacus(
    file: str | Path,
    *,
    out: str | Path = MANIFEST_NAME,
    run: str | None,
    dataset: str | None,
    adjacency: str = "add_remove",
    unit: str = "record",
    size: int | None = None,
    sampling: str = "unknown",
    steps_per_epoch: int | None = None,
    public_divisor: bool = False,
    noise_source: str = "unknown",
    noise_seed: int | None = None,
    start: str = "unknown",
    public_source: str | None = None,
    parent: str | None = None,
    tuning: str = "unknown",
    stopping: str | None = None,
    schedule: str | None = None,
    record_losses: str | None = None,
    who: str | None = None,
    checkpoint: Iterable[str] = (),
) -> Manifest:
    """Write the manifest of a run of which an Opacus accountant's history is known.

    Args:
        file: The accountant's `state_dict()`, saved as JSON.
        out: Where to write: a file that does not exist yet, or its folder.
        run: A name for the run.
        dataset: A name for the private data; never a digest of it.
        adjacency: `replace_one`, `add_remove` or `zero_out`.
        unit: Whose privacy one record is.
        size: The public number of records (under replace_one and zero_out).
        sampling: How batches were really drawn: `full_batch`, `poisson`, `shuffled` or `unknown`.
        steps_per_epoch: For shuffled batches.
        public_divisor: Under add_remove: whether the expected batch size was fixed without looking at the data.
        noise_source: `os_entropy`, `seeded` or `unknown`.
        noise_seed: The seed, if the noise was seeded.
        start: `random`, `public`, `private` or `unknown`.
        public_source: Which public checkpoint it started from.
        parent: The private parent, as `run@step`.
        tuning: On what hyperparameters were tuned: `none`, `public`, `charged` or `unknown`.
        stopping: By what it was decided when to stop: `fixed`, `public`, `private` or `unknown`.
        schedule: Likewise for rates, clip norms and noise that changed.
        record_losses: `vouched` if each record had a loss of its own, or `unknown`.
        who: Who vouches for this.
        checkpoint: `STEP=FILE.safetensors` (of shards: their index), beside the manifest.

    Returns:
        The manifest that was written.

    Raises:
        ManifestError: If the history cannot be read, or is none.
        PickleRefusedError: If it was saved as a pickle.
        InvalidInputError: If what is stated contradicts the history, or is not accepted.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     file = Path(folder) / "history.json"
        ...     _ = file.write_text('{"history": [[1.0, 0.01, 1000]]}')
        ...     made = import_opacus(file, out=folder, run="old", dataset="adult", sampling="poisson",
        ...                          public_divisor=True, noise_source="os_entropy", start="random")
        >>> made.mechanism_from(None).profile().epsilon(1e-5) < 1.83
        True
    """
    path = require_free(Path(out), MANIFEST_NAME)
    for flag, value in (("--run", run), ("--dataset", dataset)):
        if value is None:
            raise InvalidInputError(flag, None, "a name", found="nothing")
    mechanism = history_facts(
        read_history(Path(file)),
        sampling=sampling,
        steps_per_epoch=steps_per_epoch,
        public_divisor=public_divisor or adjacency != "add_remove",
    )
    stream = secrets.token_hex(16) if noise_source == "os_entropy" else None
    content = {
        "schema": SCHEMA,
        "run": run,
        "dataset": _given(id=dataset, size=size),
        "unit": unit,
        "adjacency": adjacency,
        "mechanism": _given(**mechanism),
        "noise": _given(source=noise_source, stream=stream, seed=noise_seed),
        "ancestry": _given(start=start, source=public_source, **_parent(parent)),
        "tuning": tuning,
        "stopping": stopping,
        "schedule": schedule,
        "record_losses": record_losses,
        "checkpoints": [_checkpoint(text, path.parent) for text in checkpoint],
        "recorded_by": _given(how="opacus_history", who=who),
    }
    manifest = validated(Manifest, content, "manifest")
    manifest.write(path)
    return manifest


def read_history(path: Path) -> list[tuple[float, float, int]]:
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
    history: list[tuple[float, float, int]], *, sampling: str, steps_per_epoch: int | None, public_divisor: bool
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
        "clipping": "per_example",
        "public_divisor": public_divisor,
    }


def _parent(name: str | None) -> dict[str, Any]:
    if name is None:
        return {}
    return CheckpointReference.parse(name, "parent")._asdict()


def _checkpoint(text: str, folder: Path) -> dict[str, Any]:
    step, _, name = text.partition("=")
    if not step.isdecimal() or not name:
        accepted = "STEP=FILE, such as 20=model.safetensors, or 20=model.safetensors.index.json for shards"
        raise InvalidInputError("checkpoint", text, accepted)
    return {"step": int(step), **recorded_files([name], folder)}


def _given(**fields: Any) -> dict[str, Any]:
    """The fields that have a value."""
    return {name: value for name, value in fields.items() if value is not None}
