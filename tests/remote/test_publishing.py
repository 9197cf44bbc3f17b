"""Releases published to a store: whole or unfinished, charged before, the same bytes however often it is tried."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from soak.kills import Child, Ended, average, draw_of_two, noised
from soak.object_store import SECRET_KEY, ObjectStore, downloaded
from typer.testing import CliRunner

import dpmerge as dpm
from dpmerge.certificate.dsse import CERTIFICATE_NAME
from dpmerge.cli import app
from dpmerge.errors import CannotWriteError, InvalidInputError
from dpmerge.executors import open_executor
from dpmerge.ledger.ledger import Ledger
from dpmerge.merging.recipe_files import build
from dpmerge.merging.staging import StagedFolder
from dpmerge.releasing import remote_output
from dpmerge.releasing.recover import abandon, recover
from dpmerge.remote import s3_store
from dpmerge.remote.remote_path import RemotePath
from dpmerge.remote.s3_store import S3Store
from dpmerge.remote.stores import store_of


@pytest.fixture
def home(models: Path, tmp_path: Path) -> Path:
    return shutil.copytree(models, tmp_path / "models")


@pytest.fixture
def out(bucket: RemotePath) -> RemotePath:
    path = bucket / "published" / "model"
    assert isinstance(path, RemotePath)
    return path


def released(home: Path, out: Path, wanted: Callable[..., dpm.Plan] = average, **options: Any) -> Any:
    plan = wanted(dpm.Portfolio.load(home, contents=False))
    return dpm.release(plan, out=out, final=wanted is noised, **options)


def beside(out: RemotePath) -> list[str]:
    """What is in the folder that the prefix is in, but for the prefix."""
    assert isinstance(out.parent, RemotePath)
    return [name for name in store_of(out).files(out.parent) if not name.startswith(f"{out.name}/")]


def staged(tmp_path: Path) -> list[str]:
    folder = tmp_path / "private" / "staging"
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


@pytest.mark.parametrize("wanted", [average, draw_of_two, noised], ids=["average", "draw", "noise"])
def test_a_release_is_published_and_verified_by_its_url(
    wanted: Callable[..., dpm.Plan], home: Path, out: RemotePath, tmp_path: Path
) -> None:
    made = released(home, out, wanted)
    assert str(made.path) == str(out)
    found = dpm.verify(str(out), portfolio=home, rebuild=wanted is not noised)
    assert found.verified, found.problems
    assert {*made.files, "README.md", CERTIFICATE_NAME} == set(downloaded(out))
    assert beside(out) == []
    assert staged(tmp_path) == []
    with Ledger.open(home / "privacy-ledger.sqlite") as ledger:
        charge = ledger.release(made.release_id)
        assert charge is not None
        assert charge.status == "completed"
        assert charge.output is not None
        assert charge.output.where == str(out)


def test_workers_read_from_a_store_and_make_a_release_for_one(
    portfolio_url: str, home: Path, out: RemotePath, tmp_path: Path
) -> None:
    """The bytes of one machine, from the same models on disk; an average, and one checkpoint as it is."""
    ledger = str(tmp_path / "ledger.db")
    with open_executor("processes:2") as executor:
        for place, wanted in enumerate((average, draw_of_two)):
            plan = wanted(dpm.Portfolio.load(portfolio_url, contents=False))
            made = dpm.release(plan, out=out / str(place), ledger=ledger, executor=executor, reveal_draw=True)
            found = dpm.verify(str(out / str(place)), portfolio=portfolio_url, ledger=ledger)
            assert found.verified, found.problems
            drawn = made.content.get("drawn") or 0
            recipe = wanted(dpm.Portfolio.load(home, contents=False)).terms.candidates[drawn].recipe
            (tmp_path / f"here-{place}").mkdir()
            built = build(dpm.Portfolio.load(home, contents=False), recipe, tmp_path / f"here-{place}")
            assert {file.name: file.sha256 for file in built.files} == dict(made.files)
    assert staged(tmp_path) == []


def test_the_certificate_is_the_last_object_and_nothing_is_sent_before_the_seal(
    home: Path, out: RemotePath, object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    object_store.forget()
    sealed: list[int] = []
    seal = Ledger.seal

    def noted(self: Ledger, *given: Any, **named: Any) -> None:
        sealed.append(len([r for r in object_store.requests() if r["method"] in ("PUT", "POST")]))
        seal(self, *given, **named)

    monkeypatch.setattr(Ledger, "seal", noted)
    released(home, out)
    sent = [str(r["path"]).rpartition("/")[2] for r in object_store.requests() if r["method"] in ("PUT", "POST")]
    assert sealed == [0]
    assert sent == [".model.claim", "config.json", "model.safetensors", "README.md", CERTIFICATE_NAME]


def test_everything_by_url_from_the_command_line(portfolio_url: str, out: RemotePath, tmp_path: Path) -> None:
    ledger = str(tmp_path / "ledger.db")
    words = ["merge", portfolio_url, "--epsilon", "9", "--delta", "1e-5", "--ledger", ledger, "-o", str(out)]
    made = CliRunner().invoke(app, words)
    assert made.exit_code == 0, made.output
    checked = CliRunner().invoke(app, ["verify", str(out), "--portfolio", portfolio_url, "--ledger", ledger])
    assert checked.exit_code == 0, checked.output
    for content in (
        *downloaded(out).values(),
        Path(ledger).read_bytes(),
        made.output.encode(),
        checked.output.encode(),
    ):
        assert SECRET_KEY.encode() not in content


def test_a_prefix_without_certificate_is_unfinished(home: Path, out: RemotePath) -> None:
    released(home, out)
    store_of(out).remove(out / CERTIFICATE_NAME)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="unfinished"):
        dpm.verify(str(out))


@pytest.mark.parametrize("change", ["a byte", "an object more", "an object less"])
def test_a_published_release_that_was_changed_does_not_verify(change: str, home: Path, out: RemotePath) -> None:
    released(home, out)
    store, file = store_of(out), out / "model.safetensors"
    assert isinstance(file, RemotePath)
    if change == "a byte":
        store.replace(file, downloaded(out)["model.safetensors"][:-1] + b"\x01")
    elif change == "an object more":
        store.create(out / "deeper" / "extra.bin", b"x")  # type: ignore[arg-type]
    else:
        store.remove(file)
    found = dpm.verify(str(out))
    assert not found.verified
    if change == "an object more":
        assert dpm.verify(str(out), allow_extra=["deeper"]).verified


def test_what_is_in_the_way_is_refused_before_anything_is_charged(
    home: Path, out: RemotePath, bucket: RemotePath, tmp_path: Path
) -> None:
    store_of(out).create(out / "notes.txt", b"mine")  # type: ignore[arg-type]
    places: list[tuple[Path | str, str, dict[str, Any]]] = [
        (out, "not empty", {}),
        (bucket / "other", "one step", {"overwrite": True}),
        (str(bucket), "within a bucket", {}),
        ("memory://somewhere/model", "only where there is none", {}),
        ("hf://lab/model/x", "only where there is none", {}),
    ]
    for place, words, options in places:
        with pytest.raises(CannotWriteError, match=words):
            released(home, place, **options)  # type: ignore[arg-type]
    assert not (home / "privacy-ledger.sqlite").exists()
    assert downloaded(out) == {"notes.txt": b"mine"}


def test_a_prefix_within_the_portfolio_is_refused(portfolio_url: str, tmp_path: Path) -> None:
    loaded = dpm.Portfolio.load(portfolio_url)
    with pytest.raises(CannotWriteError, match="overlaps"):
        dpm.release(average(loaded), out=f"{portfolio_url}/merged", ledger=tmp_path / "ledger.db")
    assert not (tmp_path / "ledger.db").exists()


def test_of_two_who_publish_to_one_prefix_one_does(
    home: Path, out: RemotePath, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other comes with a ledger of its own, and after the first has looked: no file of it appears."""
    claim = remote_output._claim
    other = shutil.copytree(models, tmp_path / "other")
    second: list[Any] = []

    def second_comes_first(store: Any, prefix: RemotePath, release_id: str) -> None:
        monkeypatch.setattr(remote_output, "_claim", claim)
        second.append(released(other, prefix, draw_of_two))
        claim(store, prefix, release_id)

    monkeypatch.setattr(remote_output, "_claim", second_comes_first)
    # On one machine the lock keeps them apart; on two there is no lock to share.
    monkeypatch.setattr("dpmerge.releasing.release.lock_place", lambda _: tmp_path / os.urandom(4).hex())
    with pytest.raises(CannotWriteError) as caught:
        released(home, out)
    assert "not of this release" in str(caught.value)
    assert dpm.verify(str(out), portfolio=other).verified
    assert dpm.verify(str(out)).files == second[0].files


def test_a_foreign_claim_is_respected(home: Path, out: RemotePath) -> None:
    remote_output._claim(store_of(out), out, "another")
    with pytest.raises(CannotWriteError, match="another is being published"):
        released(home, out)
    assert downloaded(out) == {}


@pytest.mark.parametrize("part", ["model.safetensors", "README.md", CERTIFICATE_NAME, ".model.claim"])
def test_a_store_that_fails_leaves_a_release_that_recovery_finishes(
    part: str, home: Path, out: RemotePath, object_store: ObjectStore, tmp_path: Path
) -> None:
    object_store.fail(method="PUT", part=part, status=403)
    with pytest.raises(CannotWriteError) as caught:
        released(home, out, noised)
    assert "`dpmerge ledger recover` finishes it" in "".join(caught.value.__notes__)
    assert SECRET_KEY not in str(caught.value) + "".join(caught.value.__notes__)
    assert CERTIFICATE_NAME not in downloaded(out)
    kept = next((tmp_path / "private" / "staging").glob("*/model.safetensors")).read_bytes()
    object_store.mend()
    with Ledger.open(home / "privacy-ledger.sqlite") as ledger:
        assert [each.problem for each in recover(ledger)] == [None]
        assert not ledger.pending()
    assert downloaded(out)["model.safetensors"] == kept, "noise was drawn again"
    assert dpm.verify(str(out), portfolio=home).verified
    assert (beside(out), staged(tmp_path)) == ([], [])


def test_a_release_that_is_given_up_leaves_nothing(
    home: Path, out: RemotePath, object_store: ObjectStore, tmp_path: Path
) -> None:
    object_store.fail(method="PUT", part=CERTIFICATE_NAME, status=403)
    with pytest.raises(CannotWriteError):
        released(home, out)
    object_store.mend()
    assert len(downloaded(out)) == 3
    with Ledger.open(home / "privacy-ledger.sqlite") as ledger:
        [pending] = ledger.pending()
        abandon(ledger, pending.release_id)
        assert not ledger.pending()
    assert (downloaded(out), beside(out), staged(tmp_path)) == ({}, [], [])
    released(home, out)


def test_nothing_is_withdrawn_before_a_second_person_agrees_and_what_is_left_can_be_removed_later(
    home: Path, out: RemotePath, object_store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ann", "bob"):
        made = CliRunner().invoke(app, ["keygen", "-o", str(tmp_path / f"{name}.pem")])
        assert made.exit_code == 0, made.output
    object_store.fail(method="PUT", part=CERTIFICATE_NAME, status=403)
    with pytest.raises(CannotWriteError):
        released(home, out)
    object_store.mend()
    people = {name: tmp_path / f"{name}.pem.pub" for name in ("ann", "bob")}
    with dpm.Ledger.of(home) as ledger:
        ledger.change_policy(approvals=2, people=people)
        [pending] = ledger.pending()
        before = downloaded(out)
        assert before
        [waiting] = ledger.recover(abandon=[pending.release_id], requester_key=tmp_path / "ann.pem")
        assert waiting.unsolved
        assert waiting.request is not None
        assert downloaded(out) == before
        ledger.approve(waiting.request, key=tmp_path / "bob.pem")

        def cut(*_: object) -> None:
            raise OSError("the connection is gone")

        with monkeypatch.context() as patch:
            patch.setattr(S3Store, "remove", cut)
            with pytest.raises(CannotWriteError):
                ledger.recover(abandon=[pending.release_id])
        assert not ledger.pending()
        assert downloaded(out) == before, "given up, and not removed yet"
        [done] = ledger.recover(abandon=[pending.release_id])
        assert done.outcome == "abandoned"
    assert (downloaded(out), beside(out), staged(tmp_path)) == ({}, [], [])


def test_recovery_from_the_command_line_where_portfolio_and_output_are_urls(
    portfolio_url: str, out: RemotePath, object_store: ObjectStore, tmp_path: Path
) -> None:
    ledger = ["--ledger", str(tmp_path / "ledger.db")]
    object_store.fail(method="PUT", part=CERTIFICATE_NAME, status=403)
    words = ["merge", portfolio_url, "--epsilon", "9", "--delta", "1e-5", "-o", str(out), *ledger]
    failed = CliRunner().invoke(app, words)
    assert failed.exit_code == 2
    assert "dpmerge ledger recover" in " ".join(failed.output.split())
    assert SECRET_KEY not in failed.output
    object_store.mend()
    for expected in ("finished", None):
        recovered = CliRunner().invoke(app, ["ledger", "recover", portfolio_url, *ledger])
        assert recovered.exit_code == 0, recovered.output
        assert expected is None or expected in recovered.output
    assert CliRunner().invoke(app, ["verify", str(out), "--portfolio", portfolio_url, *ledger]).exit_code == 0


def test_asked_again_by_its_key_a_release_is_handed_out_wherever_it_is_wanted(
    home: Path, out: RemotePath, bucket: RemotePath, tmp_path: Path
) -> None:
    first = released(home, out, noised, request_key="k")
    again = released(home, out, noised, request_key="k")
    assert again.already
    assert again.release_id == first.release_id
    released(home, tmp_path / "local", noised, request_key="k")
    copy = bucket / "copy"
    assert isinstance(copy, RemotePath)
    released(home, copy, noised, request_key="k")
    assert downloaded(copy) == downloaded(out)
    assert (tmp_path / "local" / "model.safetensors").read_bytes() == downloaded(out)["model.safetensors"]
    assert dpm.verify(tmp_path / "local", portfolio=home).verified
    assert staged(tmp_path) == []


def test_large_files_are_sent_in_parts_once_and_parts_of_the_dead_are_dropped(
    out: RemotePath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_store, "PART", 5 * 2**20)
    file, to, store = tmp_path / "large", out / "large", store_of(out)
    assert isinstance(to, RemotePath)
    file.write_bytes(os.urandom(11 * 2**20))
    bucket, _, key = to.key.partition("/")
    store.system.call_s3("create_multipart_upload", Bucket=bucket, Key=key)
    assert len(store.system.list_multipart_uploads(bucket)) == 1
    store.drop_unfinished(out)
    assert store.system.list_multipart_uploads(bucket) == []
    sent: list[int] = []
    store.upload(file, to, sent.append)
    assert len(sent) > 1
    assert sum(sent) == 11 * 2**20
    with pytest.raises(FileExistsError):
        store.upload(file, to, sent.append)
    assert store.system.list_multipart_uploads(bucket) == []
    assert downloaded(out)["large"] == file.read_bytes()


def die(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def dying(owner: Any, name: str, *, after: int, then: bool) -> Callable[[], None]:
    """Die at the call after so many: before it does its work, or when it has."""

    def install() -> None:
        original, calls = getattr(owner, name), [0]

        def called(*given: Any, **named: Any) -> Any:
            calls[0] += 1
            if calls[0] == after and not then:
                die()
            result = original(*given, **named)
            if calls[0] == after:
                die()
            return result

        setattr(owner, name, called)

    return install


def dying_while_it_tidies() -> None:
    """When a part of what was staged is gone."""

    def rmtree(place: Path, **_: object) -> None:
        (place / "README.md").unlink()
        die()

    remote_output.shutil = SimpleNamespace(rmtree=rmtree)  # type: ignore[assignment]


KILLS = {
    "charged": dying(Ledger, "charge", after=1, then=True),
    "merged": dying(Ledger, "seal", after=1, then=False),
    "sealed": dying(Ledger, "seal", after=1, then=True),
    "staged": dying(StagedFolder, "publish", after=1, then=True),
    "claimed": dying(S3Store, "create", after=1, then=True),
    "one file sent": dying(S3Store, "upload", after=1, then=True),
    "all files sent": dying(S3Store, "upload", after=4, then=False),
    "certificate sent": dying(S3Store, "upload", after=4, then=True),
    "claim removed": dying(S3Store, "remove", after=1, then=True),
    "half tidied": dying_while_it_tidies,
    "not noted": dying(Ledger, "complete", after=1, then=False),
    "noted": dying(Ledger, "complete", after=1, then=True),
}
OUT = ("certificate sent", "claim removed", "half tidied", "not noted", "noted")


@pytest.mark.parametrize(
    ("moment", "wanted"),
    [*((moment, noised) for moment in KILLS), *((moment, average) for moment in ("merged", "sealed", "one file sent"))],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_killed_at_any_moment_nothing_partial_and_nothing_uncharged(
    moment: str, wanted: Callable[..., dpm.Plan], home: Path, out: RemotePath, tmp_path: Path
) -> None:
    def work() -> None:
        KILLS[moment]()
        released(home, out, wanted)

    assert Child(work).ended() == Ended("killed")
    present = dict(downloaded(out))
    assert (CERTIFICATE_NAME in present) == (moment in OUT)
    with Ledger.open(home / "privacy-ledger.sqlite") as ledger:
        [name] = [entry.body["release"] for entry in ledger.entries() if entry.kind == "release"]
        list(recover(ledger))
        assert not ledger.pending()
        charge = ledger.release(name)
        assert charge is not None
        assert charge.status == "completed"
    found = dpm.verify(str(out), portfolio=home, rebuild=wanted is not noised)
    assert found.verified, found.problems
    after = downloaded(out)
    assert {name: after[name] for name in present} == present, "what could have been read was made again"
    assert (beside(out), staged(tmp_path)) == ([], [])


def test_the_commands_of_the_page_on_object_stores_do_what_they_say(
    portfolio_url: str, bucket: RemotePath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "object-stores.md").read_text()
    lines = [line for block in re.findall(r"```text\n(.*?)```", page, re.DOTALL) for line in block.splitlines()]
    assert len(lines) == 6
    for line in lines:
        said = line.replace("s3://lab/portfolio", portfolio_url).replace("s3://lab", str(bucket)).replace("0.8", "9")
        result = CliRunner().invoke(app, said.split()[1:])
        assert result.exit_code == 0, result.output
