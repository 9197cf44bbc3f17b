"""Runs recorded under zero_out: what they cost, what is written, what is vouched for, what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from dp_accounting.pld import privacy_loss_distribution as dp_pld
from torch import nn

import dpmerge as dpm
from dpmerge.accounting import GaussianProfile
from dpmerge.accounting.premises import NULL_RECORD
from dpmerge.portfolio.manifest import Manifest
from dpmerge.training import Ancestry
from dpmerge.training.realised_divisor import RealisedDivisorCheck
from training.loops import QUIET, data, private, recorded, refusing

pytestmark = [pytest.mark.filterwarnings(text) for text in QUIET]
DELTA = 1e-5


def trained(folder: Path, *, steps: int = 4, noise: float = 2.0, batches: str = "full", **settings: Any) -> Manifest:
    run = private(nn.Linear(16, 4), batches=batches, noise=noise)
    given = {"run": folder.name, "adjacency": "zero_out", "who": "Ann", "stopping": "fixed", "schedule": "fixed"}
    with recorded(run, folder, **given | settings) as recorder:
        run.train(steps)
    return Manifest.read(recorder.folder / "privacy.json")


def test_the_number_of_records_is_written_and_no_divisor_is_asked_for(tmp_path: Path) -> None:
    for batches in ("full", "poisson", "shuffled", "in_order"):
        manifest = trained(tmp_path / batches, batches=batches)
        assert (manifest.adjacency, manifest.dataset.size) == ("zero_out", 48)
        assert manifest.mechanism.public_divisor  # type: ignore[union-attr]


def test_a_full_batch_costs_half_of_what_it_does_under_replace_one(tmp_path: Path) -> None:
    zero_out = trained(tmp_path / "a", steps=9).mechanism_from(None).profile()
    replace_one = trained(tmp_path / "b", steps=9, adjacency="replace_one").mechanism_from(None).profile()
    assert (zero_out, replace_one) == (GaussianProfile(3 / 2), GaussianProfile(3.0))


def test_poisson_batches_cost_what_dp_accounting_says_of_a_record_made_null(tmp_path: Path) -> None:
    """Its REPLACE_SPECIAL; the pair of distributions is that of adding or removing one."""
    manifest = trained(tmp_path / "a", steps=20, noise=1.0, batches="poisson")
    rate = manifest.mechanism.blocks[0].sampling_rate  # type: ignore[union-attr]
    theirs = dp_pld.from_gaussian_mechanism(
        1.0, sampling_prob=rate, value_discretization_interval=1e-3, use_connect_dots=True
    ).self_compose(20)
    ours = manifest.mechanism_from(None).profile().epsilon(DELTA)
    assert ours == pytest.approx(theirs.get_epsilon_for_delta(DELTA), rel=2e-3)


@pytest.mark.parametrize("batches", ["shuffled", "in_order"])
def test_shuffled_batches_cost_a_step_for_each_pass(tmp_path: Path, batches: str) -> None:
    """48 records in batches of 12: eight steps are two passes."""
    manifest = trained(tmp_path / "a", steps=8, noise=4.0, batches=batches)
    assert manifest.mechanism_from(None).profile() == GaussianProfile(math.sqrt(2) / 4)


def test_a_certificate_names_who_vouches_for_the_null_record(tmp_path: Path) -> None:
    """From the training loop to a release that somebody else verifies."""
    models = tmp_path / "models"
    for name in ("a", "b"):
        trained(models / name, steps=3, noise=8.0, ancestry=Ancestry(start="random"))
    portfolio = dpm.Portfolio.load(models)
    plan = dpm.plan(portfolio, epsilon=4.0, delta=DELTA)
    release = dpm.release(plan, out=tmp_path / "out", final=plan.terms.is_final)
    [premise] = [p for p in release.content["premises"] if p["name"] == NULL_RECORD]
    assert premise["holds"]
    assert "by Ann" in premise["vouchedBy"]
    assert release.content["terms"]["adjacency"] == "zero_out"
    assert dpm.verify(tmp_path / "out", portfolio=portfolio).verified
    card = (tmp_path / "out" / "README.md").read_text()
    assert "leaving the data of one record empty" in card
    assert "a null record enters nothing but the draw" in card
    assert json.loads((models / "a" / "privacy.json").read_text())["dataset"]["size"] == 48


# A realised divisor


def test_a_divisor_that_follows_the_batches_is_refused(tmp_path: Path) -> None:
    run = private(nn.Linear(16, 4), dataset=data(48))
    with refusing(run, tmp_path, "optimizer.expected_batch_size: changed", adjacency="zero_out"):
        for batch in run.loader:
            run.optimizer.expected_batch_size = 100 + len(batch[0])  # never the expected 12
            run.step(batch)


@pytest.mark.parametrize("adjacency", ["zero_out", "replace_one"])
def test_a_rate_that_divides_by_the_realised_size_is_refused(tmp_path: Path, adjacency: str) -> None:
    run = private(nn.Linear(16, 4), dataset=data(48), batch_size=8, loss_reduction="sum")
    with refusing(run, tmp_path, "the realised size of a Poisson batch is divided by", adjacency=adjacency) as recorder:
        for _ in range(20):
            for batch in run.loader:
                for group in run.optimizer.param_groups:
                    group["lr"] = 0.5 / max(len(batch[0]), 1)
                run.step(batch)
    assert recorder.manifest().mechanism.blocks[0].steps >= 2, "the step that showed it is not in the record"


def test_rates_that_do_not_follow_the_batches_pass() -> None:
    constant, halved = RealisedDivisorCheck(), RealisedDivisorCheck()
    for step, rows in enumerate([4, 8, 2, 0, 16, 4]):
        constant.require_other(0.1, rows)
        halved.require_other(0.1 / 2**step, rows)
    equal = RealisedDivisorCheck()
    for _ in range(5):
        equal.require_other(0.1, 4)
