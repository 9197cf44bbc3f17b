"""Linear combination: every theorem against exact Gaussian algebra, its premises, and how they rank."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from accounting.runs import DELTA, failing, sampled, sgd
from dpmerge.accounting import (
    THEOREMS,
    Adjacency,
    Checkpoint,
    Clipping,
    DeclaredLipschitz,
    DpSgd,
    GaussianRelease,
    LinearCombination,
    NonPrivate,
    Optimizer,
    StepBlock,
    gaussian_epsilon,
    hidden_state,
    joint_release,
    joint_release_mus,
    largest_mu,
    last_step,
    last_step_mus,
    merged_trajectory,
    merged_trajectory_mus,
    tightest,
)
from oracle import affine_chains, logistic_steps


@st.composite
def combinations(draw: st.DrawFn, *, equal_length: bool = False) -> LinearCombination:
    adjacency = draw(st.sampled_from(["replace_one", "add_remove"]))
    clipping = draw(st.sampled_from(list(Clipping)))
    common = draw(st.integers(1, 5))
    runs = []
    for _ in range(draw(st.integers(1, 3))):
        steps = common if equal_length else draw(st.integers(1, 5))
        rates = draw(st.lists(st.just(0.0) | st.floats(0.05, 3), min_size=steps, max_size=steps))
        runs.append(
            sgd(
                rates,
                draw(st.floats(0.3, 20)),
                draw(st.floats(0.1, 4)),
                adjacency,
                clipping=clipping,
                smoothness=DeclaredLipschitz(factors=draw(st.floats(0.5, 1.3))),
            )
        )
    raw = draw(
        st.lists(st.just(0.0) | st.floats(0.02, 1), min_size=len(runs), max_size=len(runs)).filter(
            lambda w: sum(w) > 0.05
        )
    )
    noise = draw(st.sampled_from([0.0, 0.5, 5.0]))
    weights = tuple(w / sum(raw) for w in raw)
    return LinearCombination.of_runs(runs, weights, release_noise=noise)


def affine(combination: LinearCombination) -> list[affine_chains.Chain]:
    """Runs that really behave as badly as their Lipschitz factors allow, with constant gradients."""
    chains = []
    for checkpoint in combination.support:
        run = checkpoint.run
        assert isinstance(run, DpSgd)
        assert isinstance(run.smoothness, DeclaredLipschitz)
        acting = run.rates > 0
        count = int(acting.sum())
        chains.append(
            affine_chains.Chain(
                [float(run.smoothness.factors)] * count,  # type: ignore[arg-type]
                run.rates[acting].tolist(),
                run.noise_multipliers[acting].tolist(),
                run.clip_norms[acting].tolist(),
            )
        )
    return chains


def test_merged_trajectory_is_false_for_logistic_regression() -> None:
    """Two steps, 301 records, each gradient clipped: 1.19 claimed, 3.86 true. With the total clipped it is 0.50."""
    truths = {total: logistic_steps.flipped_label(301, (10.0, 0.5), total=total) for total in (False, True)}
    for clipping, total in ((Clipping.PER_EXAMPLE, False), (Clipping.AGGREGATE, True)):
        runs = [sgd([1.0, 1.0], sigma, clipping=clipping) for sigma in (10.0, 0.5)]
        combination = LinearCombination.of_runs(runs, [0.9, 0.1])
        claimed, truth = merged_trajectory(combination), logistic_steps.epsilon(*truths[total], DELTA)
        assert claimed.mu is not None
        assert gaussian_epsilon(claimed.mu, DELTA) == pytest.approx(1.19, abs=5e-3)
        assert truth == pytest.approx(0.50 if total else 3.86, abs=5e-3)
        assert claimed.certifies == total
        assert failing(claimed) == ([] if total else ["update_bounded_for_any_two_hidden_states"])
        for theorem in (joint_release, last_step):
            bound = theorem(combination)
            assert bound.certifies
            assert bound.mu is not None
            assert gaussian_epsilon(bound.mu, DELTA) > truth


@given(combinations())
def test_no_certifying_theorem_is_below_the_truth_of_affine_runs(combination: LinearCombination) -> None:
    """The exact μ of the merged release bounds every sound theorem from below."""
    sensitivity = combination.support[0].run.sensitivity  # type: ignore[attr-defined]
    assume(combination.release_noise > 0 or any(np.any(c.run.rates > 0) for c in combination.support))  # type: ignore[attr-defined]
    truth = affine_chains.merged_final_mu(
        affine(combination), combination.support_weights, sensitivity, combination.release_noise
    )
    for theorem in (joint_release, last_step, hidden_state):
        bound = theorem(combination)
        assert bound.certifies
        assert bound.mu is not None
        assert bound.mu >= truth * (1 - 1e-9)


@given(combinations(equal_length=True), st.lists(st.floats(0.5, 1.3), min_size=5, max_size=5))
def test_merged_trajectory_bounds_a_shared_affine_map(combination: LinearCombination, factors: list[float]) -> None:
    """Premise (c): with one map for all runs the whole merged trajectory is exactly Gaussian with this μ."""
    support, weights = combination.support, combination.support_weights
    steps = support[0].step
    acting = np.array([run.run.rates > 0 for run in support]).any(axis=0)  # type: ignore[attr-defined]
    assume(acting.all())  # a step at which nothing moves has no density to compare
    moves = [c.run.moves(steps) for c in support]  # type: ignore[attr-defined]
    truth = affine_chains.matrix_mu(
        np.array(factors[:steps]).reshape(steps, 1, 1),
        np.array([m.shift for m in moves])[:, :, np.newaxis],
        np.array([m.noise for m in moves]),
        weights,
        trajectory=True,
    )
    shared = LinearCombination(checkpoints=support, weights=weights, shared_affine="the test")
    bound = merged_trajectory(shared)
    assert bound.certifies
    assert bound.mu == pytest.approx(truth, rel=1e-6)


def test_merged_trajectory_is_false_for_unequal_contractions() -> None:
    """A working counterexample: λ = (½, ½), σ = (10, 1), 100 steps, maps contracting by 0.9 and 1, add_remove."""
    example = affine_chains.unequal_contractions()
    runs = [sgd([1.0] * 100, sigma, adjacency="add_remove") for sigma in (10.0, 1.0)]
    combination = LinearCombination.of_runs(runs, [0.5, 0.5])
    claimed = merged_trajectory(combination)
    assert claimed.mu == pytest.approx(example.merged_trajectory, rel=1e-12)
    assert claimed.mu == pytest.approx(1.99, abs=5e-3)
    assert example.truth == pytest.approx(4.40, abs=5e-3)
    assert not claimed.certifies
    assert failing(claimed) == ["update_bounded_for_any_two_hidden_states"]
    for theorem in (joint_release, last_step):
        bound = theorem(combination)
        assert bound.certifies
        assert bound.mu is not None
        assert bound.mu >= example.truth
    known = [
        sgd([1.0] * 100, s, adjacency="add_remove", smoothness=DeclaredLipschitz(factors=c))
        for s, c in ((10.0, 0.9), (1.0, 1.0))
    ]
    restored = hidden_state(LinearCombination.of_runs(known, [0.5, 0.5]))
    assert restored.certifies
    assert restored.mu is not None
    assert example.truth <= restored.mu < example.joint_release


@given(combinations())
def test_hidden_state_never_costs_more_than_last_step_nor_that_more_than_joint_release(
    combination: LinearCombination,
) -> None:
    joint, last, hidden = (theorem(combination).mu for theorem in (joint_release, last_step, hidden_state))
    assert joint is not None
    assert last is not None
    assert hidden is not None
    assert joint >= last * (1 - 1e-9)
    assert last >= hidden * (1 - 1e-9)
    if combination.release_noise == 0:
        singles = [joint_release(LinearCombination(checkpoints=(c,), weights=(1.0,))).mu for c in combination.support]
        assert last >= min(mu for mu in singles if mu is not None) * (1 - 1e-9)


@given(combinations())
def test_permuting_runs_changes_no_theorem(combination: LinearCombination) -> None:
    turned = LinearCombination(
        checkpoints=combination.checkpoints[::-1],
        weights=combination.weights[::-1],
        release_noise=combination.release_noise,
    )
    for name, theorem in THEOREMS.items():
        assert theorem(turned).mu == pytest.approx(theorem(combination).mu, rel=1e-9), name


@given(combinations(), st.floats(1.01, 4))
def test_more_noise_never_costs_more(combination: LinearCombination, scale: float) -> None:
    def quieter(run: Any) -> DpSgd:
        blocks = tuple(
            StepBlock(
                steps=b.steps,
                noise_multiplier=b.noise_multiplier * scale,
                clip_norm=b.clip_norm,
                learning_rate=b.learning_rate,
            )
            for b in run.blocks
        )
        return DpSgd(blocks=blocks, adjacency=run.adjacency, clipping=run.clipping, smoothness=run.smoothness)

    scaled = LinearCombination.of_runs(
        [quieter(c.run) for c in combination.checkpoints], combination.weights, release_noise=combination.release_noise
    )
    for name, theorem in THEOREMS.items():
        before, after = theorem(combination).mu, theorem(scaled).mu
        assert before is not None
        assert after is not None
        assert after <= before * (1 + 1e-9), name


@given(combinations())
def test_all_weight_on_one_run_costs_that_run_alone(combination: LinearCombination) -> None:
    """With all weight on one run, joint release and the merged trajectory are that run's own guarantee."""
    first = combination.checkpoints[0]
    rest = len(combination.checkpoints) - 1
    vertex = LinearCombination(checkpoints=combination.checkpoints, weights=(1.0, *([0.0] * rest)))
    own = first.run.profile(first.step)
    assert joint_release(vertex).mu == pytest.approx(own.mu, rel=1e-12)  # type: ignore[attr-defined]
    assert last_step(vertex).mu == pytest.approx(own.mu, rel=1e-9)  # type: ignore[attr-defined]
    run = first.run
    assert isinstance(run, DpSgd)
    if np.all(run.rates > 0):
        assert merged_trajectory(vertex).mu == pytest.approx(own.mu, rel=1e-9)  # type: ignore[attr-defined]


def test_precision_weights_make_the_merged_trajectory_equal_joint_release() -> None:
    """λ ∝ 1/σ² with equal rates and clip norms: Cauchy–Schwarz is an equality."""
    noise = np.array([1.0, 2.0, 5.0])
    weights = noise**-2 / np.sum(noise**-2)
    combination = LinearCombination.of_runs([sgd([1.0] * 4, s) for s in noise], weights)
    assert merged_trajectory(combination).mu == pytest.approx(joint_release(combination).mu, rel=1e-12)


def test_many_weights_at_once_equal_one_by_one() -> None:
    rng = np.random.default_rng(0)
    runs = [sgd(rng.uniform(0, 2, steps), noise) for steps, noise in ((4, 3.0), (7, 1.0), (2, 8.0))]
    checkpoints = [Checkpoint(run, run.steps) for run in runs]
    rows = rng.dirichlet([0.4] * 3, 20_000)
    rows[0], rows[1] = [0, 1, 0], [0.5, 0, 0.5]
    joint = joint_release_mus(checkpoints, rows)
    last = last_step_mus(checkpoints, rows, 0.7)
    maps = {a: merged_trajectory_mus(checkpoints, rows, a) for a in ("appended", "prepended", "best")}  # type: ignore[arg-type]
    for place in [0, 1, *rng.integers(0, rows.shape[0], 20)]:
        one = LinearCombination.of_runs(runs, rows[place], release_noise=0.7)
        assert joint[place] == pytest.approx(joint_release(one).mu, rel=1e-12)
        assert last[place] == pytest.approx(last_step(one).mu, rel=1e-12)
        for alignment in maps:
            assert maps[alignment][place] == pytest.approx(merged_trajectory(one, alignment).mu, rel=1e-12)  # type: ignore[arg-type]
    np.testing.assert_array_equal(maps["best"], np.minimum(maps["appended"], maps["prepended"]))
    # A target (ε, δ) is one comparison with the largest μ that meets it.
    target = float(np.median(gaussian_epsilon(joint, DELTA)))
    clear = np.abs(gaussian_epsilon(joint, DELTA) - target) > 1e-8
    np.testing.assert_array_equal(
        (joint <= largest_mu(target, DELTA))[clear], (gaussian_epsilon(joint, DELTA) <= target)[clear]
    )


def test_steps_of_rate_zero_cost_nothing_in_the_merged_trajectory() -> None:
    with_pause = LinearCombination.of_runs([sgd([1.0, 0.0, 2.0]), sgd([1.0, 0.0, 1.0], 1.0)], [0.5, 0.5])
    without = LinearCombination.of_runs([sgd([1.0, 2.0]), sgd([1.0, 1.0], 1.0)], [0.5, 0.5])
    assert merged_trajectory(with_pause).mu == pytest.approx(merged_trajectory(without).mu, rel=1e-12)
    silent = LinearCombination.of_runs([sgd([0.0, 0.0]), sgd([0.0, 0.0], 1.0)], [0.5, 0.5])
    assert merged_trajectory(silent).mu == 0
    assert joint_release(silent).mu == pytest.approx(np.sqrt(2 + 2 * 4))


def test_the_last_step_is_the_last_with_a_positive_rate() -> None:
    paused = sgd([1.0, 2.0, 0.0], 4.0)
    other = sgd([1.0], 2.0)
    bound = last_step(LinearCombination.of_runs([paused, other], [0.5, 0.5]))
    # Of the first run steps 1 and 3 are released; step 2 (rate 2) is merged with the other's only step.
    merged = (0.5 * 2 * 2 + 0.5 * 2) ** 2 / ((0.5 * 2 * 4) ** 2 + (0.5 * 2) ** 2)
    assert bound.mu == pytest.approx(np.sqrt(2 * (2 / 4) ** 2 + merged))


@pytest.mark.parametrize(
    ("optimizer", "steps", "coefficient"),
    [
        (Optimizer(), 3, 1.0),
        (Optimizer(weight_decay=0.1), 3, 1.0),
        (Optimizer(momentum=0.9), 3, 1.0),
        (Optimizer(momentum=0.9, dampening=0.5), 3, 0.5),
        (Optimizer(momentum=0.9, dampening=0.5), 1, 1.0),
        (Optimizer(momentum=0.9, nesterov=True), 3, 1.9),
        (Optimizer(momentum=0.9, nesterov=True), 1, 1.9),
    ],
)
def test_last_step_counts_the_optimizers_coefficient(optimizer: Optimizer, steps: int, coefficient: float) -> None:
    plain = sgd([1.0] * 3, 1.0)
    run = sgd([1.0] * steps, 4.0, optimizer=optimizer)
    mu = last_step(LinearCombination.of_runs([run, plain], [0.5, 0.5])).mu
    merged = (0.5 * 2 * coefficient + 0.5 * 2) ** 2 / ((0.5 * 4 * coefficient) ** 2 + 0.25)
    assert mu == pytest.approx(np.sqrt((steps - 1) * (2 / 4) ** 2 + 2 * 4 + merged))


def test_the_coefficient_is_what_torch_does_written_out() -> None:
    """Replay PyTorch's update rule on scalars: by how much does the last gradient move the weights?"""
    for momentum, dampening, nesterov in ((0.0, 0.0, False), (0.9, 0.0, False), (0.9, 0.3, False), (0.8, 0.0, True)):
        for steps in (1, 4):
            moved = []
            for last_gradient in (0.0, 1.0):
                theta, buffer = 0.0, None
                for step in range(steps):
                    gradient = last_gradient if step == steps - 1 else 0.37 * step + 0.1
                    if momentum:
                        buffer = gradient if buffer is None else momentum * buffer + (1 - dampening) * gradient
                        gradient = gradient + momentum * buffer if nesterov else buffer
                    theta -= gradient
                moved.append(theta)
            optimizer = Optimizer(momentum=momentum, dampening=dampening, nesterov=nesterov)
            assert optimizer.gradient_coefficient(first_step=steps == 1) == pytest.approx(moved[0] - moved[1])


def test_sampling_a_clipped_total_costs_the_full_batch_merged_trajectory() -> None:
    runs = [sampled(5, clipping=Clipping.AGGREGATE), sampled(5, noise=3.0, clipping=Clipping.AGGREGATE)]
    full = [sgd([1.0] * 5, n, adjacency="add_remove", clipping=Clipping.AGGREGATE) for n in (1.0, 3.0)]
    bound = merged_trajectory(LinearCombination.of_runs(runs, [0.3, 0.7]))
    assert bound.certifies
    assert bound.mu == merged_trajectory(LinearCombination.of_runs(full, [0.3, 0.7])).mu


def test_sampled_runs_of_several_steps_have_no_merged_trajectory() -> None:
    bound = merged_trajectory(LinearCombination.of_runs([sampled(2), sampled(2)], [0.5, 0.5]))
    assert bound.profile is None
    assert not bound.certifies


def test_sampled_single_steps_under_replace_one_have_no_merged_trajectory() -> None:
    runs = [sampled(adjacency=Adjacency.REPLACE_ONE), sampled(adjacency=Adjacency.REPLACE_ONE)]
    assert merged_trajectory(LinearCombination.of_runs(runs, [0.5, 0.5])).profile is None


def test_too_many_sampled_runs_have_no_merged_trajectory() -> None:
    runs = [sampled() for _ in range(7)]
    assert merged_trajectory(LinearCombination.of_runs(runs, [1 / 7] * 7)).profile is None


def test_one_sampled_step_alone_is_its_own_profile() -> None:
    run = sampled(noise=0.8, rate=0.2)
    merged = merged_trajectory(LinearCombination.of_runs([run], [1.0]))
    assert merged.epsilon(DELTA) == pytest.approx(run.profile().epsilon(DELTA), rel=2e-4)


def test_a_sampled_step_beside_a_full_batch_one_and_a_pause_costs_less_than_unsampled() -> None:
    full = sgd([1.0], 2.0, adjacency="add_remove")
    bound = merged_trajectory(
        LinearCombination.of_runs([sampled(), full, sgd([0.0], adjacency="add_remove")], [0.4, 0.4, 0.2])
    )
    everything = merged_trajectory(
        LinearCombination.of_runs([sgd([1.0], 1.0, adjacency="add_remove"), full], [0.5, 0.5])
    )
    assert bound.certifies
    assert bound.epsilon(DELTA) < everything.epsilon(DELTA)  # type: ignore[operator]


def test_two_runs_of_equal_settings_are_charged_twice() -> None:
    same = LinearCombination.of_runs([sgd([1.0] * 3), sgd([1.0] * 3)], [0.5, 0.5])
    assert joint_release(same).mu == pytest.approx(np.sqrt(2) * sgd([1.0] * 3).profile().mu)  # type: ignore[attr-defined]


def test_every_theorem_charges_the_ancestors_or_refuses() -> None:
    parent = sgd([1.0] * 9, 3.0)
    children = [sgd([1.0], s, ancestry=Checkpoint(parent, 4)) for s in (2.0, 5.0)]
    combination = LinearCombination.of_runs(children, [0.5, 0.5])
    prefix = parent.profile(4).mu  # type: ignore[attr-defined]
    assert joint_release(combination).mu == pytest.approx(np.sqrt(prefix**2 + 1 + (2 / 5) ** 2))
    alone = LinearCombination.of_runs([sgd([1.0], s) for s in (2.0, 5.0)], [0.5, 0.5])
    for theorem in (last_step, merged_trajectory):
        bound = theorem(combination)
        assert bound.certifies
        assert bound.mu == pytest.approx(np.hypot(prefix, theorem(alone).mu))
    refused = hidden_state(combination)
    assert refused.profile is None
    assert "start_independent_of_private_data" in failing(refused)


def test_gaussian_releases_combine_exactly() -> None:
    releases = [
        GaussianRelease(sensitivity=0.02, standard_deviation=s, adjacency=Adjacency.REPLACE_ONE) for s in (0.1, 0.3)
    ]
    combination = LinearCombination.of_runs(releases, [0.6, 0.4])
    exact = 0.02 / np.hypot(0.6 * 0.1, 0.4 * 0.3)
    for theorem in (last_step, merged_trajectory):
        assert theorem(combination).certifies
        assert theorem(combination).mu == pytest.approx(exact, rel=1e-12)
    assert joint_release(combination).mu == pytest.approx(np.hypot(0.02 / 0.1, 0.02 / 0.3))


def test_a_non_private_member_makes_the_combination_infinite() -> None:
    combination = LinearCombination.of_runs([NonPrivate(adjacency=Adjacency.REPLACE_ONE), sgd()], [0.1, 0.9])
    assert joint_release(combination).epsilon(DELTA) == np.inf
    noiseless = LinearCombination.of_runs([sgd(noise=0.0), sgd()], [0.1, 0.9])
    assert joint_release(noiseless).epsilon(DELTA) == np.inf
    assert last_step(noiseless).mu == pytest.approx(2 / 1.8)
    unused = LinearCombination.of_runs([sgd(noise=0.0), sgd()], [0.0, 1.0])
    assert joint_release(unused).mu == 1


def test_the_tightest_certifying_theorem_wins_and_ties_go_to_the_simplest() -> None:
    runs = [sgd([1.0] * 5, s, smoothness=DeclaredLipschitz(factors=1.0)) for s in (8.0, 4.0)]
    bounds = [theorem(LinearCombination.of_runs(runs, [0.8, 0.2])) for theorem in THEOREMS.values()]
    best = tightest(bounds, DELTA)
    assert best is not None
    assert best[0].theorem == "hidden_state"
    assert best[1] == min(b.epsilon(DELTA) for b in bounds if b.certifies)  # type: ignore[type-var]
    alone = [theorem(LinearCombination.of_runs([sgd()], [1.0])) for theorem in THEOREMS.values()]
    winner = tightest(alone, DELTA)
    assert winner is not None
    assert winner[0].theorem == "joint_release"
    assert tightest([b for b in bounds if not b.certifies], DELTA) is None


def test_the_papers_schedule_costs_the_stated_numbers() -> None:
    """0.945 without release noise, 0.427 with one step's noise at the peak rate; unproved 0.519, joint 1.18."""
    rates = [2.0, 4.0, 4.0] + [4.0 * (18 - t) / 18 for t in range(1, 18)]
    runs = [sgd(rates, s, smoothness=DeclaredLipschitz(factors=1.0)) for s in (64.0, 32.0)]
    silent = LinearCombination.of_runs(runs, [0.95, 0.05])
    noised = LinearCombination.of_runs(runs, [0.95, 0.05], release_noise=256.0)
    assert hidden_state(silent).epsilon(DELTA) == pytest.approx(0.945, abs=5e-4)
    assert hidden_state(noised).epsilon(DELTA) == pytest.approx(0.427, abs=5e-4)
    assert merged_trajectory(silent).epsilon(DELTA) == pytest.approx(0.519, abs=5e-4)
    assert joint_release(silent).epsilon(DELTA) == pytest.approx(1.18, abs=5e-3)


@settings(max_examples=30)
@given(st.floats(1e-3, 50))
def test_release_noise_reaches_every_epsilon(target: float) -> None:
    run = sgd([1.0] * 10, 5.0, smoothness=DeclaredLipschitz(factors=1.0))
    mu = largest_mu(target, DELTA)
    enough = 20.0 / mu  # A = 20 bounds the shift; τ alone brings it down to μ
    bound = hidden_state(LinearCombination.of_runs([run], [1.0], release_noise=enough))
    assert bound.epsilon(DELTA) <= target  # type: ignore[operator]
