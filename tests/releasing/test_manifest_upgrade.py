"""`dpmerge manifest upgrade`: what it adds, in whose name, and what it refuses to touch."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from base64 import b64decode
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blake3 import blake3
from safetensors.numpy import save_file
from typer.testing import CliRunner, Result

from dpmerge.cli import app
from dpmerge.errors import InvalidInputError, ManifestError
from dpmerge.ledger.identity import identity_of
from dpmerge.portfolio.manifest import Manifest
from dpmerge.portfolio.manifest_draft import recorded_files
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.releasing.manifest_upgrade import upgrade_manifests

WRITTEN = Path(__file__).parents[1] / "data" / "version_0_1"
DECIDED = {"stopping": "fixed", "schedule": "public", "record_losses": "vouched"}
SET = tuple(word for field, value in DECIDED.items() for word in ("--set", f"{field}={value}"))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A copy with the permissions it was written with, which git does not keep."""
    copied = shutil.copytree(WRITTEN, tmp_path / "models")
    for path in copied.rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600)
    return copied


@pytest.fixture
def fresh(home: Path) -> Path:
    """A portfolio of 0.1 of which nothing was ever released."""
    portfolio = home / "full-batch"
    for file in (portfolio / "privacy-ledger.sqlite", *portfolio.rglob(".ledger-witness")):
        file.unlink()
    return portfolio


def ran(*arguments: object) -> Result:
    return CliRunner().invoke(app, [*map(str, arguments)], env={"COLUMNS": "100", "DPMERGE_LEDGER": None})


def upgraded(*arguments: object) -> Result:
    return ran("manifest", "upgrade", *arguments, "--vouched-by", "Ann")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("privacy.json"))}


def lacks_nothing(said: Any, kept: Any) -> bool:
    if isinstance(said, dict):
        return all(name in kept and lacks_nothing(value, kept[name]) for name, value in said.items())
    if isinstance(said, list):
        return len(said) == len(kept) and all(map(lacks_nothing, said, kept))
    return bool(said == kept)


def test_an_upgrade_adds_the_stated_fields_by_name_and_changes_nothing_else(fresh: Path) -> None:
    before = contents(fresh)
    result = upgraded(fresh, *SET)
    assert result.exit_code == 0, result.output
    for name, old in before.items():
        new = json.loads((fresh / name).read_text())
        assert lacks_nothing(json.loads(old), new)
        assert {field: new[field] for field in DECIDED} == DECIDED
        assert new["tensors"]["tied"] == []
        assert new["amended"] == [{"by": "Ann", "fields": [*DECIDED, "tensors.tied"]}]
        added = set(new) - set(json.loads(old))
        assert added == {*DECIDED, "amended"}
        files = [file for saved in new["checkpoints"] for file in saved["files"]]
        assert {name for file in files for name in file} == {"name", "sha256", "blake3"}
    assert [run.id for run in Portfolio.load(fresh).runs] == list("abcde")


def test_an_upgraded_manifest_costs_what_it_cost(fresh: Path) -> None:
    before = Portfolio.load(fresh).everything().profile().epsilon(1e-5)
    assert upgraded(fresh, *SET).exit_code == 0
    assert Portfolio.load(fresh).everything().profile().epsilon(1e-5) == before


def test_a_manifest_that_lacks_nothing_stays_as_it_is_byte_for_byte(fresh: Path) -> None:
    assert upgraded(fresh, *SET).exit_code == 0
    before, times = contents(fresh), [path.stat().st_mtime_ns for path in fresh.rglob("privacy.json")]
    result = upgraded(fresh, *SET)
    assert result.exit_code == 0
    assert result.stdout.count("left as it is") == 5
    assert contents(fresh) == before
    assert [path.stat().st_mtime_ns for path in fresh.rglob("privacy.json")] == times


def test_certificates_name_who_vouched_for_what_was_stated_later(fresh: Path, tmp_path: Path) -> None:
    assert upgraded(fresh, *SET).exit_code == 0
    made = ran("merge", fresh, "--weights", "a@4=1", "--epsilon", "8", "--delta", "1e-5", "-o", tmp_path / "out")
    assert made.exit_code == 0, made.output
    found = ran("verify", tmp_path / "out", "--portfolio", fresh, "--json")
    assert json.loads(found.stdout)["verified"]
    envelope = json.loads((tmp_path / "out" / "privacy-certificate.json").read_text())
    assert "the recorder; Ann for stopping, schedule, record_losses" in b64decode(envelope["payload"]).decode()


def test_an_upgraded_manifest_keeps_the_voucher_of_what_was_recorded(home: Path) -> None:
    history = home / "sampled" / "history"
    (history / ".ledger-witness").unlink(missing_ok=True)
    alone = shutil.copytree(history, home / "alone" / "history")
    [done] = upgrade_manifests([alone], vouched_by="Bob", values=DECIDED)
    assert set(done.added) == {*DECIDED, "tensors.tied"}
    manifest = Manifest.read(alone / "privacy.json")
    assert manifest.recorded_by.who == "Ann"
    assert manifest.statement.recorded_by.who == "Ann; Bob for stopping, schedule, record_losses"


def test_an_upgrade_without_values_adds_only_what_the_weights_show(fresh: Path) -> None:
    result = upgraded(fresh / "a", "--json")
    [done] = json.loads(result.stdout)["manifests"]
    assert done["added"] == {"tensors.tied": []}
    assert done["unstated"] == ["stopping", "schedule", "record_losses"]
    assert Manifest.read(fresh / "a" / "privacy.json").statement.recorded_by.who is None


# BLAKE3


def blake3_recorded(run: Path) -> list[str | None]:
    return [file.blake3 for _, file in Manifest.read(run / "privacy.json").files()]


def test_blake3_is_computed_beside_the_recorded_sha256_and_nobody_vouches_for_it(fresh: Path) -> None:
    assert upgraded(fresh, *SET).exit_code == 0
    file = fresh / "a" / "privacy.json"
    wanted = [blake3((fresh / "a" / each.name).read_bytes()).hexdigest() for _, each in Manifest.read(file).files()]
    assert blake3_recorded(fresh / "a") == wanted
    document = json.loads(file.read_text())
    del document["checkpoints"][0]["files"][0]["blake3"]
    file.write_text(json.dumps(document))
    result = json.loads(upgraded(fresh, *SET, "--json").stdout)["manifests"]
    assert [(each["blake3"], each["added"], each["vouched_by"]) for each in result] == [
        (1, {}, None),
        *[(0, {}, None)] * 4,
    ]
    assert json.loads(file.read_text())["amended"] == document["amended"]
    assert blake3_recorded(fresh / "a") == wanted


def test_averages_get_their_blake3_too(fresh: Path) -> None:
    file = fresh / "a" / "privacy.json"
    document = json.loads(file.read_text())
    last = document["checkpoints"][-1]
    (fresh / "a" / "average.safetensors").write_bytes(content := (fresh / "b" / last["files"][0]["name"]).read_bytes())
    recorded = [{"name": "average.safetensors", "sha256": hashlib.sha256(content).hexdigest()}]
    last["averages"] = [{"name": "average", "files": recorded, "vouched_by": "Ann"}]
    file.write_text(json.dumps(document))
    [done] = upgrade_manifests([fresh / "a"], vouched_by="Ann")
    assert done.hashed == len(blake3_recorded(fresh / "a")) == 1 + len(document["checkpoints"])
    assert blake3_recorded(fresh / "a")[-1] == blake3(content).hexdigest()
    assert "added blake3 of" in str(done)


def test_without_the_package_an_upgrade_is_what_it_was(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "blake3", None)
    assert upgraded(fresh, *SET).exit_code == 0
    assert not any(blake3_recorded(fresh / "a"))
    before = contents(fresh)
    assert upgraded(fresh, *SET).stdout.count("left as it is") == 5
    assert contents(fresh) == before


def test_no_blake3_is_added_to_changed_weights(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as hidden:
        hidden.setitem(sys.modules, "blake3", None)
        assert upgraded(fresh, *SET).exit_code == 0
    before = contents(fresh)
    file = fresh / "a" / "step-4.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"\0")
    result = upgraded(fresh, *SET)
    assert result.exit_code == 2
    assert "checkpoints[1].files[0].sha256" in result.stderr
    assert contents(fresh) == before


def test_fields_are_added_where_weights_are_not_there(fresh: Path) -> None:
    assert upgraded(fresh, *SET[:2]).exit_code == 0
    for run in fresh.glob("?"):
        document = json.loads((run / "privacy.json").read_text())
        del document["checkpoints"][0]["files"][0]["blake3"]
        (run / "privacy.json").write_text(json.dumps(document))
        (run / document["checkpoints"][-1]["files"][0]["name"]).unlink()
    result = upgraded(fresh, *SET)
    assert result.exit_code == 0, result.output
    assert blake3_recorded(fresh / "a")[0] is None


@pytest.mark.parametrize("release", ["unsigned", "drawn", "signed"])
def test_a_certificate_of_0_1_is_verified_by_both_digests(home: Path, release: str) -> None:
    assert upgraded(home / "full-batch").exit_code == 0
    assert all(blake3_recorded(home / "full-batch" / "a"))
    verify = ("verify", home / "releases" / release, "--portfolio", home / "full-batch")
    assert ran(*verify).exit_code == 0
    for file in (home / "full-batch").glob("?/privacy.json"):
        document = json.loads(file.read_text())
        for saved in document["checkpoints"]:
            saved["files"][0]["blake3"] = "0" * 64
        file.write_text(json.dumps(document))
    result = ran(*verify)
    assert result.exit_code == 1
    assert "digests of two files" in " ".join(result.stdout.split())
    assert ".safetensors is not the file" in " ".join(result.stdout.split())


# Runs that a ledger knows


def test_changing_the_statement_of_a_charged_run_is_refused(home: Path) -> None:
    before = contents(home / "full-batch")
    result = upgraded(home / "full-batch", *SET)
    assert result.exit_code == 2
    assert "privacy-ledger.sqlite has charged run a as it is stated now" in result.stderr
    assert "certificates made from it would no longer fit" in result.stderr
    assert contents(home / "full-batch") == before


@pytest.mark.parametrize("release", ["unsigned", "drawn", "signed"])
def test_ties_are_added_to_a_charged_run_and_its_certificates_still_verify(home: Path, release: str) -> None:
    result = upgraded(home / "full-batch")
    assert result.exit_code == 0, result.output
    assert Manifest.read(home / "full-batch" / "a" / "privacy.json").tensors.tied == []  # type: ignore[union-attr]
    found = json.loads(ran("verify", home / "releases" / release, "--portfolio", home / "full-batch", "--json").stdout)
    assert found["verified"]
    assert {check["check"]: check["passed"] for check in found["checks"]}["commitments"] is True


def test_a_charged_portfolio_is_released_from_after_ties_were_added(home: Path, tmp_path: Path) -> None:
    assert upgraded(home / "full-batch").exit_code == 0
    cheap = ("--epsilon", "8", "--delta", "1e-5")
    made = ran("merge", home / "full-batch", "--weights", "c@4=1", *cheap, "-o", tmp_path / "within")
    assert made.exit_code == 0, made.output


def test_a_run_whose_ledger_is_elsewhere_keeps_its_statement_until_that_is_named(home: Path) -> None:
    ledger = (home / "full-batch" / "privacy-ledger.sqlite").rename(home / "ledger.sqlite")
    result = upgraded(home / "full-batch", *SET)
    assert result.exit_code == 2
    assert "name that ledger, ledger=… (--ledger)" in result.stderr
    named = upgraded(home / "full-batch", *SET, "--ledger", ledger)
    assert named.exit_code == 2
    assert "has charged run a as it is stated now" in named.stderr


def test_an_upgrade_beside_another_ledger_than_the_runs_own_is_refused(home: Path) -> None:
    shutil.copy(home / "final" / "privacy-ledger.sqlite", home / "full-batch" / "privacy-ledger.sqlite")
    result = upgraded(home / "full-batch", *SET)
    assert result.exit_code == 2
    assert "name that ledger, ledger=… (--ledger)" in result.stderr


def test_a_run_the_ledger_has_not_charged_is_upgraded_beside_it(home: Path, tmp_path: Path) -> None:
    new = shutil.copytree(home / "full-batch" / "a", home / "full-batch" / "new")
    document = json.loads((new / "privacy.json").read_text())
    document |= {"run": "new", "noise": {**document["noise"], "stream": "0" * 32}}
    (new / "privacy.json").write_text(json.dumps(document))
    result = upgraded(new, *SET)
    assert result.exit_code == 0, result.output


# What is refused


def one_shot(folder: Path, **more: Any) -> Path:
    """A Gaussian release of 0.1, whose identity is made of its facts."""
    folder.mkdir()
    values = np.arange(8, dtype=np.float32)
    save_file({"w": values, "v": values}, folder / "model.safetensors")
    document = {
        "schema": "dpmerge/run/v1", "run": "noisy", "dataset": {"id": "adult"}, "unit": "record",
        "adjacency": "add_remove", "mechanism": {"kind": "gaussian_release", "sensitivity": 1, "standard_deviation": 2},
        "noise": {"source": "unknown"}, "ancestry": {"start": "random"}, "tuning": "none",
        "tensors": {"trained": ["w", "v"]}, "recorded_by": {"how": "hand"},
        "checkpoints": [{"step": 1, **recorded_files(["model.safetensors"], folder)}], **more,
    }  # fmt: skip
    (folder / "privacy.json").write_text(json.dumps(document))
    return folder


def test_an_upgrade_leaves_ties_of_equal_tensors_unstated_until_they_are_given(tmp_path: Path) -> None:
    [done] = upgrade_manifests([one_shot(tmp_path / "noisy")], vouched_by="Ann")
    assert done.added == {}
    assert done.unstated == ("mechanism.noise_on", "tensors.tied")
    [tied] = upgrade_manifests([tmp_path / "noisy"], vouched_by="Ann", values={"tensors.tied": [["v", "w"]]})
    assert tied.added == {"tensors.tied": [["v", "w"]]}


def test_an_upgrade_can_state_where_the_noise_of_a_release_is(tmp_path: Path) -> None:
    folder = one_shot(tmp_path / "noisy")
    before = identity_of(Manifest.read(folder / "privacy.json"))
    upgrade_manifests([folder], vouched_by="Ann", values={"mechanism.noise_on": "weights"})
    after = Manifest.read(folder / "privacy.json")
    assert identity_of(after) != before, "so a ledger that knows it has to be asked for the identity it had"
    assert after.statement.recorded_by.who == "its author; Ann for mechanism.noise_on"


INVALID = {
    "a field of 0.1": (("--set", "tuning=none"), "values (--set): got 'tuning'; accepted: stopping"),
    "an unknown field": (("--set", "colour=red"), "values (--set): got 'colour'"),
    "no value": (("--set", "stopping"), "accepted: FIELD=VALUE"),
    "an empty value": (("--set", "stopping="), "accepted: FIELD=VALUE"),
    "broken json": (("--set", "tensors.tied=[["), "broken JSON"),
    "a value that is not accepted": (("--set", "stopping=maybe"), 'stopping: got \'maybe\'; accepted: "fixed"'),
    "losses that only the recorder checks": (("--set", "record_losses=checked"), "only the recorder checks it"),
    "a field of another kind": (("--set", "mechanism.noise_on=weights"), "none of them is of a kind that has it"),
    "ties of different shapes": (('--set', 'tensors.tied=[["weight", "bias"]]'), "they are one weight"),
    "ties of frozen tensors": (('--set', 'tensors.tied=[["weight", "embedding"]]'), "names of trained tensors"),
    "a run independent of itself": (('--set', 'ancestry.independent_of=["a"]'), "other runs than this one"),
    "runs that are no list": (("--set", "ancestry.independent_of=b"), "ancestry.independent_of: got 'b'"),
}  # fmt: skip


@pytest.mark.parametrize("name", INVALID)
def test_an_invalid_upgrade_is_refused_and_writes_nothing(fresh: Path, name: str) -> None:
    before = contents(fresh)
    more, message = INVALID[name]
    result = upgraded(fresh, *more)
    assert result.exit_code == 2
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert contents(fresh) == before


@pytest.mark.parametrize("name", ["", " ", "x" * 101, "Ann\nBob", "Ann\x1b[2J"])
def test_an_upgrade_vouched_by_an_invalid_name_is_refused(fresh: Path, name: str) -> None:
    with pytest.raises(InvalidInputError, match="--vouched-by"):
        upgrade_manifests([fresh], vouched_by=name, values=DECIDED)


@pytest.mark.parametrize("stated", ["public", "unknown"])
def test_an_upgrade_of_a_field_already_stated_otherwise_is_refused(fresh: Path, stated: str) -> None:
    upgrade_manifests([fresh / "c"], vouched_by="Ann", values={"stopping": stated})
    before = contents(fresh)
    with pytest.raises(ManifestError, match="an upgrade adds to a manifest and changes nothing"):
        upgrade_manifests([fresh], vouched_by="Bob", values={"stopping": "fixed"})
    assert contents(fresh) == before


def test_an_unreadable_manifest_stops_the_upgrade_of_all(fresh: Path) -> None:
    (fresh / "e" / "privacy.json").write_text("{")
    before = contents(fresh)
    with pytest.raises(ManifestError, match="broken JSON"):
        upgrade_manifests([fresh], vouched_by="Ann", values=DECIDED)
    assert contents(fresh) == before


def test_an_upgrade_beside_changed_weights_names_the_digest(fresh: Path) -> None:
    file = fresh / "a" / "step-4.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert "checkpoints[1].files[0].sha256" in upgraded(fresh, *SET).stderr


@pytest.mark.parametrize("path", ["nowhere", "full-batch/a/step-4.safetensors", "plans"])
def test_upgrading_what_is_no_manifest_is_refused(home: Path, path: str) -> None:
    result = upgraded(home / path, *SET)
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1


def test_a_listing_and_a_run_named_twice_are_upgraded_once(fresh: Path) -> None:
    result = upgraded(fresh / "portfolio.yaml", fresh / "a" / "privacy.json", fresh / "a", *SET)
    assert result.exit_code == 0, result.output
    assert len(result.stdout.splitlines()) == 5


def test_an_amendment_of_what_is_not_stated_is_refused(fresh: Path) -> None:
    file = fresh / "a" / "privacy.json"
    document = json.loads(file.read_text())
    for amended in (
        [{"by": "Ann", "fields": ["stopping"]}],
        [{"by": "x" * 101, "fields": ["stopping"]}],
        [{"by": "A"}],
    ):
        with pytest.raises(ManifestError, match="amended"):
            Manifest.parse(json.dumps({**document, "amended": amended}))
    twice = [{"by": name, "fields": ["stopping"]} for name in ("Ann", "Bob")]
    with pytest.raises(ManifestError, match="each by one person"):
        Manifest.parse(json.dumps({**document, "stopping": "fixed", "amended": twice}))
    long = {**document, "stopping": "fixed", "recorded_by": {"how": "hand", "who": "x" * 500}}
    with pytest.raises(ManifestError, match="at most 500 characters"):
        Manifest.parse(json.dumps({**long, "amended": [{"by": "Ann", "fields": ["stopping"]}]}))
