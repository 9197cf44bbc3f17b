"""Every bad spec has a name, exits 2 and says in one line what was wrong, where, and what would be accepted."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dpmerge.cli import app

BLOCK = {"steps": 3, "noise_multiplier": 2, "clip_norm": 1, "learning_rate": [0.1, 0.2, 0.3]}
GOOD: dict[str, Any] = {
    "adjacency": "replace_one",
    "delta": 1e-5,
    "runs": [{"blocks": [BLOCK]}, {"blocks": [BLOCK]}],
    "weights": [0.5, 0.5],
    "probabilities": [0.5, 0.5],
}


def changed(*path: str | int, to: Any) -> str:
    """GOOD with one value replaced (or added)."""
    spec = copy.deepcopy(GOOD)
    place = spec
    for part in path[:-1]:
        place = place[part]  # type: ignore[index]
    place[path[-1]] = to  # type: ignore[index]
    return json.dumps(spec)


def without(*path: str | int) -> str:
    spec = copy.deepcopy(GOOD)
    place = spec
    for part in path[:-1]:
        place = place[part]  # type: ignore[index]
    del place[path[-1]]  # type: ignore[arg-type]
    return json.dumps(spec)


FIRST = ("runs", 0, "blocks", 0)

# name: (the spec's text, what the message must contain)
INVALID: dict[str, tuple[str, tuple[str, ...]]] = {
    "broken JSON": ('{"adjacency": ', ("spec: got", "broken JSON", "accepted: one JSON object")),
    "empty file": ("", ("spec: got", "broken JSON")),
    "not an object": ("[1, 2]", ("spec: got [1, 2]", "one JSON object")),
    "an integer of 5000 digits": ('{"delta": ' + "1" * 5000 + "}", ("spec: got broken JSON", "one JSON object")),
    "a feature bound beyond reason": (
        changed("runs", 0, "smoothness", to={"kind": "logistic", "feature_bound": 1e200}),
        ("runs[0].smoothness.feature_bound: got 1e+200", "1e-30 to 1e+30"),
    ),
    "a batch size beyond reason": (
        changed("runs", 0, "smoothness", to={"kind": "logistic", "batch_size": 10**400}),
        ("runs[0].smoothness.records: got 1000", "an integer from 1 to"),
    ),
    "an epoch beyond reason": (
        changed("runs", 0, to={"blocks": [BLOCK], "sampling": "shuffled", "steps_per_epoch": 10**400}),
        ("runs[0].steps_per_epoch: got 1000", "an integer from 1 to"),
    ),
    "weight decay beyond reason": (changed("runs", 0, "weight_decay", to=1e200), ("weight_decay: got 1e+200",)),
    "an order beyond reason": (changed("rdp_orders", to=[2, 1e31]), ("rdp_orders: got", "at most 100000")),
    "duplicate field": ('{"delta": 1e-5, "delta": 1e-6}', ("delta: got", "the same field twice", "each field once")),
    "unknown field": (changed("epsilon", to=1), ("epsilon: got", "unknown field", "adjacency, delta, rdp_orders")),
    "unknown field of a run": (changed("runs", 1, "sigma", to=1), ("runs[1].sigma", "unknown", "blocks, sampling")),
    "unknown field of a block": (changed(*FIRST, "sigma", to=1), ("runs[0].blocks[0].sigma", "noise_multiplier")),
    "no adjacency": (without("adjacency"), ("adjacency: got", '"replace_one", "add_remove" or "zero_out"')),
    "wrong adjacency": (changed("adjacency", to="substitute"), ("adjacency: got 'substitute'", "add_remove")),
    "delta zero": (changed("delta", to=0), ("delta: got 0", "strictly between 0 and 1")),
    "delta one": (changed("delta", to=1), ("delta: got 1", "strictly between 0 and 1")),
    "delta negative": (changed("delta", to=-1e-5), ("delta: got -1e-05", "strictly between 0 and 1")),
    "delta as text": (changed("delta", to="1e-5"), ("delta: got '1e-5'", "strictly between 0 and 1")),
    "delta NaN": (changed("delta", to=float("nan")), ("delta: got nan", "strictly between 0 and 1")),
    "no runs": (changed("runs", to=[]), ("runs: got []", "a non-empty list of runs")),
    "runs missing": (without("runs"), ("runs: got", "a non-empty list of runs")),
    "a run that is a list": (changed("runs", 0, to=[]), ("runs[0]: got []", "an object with blocks, sampling")),
    "a block that is a number": (changed(*FIRST, to=3), ("runs[0].blocks[0]: got 3", "an object with steps")),
    "no blocks": (changed("runs", 0, "blocks", to=[]), ("runs[0].blocks: got []", "non-empty")),
    "steps zero": (changed(*FIRST, "steps", to=0), ("runs[0].blocks[0].steps: got 0", "an integer ≥ 1")),
    "steps fractional": (changed(*FIRST, "steps", to=2.5), ("blocks[0].steps: got 2.5", "an integer")),
    "steps true": (changed(*FIRST, "steps", to=True), ("blocks[0].steps: got True", "an integer")),
    "steps beyond reason": (
        changed(*FIRST, to={**BLOCK, "learning_rate": 1, "steps": 10**12}),
        ("blocks[0].steps: got 1000000000000", "an integer from 1 to"),
    ),
    "negative noise": (changed(*FIRST, "noise_multiplier", to=-1), ("noise_multiplier: got -1", "≥ 0")),
    "noise NaN": (changed(*FIRST, "noise_multiplier", to=float("nan")), ("noise_multiplier: got nan", "finite")),
    "noise infinite": (changed(*FIRST, "noise_multiplier", to=float("inf")), ("noise_multiplier: got inf", "finite")),
    "clip norm zero": (changed(*FIRST, "clip_norm", to=0), ("clip_norm: got 0", "> 0")),
    "clip norm text": (changed(*FIRST, "clip_norm", to="1"), ("clip_norm: got '1'", "> 0")),
    "rate negative": (changed(*FIRST, "learning_rate", to=-0.1), ("learning_rate: got -0.1", "≥ 0")),
    "rate in list NaN": (
        changed(*FIRST, "learning_rate", to=[0.1, float("nan"), 0.1]),
        ("runs[0].blocks[0].learning_rate[1]: got nan", "≥ 0"),
    ),
    "rates too few": (
        changed(*FIRST, "learning_rate", to=[0.1, 0.2]),
        ("runs[0].blocks[0].learning_rate: got", "2 numbers", "one number, or 3"),
    ),
    "rates empty": (changed(*FIRST, "learning_rate", to=[]), ("learning_rate: got", "0 numbers", "or 3")),
    "sampling rate zero": (changed(*FIRST, "sampling_rate", to=0), ("sampling_rate: got 0", "(0, 1]")),
    "sampling rate above one": (changed(*FIRST, "sampling_rate", to=1.5), ("sampling_rate: got 1.5", "(0, 1]")),
    "sampling unknown": (changed("runs", 0, "sampling", to="bernoulli"), ("runs[0].sampling: got", "shuffled")),
    "full batch that samples": (
        changed("runs", 0, to={"blocks": [{**BLOCK, "sampling_rate": 0.5}], "sampling": "full_batch"}),
        ("runs[0].blocks[0].sampling_rate: got 0.5", "only poisson ones have a rate"),
    ),
    "shuffled without an epoch": (
        changed("runs", 0, "sampling", to="shuffled"),
        ("runs[0].steps_per_epoch: got None", "for shuffled batches"),
    ),
    "an epoch without shuffling": (
        changed("runs", 0, "steps_per_epoch", to=3),
        ("runs[0].steps_per_epoch: got 3", "left out for all others"),
    ),
    "shuffled under add_remove": (
        json.dumps(
            {
                "adjacency": "add_remove",
                "delta": 1e-5,
                "runs": [{"blocks": [BLOCK], "sampling": "shuffled", "steps_per_epoch": 3}],
            }
        ),
        ("runs[0].sampling: got 'shuffled'", "full_batch or poisson under add_remove"),
    ),
    "clipping unknown": (changed("runs", 0, "clipping", to="layer"), ("runs[0].clipping: got 'layer'", "aggregate")),
    "momentum negative": (changed("runs", 0, "momentum", to=-1), ("runs[0].momentum: got -1", "≥ 0")),
    "weight decay NaN": (changed("runs", 0, "weight_decay", to=float("nan")), ("weight_decay: got nan", "≥ 0")),
    "lipschitz negative": (changed("runs", 0, "lipschitz", to=-1), ("runs[0].lipschitz: got -1", "≥ 0")),
    "lipschitz list too long": (
        changed("runs", 0, "lipschitz", to=[1, 1, 1, 1]),
        ("runs[0].lipschitz: got", "4 numbers", "one number, or 3"),
    ),
    "lipschitz and smoothness": (
        changed("runs", 0, to={"blocks": [BLOCK], "lipschitz": 1, "smoothness": {"kind": "logistic"}}),
        ("runs[0].lipschitz: got 1", "either lipschitz or smoothness"),
    ),
    "smoothness without a kind": (changed("runs", 0, "smoothness", to={}), ("runs[0].smoothness.kind", "logistic")),
    "smoothness of unknown kind": (
        changed("runs", 0, "smoothness", to={"kind": "relu"}),
        ("runs[0].smoothness.kind: got 'relu'", "softmax"),
    ),
    "declared without beta": (
        changed("runs", 0, "smoothness", to={"kind": "declared"}),
        ("runs[0].smoothness.beta: got None", "a number ≥ 0"),
    ),
    "feature bound zero": (
        changed("runs", 0, "smoothness", to={"kind": "logistic", "feature_bound": 0}),
        ("smoothness.feature_bound: got 0", "> 0"),
    ),
    "batch size fractional": (
        changed("runs", 0, "smoothness", to={"kind": "logistic", "batch_size": 1.5}),
        ("smoothness.batch_size: got 1.5", "an integer ≥ 1"),
    ),
    "release noise negative": (changed("release_noise", to=-1), ("release_noise: got -1", "≥ 0")),
    "shared_affine as number": (changed("shared_affine", to=1), ("shared_affine: got 1", "true or false")),
    "orders empty": (changed("rdp_orders", to=[]), ("rdp_orders: got []", "> 1")),
    "order one": (changed("rdp_orders", to=[1, 2]), ("rdp_orders: got", "> 1")),
    "order NaN": (changed("rdp_orders", to=[2, float("nan")]), ("rdp_orders[1]: got nan", "> 1")),
    "weights too few": (changed("weights", to=[1.0]), ("weights: got [1.0]", "2 numbers ≥ 0 that sum to 1")),
    "weights off the simplex": (
        changed("weights", to=[0.5, 0.5001]),
        ("weights: got [0.5, 0.5001], which sum to 1.0001", "sum to 1"),
    ),
    "weights barely off": (changed("weights", to=[0.5, 0.5 + 3e-9]), ("weights: got", "within 1e-09")),
    "weights negative": (changed("weights", to=[1.5, -0.5]), ("weights: got [1.5, -0.5]", "≥ 0")),
    "weights NaN": (changed("weights", to=[0.5, float("nan")]), ("weights[1]: got nan", "≥ 0")),
    "probabilities too many": (changed("probabilities", to=[0.5, 0.25, 0.25]), ("probabilities: got", "2 numbers")),
    "probabilities empty": (changed("probabilities", to=[]), ("probabilities: got []", "2 numbers")),
    "probabilities as text": (changed("probabilities", to="even"), ("probabilities: got 'even'", "one number")),
}


@pytest.mark.parametrize("name", INVALID)
def test_an_invalid_spec_is_refused_in_one_line_that_names_the_field(name: str, tmp_path: Path) -> None:
    text, fragments = INVALID[name]
    path = tmp_path / "spec.json"
    path.write_text(text)
    for arguments in (["account", str(path)], ["account", str(path), "--json"]):
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 2
        assert result.stdout == ""
        assert result.stderr.startswith("error: ")
        assert result.stderr.count("\n") == 1
        for fragment in fragments:
            assert fragment in result.stderr


def test_the_spec_that_the_invalid_ones_are_made_from_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "spec.json"
    path.write_text(json.dumps(GOOD))
    assert CliRunner().invoke(app, ["account", str(path)]).exit_code == 0


def test_a_spec_that_is_not_there_is_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["account", str(tmp_path / "none.json")])
    assert result.exit_code == 2
    assert "none.json: cannot be read: No such file or directory; needed: a readable JSON file" in result.stderr


def test_a_folder_instead_of_a_spec_is_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["account", str(tmp_path)])
    assert result.exit_code == 2
    assert "needed: a readable JSON file" in result.stderr


def test_a_spec_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "spec.json"
    path.write_bytes(b'{"adjacency": "\xff\xfe\xfa"}')
    result = CliRunner().invoke(app, ["account", str(path)])
    assert result.exit_code == 2
    assert "UTF-8" in result.stderr


def test_a_delta_below_what_subsampling_can_promise_is_refused(tmp_path: Path) -> None:
    spec = copy.deepcopy(GOOD)
    spec["adjacency"], spec["delta"] = "add_remove", 1e-12
    spec["runs"][0]["blocks"][0]["sampling_rate"] = 0.1
    path = tmp_path / "spec.json"
    path.write_text(json.dumps(spec))
    result = CliRunner().invoke(app, ["account", str(path)])
    assert result.exit_code == 2
    assert "delta: got 1e-12; accepted: at least 1e-10" in result.stderr


def test_a_missing_spec_ends_without_a_traceback_in_a_process(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from dpmerge.cli import app; app()", "account", str(tmp_path / "none.json")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
