"""When each theorem certifies, and that it refuses with the failing premise named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from accounting.runs import DELTA, failing, sampled, sgd
from dpmerge.accounting import (
    Adjacency,
    ApproximateDp,
    Checkpoint,
    Clipping,
    DeclaredLipschitz,
    DpSgd,
    LinearCombination,
    NonPrivate,
    Optimizer,
    Smoothness,
    StepBlock,
    WeightAverage,
    hidden_state,
    hidden_state_mus,
    joint_release,
    joint_release_mus,
    last_step,
    last_step_mus,
    linear_mus,
    merged_trajectory,
    merged_trajectory_mus,
)
from dpmerge.errors import InvalidInputError, NoGuaranteeError

NO_LAST_STEP = {
    "adam": ({"optimizer": Optimizer(name="adam")}, "last_update_linear_in_its_gradient"),
    "shuffled": ({"sampling": "shuffled", "steps_per_epoch": 2}, "full_batch"),
}


@pytest.mark.parametrize("name", NO_LAST_STEP)
def test_last_step_is_refused_with_the_failing_premise(name: str) -> None:
    facts, premise = NO_LAST_STEP[name]
    bound = last_step(LinearCombination.of_runs([sgd([1.0] * 4, **facts), sgd()], [0.5, 0.5]))
    assert bound.profile is None
    assert failing(bound) == [premise]


DIVIDED = Smoothness(kind="declared", beta=1.0, records=1000, divisor=1000)

CERTIFYING_TRAJECTORIES = {
    "(a) one step": ([sgd(), sgd(noise=0.5)], None, True),
    "(a) one acting step": ([sgd([0.0, 1.0]), sgd([1.0, 0.0])], None, True),
    "(a) one step with momentum": ([sgd(optimizer=Optimizer(momentum=0.9)), sgd()], None, True),
    "not (a): a paused step with momentum": ([sgd([0.0, 1.0], optimizer=Optimizer(momentum=0.9)), sgd()], None, False),
    "not (a): nesterov": ([sgd(optimizer=Optimizer(momentum=0.9, nesterov=True)), sgd()], None, False),
    "not (a): adam": ([sgd(optimizer=Optimizer(name="adam")), sgd()], None, False),
    "two steps": ([sgd([1.0, 1.0]), sgd()], None, False),
    "(b)": ([sgd([1.0] * 3, clipping=Clipping.AGGREGATE), sgd([1.0], clipping=Clipping.AGGREGATE)], None, True),
    "not (b): weight decay": (
        [sgd([1.0] * 3, clipping=Clipping.AGGREGATE, optimizer=Optimizer(weight_decay=0.1))] * 1,
        None,
        False,
    ),
    "not (b): momentum": (
        [sgd([1.0] * 3, clipping=Clipping.AGGREGATE, optimizer=Optimizer(momentum=0.1))],
        None,
        False,
    ),
    "(c)": ([sgd([1.0] * 3), sgd([1.0] * 3, 1.0)], "somebody", True),
    "not (c): unequal lengths": ([sgd([1.0] * 3), sgd([1.0] * 4, 1.0)], "somebody", False),
    "not (c): unequal weight decay": (
        [sgd([1.0] * 3), sgd([1.0] * 3, optimizer=Optimizer(weight_decay=0.1))],
        "somebody",
        False,
    ),
    "(c) equal weight decay": (
        [sgd([1e-5] * 3, optimizer=Optimizer(weight_decay=0.1), smoothness=DIVIDED) for _ in "ab"],
        "somebody",
        True,
    ),
    "not (c): weight decay without a divisor": (
        [sgd([1e-5] * 3, optimizer=Optimizer(weight_decay=0.1)) for _ in "ab"],
        "somebody",
        False,
    ),
    "not (c): small but unequal weight decay": (
        [sgd([1e-8] * 3, optimizer=Optimizer(weight_decay=m), smoothness=DIVIDED) for m in (0.1, 0.0)],
        "somebody",
        False,
    ),
    "not (c): momentum": ([sgd([1.0] * 3, optimizer=Optimizer(momentum=0.1)) for _ in "ab"], "somebody", False),
}


@pytest.mark.parametrize("name", CERTIFYING_TRAJECTORIES)
def test_the_merged_trajectory_certifies_only_where_one_of_its_premises_holds(name: str) -> None:
    runs, shared, expected = CERTIFYING_TRAJECTORIES[name]
    weights = [1 / len(runs)] * len(runs)
    bound = merged_trajectory(LinearCombination.of_runs(runs, weights, shared_affine=shared))
    assert bound.certifies is expected
    assert bound.mu is not None, "the paper's number is there whether or not it is a proof"
    assert failing(bound) == ([] if expected else ["update_bounded_for_any_two_hidden_states"])
    if shared and expected:
        assert any("somebody" in premise.vouched_by for premise in bound.premises)


def test_checkpoints_of_one_run_count_once_at_the_latest() -> None:
    run = sgd([1.0] * 6)
    combination = LinearCombination(checkpoints=(Checkpoint(run, 2), Checkpoint(run, 5)), weights=(0.5, 0.5))
    assert joint_release(combination).mu == pytest.approx(run.profile(5).mu)  # type: ignore[attr-defined]
    for theorem in (last_step, merged_trajectory, hidden_state):
        bound = theorem(combination)
        assert bound.profile is None
        assert "one_checkpoint_per_run" in failing(bound)


def test_a_run_merged_with_its_own_descendant_is_joint_release_only() -> None:
    parent = sgd([1.0] * 4)
    child = sgd([1.0] * 2, ancestry=Checkpoint(parent, 4))
    combination = LinearCombination.of_runs([parent, child], [0.5, 0.5])
    assert joint_release(combination).mu == pytest.approx(child.profile().mu)  # type: ignore[attr-defined]
    for theorem in (last_step, merged_trajectory, hidden_state):
        assert theorem(combination).profile is None
        assert "no_run_descends_from_another" in failing(theorem(combination))


def test_imported_models_join_by_joint_release_only() -> None:
    imported = ApproximateDp(points=((1.0, 1e-6),), adjacency=Adjacency.REPLACE_ONE)
    combination = LinearCombination.of_runs([imported, sgd()], [0.5, 0.5])
    joint = joint_release(combination)
    assert joint.certifies
    assert joint.mu is None
    assert joint.epsilon(DELTA) > sgd().profile().epsilon(DELTA)  # type: ignore[operator]
    for theorem in (last_step, merged_trajectory, hidden_state):
        assert theorem(combination).profile is None
        assert not theorem(combination).certifies


SMOOTH = {
    "logistic": (Smoothness(kind="logistic", feature_bound=2.0, records=100, divisor=100), 1.0, 1.0),
    "squared": (Smoothness(kind="squared", feature_bound=1.0, records=100, divisor=100), 1.0, 1.0),
    "huber": (Smoothness(kind="huber", feature_bound=1.0, records=100, divisor=100), 1.0, 1.0),
    "softmax": (Smoothness(kind="softmax", feature_bound=0.7, records=100, divisor=100), 0.245, 1.0),
    "squared without the half": (
        Smoothness(kind="squared", feature_bound=1.0, beta=2.0, records=100, divisor=100),
        2.0,
        1.0,
    ),
    "a smaller beta is not believed": (
        Smoothness(kind="squared", feature_bound=1.0, beta=0.1, records=100, divisor=100),
        1.0,
        1.0,
    ),
}


@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize("rate", [0.005, 0.015, 0.03])
@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_lipschitz_factors_of_convex_losses_are_those_of_the_worst_curvature(
    name: str, rate: float, decay: float
) -> None:
    """The worst curvature between 0 and β, with the rate of the *mean* gradient: effective rate × records."""
    facts, beta, clip = SMOOTH[name]
    run = sgd([rate] * 3, clip=clip, smoothness=facts, optimizer=Optimizer(weight_decay=decay))
    curvatures = np.linspace(0, beta, 1001)
    eta = rate * 100
    expected = np.abs(1 - eta * (curvatures + decay)).max()
    np.testing.assert_allclose(run.lipschitz(3), expected, rtol=1e-12)
    assert hidden_state(LinearCombination.of_runs([run], [1.0])).certifies


@pytest.mark.parametrize("kind", ["logistic", "declared"])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_a_looser_bound_on_the_records_never_costs_less(kind: str, decay: float) -> None:
    """Weight decay shrinks by the learning rate, whatever the number of records is bounded by."""

    def mu(records: int) -> float:
        facts = Smoothness(kind=kind, feature_bound=1.0, beta=0.3, records=records, divisor=10_000)  # type: ignore[arg-type]
        runs = [
            sgd([1e-4] * 50, noise, adjacency="add_remove", smoothness=facts, optimizer=Optimizer(weight_decay=decay))
            for noise in (20.0, 5.0)
        ]
        found = hidden_state(LinearCombination.of_runs(runs, [0.7, 0.3], release_noise=0.001)).mu
        assert found is not None
        return found

    found = [mu(records) for records in (5_000, 10_000, 20_000, 30_000, 200_000)]
    assert found == sorted(found)


def test_a_factor_that_rounds_to_zero_does_not_forget_the_past() -> None:
    """1 − 0.1·10 is −5.6e-17, not zero: times a state of 1e25 it is everything."""
    facts = Smoothness(kind="declared", beta=0.0, records=1, divisor=1)
    blocks = [
        StepBlock(steps=1, noise_multiplier=0.01, clip_norm=1, learning_rate=1e25),
        StepBlock(steps=1, noise_multiplier=1.0, clip_norm=1, learning_rate=0.1),
    ]
    run = DpSgd(blocks=blocks, adjacency=Adjacency.ADD_REMOVE, smoothness=facts, optimizer=Optimizer(weight_decay=10.0))
    bound = hidden_state(LinearCombination.of_runs([run], [1.0]))
    assert bound.mu is not None
    assert bound.mu >= 100 * (1 - 1e-9)


def test_weight_decay_needs_the_divisor() -> None:
    facts = Smoothness(kind="logistic", feature_bound=1.0, records=100)
    run = sgd([0.01] * 3, smoothness=facts, optimizer=Optimizer(weight_decay=0.1))
    bound = hidden_state(LinearCombination.of_runs([run], [1.0]))
    assert bound.profile is None
    assert failing(bound) == ["divisor_known_for_weight_decay"]
    assert hidden_state(LinearCombination.of_runs([sgd([0.01] * 3, smoothness=facts)], [1.0])).certifies


def test_an_ancestor_without_accounting_is_a_failing_premise_of_every_theorem() -> None:
    parent = sampled(3, adjacency=Adjacency.REPLACE_ONE, clipping=Clipping.AGGREGATE)
    combination = LinearCombination.of_runs([sgd(ancestry=Checkpoint(parent, 2))], [1.0])
    for theorem in (joint_release, last_step, merged_trajectory):
        bound = theorem(combination)
        assert bound.profile is None
        assert "accounting_proved" in failing(bound)


def test_sampled_steps_of_next_to_no_noise_are_not_private() -> None:
    bound = merged_trajectory(LinearCombination.of_runs([sampled(noise=1e-20), sampled(noise=1e-20)], [0.5, 0.5]))
    assert bound.epsilon(DELTA) == np.inf


def test_one_sampled_run_among_many_full_batch_ones_has_a_merged_trajectory() -> None:
    """Only the runs that sample double the number of outcomes."""
    runs = [sampled(), *(sgd([1.0], 4.0, adjacency="add_remove") for _ in range(29))]
    assert merged_trajectory(LinearCombination.of_runs(runs, [1 / 30] * 30)).certifies


def test_merged_theorems_cover_one_release_only() -> None:
    combination = LinearCombination.of_runs([sgd(smoothness=DeclaredLipschitz(factors=1.0))], [1.0])
    for theorem in (last_step, merged_trajectory, hidden_state):
        assert "nothing_else_of_these_runs_is_ever_released" in [p.name for p in theorem(combination).premises]
    assert "nothing_else_of_these_runs_is_ever_released" not in [p.name for p in joint_release(combination).premises]


def test_a_failing_premise_is_vouched_for_by_nobody() -> None:
    bound = last_step(LinearCombination.of_runs([sgd(optimizer=Optimizer(name="Adam"))], [1.0]))
    assert [p.vouched_by for p in bound.premises if not p.holds] == ["nobody: contradicted by the run's record"]


@pytest.mark.parametrize("claim", [True, False, "", 1])
def test_a_shared_affine_map_needs_somebody_who_vouches(claim: Any) -> None:
    with pytest.raises(InvalidInputError, match="shared_affine: got .*; accepted: None, or the name of who vouches"):
        LinearCombination.of_runs([sgd([1.0] * 2)], [1.0], shared_affine=claim)


GUARDED = {
    "hidden_state_mus, poisson": (
        hidden_state_mus,
        lambda: sampled(3, smoothness=DeclaredLipschitz(factors=1.0)),
        "full_batch",
    ),
    "hidden_state_mus, momentum": (
        hidden_state_mus,
        lambda: sgd([1.0] * 3, smoothness=DeclaredLipschitz(factors=1.0), optimizer=Optimizer(momentum=0.9)),
        "sgd_without_momentum",
    ),
    "hidden_state_mus, small clip norm": (
        hidden_state_mus,
        lambda: sgd([1.0] * 3, smoothness=Smoothness(kind="softmax", feature_bound=1.0, records=3)),
        "clip_norm_at_least_sqrt2_feature_bound",
    ),
    "last_step_mus, adam": (
        last_step_mus,
        lambda: sgd(optimizer=Optimizer(name="adam")),
        "last_update_linear_in_its_gradient",
    ),
    "last_step_mus, poisson": (last_step_mus, sampled, "full_batch"),
    "last_step_mus, descendant": (
        last_step_mus,
        lambda: sgd(ancestry=Checkpoint(sgd(), 1)),
        "start_independent_of_private_data",
    ),
    "merged_trajectory_mus, descendant": (
        merged_trajectory_mus,
        lambda: sgd(ancestry=Checkpoint(sgd(), 1)),
        "start_independent_of_private_data",
    ),
    "joint_release_mus, poisson": (joint_release_mus, sampled, "full_batch"),
}


@pytest.mark.parametrize("name", GUARDED)
def test_many_at_once_refuse_what_one_at_a_time_refuses(name: str) -> None:
    function, build, premise = GUARDED[name]
    with pytest.raises(NoGuaranteeError, match=premise):
        function([build()], [[1.0]])


OFF_SIMPLEX = {"too small": [0.1], "too large": [5.0], "negative": [-1.0], "NaN": [float("nan")], "vanishing": [1e-200]}


@pytest.mark.parametrize("name", OFF_SIMPLEX)
@pytest.mark.parametrize(
    "function", [hidden_state_mus, joint_release_mus, last_step_mus, merged_trajectory_mus, linear_mus]
)
def test_many_at_once_refuse_weights_off_the_simplex(name: str, function: Any) -> None:
    run = sgd([1.0] * 3, smoothness=DeclaredLipschitz(factors=1.0))
    with pytest.raises(InvalidInputError, match="weights\\[1\\]: got .*which sum to"):
        function([run], [[1.0], OFF_SIMPLEX[name]])


def test_many_at_once_refuse_wrong_candidates_and_noise_by_name() -> None:
    with pytest.raises(InvalidInputError, match="candidates\\[0\\]: got a GaussianProfile; accepted: a checkpoint"):
        joint_release_mus([sgd().profile()], [[1.0]])  # type: ignore[list-item]
    with pytest.raises(InvalidInputError, match="candidates: got \\[\\]; accepted: at least one"):
        joint_release_mus([], [[]])
    with pytest.raises(InvalidInputError, match="release_noise"):
        hidden_state_mus([sgd(smoothness=DeclaredLipschitz(factors=1.0))], [[1.0]], -1.0)


def test_declared_smoothness_is_not_assumed_convex() -> None:
    facts = Smoothness(kind="declared", beta=0.5, records=100, divisor=100)
    run = sgd([0.01], smoothness=facts, optimizer=Optimizer(weight_decay=0.2))
    np.testing.assert_allclose(run.lipschitz(1), abs(1 - 0.2) + 0.5)


def test_softmax_gradients_stay_below_the_clip_norm_that_is_asked_for() -> None:
    """√2·R bounds a softmax gradient: ‖p − y‖·‖x‖ over many random cases, approached by a wrong, sure answer."""
    rng = np.random.default_rng(0)
    largest = 0.0
    for _ in range(2000):
        logits = rng.normal(0, 10, 6)
        p = np.exp(logits - logits.max())
        p /= p.sum()
        p[rng.integers(6)] -= 1
        largest = max(largest, float(np.linalg.norm(p)))
    needed = Smoothness(kind="softmax", feature_bound=1.0).least_clip_norm
    assert 1.41 < largest <= needed


REFUSED_HIDDEN_STATE = {
    "softmax with a small clip norm": (
        {"smoothness": Smoothness(kind="softmax", feature_bound=1.0, records=10)},
        "clip_norm_at_least_sqrt2_feature_bound",
    ),
    "per-layer clipping": (
        {"smoothness": DeclaredLipschitz(factors=1.0), "flat_clipping": False},
        "flat_clipping",
    ),
    "momentum": (
        {"smoothness": DeclaredLipschitz(factors=1.0), "optimizer": Optimizer(momentum=0.9)},
        "sgd_without_momentum",
    ),
    "adam": (
        {"smoothness": DeclaredLipschitz(factors=1.0), "optimizer": Optimizer(name="adam")},
        "sgd_without_momentum",
    ),
    "unbounded features": ({"smoothness": Smoothness(kind="logistic", records=10)}, "features_bounded"),
    "unbounded softmax features": ({"smoothness": Smoothness(kind="softmax", records=10)}, "features_bounded"),
    "unknown number of records": (
        {"smoothness": Smoothness(kind="logistic", feature_bound=1.0)},
        "number_of_records_bounded",
    ),
    "a clipped total": (
        {
            "smoothness": Smoothness(kind="logistic", feature_bound=1.0, records=10),
            "clipping": Clipping.AGGREGATE,
        },
        "per_example_clipping",
    ),
    "no facts": ({}, "smoothness_known"),
    "shuffled": (
        {"smoothness": DeclaredLipschitz(factors=1.0), "sampling": "shuffled", "steps_per_epoch": 2},
        "full_batch",
    ),
}


@pytest.mark.parametrize("name", REFUSED_HIDDEN_STATE)
def test_hidden_state_is_refused_with_the_failing_premise(name: str) -> None:
    facts, premise = REFUSED_HIDDEN_STATE[name]
    good = sgd([1.0] * 3, smoothness=DeclaredLipschitz(factors=1.0))
    bound = hidden_state(LinearCombination.of_runs([sgd([1.0] * 3, **facts), good], [0.5, 0.5]))
    assert bound.profile is None
    assert not bound.certifies
    assert premise in failing(bound)
    unused = hidden_state(LinearCombination.of_runs([sgd([1.0] * 3, **facts), good], [0.0, 1.0]))
    assert unused.certifies, "a premise is asked of the support only"


def test_hidden_state_is_refused_for_poisson_sampling() -> None:
    run = sampled(3, smoothness=DeclaredLipschitz(factors=1.0))
    bound = hidden_state(LinearCombination.of_runs([run], [1.0]))
    assert bound.profile is None
    assert "full_batch" in failing(bound)


def test_every_premise_names_who_vouches() -> None:
    facts = Smoothness(kind="logistic", feature_bound=1.0, records=10, vouched_by="the data team")
    runs = [sgd([0.1] * 3, smoothness=facts, vouched_by="run log 7")]
    bound = hidden_state(LinearCombination.of_runs(runs, [1.0]))
    voices = {premise.name: premise.vouched_by for premise in bound.premises}
    assert voices["features_bounded"] == "the data team"
    assert voices["full_batch"] == "run log 7"
    assert all(voices.values())


def test_under_add_remove_the_divisor_must_be_public() -> None:
    named = [p.name for p in joint_release(LinearCombination.of_runs([sgd(adjacency="add_remove")], [1.0])).premises]
    assert "public_divisor" in named


BAD_COMBINATIONS = {
    "no checkpoints": (dict(checkpoints=(), weights=()), "checkpoints: got \\[\\]; accepted: at least one"),
    "too few weights": (dict(weights=(1.0,)), "weights: got .*2 numbers"),
    "negative weight": (dict(weights=(1.5, -0.5)), "weights: got .*≥ 0"),
    "weights not summing to one": (dict(weights=(0.5, 0.6)), "weights: got .*sum to 1"),
    "negative release noise": (
        dict(release_noise=-1.0),
        "release_noise: got -1.0; accepted: 0, or a number from 1e-30",
    ),
    "a weight that would underflow": (
        dict(weights=(1.0, 1e-200)),
        "weights\\[1\\]: got 1e-200; accepted: 0, or a number from 1e-30",
    ),
    "infinite release noise": (dict(release_noise=float("inf")), "release_noise: got inf"),
}


@pytest.mark.parametrize("name", BAD_COMBINATIONS)
def test_bad_combinations_are_refused_by_name(name: str) -> None:
    change, message = BAD_COMBINATIONS[name]
    good: dict[str, Any] = dict(checkpoints=(Checkpoint(sgd(), 1), Checkpoint(sgd(), 1)), weights=(0.5, 0.5))
    with pytest.raises(InvalidInputError, match=message):
        LinearCombination(**{**good, **change})


def test_runs_of_different_adjacency_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="adjacency: got .*replace_one.*add_remove.*the same adjacency"):
        LinearCombination.of_runs([sgd(), sgd(adjacency="add_remove")], [0.5, 0.5])


def test_bad_weight_rows_alignments_and_runs_without_steps_are_refused() -> None:
    checkpoints = [Checkpoint(sgd(), 1), Checkpoint(sgd(), 1)]
    with pytest.raises(InvalidInputError, match="weights: got .*rows of 2 numbers"):
        joint_release_mus(checkpoints, [[0.5, 0.25, 0.25]])
    with pytest.raises(InvalidInputError, match="weights"):
        merged_trajectory_mus(checkpoints, [[1.5, -0.5]])
    with pytest.raises(InvalidInputError, match="alignment: got 'centred'; accepted: appended, prepended, best"):
        merged_trajectory_mus(checkpoints, [[0.5, 0.5]], "centred")  # type: ignore[arg-type]
    imported = Checkpoint(NonPrivate(adjacency=Adjacency.REPLACE_ONE, label="baseline"), 1)
    with pytest.raises(InvalidInputError, match="baseline: got a NonPrivate; accepted: a run whose steps are known"):
        merged_trajectory_mus([imported], [[1.0]])


@pytest.mark.parametrize(("step", "unbroken"), [(3, True), (4, False), (10, False)])
def test_theorems_about_updates_stop_where_a_run_was_broken_off(step: int, unbroken: bool) -> None:
    """Steps were lost after the third: joint release goes on, nothing else does."""
    block = StepBlock(steps=10, noise_multiplier=4.0, clip_norm=1.0, learning_rate=0.1)
    whole, broken = (
        DpSgd(blocks=[block], adjacency="replace_one", smoothness=DeclaredLipschitz(factors=1), unbroken_steps=kept)  # type: ignore[arg-type]
        for kept in (None, 3)
    )
    for theorem in (last_step, hidden_state, merged_trajectory):
        found = theorem(LinearCombination(checkpoints=[Checkpoint(broken, step)], weights=[1.0]))
        known = theorem(LinearCombination(checkpoints=[Checkpoint(whole, step)], weights=[1.0]))
        assert (found.profile is not None) == unbroken
        assert [p.holds for p in found.premises if p.name == "no_step_lost_on_the_way"] == [unbroken]
        assert not any(p.name == "no_step_lost_on_the_way" for p in known.premises)
        assert found.profile == (known.profile if unbroken else None)
    joint = [
        joint_release(LinearCombination(checkpoints=[Checkpoint(r, step)], weights=[1.0])) for r in (whole, broken)
    ]
    assert joint[0].profile == joint[1].profile
    assert all(bound.certifies for bound in joint)
    for formula in (last_step_mus, merged_trajectory_mus, hidden_state_mus):
        if not unbroken:
            with pytest.raises(NoGuaranteeError, match="no_step_lost_on_the_way"):
                formula([Checkpoint(broken, step)], [[1.0]])
    assert joint_release_mus([Checkpoint(broken, step)], [[1.0]]) == pytest.approx(2 / 4.0 * step**0.5)


@pytest.mark.parametrize("kept", [-1, 11, 1.5])
def test_a_break_is_after_a_step_of_the_run(kept: float) -> None:
    block = StepBlock(steps=10, noise_multiplier=4.0, clip_norm=1.0, learning_rate=0.1)
    with pytest.raises(InvalidInputError, match="unbroken_steps"):
        DpSgd(blocks=[block], adjacency="replace_one", unbroken_steps=kept)  # type: ignore[arg-type]


def test_an_average_of_nothing_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="ancestry"):
        WeightAverage(adjacency="replace_one")  # type: ignore[arg-type]
