"""Releases that are killed, starved, asked for twice or crowded: whole and charged, or not there; never two of one.

The long versions are in `soak.kills`, which shares its code with these.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from soak.kills import (
    DELTA,
    LOOSE,
    WANTED,
    Child,
    Ended,
    Wanted,
    at_once,
    average,
    broken,
    crowd,
    crowded_out,
    digests,
    draw_of_two,
    drawn_from,
    expected_files,
    hidden,
    killed,
    leaks,
    linked,
    loaded,
    noised,
    phase,
    random_model,
    release_in,
    squared_mu,
    write_checkpoint,
    write_models,
)
from soak.ledger import postgresql

from dpmerge.certificate import keys
from dpmerge.certificate.model_card import CARD_NAME
from dpmerge.errors import (
    CannotWriteError,
    CapExceededError,
    DpmergeError,
    InvalidInputError,
    LedgerBrokenError,
    LedgerError,
)
from dpmerge.ledger import head_checkpoint as witnessing
from dpmerge.ledger.caps import Cap
from dpmerge.ledger.entries import BudgetScope
from dpmerge.ledger.head_checkpoint import read_head_checkpoint
from dpmerge.ledger.ledger import Ledger
from dpmerge.merging import writing
from dpmerge.planning.stated_weights import stated_weights
from dpmerge.releasing.ledger_location import LEDGER_NAME, WITNESS_NAME
from dpmerge.releasing.rebuild import rebuilt
from dpmerge.releasing.release import release
from dpmerge.releasing.verifying import verify
from portfolio.portfolios import read_manifest, write_json
from releasing.faults import (
    NOTE,
    POINTS,
    after_charging,
    charged,
    failing_writes,
    pending,
    ran,
    recovered,
    recovery_killed_at,
    release_killed_at,
)

Files = dict[str, list[dict[str, str] | None]]

EXAMPLES = Path(__file__).parents[2] / "examples"
AVERAGE, DRAW, NOISE = WANTED
EVERY_KIND = pytest.mark.parametrize("wanted", WANTED, ids=lambda wanted: wanted.name)
WITHOUT_NOISE = pytest.mark.parametrize("wanted", [AVERAGE, DRAW], ids=lambda wanted: wanted.name)


@pytest.fixture(scope="module")
def models() -> Iterator[Path]:
    """Models of 3 MB: merged in several pieces, and quickly."""
    with tempfile.TemporaryDirectory() as folder:
        yield write_models(Path(folder) / "models", 100_000)


@pytest.fixture(scope="module")
def files(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Files:
    """What each candidate of each kind of release is made of, by name of the kind."""
    folder = tmp_path_factory.mktemp("expected")
    return {each.name: expected_files(each.plan(loaded(models)), folder / each.name) for each in WANTED}


@pytest.fixture
def home(models: Path, tmp_path: Path) -> Iterator[Path]:
    """A portfolio nobody has released from yet; its files may be replaced but not written to."""
    yield linked(models, tmp_path / "portfolio")
    shutil.rmtree(tmp_path)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Where outputs go."""
    (tmp_path / "outputs").mkdir()
    return tmp_path / "outputs"


def sound(home: Path, place: Path) -> None:
    """The chain holds, the witness agrees, and every model outside of staging is verified and charged."""
    with Ledger.open(home / LEDGER_NAME) as ledger:
        assert broken(ledger, home) == []
        assert leaks(place, ledger, loaded(home)) == []


def finished(home: Path, out: Path, index: int | None, files: list[dict[str, str] | None]) -> None:
    """The last release is completed with that draw, verifies, and can be made again unless noise was added."""
    last = charged(home)[-1]
    assert (last.status, last.index) == ("completed", index)
    assert last.index is not None
    assert last.output is not None
    result = verify(out, portfolio=loaded(home))
    assert result.verified, result.problems
    assert result.declared is not None
    assert result.declared.release == last.release_id
    assert dict(result.files) == dict(last.output.files)
    wanted = files[last.index]
    if wanted is None:
        assert rebuilt(result, loaded(home)).passed is None
    else:
        assert dict(result.files) == wanted
        assert rebuilt(result, loaded(home)).passed is True


class TestKills:
    def test_releases_killed_at_random_moments_violate_nothing(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            models = write_models(Path(folder) / "models", 500_000)
            done = killed(models, Path(folder) / "kills", kills=12, seed=2026)
        assert done.violations == []
        assert sum(done.phases.values()) == 12
        assert done.recoveries > 0, done.phases  # some were killed on the way

    @EVERY_KIND
    @pytest.mark.parametrize("point", ["charged", "merging", "certified", "published", "completed"])
    def test_a_release_killed_at_a_point_is_finished_by_recovery(
        self, home: Path, place: Path, files: Files, wanted: Wanted, point: str
    ) -> None:
        out = place / "out"
        release_killed_at(point, home, out, wanted)
        (entry,) = charged(home)
        assert phase(place, out, entry) == point
        assert entry.status == ("completed" if point == "completed" else "pending")
        assert out.exists() == (point in ("published", "completed"))
        staged = [path for path in place.iterdir() if path.name.endswith(".partial")]
        assert len(staged) == (point in ("merging", "certified"))
        sound(home, place)
        before = (out.stat().st_ino, digests(out)) if out.exists() else None
        recovered(home)
        finished(home, out, entry.index, files[wanted.name])
        assert hidden(place) == []
        sound(home, place)
        if before is not None:
            assert (out.stat().st_ino, digests(out)) == before

    @EVERY_KIND
    def test_a_recovery_that_is_killed_is_finished_by_the_next_one(
        self, home: Path, place: Path, files: Files, wanted: Wanted
    ) -> None:
        out = place / "out"
        release_killed_at("merging", home, out, wanted)
        (entry,) = pending(home)
        for point in ("certified", "published"):
            recovery_killed_at(point, home)
            assert [(each.release_id, each.index) for each in pending(home)] == [(entry.release_id, entry.index)]
            sound(home, place)
        before = (out.stat().st_ino, digests(out))
        recovered(home)
        assert (out.stat().st_ino, digests(out)) == before
        finished(home, out, entry.index, files[wanted.name])
        assert hidden(place) == []

    @WITHOUT_NOISE
    @pytest.mark.parametrize("point", ["charged", "merging", "certified"])
    def test_a_killed_overwriting_leaves_the_earlier_output_until_recovery(
        self, home: Path, place: Path, files: Files, wanted: Wanted, point: str
    ) -> None:
        out = place / "out"
        release(average(loaded(home)), out=out)
        before = digests(out)
        release_killed_at(point, home, out, wanted, overwrite=True)
        assert digests(out) == before
        sound(home, place)
        (entry,) = pending(home)
        recovered(home)
        finished(home, out, entry.index, files[wanted.name])
        assert hidden(place) == []

    def test_a_release_killed_after_replacing_an_output_is_finished_by_recovery(
        self, home: Path, place: Path, files: Files
    ) -> None:
        out = place / "out"
        first = release(average(loaded(home)), out=out)
        release_killed_at("replaced", home, out, DRAW, overwrite=True)
        assert release_in(out) != first.release_id
        sound(home, place)
        (entry,) = pending(home)
        before = digests(out)
        recovered(home)
        finished(home, out, entry.index, files[DRAW.name])
        assert digests(out) == before
        assert hidden(place) == []  # what was there before is removed as well

    def test_a_release_killed_after_completion_leaves_no_lock_once_recovered(self, home: Path, place: Path) -> None:
        release_killed_at("completed", home, place / "out", AVERAGE)
        recovered(home)
        assert hidden(place) == []

    def test_abandoning_a_killed_release_removes_what_was_staged(self, home: Path, place: Path) -> None:
        release_killed_at("certified", home, place / "out", AVERAGE)
        (entry,) = pending(home)
        assert ran("ledger", "recover", home, "--abandon", entry.release_id).exit_code == 0
        assert hidden(place) == []

    def test_asking_again_with_the_same_request_key_finishes_a_killed_release(
        self, home: Path, place: Path, files: Files
    ) -> None:
        out = place / "out"
        for point in ("charged", "merging", "certified", "published"):
            release_killed_at(point, home, out, DRAW, request_key="k")
            assert len(charged(home)) == 1
        index, before = charged(home)[0].index, digests(out)
        release(draw_of_two(loaded(home)), out=out, request_key="k")
        assert digests(out) == before
        finished(home, out, index, files[DRAW.name])

    def test_noise_that_was_sealed_is_published_as_it_was_drawn(self, home: Path, place: Path) -> None:
        release_killed_at("certified", home, place / "out", NOISE)
        [staged] = [path for path in place.iterdir() if path.name.endswith(".partial")]
        before = digests(staged)
        recovered(home)
        assert digests(place / "out") == before
        assert hidden(place) == []

    def test_noise_that_was_sealed_and_is_gone_is_not_drawn_again(self, home: Path, place: Path) -> None:
        release_killed_at("certified", home, place / "out", NOISE)
        [staged] = [path for path in place.iterdir() if path.name.endswith(".partial")]
        shutil.rmtree(staged)
        result = ran("ledger", "recover", home)
        assert result.exit_code == 2
        assert "its noise was never written down" in result.output
        assert not (place / "out").exists()

    def test_noise_that_was_not_sealed_is_drawn_afresh(self, home: Path, place: Path) -> None:
        release_killed_at("merging", home, place / "out", NOISE)
        recovered(home)
        assert verify(place / "out").verified

    def test_a_portfolio_that_was_moved_is_recovered_where_it_is(self, home: Path, place: Path, tmp_path: Path) -> None:
        release_killed_at("charged", home, place / "out", AVERAGE)
        moved = home.rename(tmp_path / "moved")
        result = ran("ledger", "recover", moved)
        assert result.exit_code == 0, result.output
        assert verify(place / "out", portfolio=moved).verified

    def test_a_place_with_a_pending_release_takes_no_other(self, home: Path, place: Path) -> None:
        out = place / "out"
        release_killed_at("charged", home, out, DRAW)
        (entry,) = pending(home)
        with pytest.raises(
            CannotWriteError, match=f"release {entry.release_id}.* is charged and not finished; finish it"
        ):
            release(stated_weights(loaded(home), {"c@10": 1.0}, LOOSE), out=out)
        assert len(charged(home)) == 1

    def test_a_draw_that_is_pending_is_not_drawn_again_elsewhere(self, home: Path, place: Path) -> None:
        release_killed_at("charged", home, place / "out", DRAW)
        with pytest.raises(CannotWriteError, match="charged and not finished"):
            release(draw_of_two(loaded(home)), out=place / "other")
        release(average(loaded(home)), out=place / "other")

    def test_published_noise_that_was_moved_away_is_not_drawn_again(self, home: Path, place: Path) -> None:
        out = place / "out"
        release_killed_at("published", home, out, NOISE)
        out.rename(place / "elsewhere")
        assert ran("ledger", "recover", home).exit_code == 2
        assert not out.exists()


DRAW_OF_C = Wanted("a draw", lambda portfolio: drawn_from(portfolio, [{"a@20": 0.5, "c@20": 0.5}, {"c@20": 1.0}]))
"""Whichever is drawn needs c."""


def truncated(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 1000)


def changed(file: Path) -> None:
    with file.open("r+b") as opened:
        opened.seek(-1000, 2)
        opened.write(bytes(4))


def not_a_number(file: Path) -> None:
    with file.open("r+b") as opened:
        opened.seek(-1000, 2)
        opened.write(np.float32("nan").tobytes())


def removed(file: Path) -> None:
    file.unlink()


def a_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def charged_and_pending(home: Path, place: Path, ended: Ended) -> None:
    """The error says so, and it is true; of the output there is nothing."""
    (entry,) = charged(home)
    assert entry.status == "pending"
    assert ended.how == "failed"
    assert "UNEXPECTED" not in ended.error, ended.error
    assert ended.notes == (f"release {entry.release_id} {NOTE}",)
    assert "\n" not in ended.error
    assert not (place / "out").exists()
    assert hidden(place) == []
    with Ledger.open(home / LEDGER_NAME) as ledger:
        assert broken(ledger, home) == []
        assert leaks(place, ledger) == []


class TestFailures:
    """Not killed: an error, nothing written, the release pending until the fault is repaired."""

    @pytest.mark.parametrize("wanted", [DRAW_OF_C, NOISE], ids=lambda wanted: wanted.name)
    @pytest.mark.parametrize("fault", [truncated, changed, not_a_number, removed, a_folder], ids=lambda f: f.__name__)
    def test_a_damaged_input_of_a_draw_or_final_release_is_refused_before_the_charge(
        self, home: Path, place: Path, tmp_path: Path, wanted: Wanted, fault: Callable[[Path], None]
    ) -> None:
        """Or a candidate that cannot be made would fail when it is drawn, and the others be drawn instead; and runs
        would be locked for a release that nobody can make."""
        file = home / "c" / "step-20.safetensors"
        planned = wanted.plan(loaded(home))
        shutil.copyfile(file.rename(tmp_path / "whole"), file)
        fault(file)
        with pytest.raises(DpmergeError):
            release(planned, out=place / "out", final=wanted.final)
        assert charged(home) == []
        assert list(place.iterdir()) == []

    @pytest.mark.parametrize("wanted", [AVERAGE, NOISE], ids=lambda wanted: wanted.name)
    @pytest.mark.parametrize("fault", [truncated, changed, not_a_number, removed, a_folder], ids=lambda f: f.__name__)
    def test_an_input_damaged_after_the_charge_leaves_the_release_pending_until_repaired(
        self, home: Path, place: Path, tmp_path: Path, wanted: Wanted, fault: Callable[[Path], None]
    ) -> None:
        file, out = home / "c" / "step-20.safetensors", place / "out"
        planned = wanted.plan(loaded(home))
        whole = file.rename(tmp_path / "whole")
        shutil.copyfile(whole, file)

        def work() -> None:
            Ledger.charge = after_charging(lambda: fault(file))  # type: ignore[method-assign]
            release(planned, out=out, final=wanted.final)

        ended = Child(work).ended()
        charged_and_pending(home, place, ended)
        (entry,) = pending(home)
        result = ran("ledger", "recover", home)
        assert result.exit_code == 2
        assert "still pending" in result.output
        assert pending(home) == [entry]
        if file.is_dir():
            file.rmdir()
        whole.rename(file)
        recovered(home)
        finished(home, out, entry.index, expected_files(planned, tmp_path / "expected"))
        assert hidden(place) == []

    @EVERY_KIND
    @pytest.mark.parametrize("room", [0, 1_000_000, 3_000_000])
    def test_a_full_disk_leaves_the_release_pending_until_recovery(
        self,
        home: Path,
        place: Path,
        files: Files,
        wanted: Wanted,
        room: int,
    ) -> None:
        planned, out = wanted.plan(loaded(home)), place / "out"

        def work() -> None:
            writing.os.pwrite = failing_writes(room)  # type: ignore[assignment]
            release(planned, out=out, final=wanted.final)

        ended = Child(work).ended()
        charged_and_pending(home, place, ended)
        assert "No space left on device" in ended.error
        (entry,) = pending(home)
        recovered(home)
        finished(home, out, entry.index, files[wanted.name])

    @EVERY_KIND
    def test_a_limit_on_file_sizes_leaves_the_release_pending_until_recovery(
        self, home: Path, place: Path, files: Files, wanted: Wanted
    ) -> None:
        planned, out = wanted.plan(loaded(home)), place / "out"

        def work() -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, resource.RLIM_INFINITY))
            release(planned, out=out, final=wanted.final)

        ended = Child(work).ended()
        charged_and_pending(home, place, ended)
        assert "CannotWriteError" in ended.error
        (entry,) = pending(home)
        recovered(home)
        finished(home, out, entry.index, files[wanted.name])

    def test_a_key_gone_before_signing_leaves_the_release_pending_until_it_is_back(
        self, home: Path, place: Path, tmp_path: Path
    ) -> None:
        planned, out, key = average(loaded(home)), place / "out", tmp_path / "key"
        keys.generate(key)
        content = key.read_bytes()

        def lose(done: int, total: int) -> None:
            key.unlink(missing_ok=True)

        ended = Child(lambda: release(planned, out=out, key=key, progress=lose)).ended()
        charged_and_pending(home, place, ended)
        key.touch(0o600)
        key.write_bytes(content)
        recovered(home)
        assert verify(out, portfolio=loaded(home), key=tmp_path / "key.pub").verified

    def test_a_ledger_lost_after_publishing_leaves_the_output_for_recovery(
        self, home: Path, place: Path, files: Files, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def lost(*_: object, **__: object) -> None:
            raise LedgerError("the connection was lost")

        with monkeypatch.context() as patched:
            patched.setattr(Ledger, "complete", lost)
            with pytest.raises(LedgerError, match="lost") as raised:
                release(noised(loaded(home)), out=place / "out", final=True)
        assert NOTE in raised.value.__notes__[0]
        sound(home, place)
        before = digests(place / "out")
        recovered(home)
        assert digests(place / "out") == before
        finished(home, place / "out", 0, files[NOISE.name])

    def test_an_abandoned_release_stays_charged(self, home: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        scope = BudgetScope("soaked", "record", "replace_one")
        with Ledger.open(home / LEDGER_NAME) as ledger:
            ledger.set_cap(scope, Cap(epsilon=3.0, delta=DELTA, rule="gaussian_filter"))
        planned = stated_weights(loaded(home), {"a@20": 1.0}, LOOSE)  # μ² = 20·(2/16)² = 0.3125
        with monkeypatch.context() as patched:
            patched.setattr(Ledger, "charge", after_charging((home / "a" / "step-20.safetensors").unlink))
            with pytest.raises(DpmergeError, match="step-20") as raised:
                release(planned, out=place / "out")
        assert NOTE in raised.value.__notes__[0]
        (entry,) = pending(home)
        result = ran("ledger", "recover", home, "--abandon", entry.release_id)
        assert result.exit_code == 0
        assert "abandoned" in result.output
        assert [each.status for each in charged(home)] == ["abandoned"]
        assert ran("ledger", "recover", home).output.strip() == "Nothing is pending."
        with Ledger.open(home / LEDGER_NAME) as ledger:
            left = ledger.budget_report(scope, DELTA).left
        assert left is not None
        assert left.spent == pytest.approx(0.3125, rel=1e-12)
        assert not (place / "out").exists()

    def test_an_abandoned_release_is_refused_for_its_request_key(self, home: Path, place: Path) -> None:
        release_killed_at("charged", home, place / "out", DRAW, request_key="k")
        (entry,) = pending(home)
        assert ran("ledger", "recover", home, "--abandon", entry.release_id).exit_code == 0
        with pytest.raises(InvalidInputError, match="abandoned"):
            release(draw_of_two(loaded(home)), out=place / "out", request_key="k")
        assert list(place.iterdir()) == []

    @pytest.mark.parametrize("again", ["with less noise", "with other noise"])
    def test_a_run_that_was_trained_again_is_not_released_by_recovery(
        self, home: Path, place: Path, again: str
    ) -> None:
        """What was charged is the run as it was."""
        release_killed_at("charged", home, place / "out", AVERAGE)
        folder = home / "c"
        document = read_manifest(folder)
        (folder / "step-20.safetensors").unlink()
        document["checkpoints"][1] = write_checkpoint(folder, 20, random_model([1], 100_000))
        document["noise"]["stream"] = "f" * 32
        if again == "with less noise":
            document["mechanism"]["blocks"][0]["noise_multiplier"] = 0.5
        (folder / "privacy.json").unlink()
        write_json(folder / "privacy.json", document)
        assert ran("ledger", "recover", home).exit_code == 2
        assert not (place / "out").exists()


class TestTheSameRequestKey:
    @EVERY_KIND
    def test_asking_again_elsewhere_gives_the_same_release(self, home: Path, place: Path, wanted: Wanted) -> None:
        planned = wanted.plan(loaded(home))
        first = release(planned, out=place / "out", final=wanted.final, request_key="k")
        before = digests(place / "out")
        for name in ("out", "other", "third"):
            again = release(planned, out=place / name, final=wanted.final, request_key="k")
            assert (again.already, again.release_id) == (True, first.release_id)
            assert digests(place / name) == before
        assert len(charged(home)) == 1
        assert hidden(place) == []

    @WITHOUT_NOISE
    @pytest.mark.parametrize("name", ["out", "other"])
    def test_an_output_without_noise_that_is_gone_is_made_again_with_the_same_bytes(
        self, home: Path, place: Path, wanted: Wanted, name: str
    ) -> None:
        planned = wanted.plan(loaded(home))
        release(planned, out=place / "out", request_key="k")
        before = digests(place / "out")
        shutil.rmtree(place / "out")
        release(planned, out=place / name, request_key="k")
        assert digests(place / name) == before

    @pytest.mark.parametrize("loss", ["gone", "damaged"])
    @pytest.mark.parametrize("name", ["out", "other"])
    def test_an_output_with_noise_that_is_lost_is_not_made_again(
        self, home: Path, place: Path, name: str, loss: str
    ) -> None:
        planned = noised(loaded(home))
        release(planned, out=place / "out", final=True, request_key="k")
        if loss == "gone":
            shutil.rmtree(place / "out")
        else:
            changed(place / "out" / "model.safetensors")
        before = sorted(place.rglob("*"))
        with pytest.raises(CannotWriteError, match="other noise is another release"):
            release(planned, out=place / name, final=True, request_key="k")
        assert sorted(place.rglob("*")) == before

    def test_a_request_key_used_for_something_else_is_refused(self, home: Path, place: Path) -> None:
        release(average(loaded(home)), out=place / "out", request_key="k")
        for other in (draw_of_two, noised):
            with pytest.raises(InvalidInputError, match="request-key"):
                release(other(loaded(home)), out=place / "other", final=other is noised, request_key="k")
        assert [path.name for path in place.iterdir()] == ["out"]
        assert len(charged(home)) == 1

    def test_asking_again_without_the_card_gives_a_verified_output_or_none(self, home: Path, place: Path) -> None:
        release(average(loaded(home)), out=place / "out", request_key="k")
        (place / "out" / CARD_NAME).unlink()
        try:
            release(average(loaded(home)), out=place / "other", request_key="k")
        except DpmergeError:
            assert not (place / "other").exists()
        else:
            assert verify(place / "other").verified
        assert hidden(place) == []

    @EVERY_KIND
    @pytest.mark.parametrize("round_", range(2))
    def test_several_asking_at_once_for_one_place_get_one_release(
        self, home: Path, place: Path, wanted: Wanted, round_: int
    ) -> None:
        planned = wanted.plan(loaded(home))

        def ask() -> str:
            return release(planned, out=place / "out", final=wanted.final, request_key="k").release_id

        ended = at_once([ask] * 4)
        made = [each for each in ended if each.how == "done"]
        assert made, [each.error for each in ended]
        for each in ended:
            assert each.how == "done" or "another process is making a release in" in each.error, each.error
        (entry,) = charged(home)
        assert entry.status == "completed"
        assert {each.value for each in made} == {entry.release_id} == {release_in(place / "out")}
        assert entry.output is not None
        assert dict(entry.output.files) == dict(verify(place / "out").files)
        sound(home, place)
        assert hidden(place) == []

    def test_two_releases_at_once_for_one_place_charge_one_and_refuse_the_other(self, home: Path, place: Path) -> None:
        """Without a key they are two; there is room for one, and the other is not charged."""
        out = place / "out"
        ended = at_once([lambda: release(average(loaded(home)), out=out).release_id] * 2)
        kinds = sorted(each.how for each in ended)
        assert kinds == ["done", "failed"], [each.error for each in ended]
        (made,) = [each.value for each in ended if each.how == "done"]
        (refused,) = [each for each in ended if each.how == "failed"]
        assert "is not empty" in refused.error or "another process is making a release in" in refused.error
        assert release_in(out) == made
        assert hidden(place) == []
        sound(home, place)
        assert len(charged(home)) == 1

    @EVERY_KIND
    def test_several_asking_at_once_for_several_places_get_the_same_release(
        self, home: Path, place: Path, wanted: Wanted
    ) -> None:
        planned = wanted.plan(loaded(home))

        def ask(number: int) -> Callable[[], str]:
            out = place / f"out-{number}"
            return lambda: release(planned, out=out, final=wanted.final, request_key="k").release_id

        ended = at_once([ask(number) for number in range(4)])
        made = sorted(path for path in place.iterdir() if not path.name.startswith("."))
        assert made
        assert len(made) == sum(each.how == "done" for each in ended)
        for each in ended:
            assert each.how == "done" or "once it is there it can be handed out elsewhere" in each.error, each.error
        assert len({json.dumps(digests(path)) for path in made}) == 1
        assert len(charged(home)) == 1
        sound(home, place)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_models(tmp_path_factory.mktemp("small") / "models")


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgresql() as address:
        yield address


class TestManyAtOnce:
    WORKERS, ASKS = 4, 6

    def crowded(self, small: Path, folder: Path, where: str | None) -> None:
        home = linked(small, folder / "portfolio")
        place = folder / "outputs"
        place.mkdir()
        at = str(home / LEDGER_NAME) if where is None else where
        ended = crowd(home, at, place, workers=self.WORKERS, asks=self.ASKS, seed=7)
        assert crowded_out(home, at, place, ended, self.ASKS) == []
        assert sum(len(each.value.made) for each in ended) > 0
        assert sum(each.value.refused for each in ended) > 0  # or the cap was not tested

    def test_a_crowd_keeps_to_the_cap_with_the_ledger_in_a_file(self, small: Path, tmp_path: Path) -> None:
        self.crowded(small, tmp_path, None)

    def test_a_crowd_keeps_to_the_cap_with_the_ledger_in_postgresql(
        self, small: Path, tmp_path: Path, server: str
    ) -> None:
        self.crowded(small, tmp_path, server)

    def test_a_pending_release_counts_against_the_cap(self, small: Path, tmp_path: Path) -> None:
        home, place = linked(small, tmp_path / "portfolio"), tmp_path / "outputs"
        place.mkdir()
        with Ledger.open(home / LEDGER_NAME) as ledger:
            ledger.set_cap(
                BudgetScope("soaked", "record", "replace_one"), Cap(epsilon=2.0, delta=DELTA, rule="gaussian_filter")
            )
        one = Wanted("a checkpoint", lambda portfolio: stated_weights(portfolio, {"a@10": 1.0}, LOOSE))
        release_killed_at("charged", home, place / "one", one)  # μ² = 10·(2/16)² = 0.156 of 0.2515
        with pytest.raises(CapExceededError):
            release(stated_weights(loaded(home), {"a@20": 1.0}, LOOSE), out=place / "two")
        release(stated_weights(loaded(home), {"b@20": 1.0}, LOOSE), out=place / "two")  # 0.078 more
        with Ledger.open(home / LEDGER_NAME) as ledger:
            bodies = [entry.body for entry in ledger.entries() if entry.kind == "release"]
            left = ledger.budget_report(BudgetScope("soaked", "record", "replace_one"), DELTA).left
        assert squared_mu(bodies) == 0.15625 + 0.078125
        assert left is not None
        assert left.spent == pytest.approx(squared_mu(bodies), rel=1e-12)

    def test_the_witness_only_moves_forward(self, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """While one process is about to write down what it saw, another sees more and writes that down."""
        home = linked(small, tmp_path / "portfolio")
        (tmp_path / "outputs").mkdir()
        write, written = witnessing.write_atomically, []

        def overtaken(path: Path, content: bytes) -> None:
            written.append(path)
            if len(written) == 2:  # the first is written after the charge, the second after completion
                release(average(loaded(home)), out=tmp_path / "outputs" / "other")
            write(path, content)

        monkeypatch.setattr(witnessing, "write_atomically", overtaken)
        release(average(loaded(home)), out=tmp_path / "outputs" / "one")
        with Ledger.open(home / LEDGER_NAME) as ledger:
            (head, _) = ledger.head()
            seen = read_head_checkpoint(home / WITNESS_NAME)
        assert seen is not None
        assert seen.seq == head


class TestARestoredLedger:
    @staticmethod
    def high_water(home: Path) -> dict[str, int]:
        with Ledger.open(home / LEDGER_NAME) as ledger:
            return {
                run.name: run.step
                for run in ledger.budget_report(BudgetScope("soaked", "record", "replace_one"), DELTA).runs
            }

    def merged(self, home: Path, out: Path, run: str, *more: object) -> Any:
        return ran(
            "merge", home, "--epsilon", 50, "--delta", DELTA, "--weights", f"{run}=1", "-o", out, *more
        )  # fmt: skip

    def test_a_restored_ledger_is_refused_until_what_was_lost_is_adopted_and_accepted(
        self, home: Path, place: Path, tmp_path: Path
    ) -> None:
        assert self.merged(home, place / "one", "c@10").exit_code == 0
        shutil.copy(home / LEDGER_NAME, tmp_path / "backup")
        keys.generate(tmp_path / "key")
        assert self.merged(home, place / "two", "b@20", "--key", tmp_path / "key").exit_code == 0
        whole = self.high_water(home)
        assert whole == {"b": 20, "c": 10}
        shutil.copy(tmp_path / "backup", home / LEDGER_NAME)
        assert self.high_water(home) == {"c": 10}
        with pytest.raises(LedgerBrokenError, match="restored from an older backup"):
            release(average(loaded(home)), out=place / "three")
        result = self.merged(home, place / "three", "c@20")
        assert result.exit_code == 2
        assert "restored from an older backup" in result.output
        (home / WITNESS_NAME).rename(tmp_path / "witness")
        result = self.merged(home, place / "two", "c@20", "--overwrite")
        assert result.exit_code == 2
        assert "restored from an older backup" in result.output
        (tmp_path / "witness").rename(home / WITNESS_NAME)
        assert not (place / "three").exists()
        assert ran("ledger", "recover", home, "--adopt", place / "two", "--key", tmp_path / "key.pub").exit_code == 0
        assert self.merged(home, place / "three", "c@20").exit_code == 2  # adopted, and nobody says that this was all
        assert ran("ledger", "recover", home, "--accept").exit_code == 0
        assert self.high_water(home) == whole
        assert self.merged(home, place / "three", "c@20").exit_code == 0
        assert self.high_water(home) == {"b": 20, "c": 20}
        assert [(each.adopted, each.status) for each in charged(home)] == [
            (False, "completed"), (True, "completed"), (False, "completed"),
        ]  # fmt: skip
        sound(home, place)

    def test_an_adopted_draw_that_was_not_revealed_counts_as_all_its_candidates(
        self, home: Path, place: Path, tmp_path: Path
    ) -> None:
        release(stated_weights(loaded(home), {"c@10": 1.0}, LOOSE), out=place / "one")
        shutil.copy(home / LEDGER_NAME, tmp_path / "backup")
        keys.generate(tmp_path / "key")
        release(draw_of_two(loaded(home)), out=place / "two", key=tmp_path / "key")
        shutil.copy(tmp_path / "backup", home / LEDGER_NAME)
        given = ("--key", tmp_path / "key.pub", "--accept")
        assert ran("ledger", "recover", home, "--adopt", place / "two", *given).exit_code == 0
        assert self.high_water(home) == {"a": 20, "b": 20, "c": 20}
        sound(home, place)

    def test_an_output_that_was_changed_is_not_adopted(self, home: Path, place: Path, tmp_path: Path) -> None:
        release(stated_weights(loaded(home), {"c@10": 1.0}, LOOSE), out=place / "one")
        shutil.copy(home / LEDGER_NAME, tmp_path / "backup")
        release(average(loaded(home)), out=place / "two")
        shutil.copy(tmp_path / "backup", home / LEDGER_NAME)
        changed(place / "two" / "model.safetensors")
        result = ran("ledger", "recover", home, "--adopt", place / "two", "--accept")
        assert result.exit_code == 2
        assert "does not verify (files: " in result.output
        assert self.merged(home, place / "three", "c@20").exit_code == 2

    def test_recovery_from_a_restored_ledger_does_not_draw_noise_again(
        self, home: Path, place: Path, tmp_path: Path
    ) -> None:
        """In the backup the release is pending; since then its noise was drawn, and its output handed on."""
        release_killed_at("charged", home, place / "out", NOISE)
        shutil.copy(home / LEDGER_NAME, tmp_path / "backup")
        recovered(home)
        (place / "out").rename(place / "handed on")
        shutil.copy(tmp_path / "backup", home / LEDGER_NAME)
        assert ran("ledger", "recover", home).exit_code == 2
        assert not (place / "out").exists()


def test_a_published_final_release_with_noise_is_left_as_it_is_by_recovery(tmp_path: Path) -> None:
    """The portfolio of the examples, killed between publishing and completing."""
    home, place = shutil.copytree(EXAMPLES / "probe", tmp_path / "probe"), tmp_path / "outputs"
    place.mkdir()
    asked = ("merge", home, "--epsilon", 0.5, "--delta", DELTA, "--final", "-o", place / "out")

    def work() -> None:
        POINTS["published"]()
        ran(*asked)

    assert Child(work).ended() == Ended("killed")
    (entry,) = pending(home)
    assert entry.terms.candidates[0].release_noise > 0
    before = (place / "out").stat().st_ino, digests(place / "out")
    recovered(home)
    assert ((place / "out").stat().st_ino, digests(place / "out")) == before
    assert ran("verify", place / "out", "--portfolio", home).exit_code == 0


def test_a_final_release_asked_for_again_with_its_request_key_is_the_same(tmp_path: Path) -> None:
    """A final release locks its runs, for others: who asks again with its key is given it."""
    home, out = shutil.copytree(EXAMPLES / "probe", tmp_path / "probe"), tmp_path / "out"
    asked = ("merge", home, "--epsilon", 0.5, "--delta", DELTA, "--final", "--request-key", "k", "-o", out)
    assert ran(*asked).exit_code == 0
    before = digests(out)
    result = ran(*asked)
    assert result.exit_code == 0, result.output
    assert digests(out) == before
