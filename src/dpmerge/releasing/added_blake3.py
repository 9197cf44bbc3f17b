"""BLAKE3 of files put into a manifest that was written without it.

Guarantees: a digest is added only as it was read in the pass that found the recorded SHA-256 right; those that are
recorded, and everything else, stay as they are.
Refuses: nothing; who reads the run refuses files that are not what was recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from dpmerge.files import is_file
from dpmerge.portfolio.file_digests import blake3_installed
from dpmerge.portfolio.manifest import Manifest
from dpmerge.portfolio.recorded_runs import RecordedRun


def can_add_blake3(manifest: Manifest, folder: Path) -> bool:
    """Whether a file lacks its BLAKE3, and all of them are there to be read."""
    files = [file for _, file in manifest.files()]
    lacking = blake3_installed() and any(file.blake3 is None for file in files)
    return lacking and all(is_file(folder / file.name) for file in files)


def add_blake3(document: dict[str, Any], runs: Iterable[RecordedRun]) -> int:
    """Put what was read of a run, and of the averages beside it, into its manifest; how many files got it."""
    read = {name: digest for run in runs for name, digest in _read(run)}
    count = 0
    for saved in document.get("checkpoints", ()):
        for kept in (saved, *(saved.get("averages") or ())):
            for file in kept["files"]:
                if file.get("blake3") is None and (digest := read.get(file["name"])) is not None:
                    file["blake3"] = digest
                    count += 1
    return count


def _read(run: RecordedRun) -> Iterator[tuple[str, str | None]]:
    for saved, checkpoint in zip(run.manifest.checkpoints, run.checkpoints, strict=True):
        yield from ((file.name, digest) for file, digest in zip(saved.files, checkpoint.blake3, strict=True))
