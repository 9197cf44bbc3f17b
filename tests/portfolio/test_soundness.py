"""What a portfolio's records do not prove has no number, and what they prove costs all that was looked at."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dpmerge.accounting import GaussianProfile
from dpmerge.accounting.combination import THEOREMS, LinearCombination, joint_release
from dpmerge.accounting.exposure import Checkpoint, Exposure, Mechanism
from dpmerge.errors import ManifestError, MissingParentError, NoGuaranteeError
from dpmerge.portfolio.manifest import Manifest
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.portfolio.portfolio_caveats import caveats
from portfolio.portfolios import (
    BLOCK,
    DP_SGD,
    HISTORY,
    Document,
    add_remove,
    edit_manifest,
    manifest,
    model,
    read_manifest,
    write_portfolio,
)

DELTA = 1e-5
UNKNOWN = {"source": "unknown"}
SMOOTH = {"kind": "logistic", "feature_bound": 1.0, "records": 100, "vouched_by": "the team"}


def mechanism(**changed: Any) -> Document:
    return {**DP_SGD, **changed}


def loaded(home: Path, **manifests: Document) -> Portfolio:
    return Portfolio.load(write_portfolio(home, runs=tuple(manifests), manifests=manifests))


def average(*runs: Mechanism) -> LinearCombination:
    return LinearCombination.of_runs(runs, [1 / len(runs)] * len(runs))


def epsilon_of_steps(*blocks: tuple[int, float], sensitivity: float = 2.0) -> float:
    """ε of full-batch steps, by hand: μ² = Σ steps·(k/σ)²."""
    return GaussianProfile(sum(steps * (sensitivity / noise) ** 2 for steps, noise in blocks) ** 0.5).epsilon(DELTA)


def test_a_portfolio_costs_the_composition_of_its_runs_steps(tmp_path: Path) -> None:
    portfolio = loaded(tmp_path, a=manifest("a"), b=manifest("b"))
    assert portfolio.run("a").mechanism.profile().epsilon(DELTA) == pytest.approx(epsilon_of_steps((4, 8.0)), rel=1e-12)
    together = portfolio.everything().profile().epsilon(DELTA)
    assert together == pytest.approx(epsilon_of_steps((8, 8.0)), rel=1e-12)


def test_runs_with_noise_of_unknown_origin_are_not_composed_as_independent(tmp_path: Path) -> None:
    portfolio = loaded(tmp_path, a=manifest("a", noise=UNKNOWN), b=manifest("b", noise=UNKNOWN), c=manifest("c"))
    a, b, c = (run.mechanism for run in portfolio.runs)
    for run in (a, b):
        assert run.profile().epsilon(DELTA) == pytest.approx(epsilon_of_steps((4, 8.0)), rel=1e-12)
    assert joint_release(average(a)).certifies
    for pair in ((a, b), (a, c), (c, b)):
        with pytest.raises(NoGuaranteeError, match="nobody says where the noise of"):
            Exposure.of(Checkpoint(run, run.steps) for run in pair).profile()
        assert not any(theorem(average(*pair)).certifies for theorem in THEOREMS.values())
    with pytest.raises(NoGuaranteeError):
        portfolio.everything().profile()


WITHOUT_A_NUMBER: dict[str, tuple[Document, str]] = {
    "a divisor that depends on the data": (
        add_remove(manifest("a", mechanism=mechanism(public_divisor=False))),
        "public_divisor is false",
    ),
    "a history with a divisor that depends on the data": (
        add_remove(manifest("a", mechanism={**HISTORY, "public_divisor": False})),
        "public_divisor is false",
    ),
    **{
        f"a realised divisor of a {kind}, {adjacency}": (
            manifest("a", mechanism=sampled, adjacency=adjacency),
            "must not be divided by the realised size of each batch, and public_divisor is false",
        )
        for adjacency in ("zero_out", "replace_one")
        for kind, sampled in (
            ("run", mechanism(blocks=[{**BLOCK, "sampling_rate": 0.1}], sampling="poisson", public_divisor=False)),
            (
                "history",
                {
                    **HISTORY,
                    "blocks": [{"steps": 4, "noise_multiplier": 8.0, "sampling_rate": 0.1}],
                    "sampling": "poisson",
                    "public_divisor": False,
                },
            ),
        )
    },
    "unknown sampling": (manifest("a", mechanism=mechanism(sampling="unknown")), "how its batches were drawn"),
    "a history of unknown sampling": (
        manifest("a", mechanism={**HISTORY, "sampling": "unknown"}),
        "how its batches were drawn",
    ),
    "an unknown start": (manifest("a", ancestry={"start": "unknown"}), "what it started from is not recorded"),
    "an unknown start of a release": (
        manifest(
            "a",
            mechanism={"kind": "gaussian_release", "sensitivity": 1.0, "standard_deviation": 5.0},
            ancestry={"start": "unknown"},
        ),
        "what it started from is not recorded",
    ),
    "shuffling under add_remove": (
        add_remove(manifest("a", mechanism=mechanism(sampling="shuffled", steps_per_epoch=2))),
        "no proved accounting under add_remove",
    ),
    "a shuffled history under add_remove": (
        add_remove(manifest("a", mechanism={**HISTORY, "sampling": "shuffled", "steps_per_epoch": 2})),
        "no proved accounting under add_remove",
    ),
}


@pytest.mark.parametrize("name", WITHOUT_A_NUMBER)
def test_runs_whose_records_prove_nothing_have_no_epsilon(name: str, tmp_path: Path) -> None:
    document, reason = WITHOUT_A_NUMBER[name]
    steps = 1 if document["mechanism"]["kind"] == "gaussian_release" else 4
    write_portfolio(tmp_path, runs=["a"], manifests={"a": document}, models={"a": {steps: model(1)}})
    portfolio = Portfolio.load(tmp_path)
    run = portfolio.run("a").mechanism
    assert run.steps == steps
    for ask in (run.profile, portfolio.everything().profile):
        with pytest.raises(NoGuaranteeError, match=reason):
            ask()
    for theorem in THEOREMS.values():
        bound = theorem(average(run))
        assert not bound.certifies


@pytest.mark.parametrize("name", WITHOUT_A_NUMBER)
def test_a_child_of_a_run_without_epsilon_has_none(name: str, tmp_path: Path) -> None:
    document, reason = WITHOUT_A_NUMBER[name]
    last = 1 if document["mechanism"]["kind"] == "gaussian_release" else 4
    ancestry = {"start": "private", "run": "a", "step": last}
    child = manifest("b", initial_weights=None, ancestry=ancestry)
    child = {**child, "adjacency": document["adjacency"]}
    child = add_remove(child) if document["adjacency"] == "add_remove" else child
    write_portfolio(tmp_path, runs=["a", "b"], manifests={"a": document, "b": child}, models={"a": {last: model(1)}})
    portfolio = Portfolio.load(tmp_path)
    with pytest.raises(NoGuaranteeError, match=reason):
        portfolio.run("b").mechanism.profile()
    for theorem in THEOREMS.values():
        assert not theorem(average(portfolio.run("b").mechanism)).certifies


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("clipping", ["per_example", "aggregate"])
@pytest.mark.parametrize("adjacency", ["replace_one", "add_remove", "zero_out"])
def test_an_accountant_history_is_covered_by_joint_release_only(
    steps: int, clipping: str, adjacency: str, tmp_path: Path
) -> None:
    """One full-batch step would satisfy every theorem, were its rate and clip norm known."""
    facts = {**HISTORY, "blocks": [{"steps": steps, "noise_multiplier": 8.0}], "clipping": clipping}
    documents = {run: manifest(run, mechanism=facts, adjacency=adjacency) for run in "ab"}
    if adjacency == "add_remove":
        documents = {run: add_remove(document) for run, document in documents.items()}
    models = {run: {steps: model(place)} for place, run in enumerate("ab")}
    write_portfolio(tmp_path, runs="ab", manifests=documents, models=models)
    runs = [run.mechanism for run in Portfolio.load(tmp_path).runs]
    sensitivity = 1.0 if clipping == "per_example" and adjacency != "replace_one" else 2.0
    bound = joint_release(average(*runs))
    assert bound.certifies
    assert bound.epsilon(DELTA) == pytest.approx(epsilon_of_steps((2 * steps, 8.0), sensitivity=sensitivity), rel=1e-12)
    for name, theorem in THEOREMS.items():
        assert theorem(average(*runs)).certifies is (name == "joint_release")
        assert theorem(average(runs[0])).certifies is (name == "joint_release")


def test_an_accountant_history_gives_no_unproved_epsilon(tmp_path: Path) -> None:
    """The paper's formula needs rates and clip norms, and a history has none."""
    facts = {**HISTORY, "blocks": [{"steps": 2, "noise_multiplier": 8.0}, {"steps": 2, "noise_multiplier": 1.0}]}
    portfolio = loaded(tmp_path, a=manifest("a", mechanism=facts), b=manifest("b", mechanism=HISTORY))
    for name in ("merged_trajectory", "merged_trajectory_prepended", "last_step", "hidden_state"):
        assert THEOREMS[name](average(*(run.mechanism for run in portfolio.runs))).profile is None


@pytest.mark.parametrize("step", [2, 4])
def test_a_child_costs_its_parent_s_prefix_too(step: int, tmp_path: Path) -> None:
    blocks = [{**BLOCK, "steps": 2}, {**BLOCK, "steps": 2, "noise_multiplier": 3.0}]
    parent = manifest("a", mechanism=mechanism(blocks=blocks))
    child = manifest("b", initial_weights=None, ancestry={"start": "private", "run": "a", "step": step})
    portfolio = loaded(tmp_path, a=parent, b=child)
    inherited = [(min(step, 2), 8.0), (max(step - 2, 0), 3.0)]
    b = portfolio.run("b").mechanism
    assert b.profile().epsilon(DELTA) == pytest.approx(epsilon_of_steps((4, 8.0), *inherited), rel=1e-12)
    assert b.profile(1).epsilon(DELTA) == pytest.approx(epsilon_of_steps((1, 8.0), *inherited), rel=1e-12)
    everything = portfolio.everything().profile().epsilon(DELTA)
    assert everything == pytest.approx(epsilon_of_steps((6, 8.0), (2, 3.0)), rel=1e-12)


def test_a_child_of_a_run_with_noise_of_unknown_origin_has_no_epsilon(tmp_path: Path) -> None:
    """Parent and child are two runs: the noise of one could be the other's."""
    portfolio = loaded(
        tmp_path,
        a=manifest("a", noise=UNKNOWN),
        b=manifest("b", initial_weights=None, ancestry={"start": "private", "run": "a", "step": 2}),
    )
    child = portfolio.run("b").mechanism
    with pytest.raises(NoGuaranteeError, match="nobody says where the noise of a"):
        child.profile()
    assert not any(theorem(average(child)).certifies for theorem in THEOREMS.values())


def test_a_grandchild_costs_both_ancestors_prefixes(tmp_path: Path) -> None:
    portfolio = loaded(
        tmp_path,
        a=manifest("a", initial_weights=None, ancestry={"start": "private", "run": "b", "step": 3}),
        b=manifest("b", initial_weights=None, ancestry={"start": "private", "run": "c", "step": 1}),
        c=manifest("c"),
    )
    epsilon = portfolio.run("a").mechanism.profile().epsilon(DELTA)
    assert epsilon == pytest.approx(epsilon_of_steps((4 + 3 + 1, 8.0)), rel=1e-12)


def test_a_declared_parent_is_accepted_where_its_weights_are_the_start(tmp_path: Path) -> None:
    write_portfolio(tmp_path, runs="ab")
    weights = read_manifest(tmp_path / "a")["checkpoints"][0]["weights"]
    edit_manifest(tmp_path / "b", "initial_weights", to=weights)
    edit_manifest(tmp_path / "b", "ancestry", to={"start": "private", "run": "a", "step": 2})
    epsilon = Portfolio.load(tmp_path).run("b").mechanism.profile().epsilon(DELTA)
    assert epsilon == pytest.approx(epsilon_of_steps((4 + 2, 8.0)), rel=1e-12)


def test_a_child_s_start_depends_on_the_data(tmp_path: Path) -> None:
    """hidden_state asks for a start that does not, so only what counts the parent certifies."""
    smooth = mechanism(smoothness=SMOOTH)
    portfolio = loaded(
        tmp_path,
        a=manifest("a", mechanism=smooth),
        b=manifest("b", mechanism=smooth, initial_weights=None, ancestry={"start": "private", "run": "a", "step": 4}),
    )
    a, b = (run.mechanism for run in portfolio.runs)
    assert THEOREMS["hidden_state"](average(a)).certifies
    assert not THEOREMS["hidden_state"](average(b)).certifies
    assert not any(theorem(average(a, b)).certifies for name, theorem in THEOREMS.items() if name != "joint_release")
    own = epsilon_of_steps((4, 8.0))
    for theorem in THEOREMS.values():
        bound = theorem(average(b))
        if bound.certifies:
            assert (bound.epsilon(DELTA) or 0.0) > own


def test_a_child_has_no_epsilon_without_its_parent(tmp_path: Path) -> None:
    """A private start without the parent at hand must not look like a start that cost nothing."""
    portfolio = loaded(
        tmp_path,
        a=manifest("a"),
        b=manifest("b", initial_weights=None, ancestry={"start": "private", "run": "a", "step": 4}),
    )
    orphan = portfolio.run("b").manifest.mechanism_from(None)
    with pytest.raises(NoGuaranteeError):
        orphan.profile()


def test_checkpoints_of_one_run_cost_the_latest(tmp_path: Path) -> None:
    write_portfolio(tmp_path, runs=["a"], models={"a": {step: model(step) for step in (1, 2, 3)}})
    portfolio = Portfolio.load(tmp_path)
    run = portfolio.run("a")
    for seen in ((1, 2, 3), (3,), (1, 3)):
        profile = Exposure.of(run.at(step) for step in seen).profile()
        assert profile.epsilon(DELTA) == pytest.approx(epsilon_of_steps((3, 8.0)), rel=1e-12)
    assert portfolio.everything().profile().epsilon(DELTA) == pytest.approx(epsilon_of_steps((3, 8.0)), rel=1e-12)
    combination = LinearCombination(checkpoints=[run.at(1), run.at(3)], weights=[0.5, 0.5])
    assert joint_release(combination).epsilon(DELTA) == pytest.approx(epsilon_of_steps((3, 8.0)), rel=1e-12)
    for name, theorem in THEOREMS.items():
        assert theorem(combination).certifies is (name == "joint_release")


def test_a_run_without_checkpoints_costs_all_its_steps(tmp_path: Path) -> None:
    write_portfolio(tmp_path, runs=["a"], models={"a": {}})
    everything = Portfolio.load(tmp_path).everything().profile().epsilon(DELTA)
    assert everything == pytest.approx(epsilon_of_steps((4, 8.0)), rel=1e-12)


@pytest.mark.parametrize("field", ["noise_multiplier", "standard_deviation"])
@pytest.mark.parametrize("zero", [0, 0.0, -0.0])
def test_a_run_without_noise_has_infinite_epsilon(field: str, zero: float, tmp_path: Path) -> None:
    facts: Document = {"kind": "gaussian_release", "sensitivity": 1.0, "standard_deviation": zero}
    if field == "noise_multiplier":
        facts = mechanism(blocks=[{**BLOCK, "noise_multiplier": zero}])
    document = manifest("a", mechanism=facts)
    write_portfolio(tmp_path, runs=["a"], manifests={"a": document}, models={"a": {1: model(1)}})
    run = Portfolio.load(tmp_path).run("a").mechanism
    assert run.profile().epsilon(DELTA) == float("inf")
    for theorem in THEOREMS.values():
        bound = theorem(average(run))
        assert bound.profile is None or bound.epsilon(DELTA) == float("inf")


def test_a_non_private_model_has_infinite_epsilon(tmp_path: Path) -> None:
    document = manifest("a", mechanism={"kind": "non_private"})
    write_portfolio(tmp_path, runs="ab", manifests={"a": document}, models={"a": {1: model(1)}})
    assert Portfolio.load(tmp_path).everything().profile().epsilon(DELTA) == float("inf")


def test_an_affine_map_needs_every_run_to_vouch_for_it(tmp_path: Path) -> None:
    def affine(name: str) -> Document:
        return mechanism(affine_map={"id": name, "vouched_by": f"the makers of {name}"})

    portfolio = loaded(
        tmp_path,
        a=manifest("a", mechanism=affine("mean")),
        b=manifest("b", mechanism=affine("mean")),
        c=manifest("c", mechanism=affine("median")),
        d=manifest("d"),
    )
    a, b, c, d = portfolio.runs
    assert portfolio.affine_voucher([a, b]) == "the makers of mean"
    assert portfolio.affine_voucher([a, c]) is None
    assert portfolio.affine_voucher([a, b, d]) is None


def parsed(document: Document) -> Manifest:
    return Manifest.parse(json.dumps(document))


ONE_SHOTS = {
    "a pair": {"kind": "approximate_dp", "points": [{"epsilon": 8, "delta": 1e-5}]},
    "no privacy": {"kind": "non_private"},
    "a release": {"kind": "gaussian_release", "sensitivity": 10, "standard_deviation": 1},
}


@pytest.mark.parametrize("name", ONE_SHOTS)
def test_step_0_of_a_one_shot_mechanism_is_refused(name: str) -> None:
    """Step 0 is what was there before the data was touched; a model that was trained is not that."""
    saved = {"step": 0, "files": [{"name": "model.safetensors", "sha256": "0" * 64}]}
    with pytest.raises(ManifestError, match=r"checkpoints\[0\]\.step: got 0; accepted: an integer ≥ 1"):
        parsed(manifest(mechanism=ONE_SHOTS[name], checkpoints=[saved]))


def test_step_0_without_initial_weights_is_refused() -> None:
    saved = {"step": 0, "files": [{"name": "model.safetensors", "sha256": "0" * 64}]}
    with pytest.raises(ManifestError, match=r"checkpoints\[0\]\.step"):
        parsed(manifest(initial_weights=None, checkpoints=[saved]))


def test_more_steps_per_epoch_than_batches_are_refused() -> None:
    """100 records in batches of 10 are ten steps; calling them 1000 would make 990 steps free."""
    shuffled = DP_SGD | {"sampling": "shuffled", "steps_per_epoch": 1000, "expected_batch_size": 10}
    with pytest.raises(ManifestError, match=r"mechanism\.steps_per_epoch: got 1000; accepted: at most 10"):
        parsed(manifest(mechanism=shuffled))
    assert parsed(manifest(mechanism=shuffled | {"steps_per_epoch": 10}))


def test_a_bound_on_records_below_a_full_batch_is_refused() -> None:
    """Under add_remove the size is not written down, but what a full batch is divided by is."""
    facts = {"kind": "softmax", "feature_bound": 1.0, "records": 30, "vouched_by": "me"}
    document = add_remove(manifest(mechanism=DP_SGD | {"smoothness": facts}))
    with pytest.raises(ManifestError, match="the expected size of a full batch"):
        parsed(document)


@pytest.mark.parametrize("setting", ["momentum", "nesterov", "dampening", "weight_decay"])
def test_sgd_without_its_settings_is_refused(setting: str) -> None:
    """Nesterov momentum that nobody mentions would make last_step too cheap."""
    optimizer = {name: value for name, value in DP_SGD["optimizer"].items() if name != setting}
    with pytest.raises(ManifestError, match=rf"mechanism\.optimizer\.{setting}: got nothing"):
        parsed(manifest(mechanism=DP_SGD | {"optimizer": optimizer}))


def test_a_start_that_was_assumed_is_a_caveat(tmp_path: Path) -> None:
    write_portfolio(tmp_path)
    edit_manifest(tmp_path / "a", "ancestry", to={"start": "random", "assumed": True})
    found = {caveat.where for caveat in caveats(Portfolio.load(tmp_path)) if caveat.name == "start_assumed"}
    assert found == {"a"}


def test_a_private_body_under_a_new_head_is_found_by_its_tensors(tmp_path: Path) -> None:
    """Only part of the start is another run's: the digest of all of it says nothing."""
    write_portfolio(tmp_path)
    digests = Portfolio.load(tmp_path).saved("a@4").digests
    assert digests is not None
    edit_manifest(tmp_path / "b", "tensors", "initial", "weight", to=digests["weight"])
    with pytest.raises(
        MissingParentError,
        match="ancestry: the start is stated as random; state start private, run a, step 4: weight came from there",
    ):
        Portfolio.load(tmp_path)


@pytest.mark.parametrize("size", [10**18 + 1, 10**400])
def test_sizes_no_float_can_hold_are_refused(size: int) -> None:
    """A number that no float can hold is refused by name."""
    facts = {"kind": "softmax", "feature_bound": 1.0, "records": 30, "vouched_by": "me"}
    with pytest.raises(ManifestError, match=r"dataset\.size: got 10+1?…?.*; accepted: an integer from 1 to 10¹⁸"):
        parsed(manifest(dataset={"id": "patients-2026", "size": size}, mechanism=DP_SGD | {"smoothness": facts}))


def test_a_batch_size_near_zero_allows_long_epochs() -> None:
    shuffled = DP_SGD | {"sampling": "shuffled", "steps_per_epoch": 4, "expected_batch_size": 5e-324}
    assert parsed(manifest(mechanism=shuffled)).run == "a"
