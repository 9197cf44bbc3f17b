"""Rates and stopping decided by un-noised training losses: nobody can see why a rate was halved, so it has to be said.

The record is true step by step, and its ε is that of the steps; that the steps were chosen by private records is in no
number. One record that decides by itself whether there is a second step is told from another for certain, since the
number of steps is public: claimed 0.2, true without any bound. So whatever was not fixed beforehand, or decided by
public data, is a caveat of the certificate.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from attacks.faults import must_notice
from dpmerge.planning.stated_weights import stated_weights
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.terms.guarantee import Guarantee
from training.loops import QUIET, private, recorded

pytestmark = pytest.mark.filterwarnings(*QUIET)

CLAIMED, DELTA = 0.2, 1e-5


def told(home: Path, name: str = "run") -> dict[str, str]:
    """The caveats a certificate of the run's last checkpoint would have, by name."""
    portfolio = Portfolio.load(home)
    last = portfolio.run(name).checkpoints[-1].name
    terms = stated_weights(portfolio, {last: 1.0}, Guarantee(epsilon=CLAIMED, delta=DELTA)).terms
    assert terms.proved
    return {caveat.name: caveat.text for caveat in terms.caveats(DELTA)}


def halved_by_the_training_loss(folder: Path, **said: str) -> dict[str, str]:
    """ReduceLROnPlateau on the loss of the private batch, as every tutorial has it."""
    loop = private(batches="full", noise=200.0)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(loop.optimizer.original_optimizer, patience=0, factor=0.5)
    losses = list[float]()

    def kept(output: Tensor, target: Tensor) -> Tensor:
        loss = torch.nn.functional.cross_entropy(output, target)
        losses.append(loss.item())
        return loss

    loop.criterion = kept
    with recorded(loop, folder / "run", **said) as recorder:
        loop.train(4, after=lambda: schedule.step(losses[-1] + 10 * len(losses)))
    assert recorder.epsilon(DELTA) < CLAIMED
    document = json.loads((folder / "run" / "privacy.json").read_text())
    rates = {rate for block in document["mechanism"]["blocks"] for rate in _rates(block)}
    assert len(rates) > 1, "the rate followed the loss"
    return told(folder)


def _rates(block: dict[str, object]) -> list[object]:
    rate = block["learning_rate"]
    return rate if isinstance(rate, list) else [rate]


def test_an_unstated_learning_rate_schedule_is_a_caveat(tmp_path: Path) -> None:
    assert "not recorded" in halved_by_the_training_loss(tmp_path).get("schedule_unknown", "")


def test_a_rate_said_to_follow_the_training_loss_is_a_caveat(tmp_path: Path) -> None:
    said = halved_by_the_training_loss(tmp_path, schedule="private", stopping="fixed")
    assert "decided by private data" in said.get("schedule_private", "")
    assert not [name for name in said if name.startswith("stopping")]


def stopped_by_the_training_loss(folder: Path, **said: str) -> dict[str, str]:
    """Early stopping: one more step if the private loss is above a threshold."""
    loop = private(batches="full", noise=200.0)
    with recorded(loop, folder / "run", **said) as recorder:
        loop.train(1)
        features, labels = loop.loader.dataset.tensors  # type: ignore[attr-defined]
        with torch.no_grad():
            loss = float(torch.nn.functional.cross_entropy(loop.plain(features), labels))
        if loss > 0:
            loop.train(1)
    assert recorder.epsilon(DELTA) < CLAIMED
    return told(folder)


def test_an_unstated_stopping_rule_is_a_caveat(tmp_path: Path) -> None:
    assert "not recorded" in stopped_by_the_training_loss(tmp_path).get("stopping_unknown", "")


def test_decisions_that_are_fixed_or_public_are_no_caveat(tmp_path: Path) -> None:
    said = stopped_by_the_training_loss(tmp_path, stopping="public", schedule="fixed")
    assert not [name for name in said if name.startswith(("stopping", "schedule"))]


def test_tests_notice_when_unstated_decisions_are_no_caveat(tmp_path: Path) -> None:
    module = sys.modules["dpmerge.terms.caveats"]
    must_notice(test_an_unstated_stopping_rule_is_a_caveat, tmp_path, module, "_decided", lambda stated: iter(()))
