"""Digests that were computed, remembered: so that a look at a portfolio does not read gigabytes a second time.

Guarantees: what is recalled was read of a file that had the same version id or strong ETag (or device, inode, size and
times) before and after; kept for its owner alone, for digests of unreleased weights are releases. Nothing that is
charged or certified rests on it: what is merged is hashed again, every time (by which digest: `digest_pairs`).
Refuses: to remember files on disk that are small, or so new that a change might not show in their times.
"""

from __future__ import annotations

import base64
import json
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from dpmerge.errors import DpmergeError
from dpmerge.files import read_bytes
from dpmerge.portfolio.digest_pairs import remember_pair
from dpmerge.portfolio.file_digests import FileDigests
from dpmerge.portfolio.run_files import write_atomically
from dpmerge.portfolio.samples import Sample
from dpmerge.portfolio.tensors import Contents, TensorEntry, read_contents
from dpmerge.private_home import private_folder
from dpmerge.remote.remote_path import RemotePath, without_commit
from dpmerge.terms.documents import strict_json

SCHEMA = "dpmerge/digests/v1"
LEAST = 2**24
"""Bytes of a file on disk that is worth remembering: smaller ones are read in a moment."""
SETTLED = 2.0
"""Seconds. Two changes within one tick of a file system's clock look like one."""
_LARGEST = 500_000_000
_ENDPOINTS = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_PROFILE", "HF_ENDPOINT")


def contents_of(path: Path, slots: Sequence[TensorEntry], *, rehash: bool = False) -> Contents:
    """What a file of weights holds: recalled, or read and remembered; with `rehash` read in any case."""
    before = _key(path)
    if not rehash and before is not None and (known := _recalled(before, slots)) is not None:
        return known
    found = read_contents(path, slots)
    remember_pair(found.file)
    if before is not None and _key(path) == before:
        _remember(before, found)
    return found


def recalled_contents(path: Path, slots: Sequence[TensorEntry]) -> Contents | None:
    """What is remembered of a file of weights; None if nothing is."""
    key = _key(path)
    return None if key is None else _recalled(key, slots)


def _key(path: Path) -> str | None:
    """By what a file is known again; None if it should not be remembered."""
    with suppress(OSError):
        if isinstance(path, RemotePath):
            from dpmerge.remote.stores import store_of

            state = store_of(path).state(path)
            server = [os.environ.get(name, "") for name in _ENDPOINTS]
            return json.dumps([without_commit(str(path)), state.size, state.identity, *server])
        found = os.stat(path)
        newest = max(found.st_mtime, found.st_ctime)
        if found.st_size >= LEAST and newest + SETTLED < time.time():
            times = (found.st_mtime_ns, found.st_ctime_ns)
            return json.dumps(["disk", found.st_dev, found.st_ino, found.st_size, *times])
    return None


def _file(key: str) -> Path:
    return private_folder("digests") / f"{sha256(key.encode()).hexdigest()}.json"


def _recalled(key: str, slots: Sequence[TensorEntry]) -> Contents | None:
    """What was remembered for a key, if it is whole and of these tensors; what is broken is forgotten."""
    try:
        stored = strict_json(read_bytes(_file(key), _LARGEST), "digests")
        if stored["schema"] != SCHEMA or stored["key"] != key or set(stored["tensors"]) != {s.name for s in slots}:
            return None
        samples = {name: Sample(1, _values(text)) for name, text in stored["samples"].items()}
        file = FileDigests(sha256=str(stored["sha256"]), blake3=stored.get("blake3"))
        return Contents(file, dict(stored["tensors"]), samples, recalled=True)
    except (DpmergeError, KeyError, TypeError, ValueError, AttributeError):
        return None


def _remember(key: str, found: Contents) -> None:
    """Kept where it can be; where it cannot, it is read again."""
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "key": key,
        "sha256": found.sha256,
        "blake3": found.file.blake3,
        "tensors": found.tensors,
        "samples": {
            name: base64.b64encode(sample.values.astype("<f4").tobytes()).decode()
            for name, sample in found.samples.items()
        },
    }
    with suppress(DpmergeError, OSError):
        write_atomically(_file(key), json.dumps(document).encode())


def _values(text: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.frombuffer(base64.b64decode(text, validate=True), "<f4").astype(np.float64)
