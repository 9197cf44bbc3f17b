"""Everything that can go wrong in a merge, by name: a clear error of one line, no output, no thread left."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Hashable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpmerge import files
from dpmerge.errors import (
    CannotWriteError,
    CheckpointError,
    DigestMismatchError,
    DpmergeError,
    InvalidInputError,
    TensorMismatchError,
    UnreadableCheckpointError,
)
from dpmerge.merging import checkpoint_input, writing
from dpmerge.merging.engine import merge
from dpmerge.merging.staging import StagedFolder
from dpmerge.portfolio.file_digests import FileDigests, FileHash
from dpmerge.portfolio.recorded_runs import SavedCheckpoint
from merging.models import Tensor, bits_of, checkpoints, model, stored, tensor, write_run, write_tensors

ONE_FILE = "step-4.safetensors"
FLOATS = ["F64", "F32", "F16", "BF16"]


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())  # threads of an earlier test may end meanwhile: those are not counted
    yield
    assert set(threading.enumerate()) <= before


def write_two(home: Path, change: Callable[[dict[str, Tensor]], object] = lambda tensors: None, **given: Any) -> Path:
    """Runs a and b, of which something is changed in the second."""
    runs = home / "runs"
    for seed, run in enumerate("ab"):
        tensors = model(seed)
        if run == "b":
            change(tensors)
        write_run(runs, run, {ONE_FILE: tensors}, **given)
    return runs


def refused(kind: type[DpmergeError], home: Path, saved: list[SavedCheckpoint], *words: str, **settings: Any) -> None:
    """A merge of two that fails, and leaves the target's folder as it was."""
    target = home / "target"
    with pytest.raises(kind) as raised, StagedFolder(target) as staged:  # noqa: PT012
        weights = settings.pop("weights", [0.75, 0.25])
        settings.setdefault("trained", None)
        merge(list(zip(saved, weights, strict=True)), staged.path, donor=saved[0], **settings)
        staged.publish()
    assert type(raised.value) is kind
    message = str(raised.value)
    assert "\n" not in message
    assert isinstance(raised.value, InvalidInputError)
    assert message.endswith((f"; accepted: {raised.value.accepted}", f"; {raised.value.accepted}"))
    for word in words:
        assert word in message, message
    assert sorted(path.name for path in home.iterdir()) == ["runs"]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("hashing", [True, False])
def test_a_value_that_is_not_finite(tmp_path: Path, dtype: str, value: float, hashing: bool) -> None:
    name = f"{dtype.lower()}.weight"

    def spoil(tensors: dict[str, Tensor]) -> None:
        values = np.zeros(77)
        values[50] = value
        tensors[name] = (dtype, (7, 11), stored(dtype, values))

    saved = checkpoints(write_two(tmp_path, spoil))
    refused(CheckpointError, tmp_path, saved, name, "NaN or infinity in b@4", "finite values only", hashing=hashing)


@pytest.mark.parametrize("trained", [None, []], ids=["trained", "frozen"])
def test_a_value_that_is_not_finite_in_all_inputs(tmp_path: Path, trained: Any) -> None:
    same = {"w": ("BF16", (3,), stored("BF16", [1.0, np.inf, 2.0]))}
    for run in "ab":
        write_run(tmp_path / "runs", run, {ONE_FILE: same})
    refused(CheckpointError, tmp_path, checkpoints(tmp_path / "runs"), "w", "in a@4", trained=trained)


def test_a_value_that_is_not_finite_in_the_only_input(tmp_path: Path) -> None:
    write_run(
        tmp_path / "runs", "a", {ONE_FILE: {"v": tensor("F32", (9,), 1), "w": ("F32", (1,), stored("F32", [np.nan]))}}
    )
    refused(CheckpointError, tmp_path, checkpoints(tmp_path / "runs"), ": w: ", "in a@4", weights=[1.0])


@pytest.mark.parametrize("dtype", ["F16", "BF16", "F32"])
def test_a_sum_that_overflows_its_dtype(tmp_path: Path, dtype: str) -> None:
    largest = {"F16": 65504.0, "BF16": 3.3895e38, "F32": 3.4028e38}[dtype]
    for run in "ab":
        write_run(tmp_path / "runs", run, {
            ONE_FILE: {"v": tensor(dtype, (3,), 1), "w": (dtype, (3,), stored(dtype, [1.0, largest, 2.0]))}
        })  # fmt: skip
    saved = checkpoints(tmp_path / "runs")
    refused(
        InvalidInputError,
        tmp_path,
        saved,
        "tensor w",
        f"fit into {dtype}",
        "merged, its values do not fit into",
        weights=[1.0, 1.0],
    )


@pytest.mark.parametrize("name", ["steps", "mask"])
def test_integers_that_differ(tmp_path: Path, name: str) -> None:
    def change(tensors: dict[str, Tensor]) -> None:
        dtype, shape, content = tensors[name]
        tensors[name] = (dtype, shape, bytes([content[0] ^ 1]) + content[1:])

    saved = checkpoints(write_two(tmp_path, change))
    refused(TensorMismatchError, tmp_path, saved, f": {name}: ", "in b@4 than in a@4", "other values in b@4")


def test_other_names(tmp_path: Path) -> None:
    one = write_run(tmp_path / "runs" / "x", "a", {ONE_FILE: {"w": tensor("F32", (3,), 1)}})
    two = write_run(tmp_path / "runs" / "y", "b", {ONE_FILE: {"v": tensor("F32", (3,), 1)}})
    saved = [*checkpoints(one), *checkpoints(two)]
    refused(TensorMismatchError, tmp_path, saved, "tensor names", "only b@4 has 'v'")


@pytest.mark.parametrize(("other", "words"), [
    (("F32", (4,), bytes(16)), ["w.shape", "[4] here, [3] in a@4"]),
    (("F64", (3,), bytes(24)), ["w.dtype", "F64 here, F32 in a@4"]),
])  # fmt: skip
def test_other_shapes_or_dtypes(tmp_path: Path, other: Tensor, words: list[str]) -> None:
    one = write_run(tmp_path / "runs" / "x", "a", {ONE_FILE: {"w": tensor("F32", (3,), 1)}})
    two = write_run(tmp_path / "runs" / "y", "b", {ONE_FILE: {"w": other}})
    refused(TensorMismatchError, tmp_path, [*checkpoints(one), *checkpoints(two)], *words)


def test_no_parts_and_weights_off_the_scale(tmp_path: Path) -> None:
    saved = checkpoints(write_two(tmp_path))
    with pytest.raises(InvalidInputError, match="at least one checkpoint"):
        merge([], tmp_path, donor=saved[0], trained=None)
    refused(InvalidInputError, tmp_path, saved, "weight of b@4", weights=[1.0, -0.25])
    refused(InvalidInputError, tmp_path, saved, "weight of a@4", weights=[float("nan"), 0.25])
    refused(InvalidInputError, tmp_path, saved, "jobs: got 0", jobs=0)


def flip(file: Path, at: int) -> None:
    """Change a bit in place: a file that is read meanwhile is never short."""
    with file.open("r+b") as opened:
        opened.seek(at, os.SEEK_END)
        byte = opened.read(1)[0]
        opened.seek(at, os.SEEK_END)
        opened.write(bytes([byte ^ 1]))


@pytest.mark.parametrize("contents", [True, False], ids=["contents read", "headers read"])
def test_a_file_that_is_not_the_recorded_one(tmp_path: Path, contents: bool) -> None:
    saved = checkpoints(write_two(tmp_path), contents=contents)
    flip(saved[1].files[0], -70)  # in a float tensor: the integers come last
    refused(
        DigestMismatchError,
        tmp_path,
        saved,
        "b/privacy.json",
        f"sha256 of {ONE_FILE}",
        "put back what was recorded",
    )


@pytest.mark.parametrize("weights", [True, False], ids=["weights recorded", "files recorded"])
def test_a_file_in_another_order_that_is_not_the_recorded_one(tmp_path: Path, weights: bool) -> None:
    write_run(tmp_path / "runs", "a", {ONE_FILE: model(0)}, weights=weights)
    backwards = {name: model(1)[name] for name in reversed(list(model(1)))}
    write_run(tmp_path / "runs", "b", {ONE_FILE: backwards}, weights=weights)
    saved = checkpoints(tmp_path / "runs")
    flip(saved[1].files[0], -70)
    refused(DigestMismatchError, tmp_path, saved, "weights of b@4" if weights else f"sha256 of {ONE_FILE}")


def test_an_index_that_is_not_the_recorded_one(tmp_path: Path) -> None:
    files = {"model-00001-of-00001.safetensors": model(0)}
    folder = write_run(tmp_path / "runs", "a", files, small={"model.safetensors.index.json": "{}"})
    from portfolio.portfolios import read_manifest, sha256, write_json

    document = read_manifest(folder)
    index = {"name": "model.safetensors.index.json", "sha256": sha256(folder / "model.safetensors.index.json")}
    document["checkpoints"][0]["files"].append(index)
    write_json(folder / "privacy.json", document)
    saved = checkpoints(tmp_path / "runs")
    (folder / "model.safetensors.index.json").write_text("{} ")
    refused(DigestMismatchError, tmp_path, saved, "model.safetensors.index.json", weights=[1.0])


def test_a_header_that_is_another_than_the_portfolio_saw(tmp_path: Path) -> None:
    saved = checkpoints(write_two(tmp_path))
    tensors = model(1)
    tensors["f32.weight"], tensors["f32.other"] = tensors["f32.weight"], tensors.pop("f32.wild")
    write_tensors(saved[1].files[0], tensors)
    refused(CheckpointError, tmp_path, saved, "header", "other tensors than b@4 had", hashing=False)


@pytest.mark.parametrize("content", [b"", b"abc", b"\xff" * 100, b"\x80\x04" + bytes(200)])
def test_a_file_that_is_no_longer_safetensors(tmp_path: Path, content: bytes) -> None:
    saved = checkpoints(write_two(tmp_path))
    saved[1].files[0].write_bytes(content)
    refused(CheckpointError, tmp_path, saved, "runs/b")


def test_a_file_that_is_gone(tmp_path: Path) -> None:
    saved = checkpoints(write_two(tmp_path))
    saved[1].files[0].unlink()
    refused(UnreadableCheckpointError, tmp_path, saved, "No such file", "a readable safetensors file")


@pytest.mark.parametrize("hashing", [True, False])
def test_a_file_that_cannot_be_read_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hashing: bool) -> None:
    saved = checkpoints(write_two(tmp_path))
    after(monkeypatch, 8, OSError(errno.EIO, "Input/output error"))
    refused(UnreadableCheckpointError, tmp_path, saved, "Input/output error", buffer=16, hashing=hashing)


def after(monkeypatch: pytest.MonkeyPatch, count: int, event: Callable[[], object] | OSError) -> None:
    """Once so many reads are done something happens, or every further one fails."""
    read, done, lock = os.preadv, [0], threading.Lock()

    def preadv(descriptor: int, buffers: Any, offset: int) -> int:
        with lock:
            done[0] += 1
            now = done[0]
        if isinstance(event, OSError):
            if now >= count:
                raise event
        elif now == count:
            event()
        return read(descriptor, buffers, offset)

    monkeypatch.setattr(files.os, "preadv", preadv)


@pytest.mark.parametrize("hashing", [True, False])
def test_a_file_that_shrinks_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hashing: bool) -> None:
    saved = checkpoints(write_two(tmp_path))
    file = saved[1].files[0]
    after(monkeypatch, 30, lambda: os.truncate(file, file.stat().st_size - 200))
    refused(CheckpointError, tmp_path, saved, str(file), "a file that nobody changes", buffer=16, hashing=hashing)


def test_a_file_that_changes_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = checkpoints(write_two(tmp_path))
    file = saved[1].files[0]

    def change() -> None:
        with file.open("r+b") as opened:
            opened.seek(-70, 2)
            opened.write(b"\0")
        os.utime(file, ns=(1, 1))

    after(monkeypatch, 30, change)
    refused(CheckpointError, tmp_path, saved, str(file), "a change while it was read", buffer=16, hashing=False)


def test_a_file_that_changes_behind_its_times_is_found_by_its_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = checkpoints(write_two(tmp_path))
    file = saved[1].files[0]
    times = file.stat()

    def change() -> None:
        flip(file, -70)
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))

    after(monkeypatch, 30, change)
    refused(DigestMismatchError, tmp_path, saved, "sha256", buffer=16)


def test_a_file_that_is_exchanged_between_hashing_and_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose tensors are in another order, with no digest of them, is hashed on its own before it is read."""
    write_run(tmp_path / "runs", "a", {"m.safetensors": model(0)}, weights=False)
    write_run(tmp_path / "runs", "b", {"m.safetensors": dict(reversed(model(1).items()))}, weights=False)
    saved = checkpoints(tmp_path / "runs")
    file = saved[1].files[0]
    digest = checkpoint_input.file_digest

    def exchanged(path: Path, into: FileHash) -> tuple[FileDigests, Hashable]:
        found = digest(path, into)
        if path == file:
            other = path.with_name("other")
            other.write_bytes(path.read_bytes())
            flip(other, -70)
            other.replace(path)
        return found

    monkeypatch.setattr(checkpoint_input, "file_digest", exchanged)
    refused(CheckpointError, tmp_path, saved, str(file), "a change while it was read")


def test_a_disk_without_room_is_known_before_anything_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = checkpoints(write_two(tmp_path))

    def full(descriptor: int, start: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(writing.os, "posix_fallocate", full)
    monkeypatch.setattr(checkpoint_input.TensorSource, "read", lambda *_: pytest.fail("weights were read"))
    refused(CannotWriteError, tmp_path, saved, "model.safetensors", "room for", "No space left on device")


def test_a_disk_that_fills_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = checkpoints(write_two(tmp_path))
    write, done = os.pwrite, [0]

    def pwrite(descriptor: int, content: Any, offset: int) -> int:
        done[0] += 1
        if done[0] > 20:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, content[: max(1, len(content) // 2)], offset)  # short writes are no failure

    monkeypatch.setattr(writing.os, "pwrite", pwrite)
    refused(CannotWriteError, tmp_path, saved, "No space left on device", buffer=16, jobs=3)


def test_short_reads_and_writes_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = checkpoints(write_two(tmp_path))
    parts = list(zip(saved, [0.75, 0.25], strict=True))
    read, write = os.preadv, os.pwrite
    (tmp_path / "whole").mkdir()
    whole = merge(parts, tmp_path / "whole", donor=saved[0], trained=None)
    monkeypatch.setattr(files.os, "preadv", lambda d, b, o: read(d, [b[0][: max(1, len(b[0]) // 3)]], o))
    monkeypatch.setattr(writing.os, "pwrite", lambda d, c, o: write(d, c[: max(1, len(c) // 3)], o))
    (tmp_path / "bits").mkdir()
    assert merge(parts, tmp_path / "bits", donor=saved[0], trained=None) == whole


def test_a_file_system_that_cannot_allocate_is_written_to_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = checkpoints(write_two(tmp_path))
    parts = list(zip(saved, [0.75, 0.25], strict=True))

    def cannot(descriptor: int, start: int, size: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    one = merge(parts, tmp_path / "one", donor=saved[0], trained=None)
    monkeypatch.setattr(writing.os, "posix_fallocate", cannot)
    assert merge(parts, tmp_path / "other", donor=saved[0], trained=None) == one


def test_a_limit_on_the_size_of_files(tmp_path: Path) -> None:
    """With the kernel's own error, in a process of its own."""
    tensors = {"w": tensor("F32", (100_000,), 1)}
    write_run(tmp_path / "runs", "a", {ONE_FILE: tensors})
    script = f"""
import resource, signal
from pathlib import Path
from dpmerge.errors import CannotWriteError
from dpmerge.merging.staging import StagedFolder
from dpmerge.merging.engine import merge
from dpmerge.portfolio.portfolio import Portfolio
saved, = Portfolio.load({str(tmp_path / "runs")!r}, contents=False).checkpoints()
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    with StagedFolder({str(tmp_path / "target")!r}) as staged:
        merge([(saved, 1.0)], staged.path, donor=saved, trained=None)
except CannotWriteError as error:
    print(error)
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "room for" in result.stdout
    assert "File too large" in result.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs"]


def test_a_target_file_that_is_there(tmp_path: Path) -> None:
    saved = checkpoints(write_two(tmp_path))
    (tmp_path / "model.safetensors").write_text("kept")
    with pytest.raises(CannotWriteError, match="File exists"):
        merge([(saved[0], 1.0)], tmp_path, donor=saved[0], trained=None)
    assert (tmp_path / "model.safetensors").read_text() == "kept"


def test_an_interruption_ends_all_threads(tmp_path: Path) -> None:
    saved = checkpoints(write_two(tmp_path))

    def interrupted(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), StagedFolder(tmp_path / "target") as staged:
        merge([(saved[0], 1.0)], staged.path, donor=saved[0], trained=None, progress=interrupted, buffer=8)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs"]


def test_no_descriptor_is_left(tmp_path: Path) -> None:
    saved = checkpoints(write_two(tmp_path))
    before = len(os.listdir("/proc/self/fd"))
    (tmp_path / "out").mkdir()
    merge(list(zip(saved, [0.75, 0.25], strict=True)), tmp_path / "out", donor=saved[0], trained=None)
    flip(saved[1].files[0], -70)
    with pytest.raises(DigestMismatchError):
        merge(list(zip(saved, [0.5, 0.5], strict=True)), tmp_path / "runs", donor=saved[0], trained=None)
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_last_values_of_a_model_are_where_the_tests_spoil_it() -> None:
    """-70 is in a float tensor of the model these tests use."""
    tail = sum(len(content) for dtype, _, content in list(model(1).values())[-2:])
    assert tail < 70 - 2
    assert len(bits_of("BF16", model(1)["bf16.wild"][2])) > 20
