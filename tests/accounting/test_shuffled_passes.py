"""Passes over shuffled data: what each costs, what the share of the last one is worth, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from accounting.runs import DELTA, failing, sgd
from dpmerge.accounting import (
    AccountantHistory,
    Checkpoint,
    DpSgd,
    Exposure,
    GaussianProfile,
    LinearCombination,
    RenyiProfile,
    StepBlock,
    hidden_state,
    joint_release,
    last_step,
    merged_trajectory,
)
from dpmerge.accounting.exposure import MOST_SHARES
from dpmerge.accounting.random_selection import SelectionProfile
from dpmerge.accounting.shuffled_passes import DRAW_ERROR, SecretOrder
from dpmerge.errors import InvalidInputError
from oracle import shuffled_orders


def shuffled(steps: int, noise: float = 1.0, steps_per_epoch: int = 10, **facts: Any) -> DpSgd:
    block = StepBlock(steps=steps, noise_multiplier=noise, clip_norm=1.0, learning_rate=1.0)
    return DpSgd(
        blocks=[block],
        adjacency="replace_one",  # type: ignore[arg-type]
        sampling="shuffled",  # type: ignore[arg-type]
        steps_per_epoch=steps_per_epoch,
        **facts,
    )


def secret(steps: int, noise: float = 1.0, *, records: int = 1000, batch: int = 100, **facts: Any) -> DpSgd:
    order = SecretOrder(records=records, batch_size=batch, fixed_steps=facts.pop("fixed", (steps,)))
    return shuffled(steps, noise, steps_per_epoch=-(-records // batch), order=order, **facts)


def cost(*runs: DpSgd) -> float:
    return Exposure.of(Checkpoint(run, run.steps) for run in runs).fixed_steps_profile().epsilon(DELTA)


# Each pass begun is one step


def test_ten_passes_one_of_them_cut_short_cost_ten_steps_and_not_a_thousand() -> None:
    passes = [(4, 101), (1, 91), (5, 101)]
    run = shuffled(1000, steps_per_epoch=101, passes=passes)
    assert run.profile() == GaussianProfile(2 * np.sqrt(10))
    assert run.profile().epsilon(DELTA) == pytest.approx(46.21, abs=0.01)
    assert shuffled(1000, steps_per_epoch=1).profile().epsilon(DELTA) == pytest.approx(2269, abs=1)


def test_a_prefix_costs_the_passes_it_begins() -> None:
    run = shuffled(20, steps_per_epoch=10, passes=[(1, 10), (2, 3), (1, 4)])
    begun = [0, *[1] * 10, *[2] * 3, *[3] * 3, *[4] * 4]
    for upto, passes in enumerate(begun):
        profile = run.profile(upto)
        assert isinstance(profile, GaussianProfile)
        assert profile.mu == pytest.approx(2 * np.sqrt(passes))


def test_each_pass_costs_its_smallest_noise_where_it_was_cut() -> None:
    blocks = [
        StepBlock(steps=n, noise_multiplier=s, clip_norm=1, learning_rate=1) for n, s in ((3, 4.0), (1, 1.0), (3, 2.0))
    ]
    facts: dict[str, Any] = {"blocks": blocks, "adjacency": "replace_one", "sampling": "shuffled", "steps_per_epoch": 4}
    whole, cut = DpSgd(**facts), DpSgd(**facts, passes=[(1, 3), (1, 4)])
    assert whole.profile().mu == pytest.approx(2 * np.hypot(1, 1 / 2))  # type: ignore[attr-defined]
    assert cut.profile().mu == pytest.approx(2 * np.hypot(1 / 4, 1))  # type: ignore[attr-defined]


def test_passes_that_were_not_cut_short_are_as_if_they_had_not_been_stated() -> None:
    assert shuffled(25, passes=[(2, 10), (1, 5)]).profile() == shuffled(25).profile()


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "longer than an epoch": ({"passes": [(1, 14), (1, 11)]}, r"passes\[0\].steps: got 14; accepted: at most 10"),
    "too few": ({"passes": [(2, 10)]}, "add up to the run's 25"),
    "too many": ({"passes": [(3, 10)]}, "add up to the run's 25"),
    "none at all": ({"passes": []}, "add up to the run's 25"),
    "a pass of nothing": ({"passes": [(2, 10), (1, 0), (1, 5)]}, r"passes\[1\].steps"),
    "no pass": ({"passes": [(0, 10), (2, 10), (1, 5)]}, r"passes\[0\].passes"),
    "a record count that does not fit": (
        {"order": SecretOrder(records=10_000, batch_size=100, fixed_steps=(25,))},
        "order.records: got 10000 records in batches of 100",
    ),
    "a step the run does not have": (
        {"order": SecretOrder(records=1000, batch_size=100, fixed_steps=(26,))},
        "order.fixed_steps: got 26; accepted: steps of the run",
    ),
    "another object": ({"order": 0.5}, "a SecretOrder or None"),
}


@pytest.mark.parametrize("reason", BAD)
def test_passes_and_orders_that_contradict_the_run_are_refused(reason: str) -> None:
    facts, text = BAD[reason]
    with pytest.raises(InvalidInputError, match=text):
        shuffled(25, **facts)


@pytest.mark.parametrize(
    "facts", [{"batch_size": 0}, {"batch_size": 1001}, {"records": 0}, {"fixed_steps": (3, 3)}, {"fixed_steps": (0,)}]
)
def test_orders_that_are_none_are_refused(facts: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match="order"):
        SecretOrder(**({"records": 1000, "batch_size": 100, "fixed_steps": (5,)} | facts))


def test_only_shuffled_batches_have_passes_and_an_order() -> None:
    for facts in ({"passes": [(1, 1)]}, {"order": SecretOrder(records=10, batch_size=1, fixed_steps=(1,))}):
        with pytest.raises(InvalidInputError, match="left out for all but shuffled batches"):
            sgd([1.0], **facts)  # type: ignore[arg-type]


# The share of the last pass

CASES = [(4, 1, 1), (4, 1, 2), (4, 2, 1), (4, 1, 3), (2, 1, 3), (3, 1, 2), (3, 2, 1), (3, 2, 3)]


@pytest.mark.parametrize(("records", "batch", "steps"), CASES)
@pytest.mark.parametrize("sigma", [1.0, 2.0])
def test_small_mechanisms_written_out_never_cost_more(records: int, batch: int, steps: int, sigma: float) -> None:
    """Records 1, 2, … with numbers that hide or reveal the order; and the order published, which is the worst case."""
    profile = secret(steps, sigma, records=records, batch=batch).fixed_step_profile(steps)
    for epsilon in (0.0, 0.3, 1.0, 2.0):
        certified = profile.delta(epsilon)
        published = shuffled_orders.published_delta(epsilon, records, batch, steps, sigma)
        assert certified == pytest.approx(published, rel=1e-6, abs=1e-12), "nothing is lost"
        assert certified >= published
        for others in ([0.0] * 3, [1.0, -1.0, 1.0], [-1.0] * 3):
            points = {1: 2001, 2: 301, 3: 91}[steps]
            truth = shuffled_orders.secret_delta(epsilon, others[: records - 1], batch, steps, sigma, points)
            assert truth <= certified * (1 + 1e-4), "but for the error of the quadrature"


def test_the_share_is_what_was_seen_of_the_data_rounded_up() -> None:
    run = secret(25)
    seen = run.share_seen(25)
    assert 0.5 < seen < 0.5 + 1000 * float(DRAW_ERROR)
    mixed = run.fixed_step_profile(25)
    two, three = (GaussianProfile(2 * np.sqrt(k)) for k in (2, 3))
    for epsilon in (0.0, 5.0, 12.0):
        halves = (two.delta(epsilon) + three.delta(epsilon)) / 2
        assert halves <= mixed.delta(epsilon) <= halves * (1 + 1e-5)
    assert cost(run) < run.profile().epsilon(DELTA)


@pytest.mark.parametrize(("steps", "whole", "seen"), [(25, 20.1, 19.6), (91, 46.2, 43.7)])
def test_the_figures_on_the_page(steps: int, whole: float, seen: float) -> None:
    assert secret(steps).profile().epsilon(DELTA) == pytest.approx(whole, abs=0.05)
    assert cost(secret(steps)) == pytest.approx(seen, abs=0.05)


def test_a_smaller_last_batch_is_counted_as_a_whole_one_and_a_whole_pass_as_one() -> None:
    uneven = secret(3, records=25, batch=10, fixed=(1, 2, 3))
    assert [uneven.share_seen(step) >= share for step, share in ((1, 0.4), (2, 0.8))] == [True, True]
    assert uneven.share_seen(3) == 1
    dropped = DpSgd(
        blocks=[StepBlock(steps=2, noise_multiplier=1, clip_norm=1, learning_rate=1)],
        adjacency="replace_one",  # type: ignore[arg-type]
        sampling="shuffled",  # type: ignore[arg-type]
        steps_per_epoch=2,
        order=SecretOrder(records=25, batch_size=10, fixed_steps=(1, 2)),
    )
    assert dropped.share_seen(2) == 1
    assert 0.4 < dropped.share_seen(1) < 0.401


def test_torchs_permutations_are_as_near_to_uniform_as_is_counted() -> None:
    """Place i is drawn from what is left by 32 random bits modulo their number, from the first place on."""
    records, seed = 7, 5
    bits = np.random.RandomState(seed).randint(0, 2**32, size=records, dtype=np.uint32)
    order = list(range(records))
    for place in range(records - 1):
        other = place + int(bits[place]) % (records - place)
        order[place], order[other] = order[other], order[place]
    assert torch.randperm(records, generator=torch.Generator().manual_seed(seed)).tolist() == order
    # So each of those left is drawn with a chance at most 2⁻³² above the uniform one: twice that in all a place.
    order_of = SecretOrder(records=records, batch_size=1, fixed_steps=())
    for seen in range(1, records):
        missed = 1.0
        for place in range(seen):
            left = records - place
            missed *= 1 - -(-(2**32) // left) / 2**32
        assert 1 - missed <= order_of.chance(seen) <= seen / records + 1e-8


def test_no_share_without_a_secret_order_a_fixed_step_and_whole_passes_before() -> None:
    order = SecretOrder(records=1000, batch_size=100, fixed_steps=(13, 25))
    assert shuffled(25).share_seen(25) == 1
    assert [shuffled(25, order=order).share_seen(step) < 1 for step in (13, 24, 25)] == [True, False, True]
    cut = shuffled(25, order=order, passes=[(1, 8), (1, 10), (1, 7)])
    assert [cut.share_seen(step) for step in (13, 25)] == [1, 1], "whoever cut the first pass may have waited"
    first = shuffled(25, order=order, passes=[(1, 10), (1, 8), (1, 7)])
    assert [first.share_seen(step) < 1 for step in (13, 25)] == [True, False]
    for run in (shuffled(25), cut):
        assert run.fixed_step_profile(25) == run.own_profile(25)


def test_with_other_runs_compositions_are_mixed_and_not_mixtures_composed_as_gaussians() -> None:
    one, other = secret(15, 2.0), secret(23, 3.0)
    full = sgd([1.0] * 4, 5.0)
    profile = Exposure.of(Checkpoint(r, r.steps) for r in (one, other, full)).fixed_steps_profile()
    shares = one.share_seen(15), other.share_seen(23)
    for epsilon in (0.5, 3.0, 6.0):
        expected = 0.0
        for first in (0, 1):
            for second in (0, 1):
                chance = (shares[0] if first else 1 - shares[0]) * (shares[1] if second else 1 - shares[1])
                mu = np.sqrt(4 * (1 + first) / 4 + 4 * (2 + second) / 9 + 4 * 4 / 25)
                expected += chance * GaussianProfile(float(mu)).delta(epsilon)
        assert profile.delta(epsilon) == pytest.approx(expected, rel=1e-9)
        assert profile.delta(epsilon) >= expected * (1 - 1e-12)


def test_beyond_some_runs_passes_count_whole_and_never_less() -> None:
    runs = [secret(13, 4.0 + k, label=f"run-{k}") for k in range(MOST_SHARES + 2)]
    exposure = Exposure.of(Checkpoint(run, 13) for run in runs)
    assert len(exposure.seen_in_part) == MOST_SHARES
    counted = set(exposure.seen_in_part)
    fewer = [run if run in counted else shuffled(13, run.noise_multipliers[0]) for run in runs]
    assert cost(*runs) == pytest.approx(cost(*fewer), rel=1e-9)
    assert cost(*runs) < exposure.profile().epsilon(DELTA)
    assert cost(*reversed(runs)) == cost(*runs), "whatever the order they are named in"


def test_a_parent_counts_whole() -> None:
    parent = secret(15)
    child = sgd([1.0], 5.0, ancestry=Checkpoint(parent, 15))
    exposure = Exposure.of([Checkpoint(child, 1), Checkpoint(parent, 15)])
    assert exposure.seen_in_part == ()
    assert exposure.fixed_steps_profile() == exposure.profile()


def test_joint_release_says_what_the_share_rests_on_and_nothing_else_covers_it() -> None:
    alone = LinearCombination.of_runs([secret(15, vouched_by="log 7")], [1.0])
    bound = joint_release(alone)
    voices = [(premise.name, premise.vouched_by) for premise in bound.premises]
    assert ("order_secret_and_step_fixed_beforehand", "log 7") in voices
    assert bound.certifies
    assert bound.mu is None
    assert joint_release(LinearCombination.of_runs([shuffled(15)], [1.0])).mu == pytest.approx(2 * np.sqrt(2))
    for theorem in (last_step, hidden_state, merged_trajectory):
        assert not theorem(alone).certifies
        assert theorem(alone).profile is None
    assert "full_batch" in failing(last_step(alone))


def test_histories_have_shares_too_and_what_is_asked_without_a_fixed_step_counts_whole() -> None:
    history = AccountantHistory(costs=secret(15))
    assert history.share_seen(15) == secret(15).share_seen(15)
    assert isinstance(history.fixed_step_profile(15), SelectionProfile)
    assert history.own_profile(15) == history.profile() == GaussianProfile(2 * np.sqrt(2))


def test_the_renyi_curve_of_a_share_is_that_of_a_selection() -> None:
    """e^{(α−1)D} is convex in both distributions: the logarithm of the mean, never less than what is seen whole before.

    The truth by integration: the order published, at order 2."""
    run = secret(15, 4.0)
    share = run.share_seen(15)
    curve = RenyiProfile.of(run.fixed_step_profile(15), [2.0, 8.0]).values
    for order, value in zip((2.0, 8.0), curve, strict=True):
        before, after = (order * 4 * k / 16 / 2 for k in (1, 2))
        exact = np.log((1 - share) * np.exp((order - 1) * before) + share * np.exp((order - 1) * after)) / (order - 1)
        assert value == pytest.approx(exact)
        assert before < value < after
