"""One checkpoint as it was trained, and the small files that come with a model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpmerge import files
from dpmerge.errors import CheckpointError, DigestMismatchError
from dpmerge.merging import config_files, copy_checkpoint
from dpmerge.merging.config_files import COPIED, copy_small_files, small_file
from dpmerge.merging.copy_checkpoint import copy
from dpmerge.portfolio.portfolio import Portfolio
from merging.models import checkpoints, header_json, model, read_model, stored, tensor, tree, write_run
from portfolio.portfolios import sha256

ONE_FILE = "step-4.safetensors"
TWO_FILES = {"x-00001-of-00002.safetensors": {"v": tensor("F32", (300,), 1)},
             "x-00002-of-00002.safetensors": {"w": tensor("BF16", (300,), 2), "z": ("F16", (0,), b"")}}  # fmt: skip


def written_to(folder: Path) -> Path:
    folder.mkdir()
    return folder


@pytest.mark.parametrize("metadata", [None, {}, {"format": "pt"}])
def test_a_file_without_private_metadata_is_copied_as_it_is(tmp_path: Path, metadata: Any) -> None:
    folder = write_run(tmp_path / "runs", "a", {ONE_FILE: model(1)}, metadata=metadata)
    (saved,) = checkpoints(tmp_path / "runs")
    (written,) = copy(saved, written_to(tmp_path / "out"))
    assert tree(tmp_path / "out") == {"model.safetensors": (folder / ONE_FILE).read_bytes()}
    assert (written.name, written.sha256, written.size) == (
        "model.safetensors", sha256(folder / ONE_FILE), (folder / ONE_FILE).stat().st_size
    )  # fmt: skip


@pytest.mark.parametrize("metadata", [{"format": "np"}, {"format": "pt", "loss": "0.3"}, {"patients": "ward 7"}])
def test_a_file_with_other_metadata_is_written_anew(tmp_path: Path, metadata: dict[str, str]) -> None:
    write_run(tmp_path / "runs", "a", {ONE_FILE: model(1)}, metadata=metadata)
    (saved,) = checkpoints(tmp_path / "runs")
    (written,) = copy(saved, written_to(tmp_path / "out"))
    found = header_json(tmp_path / "out" / "model.safetensors").get("__metadata__", {})
    assert found == {key: value for key, value in metadata.items() if (key, value) == ("format", "pt")}
    assert read_model(tmp_path / "out") == model(1)
    assert written.sha256 == sha256(tmp_path / "out" / "model.safetensors")


def test_shards_keep_their_names_and_get_an_index(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "runs", "a", TWO_FILES)
    (saved,) = checkpoints(tmp_path / "runs")
    written = copy(saved, written_to(tmp_path / "out"))
    assert [file.name for file in written] == [*TWO_FILES, "x.safetensors.index.json"]
    for name in TWO_FILES:
        assert (tmp_path / "out" / name).read_bytes() == (folder / name).read_bytes()
    assert all(file.sha256 == sha256(tmp_path / "out" / file.name) for file in written)


def test_blocks_are_shared_where_the_disk_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_run(tmp_path / "runs", "a", {ONE_FILE: model(1)})
    (saved,) = checkpoints(tmp_path / "runs")

    def shared(source: int, target: int) -> bool:
        os.pwrite(target, os.pread(source, 10**6, 0), 0)
        return True

    monkeypatch.setattr(copy_checkpoint, "reflinked", shared)
    monkeypatch.setattr(copy_checkpoint, "write_all", lambda *_: pytest.fail("bytes were copied one by one"))
    (written,) = copy(saved, written_to(tmp_path / "out"))
    assert written.sha256 == sha256(folder / ONE_FILE) == sha256(tmp_path / "out" / "model.safetensors")


def test_shared_blocks_are_read_from_the_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path / "runs", "a", {ONE_FILE: model(1)})
    (saved,) = checkpoints(tmp_path / "runs")

    def wrong(source: int, target: int) -> bool:
        content = bytearray(os.pread(source, 10**6, 0))
        content[-70] ^= 1
        os.pwrite(target, content, 0)
        return True

    monkeypatch.setattr(copy_checkpoint, "reflinked", wrong)
    with pytest.raises(DigestMismatchError, match="the file has the digest .* was recorded; put back"):
        copy(saved, written_to(tmp_path / "out"))


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_copy_of_another_file_than_the_recorded_one_is_refused(tmp_path: Path, jobs: int) -> None:
    folder = write_run(tmp_path / "runs", "a", TWO_FILES)
    (saved,) = checkpoints(tmp_path / "runs")
    file = folder / "x-00002-of-00002.safetensors"
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content)
    with pytest.raises(DigestMismatchError, match="x-00002-of-00002.safetensors"):
        copy(saved, written_to(tmp_path / "out"), jobs=jobs)


def test_a_copy_with_a_value_that_is_not_finite_is_refused(tmp_path: Path) -> None:
    write_run(tmp_path / "runs", "a", {ONE_FILE: {"w": ("F16", (2,), stored("F16", [1.0, np.nan]))}})
    (saved,) = checkpoints(tmp_path / "runs")
    with pytest.raises(CheckpointError, match="w: got NaN or infinity in a@4"):
        copy(saved, written_to(tmp_path / "out"))


def test_a_copy_of_a_file_that_changes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_run(tmp_path / "runs", "a", {ONE_FILE: model(1)})
    (saved,) = checkpoints(tmp_path / "runs")
    read = files.os.preadv

    def preadv(descriptor: int, buffers: Any, offset: int) -> int:
        if offset > 2000:
            os.utime(folder / ONE_FILE, ns=(1, 1))
        return read(descriptor, buffers, offset)

    monkeypatch.setattr(files.os, "preadv", preadv)
    with pytest.raises(CheckpointError, match="a file that nobody changes"):
        copy(saved, written_to(tmp_path / "out"))


def test_progress_ends_with_everything(tmp_path: Path) -> None:
    write_run(tmp_path / "runs", "a", TWO_FILES)
    (saved,) = checkpoints(tmp_path / "runs")
    told: list[tuple[int, int]] = []
    copy(saved, written_to(tmp_path / "out"), progress=lambda done, total: told.append((done, total)))
    size = sum((saved.files[0].parent / name).stat().st_size for name in TWO_FILES)
    assert max(told) == (size, size)


SMALL = {
    "config.json": '{"model_type": "llama"}',
    "tokenizer.json": "{}",
    "trainer_state.json": '{"loss": 0.1}',
    "optimizer.txt": "private",
    "README.md": "trained on ward 7",
    "model.safetensors.index.json": "{}",
}


def test_only_what_a_model_is_loaded_with_is_copied(tmp_path: Path) -> None:
    write_run(tmp_path / "runs", "a", {"step/model.safetensors": model(0)}, small={
        **{f"step/{name}": text for name, text in SMALL.items()},
        "config.json": "of the run", "vocab.txt": "of the run", "log.txt": "private",
    })  # fmt: skip
    (run,) = Portfolio.load(tmp_path / "runs", contents=False).runs
    written, left = copy_small_files(run, run.checkpoints[0], written_to(tmp_path / "out"))
    assert tree(tmp_path / "out") == {
        "config.json": SMALL["config.json"].encode(), "tokenizer.json": b"{}", "vocab.txt": b"of the run"
    }  # fmt: skip
    assert left == tuple(
        sorted(["README.md", "log.txt", "model.safetensors.index.json", "optimizer.txt", "trainer_state.json"])
    )
    assert [(f.name, f.sha256) for f in written] == [
        (name, sha256(tmp_path / "out" / name)) for name in ("config.json", "tokenizer.json", "vocab.txt")
    ]


def test_links_out_large_files_and_folders_are_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_run(tmp_path / "runs", "a", {ONE_FILE: model(0)}, small={"vocab.json": "x" * 101, "merges.txt": "y"})
    (tmp_path / "secret").write_text("elsewhere")
    (folder / "config.json").symlink_to(tmp_path / "secret")
    (folder / "tokenizer.json").mkdir()
    (folder / "vocab.txt").symlink_to(folder / "merges.txt")
    os.mkfifo(folder / "spiece.model")
    monkeypatch.setattr(config_files, "LARGEST", 100)
    (run,) = Portfolio.load(tmp_path / "runs", contents=False).runs
    _, left = copy_small_files(run, run.checkpoints[0], written_to(tmp_path / "out"))
    assert tree(tmp_path / "out") == {"merges.txt": b"y", "vocab.txt": b"y"}
    assert left == ("config.json", "vocab.json")
    assert small_file(run, run.checkpoints[0], "config.json") is None


def test_nothing_on_the_list_could_be_weights_or_a_state() -> None:
    assert not [name for name in COPIED if name.endswith((".safetensors", ".bin", ".pt")) or "state" in name]
