"""Models that were trained without the recorder: weights and an accountant's history become runs of a portfolio.

Guarantees: a folder gets its manifest, and converted weights where they were pickled, whole or not at all; of several
folders all or none. A manifest claims what the history knows and somebody vouches for, and no more.
Refuses: pickles, unless asked by name; to replace anything; to guess which file is which, or what nobody says.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dpmerge.errors import CannotWriteError, CheckpointError, InvalidInputError, ManifestError, PickleRefusedError
from dpmerge.files import made_and_locked, sync_folder
from dpmerge.portfolio.import_questions import Ask, answered
from dpmerge.portfolio.manifest import MANIFEST_NAME, SCHEMA, Manifest
from dpmerge.portfolio.manifest_draft import recorded_files
from dpmerge.portfolio.opacus_history import (
    SAVED_BY,
    History,
    checked_history,
    history_facts,
    is_prefix,
    read_history,
    steps_of,
)
from dpmerge.portfolio.pickled_checkpoints import SAVE_INSTEAD, SUFFIXES, Unpickled, unpickled
from dpmerge.portfolio.run_files import require_free
from dpmerge.terms.checkpoint_reference import CheckpointReference
from dpmerge.terms.documents import validated

HISTORIES = ("history.json", "accountant.json")
INDEX = ".safetensors.index.json"
_STEP = re.compile(r"(?:.*[-_])?step[-_]?(\d+)")
"""Other numbers in names are no steps: a step that is too small would be an ε that is."""


@dataclass(frozen=True, kw_only=True)
class ImportedRun:
    """A run that can be in a portfolio now.

    `converted` are the files that were made of pickles; `isolated` whether these were read without a network.
    """

    path: Path
    manifest: Manifest
    converted: tuple[str, ...] = ()
    isolated: bool = True


@dataclass
class _Found:
    """What a folder holds, and where it is put until all is known to be well."""

    folder: Path
    models: dict[str, Path]  # the name it will have → where it is now
    history: History | None
    steps: dict[str, int] = field(default_factory=dict)  # of checkpoints that have a history of their own
    isolated: bool = True

    def checkpoint_steps(self, last: int) -> dict[str, int]:
        """Of each model its step: by its own history, its name, or because it is the only one."""
        found = {}
        for name in self.models:
            number = _STEP.fullmatch(name.partition(".")[0])
            if name in self.steps or len(self.models) == 1:
                found[name] = self.steps.get(name, last)
            elif number is not None:
                found[name] = int(number[1])
            else:
                accepted = "one model, or several whose names say their step, such as step-100.pt"
                raise InvalidInputError(f"{self.folder}", name, accepted)
        return found


def import_models(
    folders: Sequence[str | Path],
    *,
    allow_pickle: bool = False,
    run: str | None = None,
    dataset: str | None = None,
    adjacency: str | None = None,
    unit: str = "record",
    size: int | None = None,
    noise_multiplier: float | None = None,
    sampling_rate: float | None = None,
    steps: int | None = None,
    sampling: str | None = None,
    steps_per_epoch: int | None = None,
    clipping: str = "per_example",
    public_divisor: bool | None = None,
    noise_source: str | None = None,
    noise_seed: int | None = None,
    start: str | None = None,
    public_source: str | None = None,
    parent: str | None = None,
    tuning: str = "unknown",
    stopping: str | None = None,
    schedule: str | None = None,
    record_losses: str | None = None,
    who: str | None = None,
    ask: Ask | None = None,
) -> list[ImportedRun]:
    """Write the manifests of models that were trained without the recorder.

    Args:
        folders: Of each run its folder: a model (`.safetensors`, the index of its shards, or a pickled state_dict or
            Opacus checkpoint), and the accountant's history as `history.json` unless it is in the checkpoint.
        allow_pickle: Read pickles, by torch.load(weights_only=True) in a process of its own under limits, and keep
            what they hold as safetensors beside them.
        run: A name for the run, of one folder; by default the folder's.
        dataset: A name for the private data; never a digest of it.
        adjacency: Which data sets are neighbours.
        unit: Whose privacy one record is.
        size: The public number of records, where the adjacency leaves it public.
        noise_multiplier: σ, where there is no history.
        sampling_rate: The chance of a record to be in a batch, where there is no history.
        steps: How many steps were taken, where there is no history.
        sampling: How batches were really drawn: `full_batch`, `poisson`, `shuffled` or `unknown`.
        steps_per_epoch: For shuffled batches.
        clipping: `per_example`, as Opacus does, or `aggregate`.
        public_divisor: Whether the sum of gradients was divided by nothing private, and not by the batch drawn.
        noise_source: `os_entropy`, `seeded` or `unknown`.
        noise_seed: The seed, if the noise was seeded; runs with one seed are a group, of which one is ever released.
        start: `random`, `public`, `private` or `unknown`.
        public_source: Which public checkpoint it started from.
        parent: The private parent, as `run@step`.
        tuning: On what hyperparameters were tuned: `none`, `public`, `charged` or `unknown`.
        stopping: By what it was decided when to stop: `fixed`, `public`, `private` or `unknown`.
        schedule: Likewise for rates, clip norms and noise that changed.
        record_losses: `vouched` if each record had a loss of its own, or `unknown`.
        who: Who vouches for this.
        ask: Asks somebody for what is missing; without it that is an error which lists all of it.

    Returns:
        The runs, in the order of the folders.

    Raises:
        PickleRefusedError: A pickle, and nobody asked for it to be read; or one that cannot be read safely.
        ManifestError: A history that is none, or does not fit.
        InvalidInputError: Something is missing or contradicts itself; everything missing is listed.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     _ = (Path(folder) / "history.json").write_text('{"history": [[1.0, 0.01, 1000]]}')
        ...     [made] = import_models([folder], run="old", dataset="adult", adjacency="add_remove", sampling="poisson",
        ...                            public_divisor=True, noise_source="os_entropy", start="random", who="Ann")
        >>> made.manifest.mechanism_from(None).profile().epsilon(1e-5) < 1.83
        True
    """
    stated = {name: value for name, value in locals().items() if name not in ("folders", "allow_pickle", "ask")}
    homes = _homes(folders, run)
    with ExitStack() as staging:
        found = [_looked_into(home, allow_pickle, staging) for home in homes]
        stated["histories"] = all(each.history is not None for each in found)
        said = answered(stated, ask)
        manifests = [_manifest(each, said) for each in found]
        with _undone_together() as placed:
            for each, manifest in zip(found, manifests, strict=True):
                _place(each, manifest, placed)
    return [
        ImportedRun(
            path=each.folder / MANIFEST_NAME,
            manifest=manifest,
            converted=tuple(name for name, place in each.models.items() if place.parent != each.folder),
            isolated=each.isolated,
        )
        for each, manifest in zip(found, manifests, strict=True)
    ]


def _homes(folders: Sequence[str | Path], run: str | None) -> list[Path]:
    homes = [Path(folder) for folder in folders]
    if not homes or len({home.resolve() for home in homes}) < len(homes):
        raise InvalidInputError("folders", [str(home) for home in homes], "at least one folder, each once")
    if run is not None and len(homes) > 1:
        raise InvalidInputError("run", run, "nothing for several folders: runs are named as their folders")
    for home in homes:
        if not home.is_dir():
            raise InvalidInputError("folder", str(home), "a folder with a model, a history, or both")
        require_free(home, MANIFEST_NAME)
    return homes


def _looked_into(folder: Path, allow_pickle: bool, staging: ExitStack) -> _Found:
    """The models of a folder, pickled ones converted beside it, and the one history that they agree on."""
    files = sorted(each for each in folder.iterdir() if not each.name.startswith("."))
    plain = [each for each in files if each.name.endswith(INDEX)] or [e for e in files if e.suffix == ".safetensors"]
    pickles = [each for each in files if each.suffix in SUFFIXES]
    kept = [folder / name for name in HISTORIES if (folder / name).exists()]
    if len(kept) > 1:
        raise InvalidInputError(str(folder), [file.name for file in kept], "one history")
    if not (plain or pickles or kept):
        within = [each.name for each in files if each.is_dir()]
        more = f" (import {folder / within[0]} and others by name)" if within else ""
        accepted = f"a folder with a model, or with history.json, as saved by {SAVED_BY}{more}"
        raise InvalidInputError("folder", str(folder), accepted, found=f"{folder}, which has neither")
    if pickles and not allow_pickle:
        problem = "file: a pickle, a format that can run code when loaded"
        remedy = f"allow_pickle=True (--allow-pickle) reads it in a process of its own; or {SAVE_INSTEAD}"
        raise PickleRefusedError(pickles[0], "file", pickles[0], remedy, problem=problem)
    found = _Found(folder, {each.name: each for each in plain}, read_history(kept[0]) if kept else None)
    if pickles:
        place = staging.enter_context(_staged(folder))
        for source in pickles:
            name = f"{source.name.removesuffix(source.suffix)}.safetensors"
            if name in found.models or (folder / name).exists():
                raise InvalidInputError(f"{folder}", name, f"one of {source.name} and {name}, not both")
            _agree(found, source, name, unpickled(source, place / name))
            found.models[name] = place / name
    return found


def _agree(found: _Found, source: Path, name: str, read: Unpickled) -> None:
    """A checkpoint's own history says after how many steps it was kept; of all histories the longest is the run's."""
    found.isolated &= read.isolated
    if read.history is None:
        return
    own = checked_history(source, read.history)
    found.steps[name] = steps_of(own)
    shorter, longer = sorted([own, found.history or own], key=steps_of)
    if not is_prefix(shorter, longer):
        problem = "history: not the beginning of, nor begun by, the other history in its folder"
        raise ManifestError(source, "history", own, "keep one run in a folder, with its own history", problem=problem)
    found.history = longer


@contextmanager
def _staged(folder: Path) -> Iterator[Path]:
    """A folder for what is not known to be well yet; gone afterwards, whatever happens."""

    def make() -> tuple[Path, int] | None:
        place = folder / f".import-{secrets.token_hex(4)}.partial"
        place.mkdir(mode=0o700)
        try:
            return place, os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None

    try:
        place, descriptor = made_and_locked(make)
    except OSError as error:
        raise CannotWriteError.from_os(error, field="folder", path=folder, accepted="a folder to write to") from None
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)
        os.close(descriptor)


def _manifest(found: _Found, said: dict[str, Any]) -> Manifest:
    by_hand = found.history is None
    if by_hand:
        rate = said["sampling_rate"] if said["sampling"] == "poisson" else 1.0
        given = [said["noise_multiplier"], rate, said["steps"]]
        history = checked_history(found.folder, [given])
    else:
        assert found.history is not None
        history = found.history
        for name in ("noise_multiplier", "sampling_rate", "steps"):
            if said[name] is not None:
                raise InvalidInputError(name, said[name], f"nothing beside the history in {found.folder}")
    mechanism = history_facts(
        history,
        sampling=said["sampling"],
        steps_per_epoch=said["steps_per_epoch"],
        clipping=said["clipping"],
        public_divisor=said["public_divisor"],
        vouched_by=said["who"],
    )
    parent = {} if said["parent"] is None else CheckpointReference.parse(said["parent"], "parent")._asdict()
    stream = secrets.token_hex(16) if said["noise_source"] == "os_entropy" else None
    places = sorted(found.checkpoint_steps(steps_of(history)).items(), key=lambda each: each[1])
    content = {
        "schema": SCHEMA,
        "run": said["run"] or found.folder.resolve().name,
        "dataset": _given(id=said["dataset"], size=said["size"]),
        "unit": said["unit"],
        "adjacency": said["adjacency"],
        "mechanism": _given(**mechanism),
        "noise": _given(source=said["noise_source"], stream=stream, seed=said["noise_seed"]),
        "ancestry": _given(start=said["start"], source=said["public_source"], **parent),
        **_given(**{name: said[name] for name in ("tuning", "stopping", "schedule", "record_losses")}),
        "checkpoints": [{"step": step, **_recorded(found, name)} for name, step in places],
        "recorded_by": {"how": "hand" if by_hand else "opacus_history", "who": said["who"]},
    }
    try:
        return validated(Manifest, content, "manifest")
    except InvalidInputError as error:
        raise ManifestError.of(found.folder / MANIFEST_NAME, error) from None


def _recorded(found: _Found, name: str) -> dict[str, Any]:
    """Digests of a model's files where they are now, under the names they will have."""
    try:
        return recorded_files([name], found.models[name].parent)
    except CheckpointError as error:  # under the name it would have had
        raise CheckpointError(
            found.folder / name, error.field, error.value, error.accepted, found=error.found, problem=error.problem
        ) from None


def _given(**fields: Any) -> dict[str, Any]:
    """The fields that have a value."""
    return {name: value for name, value in fields.items() if value is not None}


@contextmanager
def _undone_together() -> Iterator[list[Path]]:
    """Files that were put in place, taken away again if not all of them could be."""
    placed: list[Path] = []
    try:
        yield placed
    except BaseException:
        for path in placed:
            with suppress(OSError):
                path.unlink()
        raise


def _place(found: _Found, manifest: Manifest, placed: list[Path]) -> None:
    """Converted weights first, then the manifest that makes a run of them."""
    try:
        for name, place in found.models.items():
            if place.parent != found.folder:
                with place.open("rb") as file:
                    os.fsync(file.fileno())
                place.rename(require_free(found.folder / name, name))
                placed.append(found.folder / name)
        sync_folder(found.folder)
        manifest.write(require_free(found.folder, MANIFEST_NAME))
        placed.append(found.folder / MANIFEST_NAME)
    except OSError as error:
        if isinstance(error, CannotWriteError):
            raise
        accepted = "a folder to write to"
        raise CannotWriteError.from_os(error, field="folder", path=found.folder, accepted=accepted) from None
