"""`dpmerge manifest` from outside: what it writes, what it says, what it refuses."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from typer.testing import CliRunner, Result

from dpmerge.cli import app
from dpmerge.portfolio import Portfolio
from dpmerge.portfolio.manifest import Manifest, json_schema

SGD = {
    "--run": "old", "--dataset": "adult", "--adjacency": "replace_one", "--size": "100", "--kind": "dp_sgd",
    "--steps": "20", "--noise-multiplier": "32", "--clip-norm": "2", "--learning-rate": "4",
    "--loss-reduction": "mean", "--sampling": "full_batch", "--optimizer": "sgd", "--momentum": "0",
    "--weight-decay": "0", "--layers": "together", "--noise-source": "os_entropy",
    "--start": "random",
}  # fmt: skip
PAIR = {
    "--run": "partner", "--dataset": "adult", "--adjacency": "add_remove", "--kind": "approximate_dp",
    "--point": "1.2:1e-5", "--noise-source": "os_entropy", "--start": "random",
}  # fmt: skip


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["manifest", *map(str, arguments)], env={"COLUMNS": "100"})


def new(out: Path, flags: dict[str, str], *more: object) -> Result:
    return call("new", "--out", out, *(word for pair in flags.items() for word in pair), *more)


def test_new_writes_what_the_flags_say(tmp_path: Path) -> None:
    decided = ("--stopping", "fixed", "--schedule", "public", "--record-losses", "vouched")
    result = new(tmp_path / "privacy.json", SGD, "--who", "me", "--tuning", "public", *decided)
    assert result.exit_code == 0, result.stderr
    manifest = Manifest.read(tmp_path / "privacy.json")
    assert manifest.mechanism_from(None).profile().epsilon(1e-5) == pytest.approx(1.0470536090938, rel=1e-10)
    document = manifest.document()
    assert document["mechanism"]["blocks"][0]["learning_rate"] == 4 / 100
    assert document["mechanism"]["expected_batch_size"] == 100
    assert document["recorded_by"] == {"how": "hand", "who": "me"}
    assert document["tuning"] == "public"
    assert [document[name] for name in ("stopping", "schedule", "record_losses")] == ["fixed", "public", "vouched"]
    assert len(document["noise"]["stream"]) == 32
    assert "smoothness known" in result.stdout


def test_new_with_smoothness_reaches_hidden_state(tmp_path: Path) -> None:
    more = ("--smoothness", "softmax", "--feature-bound", "1", "--records", "100", "--json")
    result = new(tmp_path / "privacy.json", SGD, *more)
    theorems = json.loads(result.stdout)["theorems"]
    assert {name: each["certifies"] for name, each in theorems.items()} == {
        "joint_release": True, "last_step": True, "hidden_state": True, "merged_trajectory": False,
    }  # fmt: skip


def test_a_model_known_by_a_pair_joins_a_portfolio(tmp_path: Path) -> None:
    save_file({"w": np.ones(3, dtype=np.float32)}, tmp_path / "model.safetensors")
    result = new(tmp_path / "privacy.json", PAIR, "--checkpoint", "1=model.safetensors")
    assert result.exit_code == 0, result.stderr
    portfolio = Portfolio.load(tmp_path)
    assert portfolio.saved("partner@1").weights is not None
    assert portfolio.everything().profile().epsilon(1e-5) == 1.2


def test_a_sharded_model_is_named_by_its_index(tmp_path: Path) -> None:
    shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    for place, shard in enumerate(shards):
        save_file({f"w{place}": np.full(3, place, dtype=np.float32)}, tmp_path / shard)
    index = {"metadata": {"total_size": 24}, "weight_map": {f"w{p}": shard for p, shard in enumerate(shards)}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    result = new(tmp_path / "privacy.json", PAIR, "--checkpoint", "1=model.safetensors.index.json")
    assert result.exit_code == 0, result.stderr
    saved = Portfolio.load(tmp_path).saved("partner@1")
    assert [file.name for file in saved.files] == [*shards, "model.safetensors.index.json"]
    assert set(saved.tensors) == {"w0", "w1"}


def test_an_index_that_names_no_shards_is_refused(tmp_path: Path) -> None:
    (tmp_path / "index.json").write_text("{}")
    result = new(tmp_path / "privacy.json", PAIR, "--checkpoint", "1=index.json")
    assert result.exit_code == 2
    assert "an index with a weight_map" in result.stderr


@pytest.mark.parametrize(
    ("flags", "kind"),
    [
        (
            {
                "--kind": "gaussian_release",
                "--sensitivity": "1",
                "--standard-deviation": "2",
                "--noise-on": "weights",
            },
            "gaussian_release",
        ),
        ({"--kind": "gaussian_dp", "--mu": "0.5"}, "gaussian_dp"),
        ({"--kind": "renyi", "--order": "2:0.1"}, "renyi"),
        ({"--kind": "non_private"}, "non_private"),
    ],
)
def test_new_writes_every_kind(tmp_path: Path, flags: dict[str, str], kind: str) -> None:
    shared = {name: value for name, value in PAIR.items() if name not in ("--kind", "--point")}
    result = new(tmp_path / "privacy.json", {**shared, **flags})
    assert result.exit_code == 0, result.stderr
    assert Manifest.read(tmp_path / "privacy.json").mechanism.kind == kind


INVALID_NEW = {
    "nothing at all": ({}, (), "flags: got nothing for --run, --dataset, --adjacency, --kind"),
    "sgd without its settings": (
        {**SGD, "--momentum": None, "--weight-decay": None}, (), "flags: got nothing for --momentum, --weight-decay",
    ),
    "a checkpoint of the start": (PAIR, ("--checkpoint", "0=m.safetensors"), "No such file or directory"),
    "a parent at step 0": ({**PAIR, "--start": "private", "--parent": "a@0"}, (), "ancestry.step: got 0; accepted: an"),
    "no steps": ({**SGD, "--steps": None}, (), "flags: got nothing for --steps; accepted: a value for each"),
    "no batch size": ({**SGD, "--sampling": "poisson", "--sampling-rate": "0.1"}, (), "for --expected-batch-size"),
    "unknown kind": ({**SGD, "--kind": "magic"}, (), "--kind: got 'magic'; accepted: dp_sgd, gaussian_release"),
    "size under add_remove": ({**PAIR, "--size": "9"}, (), "dataset.size: got 9; accepted: left out under add_remove"),
    "no sampling rate": (
        {**SGD, "--sampling": "poisson", "--expected-batch-size": "10"}, (), "flags: got nothing for --sampling-rate",
    ),
    "no steps per epoch": ({**SGD, "--sampling": "shuffled"}, (), "--steps-per-epoch"),
    "a flag of another kind": (PAIR, ("--noise-multiplier", "3"), "--noise-multiplier: got 3.0; accepted: left out"),
    "a bad delta": (PAIR, ("--delta", "0"), "--delta: got 0.0; accepted: a number strictly between 0 and 1"),
    "a bound below the size": (
        {**SGD, "--smoothness": "softmax", "--feature-bound": "1", "--records": "50"}, (),
        "mechanism.smoothness.records: got 50; accepted: an integer ≥ 100",
    ),
    "a pair without a colon": ({**PAIR, "--point": "1.2"}, (), "point: got '1.2'; accepted: two numbers with a colon"),
    "a negative epsilon": ({**PAIR, "--point": "-1:1e-5"}, (), "mechanism.points[0].epsilon: got -1.0"),
    "a digest for a name": ({**PAIR, "--dataset": "ab" * 32}, (), "dataset.id: got 'abab"),
    "seeded without a seed": ({**PAIR, "--noise-source": "seeded"}, (), "flags: got nothing for --noise-seed"),
    "private without a parent": ({**PAIR, "--start": "private"}, (), "flags: got nothing for --parent"),
    "a parent without a step": (
        {**PAIR, "--start": "private"},
        ("--parent", "a"),
        "parent: got 'a'; accepted: run@step",
    ),
    "a pickle": (PAIR, ("--checkpoint", "1=model.pt"), "a format that can run code when loaded"),
    "a path that leads out": (PAIR, ("--checkpoint", "1=../m.safetensors"), "a relative path inside the run's folder"),
    "no such checkpoint": (PAIR, ("--checkpoint", "1=m.safetensors"), "No such file or directory"),
    "a checkpoint without a step": (PAIR, ("--checkpoint", "m.safetensors"), "accepted: STEP=FILE"),
    "a folder that is not there": (PAIR, ("--out", "nowhere/privacy.json"), "a file in a folder that exists"),
}  # fmt: skip


@pytest.mark.parametrize("name", INVALID_NEW)
def test_new_refuses(tmp_path: Path, name: str) -> None:
    flags, more, message = INVALID_NEW[name]
    given = {flag: value for flag, value in flags.items() if value is not None}
    result = new(tmp_path / "privacy.json", given, *more)
    assert result.exit_code == 2
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_new_never_replaces_a_record(tmp_path: Path) -> None:
    (tmp_path / "privacy.json").write_text("mine")
    result = new(tmp_path / "privacy.json", PAIR)
    assert result.exit_code == 2
    assert "a file that does not exist yet" in result.stderr
    assert (tmp_path / "privacy.json").read_text() == "mine"


def answered(folder: Path, *answers: str) -> str:
    """What is shown on a terminal when somebody answers like this."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", "from dpmerge.cli import app; app()", "manifest", "new"]
    process = subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=folder)
    os.write(ours, "".join(f"{answer}\n" for answer in answers).encode())
    output, _ = process.communicate(timeout=60)
    os.close(ours)
    os.close(theirs)
    assert process.returncode == 0, output
    return output.decode()


def test_new_asks_on_a_terminal(tmp_path: Path) -> None:
    """Every question in turn, and the kind decides which."""
    shown = answered(
        tmp_path, "partner", "adult", "add_remove", "approximate_dp", "1.2:1e-5 2:1e-6", "os_entropy", "random"
    )
    assert "Known guarantees, as EPSILON:DELTA" in shown
    assert "Noise multiplier" not in shown
    assert Manifest.read(tmp_path / "privacy.json").document()["mechanism"]["points"] == [
        {"epsilon": 1.2, "delta": 1e-5},
        {"epsilon": 2.0, "delta": 1e-6},
    ]


def test_new_asks_again_when_an_answer_will_not_do(tmp_path: Path) -> None:
    answers = ["old", "adult", "toy", "replace_one", "accountant_history", "dp_sgd", "ten", "10", "1", "1", "0.1"]
    answers += ["poisson", "0.1", "mean", "40", "sgd", "0.9", "yes", "0", "0", "together", "seeded", "7"]
    answers += ["private", "parent@3", "maybe", "fixed", "private", "checked", "vouched"]
    shown = answered(tmp_path, *answers)
    assert "--stopping: got 'maybe'; accepted: fixed, public, private, unknown" in shown
    assert "--record-losses: got 'checked'; accepted: vouched, unknown" in shown
    assert "--adjacency: got 'toy'; accepted: replace_one, add_remove" in shown
    assert "--kind: got 'accountant_history'" in shown
    assert "--steps: got 'ten'; accepted: an integer" in shown
    document = Manifest.read(tmp_path / "privacy.json").document()
    assert [document[name] for name in ("stopping", "schedule", "record_losses")] == ["fixed", "private", "vouched"]
    assert document["ancestry"] == {"start": "private", "run": "parent", "step": 3, "assumed": False}
    assert document["mechanism"]["blocks"][0]["sampling_rate"] == 0.1
    assert document["mechanism"]["expected_batch_size"] == 40
    assert document["noise"]["seed"] == 7
    assert document["mechanism"]["optimizer"] == {
        "name": "sgd", "momentum": 0.9, "nesterov": True, "dampening": 0.0, "weight_decay": 0.0,
    }  # fmt: skip
    assert "whose cost is known in a portfolio only" in " ".join(shown.split())


HISTORY = {"history": [[1.0, 0.01, 600], [2.0, 0.01, 400]], "mechanism": "rdp"}
TOLD = ("--sampling", "poisson", "--public-divisor", "--noise-source", "os_entropy", "--start", "random")


def imported(folder: Path, history: object, *more: object) -> Result:
    (folder / "history.json").write_text(json.dumps(history))
    shared = ("--run", "old", "--dataset", "adult", "--out", folder / "privacy.json")
    return call("import-opacus", folder / "history.json", *shared, *more)


def test_a_history_alone_has_no_number_and_says_why(tmp_path: Path) -> None:
    result = imported(tmp_path, HISTORY, "--json")
    theorems = json.loads(result.stdout)["theorems"]
    assert not any(each["certifies"] for each in theorems.values())
    assert "what it started from is not recorded" in theorems["joint_release"]["missing"][0]["because"]


def test_a_history_with_what_it_cannot_know_reaches_joint_release_and_no_more(tmp_path: Path) -> None:
    result = imported(tmp_path, HISTORY, *TOLD, "--json")
    theorems = json.loads(result.stdout)["theorems"]
    assert [name for name, each in theorems.items() if each["certifies"]] == ["joint_release"]
    missing = {p["premise"] for p in theorems["hidden_state"]["missing"]}
    assert {"full_batch", "sgd_without_momentum", "smoothness_known", "flat_clipping"} <= missing


def test_an_imported_history_costs_what_dp_accounting_says(tmp_path: Path) -> None:
    decided = ("--stopping", "fixed", "--schedule", "private", "--record-losses", "vouched")
    imported(tmp_path, [[1.0, 0.01, 1000]], *TOLD, *decided)
    manifest = Manifest.read(tmp_path / "privacy.json")
    assert (manifest.stopping, manifest.schedule, manifest.record_losses) == ("fixed", "private", "vouched")
    mechanism = manifest.mechanism_from(None)
    assert mechanism.profile().epsilon(1e-5) == pytest.approx(1.8282, abs=2e-4)


def test_a_full_batch_history_reaches_no_theorem_about_updates(tmp_path: Path) -> None:
    told = ("--sampling", "full_batch", "--adjacency", "replace_one", *TOLD[2:])
    result = imported(tmp_path, [[32.0, 1.0, 1]], *told, "--json")
    theorems = json.loads(result.stdout)["theorems"]
    assert [name for name, each in theorems.items() if each["certifies"]] == ["joint_release"]


def test_shuffled_batches_have_no_rate_whatever_the_accountant_was_told(tmp_path: Path) -> None:
    told = ("--sampling", "shuffled", "--steps-per-epoch", "100", "--adjacency", "replace_one", *TOLD[2:])
    assert imported(tmp_path, [[1.0, 0.01, 1000]], *told).exit_code == 0
    manifest = Manifest.read(tmp_path / "privacy.json")
    assert manifest.mechanism.blocks[0].sampling_rate == 1  # type: ignore[union-attr]
    assert manifest.mechanism_from(None).profile().epsilon(1e-5) > 20  # ten epochs, each a Gaussian step with μ = 2


INVALID_HISTORIES = {
    "empty": ([], (), "history: got []; accepted: a non-empty list of [noise multiplier, sampling rate, steps]"),
    "not a list": ({"history": 3}, (), "history: got 3"),
    "two numbers": ([[1.0, 0.1]], (), "history[0]: got [1.0, 0.1]; accepted: [noise multiplier ≥ 0"),
    "a rate above one": ([[1.0, 1.5, 3]], (), "history[0]: got [1.0, 1.5, 3]"),
    "steps that are no integer": ([[1.0, 0.5, 3.5]], (), "history[0]: got [1.0, 0.5, 3.5]"),
    "negative noise": ([[-1.0, 0.5, 3]], (), "history[0]: got [-1.0, 0.5, 3]"),
    "a full batch at a rate": (HISTORY, ("--sampling", "full_batch"), "sampling: got full_batch, at a rate of 0.01"),
    "shuffled without epochs": (
        HISTORY, ("--sampling", "shuffled", "--adjacency", "replace_one"), "steps_per_epoch: got None",
    ),
    "epochs longer than the rate says": (
        [[1.0, 0.1, 1000]],
        ("--sampling", "shuffled", "--steps-per-epoch", "1000", "--adjacency", "replace_one"),
        "steps_per_epoch: got 1000; accepted: at most 10",
    ),
    "unknown sampling": (HISTORY, ("--sampling", "often"), "mechanism.sampling: got 'often'"),
}  # fmt: skip


@pytest.mark.parametrize("name", INVALID_HISTORIES)
def test_import_refuses(tmp_path: Path, name: str) -> None:
    history, more, message = INVALID_HISTORIES[name]
    result = imported(tmp_path, history, *more)
    assert result.exit_code == 2
    assert message in result.stderr
    assert not (tmp_path / "privacy.json").exists()


def test_a_pickled_accountant_is_refused_with_the_way_to_save_it(tmp_path: Path) -> None:
    (tmp_path / "history.pt").write_bytes(b"\x80\x04\x95")
    result = call("import-opacus", tmp_path / "history.pt", "--run", "a", "--dataset", "b")
    assert result.exit_code == 2
    assert "json.dump(privacy_engine.accountant.state_dict(), file)" in result.stderr


def test_every_gap_of_a_history_is_named_at_once(tmp_path: Path) -> None:
    reason = json.loads(imported(tmp_path, HISTORY, "--json").stdout)["released_alone"]["reason"]
    for gap in ("how its batches were drawn", "public_divisor is false", "what it started from"):
        assert gap in reason


def test_check_gives_the_cost_at_the_delta_asked_for(tmp_path: Path) -> None:
    assert new(tmp_path, PAIR).exit_code == 0  # a folder will do
    shown = " ".join(call("check", tmp_path).stdout.split())
    assert "Released alone, with all its iterates: ε = 1.2000 at δ = 1e-05" in shown
    document = json.loads(call("check", tmp_path, "--delta", "1e-6", "--json").stdout)
    assert document["released_alone"]["epsilon"] == "inf"


def test_nobody_said_that_the_generator_is_insecure(tmp_path: Path) -> None:
    new(tmp_path, PAIR)
    assert "secure_rng" not in Manifest.read(tmp_path / "privacy.json").document()["noise"]


def test_check_reads_the_checkpoints_too(tmp_path: Path) -> None:
    save_file({"w": np.ones(3, dtype=np.float32)}, tmp_path / "model.safetensors")
    new(tmp_path / "privacy.json", PAIR, "--checkpoint", "1=model.safetensors")
    assert call("check", tmp_path).exit_code == 0
    save_file({"w": np.zeros(3, dtype=np.float32)}, tmp_path / "model.safetensors")
    result = call("check", tmp_path / "privacy.json")
    assert result.exit_code == 2
    assert "checkpoints[0].files[0].sha256" in result.stderr


def test_check_names_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "privacy.json").write_text('{"schema": "dpmerge/run/v2"}')
    result = call("check", tmp_path)
    assert result.exit_code == 2
    assert "privacy.json: schema: got 'dpmerge/run/v2'; accepted: \"dpmerge/run/v1\"" in result.stderr


def test_schema_prints_the_schema() -> None:
    assert json.loads(call("schema").stdout) == json_schema()
