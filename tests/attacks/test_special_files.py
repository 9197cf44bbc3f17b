"""Pipes and files of holes where a model, a card, a salt, a witness or a record should be: an answer, and no waiting.

Claimed by the attack: a file. True: something that never ends, and kept whoever opened it waiting for ever.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from attacks.faults import must_notice
from attacks.places import WEIGHTS, charges, forget, pipe, place, ran, within
from dpmerge import files
from dpmerge.certificate.dsse import CERTIFICATE_NAME
from dpmerge.certificate.output_files import require_plausible
from dpmerge.files import file_digest, open_regular
from dpmerge.releasing.commitment_salt import SALT_NAME
from dpmerge.releasing.ledger_location import LEDGER_NAME, WITNESS_NAME

SECONDS = 10.0
HUGE = 300 * 2**30
"""Bytes, of which a few are on disk: hashed, at a gigabyte a second, for five minutes."""


@pytest.fixture(scope="module", autouse=True)
def _clean() -> Iterator[None]:
    yield
    forget()


VERIFY = ("verify", "{}/out", "--portfolio", "{}/portfolio", "--key", "{}/key.pub")
MERGE = ("merge", "{}/portfolio", *WEIGHTS, "-o", "{}/new", "--key", "{}/key")
PIPES: dict[str, tuple[str, tuple[object, ...], int]] = {
    "a model": ("out/model.safetensors", VERIFY, 1),
    "a card": ("out/README.md", VERIFY, 1),
    "a configuration": ("out/config.json", VERIFY, 1),
    "a certificate": (f"out/{CERTIFICATE_NAME}", VERIFY, 2),
    "the salt, verified": (f"portfolio/{SALT_NAME}", VERIFY, 1),
    "the salt, released": (f"portfolio/{SALT_NAME}", MERGE, 2),
    "a public key": ("key.pub", VERIFY, 2),
    "a private key": ("key", MERGE, 2),
    "a witness": (f"portfolio/{WITNESS_NAME}", MERGE, 2),
    "a run's witness": (f"portfolio/a/{WITNESS_NAME}", MERGE, 2),
    "the ledger": (f"portfolio/{LEDGER_NAME}", MERGE, 2),
    "the ledger's journal": (f"portfolio/{LEDGER_NAME}-journal", MERGE, 2),
    "the ledger's journal, shown": (f"portfolio/{LEDGER_NAME}-journal", ("ledger", "show", "{}/portfolio"), 2),
    "the ledger's log": (f"portfolio/{LEDGER_NAME}-wal", ("ledger", "show", "{}/portfolio"), 2),
    "a record": ("portfolio/a/privacy.json", ("manifest", "check", "{}/portfolio/a/privacy.json"), 2),
    "a checkpoint, read": ("portfolio/a/step-20.safetensors", ("inspect", "{}/portfolio"), 2),
    "a checkpoint, released": ("portfolio/a/step-20.safetensors", MERGE, 2),
    "a plan": ("plan.json", ("merge", "{}/portfolio", "--plan", "{}/plan.json", "-o", "{}/new"), 2),
    "a specification": ("spec.json", ("account", "{}/spec.json"), 2),
    "a listing": ("portfolio/portfolio.yaml", ("inspect", "{}/portfolio/portfolio.yaml"), 2),
    "a history": ("fresh/history.json", ("import", "{}/fresh", "--run", "a", "--dataset", "b"), 2),
    "a pickle": ("fresh/model.pt", ("import", "{}/fresh", "--allow-pickle", "--dataset", "b"), 2),
    "examples": ("x.npz", ("plan", "{}/portfolio", *WEIGHTS[:4], "--evaluator", "linear:{}/x.npz"), 2),
    "trusted keys": ("keys.yaml", ("verify", "{}/out", "--trusted-keys", "{}/keys.yaml"), 2),
    "a release to attack": (f"out/{CERTIFICATE_NAME}", ("audit", "{}/out"), 2),
}
"""What is a pipe → where it is, what is asked, and how that ends."""


def a_pipe(name: str) -> Callable[[Path], None]:
    where, asked, code = PIPES[name]

    def attack(folder: Path) -> None:
        home = place(folder)
        before = charges(home / "portfolio") if where != f"portfolio/{LEDGER_NAME}" else 1
        (home / where).parent.mkdir(exist_ok=True)
        pipe(home / where)
        with within(SECONDS):
            result = ran(*(str(each).replace("{}", str(home)) for each in asked))
        assert result.exit_code == code, result.output
        assert result.exception is None or isinstance(result.exception, SystemExit)
        if LEDGER_NAME in where:
            (home / where).unlink()
        if where != f"portfolio/{LEDGER_NAME}":
            assert charges(home / "portfolio") == before
        assert not (home / "new").exists()

    return attack


@pytest.mark.parametrize("name", PIPES)
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path, name: str) -> None:
    a_pipe(name)(tmp_path)


def opened_the_usual_way(path: str | Path) -> int:
    """Waits for a writer, and asks nothing; who waits for it is told after a second."""
    signal.setitimer(signal.ITIMER_REAL, 1.0)
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def test_tests_notice_when_opening_a_pipe_waits(tmp_path: Path) -> None:
    must_notice(a_pipe("a card"), tmp_path, files, "regular_descriptor", opened_the_usual_way)


def sparse(path: Path, start: bytes = b"") -> None:
    """A file of holes after its first bytes."""
    path.write_bytes(start)
    os.truncate(path, HUGE)


def weights_header(size: int) -> bytes:
    """The first bytes of a safetensors file whose one tensor fills a file of that size."""
    values = (size - 8 - 200) // 4
    header = json.dumps({"w": {"dtype": "F32", "shape": [values], "data_offsets": [0, 4 * values]}}).encode()
    return (200).to_bytes(8, "little") + header.ljust(200)


def a_model_of_holes(folder: Path) -> None:
    """Its header fits its size, and the certificate may be of version 1, which says nothing of sizes."""
    model = place(folder) / "out" / "model.safetensors"
    sparse(model, weights_header(HUGE))
    with within(SECONDS):
        result = ran("verify", folder / "out")
    assert result.exit_code == 1, result.output
    with within(SECONDS), pytest.raises(OSError, match="holes"):
        file_digest(model)


def test_a_model_of_holes_is_not_hashed_to_its_end(tmp_path: Path) -> None:
    a_model_of_holes(tmp_path)


def test_tests_notice_when_holes_are_hashed(tmp_path: Path) -> None:
    must_notice(a_model_of_holes, tmp_path, files, "regular_descriptor", opened_the_usual_way)


def test_a_model_whose_header_speaks_of_less_is_not_hashed_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the file system counts no blocks."""
    monkeypatch.setattr(files, "MOSTLY_HOLES", 10**15)
    model = tmp_path / "model.safetensors"
    sparse(model, weights_header(1000))
    with within(SECONDS), pytest.raises(OSError, match="not what its header says") as raised:
        require_plausible(model, model.stat().st_size)
    assert raised.value.errno == errno.EFBIG


def test_a_huge_file_that_is_no_model_is_not_hashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MOSTLY_HOLES", 10**15)
    sparse(tmp_path / "config.json", b"{}")
    with within(SECONDS), pytest.raises(OSError, match="more than a release has in such a file"):
        require_plausible(tmp_path / "config.json", (tmp_path / "config.json").stat().st_size)


def test_a_file_of_another_size_than_certified_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"weights")
    assert file_digest(file, 7) == file_digest(file)
    monkeypatch.setattr(files, "_PIECE", 0)  # nothing can be read any more
    with pytest.raises(OSError, match="7 bytes where 8 were certified"):
        file_digest(file, 8)


def test_a_file_that_grows_while_it_is_hashed_has_no_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"weights")

    def growing(path: str | Path) -> object:
        stream = open_regular(path)
        with file.open("ab") as more:
            more.write(b"more")
        return stream

    size = os.fstat
    monkeypatch.setattr(files, "open_regular", growing)
    monkeypatch.setattr(files.os, "fstat", lambda number: os.stat_result((*size(number)[:6], 7, *size(number)[7:])))
    with pytest.raises(OSError, match="changed while it was read"):
        file_digest(file)


def test_a_checkpoint_of_holes_is_refused_by_whoever_reads_it(tmp_path: Path) -> None:
    home = place(tmp_path)
    before = charges(home / "portfolio")
    sparse(home / "portfolio" / "a" / "step-20.safetensors", weights_header(HUGE))
    for asked in (("inspect", home / "portfolio"), ("merge", home / "portfolio", *WEIGHTS, "-o", home / "new")):
        with within(SECONDS):
            result = ran(*asked)
        assert result.exit_code == 2
        assert "nearly all of them holes" in result.stderr
    assert charges(home / "portfolio") == before


def test_a_device_is_refused_as_a_key(tmp_path: Path) -> None:
    home = place(tmp_path)
    (home / "key.pub").unlink()
    (home / "key.pub").symlink_to("/dev/zero")
    with within(SECONDS):
        result = ran("verify", home / "out", "--key", home / "key.pub")
    assert result.exit_code == 2
    assert "not a regular file" in result.stderr


def test_an_ordinary_file_is_read_as_before(tmp_path: Path) -> None:
    shutil.copyfile(__file__, tmp_path / "copy")
    with open_regular(tmp_path / "copy") as file:
        assert file.read() == Path(__file__).read_bytes()
    (tmp_path / "link").symlink_to(tmp_path / "copy")
    with open_regular(tmp_path / "link") as file:
        assert file.read(3) == b'"""'
