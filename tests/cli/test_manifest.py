"""`dpmerge manifest` from outside: what it writes, what it says, what it refuses. (`upgrade` has tests of its own.)"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from blake3 import blake3
from safetensors.numpy import save_file
from typer.testing import CliRunner, Result

from dpmerge.cli import app
from dpmerge.portfolio import Portfolio
from dpmerge.portfolio.manifest import Manifest, json_schema
from dpmerge.portfolio.manifest_template import TEMPLATE_KINDS, manifest_template
from dpmerge.terms.documents import Strict, models_in

EXAMPLE = re.compile(r"^( *(?:- )?\w+:)  # for example: (.*)$", re.M)

SGD = """
schema: dpmerge/run/v1
run: old
dataset: {id: adult, size: 100}
unit: record
adjacency: replace_one
mechanism:
  kind: dp_sgd
  blocks:
    - {steps: 20, noise_multiplier: 32, clip_norm: 2, optimizer_learning_rate: 4}
  sampling: full_batch
  clipping: per_example
  flat_clipping: true
  optimizer: {name: sgd, momentum: 0, nesterov: false, dampening: 0, weight_decay: 0}
  loss_reduction: mean
  expected_batch_size: 100
  public_divisor: true
noise: {source: os_entropy}
ancestry: {start: random}
tuning: public
stopping: fixed
schedule: public
record_losses: vouched
recorded_by: {how: hand, who: me}
"""
PAIR = """
schema: dpmerge/run/v1
run: partner
dataset: {id: adult}
unit: record
adjacency: add_remove
mechanism: {kind: approximate_dp, points: [{epsilon: 1.2, delta: 1e-5}]}
noise: {source: os_entropy}
ancestry: {start: random}
tuning: unknown
recorded_by: {how: hand}
"""
KEPT = "checkpoints: [{step: 1, files: [model.safetensors]}]\n"


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["manifest", *map(str, arguments)], env={"COLUMNS": "100", "DPMERGE_LEDGER": None})


def drafted(folder: Path, text: str) -> Path:
    file = folder / "run.yaml"
    file.write_text(text)
    return file


def written(folder: Path, text: str, *more: object) -> Result:
    return call("write", drafted(folder, text), *more)


def changed(text: str, *changes: tuple[str, str]) -> str:
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    return text


# Templates


@pytest.mark.parametrize("kind", TEMPLATE_KINDS)
def test_an_unfilled_template_fails_with_every_empty_field_listed(tmp_path: Path, kind: str) -> None:
    assert call("new", kind, "-o", tmp_path / "run.yaml").exit_code == 0
    result = call("check", tmp_path / "run.yaml", "--json")
    assert result.exit_code == 2
    document = json.loads(result.stdout)
    assert not document["valid"]
    listed = {problem["field"].rpartition(".")[2] for problem in document["problems"] if problem["missing"]}
    empty = {line.strip(" -:") for line, _ in EXAMPLE.findall((tmp_path / "run.yaml").read_text())}
    assert empty - {"optimizer_learning_rate"} <= listed  # it goes by the field it becomes, learning_rate
    for line in call("check", tmp_path / "run.yaml").stderr.splitlines():
        assert re.match(r"error: .*run.yaml: [\w.\[\]]+: missing; write \S", line)


@pytest.mark.parametrize("kind", TEMPLATE_KINDS)
def test_a_template_filled_with_its_examples_passes_and_is_written(tmp_path: Path, kind: str) -> None:
    save_file({"w": np.ones(3, dtype=np.float32)}, tmp_path / "model.safetensors")
    drafted(tmp_path, EXAMPLE.sub(r"\1 \2", manifest_template(kind)))
    result = call("check", tmp_path / "run.yaml")
    assert result.exit_code == 0, result.stderr
    assert "dpmerge manifest write" in result.stdout
    assert not (tmp_path / "privacy.json").exists()
    assert call("write", tmp_path / "run.yaml").exit_code == 0
    manifest = Manifest.read(tmp_path / "privacy.json")
    assert manifest.mechanism.kind == kind
    assert Portfolio.load(tmp_path).saved("partner@1").weights is not None


@pytest.mark.parametrize("installed", [True, False])
def test_files_are_written_down_by_every_digest_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: bool
) -> None:
    save_file({"w": np.ones(3, dtype=np.float32)}, tmp_path / "model.safetensors")
    if not installed:
        monkeypatch.setitem(sys.modules, "blake3", None)
    assert written(tmp_path, PAIR + KEPT).exit_code == 0
    content = (tmp_path / "model.safetensors").read_bytes()
    digests = {"sha256": hashlib.sha256(content).hexdigest(), "blake3": blake3(content).hexdigest()}
    [saved] = json.loads((tmp_path / "privacy.json").read_text())["checkpoints"]
    assert saved["files"] == [
        {"name": "model.safetensors", **(digests if installed else {"sha256": digests["sha256"]})}
    ]


@pytest.mark.parametrize("kind", TEMPLATE_KINDS)
def test_optional_lines_of_a_template_are_yaml_when_uncommented(tmp_path: Path, kind: str) -> None:
    """Each is known; they do not all fit together, so it is their names that must be right."""
    text = EXAMPLE.sub(r"\1 \2", re.sub(r"^#( *[\w]+:)", r"\1", manifest_template(kind), flags=re.M))
    result = call("check", drafted(tmp_path, text), "--json")
    assert "unknown field" not in result.stdout


@pytest.mark.parametrize("kind", TEMPLATE_KINDS)
def test_a_template_names_every_field_a_person_can_state(kind: str) -> None:
    computed = {"start_sample", "every", "values", "initial_weights", "initial", "frozen_weights", "stream", "weights"}
    elsewhere = {
        "metrics",
        "name",
        "sha256",
        "blake3",
        "finished",
        "tools",
        "amended",
        "assumed",
        "learning_rate",
        "source",
    }
    text = manifest_template(kind)
    elsewhere |= {"order", "secret", "batch_size", "fixed_steps"}  # the recorder's word alone
    trained = {"stopping", "schedule", "record_losses"}
    recorders = ("start_sample", "amended", "metrics", "resumed", "averages", "optimizer_state", "public_files")

    def named(model: type[Strict]) -> set[str]:
        names = set[str]()
        for name, field in model.model_fields.items():
            inner = [m for m in models_in(field.annotation) if name != "mechanism" or _kind(m) == kind]
            if name not in recorders:
                names |= {name.removesuffix("_")}.union(*(named(each) for each in inner))
        return names

    for name in named(Manifest) - computed - elsewhere - (trained if kind != "dp_sgd" else set()):
        assert re.search(rf"^#? *(?:- )?{name}:", text, re.M), name


def _kind(model: type[Strict]) -> str:
    return str(model.model_fields["kind"].description).strip('"')


def test_an_unknown_kind_has_no_template(tmp_path: Path) -> None:
    result = call("new", "magic", "-o", tmp_path / "run.yaml")
    assert result.exit_code == 2
    assert "kind: got 'magic'; accepted: dp_sgd, gaussian_release" in result.stderr
    assert "dpmerge import" in call("new", "accountant_history", "-o", tmp_path / "run.yaml").stderr
    assert list(tmp_path.iterdir()) == []


def test_new_never_replaces_a_file(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("mine")
    result = call("new", "dp_sgd", "-o", tmp_path)
    assert result.exit_code == 2
    assert "a file that does not exist yet" in result.stderr
    assert (tmp_path / "run.yaml").read_text() == "mine"
    assert "a file in a folder that exists" in call("new", "dp_sgd", "-o", tmp_path / "nowhere" / "run.yaml").stderr


def test_new_says_as_json_where_it_wrote(tmp_path: Path) -> None:
    result = call("new", "renyi", "-o", tmp_path / "run.yaml", "--json")
    assert json.loads(result.stdout) == {"file": str(tmp_path / "run.yaml"), "kind": "renyi"}


# Drafts


def test_write_writes_what_the_draft_states(tmp_path: Path) -> None:
    result = written(tmp_path, SGD)
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


def test_a_draft_with_smoothness_reaches_hidden_state(tmp_path: Path) -> None:
    smooth = "  smoothness: {kind: softmax, feature_bound: 1, records: 100, vouched_by: me}\nnoise:"
    result = written(tmp_path, changed(SGD, ("noise:", smooth)), "--json")
    theorems = json.loads(result.stdout)["theorems"]
    assert {name: each["certifies"] for name, each in theorems.items()} == {
        "joint_release": True, "last_step": True, "hidden_state": True, "merged_trajectory": False,
    }  # fmt: skip


def test_rates_of_a_summed_loss_are_those_of_the_optimizer(tmp_path: Path) -> None:
    summed = changed(SGD, ("mean", "sum"), ("  expected_batch_size: 100\n", ""), ("rate: 4", "rate: [4, 2]"))
    assert written(tmp_path, changed(summed, ("steps: 20", "steps: 2"))).exit_code == 0
    assert Manifest.read(tmp_path / "privacy.json").document()["mechanism"]["blocks"][0]["learning_rate"] == [4, 2]


def test_the_noise_of_two_manifests_written_from_one_draft_is_not_one_stream(tmp_path: Path) -> None:
    streams = []
    for name in ("a", "b"):
        assert written(tmp_path, PAIR, "-o", tmp_path / f"{name}.json").exit_code == 0
        streams.append(Manifest.read(tmp_path / f"{name}.json").noise.stream)
    assert streams[0] != streams[1]


def test_a_model_known_by_a_pair_joins_a_portfolio(tmp_path: Path) -> None:
    save_file({"w": np.ones(3, dtype=np.float32)}, tmp_path / "model.safetensors")
    result = written(tmp_path, PAIR + KEPT)
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
    result = written(tmp_path, PAIR + changed(KEPT, ("model.safetensors", "model.safetensors.index.json")))
    assert result.exit_code == 0, result.stderr
    saved = Portfolio.load(tmp_path).saved("partner@1")
    assert [file.name for file in saved.files] == [*shards, "model.safetensors.index.json"]
    assert set(saved.tensors) == {"w0", "w1"}


def test_an_index_that_names_no_shards_is_refused(tmp_path: Path) -> None:
    (tmp_path / "index.json").write_text("{}")
    result = written(tmp_path, PAIR + changed(KEPT, ("model.safetensors", "index.json")))
    assert result.exit_code == 2
    assert "an index with a weight_map" in result.stderr


@pytest.mark.parametrize(
    ("mechanism", "kind"),
    [
        ("{kind: gaussian_release, sensitivity: 1, standard_deviation: 2, noise_on: weights}", "gaussian_release"),
        ("{kind: gaussian_dp, mu: 0.5}", "gaussian_dp"),
        ("{kind: renyi, orders: [2], values: [0.1]}", "renyi"),
        ("{kind: non_private}", "non_private"),
    ],
)
def test_a_draft_of_every_kind_of_mechanism_is_written(tmp_path: Path, mechanism: str, kind: str) -> None:
    draft = re.sub(r"mechanism: .*", f"mechanism: {mechanism}", PAIR)
    result = written(tmp_path, draft)
    assert result.exit_code == 0, result.stderr
    assert Manifest.read(tmp_path / "privacy.json").mechanism.kind == kind


POISSON = ("full_batch", "poisson")
SEEDED = ("source: os_entropy", "source: seeded")
PRIVATE = ("start: random", "start: private")
INVALID_DRAFTS = {
    "nothing at all": ("{}", "run: missing; write 1 to 100 letters"),
    "no object": ("[1]", "manifest: got [1]; accepted: one YAML object"),
    "broken yaml": ("a: [", "broken YAML"),
    "an alias": (changed(PAIR, ("run: partner", "run: &a partner\nunit: *a")), "YAML without aliases"),
    "a field twice": (PAIR + "run: partner\n", "run: got the same field twice"),
    "an unknown field": (PAIR + "who: me\n", "who: got an unknown field"),
    "sgd without momentum": (changed(SGD, ("momentum: 0, ", "")), "mechanism.optimizer.momentum: missing; write"),
    "sgd without weight decay": (changed(SGD, (", weight_decay: 0", "")), "optimizer.weight_decay: missing; write"),
    "a no that is text": (changed(SGD, ("nesterov: false", "nesterov: no")), "nesterov: got 'no'; accepted: true"),
    "a checkpoint of the start": (
        PAIR + changed(KEPT, ("step: 1", "step: 0")), "checkpoints[0].files: model.safetensors: No such file",
    ),
    "a parent at step 0": (
        changed(PAIR, ("start: random", "start: private, run: a, step: 0")), "ancestry.step: got 0; accepted: an",
    ),
    "no steps": (changed(SGD, ("steps: 20, ", "")), "mechanism.blocks[0].steps: missing; write an integer ≥ 1"),
    "no rate": (changed(SGD, (", optimizer_learning_rate: 4", "")), "missing; write optimizer_learning_rate: a finite"),
    "two rates": (changed(SGD, ("rate: 4", "rate: 4, learning_rate: 4")), "optimizer_learning_rate or learning_rate"),
    "no batch size": (changed(SGD, ("  expected_batch_size: 100\n", "")), "mechanism.expected_batch_size: missing"),
    "unknown kind": (changed(PAIR, ("approximate_dp", "magic")), "mechanism: got {'kind': 'magic'"),
    "size under add_remove": (
        changed(PAIR, ("id: adult", "id: adult, size: 9")), "dataset.size: got 9; accepted: left out under add_remove",
    ),
    "no sampling rate": (changed(SGD, POISSON), "mechanism.blocks[0].sampling_rate: missing; write a number"),
    "no steps per epoch": (changed(SGD, ("full_batch", "shuffled")), "mechanism.steps_per_epoch: missing; write"),
    "a field of another kind": (
        changed(PAIR, ("kind: approximate_dp", "kind: approximate_dp, noise_multiplier: 3")),
        "mechanism.noise_multiplier: got an unknown field",
    ),
    "noise that is not said to be on the weights": (
        changed(PAIR, ("kind: approximate_dp, points: [{epsilon: 1.2, delta: 1e-5}]",
                       "kind: gaussian_release, sensitivity: 1, standard_deviation: 2")),
        "mechanism.noise_on: missing; write weights; of noise that is elsewhere use kind gaussian_dp with mu",
    ),
    "a bound below the size": (
        changed(SGD, ("noise:", "  smoothness: {kind: softmax, feature_bound: 1, records: 9, vouched_by: me}\nnoise:")),
        "smoothness.records: got 9; accepted: an integer ≥ 100",
    ),
    "a negative epsilon": (changed(PAIR, ("1.2", "-1")), "mechanism.points[0].epsilon: got -1"),
    "an epsilon that is text": (changed(PAIR, ("1.2", "'1.2'")), "mechanism.points[0].epsilon: got '1.2'"),
    "a digest for a name": (changed(PAIR, ("id: adult", f"id: {'ab' * 32}")), "dataset.id: got 'abab"),
    "seeded without a seed": (changed(PAIR, SEEDED), "noise.seed: missing; write an integer ≥ 0"),
    "private without a parent": (changed(PAIR, PRIVATE), "ancestry.run: missing; write the parent's run id"),
    "a parent without a step": (
        changed(PAIR, ("start: random", "start: private, run: a")), "ancestry.step: missing; write an integer ≥ 1",
    ),
    "a pickle": (PAIR + changed(KEPT, ("model.safetensors", "model.pt")), "a format that can run code when loaded"),
    "a path that leads out": (
        PAIR + changed(KEPT, ("model.safetensors", "../m.safetensors")), "a relative path inside the run's folder",
    ),
    "no such checkpoint": (PAIR + KEPT, "No such file or directory"),
    "a checkpoint without a step": (PAIR + "checkpoints: [{files: [m.safetensors]}]\n", "checkpoints[0].step: missing"),
    "losses that nobody but the recorder checks": (
        changed(SGD, ("record_losses: vouched", "record_losses: checked")), "record_losses: got 'checked'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", INVALID_DRAFTS)
def test_an_invalid_draft_is_refused_by_check_and_not_written(tmp_path: Path, name: str) -> None:
    draft, message = INVALID_DRAFTS[name]
    result = call("check", drafted(tmp_path, draft))
    assert result.exit_code == 2
    assert message in result.stderr
    refused = call("write", tmp_path / "run.yaml")
    assert refused.exit_code == 2
    assert refused.stderr.startswith("error: ")
    assert [path.name for path in tmp_path.iterdir()] == ["run.yaml"]


def test_check_lists_all_problems_and_write_names_the_first_and_says_how_many_follow(tmp_path: Path) -> None:
    draft = drafted(tmp_path, changed(PAIR, ("run: partner\n", ""), ("unit: record\n", ""), SEEDED))
    assert len(call("check", draft).stderr.splitlines()) == 3
    assert "2 more; dpmerge manifest check" in call("write", draft).stderr


def test_numbers_and_booleans_of_a_draft_are_those_of_json(tmp_path: Path) -> None:
    """PyYAML alone would read 1e-5 as text and 012 as ten."""
    assert written(tmp_path, PAIR).exit_code == 0
    assert Manifest.read(tmp_path / "privacy.json").document()["mechanism"]["points"][0]["delta"] == 1e-5
    octal = call("check", drafted(tmp_path, changed(SGD, ("steps: 20", "steps: 012"))), "--json")
    assert "mechanism.blocks[0].steps" in octal.stdout


def test_a_bad_delta_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    result = written(tmp_path, PAIR, "--delta", "0")
    assert result.exit_code == 2
    assert "--delta: got 0.0; accepted: a number strictly between 0 and 1" in result.stderr
    assert not (tmp_path / "privacy.json").exists()


def test_write_never_replaces_a_record(tmp_path: Path) -> None:
    (tmp_path / "privacy.json").write_text("mine")
    result = written(tmp_path, PAIR)
    assert result.exit_code == 2
    assert "a file that does not exist yet" in result.stderr
    assert (tmp_path / "privacy.json").read_text() == "mine"


def test_an_unstated_generator_is_not_written_as_insecure(tmp_path: Path) -> None:
    written(tmp_path, PAIR)
    assert "secure_rng" not in Manifest.read(tmp_path / "privacy.json").document()["noise"]


def test_check_gives_the_cost_at_the_delta_asked_for(tmp_path: Path) -> None:
    assert written(tmp_path, PAIR).exit_code == 0
    shown = " ".join(call("check", tmp_path).stdout.split())
    assert "Released alone, with all its iterates: ε = 1.2000 at δ = 1e-05" in shown
    document = json.loads(call("check", tmp_path, "--delta", "1e-6", "--json").stdout)
    assert document["released_alone"]["epsilon"] == "inf"


def test_check_reads_the_checkpoints_too(tmp_path: Path) -> None:
    save_file({"w": np.ones(3, dtype=np.float32)}, tmp_path / "model.safetensors")
    written(tmp_path, PAIR + KEPT)
    assert call("check", tmp_path).exit_code == 0
    save_file({"w": np.zeros(3, dtype=np.float32)}, tmp_path / "model.safetensors")
    result = call("check", tmp_path / "privacy.json")
    assert result.exit_code == 2
    assert "checkpoints[0].files[0].sha256" in result.stderr


def test_check_names_every_field_that_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "privacy.json").write_text('{"schema": "dpmerge/run/v2"}')
    result = call("check", tmp_path)
    assert result.exit_code == 2
    assert "privacy.json: schema: got 'dpmerge/run/v2'; accepted: \"dpmerge/run/v1\"" in result.stderr
    assert "privacy.json: run: missing; write 1 to 100 letters" in result.stderr


def test_check_of_a_written_manifest_names_all_that_sgd_has_to_say(tmp_path: Path) -> None:
    manifest = json.loads((EXAMPLES / "probe" / "s16" / "privacy.json").read_text())
    manifest["mechanism"]["optimizer"] = {"name": "sgd"}
    (tmp_path / "privacy.json").write_text(json.dumps(manifest))
    problems = json.loads(call("check", tmp_path, "--json").stdout)["problems"]
    missing = [problem["field"].removeprefix("mechanism.optimizer.") for problem in problems]
    assert missing == ["momentum", "nesterov", "dampening", "weight_decay"]


def test_the_option_out_of_version_0_1_still_works_and_is_not_shown(tmp_path: Path) -> None:
    assert call("new", "renyi", "--out", tmp_path / "run.yaml").exit_code == 0
    assert (tmp_path / "run.yaml").exists()
    assert "--out " not in call("new", "--help").stdout


def test_check_of_a_file_that_is_not_there_says_so(tmp_path: Path) -> None:
    for name in ("privacy.json", "run.yaml"):
        result = call("check", tmp_path / name)
        assert result.exit_code == 2
        assert "No such file or directory" in result.stderr
        assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_schema_prints_the_schema(more: tuple[str, ...]) -> None:
    assert json.loads(call("schema", *more).stdout) == json_schema()


EXAMPLES = Path(__file__).parents[2] / "examples"
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "verbs" / "manifest.md"


def test_the_example_of_the_page_is_valid(tmp_path: Path) -> None:
    save_file({"w": np.ones(3, dtype=np.float32)}, tmp_path / "model.safetensors")
    [draft] = re.findall(r"^```yaml\n(.*?)^```", PAGE.read_text(), re.S | re.M)
    result = written(tmp_path, draft)
    assert result.exit_code == 0, result.stderr
    assert Portfolio.load(tmp_path).everything().profile().epsilon(1e-5) == 1.2


@pytest.mark.parametrize("verb", ["new", "write", "check", "upgrade"])
def test_every_option_of_the_manifest_verbs_is_on_the_page(verb: str) -> None:
    shown = CliRunner().invoke(app, ["manifest", verb, "--help"], env={"COLUMNS": "200"}).stdout
    named = set(re.findall(r"--[a-z][a-z-]+", shown)) - {"--help", "--output"}
    assert [option for option in sorted(named) if option not in PAGE.read_text()] == []
    assert "-o run.yaml" in PAGE.read_text()
