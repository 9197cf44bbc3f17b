"""Portfolios by URL: what is read of them, of which version, and what is refused."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
from soak.kills import average, draw_of_two, noised
from soak.object_store import SECRET_KEY, ObjectStore, upload_folder
from typer.testing import CliRunner

import dpmerge as dpm
from dpmerge.cli import app
from dpmerge.errors import CannotReadError, CheckpointError, DigestMismatchError, DpmergeError, InvalidInputError
from dpmerge.evaluation.evaluators import load_evaluator
from dpmerge.evaluation.linear_classifier import LinearClassifier
from dpmerge.files import OpenFile, open_regular
from dpmerge.merging import checkpoint_input
from dpmerge.remote.remote_path import RemotePath, location
from dpmerge.remote.stores import store_of

HEADERS = 6 * 2**16
"""Bytes that are asked for of six files of weights, whose headers are shorter."""


def remote(url: str | Path) -> RemotePath:
    path = location(url)
    assert isinstance(path, RemotePath)
    return path


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(words))
    return result.exit_code, result.output


@pytest.mark.parametrize("verb", [("inspect",), ("plan", "--epsilon", "2", "--delta", "1e-5")], ids=lambda v: v[0])
def test_inspect_and_plan_read_headers_alone(
    verb: tuple[str, ...], portfolio_url: str, object_store: ObjectStore
) -> None:
    code, output = run(verb[0], portfolio_url, *verb[1:])
    assert code == 0, output
    small = sum(int(str(r["sent"])) for r in object_store.requests() if str(r["path"]).endswith(".json"))
    assert HEADERS // 2 < object_store.bytes_read() <= HEADERS + small
    assert object_store.bytes_read() < 6 * 400_000 / 4


def test_what_is_merged_from_a_store_is_what_is_merged_from_a_disk(
    portfolio_url: str, models: Path, tmp_path: Path
) -> None:
    there, here = dpm.Portfolio.load(portfolio_url), dpm.Portfolio.load(shutil.copytree(models, tmp_path / "models"))
    assert not there.contents_read
    made = dpm.release(average(there), out=tmp_path / "there", ledger=tmp_path / "there.db")
    local = dpm.release(average(here), out=tmp_path / "here", ledger=tmp_path / "here.db")
    assert made.files == local.files
    found = dpm.verify(made.path, portfolio=portfolio_url, ledger=tmp_path / "there.db", rebuild=True)
    assert found.verified, found.problems
    assert {check.name for check in found.checks if check.passed} >= {"files", "commitments", "ledger", "rebuild"}


def test_nothing_but_the_output_is_written(portfolio_url: str, tmp_path: Path) -> None:
    loaded = dpm.Portfolio.load(portfolio_url)
    dpm.release(average(loaded), out=tmp_path / "out", ledger=tmp_path / "ledger.db")
    written = [path for path in tmp_path.rglob("*.safetensors") if path.parent.name != "out"]
    assert written == []


@pytest.mark.parametrize("wanted", [draw_of_two, noised], ids=["a draw of two", "release noise"])
def test_every_kind_of_release_is_made_from_a_store(wanted: object, portfolio_url: str, tmp_path: Path) -> None:
    loaded = dpm.Portfolio.load(portfolio_url)
    made = dpm.release(
        wanted(loaded),  # type: ignore[operator]
        out=tmp_path / "out",
        ledger=tmp_path / "ledger.db",
        final=wanted is noised,
    )
    found = dpm.verify(made.path, portfolio=portfolio_url, ledger=tmp_path / "ledger.db")
    assert found.verified, found.problems


@pytest.mark.parametrize("versions", [False, True], ids=["by its ETag", "by its version"])
def test_an_object_that_is_replaced_while_it_is_read_is_noticed(versions: bool, object_store: ObjectStore) -> None:
    path = object_store.bucket(f"changing-{int(versions)}-{os.urandom(3).hex()}", versions=versions) / "x"
    store = store_of(path)
    store.create(path, b"a" * 100)
    file = OpenFile(path)
    before = file.identity
    store.replace(path, b"b" * 100)
    assert not file.is_still(before)
    buffer = bytearray(100)
    if versions:  # it is still there, and is what is read
        assert file.read_at(memoryview(buffer), 0) == 100
        assert bytes(buffer) == b"a" * 100
    else:
        with pytest.raises(OSError, match="changed while it was read"):
            file.read_at(memoryview(buffer), 0)


@pytest.mark.parametrize("versions", [False, True], ids=["by its ETag", "by its version"])
def test_a_checkpoint_replaced_between_header_and_body_is_not_merged(
    versions: bool, object_store: ObjectStore, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = object_store.bucket(f"between-{int(versions)}-{os.urandom(3).hex()}", versions=versions)
    upload_folder(models, bucket)
    loaded = dpm.Portfolio.load(bucket)
    known = checkpoint_input.require_known

    def replaced(checkpoint: object, path: Path, header: object) -> None:
        known(checkpoint, path, header)  # type: ignore[arg-type]
        content = open_regular(path).read()
        store_of(remote(path)).replace(remote(path), content[:-4] + bytes(4))

    monkeypatch.setattr(checkpoint_input, "require_known", replaced)
    with pytest.raises(CheckpointError, match="change"):
        dpm.release(average(loaded), out=tmp_path / "out", ledger=tmp_path / "ledger.db")
    assert not (tmp_path / "out").exists()


def test_weights_that_are_not_those_recorded_are_not_merged(portfolio_url: str, tmp_path: Path) -> None:
    path = remote(portfolio_url) / "a" / "step-20.safetensors"
    content = open_regular(path).read()
    loaded = dpm.Portfolio.load(portfolio_url)
    store_of(path).replace(path, content[:-4] + bytes(4))
    with pytest.raises(DigestMismatchError):
        dpm.release(average(loaded), out=tmp_path / "out", ledger=tmp_path / "ledger.db")
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_pinned_is_refused() -> None:
    path = remote("memory://models/x.safetensors")
    store_of(path).replace(path, b"abc")
    with pytest.raises(OSError, match="neither a version nor a strong ETag"):
        OpenFile(path)


def test_an_unknown_scheme_and_an_absent_portfolio_are_errors_of_one_line(bucket: RemotePath) -> None:
    for url, words in ((str(bucket / "nothing"), "no such folder"), ("nonsense://x/y", "nothing here can read")):
        code, output = run("inspect", url)
        assert code == 2
        assert words in " ".join(output.split())


SECRET_URLS = ("s3://user:hunter2@models/x", "s3://hunter2@models/x", "s3://models/x?token=hunter2", "s3://m/x#hunter2")


@pytest.mark.parametrize("url", [*SECRET_URLS, "simplecache::s3://m/hunter2", "s3://m/../hunter2", "s3:///hunter2"])
@pytest.mark.parametrize("verb", ["inspect", "verify"])
def test_urls_with_secrets_or_that_lead_nowhere_are_refused_and_not_repeated(verb: str, url: str) -> None:
    code, output = run(verb, url)
    assert code == 2
    if url in SECRET_URLS:
        assert "hunter2" not in output
        assert "scheme://bucket/key" in output


def test_a_portfolio_in_a_store_needs_a_ledger_that_is_named(portfolio_url: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="nothing can be locked"):
        dpm.release(average(dpm.Portfolio.load(portfolio_url)), out=tmp_path / "out")
    words = ("--epsilon", "9", "--delta", "1e-5", "-o", str(tmp_path / "out"))
    code, output = run("merge", portfolio_url, *words)
    assert code == 2
    assert "DPMERGE_LEDGER" in output
    assert not (tmp_path / "out").exists()


def test_salts_and_what_the_ledger_knows_stay_out_of_the_store(
    portfolio_url: str, object_store: ObjectStore, tmp_path: Path
) -> None:
    before = store_of(remote(portfolio_url)).files(remote(portfolio_url))
    dpm.release(average(dpm.Portfolio.load(portfolio_url)), out=tmp_path / "out", ledger=tmp_path / "ledger.db")
    assert store_of(remote(portfolio_url)).files(remote(portfolio_url)) == before
    assert {r["method"] for r in object_store.requests()} <= {"GET", "HEAD"}
    kept = [path for path in (tmp_path / "private").rglob("*") if path.is_file()]
    assert {path.name for path in kept} >= {".commitment-salt", ".ledger-witness"}
    assert all(path.stat().st_mode & 0o077 == 0 for path in kept)
    with pytest.raises(DpmergeError, match="name that one"):
        dpm.release(average(dpm.Portfolio.load(portfolio_url)), out=tmp_path / "two", ledger=tmp_path / "other.db")


def test_a_salt_that_lies_in_a_store_is_not_used_and_not_replaced(portfolio_url: str, tmp_path: Path) -> None:
    path = remote(portfolio_url) / ".commitment-salt"
    store_of(path).create(path, b"00" * 32)
    with pytest.raises(InvalidInputError, match="who may read it cannot be seen"):
        dpm.release(average(dpm.Portfolio.load(portfolio_url)), out=tmp_path / "out", ledger=tmp_path / "ledger.db")


def test_a_witness_that_came_along_is_heeded(models: Path, object_store: ObjectStore, tmp_path: Path) -> None:
    home = shutil.copytree(models, tmp_path / "models")
    dpm.release(average(dpm.Portfolio.load(home)), out=tmp_path / "first")
    (home / ".commitment-salt").unlink()
    (home / "privacy-ledger.sqlite").unlink()
    bucket = object_store.bucket(f"moved-{os.urandom(3).hex()}")
    upload_folder(home, bucket)
    with pytest.raises(DpmergeError, match="was charged to"):
        dpm.release(average(dpm.Portfolio.load(bucket)), out=tmp_path / "second", ledger=tmp_path / "new.db")


def test_plans_are_written_and_read_by_url(portfolio_url: str, bucket: RemotePath, tmp_path: Path) -> None:
    url = str(bucket / "plans" / "first.json")
    code, output = run(
        "plan", portfolio_url, "--epsilon", "2", "--delta", "1e-5", "-o", url, "--theorem", "joint_release"
    )
    assert code == 0, output
    assert f"Saved to {url}" in output.replace("\n", "")
    ledger = str(tmp_path / "ledger.db")
    code, output = run("merge", portfolio_url, "--plan", url, "-o", str(tmp_path / "out"), "--ledger", ledger, "--json")
    assert code == 0, output
    assert dpm.verify(tmp_path / "out").verified
    private = bucket / "notes.txt"
    store_of(private).create(private, b"not a plan")
    code, output = run("plan", portfolio_url, "--epsilon", "2", "--delta", "1e-5", "-o", str(private))
    assert code == 2
    assert open_regular(private).read() == b"not a plan"


def test_public_data_of_an_evaluator_is_read_by_its_url(bucket: RemotePath) -> None:
    content = io.BytesIO()
    np.savez(content, features=np.ones((3, 2), np.float32), labels=np.array([0, 1, 0]))
    path = remote(bucket / "public.npz")
    store_of(path).create(path, content.getvalue())
    assert isinstance(load_evaluator(f"linear:{path}"), LinearClassifier)


def test_a_store_that_fails_is_an_error_without_its_words(
    portfolio_url: str, object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    for status, words in ((403, "does not allow"), (404, "no such folder"), (412, "store failed")):
        object_store.fail(method=None, part="", status=status)
        code, output = run("inspect", portfolio_url)
        object_store.mend()
        assert code == 2, output
        assert words in " ".join(output.split()) or status == 412
        assert SECRET_KEY not in output
        assert "Traceback" not in output


def test_the_secret_key_is_written_nowhere(portfolio_url: str, tmp_path: Path) -> None:
    ledger = str(tmp_path / "ledger.db")
    words = ("--epsilon", "9", "--delta", "1e-5", "--ledger", ledger, "--json")
    code, printed = run("merge", portfolio_url, *words, "-o", str(tmp_path / "out"))
    assert code == 0, printed
    code, shown = run("ledger", "show", portfolio_url, "--ledger", ledger, "--json")
    assert code == 0, shown
    assert json.loads(shown)
    for text in (printed, shown, *(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())):
        raw = text if isinstance(text, bytes) else text.encode()
        assert SECRET_KEY.encode() not in raw


def test_a_remote_path_is_never_taken_for_a_local_one() -> None:
    path = remote("s3://bucket/a//b/c.json")
    assert str(path) == "s3://bucket/a/b/c.json"
    assert pickle.loads(pickle.dumps(path)) == path  # noqa: S301
    assert isinstance(pickle.loads(pickle.dumps(path)), RemotePath)  # noqa: S301
    assert location(Path("s3://bucket/a")) == location("s3://bucket/a")
    for use in (os.fspath, open, os.stat, lambda p: p.write_text("x"), lambda p: p.mkdir(), lambda p: p.unlink()):
        with pytest.raises(OSError, match="is a URL"):
            use(path)


def test_a_store_that_does_not_answer_is_not_an_empty_one(portfolio_url: str, object_store: ObjectStore) -> None:
    object_store.fail(method="HEAD", part="privacy.json", status=403)
    with pytest.raises(CannotReadError):
        dpm.Portfolio.load(portfolio_url)
