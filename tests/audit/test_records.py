"""What is simulated of a run is what its record states, and nothing is simulated where it states too little."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings

from dpmerge.accounting import Adjacency, DpSgd, GaussianDp, GaussianRelease
from dpmerge.accounting.one_shot_mechanisms import AccountantHistory
from dpmerge.auditing.records import schedule_of, schedules_of
from dpmerge.auditing.schedules import Schedule
from dpmerge.auditing.threat_models import everything
from dpmerge.errors import InvalidInputError
from dpmerge.portfolio import Portfolio
from dpmerge.portfolio.manifest import Manifest
from dpmerge.terms.run_record import RunRecord
from portfolio.manifests import Document, manifests
from portfolio.portfolios import DP_SGD, HISTORY, manifest, replaced

EXAMPLES = Path(__file__).parents[2] / "examples"


def stated(mechanism: Document, **overrides: Any) -> RunRecord:
    return Manifest.model_validate(manifest("a", mechanism=mechanism, **overrides)).statement


def read(mechanism: Document, adjacency: Any = "replace_one", **overrides: Any) -> Schedule:
    return schedule_of(stated(mechanism, **overrides), adjacency, {})


def smooth(kind: str, *, rates: list[float], records: int | None = 100, decay: float = 0.0, **facts: Any) -> Document:
    """A run of mean gradients of 50 records at a time, as its record puts it, with what is known of its loss."""
    block = {"steps": len(rates), "noise_multiplier": 8.0, "clip_norm": 10.0, "learning_rate": rates}
    optimizer = {**DP_SGD["optimizer"], "weight_decay": decay}
    known = {"kind": kind, "vouched_by": "the tests", **({} if records is None else {"records": records}), **facts}
    return {**DP_SGD, "blocks": [block], "optimizer": optimizer, "expected_batch_size": 50, "smoothness": known}


def test_the_shipped_runs_are_read_as_they_were_trained() -> None:
    portfolio = Portfolio.load(EXAMPLES / "mnist", contents=False)
    statements = {run.id: run.manifest.statement for run in portfolio.runs}
    schedules = schedules_of(statements, "replace_one")
    assert list(schedules) == list(statements)
    run = schedules["c4-s32"]
    assert (run.steps, run.sampling, run.aggregate, run.optimizer) == (20, "full_batch", False, "sgd")
    assert run.clip_norms.tolist() == [4.0] * 20
    assert run.noise_multipliers.tolist() == [32.0] * 20
    # A mean over 60,000 records with a learning rate that peaks at 4: effective, for the sum.
    assert run.rates.max() * run.divisor == pytest.approx(4.0)
    assert run.stretches is None
    assert run.parent is None


def test_a_smooth_example_does_not_stretch() -> None:
    portfolio = Portfolio.load(EXAMPLES / "probe", contents=False)
    run = schedule_of(portfolio.runs[0].manifest.statement, "replace_one", {})
    # Softmax of features of norm 1: β = ½, and no learning rate is above 4 = 2/β.
    assert run.stretches == pytest.approx(np.ones(20), abs=1e-15)


def test_the_steps_of_several_blocks_follow_one_another() -> None:
    blocks = [
        {"steps": 2, "noise_multiplier": 1.0, "clip_norm": 2.0, "learning_rate": 0.5, "sampling_rate": 0.1},
        {"steps": 1, "noise_multiplier": 3.0, "clip_norm": 4.0, "learning_rate": [0.25], "sampling_rate": 0.2},
    ]
    optimizer = {"name": "SGD", "momentum": 0.9, "nesterov": True, "dampening": 0, "weight_decay": 0.1}
    run = read({**DP_SGD, "blocks": blocks, "sampling": "poisson", "clipping": "aggregate", "optimizer": optimizer})
    assert run.rates.tolist() == [0.5, 0.5, 0.25]
    assert run.clip_norms.tolist() == [2.0, 2.0, 4.0]
    assert run.noise_multipliers.tolist() == [1.0, 1.0, 3.0]
    assert run.sampling_rates.tolist() == [0.1, 0.1, 0.2]
    assert (run.sampling, run.aggregate, run.optimizer, run.divisor) == ("poisson", True, "sgd", 100)
    assert (run.momentum, run.nesterov, run.dampening, run.weight_decay) == (0.9, True, 0.0, 0.1)


def test_a_summed_loss_has_a_divisor_of_one() -> None:
    facts = {name: value for name, value in DP_SGD.items() if name != "expected_batch_size"}
    assert read({**facts, "loss_reduction": "sum"}).divisor == 1.0


# How far updates pull states apart: numbers worked out by hand from the theorem's premises


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        # η of the mean gradient of 100 records is 100 × the effective rate: here 1, 8 and 12.
        (smooth("logistic", rates=[0.01, 0.08, 0.12], feature_bound=1.0), [1.0, 1.0, 2.0]),
        (smooth("squared", rates=[0.01, 0.02, 0.03], feature_bound=1.0), [1.0, 1.0, 2.0]),
        (smooth("huber", rates=[0.01], feature_bound=3.0), [8.0]),
        (smooth("softmax", rates=[0.04, 0.08], feature_bound=1.0), [1.0, 3.0]),
        # A larger β may be stated, for class weights or another scaling; a smaller one is not believed.
        (smooth("squared", rates=[0.03], feature_bound=1.0, beta=2.0), [5.0]),
        (smooth("squared", rates=[0.03], feature_bound=1.0, beta=0.1), [2.0]),
        # Not known to be convex: it may stretch however small the rate is.
        (smooth("declared", rates=[0.01, 0.02], beta=0.5), [1.5, 2.0]),
        # Weight decay shrinks by learning rate (effective rate × 50) × decay: here by 0.05 and by 1.5.
        (smooth("logistic", rates=[0.01], feature_bound=1.0, decay=0.1), [0.95]),
        (smooth("logistic", rates=[0.3], feature_bound=0.1, decay=0.1), [0.575]),
        (smooth("declared", rates=[0.01], beta=0.5, decay=0.1), [1.45]),
    ],
)
def test_the_stretches_of_a_smooth_loss_have_their_known_values(facts: Document, expected: list[float]) -> None:
    assert read(facts).stretches == pytest.approx(np.array(expected))


@pytest.mark.parametrize(
    "facts",
    {
        "nothing known": DP_SGD,
        "records unbounded": smooth("logistic", rates=[0.01], records=None, feature_bound=1.0),
        "features unbounded": smooth("logistic", rates=[0.01]),
        "a clip norm for each layer": {**smooth("logistic", rates=[0.01], feature_bound=1.0), "flat_clipping": False},
        "a clipped total": {**smooth("logistic", rates=[0.01], feature_bound=1.0), "clipping": "aggregate"},
        "a softmax that is clipped": smooth("softmax", rates=[0.01], feature_bound=10 / math.sqrt(2)),
        "momentum": replaced(smooth("logistic", rates=[0.01], feature_bound=1.0), "optimizer", "momentum", to=0.9),
    }.items(),
    ids=lambda item: item[0],
)
def test_a_record_that_no_theorem_on_smoothness_covers_has_no_stretches(facts: tuple[str, Document]) -> None:
    assert read(facts[1]).stretches is None


# Other kinds


@pytest.mark.parametrize("adjacency", ["replace_one", "add_remove"])
def test_a_gaussian_release_moves_by_its_sensitivity(adjacency: str) -> None:
    run = read({"kind": "gaussian_release", "sensitivity": 3.0, "standard_deviation": 1.5}, adjacency)
    width = 2 if adjacency == "replace_one" else 1
    assert width * float(run.rates[0] * run.clip_norms[0]) == 3.0
    assert float(run.rates[0] * run.clip_norms[0] * run.noise_multipliers[0]) == 1.5
    scores = [everything([(run, 1)]).play(np.random.default_rng(world), 40_000, bool(world)).scores for world in (0, 1)]
    assert (scores[1].mean() - scores[0].mean()) / scores[0].std() == pytest.approx(3.0 / 1.5, rel=0.03)


@pytest.mark.parametrize("adjacency", ["replace_one", "add_remove"])
def test_a_model_known_by_its_mu_is_seen_as_that_gaussian(adjacency: str) -> None:
    run = read({"kind": "gaussian_dp", "mu": 1.5}, adjacency)
    scores = [everything([(run, 1)]).play(np.random.default_rng(world), 40_000, bool(world)).scores for world in (0, 1)]
    assert (scores[1].mean() - scores[0].mean()) / scores[0].std() == pytest.approx(1.5, rel=0.03)
    assert run.optimizer == "unknown"


def test_of_a_history_noise_and_sampling_are_known() -> None:
    blocks = [{"steps": 2, "noise_multiplier": 8.0, "sampling_rate": 0.5}, {"steps": 1, "noise_multiplier": 4.0}]
    run = read({**HISTORY, "blocks": blocks, "sampling": "poisson"}, "add_remove")
    assert run.noise_multipliers.tolist() == [8.0, 8.0, 4.0]
    assert run.sampling_rates.tolist() == [0.5, 0.5, 1.0]
    assert run.optimizer == "unknown"


def test_parents_are_attached_in_whatever_order_they_are_stated() -> None:
    child = stated(DP_SGD, ancestry={"start": "private", "run": "b", "step": 2})
    parent = Manifest.model_validate(manifest("b")).statement
    made = schedules_of({"a": child, "b": parent}, "replace_one")
    assert made["a"].parent == (made["b"], 2)
    assert made["b"].parent is None


@settings(max_examples=80)
@given(document=manifests())
def test_any_record_is_read_as_the_accounting_reads_it(document: Document) -> None:
    """Two readings of the same facts; where one has no number, the other has nothing to simulate."""
    assume(document["mechanism"].get("expected_batch_size", 1.0) < 1e12)  # beyond, epochs are refused by a rounding
    statement = Manifest.model_validate(document).statement
    if statement.ancestry.start == "private":
        return
    adjacency = document["adjacency"]
    mechanism = statement.mechanism_from(Adjacency(adjacency), None)
    try:
        run = schedule_of(statement, adjacency, {})
    except InvalidInputError:
        assert not isinstance(mechanism, DpSgd | GaussianRelease | GaussianDp | AccountantHistory)
        return
    if isinstance(mechanism, GaussianDp):
        width = 2 if adjacency == "replace_one" else 1
        assert width / float(run.noise_multipliers[0]) == pytest.approx(mechanism.mu)
        assert run.optimizer == "unknown"
        return
    if isinstance(mechanism, GaussianRelease):
        assert float(run.noise_multipliers[0]) * float(run.clip_norms[0]) == pytest.approx(mechanism.standard_deviation)
        return
    known = mechanism.costs if isinstance(mechanism, AccountantHistory) else mechanism
    if not isinstance(known, DpSgd):  # shuffled under add_remove: a run like any other, of which nothing is proved
        assert (run.sampling, adjacency) == ("shuffled", "add_remove")
        return
    assert np.array_equal(run.noise_multipliers, known.noise_multipliers)
    assert np.array_equal(run.sampling_rates, known.sampling_rates)
    assert (run.sampling, run.steps_per_epoch) == (known.sampling, known.steps_per_epoch)
    if isinstance(mechanism, DpSgd):
        assert np.array_equal(run.rates, known.rates)
        assert np.array_equal(run.clip_norms, known.clip_norms)
        for name in ("name", "momentum", "nesterov", "dampening", "weight_decay"):
            assert getattr(run, "optimizer" if name == "name" else name) == getattr(known.optimizer, name)
        if run.stretches is not None:
            assert run.stretches == pytest.approx(known.lipschitz(known.steps), rel=1e-12)


# What is refused

REFUSED: dict[str, tuple[Document, dict[str, Any], str]] = {
    "a Rényi curve": ({"kind": "renyi", "orders": [2.0], "values": [0.1]}, {}, "a.mechanism.kind"),
    "a bare guarantee": (
        {"kind": "approximate_dp", "points": [{"epsilon": 1.0, "delta": 1e-5}]},
        {},
        "a.mechanism.kind",
    ),
    "no privacy": ({"kind": "non_private"}, {}, "a.mechanism.kind"),
    "unknown batches": ({**DP_SGD, "sampling": "unknown"}, {}, "a.mechanism.sampling"),
    "unknown batches of a history": ({**HISTORY, "sampling": "unknown"}, {}, "a.mechanism.sampling"),
    "a private divisor": (
        {**DP_SGD, "public_divisor": False},
        {"adjacency": "add_remove", "dataset": {"id": "patients-2026"}},
        "a.mechanism.public_divisor",
    ),
    "an unknown start": (DP_SGD, {"ancestry": {"start": "unknown"}}, "a.ancestry.start"),
    "a parent that is not stated": (
        DP_SGD,
        {"ancestry": {"start": "private", "run": "b", "step": 1}},
        "a.ancestry.run",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_record_that_cannot_be_simulated_is_refused_by_the_name_of_the_field(name: str) -> None:
    mechanism, overrides, field = REFUSED[name]
    with pytest.raises(InvalidInputError) as refused:
        schedule_of(stated(mechanism, **overrides), overrides.get("adjacency", "replace_one"), {})
    assert refused.value.field == field


def test_a_start_from_a_step_that_the_parent_has_not_taken_is_refused() -> None:
    child = stated(DP_SGD, ancestry={"start": "private", "run": "b", "step": 5})
    parent = Manifest.model_validate(manifest("b")).statement
    with pytest.raises(InvalidInputError, match=r"a\.ancestry\.step: got 5; accepted: at most 4"):
        schedules_of({"a": child, "b": parent}, "replace_one")


def test_runs_that_descend_from_one_another_are_refused() -> None:
    pair = {
        name: Manifest.model_validate(manifest(name, ancestry={"start": "private", "run": other, "step": 1})).statement
        for name, other in (("a", "b"), ("b", "a"))
    }
    with pytest.raises(InvalidInputError, match=r"a\.ancestry\.run"):
        schedules_of(pair, "replace_one")
