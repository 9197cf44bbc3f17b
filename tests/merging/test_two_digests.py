"""BLAKE3 beside SHA-256: compared alone only where both were seen of the same bytes, and never believed unseen."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from dpmerge.errors import DigestMismatchError
from dpmerge.merging.checkpoint_input import input_hash
from dpmerge.merging.copy_checkpoint import copy
from dpmerge.merging.engine import merge
from dpmerge.merging.preflight import require_recorded
from dpmerge.portfolio import digest_memory, digest_pairs
from dpmerge.portfolio.digest_pairs import remember_pair, seen_together
from dpmerge.portfolio.file_digests import FileDigests, FileHash, blake3_installed
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.portfolio.recorded_runs import SavedCheckpoint
from merging.models import checkpoints, tensor, tree, write_run

FILE = "step-4.safetensors"
EMPTY = "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"


@pytest.fixture(autouse=True)
def _small_files_are_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test has a memory of its own, in which files of any size are worth remembering."""
    monkeypatch.setattr(digest_pairs, "LEAST", 0)
    monkeypatch.setenv("DPMERGE_HOME", str(tmp_path / "private"))


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Runs a and b, with both digests of their files."""
    home = tmp_path / "runs"
    for seed, run in enumerate("ab"):
        write_run(home, run, {FILE: {"w": tensor("F32", (300,), seed), "v": tensor("BF16", (7,), seed)}})
        record(home / run, blake3=blake3((home / run / FILE).read_bytes()).hexdigest())
    return home


def record(run: Path, **digests: str | None) -> None:
    """Write digests of its file into a run's manifest; None takes one out."""
    file = run / "privacy.json"
    document = json.loads(file.read_text())
    [saved] = document["checkpoints"][0]["files"]
    saved.update(digests)
    document["checkpoints"][0]["files"] = [{name: value for name, value in saved.items() if value is not None}]
    file.write_text(json.dumps(document))


def without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "blake3", None)


def merged(runs: Path, out: Path) -> dict[str, bytes]:
    saved = checkpoints(runs)
    out.mkdir()
    written = merge([(each, 0.5) for each in saved], out, donor=saved[0], trained=None)
    found = tree(out)
    assert {file.name: file.sha256 for file in written} == {n: hashlib.sha256(c).hexdigest() for n, c in found.items()}
    return found


def taken(saved: SavedCheckpoint) -> set[str]:
    """The digests a merge takes of a checkpoint's file."""
    found = input_hash(saved, saved.files[0]).digests()
    return {kind for kind in ("sha256", "blake3") if getattr(found, kind) is not None}


def flip(file: Path) -> None:
    """The last bit of a value: all that the digests can notice."""
    content = bytearray(file.read_bytes())
    content[-2] ^= 1
    file.write_bytes(content)


def test_a_digest_of_no_bytes_is_the_published_one() -> None:
    assert FileHash().digests() == FileDigests(sha256=hashlib.sha256().hexdigest(), blake3=EMPTY)


def test_pieces_give_the_digests_of_the_whole() -> None:
    content = bytes(range(256)) * 5000
    found = FileHash(content[:10])
    for start in range(10, len(content), 70_001):
        found.update(memoryview(content)[start : min(start + 70_001, len(content))])
    assert found.digests() == FileDigests(
        sha256=hashlib.sha256(content).hexdigest(), blake3=blake3(content).hexdigest()
    )
    assert found.digests().size == len(content)


def test_outputs_are_the_same_bytes_whatever_the_inputs_are_compared_by(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [taken(each) for each in checkpoints(runs)] == [{"sha256", "blake3"}] * 2
    first = merged(runs, tmp_path / "both")
    assert [taken(each) for each in checkpoints(runs)] == [{"blake3"}] * 2
    assert merged(runs, tmp_path / "blake3") == first
    without_the_package(monkeypatch)
    assert not blake3_installed()
    assert [taken(each) for each in checkpoints(runs)] == [{"sha256"}] * 2
    assert merged(runs, tmp_path / "sha256") == first


def test_a_manifest_without_blake3_is_compared_by_sha256(runs: Path, tmp_path: Path) -> None:
    for run in "ab":
        record(runs / run, blake3=None)
    merged(runs, tmp_path / "out")
    assert [taken(each) for each in checkpoints(runs)] == [{"sha256"}] * 2


def test_weights_that_were_read_are_compared_by_what_was_read_with_their_sha256(runs: Path) -> None:
    record(runs / "a", blake3=None)
    [saved] = checkpoints(runs / "a", contents=True)
    assert taken(saved) == {"blake3"}
    assert saved.blake3 == (blake3((runs / "a" / FILE).read_bytes()).hexdigest(),)


@pytest.mark.parametrize("by", ["sha256", "both", "blake3"])
def test_a_changed_byte_is_refused_by_either_digest(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    if by == "blake3":
        merged(runs, tmp_path / "first")
    if by == "sha256":
        without_the_package(monkeypatch)
    flip(runs / "b" / FILE)
    kind = "blake3" if by == "blake3" else "sha256"
    with pytest.raises(DigestMismatchError, match=f"b/privacy.json: {kind} of {FILE}: .* was recorded; put back"):
        merged(runs, tmp_path / "out")


@pytest.mark.parametrize("weights", [True, False], ids=["by tensors", "read once more"])
def test_tensors_in_another_order_are_compared_too(runs: Path, tmp_path: Path, weights: bool) -> None:
    """A file that cannot be hashed as it is merged: by SHA-256 of its tensors, or by itself and as any other."""
    shutil.rmtree(runs / "b")
    other = {"v": tensor("BF16", (7,), 1), "w": tensor("F32", (300,), 1)}
    write_run(runs, "b", {FILE: other}, weights=weights)
    record(runs / "b", blake3=blake3((runs / "b" / FILE).read_bytes()).hexdigest())
    merged(runs, tmp_path / "first")
    assert [taken(each) for each in checkpoints(runs)] == [{"blake3"}, {"sha256", "blake3"} if weights else {"blake3"}]
    merged(runs, tmp_path / "second")
    flip(runs / "b" / FILE)
    with pytest.raises(DigestMismatchError, match="weights of b@4" if weights else f"blake3 of {FILE}"):
        merged(runs, tmp_path / "out")


READERS: dict[str, Callable[[Path, Path], Any]] = {
    "merge": merged,
    "copy": lambda runs, out: (out.mkdir(), copy(checkpoints(runs / "a")[0], out)),
    "check before a charge": lambda runs, out: require_recorded(checkpoints(runs)),
    "inspect": lambda runs, out: Portfolio.load(runs, contents=True),
    "inspect --rehash": lambda runs, out: Portfolio.load(runs, rehash=True),
}


@pytest.mark.parametrize("known", [False, True], ids=["never seen", "the right pair seen"])
@pytest.mark.parametrize("reader", READERS.values(), ids=READERS.keys())
@pytest.mark.parametrize("wrong", ["sha256", "blake3"])
def test_digests_of_two_files_are_refused_by_all_that_read(
    runs: Path, tmp_path: Path, wrong: str, reader: Callable[[Path, Path], Any], known: bool
) -> None:
    if known:
        merged(runs, tmp_path / "first")
    record(runs / "a", **{wrong: "0" * 64})
    with pytest.raises(DigestMismatchError, match=f"{wrong}.*{FILE}.*{'0' * 64} was recorded.* digests of two files"):
        reader(runs, tmp_path / "out")


def test_other_weights_under_the_sha256_that_was_charged_are_refused(runs: Path, tmp_path: Path) -> None:
    """Ledgers know runs by SHA-256: a BLAKE3 that is written anew must not carry other bytes past them."""
    merged(runs, tmp_path / "first")
    flip(runs / "a" / FILE)
    record(runs / "a", blake3=blake3((runs / "a" / FILE).read_bytes()).hexdigest())
    for reader in READERS.values():
        with pytest.raises(DigestMismatchError, match=f"sha256.*{FILE}.*beside the right blake3"):
            reader(runs, tmp_path / f"out-{len(list(tmp_path.iterdir()))}")


def test_without_the_package_a_recorded_blake3_says_nothing(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(runs / "a", blake3="0" * 64)
    without_the_package(monkeypatch)
    assert merged(runs, tmp_path / "out")
    Portfolio.load(runs, rehash=True)
    record(runs / "a", sha256="0" * 64)
    with pytest.raises(DigestMismatchError, match=f"sha256 of {FILE}"):
        merged(runs, tmp_path / "again")


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS.keys())
def test_whatever_reads_both_remembers_that_they_belong_together(
    runs: Path, tmp_path: Path, reader: Callable[[Path, Path], Any]
) -> None:
    [saved] = checkpoints(runs / "a")
    assert not seen_together(saved.digests_of(saved.files[0]))
    reader(runs, tmp_path / "out")
    assert seen_together(saved.digests_of(saved.files[0]))
    marks = list((tmp_path / "private" / "digest-pairs").iterdir())
    assert {mark.stat().st_mode & 0o777 for mark in (*marks, marks[0].parent)} == {0o600, 0o700}
    assert all(mark.read_bytes() == b"" and saved.file_digests[0] not in mark.name for mark in marks)


def test_a_pair_is_neither_half_a_pair_nor_two_halves() -> None:
    first, second = (FileHash(content).digests() for content in (b"a", b"b"))
    remember_pair(first)
    remember_pair(second)
    remember_pair(FileDigests(sha256="c" * 64))
    assert seen_together(first)
    assert not seen_together(FileDigests(sha256=first.sha256, blake3=second.blake3))
    assert not seen_together(FileDigests(sha256="c" * 64))
    assert not seen_together(FileDigests(blake3=first.blake3))


def test_small_files_are_not_remembered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(digest_pairs, "LEAST", 5)
    for content in (b"four", b"five5"):
        remember_pair(FileHash(content).digests())
    assert [seen_together(FileHash(content).digests()) for content in (b"four", b"five5")] == [False, True]


@pytest.mark.parametrize("home", ["open to others", "no folder"])
def test_where_nothing_can_be_kept_both_are_taken(runs: Path, tmp_path: Path, home: str) -> None:
    private = tmp_path / "private"
    first = merged(runs, tmp_path / "first")
    if home == "open to others":
        private.chmod(0o755)
    else:
        private.rename(tmp_path / "elsewhere")
        private.write_text("a file")
    assert [taken(each) for each in checkpoints(runs)] == [{"sha256", "blake3"}] * 2
    assert merged(runs, tmp_path / "out") == first


def test_what_is_remembered_of_a_file_has_both_digests(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digest_memory, "LEAST", 1)
    monkeypatch.setattr(digest_memory, "SETTLED", -1e9)
    read = checkpoints(runs, contents=True)
    again = checkpoints(runs, contents=True)
    assert [each.recalled for each in (*read, *again)] == [False, False, True, True]
    record(runs / "a", blake3="0" * 64)
    with pytest.raises(DigestMismatchError, match=r"checkpoints\[0\].files\[0\].blake3"):
        checkpoints(runs, contents=True)


def test_what_was_remembered_without_blake3_is_still_recalled(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digest_memory, "LEAST", 1)
    monkeypatch.setattr(digest_memory, "SETTLED", -1e9)
    with monkeypatch.context() as hidden:
        hidden.setitem(sys.modules, "blake3", None)
        checkpoints(runs, contents=True)
    again = checkpoints(runs, contents=True)
    assert all(each.recalled for each in again)
    assert [taken(each) for each in again] == [{"sha256", "blake3"}] * 2
