"""Leftovers: killed before any change to the disk, and recovered, a release leaves the output, the ledger and no more.

And what is not known to be a dead process's is never removed.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from soak.kills import WANTED, Child, hidden, kills_before_changes, left_behind, linked, loaded, write_models

from dpmerge.certificate.dsse import CERTIFICATE_NAME
from dpmerge.errors import CannotWriteError
from dpmerge.files import nobodys, partial_file
from dpmerge.ledger.ledger import Ledger
from dpmerge.portfolio.run_files import write_atomically
from dpmerge.releasing import output_lock as locking
from dpmerge.releasing.ledger_location import LEDGER_NAME, WITNESS_NAME
from dpmerge.releasing.output_lock import NOTE, lock_of, output_lock
from dpmerge.releasing.portfolio_ledger import PortfolioLedger, RecoveryStep
from dpmerge.releasing.release import release
from dpmerge.releasing.verifying import verify
from releasing.faults import die, pending, ran, recovered, release_killed_at

AVERAGE, DRAW, NOISE = WANTED


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_models(tmp_path_factory.mktemp("models") / "models", 2_000)


@pytest.fixture
def home(models: Path, tmp_path: Path) -> Path:
    return linked(models, tmp_path / "portfolio")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "outputs").mkdir()
    return tmp_path / "outputs"


@pytest.mark.parametrize(("overwrite", "every"), [(False, 4), (True, 5)], ids=["a new output", "over an earlier one"])
def test_killed_before_a_change_and_recovered_only_the_output_and_the_ledger_are_left(
    models: Path, tmp_path: Path, overwrite: bool, every: int
) -> None:
    swept = kills_before_changes(models, tmp_path, overwrite=overwrite, every=every)
    assert swept.violations == []
    assert swept.kills >= 5
    assert swept.removed > swept.kills / 2, "nothing was ever left, and so nothing was tried"


def test_a_copy_killed_elsewhere_goes_and_what_it_is_a_copy_of_stays(home: Path, place: Path, tmp_path: Path) -> None:
    """The same release handed out in another place: the ledger does not know of that place, the note does."""
    planned = AVERAGE.plan(loaded(home))
    release(planned, out=place / "out", request_key="k")
    (tmp_path / "elsewhere").mkdir()

    def work() -> None:
        setattr(shutil, "copyfileobj", die)  # noqa: B010
        release(planned, out=tmp_path / "elsewhere" / "copy", request_key="k")

    assert Child(work).ended().how == "killed"
    assert len(hidden(tmp_path / "elsewhere")) == 2  # the lock, and what was staged
    result = ran("ledger", "recover", home, "--json")
    assert result.exit_code == 0
    removed = [Path(step["removed"]) for step in json.loads(result.stdout)]
    assert {path.name for path in removed if path.parent == tmp_path / "elsewhere"} > {".copy.lock"}
    assert not any(path.exists() for path in removed)
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert verify(place / "out").verified


def test_what_was_removed_is_listed(home: Path, place: Path) -> None:
    release_killed_at("completed", home, place / "out", AVERAGE)
    result = ran("ledger", "recover", home)
    assert result.exit_code == 0
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("removed ")]
    assert str(home / NOTE.split("{")[0]) in line
    assert "Nothing is pending." in result.stdout
    assert ran("ledger", "recover", home).stdout == "Nothing is pending.\n"


def test_an_import_that_was_killed_leaves_nothing_once_recovered(home: Path) -> None:
    from dpmerge.portfolio.model_import import _staged

    with Ledger.open(home / LEDGER_NAME):
        pass
    run = next(folder for folder in home.iterdir() if folder.is_dir())

    def work() -> None:
        with _staged(run) as folder:
            (folder / "model.safetensors").write_text("weights")
            die()

    assert Child(work).ended().how == "killed"
    with _staged(run) as living:
        assert len(removed(home)) == 1
        assert living.is_dir()
    assert hidden(run) == []


def removed(home: Path) -> list[RecoveryStep]:
    with PortfolioLedger.of(home) as ledger:
        return [step for step in ledger.recover() if step.removed is not None]


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Locked by somebody who lives."""
    descriptor = os.open(path, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(descriptor)


class TestWhatIsNeverRemoved:
    @pytest.fixture(autouse=True)
    def completed(self, home: Path, place: Path) -> None:
        release(AVERAGE.plan(loaded(home)), out=place / "out")

    def test_what_a_living_process_has_locked(self, home: Path, place: Path) -> None:
        lock, staged = place / ".out.lock", place / ".out.0123abcd.partial"
        note, partial = home / NOTE.format("0123abcd"), home / f".{WITNESS_NAME}.0123abcd.partial"
        staged.mkdir()
        for file in (lock, note, partial):
            file.write_text("")
        note.write_text(str(place / "out"))
        for kept in ((lock, partial, note), (staged, partial, note)):
            with held(kept[0]), held(kept[1]), held(kept[2]):
                removed(home)
                assert all(path.exists() for path in kept)
        removed(home)
        assert left_behind(home, place) == []

    def test_what_has_another_name_or_place_or_is_a_link(self, home: Path, place: Path, tmp_path: Path) -> None:
        (tmp_path / "precious").mkdir()
        (tmp_path / "precious" / "file").write_text("precious")
        kept = [place / name for name in (".other.lock", ".outer.0123abcd.partial", ".out.0123abc.partial", "out.lock")]
        kept += [home / name for name in (".mine.0123abcd.partial", ".mine.lock", "a.partial", ".steps.lock")]
        for path in kept:
            path.write_text("mine")
        for link in (
            place / ".out.89abcdef.partial",
            home / f".{WITNESS_NAME}.89abcdef.partial",
            home / ".import-89abcdef.partial",
        ):
            link.symlink_to(tmp_path / "precious")
            kept.append(link)
        assert removed(home) == []
        assert all(path.is_symlink() or path.read_text() == "mine" for path in kept)
        assert (tmp_path / "precious" / "file").read_text() == "precious"

    def test_a_staged_output_of_another_ledger(self, home: Path, place: Path, models: Path, tmp_path: Path) -> None:
        """Its noise may be nowhere else: whoever keeps that ledger finishes it."""
        other = linked(models, tmp_path / "other")
        release_killed_at("certified", other, place / "out-2", NOISE)
        (staged,) = place.glob(".out-2.*.partial")
        for note in other.glob(NOTE.format("*")):
            shutil.copy(note, home / note.name)
        assert lock_of(place / "out-2").exists()
        removed(home)
        assert (staged / CERTIFICATE_NAME).exists()
        recovered(other)
        assert verify(place / "out-2").verified

    def test_a_staged_output_of_a_release_that_is_still_pending(
        self, models: Path, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        home = linked(models, tmp_path / "again")
        release_killed_at("certified", home, place / "noise", NOISE)
        (staged,) = place.glob(".noise.*.partial")

        def full(*_: object, **__: object) -> None:
            raise CannotWriteError("output", "noise", "room")

        with monkeypatch.context() as broken:
            broken.setattr("dpmerge.releasing.recover.publish", full)
            assert ran("ledger", "recover", home).exit_code == 2
        assert (staged / CERTIFICATE_NAME).exists()
        assert len(pending(home)) == 1
        recovered(home)
        assert verify(place / "noise").verified
        assert left_behind(home, place) == []

    def test_the_earlier_output_while_nothing_has_taken_its_place(self, home: Path, place: Path) -> None:
        previous = place / ".out.0123abcd.previous"
        (place / "out").rename(previous)
        removed(home)
        assert (previous / CERTIFICATE_NAME).exists()
        shutil.copytree(previous, place / "out")
        assert [step.removed for step in removed(home)] == [str(previous)]


class TestLocks:
    def test_a_lock_removed_before_it_was_taken_is_taken_anew(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whoever had it removes it between our opening and locking it: locked would be a file that is gone."""
        out, real, times = tmp_path / "out", locking.fcntl.flock, list[int]()

        def slow(descriptor: int, how: int) -> None:
            times.append(descriptor)
            if len(times) == 1:
                lock_of(out).unlink()
            real(descriptor, how)

        monkeypatch.setattr(locking.fcntl, "flock", slow)
        with output_lock(out):
            assert lock_of(out).exists()
        assert hidden(tmp_path) == []

    def test_a_lock_that_was_let_go_early_is_not_removed_from_who_has_it_then(self, tmp_path: Path) -> None:
        out = tmp_path / "out"
        with output_lock(out) as let_go:
            let_go()
            second = output_lock(out)
            second.__enter__()
        assert lock_of(out).exists()
        with pytest.raises(CannotWriteError, match="another process is making a release"), output_lock(out):
            pass
        second.__exit__(None, None, None)
        assert hidden(tmp_path) == []

    def test_a_file_taken_for_a_dead_process_s_is_written_all_the_same(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        names = iter(["00000000", "11111111"])
        monkeypatch.setattr(secrets, "token_hex", lambda _: next(names))
        real, seen = fcntl.flock, list[Path]()

        def slow(descriptor: int, how: int) -> None:
            if not seen:
                seen.extend(tmp_path.iterdir())
                seen[0].unlink()
            real(descriptor, how)

        monkeypatch.setattr(fcntl, "flock", slow)
        write_atomically(tmp_path / "document", b"whole")
        assert [path.name for path in seen] == [".document.00000000.partial"]
        assert (tmp_path / "document").read_bytes() == b"whole"
        assert hidden(tmp_path) == []

    def test_a_file_that_is_being_written_is_somebodys(self, tmp_path: Path) -> None:
        with partial_file(tmp_path / "document") as (beside, _), nobodys(beside) as found:
            assert found is None
        (tmp_path / "dead").write_text("")
        with nobodys(tmp_path / "dead") as found:
            assert found is not None
