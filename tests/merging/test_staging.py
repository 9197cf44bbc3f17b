"""Folders that appear whole or not at all, and what is left when a process dies."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dpmerge.errors import CannotWriteError
from dpmerge.merging import staging
from dpmerge.merging.staging import StagedFolder, remove_leftovers
from merging.models import tree


def listed(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def publish(target: Path, text: str, *, overwrite: bool = False) -> None:
    with StagedFolder(target, overwrite) as staged:
        (staged.path / "deep").mkdir()
        (staged.path / "deep" / "file").write_text(text)
        (staged.path / "secret").touch(mode=0o600)
        staged.publish()


def test_a_folder_appears_whole(tmp_path: Path) -> None:
    target = tmp_path / "out"
    with StagedFolder(target) as staged:
        assert not target.exists()
        assert staged.path.parent == tmp_path
        assert staged.path.stat().st_mode & 0o777 == 0o700
        (staged.path / "file").write_text("whole")
        staged.publish()
        assert staged.path == target
    assert tree(target) == {"file": b"whole"}
    assert listed(tmp_path) == ["out"]


@pytest.mark.parametrize(("umask", "folder", "file"), [(0o022, 0o755, 0o644), (0o077, 0o700, 0o600), (0, 0o755, 0o644)])
def test_modes_follow_the_umask(tmp_path: Path, umask: int, folder: int, file: int) -> None:
    before = os.umask(umask)
    try:
        publish(tmp_path / "out", "text")
    finally:
        os.umask(before)
    assert (tmp_path / "out").stat().st_mode & 0o777 == folder
    assert (tmp_path / "out" / "deep").stat().st_mode & 0o777 == folder
    assert (tmp_path / "out" / "deep" / "file").stat().st_mode & 0o777 == file
    assert (tmp_path / "out" / "secret").stat().st_mode & 0o777 == file


def test_an_exception_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), StagedFolder(tmp_path / "out") as staged:  # noqa: PT012
        (staged.path / "file").write_text("half")
        _ = 1 // 0
    assert listed(tmp_path) == []


def test_what_is_not_published_is_removed(tmp_path: Path) -> None:
    with StagedFolder(tmp_path / "out") as staged:
        (staged.path / "file").write_text("half")
    assert listed(tmp_path) == []


def test_publishing_twice_is_refused(tmp_path: Path) -> None:
    with StagedFolder(tmp_path / "out") as staged:
        staged.publish()
        with pytest.raises(CannotWriteError, match="published once"):
            staged.publish()
    assert listed(tmp_path) == ["out"]


def test_an_empty_folder_may_be_replaced(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    publish(tmp_path / "out", "new")
    assert tree(tmp_path / "out")["deep/file"] == b"new"


def test_a_folder_with_something_in_it_is_refused(tmp_path: Path) -> None:
    publish(tmp_path / "out", "old")
    with pytest.raises(CannotWriteError, match="not empty"), StagedFolder(tmp_path / "out"):
        pytest.fail("it was staged")
    assert tree(tmp_path / "out")["deep/file"] == b"old"
    assert listed(tmp_path) == ["out"]


def test_a_folder_that_fills_meanwhile_is_refused_at_the_rename(tmp_path: Path) -> None:
    with pytest.raises(CannotWriteError, match="not empty"), StagedFolder(tmp_path / "out") as staged:  # noqa: PT012
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "theirs").write_text("first")
        staged.publish()
    assert tree(tmp_path / "out") == {"theirs": b"first"}
    assert listed(tmp_path) == ["out"]


def test_a_file_that_appears_meanwhile_is_refused_at_the_rename(tmp_path: Path) -> None:
    with pytest.raises(CannotWriteError, match="Not a directory"), StagedFolder(tmp_path / "out") as staged:  # noqa: PT012
        (tmp_path / "out").write_text("theirs")
        staged.publish()
    assert (tmp_path / "out").read_text() == "theirs"


@pytest.mark.parametrize("exchanging", [True, False], ids=["exchange", "two renames"])
def test_overwriting_replaces_the_whole_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchanging: bool
) -> None:
    publish(tmp_path / "out", "old")
    (tmp_path / "out" / "stale").write_text("gone")
    if not exchanging:
        monkeypatch.setattr(staging, "exchange", lambda one, other: False)
    publish(tmp_path / "out", "new", overwrite=True)
    assert tree(tmp_path / "out") == {"deep/file": b"new", "secret": b""}
    assert listed(tmp_path) == ["out"]


def test_a_second_rename_that_fails_brings_the_old_folder_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(tmp_path / "out", "old")
    monkeypatch.setattr(staging, "exchange", lambda one, other: False)
    rename = Path.rename

    def failing(self: Path, target: Path) -> Path:
        if self.suffix == ".partial" and not (tmp_path / "out").exists():
            raise OSError(errno.EIO, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(CannotWriteError, match="Input/output error"):
        publish(tmp_path / "out", "new", overwrite=True)
    assert tree(tmp_path / "out")["deep/file"] == b"old"
    assert listed(tmp_path) == ["out"]


def test_overwriting_never_leaves_a_moment_without_the_folder(tmp_path: Path) -> None:
    """Another process looks all the time."""
    target = tmp_path / "out"
    publish(target, "0")
    script = (
        "import os, sys\nprint('ready', flush=True)\n"
        "while True:\n"
        "    try:\n        os.stat(sys.argv[1])\n"
        "    except FileNotFoundError:\n        print('missing', flush=True)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(target)], stdout=subprocess.PIPE, text=True) as looking:
        assert looking.stdout is not None
        assert looking.stdout.readline() == "ready\n"
        for number in range(60):
            publish(target, str(number), overwrite=True)
            assert tree(target)["deep/file"] == str(number).encode()
        looking.kill()
        assert looking.stdout.read() == ""


def _folder(home: Path, name: str) -> None:
    (home / name).mkdir(parents=True)


INVALID_TARGETS = {
    "a file": (lambda home: (home / "out").write_text("x"), "out", "a file"),
    "a link": (lambda home: (home / "out").symlink_to(home / "real"), "out", "is a link"),
    "a link to a folder": (lambda home: (home / "out").symlink_to(home), "out", "is a link"),
    "no parent": (lambda home: None, "no/out", "no is no folder"),
    "a parent that is a file": (lambda home: (home / "no").write_text("x"), "no/out", "no is no folder"),
    "an input": (lambda home: _folder(home, "runs/a"), "runs/a", "overlaps"),
    "inside an input": (lambda home: _folder(home, "runs/a"), "runs/a/out", "overlaps"),
    "inside an input by a detour": (lambda home: _folder(home, "runs/a"), "runs/../runs/a/x", "overlaps"),
}  # fmt: skip


@pytest.mark.parametrize("name", INVALID_TARGETS)
@pytest.mark.parametrize("overwrite", [True, False])
def test_targets_are_refused_before_any_work(tmp_path: Path, name: str, overwrite: bool) -> None:
    prepare, target, words = INVALID_TARGETS[name]
    prepare(tmp_path)
    before = sorted(str(path) for path in tmp_path.rglob("*"))
    with pytest.raises(CannotWriteError, match=words) as raised:
        StagedFolder(tmp_path / target, overwrite, inputs=[tmp_path / "runs" / "a"]).__enter__()
    assert str(raised.value) == f"{raised.value.problem}; {raised.value.accepted}"
    assert sorted(str(path) for path in tmp_path.rglob("*")) == before


def test_a_target_around_an_input_is_refused_even_to_overwrite(tmp_path: Path) -> None:
    (tmp_path / "runs" / "a").mkdir(parents=True)
    with pytest.raises(CannotWriteError, match="overlaps"):
        StagedFolder(tmp_path / "runs", True, inputs=[tmp_path / "runs" / "a"]).__enter__()


def test_a_folder_that_cannot_be_written_to_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging.os, "access", lambda *_: False)  # as root everything can be
    with pytest.raises(CannotWriteError, match="no permission"):
        StagedFolder(tmp_path / "out").__enter__()


STAGING = """
import sys, time
from dpmerge.merging.staging import StagedFolder
with StagedFolder(sys.argv[1]) as staged:
    (staged.path / "half").write_bytes(bytes(1000))
    print(staged.path, flush=True)
    time.sleep(60)
"""


def test_what_a_killed_process_left_goes_next_time_and_what_a_living_one_has_stays(tmp_path: Path) -> None:
    target = tmp_path / "out"
    command = [sys.executable, "-c", STAGING, str(target)]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as dead,
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as alive,
    ):
        assert dead.stdout is not None
        assert alive.stdout is not None
        left, kept = Path(dead.stdout.readline().strip()), Path(alive.stdout.readline().strip())
        dead.send_signal(signal.SIGKILL)
        dead.wait()
        try:
            assert listed(tmp_path) == sorted([left.name, kept.name])  # and no target
            publish(tmp_path / "elsewhere", "text")  # another target's leftovers are not its business
            assert left.exists()
            publish(target, "text")
            assert not left.exists()
            assert tree(kept) == {"half": bytes(1000)}
            assert tree(target)["deep/file"] == b"text"
        finally:
            alive.kill()
    assert remove_leftovers(target) == (kept,)
    assert listed(tmp_path) == ["elsewhere", "out"]


def test_only_leftovers_are_removed(tmp_path: Path) -> None:
    names = [".out.12345678.partial", ".outer.12345678.partial", ".out.1234567.partial", ".out.12345678.partial.x",
             "out.12345678.partial", ".out.12345678.previous"]  # fmt: skip
    for name in names:
        (tmp_path / name).mkdir()
    (tmp_path / ".out.aaaaaaaa.partial").write_text("a file")
    (tmp_path / ".out.bbbbbbbb.partial").symlink_to(tmp_path / "out.12345678.partial")
    assert remove_leftovers(tmp_path / "out") == (tmp_path / ".out.12345678.partial",)
    assert len(listed(tmp_path)) == len(names) + 1


def test_a_folder_removed_before_it_was_locked_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, made = staging.try_lock, []

    def slow(descriptor: int) -> bool:
        made.append(next(path for path in tmp_path.iterdir()))
        if len(made) == 1:
            made[0].rmdir()  # as another process would that came in between
        return real(descriptor)

    monkeypatch.setattr(staging, "try_lock", slow)
    publish(tmp_path / "out", "text")
    assert len(made) == 2
    assert listed(tmp_path) == ["out"]
