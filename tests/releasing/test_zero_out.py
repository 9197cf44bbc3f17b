"""zero_out from the outside: hand-written manifests, a plan, a merged model, its certificate, the ledger."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result
from safetensors.numpy import load_file, save_file
from typer.testing import CliRunner

import dpmerge as dpm
from attacks.forging import forged
from dpmerge.accounting import GaussianProfile, compose
from dpmerge.accounting.premises import NULL_RECORD
from dpmerge.cli import app
from dpmerge.errors import ManifestError, MixedPortfolioError, NoGuaranteeError
from dpmerge.portfolio.manifest import Manifest

DELTA = 1e-5
DRAFT = """
schema: dpmerge/run/v1
run: {name}
dataset: {{id: adult, size: 400}}
unit: record
adjacency: {adjacency}
mechanism:
  kind: dp_sgd
  blocks:
    - {{steps: 20, noise_multiplier: {noise}, clip_norm: 1, optimizer_learning_rate: 1, sampling_rate: {rate}}}
  sampling: {sampling}
  clipping: per_example
  flat_clipping: true
  optimizer: {{name: sgd, momentum: 0, nesterov: false, dampening: 0, weight_decay: 0}}
  loss_reduction: mean
  expected_batch_size: 40
  public_divisor: {public_divisor}
noise: {{source: os_entropy}}
ancestry: {{start: random}}
tuning: none
stopping: fixed
schedule: fixed
record_losses: vouched
model: linear
tensors: {{trained: [w], frozen: []}}
checkpoints: [{{step: 20, files: [model.safetensors]}}]
recorded_by: {{how: hand, who: Ann}}
"""
SETTINGS = {
    "adjacency": "zero_out",
    "noise": "4",
    "rate": "0.1",
    "sampling": "poisson",
    "public_divisor": "true",
}


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, [*map(str, arguments)], env={"COLUMNS": "200", "DPMERGE_LEDGER": None})


def written(home: Path, name: str, weight: float = 1.0, **settings: str) -> Path:
    """A run as somebody states it, made into a manifest by the command line."""
    folder = home / name
    folder.mkdir(parents=True)
    save_file({"w": np.full(3, weight, dtype=np.float32)}, folder / "model.safetensors")
    (folder / "run.yaml").write_text(DRAFT.format(name=name, **SETTINGS | settings))
    result = call("manifest", "write", folder / "run.yaml")
    assert result.exit_code == 0, result.output
    return folder


@pytest.fixture
def models(tmp_path: Path) -> Path:
    for place, noise in enumerate(("4", "6")):
        written(tmp_path / "models", "ab"[place], 1.0 + place, noise=noise)
    return tmp_path / "models"


def test_from_manifests_to_a_verified_model_and_its_ledger(models: Path, tmp_path: Path) -> None:
    plan, out = tmp_path / "plan.json", tmp_path / "out"
    for arguments in (
        ("inspect", models, "--delta", DELTA),
        ("plan", models, "--epsilon", "1", "--delta", DELTA, "--theorem", "joint_release", "-o", plan),
        ("merge", models, "--plan", plan, "-o", out),
        ("verify", out, "--portfolio", models, "--rebuild"),
        ("ledger", "show", models),
    ):
        result = call(*arguments)
        assert result.exit_code == 0, result.output
        assert "zero_out" in result.output
    content = json.loads(call("verify", out, "--json").stdout)
    assert json.loads(plan.read_text())["adjacency"] == "zero_out"
    assert content["verified"]
    certificate = dpm.verify(out, portfolio=models).content
    [premise] = [each for each in certificate["premises"] if each["name"] == NULL_RECORD]
    assert premise["holds"]
    assert "Ann" in premise["vouchedBy"]
    assert "public_divisor" not in {each["name"] for each in certificate["premises"]}
    assert "leaving the data of one record empty, the number of records being public" in (out / "README.md").read_text()
    assert 1.0 <= float(load_file(out / "model.safetensors")["w"][0]) <= 2.0


def test_a_certificate_of_replace_one_is_not_forged_into_one_of_zero_out(tmp_path: Path) -> None:
    """Half of the cost by one changed word: figures that fit it are refused by the runs' own manifests."""
    written(tmp_path / "models", "a", adjacency="replace_one", sampling="full_batch", rate="1")
    plan = dpm.plan(dpm.Portfolio.load(tmp_path / "models"), epsilon=12, delta=DELTA, theorem="joint_release")
    dpm.release(plan, out=tmp_path / "out")
    forgery = forged(
        tmp_path / "out", tmp_path / "forged", lambda declared: declared["terms"].update(adjacency="zero_out")
    )
    figures = [dpm.verify(folder).content["guarantee"]["epsilon"] for folder in (tmp_path / "out", forgery)]
    assert figures[1] < 0.6 * figures[0]
    assert dpm.verify(tmp_path / "out", portfolio=tmp_path / "models").verified
    assert not dpm.verify(forgery, portfolio=tmp_path / "models").verified


def test_full_batches_and_histories_cost_one_clip_norm(tmp_path: Path) -> None:
    folder = written(tmp_path, "a", sampling="full_batch", rate="1")
    assert Manifest.read(folder / "privacy.json").mechanism_from(None).profile() == GaussianProfile(np.sqrt(20) / 4)
    old = tmp_path / "old"
    old.mkdir()
    (old / "history.json").write_text('{"history": [[4.0, 0.1, 20]]}')
    save_file({"w": np.zeros(3, dtype=np.float32)}, old / "model.safetensors")
    dpm.import_models(
        [old],
        dataset="adult",
        size=400,
        adjacency="zero_out",
        sampling="poisson",
        public_divisor=True,
        noise_source="os_entropy",
        start="random",
        who="Ann",
    )
    imported = Manifest.read(old / "privacy.json")
    sampled = Manifest.read(written(tmp_path, "b") / "privacy.json").mechanism_from(None).profile()
    assert imported.dataset.size == 400
    assert imported.mechanism_from(None).profile().epsilon(DELTA) == sampled.epsilon(DELTA)


# Refused


def test_a_realised_divisor_has_no_number_with_poisson_batches(tmp_path: Path) -> None:
    """It is the statement that is refused, by its name; without sampling, the size of a batch tells nothing."""
    for adjacency in ("zero_out", "replace_one"):
        folder = written(tmp_path / adjacency, "a", public_divisor="false", adjacency=adjacency)
        made = Manifest.read(folder / "privacy.json").mechanism_from(None)
        with pytest.raises(NoGuaranteeError, match="realised size of each batch, and public_divisor is false"):
            made.profile()
        assert "realised size" in call("manifest", "check", folder / "privacy.json").stdout.replace("\n", " ")
    whole = written(tmp_path, "b", public_divisor="false", sampling="full_batch", rate="1")
    assert Manifest.read(whole / "privacy.json").mechanism_from(None).profile() == GaussianProfile(np.sqrt(20) / 4)


def test_members_of_a_portfolio_agree_on_it(models: Path) -> None:
    written(models, "c", adjacency="replace_one")
    with pytest.raises(MixedPortfolioError, match="adjacency: 'replace_one' here, 'zero_out' in"):
        dpm.Portfolio.load(models)


def test_an_adjacency_that_does_not_exist_is_refused_with_those_that_do(models: Path) -> None:
    document = json.loads((models / "a" / "privacy.json").read_text())
    (models / "a" / "privacy.json").write_text(json.dumps({**document, "adjacency": "zeroed_out"}))
    with pytest.raises(ManifestError, match='"replace_one", "add_remove" or "zero_out"'):
        Manifest.read(models / "a" / "privacy.json")


def test_no_command_changes_the_adjacency_of_a_manifest(models: Path) -> None:
    """Nothing is converted: what was stated under one adjacency stays there."""
    before = (models / "a" / "privacy.json").read_bytes()
    result = call("manifest", "upgrade", models, "--set", "adjacency=replace_one", "--vouched-by", "Ann")
    assert result.exit_code == 2
    assert (models / "a" / "privacy.json").read_bytes() == before


def test_a_ledger_never_adds_one_adjacency_to_another(models: Path, tmp_path: Path) -> None:
    """One ledger for two portfolios of one data set: two scopes, each with the cost of its own."""
    written(tmp_path / "others", "c", 3.0, adjacency="replace_one")
    ledger = f"sqlite:///{tmp_path / 'ledger.sqlite'}"
    spent = {}
    for name in ("models", "others"):
        portfolio = dpm.Portfolio.load(tmp_path / name)
        plan = dpm.plan(portfolio, epsilon=2.0, delta=DELTA, theorem="joint_release")
        dpm.release(plan, out=tmp_path / f"out-{name}", ledger=ledger)
        spent[str(portfolio.adjacency)] = plan.terms.profile
    with dpm.Ledger.of(ledger=ledger) as kept:
        reports = {report.scope.adjacency: report for report in kept.reports(delta=DELTA)}
    assert set(reports) == {"zero_out", "replace_one"}
    together = compose(list(spent.values())).epsilon(DELTA)
    for adjacency, report in reports.items():
        assert report.epsilon == pytest.approx(spent[adjacency].epsilon(DELTA), rel=1e-6)
        assert report.epsilon is not None
        assert report.epsilon < together


def test_account_takes_it_and_refuses_what_it_does_not_prove(tmp_path: Path) -> None:
    block = {"steps": 20, "noise_multiplier": 32, "clip_norm": 2, "learning_rate": 4}
    spec = {"adjacency": "zero_out", "delta": DELTA, "runs": [{"blocks": [block]}]}
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    shown = json.loads(call("account", tmp_path / "spec.json", "--json").stdout)
    assert shown["adjacency"] == "zero_out"
    assert shown["single"][0]["epsilon"] == pytest.approx(GaussianProfile(np.sqrt(20) / 32).epsilon(DELTA))
    designed = call("design", "--range", "0.5:2", "--delta", DELTA, "--steps", "20", "--adjacency", "zero_out")
    assert designed.exit_code == 0, designed.output
    assert "zero_out" in designed.output
    refused = call("design", "--range", "0.5:2", "--delta", DELTA, "--adjacency", "nulled")
    assert refused.exit_code == 2
    assert "adjacency: got 'nulled'" in refused.output
