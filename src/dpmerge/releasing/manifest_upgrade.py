"""Manifests of version 0.1 made to state what they could not, by somebody who vouches for it.

Guarantees: nothing that was stated is changed or taken away; every field that is added names who vouches for it; all
manifests are checked before the first is written, each is replaced as one operation, and one that lacks nothing stays
as it is, byte for byte. A run that a ledger has charged keeps its statement, which the ledger and the commitments of
its certificates hold it to. With the extra `blake3`, files get the BLAKE3 of bytes that had the recorded SHA-256 in the
same pass; nobody has to vouch for that.
Refuses: other values for what is stated, fields no manifest of these can have, "checked" (only the recorder checks),
ties that the weights contradict, a change to a run that is, or may be, in a ledger.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, get_args

from dpmerge.errors import InvalidInputError, ManifestError
from dpmerge.files import LARGEST_DOCUMENT, is_file, read_bytes
from dpmerge.portfolio.manifest import MANIFEST_NAME, Manifest, write_atomically
from dpmerge.portfolio.manifest_parts import Amendment, LaterField
from dpmerge.portfolio.portfolio_file import read_listing, run_folders
from dpmerge.portfolio.recorded_runs import SavedCheckpoint
from dpmerge.portfolio.run_reading import read_runs, require_tied
from dpmerge.releasing.added_blake3 import add_blake3, can_add_blake3
from dpmerge.releasing.charged_statements import require_statement_free
from dpmerge.terms.documents import problems, strict_json
from dpmerge.terms.one_shot_schema import GaussianReleaseFacts
from dpmerge.terms.run_record import clips_records, trains

LATER_FIELDS: tuple[str, ...] = get_args(LaterField)
_VALUES = "values (--set)"


@dataclass(frozen=True, kw_only=True)
class UpgradedManifest:
    """What became of one manifest."""

    path: Path
    run: str
    vouched_by: str
    added: Mapping[str, Any]
    """Field → value; empty where nothing was stated."""
    hashed: int = 0
    """Files whose BLAKE3 was added."""
    unstated: tuple[str, ...]
    """Fields it could state, and still does not."""

    def __str__(self) -> str:
        done = [f"added {', '.join(self.added)}, vouched for by {self.vouched_by}"] if self.added else []
        done += [f"added blake3 of {self.hashed} file{'s' * (self.hashed > 1)}, as read"] if self.hashed else []
        rest = f"; not stated: {', '.join(self.unstated)} (--set FIELD=VALUE)" if self.unstated else ""
        return f"{self.path}: {'; '.join(done) or 'left as it is'}{rest}"

    def document(self) -> dict[str, Any]:
        """As the JSON that `--json` prints."""
        return {
            "file": str(self.path),
            "run": self.run,
            "vouched_by": self.vouched_by if self.added else None,
            "added": dict(self.added),
            "blake3": self.hashed,
            "unstated": list(self.unstated),
        }


@dataclass(frozen=True)
class _Change:
    """A manifest as it is, and as it will be."""

    path: Path
    before: Manifest
    after: Manifest
    content: bytes
    added: dict[str, Any]
    hashed: int


def upgrade_manifests(
    files: Iterable[str | Path],
    *,
    vouched_by: str,
    values: Mapping[str, Any] | None = None,
    ledger: str | Path | None = None,
    insecure_permissions: bool = False,
) -> list[UpgradedManifest]:
    """State what manifests of version 0.1 could not, in the name of who vouches for it.

    Args:
        files: Manifests, folders of one run or of several, or a `portfolio.yaml`.
        vouched_by: A person or team; certificates name them.
        values: What to state: `stopping`, `schedule`, `record_losses`, `tensors.tied`, `ancestry.independent_of`,
            `mechanism.noise_on`, `model`. Without `tensors.tied`, weights that show that no two trained tensors are one
            weight have it stated.
        ledger: The ledger that knows the runs, if it is not beside them.
        insecure_permissions: Read a ledger that everybody may write to.

    Returns:
        For each manifest what was added, and what it still does not state.

    Raises:
        InvalidInputError: If a field cannot be added, or nobody is named.
        ManifestError: If a manifest states something else, or its run was charged as it is.
        PortfolioError: If a manifest or its checkpoints are not in order.
        LedgerError: If the ledger cannot be read.

    Example:
        >>> import shutil
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     run = shutil.copytree("tests/data/version_0_1/full-batch/a", Path(folder) / "a")
        ...     (run / ".ledger-witness").unlink()
        ...     [done] = upgrade_manifests([run], vouched_by="Ann", values={"stopping": "fixed"})
        >>> dict(done.added)
        {'stopping': 'fixed', 'tensors.tied': []}
    """
    values = values or {}
    _require_voucher(vouched_by)
    _require_settable(values)
    changes = [_change(path, vouched_by, values) for path in _manifests(files)]
    for field in values:
        if not any(field in _possible(change.before) for change in changes):
            accepted = "a field that one of these manifests can state; none of them is of a kind that has it"
            raise InvalidInputError(_VALUES, field, accepted)
    for change in changes:
        if change.after.statement != change.before.statement:
            require_statement_free(
                change.path, change.before, change.after, ledger=ledger, insecure_permissions=insecure_permissions
            )
    for change in changes:
        if change.added or change.hashed:
            write_atomically(change.path, change.content)
    return [
        UpgradedManifest(
            path=change.path,
            run=change.after.run,
            vouched_by=vouched_by,
            added=change.added,
            hashed=change.hashed,
            unstated=tuple(f for f in _possible(change.after) if f in _EXPECTED and _stated(change.after, f) is None),
        )
        for change in changes
    ]


_EXPECTED = ("stopping", "schedule", "record_losses", "mechanism.noise_on", "tensors.tied")
"""What a manifest should state where it can; `independent_of` is for runs of which a portfolio asks."""


def parsed_value(text: str) -> tuple[str, Any]:
    """`FIELD=VALUE` of the command line; lists are JSON."""
    field, equals, value = text.partition("=")
    if not equals or not field or not value:
        raise InvalidInputError(_VALUES, text, "FIELD=VALUE, such as stopping=fixed or tensors.tied=[]")
    return field, strict_json(value, _VALUES) if value.startswith(("[", "{")) else value


def _require_voucher(name: str) -> None:
    accepted = "a name of 1 to 100 printable characters: who vouches for what is added"
    if problems(Amendment, {"by": name, "fields": ["stopping"]}, "vouched_by") or not name.strip():
        raise InvalidInputError("vouched_by (--vouched-by)", name, accepted)


def _require_settable(values: Mapping[str, Any]) -> None:
    for field, value in values.items():
        if field not in LATER_FIELDS:
            accepted = ", ".join(LATER_FIELDS) + ": what version 0.1 stated stays as it is"
            raise InvalidInputError(_VALUES, field, accepted)
        if field == "record_losses" and value == "checked":
            raise InvalidInputError(
                f"{_VALUES}: record_losses", value, "vouched or unknown: only the recorder checks it"
            )


def _manifests(paths: Iterable[str | Path]) -> list[Path]:
    """The manifests that files and folders stand for, each once."""
    found: dict[Path, Path] = {}
    for path in map(Path, paths):
        if path.suffix in (".yaml", ".yml"):
            folders = [path.parent / name for name in read_listing(path).runs]
        elif path.name == MANIFEST_NAME and is_file(path):
            folders = [path.parent]
        else:
            folders = run_folders(path)
        for folder in folders:
            found.setdefault((folder / MANIFEST_NAME).resolve(), folder / MANIFEST_NAME)
    return list(found.values())


def _possible(manifest: Manifest) -> list[str]:
    """The later fields that a manifest of this kind can state."""
    statement = manifest.statement
    applies = {
        "stopping": trains(statement),
        "schedule": trains(statement),
        "record_losses": clips_records(statement),
        "mechanism.noise_on": isinstance(manifest.mechanism, GaussianReleaseFacts),
        "ancestry.independent_of": True,
        "tensors.tied": manifest.tensors is not None,
        "model": True,
    }
    return [field for field in LATER_FIELDS if applies[field]]


def _stated(manifest: Manifest, field: str) -> Any:
    owner, _, name = field.rpartition(".")
    return getattr(getattr(manifest, owner) if owner else manifest, name)


def _change(path: Path, vouched_by: str, values: Mapping[str, Any]) -> _Change:
    content = read_bytes(path, LARGEST_DOCUMENT)
    before = Manifest.parse(content, path)
    possible = _possible(before)
    added: dict[str, Any] = {}
    for field, value in values.items():
        stated = _stated(before, field) if field in possible else value
        if stated is None:
            added[field] = value
        elif stated != value:
            problem = f"{field}: {stated!r} is stated there, and {value!r} cannot take its place"
            remedy = "leave it out: an upgrade adds to a manifest and changes nothing in it"
            raise ManifestError(path, field, value, remedy, problem=problem)
    unsaid = before.tensors is not None and before.tensors.tied is None
    unhashed = can_add_blake3(before, path.parent)
    runs = list(read_runs(path.parent, reading="every byte")) if unsaid or unhashed else []
    checkpoints = runs[0].checkpoints if runs else ()
    if before.tensors is not None and unsaid and _untied(before.tensors.trained, checkpoints):
        added.setdefault("tensors.tied", [])
    document = strict_json(content, "manifest")
    hashed = add_blake3(document, runs)
    if not added and not hashed:
        return _Change(path, before, before, content, {}, 0)
    document = _with(document, added, vouched_by) if added else document
    text = (json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()
    after = Manifest.parse(text, path)
    if "ancestry.independent_of" in added and before.run in (after.ancestry.independent_of or ()):
        raise ManifestError(path, "ancestry.independent_of", before.run, "other runs than this one")
    for checkpoint in checkpoints:
        require_tied(after, checkpoint)
    return _Change(path, before, after, text, added, hashed)


def _with(document: dict[str, Any], added: Mapping[str, Any], vouched_by: str) -> dict[str, Any]:
    """The document with further fields; the rest is as it was written."""
    made = copy.deepcopy(document)
    for field, value in added.items():
        owner, _, name = field.rpartition(".")
        (made[owner] if owner else made)[name] = value
    made["amended"] = [*(made.get("amended") or ()), {"by": vouched_by, "fields": list(added)}]
    return made


def _untied(trained: Iterable[str], checkpoints: Iterable[SavedCheckpoint]) -> bool:
    """Whether of every two trained tensors some checkpoint shows that they are not one weight."""
    alike: set[tuple[str, str]] | None = None
    for checkpoint in checkpoints:
        assert checkpoint.digests is not None, "contents were read"
        values: dict[tuple[object, ...], list[str]] = {}
        for name in sorted(trained):
            entry = checkpoint.tensors[name][1]
            values.setdefault((entry.dtype, entry.shape, checkpoint.digests[name]), []).append(name)
        same = {pair for names in values.values() for pair in combinations(names, 2)}
        alike = same if alike is None else alike & same
    return alike is not None and not alike
