"""Every verb on a system whose calls fail: one line and an exit code that means it, and never 1 after a charge.

Claimed by exit code 1: no such guarantee, nothing was charged. True, where the file of a lock could not be removed
after the charge: ε is spent, and nobody was told.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from soak.kills import average, loaded

import dpmerge
from attacks.failing_system import CALLS, failing
from attacks.faults import must_notice
from attacks.places import WEIGHTS, charges, forget, place, ran, within
from dpmerge.cli import terminal
from dpmerge.errors import CannotWriteError, NoGuaranteeError, RunsLockedError
from dpmerge.ledger import head_checkpoint as witnessing
from dpmerge.ledger.ledger import Ledger
from dpmerge.merging import staging
from dpmerge.releasing import charge_notes, output_lock, publish, recover
from dpmerge.releasing import release as releasing
from dpmerge.releasing.charge_notes import is_charged
from dpmerge.releasing.ledger_location import LEDGER_NAME
from dpmerge.releasing.release import release
from releasing.faults import NOTE, pending

OUT = "it is charged and complete"


@pytest.fixture(scope="module", autouse=True)
def _clean() -> Iterator[None]:
    yield
    forget()


MERGE = ("merge", "{}/portfolio", *WEIGHTS, "-o", "{}/new", "--key", "{}/key")
VERBS: dict[str, tuple[object, ...]] = {
    "merge": MERGE,
    "merge over an earlier one": ("merge", "{}/portfolio", *WEIGHTS, "-o", "{}/out", "--overwrite"),
    "verify": ("verify", "{}/out", "--portfolio", "{}/portfolio", "--key", "{}/key.pub", "--rebuild"),
    "keygen": ("keygen", "-o", "{}/new"),
    "inspect": ("inspect", "{}/portfolio"),
    "account": ("account", "{}/spec.json"),
    "plan": ("plan", "{}/portfolio", *WEIGHTS[:4], "-o", "{}/plan.json"),
    "manifest check": ("manifest", "check", "{}/portfolio/a"),
    "manifest new": ("manifest", "new", "approximate_dp", "-o", "{}/run.yaml"),
    "manifest write": ("manifest", "write", "{}/draft.yaml", "-o", "{}/m.json"),
    "manifest upgrade": ("manifest", "upgrade", "{}/portfolio", "--vouched-by", "Ann"),
    "ledger show": ("ledger", "show", "{}/portfolio"),
    "ledger cap": (
        "ledger", "cap", "{}/portfolio", "--epsilon", 60, "--delta", 1e-5, "--rule", "gaussian_filter",
    ),
    "ledger export": ("ledger", "export", "{}/portfolio", "-o", "{}/export.json"),
}  # fmt: skip
DRAFT = """
{schema: dpmerge/run/v1, run: old, dataset: {id: adult}, unit: record, adjacency: add_remove, tuning: none,
mechanism: {kind: approximate_dp, points: [{epsilon: 1.2, delta: 1e-5}]}, noise: {source: os_entropy},
ancestry: {start: random}, recorded_by: {how: hand}}
"""
SPEC = {
    "adjacency": "replace_one",
    "delta": 1e-5,
    "runs": [{"blocks": [{"steps": 2, "noise_multiplier": 32, "clip_norm": 2, "learning_rate": 4}]}],
}


def asked(verb: str, home: Path) -> list[str]:
    return [str(each).replace("{}", str(home)) for each in VERBS[verb]]


def ends_well(verb: str, home: Path, kind: str, number: int) -> None:
    """With that call failing: no traceback, a line of ours, and the truth about what was charged."""
    before = charges(home / "portfolio")
    with failing(home, kind, number), within(60):
        result = ran(*asked(verb, home))
    told = f"{verb}, {kind} {number}: {result.output} {result.exception!r}"
    assert result.exception is None or isinstance(result.exception, SystemExit), told
    assert result.exit_code in ((0, 1, 2) if verb == "verify" else (0, 2)), told
    if result.exit_code == 2:
        assert [line for line in result.stderr.splitlines() if line.startswith("error: ")], told
    if charges(home / "portfolio") > before and result.exit_code:
        assert NOTE in result.stderr or OUT in result.stderr, told


def chosen(count: int, verb: str) -> list[int]:
    """Of so many calls: the first and the last; of a release also some between, for after some it is charged."""
    between = (count // 3, 2 * count // 3, count - 2) if verb == "merge" else ()
    return sorted({number for number in (0, *between, count - 1) if 0 <= number < count})


@pytest.mark.parametrize("verb", VERBS)
def test_a_failing_system_call_ends_in_one_error_line_without_a_traceback(tmp_path: Path, verb: str) -> None:
    kept, home = tmp_path / "kept", tmp_path / "home"
    (place(kept) / "spec.json").write_text(json.dumps(SPEC))
    (kept / "draft.yaml").write_text(DRAFT)
    shutil.copytree(kept, home)
    with failing(home, None) as counted:
        assert ran(*asked(verb, home)).exit_code == 0
    calls = [(kind, number) for kind in CALLS for number in chosen(counted.calls[kind], verb)]
    assert calls
    for kind, number in calls:
        shutil.rmtree(home)
        shutil.copytree(kept, home)
        ends_well(verb, home, kind, number)


def locks_that_stay(folder: Path) -> None:
    """Where a file of a lock cannot be removed after a failed release, what is charged is still said."""
    home = place(folder)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(publish, "build", _full)
        with failing(home, "remove", 0):
            result = ran(*asked("merge", home))
    assert charges(home / "portfolio") == 2
    assert result.exit_code == 2
    assert NOTE in result.stderr
    assert "No space left on device" in result.stderr


def _full(*_: object, **__: object) -> None:
    raise CannotWriteError("output", "new", "room", found=f"an error: {os.strerror(errno.ENOSPC)}")


def test_a_lock_that_cannot_be_removed_does_not_hide_the_charge(tmp_path: Path) -> None:
    locks_that_stay(tmp_path)


def test_tests_notice_when_a_lock_that_stays_hides_the_charge(tmp_path: Path) -> None:
    must_notice(locks_that_stay, tmp_path, output_lock, "_removed", lambda lock: lock.unlink(missing_ok=True))


def no_guarantee_after_the_charge(folder: Path) -> None:
    """Whatever is raised then: exit code 1 would say that nothing was charged."""
    home = place(folder)
    for error in (
        NoGuaranteeError("no such number"),
        RunsLockedError("locked"),
        MemoryError(),
        KeyError("name"),
        OSError(5, ""),
    ):

        def fails(*_: object, error: BaseException = error, **__: object) -> None:
            raise error

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(releasing, "publish", fails)
            before = charges(home / "portfolio")
            result = ran(*asked("merge", home))
        assert charges(home / "portfolio") == before + 1
        assert result.exit_code == 2, result.output
        assert isinstance(result.exception, SystemExit)
        assert NOTE in result.stderr
        with Ledger.open(home / "portfolio" / LEDGER_NAME) as ledger:
            recover.abandon(ledger, pending(home / "portfolio")[0].release_id)


def test_an_error_after_the_charge_exits_with_2_and_says_that_it_is_charged(tmp_path: Path) -> None:
    no_guarantee_after_the_charge(tmp_path)


def test_tests_notice_when_the_exit_code_forgets_the_charge(tmp_path: Path) -> None:
    must_notice(no_guarantee_after_the_charge, tmp_path, terminal, "is_charged", lambda error: False)


def a_last_witness_that_fails(folder: Path) -> None:
    """The model is out; the portfolio could not be told."""
    home = place(folder)
    write, written = witnessing.write_atomically, []

    def fails(path: Path, content: bytes) -> None:
        written.append(path)
        if (home / "new").exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(path, content)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(witnessing, "write_atomically", fails)
        result = ran(*asked("merge", home))
    assert len(written) > 1
    assert ran("verify", home / "new", "--portfolio", home / "portfolio").exit_code == 0
    assert pending(home / "portfolio") == []
    assert result.exit_code == 2
    assert f"is out, in {home / 'new'}: {OUT}" in result.stderr


def test_an_unwritable_last_witness_is_an_error_that_says_the_release_is_out(tmp_path: Path) -> None:
    a_last_witness_that_fails(tmp_path)


def test_tests_notice_when_an_unwritable_witness_does_not_say_the_release_is_out(tmp_path: Path) -> None:
    must_notice(a_last_witness_that_fails, tmp_path, charge_notes, "note_charge", lambda *_: None)


def test_recovery_with_an_unwritable_witness_calls_the_release_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = place(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(publish, "build", _full)
        assert ran(*asked("merge", home)).exit_code == 2
    monkeypatch.setattr(recover, "witness", lambda *_: _full())
    result = ran("ledger", "recover", home / "portfolio")
    assert result.exit_code == 2
    assert "finished: " in result.output
    assert "still pending" not in result.output
    assert pending(home / "portfolio") == []


def test_a_pending_release_whose_output_folder_is_gone_can_be_abandoned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = place(tmp_path)
    (home / "outputs").mkdir()
    with monkeypatch.context() as patched:
        patched.setattr(publish, "build", _full)
        assert ran("merge", home / "portfolio", *WEIGHTS, "-o", home / "outputs" / "new").exit_code == 2
    shutil.rmtree(home / "outputs")
    (left,) = pending(home / "portfolio")
    result = ran("ledger", "recover", home / "portfolio")
    assert (result.exit_code, "still pending: " in result.output) == (2, True)
    assert ran("ledger", "recover", home / "portfolio", "--abandon", left.release_id).exit_code == 0
    assert pending(home / "portfolio") == []


def no_locks(code: int) -> Callable[..., None]:
    def flock(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    return flock


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_named_and_nothing_is_charged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    home = place(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "flock", no_locks(code))
        with within(20):
            result = ran(*asked("merge", home))
    assert result.exit_code == 2
    assert "output: cannot lock " in result.stderr
    assert "a disk whose file system locks files" in result.stderr
    assert charges(home / "portfolio") == 1


def locks_that_fail_while_staging(folder: Path) -> None:
    """It made one folder after the other, for ever: a lock that cannot be had was taken for somebody else's."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(fcntl, "flock", no_locks(errno.ENOLCK))
        with within(5), pytest.raises(CannotWriteError, match="locks files"), staging.StagedFolder(folder / "out"):
            pass
    assert list(folder.iterdir()) == []


def test_staging_on_a_file_system_without_locks_is_refused(tmp_path: Path) -> None:
    locks_that_fail_while_staging(tmp_path)


def test_tests_notice_when_staging_tries_for_ever(tmp_path: Path) -> None:
    tried: list[int] = []

    def of_somebody_else(descriptor: int) -> bool:
        tried.append(descriptor)
        assert len(tried) < 100, "it tries for ever"
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        return False

    must_notice(locks_that_fail_while_staging, tmp_path, staging, "try_lock", of_somebody_else)


SAID = ("--adjacency", "add_remove", "--sampling", "poisson", "--public-divisor", "--noise-source", "unknown")
NEW = ("import", "{}/fresh", "--start", "random", "--who", "Ann", *SAID)
NO_TEXT = os.fsdecode(b"caf\xe9")


class TestPathsThatAreNotUtf8:
    """A name in Latin-1, as an old archive leaves it."""

    @pytest.mark.parametrize(
        "arguments",
        [
            ("merge", "{}/portfolio", *WEIGHTS, "-o", "{}/N"),
            ("merge", "{}/portfolio", *WEIGHTS, "-o", "{}/new", "--ledger", "{}/N"),
            ("merge", "{}/portfolio", *WEIGHTS, "-o", "{}/new", "--key", "{}/N"),
            ("merge", "{}/portfolio", *WEIGHTS[:4], "--weights", "N=1", "-o", "{}/new"),
            ("merge", "{}/portfolio", *WEIGHTS[:4], "--plan", "N", "-o", "{}/new"),
            ("merge", "{}/portfolio", *WEIGHTS, "-o", "{}/new", "--donor", "N"),
            ("merge", "{}/N", *WEIGHTS, "-o", "{}/new"),
            ("verify", "{}/N"),
            ("verify", "{}/out", "--portfolio", "{}/N"),
            ("inspect", "{}/N"),
            ("account", "{}/N"),
            ("audit", "{}/N"),
            ("ledger", "show", "{}/N"),
            ("ledger", "show", "--ledger", "{}/N"),
            ("ledger", "cap", "{}/portfolio", "--epsilon", 2, "--delta", 1e-5, "--ledger", "{}/N"),
            ("ledger", "recover", "{}/portfolio", "--adopt", "{}/N"),
            ("ledger", "recover", "{}/portfolio", "--abandon", "N"),
            ("manifest", "check", "{}/N"),
            (*NEW, "--run", "N", "--dataset", "adult"),
            (*NEW, "--run", "a", "--dataset", "N"),
            ("plan", "{}/portfolio", "--epsilon", 50, "--delta", 1e-5, "--evaluator", "linear:{}/N"),
        ],
    )  # fmt: skip
    def test_a_path_that_is_not_utf8_is_an_error_and_nothing_is_charged(
        self, tmp_path: Path, arguments: tuple[object, ...]
    ) -> None:
        home = place(tmp_path)
        (home / "fresh").mkdir()
        (home / "fresh" / "history.json").write_text(json.dumps({"history": [[1.0, 0.01, 10]], "mechanism": "rdp"}))
        result = ran(*(str(each).replace("{}", str(home)).replace("N", NO_TEXT) for each in arguments))
        assert isinstance(result.exception, SystemExit), repr(result.exception)
        assert result.exit_code == 2, result.output
        assert result.stderr.startswith("error: ")
        assert charges(home / "portfolio") == 1
        assert not (home / "new").exists()

    def test_a_request_key_that_is_not_utf8_is_charged_once_or_refused(self, tmp_path: Path) -> None:
        home = place(tmp_path)
        result = ran(*asked("merge", home), "--request-key", NO_TEXT)
        assert result.exit_code in (0, 2), repr(result.exception)
        assert charges(home / "portfolio") == (2 if result.exit_code == 0 else 1)

    def test_an_output_in_a_folder_that_is_not_utf8_is_verified(self, tmp_path: Path) -> None:
        home = place(tmp_path)
        moved = (home / "out").rename(home / NO_TEXT)
        assert ran("verify", moved, "--portfolio", home / "portfolio").exit_code == 0
        assert json.loads(ran("verify", moved, "--json").stdout)["verified"]
        (moved / NO_TEXT).write_text("")
        ran("verify", moved)  # in one way or the other, without a traceback
        assert "caf\\udce9" in ran("verify", moved).output

    def test_a_run_with_a_file_that_is_not_utf8_is_inspected_and_released(self, tmp_path: Path) -> None:
        home = place(tmp_path)
        (home / "portfolio" / "a" / NO_TEXT).write_text("")
        assert ran("inspect", home / "portfolio").exit_code == 0
        assert ran(*asked("merge", home)).exit_code == 0


@pytest.mark.parametrize("name", ["x" * 200 + "/" + "y" * 200 + "/" + "z" * 200, "a\nb"])
def test_a_path_that_cannot_be_written_down_is_refused_before_the_charge(tmp_path: Path, name: str) -> None:
    """It was a traceback of the library that checks what is written down."""
    home = place(tmp_path)
    (home / name).parent.mkdir(parents=True, exist_ok=True)
    result = ran("merge", home / "portfolio", *WEIGHTS, "-o", home / name)
    assert result.exit_code == 2
    assert "accepted: a path in UTF-8 without control characters, of at most 500 characters" in result.stderr
    assert charges(home / "portfolio") == 1


def test_a_long_list_of_weights_with_a_request_key_is_charged_once(tmp_path: Path) -> None:
    """Weights of a hundred runs are more than a line; asked again in the same words it is the same release."""
    home = place(tmp_path)
    weights = "a@20=0.25" + "0" * 600 + ",b@20=0.75"
    again = ("merge", home / "portfolio", *WEIGHTS[:4], "--weights", weights, "--request-key", "k", "-o", home / "new")
    for _ in range(2):
        result = ran(*again)
        assert result.exit_code == 0, result.output
    assert charges(home / "portfolio") == 2


class TestStandardOutput:
    """A release that is out, and cannot be shown."""

    def merged(self, home: Path, stdout: Any) -> subprocess.CompletedProcess[str]:
        source = str(Path(dpmerge.__file__).parents[1])
        program = [sys.executable, "-c", "from dpmerge.cli import app; app()"]
        return subprocess.run(
            [*program, *asked("merge", home)],
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": source},
        )

    def test_standard_output_on_a_full_disk_is_an_error_that_says_the_release_is_out(self, tmp_path: Path) -> None:
        home = place(tmp_path)
        with Path("/dev/full").open("w") as full:
            ended = self.merged(home, full)
        assert ended.returncode == 2
        assert "No space left on device" in ended.stderr
        assert OUT in ended.stderr
        assert "Traceback" not in ended.stderr
        assert "Exception ignored" not in ended.stderr
        assert ran("verify", home / "new").exit_code == 0

    def test_standard_output_that_nobody_reads_exits_with_141_and_says_the_release_is_out(self, tmp_path: Path) -> None:
        home = place(tmp_path)
        reading, writing = os.pipe()
        os.close(reading)
        ended = self.merged(home, writing)
        os.close(writing)
        assert ended.returncode == 141
        assert OUT in ended.stderr
        assert "Exception ignored" not in ended.stderr


def test_a_failing_rename_is_an_error_that_says_the_release_is_charged(tmp_path: Path) -> None:
    home = place(tmp_path)
    planned = average(loaded(home / "portfolio"))
    with failing(home, "rename", 0), pytest.raises(CannotWriteError) as raised:
        release(planned, out=home / "new")
    assert is_charged(raised.value)
    assert NOTE in raised.value.__notes__[0]
