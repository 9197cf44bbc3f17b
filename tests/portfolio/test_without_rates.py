"""Manifests of kind dp_sgd that leave out learning rates and reduction: joint release and random selection, no more."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest

from dpmerge.accounting import GaussianProfile
from dpmerge.auditing.records import schedule_of
from dpmerge.errors import ManifestError, NoGuaranteeError
from dpmerge.planning.candidates import candidate
from dpmerge.portfolio.applicable_theorems import applicable_theorems
from dpmerge.portfolio.manifest import Manifest
from dpmerge.portfolio.manifest_check import check_manifest
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.terms.recipe import Recipe
from portfolio.portfolios import DP_SGD, add_remove, manifest, write_portfolio


def rateless(**mechanism: Any) -> dict[str, Any]:
    facts = copy.deepcopy(DP_SGD) | mechanism
    for block in facts["blocks"]:
        block.pop("learning_rate", None)
    for name in ("loss_reduction", "expected_batch_size"):
        facts.pop(name)
    return {name: value for name, value in facts.items() if value is not None}


def document(name: str = "a", **mechanism: Any) -> dict[str, Any]:
    return manifest(name, mechanism=rateless(**mechanism), recorded_by={"how": "hand", "who": "Ann"})


def parsed(content: dict[str, Any]) -> Manifest:
    import json

    return Manifest.parse(json.dumps(content))


def test_it_costs_what_the_same_run_with_rates_costs() -> None:
    made = parsed(document()).mechanism_from(None).profile()
    assert isinstance(made, GaussianProfile)
    assert made.mu == pytest.approx(math.sqrt(4) * 2 / 8.0, rel=1e-12)


@pytest.mark.parametrize("content", [document(), add_remove(document())], ids=["replace_one", "add_remove"])
def test_only_joint_release_is_within_reach_and_the_others_say_why(content: dict[str, Any]) -> None:
    found = {each.theorem: each for each in applicable_theorems(parsed(content))}
    assert [name for name, each in found.items() if each.certifies] == ["joint_release"]
    for name in ("last_step", "hidden_state", "merged_trajectory"):
        missing = {premise.name: premise.vouched_by for premise in found[name].missing}
        assert missing["learning_rates_known"] == "nobody: not stated of a"


def test_an_average_is_joint_release_and_the_divisor_a_premise_with_its_voucher(tmp_path: Path) -> None:
    documents = {name: document(name) for name in "ab"}
    portfolio = Portfolio.load(write_portfolio(tmp_path, runs=documents, manifests=documents))
    half = Recipe.of({"a@4": 0.5, "b@4": 0.5})
    found = candidate(portfolio, half, delta=1e-5)
    assert found.theorem == "joint_release"
    voices = {premise.name: premise.vouched_by for premise in found.bound.premises}
    assert voices["public_divisor"] == "a (written by hand by Ann), b (written by hand by Ann)"
    for theorem in ("last_step", "hidden_state", "merged_trajectory"):
        with pytest.raises(NoGuaranteeError, match="learning rates known"):
            candidate(portfolio, half, delta=1e-5, theorem=theorem)  # type: ignore[arg-type]


SMOOTH = {"kind": "declared", "beta": 1.0, "records": 100, "vouched_by": "Ann"}
WRONG = {
    "a divisor nobody vouches for": (
        document(public_divisor=False), "mechanism.public_divisor", "no function of the batch that was drawn"
    ),
    "a divisor not spoken of": (document(public_divisor=None), "mechanism.public_divisor", "nothing"),
    "a reduction without rates": (document() | {"mechanism": rateless() | {"loss_reduction": "sum"}},
        "mechanism.loss_reduction", "left out without them"),
    "rates without a reduction": (
        manifest(mechanism={n: v for n, v in DP_SGD.items() if n not in ("loss_reduction", "expected_batch_size")}),
        "mechanism.loss_reduction", "beside learning rates",
    ),
    "a divisor's size without rates": (document() | {"mechanism": rateless() | {"expected_batch_size": 10}},
        "mechanism.expected_batch_size", "left out where it is sum"),
    "rates of one block of two": (
        document(blocks=[{**DP_SGD["blocks"][0]}, {**DP_SGD["blocks"][0]}])
        | {"mechanism": rateless() | {"blocks": [*rateless()["blocks"], DP_SGD["blocks"][0]]}},
        "mechanism.blocks[1].learning_rate", "of all blocks, or of none",
    ),
    "smoothness, which rates would have to go with": (
        document() | {"mechanism": rateless() | {"smoothness": SMOOTH}}, "mechanism.smoothness", "left out where"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_is_left_out_by_halves_is_refused(name: str) -> None:
    content, field, words = WRONG[name]
    with pytest.raises(ManifestError) as refused:
        parsed(content)
    assert refused.value.field == field
    assert words in str(refused.value)


DRAFT = """\
schema: dpmerge/run/v1
run: a
dataset: {id: patients-2026}
unit: record
adjacency: add_remove
mechanism:
  kind: dp_sgd
  blocks: [{steps: 4, noise_multiplier: 8, clip_norm: 1}]
  sampling: full_batch
  clipping: per_example
  flat_clipping: true
  optimizer: {name: adam}
  public_divisor: PUBLIC
noise: {source: os_entropy}
ancestry: {start: random}
tuning: none
recorded_by: {how: hand, who: Ann}
"""


def test_a_template_may_leave_them_out_if_it_says_so_of_the_divisor(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(DRAFT.replace("PUBLIC", "true"))
    assert check_manifest(file).valid
    for unsaid in ("", "false"):
        file.write_text(DRAFT.replace("PUBLIC", unsaid))
        fields = {problem.field for problem in check_manifest(file).problems}
        assert {"mechanism.blocks[0].learning_rate", "mechanism.expected_batch_size"} <= fields


def test_the_audit_simulates_it_as_what_an_accountant_remembers() -> None:
    schedule = schedule_of(parsed(document()).statement, "replace_one", {})
    assert schedule.optimizer == "unknown"
    assert schedule.noise_multipliers.tolist() == [8.0] * 4
