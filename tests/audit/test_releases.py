"""Plans attacked as they would be released: tight where theory says so, violated where a claim is only assumed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dpmerge as dpm
from dpmerge.accounting import DpSgd
from dpmerge.auditing.findings import Finding
from dpmerge.auditing.records import schedules_of
from dpmerge.auditing.release_attacks import audit_release, is_one_step, release_attack, release_trials, work
from dpmerge.errors import InvalidInputError, NoGuaranteeError
from dpmerge.planning.stated_weights import stated_weights
from dpmerge.portfolio.manifest import Manifest
from dpmerge.terms.documents import validated
from dpmerge.terms.release_terms import ReleaseTerms
from portfolio.portfolios import DP_SGD, Document, add_remove, manifest

EXAMPLES = Path(__file__).parents[2] / "examples"
DELTA = 1e-5


def audited(terms: ReleaseTerms, trials: int = 200_000, *, delta: float = DELTA, confidence: float = 0.999) -> Finding:
    return audit_release(terms, delta=delta, trials=trials, confidence=confidence, seed=1)


@cache
def example(name: str) -> dpm.Portfolio:
    return dpm.Portfolio.load(EXAMPLES / name, contents=False)


def planned(name: str, epsilon: float, method: Any) -> ReleaseTerms:
    return dpm.plan(example(name), epsilon=epsilon, delta=DELTA, method=method).terms


def weighted(name: str, weights: dict[str, float], theorem: Any) -> ReleaseTerms:
    return stated_weights(example(name), weights, dpm.Guarantee(epsilon=100.0, delta=DELTA), theorem=theorem).terms


def sgd(name: str, *, adjacency: str = "replace_one", ancestry: Document | None = None, **facts: Any) -> Document:
    """A run's manifest; facts of the mechanism, of its one block or of its optimizer."""
    block = {"steps": 3, "noise_multiplier": 4.0, "clip_norm": 1.0, "learning_rate": 0.5}
    optimizer = dict(DP_SGD["optimizer"])
    mechanism = {**DP_SGD, "expected_batch_size": 2, "blocks": [block], "optimizer": optimizer}
    for key, value in facts.items():
        place = block if key in (*block, "sampling_rate") else optimizer if key in optimizer else mechanism
        place[key] = value
    document = manifest(name, mechanism=mechanism, **({} if ancestry is None else {"ancestry": ancestry}))
    return add_remove(document) if adjacency == "add_remove" else document


def terms_of(
    runs: Sequence[Document],
    parts: dict[str, float],
    theorem: str,
    *,
    steps: dict[str, int] | None = None,
    release_noise: float = 0.0,
    ancestors: dict[str, int] | None = None,
) -> ReleaseTerms:
    """The terms of one average of these runs."""
    statements = {each["run"]: Manifest.model_validate(each).statement for each in runs}
    last = {
        name: sum(block.steps for block in facts.blocks) if hasattr(facts := stated.mechanism, "blocks") else 1
        for name, stated in statements.items()
    } | (steps or {})
    candidate = {
        "parts": [{"run": name, "step": last[name], "weight": weight} for name, weight in parts.items()],
        "release_noise": release_noise,
        "theorem": theorem,
        "seen": [{"run": name, "step": last[name]} for name in parts]
        + [{"run": name, "step": step} for name, step in (ancestors or {}).items()],
    }
    content = {
        "dataset": "patients-2026",
        "unit": "record",
        "adjacency": runs[0]["adjacency"],
        "accounting": "pld",
        "runs": [stated.model_dump(exclude_none=True) for stated in statements.values()],
        "candidates": [candidate],
        "probabilities": [1.0],
        "choice": {"kind": "data_independent", "rule": "stated by the tests"},
    }
    return validated(ReleaseTerms, content, "terms")


# Real plans of the shipped portfolios


def test_a_drawn_plan_is_tight() -> None:
    terms = planned("mnist", 0.6, "select")
    assert len(terms.candidates) > 1
    found = audited(terms, 1_000_000)
    assert (found.claim.by, found.claim.proved, found.verdict) == ("random_selection", True, "tight")
    assert found.claim.value == pytest.approx(0.6, rel=1e-6)
    assert found.claim.deltas is not None
    assert found.claim.deltas(found.claim.value) == pytest.approx(DELTA, rel=1e-6)


def test_an_average_priced_as_joint_release_is_tight() -> None:
    terms = planned("mnist", 0.6, "combine")
    assert [candidate.theorem for candidate in terms.candidates] == ["joint_release"]
    assert len(terms.candidates[0].parts) > 1
    found = audited(terms, 1_000_000)
    assert (found.claim.by, found.verdict) == ("joint_release", "tight")
    assert found.subject == str(terms.candidates[0].recipe)


def test_a_smooth_average_is_tight() -> None:
    terms = planned("probe", 0.5, "combine")
    assert [candidate.theorem for candidate in terms.candidates] == ["hidden_state"]
    assert terms.candidates[0].release_noise > 0
    assert audited(terms, 1_000_000).verdict == "tight"


def test_a_smooth_average_whose_closed_form_fails_is_tight_too() -> None:
    """Without release noise the decaying rates make the program's value larger than the linear one; it is attained."""
    found = audited(weighted("probe", {"s16@20": 0.2, "s64@10": 0.8}, "hidden_state"), 400_000)
    assert found.verdict == "tight"


@pytest.mark.parametrize(
    ("name", "weights"), [("mnist", {"c2-s32@20": 0.5, "c2-s64@20": 0.5}), ("probe", {"s16@20": 0.2, "s64@10": 0.8})]
)
@pytest.mark.parametrize("theorem", ["joint_release", "last_step"])
def test_stated_weights_are_tight(name: str, weights: dict[str, float], theorem: str) -> None:
    found = audited(weighted(name, weights, theorem), 400_000)
    assert (found.claim.by, found.claim.proved, found.verdict) == (theorem, True, "tight")
    assert found.claim.mu is not None
    assert found.estimate.mu is not None
    assert found.estimate.mu.low <= found.claim.mu <= found.estimate.mu.high


def test_an_assumed_price_is_shown_to_be_too_low() -> None:
    found = audited(weighted("mnist", {"c2-s32@20": 0.5, "c2-s64@20": 0.5}, "merged_trajectory"))
    assert (found.claim.proved, found.verdict) == (False, "violated")


def test_an_assumed_price_is_not_attacked_by_what_the_record_rules_out() -> None:
    """Of smooth models nothing is revealed, so that what is assumed is not violated here, if not proved either."""
    found = audited(weighted("probe", {"s16@20": 0.2, "s64@10": 0.8}, "merged_trajectory"))
    assert (found.claim.proved, found.verdict) == (False, "consistent")


def test_an_audit_finds_a_wrong_sensitivity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DpSgd, "sensitivity", property(lambda self: 1))
    assert audited(planned("mnist", 0.6, "select")).verdict == "violated"


# What each theorem is attacked by


def test_one_step_averages_are_tight() -> None:
    runs = [sgd("a", steps=1, noise_multiplier=3.0), sgd("b", steps=1, learning_rate=2.0, momentum=0.9)]
    found = audited(terms_of(runs, {"a": 0.5, "b": 0.5}, "merged_trajectory"))
    assert (found.claim.proved, found.verdict) == (True, "tight")


def test_clipped_totals_at_constant_rates_are_tight() -> None:
    runs = [sgd(name, clipping="aggregate", noise_multiplier=noise) for name, noise in (("a", 4.0), ("b", 9.0))]
    found = audited(terms_of(runs, {"a": 0.3, "b": 0.7}, "merged_trajectory"))
    assert (found.claim.proved, found.verdict) == (True, "tight")


def test_clipped_totals_with_unequal_momentum_are_violated() -> None:
    long = {"clipping": "aggregate", "steps": 60, "adjacency": "add_remove"}
    runs = [sgd("a", noise_multiplier=2.0, momentum=0.9, **long), sgd("b", noise_multiplier=20.0, **long)]
    found = audited(terms_of(runs, {"a": 0.5, "b": 0.5}, "merged_trajectory"), 50_000)
    assert (found.claim.proved, found.verdict) == (False, "violated")


def test_sampled_clipped_totals_are_consistent() -> None:
    sampled = {"clipping": "aggregate", "sampling": "poisson", "sampling_rate": 0.5, "adjacency": "add_remove"}
    runs = [sgd("a", **sampled), sgd("b", noise_multiplier=8.0, **sampled)]
    found = audited(terms_of(runs, {"a": 0.5, "b": 0.5}, "merged_trajectory"))
    assert (found.claim.proved, found.estimate.estimator, found.verdict) == (True, "counting", "consistent")


def test_a_shared_affine_map_is_tight_at_any_rates() -> None:
    shared = {"affine_map": {"id": "mean", "vouched_by": "the tests"}}
    runs = [
        sgd("a", learning_rate=[0.9, 0.3, 0.1], **shared),
        sgd("b", learning_rate=[0.1, 0.3, 0.9], noise_multiplier=8.0, **shared),
    ]
    found = audited(terms_of(runs, {"a": 0.6, "b": 0.4}, "merged_trajectory"))
    assert (found.claim.proved, found.verdict) == (True, "tight")


@pytest.mark.parametrize(
    "facts",
    [
        {"steps": 2},
        {"weight_decay": 0.5},
        {"momentum": 0.5},
        {"affine_map": {"id": "other", "vouched_by": "the tests"}},
    ],
)
def test_a_map_that_the_records_contradict_is_not_believed(facts: dict[str, Any]) -> None:
    shared = {"affine_map": {"id": "mean", "vouched_by": "the tests"}}
    runs = [sgd("a", **shared), sgd("b", **(shared | facts), noise_multiplier=16.0)]
    found = audited(terms_of(runs, {"a": 0.3, "b": 0.7}, "merged_trajectory"))
    assert (found.claim.proved, found.verdict) == (False, "violated")


def test_a_sampled_average_of_one_step_is_attacked_to_most_of_its_cost() -> None:
    sampled = {"steps": 1, "sampling": "poisson", "adjacency": "add_remove"}
    runs = [
        sgd("a", noise_multiplier=0.5, sampling_rate=0.5, **sampled),
        sgd("b", noise_multiplier=1.0, sampling_rate=0.25, **sampled),
    ]
    found = audited(terms_of(runs, {"a": 0.5, "b": 0.5}, "merged_trajectory"), 400_000, delta=0.01)
    assert (found.claim.proved, found.verdict) == (True, "tight")
    assert found.estimate.estimator == "counting"


@pytest.mark.parametrize("theorem", ["joint_release", "last_step", "merged_trajectory"])
def test_an_average_of_runs_from_a_private_start_is_tight(theorem: str) -> None:
    parent = sgd("parent", noise_multiplier=3.0)
    ancestry = {"start": "private", "run": "parent", "step": 2}
    runs = [parent, sgd("a", steps=1, ancestry=ancestry), sgd("b", steps=1, noise_multiplier=9.0, ancestry=ancestry)]
    terms = terms_of(runs, {"a": 0.5, "b": 0.5}, theorem, ancestors={"parent": 2})
    found = audited(terms)
    assert (found.claim.proved, found.verdict) == (True, "tight")


def test_an_average_with_a_gaussian_release_is_tight() -> None:
    facts = {"kind": "gaussian_release", "sensitivity": 1.0, "standard_deviation": 2.0}
    runs = [manifest("a", mechanism=facts), sgd("b", steps=1)]
    for theorem in ("joint_release", "last_step", "merged_trajectory"):
        found = audited(terms_of(runs, {"a": 0.5, "b": 0.5}, theorem))
        assert (found.claim.proved, found.verdict) == (True, "tight")


def test_a_model_known_by_its_mu_is_attacked_as_a_joint_release() -> None:
    runs = [manifest("a", mechanism={"kind": "gaussian_dp", "mu": 0.5}), sgd("b", steps=1)]
    found = audited(terms_of(runs, {"a": 0.5, "b": 0.5}, "joint_release"))
    assert (found.claim.proved, found.verdict) == (True, "tight")


def test_a_release_without_noise_shows_much_and_violates_no_claim() -> None:
    found = audited(terms_of([sgd("a", noise_multiplier=0.0)], {"a": 1.0}, "joint_release"), 10_000)
    assert found.estimate.bound > 5
    assert found.verdict == "consistent"


def test_the_price_of_a_private_choice_is_part_of_the_claim() -> None:
    terms = terms_of([sgd("a")], {"a": 1.0}, "joint_release")
    document = terms.document()
    document["choice"]["kind"] = "private_validation"
    document["validation"] = {"epsilon": 1.0}
    found = audited(validated(ReleaseTerms, document, "terms"), 20_000)
    assert found.claim.value == pytest.approx(terms.epsilon(DELTA) + 1.0)
    assert found.claim.mu is None


# Every proved price of small random portfolios


PLAIN = {"hidden_state", "merged_trajectory"}
"""Proved for plain SGD alone; the first with weight decay, the second for one step, or clipped totals without it."""


@st.composite
def portfolios(draw: st.DrawFn, theorem: str) -> ReleaseTerms:
    adjacency = draw(st.sampled_from(["replace_one", "add_remove"]))
    clipping = draw(st.sampled_from(["per_example", "aggregate"]))
    shares = draw(st.lists(st.integers(1, 9), min_size=1, max_size=3))
    runs = []
    for place in range(len(shares)):
        short = theorem == "merged_trajectory" and clipping == "per_example"
        rates = draw(st.lists(st.floats(0.01, 1.0), min_size=1, max_size=1 if short else 5))
        facts: dict[str, Any] = {
            "steps": len(rates),
            "noise_multiplier": draw(st.floats(1.0, 10.0)),
            "clip_norm": draw(st.floats(0.5, 3.0)),
            "learning_rate": rates,
            "clipping": clipping,
        }
        if theorem not in PLAIN and draw(st.booleans()):
            facts["momentum"] = draw(st.floats(0.1, 0.95))
            facts["nesterov"] = draw(st.booleans())
            facts["dampening"] = 0.0 if facts["nesterov"] else draw(st.floats(0.01, 0.9))
        if theorem != "merged_trajectory" and draw(st.booleans()):
            facts["weight_decay"] = draw(st.floats(0.01, 0.5))
        if theorem == "hidden_state":
            beta = draw(st.floats(0.001, 0.01))
            facts["smoothness"] = {"kind": "declared", "beta": beta, "records": 100, "vouched_by": "the tests"}
        runs.append(sgd(f"run-{place}", adjacency=adjacency, **facts))
    parts = {f"run-{place}": share / sum(shares) for place, share in enumerate(shares)}
    return terms_of(runs, parts, theorem, release_noise=draw(st.just(0.0) | st.floats(0.01, 2.0)))


@pytest.mark.parametrize("theorem", ["joint_release", "last_step", "hidden_state", "merged_trajectory"])
@settings(max_examples=40)
@given(data=st.data())
def test_no_proved_price_is_ever_violated(theorem: str, data: st.DataObject) -> None:
    terms = data.draw(portfolios(theorem))
    assert terms.proved
    found = audited(terms, 20_000, confidence=1 - 1e-6)
    assert found.verdict != "violated"
    if theorem != "merged_trajectory":  # whose price counts no release noise, and all steps as if they were seen
        assert found.estimate.mu is not None
        assert found.claim.mu is not None
        assert found.estimate.mu.low <= found.claim.mu <= found.estimate.mu.high


# How much work an audit is


def test_the_work_of_a_trial_is_counted_by_its_simulated_steps() -> None:
    long = {"steps": 1000, "learning_rate": 0.01}
    assert work(terms_of([sgd("a", **long)], {"a": 1.0}, "joint_release")) == 1
    sampled = {"sampling": "poisson", "sampling_rate": 0.5, "adjacency": "add_remove"}
    assert work(terms_of([sgd("a", **long, **sampled)], {"a": 1.0}, "joint_release")) == 2000
    totals = [sgd(name, clipping="aggregate", **long) for name in ("a", "b")]
    assert work(terms_of(totals, {"a": 0.5, "b": 0.5}, "merged_trajectory", release_noise=1.0)) == 2001


def test_the_work_of_a_draw_is_the_average_of_its_candidates() -> None:
    terms = planned("mnist", 0.6, "select")
    attack = release_attack(terms)
    assert attack.gaussian
    assert attack.probabilities == tuple(terms.probabilities)
    assert work(terms) == pytest.approx(2.0)


def test_more_work_than_the_limit_is_refused() -> None:
    sampled = {"sampling": "poisson", "sampling_rate": 0.5, "adjacency": "add_remove", "steps": 1000}
    terms = terms_of([sgd("a", learning_rate=0.01, **sampled)], {"a": 1.0}, "joint_release")
    with pytest.raises(
        InvalidInputError, match=r"trials: got 20000000; accepted: at most 10000000: a trial .* takes 2000"
    ):
        audited(terms, 20_000_000)


# What cannot be attacked


def test_a_bare_guarantee_is_refused() -> None:
    facts = {"kind": "approximate_dp", "points": [{"epsilon": 1.0, "delta": 1e-5}]}
    with pytest.raises(InvalidInputError, match="nothing to simulate"):
        audited(terms_of([manifest("a", mechanism=facts)], {"a": 1.0}, "joint_release"))


def test_hidden_state_of_models_not_known_to_be_smooth_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"a\.stretches: nobody says how far an update may pull"):
        release_attack(terms_of([sgd("a")], {"a": 1.0}, "hidden_state"))


def test_hidden_state_of_sampled_batches_is_refused() -> None:
    smooth = {"smoothness": {"kind": "declared", "beta": 0.1, "records": 2, "vouched_by": "us"}}
    sampled = {"sampling": "poisson", "sampling_rate": 0.5, "adjacency": "add_remove"}
    with pytest.raises(InvalidInputError, match=r"a\.sampling: got 'poisson'; accepted: full_batch"):
        release_attack(terms_of([sgd("a", **smooth, **sampled)], {"a": 1.0}, "hidden_state"))


def test_a_sampled_average_of_several_steps_is_refused() -> None:
    sampled = {"sampling": "poisson", "sampling_rate": 0.5, "adjacency": "add_remove"}
    terms = terms_of([sgd("a", **sampled), sgd("b", **sampled)], {"a": 0.5, "b": 0.5}, "merged_trajectory")
    with pytest.raises(InvalidInputError, match=r"a\.sampling"):
        release_attack(terms)


def test_updates_that_are_not_linear_are_refused() -> None:
    adam = {"name": "adam"}
    runs = [sgd("a", optimizer=adam), sgd("b")]
    with pytest.raises(InvalidInputError, match=r"a\.optimizer: the updates of adam are not linear"):
        release_attack(terms_of(runs, {"a": 0.5, "b": 0.5}, "last_step"))


def test_a_release_without_a_guarantee_is_refused() -> None:
    sampled = {"sampling": "poisson", "sampling_rate": 0.5, "clipping": "aggregate"}
    with pytest.raises(NoGuaranteeError):
        audited(terms_of([sgd("a", **sampled)], {"a": 1.0}, "joint_release"))


def test_the_same_seed_finds_the_same_bound() -> None:
    terms = planned("mnist", 0.6, "select")
    first, second = (audit_release(terms, delta=DELTA, trials=5000, confidence=0.95, seed=3) for _ in range(2))
    assert first.estimate.bound == second.estimate.bound
    assert np.array_equal(first.estimate.roc.true, second.estimate.roc.true)  # type: ignore[union-attr]


# What others can tell, and what not


def test_one_clipped_total_does_not_hide_what_others_tell_of_another_run() -> None:
    """a clips its total, b each example: of b the hidden model is told, and a's noise is all that is left."""
    runs = [
        sgd("a", steps=2, noise_multiplier=4.0, learning_rate=1.0, clipping="aggregate"),
        sgd("b", steps=2, noise_multiplier=0.5, learning_rate=1.0),
    ]
    terms = terms_of(runs, {"a": 0.9, "b": 0.1}, "merged_trajectory")
    found = audited(terms)
    assert (found.claim.proved, found.verdict) == (False, "violated")
    # b's first step by itself, 2/σ, and its last one under a's noise of both steps.
    last = (0.1 * 2) ** 2 / ((0.1 * 0.5) ** 2 + 2 * (0.9 * 4.0) ** 2)
    assert found.estimate.mu is not None
    assert found.estimate.mu.low < np.hypot(2 / 0.5, np.sqrt(last)) < found.estimate.mu.high


def test_a_loss_is_not_given_slopes_that_it_cannot_have() -> None:
    """Huber with tiny features has no curvature: every slope is 1, and the assumed price is true for it."""
    smooth = {"kind": "huber", "feature_bound": 1e-4, "records": 100, "vouched_by": "the tests"}
    rates = [4.0, 2.0, 0.1]
    runs = [
        sgd(name, steps=3, noise_multiplier=noise, learning_rate=rates, smoothness=smooth)
        for name, noise in (("a", 64.0), ("b", 32.0))
    ]
    assert audited(terms_of(runs, {"a": 0.95, "b": 0.05}, "merged_trajectory")).verdict != "violated"


def test_gradients_of_rate_zero_do_not_count_in_the_attack() -> None:
    runs = [
        sgd("a", steps=3, noise_multiplier=4.0, learning_rate=[0.0, 1.0, 0.0]),
        sgd("b", steps=3, noise_multiplier=2.0, learning_rate=1.0),
    ]
    terms = terms_of(runs, {"a": 0.5, "b": 0.5}, "merged_trajectory")
    found = audited(terms)
    # b's first two steps by themselves, then both last ones together.
    mu = np.sqrt(2 * (2 / 2.0) ** 2 + (0.5 * 2 + 0.5 * 2) ** 2 / ((0.5 * 4) ** 2 + (0.5 * 2) ** 2))
    assert found.estimate.mu is not None
    assert found.estimate.mu.low < mu < found.estimate.mu.high


def test_a_choice_that_is_not_paid_for_is_not_called_proved() -> None:
    terms = terms_of([sgd("a"), sgd("b")], {"a": 0.5, "b": 0.5}, "joint_release")
    unpaid = terms.model_copy(update={"choice": terms.choice.model_copy(update={"kind": "uncharged"})})
    found = audited(unpaid, 1000)
    assert (found.claim.proved, found.claim.by) == (False, "joint_release, not counting how it was chosen")


def test_shuffled_batches_stopped_within_an_epoch_are_tight() -> None:
    """Two of three steps of the second epoch: the record is in the less noisy of those two."""
    noises = [{"steps": 1, "noise_multiplier": n, "clip_norm": 1.0, "learning_rate": 0.5} for n in (4, 2, 8, 5, 3, 1)]
    run = sgd("a", sampling="shuffled", steps_per_epoch=3, blocks=noises)
    found = audited(terms_of([run], {"a": 1.0}, "joint_release", steps={"a": 5}))
    assert found.verdict == "tight"
    assert found.claim.mu == pytest.approx(2 * np.hypot(1 / 2, 1 / 3))


def test_a_draw_needs_more_trials_than_one_candidate() -> None:
    drawn, single = planned("mnist", 0.6, "select"), planned("mnist", 0.6, "combine")
    asked = {"delta": DELTA, "confidence": 0.95, "power": 0.9}
    assert release_trials(drawn, **asked) > release_trials(single, **asked)  # all limits of a draw share the error
    free = terms_of([sgd("a", learning_rate=0.0)], {"a": 1.0}, "merged_trajectory")
    with pytest.raises(InvalidInputError, match="the release has ε = 0 at δ = 1e-05, of which no share can be shown"):
        release_trials(free, **asked)


ANCESTRY = {"start": "private", "run": "parent", "step": 2}


def test_an_attack_on_runs_with_a_shared_map_sees_what_they_started_from() -> None:
    shared = {"affine_map": {"id": "mean", "vouched_by": "the tests"}, "ancestry": ANCESTRY}
    runs = [sgd("parent", noise_multiplier=3.0), sgd("a", **shared), sgd("b", noise_multiplier=9.0, **shared)]
    found = audited(terms_of(runs, {"a": 0.5, "b": 0.5}, "merged_trajectory", ancestors={"parent": 2}))
    assert (found.claim.proved, found.verdict) == (True, "tight")


def test_an_attack_on_a_smooth_run_sees_what_it_started_from() -> None:
    """Its stated smoothness does not cover where it began."""
    smooth = {"kind": "huber", "feature_bound": 0.1, "records": 100, "vouched_by": "the tests"}
    runs = [sgd("parent", noise_multiplier=0.5), sgd("a", smoothness=smooth, ancestry=ANCESTRY)]
    found = audited(terms_of(runs, {"a": 1.0}, "merged_trajectory", ancestors={"parent": 2}))
    assert found.estimate.mu is not None
    assert found.estimate.mu.high > 2 * np.sqrt(2) / 0.5


@pytest.mark.parametrize(("momentum", "one"), [(0.0, True), (0.9, False)])
def test_a_step_of_rate_zero_counts_only_with_momentum(momentum: float, one: bool) -> None:
    runs = schedules_of(
        terms_of(
            [sgd("a", steps=2, learning_rate=[0.0, 1.0], momentum=momentum)], {"a": 1.0}, "joint_release"
        ).statements,
        "replace_one",
    )
    assert is_one_step([(runs["a"], 2, 1.0)]) is one
