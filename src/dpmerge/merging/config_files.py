"""The small files a model is loaded with: its configuration and its tokenizer, from the donor's folder.

Guarantees: only files on the list below are copied, from inside the donor's run; what else lies there is only named.
Trainer states, optimizer states and logs are never copied: each would be a release of its own.
Refuses: a file that somebody vouched for (`public_files` of the manifest) and that is another one now. What is on the
list and too large, no regular file or a link out of the run is left.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator
from fnmatch import fnmatch
from pathlib import Path

from dpmerge.errors import DigestMismatchError
from dpmerge.files import LARGEST_SMALL_FILE as LARGEST
from dpmerge.files import file_size, is_file, read_bytes
from dpmerge.merging.writing import WrittenFile, write_small
from dpmerge.portfolio.manifest import MANIFEST_NAME
from dpmerge.portfolio.recorded_runs import Run, SavedCheckpoint
from dpmerge.portfolio.run_files import inside

ADAPTER_CONFIG = "adapter_config.json"

COPIED = (
    "config.json", "generation_config.json",
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "vocab.json", "vocab.txt", "merges.txt", "spiece.model", "sentencepiece.bpe.model", "tokenizer.model",
    "preprocessor_config.json", "processor_config.json", "chat_template.jinja", "chat_template.json",
    ADAPTER_CONFIG,
)  # fmt: skip


def copy_small_files(
    run: Run, checkpoint: SavedCheckpoint, folder: Path, *, without: Collection[str] = ()
) -> tuple[tuple[WrittenFile, ...], tuple[str, ...]]:
    """What was copied, and the names of what was left."""
    copied, left = small_files(run, checkpoint)
    written = [
        write_small(folder, name, read_small_file(run, path)) for name, path in copied.items() if name not in without
    ]
    return tuple(written), left


def small_files(run: Run, checkpoint: SavedCheckpoint) -> tuple[dict[str, Path], tuple[str, ...]]:
    """Those a model of this donor is loaded with, by name, and the names of what else lies there."""
    copied, left = {}, []
    found = {path.name: path for path in reversed(list(_beside(run, checkpoint)))}
    for name, path in sorted(found.items()):
        if name in COPIED and inside(path, run.folder) and file_size(path) <= LARGEST:
            copied[name] = path
        else:
            left.append(name)
    return copied, tuple(left)


def read_small_file(run: Run, path: Path) -> bytes:
    """The content of one of them, which is what was vouched for where somebody did."""
    content = read_bytes(path, LARGEST, "a readable file")
    _require_vouched(run, path, content)
    return content


def _require_vouched(run: Run, path: Path, content: bytes) -> None:
    """Whoever said that a file holds nothing private said it of these bytes."""
    recorded = (run.manifest.public_files or {}).get(path.name)
    if recorded is not None and hashlib.sha256(content).hexdigest() != recorded:
        problem = f"{path}: not the file that was vouched to be public in {run.file} (public_files)"
        raise DigestMismatchError(path, path.name, None, "put back the one that was saved", problem=problem)


def small_file(run: Run, checkpoint: SavedCheckpoint, name: str) -> Path | None:
    """The file of that name a checkpoint is loaded with."""
    return next((p for p in _beside(run, checkpoint) if p.name == name and inside(p, run.folder)), None)


def _beside(run: Run, checkpoint: SavedCheckpoint) -> Iterator[Path]:
    """Files in the checkpoint's folder, then in the run's, that are neither weights nor what the recorder wrote."""
    weights = {path for saved in run.checkpoints for path in saved.files}
    for place in dict.fromkeys([checkpoint.files[0].parent, run.folder]):
        for path in sorted(place.iterdir()):
            ours = path.name in (MANIFEST_NAME, "steps.json") or fnmatch(path.name, "step-*.safetensors")
            if path not in weights and not ours and is_file(path):
                yield path
