"""`--executor` on the verbs: the same results, and what is refused before anything is done."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from soak.kills import WANTED, loaded, write_models
from typer.testing import CliRunner

from dpmerge.cli import app
from dpmerge.ledger.ledger import Ledger
from dpmerge.merging.gaussian_sampler import SAMPLER
from dpmerge.releasing import settings
from dpmerge.releasing.recover import recover
from dpmerge.releasing.release import release
from releasing.faults import charged, release_killed_at

EXAMPLES = Path(__file__).parents[2] / "examples"
PUBLIC = f"linear:{EXAMPLES / 'mnist' / 'public.npz'}"
AT = ("--epsilon", "0.8", "--delta", "1e-5")


@pytest.fixture
def models(tmp_path: Path) -> Path:
    return shutil.copytree(EXAMPLES / "mnist", tmp_path / "models")


def run(*words: object) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(*words: object) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 2, result.output
    return result.stderr


def test_an_audit_and_a_plan_are_the_same_on_processes(models: Path, tmp_path: Path) -> None:
    run("plan", models, *AT, "-o", tmp_path / "plan.json")
    asked = ("audit", tmp_path / "plan.json", "--portfolio", models, "--trials", "2000", "--json")
    assert run(*asked, "--executor", "processes:2") == run(*asked)
    scored = ("plan", models, *AT, "--evaluator", "executors.worker_tasks:total", "--evaluations", "6", "--json")
    assert run(*scored, "--executor", "processes:2") == run(*scored)


def test_scenarios_are_the_same_on_processes() -> None:
    asked = ("audit", "--scenario", "logistic", "--scenario", "logistic_without_noise", "--trials", "500", "--json")
    here, there = (json.loads(run(*asked, *more)) for more in ((), ("--executor", "processes:2")))
    for one, other in zip(here["scenarios"], there["scenarios"], strict=True):
        assert one | {"seconds": 0} == other | {"seconds": 0}


def test_a_merge_by_processes_verifies(models: Path, tmp_path: Path) -> None:
    run("merge", models, *AT, "-o", tmp_path / "out", "--executor", "processes:2")
    run("verify", tmp_path / "out", "--portfolio", models, "--rebuild")
    assert not list(tmp_path.rglob("*.partial"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--executor", "spark://x"), "executor: got 'spark://x'; accepted: threads:N"),
        (("--workers-per-node", "2"), "workers-per-node: got 2; accepted: --executor ray"),
        (("--executor", "threads:2", "--workers-per-node", "2"), "of threads:2 the name says how many"),
    ],
)
def test_what_cannot_be_opened_is_refused_before_a_charge(
    models: Path, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    assert said in refused("merge", models, *AT, "-o", tmp_path / "out", *words)
    assert not (models / "privacy-ledger.sqlite").exists()
    assert not (tmp_path / "out").exists()


def test_options_that_contradict_each_other_are_refused(models: Path) -> None:
    at_once = ("--executor", "processes:2", "--jobs", "2")
    assert "no --jobs beside --executor" in refused("frontier", models, "--evaluator", PUBLIC, *at_once)
    said = refused("plan", models, *AT, "--executor", "processes:2")
    assert "public_evaluation or private_validation where --executor is given" in said


def test_scores_are_not_kept_in_a_store(models: Path) -> None:
    said = refused("frontier", models, "--evaluator", PUBLIC, "--cache", "s3://bucket/scores.jsonl")
    assert "cache: got 's3://bucket/scores.jsonl'; accepted: a file on disk" in said


def test_noise_is_made_by_the_sampler_that_was_charged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A charge that an older version left is finished by that version: its certificate would name another sampler."""
    home = write_models(tmp_path / "models", values=64, tensors=2)
    wanted = WANTED[2]
    release_killed_at("charged", home, tmp_path / "out", wanted)
    [charge] = charged(home)
    assert charge.details["tools"]["release noise"] == SAMPLER
    monkeypatch.setattr(settings, "SAMPLER", "another 3")
    with Ledger.open(home / "privacy-ledger.sqlite") as ledger:
        [left] = recover(ledger)
    assert left.pending
    assert f"it was charged to be made by {SAMPLER}, and this version makes it by another 3" in str(left.problem)
    monkeypatch.undo()
    with Ledger.open(home / "privacy-ledger.sqlite") as ledger:
        [done] = recover(ledger)
    assert (done.pending, done.problem) == (False, None)


def test_a_plan_without_noise_names_no_sampler(tmp_path: Path) -> None:
    home = write_models(tmp_path / "models", values=64, tensors=2)
    made = release(WANTED[0].plan(loaded(home)), out=tmp_path / "out")
    assert "release noise" not in made.content["tools"]
