"""Small portfolios on disk, valid until told otherwise: what the tests of this folder break, one thing at a time."""

from __future__ import annotations

import copy
import hashlib
import json
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

from dpmerge.portfolio.tensors import read_contents, read_header, weights_digest

Document = dict[str, Any]
Tensors = Mapping[str, npt.NDArray[Any]]

BLOCK: Document = {"steps": 4, "noise_multiplier": 8.0, "clip_norm": 1.0, "learning_rate": 0.01}
DP_SGD: Document = {
    "kind": "dp_sgd",
    "blocks": [BLOCK],
    "sampling": "full_batch",
    "clipping": "per_example",
    "flat_clipping": True,
    "optimizer": {"name": "sgd", "momentum": 0, "nesterov": False, "dampening": 0, "weight_decay": 0},
    "loss_reduction": "mean",
    "expected_batch_size": 100,
    "public_divisor": True,
}
HISTORY: Document = {
    "kind": "accountant_history",
    "blocks": [{"steps": 4, "noise_multiplier": 8.0}],
    "sampling": "full_batch",
    "clipping": "per_example",
    "public_divisor": True,
}
START = hashlib.sha256(b"the common start").hexdigest()
INITIAL = {name: hashlib.sha256(name.encode()).hexdigest() for name in ("weight", "bias", "embedding")}
OTHER_START = hashlib.sha256(b"another start").hexdigest()


def manifest(run: str = "a", **overrides: Any) -> Document:
    """A valid manifest without checkpoints; a top-level field given as None is left out."""
    document: Document = {
        "schema": "dpmerge/run/v1",
        "run": run,
        "dataset": {"id": "patients-2026", "size": 100},
        "unit": "record",
        "adjacency": "replace_one",
        "mechanism": copy.deepcopy(DP_SGD),
        "noise": {"source": "os_entropy", "generator": "philox", "stream": hashlib.md5(run.encode()).hexdigest()},  # noqa: S324
        "ancestry": {"start": "random"},
        "initial_weights": START,
        "tensors": {"trained": ["weight", "bias"], "frozen": ["embedding"], "initial": dict(INITIAL)},
        "tuning": "none",
        "model": "linear",
        "recorded_by": {"how": "recorder"},
    }
    document |= overrides
    return {name: value for name, value in document.items() if value is not None}


def add_remove(document: Document) -> Document:
    """The same run under the other adjacency, under which the number of records is private."""
    changed = copy.deepcopy(document)
    changed["adjacency"] = "add_remove"
    changed["dataset"].pop("size", None)
    return changed


def replaced(document: Document, *path: str | int, to: Any) -> Document:
    """A copy with one value replaced (or added)."""
    changed: Any = copy.deepcopy(document)
    place = changed
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = to
    return dict(changed)


def model(seed: int, **overrides: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
    """A tiny model; every seed has the same frozen embedding."""
    random = np.random.default_rng(seed)
    return {
        "weight": random.standard_normal((3, 2)).astype(np.float32),
        "bias": random.standard_normal(2).astype(np.float32),
        "embedding": np.arange(6, dtype=np.float16).reshape(2, 3),
        **overrides,
    }


def sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def model_digest(*files: Path) -> str:
    """The digest of a model, whatever files it is in."""
    entries = []
    for file in files:
        slots = read_header(file)
        digests = read_contents(file, slots).tensors
        entries += [(slot.name, slot.dtype, slot.shape, digests[slot.name]) for slot in slots]
    return weights_digest(entries)


def write_json(file: Path, document: Document) -> None:
    file.write_text(json.dumps(document))


def write_checkpoint(folder: Path, step: int, *shards: Tensors) -> Document:
    """Save a model of one or several shards, and return its entry in the manifest."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for place, shard in enumerate(shards):
        suffix = f"-{place + 1}" if len(shards) > 1 else ""
        files.append(folder / f"step-{step}{suffix}.safetensors")
        save_file(dict(shard), files[-1])
    return {
        "step": step,
        "files": [{"name": file.name, "sha256": sha256(file)} for file in files],
        "weights": model_digest(*files),
    }


def write_run(folder: Path, document: Document, models: Mapping[int, Tensors]) -> Document:
    """Save a run: its checkpoints, one for each step given, and its manifest, which is returned."""
    folder.mkdir(parents=True, exist_ok=True)
    saved = [write_checkpoint(folder, step, tensors) for step, tensors in models.items()]
    whole = {**document, "checkpoints": saved}
    write_json(folder / "privacy.json", whole)
    return whole


def write_portfolio(
    home: Path,
    *,
    runs: Iterable[str] = ("a", "b", "c"),
    manifests: Mapping[str, Document] | None = None,
    models: Mapping[str, Mapping[int, Tensors]] | None = None,
    listing: str | None = None,
) -> Path:
    """Save a valid portfolio, or one that is broken by other `manifests` and `models` for some of its runs."""
    for place, name in enumerate(runs):
        document = (manifests or {}).get(name, manifest(name))
        checkpoints = (models or {}).get(name, {2: model(10 * place), 4: model(10 * place + 1)})
        write_run(home / name, document, checkpoints)
    if listing is not None:
        (home / "portfolio.yaml").write_text(listing)
    return home


def read_manifest(folder: Path) -> Document:
    return dict(json.loads((folder / "privacy.json").read_text()))


def edit_manifest(folder: Path, *path: str | int, to: Any) -> None:
    """Change one value of a manifest on disk."""
    write_json(folder / "privacy.json", replaced(read_manifest(folder), *path, to=to))


def header_entry(dtype: str, shape: list[int], start: int, end: int) -> Document:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def safetensors_bytes(header: Document | str | bytes, data: bytes) -> bytes:
    """A safetensors file made by hand, so that it can be wrong."""
    text = json.dumps(header) if isinstance(header, dict) else header
    encoded = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(encoded)) + encoded + data


def put_file(folder: Path, content: bytes, *, name: str | None = None, place: int = 0) -> Path:
    """Put other bytes in the place of a checkpoint's first file, with a digest that fits them."""
    saved = read_manifest(folder)["checkpoints"][place]
    if name is None:
        name = str(saved["files"][0]["name"])
    file = folder / name
    file.write_bytes(content)
    edit_manifest(folder, "checkpoints", place, "files", to=[{"name": name, "sha256": sha256(file)}])
    changed = read_manifest(folder)
    changed["checkpoints"][place].pop("weights", None)
    write_json(folder / "privacy.json", changed)
    return file
