"""Digests that are remembered: used while files are what they were, and never where something is charged."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from soak.kills import average
from soak.object_store import ObjectStore

import dpmerge as dpm
from dpmerge.errors import DigestMismatchError, InvalidInputError
from dpmerge.files import open_regular
from dpmerge.portfolio import digest_memory
from dpmerge.portfolio.portfolio_caveats import caveats
from dpmerge.remote.remote_path import RemotePath, location
from dpmerge.remote.stores import store_of

WEIGHTS = 6 * 400_000


def kept(home: Path) -> list[Path]:
    return sorted((home / "digests").glob("*"))


def changed(url: str) -> None:
    path = location(f"{url}/a/step-20.safetensors")
    assert isinstance(path, RemotePath)
    store_of(path).replace(path, open_regular(path).read()[:-4] + bytes(4))


def unread(portfolio: dpm.Portfolio) -> bool:
    return "contents_not_read" in {caveat.name for caveat in caveats(portfolio)}


def test_weights_in_a_store_are_read_once(portfolio_url: str, object_store: ObjectStore, tmp_path: Path) -> None:
    assert unread(dpm.Portfolio.load(portfolio_url))
    read = dpm.Portfolio.load(portfolio_url, contents=True)
    assert object_store.bytes_read() > WEIGHTS
    object_store.forget()
    again = dpm.Portfolio.load(portfolio_url)
    assert object_store.bytes_read() < WEIGHTS / 4
    assert not unread(again)
    assert [c.digests for c in again.checkpoints()] == [c.digests for c in read.checkpoints()]
    for before, after in zip(read.checkpoints(), again.checkpoints(), strict=True):
        assert {n: s.values.tolist() for n, s in before.samples.items()} == {
            n: s.values.tolist() for n, s in after.samples.items()
        }
    dpm.Portfolio.load(portfolio_url, rehash=True)
    assert object_store.bytes_read() > WEIGHTS


def test_what_is_remembered_is_for_its_owner_alone(portfolio_url: str, tmp_path: Path) -> None:
    dpm.Portfolio.load(portfolio_url, contents=True)
    files = kept(tmp_path / "private")
    assert len(files) == 6
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "private", tmp_path / "private" / "digests")} == {0o700}


def test_a_home_that_others_may_read_remembers_nothing(portfolio_url: str, tmp_path: Path) -> None:
    (tmp_path / "private").mkdir(mode=0o755)
    (tmp_path / "private").chmod(0o755)
    dpm.Portfolio.load(portfolio_url, contents=True)
    assert [path for path in (tmp_path / "private").rglob("*") if path.is_file()] == []


def test_an_object_that_was_replaced_is_read_again(portfolio_url: str) -> None:
    dpm.Portfolio.load(portfolio_url, contents=True)
    changed(portfolio_url)
    assert unread(dpm.Portfolio.load(portfolio_url))
    with pytest.raises(DigestMismatchError):
        dpm.Portfolio.load(portfolio_url, contents=True)


def test_broken_or_foreign_memories_are_forgotten(portfolio_url: str, tmp_path: Path) -> None:
    dpm.Portfolio.load(portfolio_url, contents=True)
    first, second, third, *_ = kept(tmp_path / "private")
    first.write_text("{")
    second.write_text(third.read_text())
    third.write_text('{"schema": "dpmerge/digests/v1"}')
    assert unread(dpm.Portfolio.load(portfolio_url))
    assert not unread(dpm.Portfolio.load(portfolio_url, contents=True))


def test_what_is_remembered_does_not_stand_in_for_hashing_before_a_charge(portfolio_url: str, tmp_path: Path) -> None:
    """A memory that lies: the weights are others than it says, and nothing of them is charged or published."""
    dpm.Portfolio.load(portfolio_url, contents=True)
    files = {path: path.read_text() for path in kept(tmp_path / "private")}
    changed(portfolio_url)
    with pytest.raises(DigestMismatchError):
        dpm.Portfolio.load(portfolio_url, contents=True)
    (new,) = set(kept(tmp_path / "private")) - set(files)
    import json

    lie = json.loads(new.read_text())
    true = next(json.loads(text) for text in files.values() if "a/step-20" in json.loads(text)["key"])
    new.write_text(json.dumps({**true, "key": lie["key"]}))
    loaded = dpm.Portfolio.load(portfolio_url)
    assert not unread(loaded)
    with pytest.raises(DigestMismatchError):
        dpm.release(average(loaded), out=tmp_path / "out", ledger=tmp_path / "ledger.db", final=True)
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "ledger.db").exists()


@pytest.fixture
def on_disk(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DPMERGE_HOME", str(tmp_path / "private"))
    monkeypatch.setattr(digest_memory, "LEAST", 1)
    monkeypatch.setattr(digest_memory, "SETTLED", -1e9)
    return shutil.copytree(models, tmp_path / "models")


def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    seen: list[Path] = []
    read = digest_memory.read_contents

    def counted(path: Path, slots: object) -> object:
        seen.append(path)
        return read(path, slots)  # type: ignore[arg-type]

    monkeypatch.setattr(digest_memory, "read_contents", counted)
    return seen


def test_files_on_disk_are_read_once(on_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = reads(monkeypatch)
    dpm.inspect(on_disk)
    assert len(seen) == 6
    dpm.inspect(on_disk)
    assert len(seen) == 6
    dpm.inspect(on_disk, rehash=True)
    assert len(seen) == 12


def test_a_file_with_its_old_size_and_time_but_other_bytes_is_read_again(on_disk: Path) -> None:
    dpm.inspect(on_disk)
    file = on_disk / "a" / "step-20.safetensors"
    before = file.stat()
    with file.open("r+b") as stream:
        stream.seek(-4, os.SEEK_END)
        stream.write(bytes(4))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(DigestMismatchError):
        dpm.inspect(on_disk)


def test_small_or_new_files_on_disk_are_not_remembered(
    on_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digest_memory, "SETTLED", 1e9)
    dpm.inspect(on_disk)
    monkeypatch.setattr(digest_memory, "SETTLED", -1e9)
    monkeypatch.setattr(digest_memory, "LEAST", 2**24)
    dpm.inspect(on_disk)
    assert kept(tmp_path / "private") == []


def test_headers_alone_and_every_byte_cannot_both_be_had(on_disk: Path) -> None:
    with pytest.raises(InvalidInputError, match="either"):
        dpm.inspect(on_disk, headers_only=True, rehash=True)
