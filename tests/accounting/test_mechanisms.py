"""What a run's record proves: prefixes, adjacencies, samplings, ancestors; and what it does not."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpmerge.accounting import (
    Adjacency,
    ApproximateDp,
    Checkpoint,
    Clipping,
    DeclaredLipschitz,
    DpSgd,
    Exposure,
    GaussianProfile,
    GaussianRelease,
    LinearCombination,
    LossDistributionProfile,
    NonPrivate,
    NonPrivateProfile,
    Optimizer,
    RenyiMechanism,
    RenyiProfile,
    Sampling,
    SelectionProfile,
    Smoothness,
    StepBlock,
    compose,
    merged_trajectory,
)
from dpmerge.accounting.step_mechanisms import PoissonStep
from dpmerge.errors import InvalidInputError, NoGuaranteeError
from oracle import renyi_quadrature, tilted_convolution, trajectory_convolution

BOTH = list(Adjacency)


def run_with(**facts: Any) -> DpSgd:
    return DpSgd(adjacency=Adjacency.REPLACE_ONE, **facts)


def block(steps: int = 4, noise: float = 2.0, rate: Any = 1.0, q: float = 1.0) -> StepBlock:
    return StepBlock(steps=steps, noise_multiplier=noise, clip_norm=1.5, learning_rate=rate, sampling_rate=q)


def run(*blocks: StepBlock, adjacency: str = "replace_one", **facts: Any) -> DpSgd:
    return DpSgd(blocks=blocks or (block(),), adjacency=Adjacency(adjacency), **facts)


@pytest.mark.parametrize(
    ("adjacency", "clipping", "k"),
    [
        ("replace_one", "per_example", 2),
        ("add_remove", "per_example", 1),
        ("zero_out", "per_example", 1),
        ("replace_one", "aggregate", 2),
        ("add_remove", "aggregate", 2),
        ("zero_out", "aggregate", 2),
    ],
)
def test_sensitivity_is_two_clip_norms_unless_a_record_is_added_to_a_sum(adjacency: str, clipping: str, k: int) -> None:
    trained = run(adjacency=adjacency, clipping=clipping)
    assert trained.sensitivity == k
    assert trained.profile() == GaussianProfile(k * np.sqrt(4) / 2.0)


def test_prefixes_of_several_blocks_cost_the_sum_of_their_squares() -> None:
    trained = run(block(3, 2.0), block(2, 0.5))
    expected = 2 * np.sqrt([0, 1 / 4, 2 / 4, 3 / 4, 3 / 4 + 4, 3 / 4 + 8])
    for step, mu in enumerate(expected):
        assert trained.profile(upto=step).mu == pytest.approx(mu)  # type: ignore[attr-defined]
    curve = trained.prefix_epsilons(1e-5)
    np.testing.assert_allclose(curve, [GaussianProfile(mu).epsilon(1e-5) for mu in expected[1:]], rtol=1e-9)


def test_lists_and_arrays_are_as_good_as_tuples() -> None:
    rates = [1.0, 2.0, 0.5]
    given = [
        DpSgd(
            blocks=[StepBlock(steps=np.int64(3), noise_multiplier=np.float64(2), clip_norm=1, learning_rate=form)],
            adjacency="replace_one",  # type: ignore[arg-type]
            smoothness=DeclaredLipschitz(factors=form),
        )
        for form in (tuple(rates), rates, np.array(rates))
    ]
    for trained in given:
        np.testing.assert_array_equal(trained.rates, rates)
        np.testing.assert_array_equal(trained.lipschitz(3), rates)
        assert hash(trained.blocks[0]) == hash(given[0].blocks[0])


def test_generators_are_read_once_and_kept() -> None:
    """A sequence that can be read only once must not look empty the second time."""
    trained = DpSgd(blocks=(block() for _ in range(3)), adjacency="replace_one")  # type: ignore[arg-type]
    assert trained.steps == 12
    assert compose(p for p in (GaussianProfile(3.0), GaussianProfile(4.0))) == GaussianProfile(5.0)
    drawn = SelectionProfile((p for p in (GaussianProfile(1.0), GaussianProfile(2.0))), (0.5, 0.5))  # type: ignore[arg-type]
    assert len(drawn.members) == 2
    merged = LinearCombination.of_runs((run() for _ in range(2)), (w for w in (0.5, 0.5)))
    assert len(merged.checkpoints) == 2


def test_numpy_integers_are_steps() -> None:
    assert run().profile(upto=np.int64(3)) == run().profile(upto=3)
    np.testing.assert_allclose(run().prefix_epsilons(1e-5, np.arange(1, 5)), run().prefix_epsilons(1e-5))


def test_all_prefixes_of_a_long_sampled_run_fit_in_memory() -> None:
    tracemalloc.start()
    curve = run(block(400, 4.0, q=0.01), adjacency="add_remove").prefix_epsilons(1e-5)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert curve.shape == (400,)
    assert peak < 300e6


def test_a_rate_of_zero_still_counts_as_a_released_iterate() -> None:
    assert run(block(2, rate=(0.0, 1.0))).profile() == run(block(2)).profile()


def test_the_curve_of_poisson_prefixes_agrees_with_each_profile() -> None:
    trained = run(block(300, 1.0, q=0.02), adjacency="add_remove")
    steps = [1, 50, 150, 300]
    curve = trained.prefix_epsilons(1e-5, steps)
    for step, epsilon in zip(steps, curve, strict=True):
        truth = tilted_convolution.epsilon_bounds(1e-5, "remove", 1.0, 0.02, step)
        assert epsilon >= truth.lower
        assert epsilon == pytest.approx(trained.profile(upto=step).epsilon(1e-5), abs=1e-3)


def test_poisson_and_full_batch_blocks_compose_in_one_run() -> None:
    trained = run(block(10, 1.0, q=0.1), block(4, 2.0), adjacency="add_remove")
    assert trained.sampling is Sampling.POISSON
    assert not trained.is_full_batch
    profile = trained.profile()
    assert isinstance(profile, LossDistributionProfile)
    assert profile.epsilon(1e-5) >= GaussianProfile(1.0).epsilon(1e-5)
    curve = trained.prefix_epsilons(1e-5, [0, 5, 10, 14])
    assert curve[0] == 0
    assert curve[-1] == pytest.approx(profile.epsilon(1e-5), abs=1e-3)


def test_poisson_sampling_at_rate_one_is_full_batch() -> None:
    trained = run(sampling=Sampling.POISSON)
    assert trained.is_full_batch
    assert trained.profile() == run().profile()


def test_poisson_sampling_of_a_clipped_total_counts_twice_or_is_refused() -> None:
    """Under add_remove one record can turn the total round: twice the ratio; under replace_one nothing is proved."""
    sampled = run(block(5, 2.0, q=0.1), adjacency="add_remove", clipping=Clipping.AGGREGATE)
    assert sampled.profile() == LossDistributionProfile.of({PoissonStep(1.0, 0.1, False): 5})
    with pytest.raises(NoGuaranteeError, match="aggregate clipping under replace_one has no proved accounting"):
        run(block(5, 2.0, q=0.1), clipping=Clipping.AGGREGATE).profile()


def test_poisson_sampling_under_replace_one_is_not_charged_twice_the_ratio() -> None:
    sampled = run(block(1000, 1.0, q=0.01))
    assert sampled.profile() == LossDistributionProfile.of({PoissonStep(1.0, 0.01, True): 1000})
    assert sampled.profile().epsilon(1e-5) == pytest.approx(2.84, abs=5e-3)
    assert sampled.profile().renyi_divergence(np.array([2.0])) is None


def test_noise_too_small_for_sampling_to_help_counts_as_none() -> None:
    assert isinstance(run(block(5, 1e-4, q=0.1), adjacency="add_remove").profile(), NonPrivateProfile)
    assert isinstance(run(block(5, 0.0, q=0.1), adjacency="add_remove").profile(), NonPrivateProfile)


def test_shuffled_batches_cost_one_step_an_epoch_at_its_smallest_noise() -> None:
    trained = run(block(3, 4.0), block(4, 2.0), sampling="shuffled", steps_per_epoch=3)
    # Epochs: steps 1–3 (σ = 4), 4–6 (σ = 2), 7 (σ = 2, begun).
    for upto, squares in ((1, 1 / 16), (3, 1 / 16), (4, 1 / 16 + 1 / 4), (6, 1 / 16 + 1 / 4), (7, 1 / 16 + 2 / 4)):
        assert trained.profile(upto).mu == pytest.approx(2 * np.sqrt(squares))  # type: ignore[attr-defined]
    mixed = run(block(2, 4.0), block(2, 1.0), sampling="shuffled", steps_per_epoch=4)
    assert mixed.profile(2).mu == pytest.approx(2 / 4)  # type: ignore[attr-defined]
    assert mixed.profile(3).mu == pytest.approx(2 / 1)  # type: ignore[attr-defined]
    assert not trained.is_full_batch


def test_shuffled_batches_are_never_accounted_as_sampled() -> None:
    shuffled = run(block(10), sampling="shuffled", steps_per_epoch=10).profile().epsilon(1e-5)
    sampled = run(block(10, q=0.1)).profile().epsilon(1e-5)
    assert shuffled > sampled


@pytest.mark.parametrize("alpha", [1.1, 1.5, 2.0, 2.5, 8.0, 10.5, 33.0])
@pytest.mark.parametrize(("sigma", "q"), [(1.0, 0.01), (0.6, 0.1), (4.0, 0.3)])
def test_subsampled_renyi_divergence_is_never_below_quadrature(alpha: float, sigma: float, q: float) -> None:
    step = PoissonStep(1 / sigma, q, False)
    computed = step.renyi_divergence(np.array([alpha]))
    assert computed is not None
    truth = max(renyi_quadrature.renyi_divergence(alpha, sigma, q, d) for d in ("remove", "add"))  # type: ignore[arg-type]
    assert computed[0] >= truth
    if alpha == int(alpha):
        assert computed[0] == pytest.approx(float(truth), rel=1e-9, abs=1e-12)
    else:  # dp_accounting's bound or the chord between whole orders, whichever is smaller
        next_order = max(renyi_quadrature.renyi_divergence(np.ceil(alpha), sigma, q, d) for d in ("remove", "add"))  # type: ignore[arg-type]
        assert computed[0] <= float(next_order) * (1 + 1e-9)


def test_renyi_of_rare_steps_is_not_rounded_to_zero() -> None:
    step = PoissonStep(0.05, 1e-6, False)
    curve = step.renyi_divergence(np.array([1.5, 2.0, 64.0]))
    assert curve is not None
    assert np.all(curve > 0)


@settings(max_examples=15)
@given(
    st.lists(st.lists(st.floats(0.2, 3), min_size=1, max_size=4), min_size=2, max_size=3),
    st.sampled_from(["appended", "prepended"]),
    st.sampled_from(BOTH),
)
def test_merged_trajectory_is_what_the_papers_convolution_tends_to(
    rates: list[list[float]], alignment: str, adjacency: Adjacency
) -> None:
    noise = [1.5, 3.0, 0.8][: len(rates)]
    clips = [1.0, 0.5, 2.0][: len(rates)]
    weights = np.array([0.5, 0.3, 0.2][: len(rates)])
    weights = weights / weights.sum()
    runs = [
        DpSgd(
            blocks=(StepBlock(steps=len(r), noise_multiplier=n, clip_norm=c, learning_rate=tuple(r)),),
            adjacency=adjacency,
        )
        for r, n, c in zip(rates, noise, clips, strict=True)
    ]
    k = 2 if adjacency is Adjacency.REPLACE_ONE else 1
    h = 1e-3
    convolved = trajectory_convolution.merged_trajectory_epsilon(
        1e-5,
        weights.tolist(),
        rates,
        noise,
        clips,
        k,
        h,
        alignment,  # type: ignore[arg-type]
    )
    closed = merged_trajectory(LinearCombination.of_runs(runs, weights), alignment).epsilon(1e-5)  # type: ignore[arg-type]
    assert closed == pytest.approx(convolved, abs=4 * h)


def test_an_exposure_takes_the_latest_checkpoint_of_each_run() -> None:
    first, second = run(), run()
    exposure = Exposure.of([Checkpoint(first, 1), Checkpoint(second, 4), Checkpoint(first, 3)])
    assert exposure.steps == {first: 3, second: 4}
    assert exposure.profile() == GaussianProfile(np.sqrt(3 + 4))


def test_joined_exposures_keep_the_later_step_of_each_run() -> None:
    first, second = run(), run()
    joined = Exposure.of([Checkpoint(first, 1), Checkpoint(second, 2)]).joined(Exposure.of([Checkpoint(first, 3)]))
    assert joined.steps == {first: 3, second: 2}


def test_ancestors_are_exposed_once_at_their_latest() -> None:
    grandparent = run(block(10))
    parent = run(ancestry=Checkpoint(grandparent, 5))
    children = [run(ancestry=Checkpoint(parent, step)) for step in (1, 3)]
    exposure = Exposure.of([Checkpoint(child, 4) for child in children])
    assert exposure.steps == {children[0]: 4, children[1]: 4, parent: 3, grandparent: 5}
    assert children[0].profile().mu == pytest.approx(np.sqrt(4 + 1 + 5))  # type: ignore[attr-defined]
    assert children[0].profile(upto=0).mu == pytest.approx(np.sqrt(1 + 5))  # type: ignore[attr-defined]


def test_the_curve_of_a_descendant_begins_at_its_ancestors_cost() -> None:
    parent = run(block(10), adjacency="add_remove")
    for child in (
        run(ancestry=Checkpoint(parent, 5), adjacency="add_remove"),
        run(block(4, 1.0, q=0.1), ancestry=Checkpoint(parent, 5), adjacency="add_remove"),
    ):
        curve = child.prefix_epsilons(1e-5, [0, 2, 4])
        assert curve[0] == pytest.approx(parent.profile(5).epsilon(1e-5), rel=1e-9)
        for step, epsilon in zip((2, 4), curve[1:], strict=True):
            assert epsilon == pytest.approx(child.profile(step).epsilon(1e-5), abs=1e-3)


def test_imported_models_can_be_drawn_and_composed() -> None:
    common = {"adjacency": Adjacency.ADD_REMOVE}
    orders = (2.0, 4.0, 8.0, 16.0, 32.0)
    mechanisms = [
        run(adjacency="add_remove"),
        run(block(50, 1.0, q=0.05), adjacency="add_remove"),
        GaussianRelease(sensitivity=1.0, standard_deviation=2.0, **common),
        RenyiMechanism(orders=orders, values=tuple(0.1 * a for a in orders), **common),
        ApproximateDp(points=((1.0, 1e-6),), **common),
        ApproximateDp(points=((0.5, 1e-3), (1.0, 1e-6), (2.0, 1e-9)), **common),
        NonPrivate(**common),
    ]
    probabilities = [0.2, 0.2, 0.2, 0.2, 0.1, 0.1 - 1e-6, 1e-6]
    drawn = SelectionProfile(tuple(m.profile() for m in mechanisms), tuple(probabilities))
    assert 0 < drawn.epsilon(1e-5) < 20
    joint = Exposure.of([Checkpoint(m, m.steps) for m in mechanisms[:-1]]).profile()
    assert drawn.epsilon(1e-5) < joint.epsilon(1e-5) < np.inf
    assert Exposure.of([Checkpoint(m, m.steps) for m in mechanisms]).profile().epsilon(1e-5) == np.inf
    for mechanism in mechanisms:
        assert mechanism.profile(upto=0) == GaussianProfile(0.0)


def test_a_gaussian_release_without_noise_is_not_private() -> None:
    release = GaussianRelease(sensitivity=1.0, standard_deviation=0.0, adjacency=Adjacency.REPLACE_ONE)
    assert release.profile().epsilon(0.1) == np.inf


def test_an_imported_curve_is_converted_by_the_improved_formula() -> None:
    orders = (2.0, 4.0, 8.0)
    mechanism = RenyiMechanism(orders=orders, values=(0.1, 0.2, 0.4), adjacency=Adjacency.REPLACE_ONE)
    profile = mechanism.profile()
    assert isinstance(profile, RenyiProfile)
    assert profile.epsilon(1e-5) <= profile.converted("classic").epsilon(1e-5)


INVALID: dict[str, tuple[Any, str]] = {
    "no blocks": (lambda: DpSgd(blocks=(), adjacency=Adjacency.REPLACE_ONE), "blocks: got \\[\\]"),
    "unknown adjacency": (lambda: run(adjacency="replace_one", clipping="both"), "clipping: got 'both'"),
    "zero steps": (lambda: block(0), "steps: got 0; accepted: an integer from 1 to"),
    "negative noise": (lambda: block(noise=-1.0), "noise_multiplier: got -1.0; accepted: 0, or a number from 1e-30"),
    "NaN noise": (lambda: block(noise=float("nan")), "noise_multiplier: got nan"),
    "vanishing noise": (lambda: block(noise=1e-200), "noise_multiplier: got 1e-200"),
    "rates of wrong length": (
        lambda: block(4, rate=(1.0,)),
        "learning_rate: got '1 numbers'; accepted: one number, or 4",
    ),
    "a negative rate": (lambda: block(2, rate=(1.0, -1.0)), "learning_rate\\[1\\]: got -1.0"),
    "a vanishing rate": (lambda: block(rate=1e-200), "learning_rate: got 1e-200"),
    "sampling rate zero": (lambda: block(q=0.0), "sampling_rate: got 0.0; accepted: a number in \\(0, 1\\]"),
    "full batch that samples": (
        lambda: run(block(q=0.5), sampling="full_batch"),
        "blocks\\[0\\].sampling_rate: got 0.5",
    ),
    "shuffled that samples": (
        lambda: run(block(q=0.5), sampling="shuffled", steps_per_epoch=2),
        "blocks\\[0\\].sampling_rate: got 0.5",
    ),
    "shuffled without epochs": (lambda: run(sampling="shuffled"), "steps_per_epoch: got None"),
    "epochs without shuffling": (lambda: run(steps_per_epoch=2), "steps_per_epoch: got 2"),
    "an epoch of no steps": (lambda: run(sampling="shuffled", steps_per_epoch=0), "steps_per_epoch: got 0"),
    "shuffled under add_remove": (
        lambda: run(adjacency="add_remove", sampling="shuffled", steps_per_epoch=2),
        "sampling: got 'shuffled'; accepted: full_batch or poisson under add_remove",
    ),
    "unknown sampling": (lambda: run(sampling="bernoulli"), "sampling: got 'bernoulli'; accepted: full_batch or"),
    "lipschitz of wrong length": (
        lambda: run(smoothness=DeclaredLipschitz(factors=(1.0, 1.0))),
        "lipschitz: got '2 numbers'; accepted: one number, or 4",
    ),
    "negative lipschitz": (lambda: DeclaredLipschitz(factors=-0.1), "lipschitz: got -0.1"),
    "smoothness of unknown kind": (lambda: Smoothness(kind="relu"), "smoothness.kind: got 'relu'"),  # type: ignore[arg-type]
    "declared without beta": (lambda: Smoothness(kind="declared"), "smoothness.beta: got None"),
    "negative feature bound": (
        lambda: Smoothness(kind="logistic", feature_bound=-1.0),
        "smoothness.feature_bound: got -1.0",
    ),
    "no records": (lambda: Smoothness(kind="logistic", records=0), "smoothness.records: got 0"),
    "one block instead of a list": (lambda: run_with(blocks=block()), "blocks: got one StepBlock; accepted: a list"),
    "a number as block": (lambda: run_with(blocks=[3]), "blocks\\[0\\]: got a int; accepted: a StepBlock"),
    "text as optimizer": (lambda: run(optimizer="adam"), "optimizer: got a str; accepted: an Optimizer"),
    "a dictionary as smoothness": (lambda: run(smoothness={}), "smoothness: got a dict; accepted: a Smoothness"),
    "a run as ancestry": (lambda: run(ancestry=run()), "ancestry: got a DpSgd; accepted: a Checkpoint"),
    "text as truth": (lambda: run(flat_clipping="no"), "flat_clipping: got 'no'; accepted: True or False"),
    "text as nesterov": (lambda: Optimizer(nesterov="false"), "nesterov: got 'false'"),  # type: ignore[arg-type]
    "a run among profiles": (lambda: compose([run()]), "profiles\\[0\\]: got a DpSgd; accepted: a profile"),  # type: ignore[list-item]
    "a run to select": (lambda: SelectionProfile((run(),), (1.0,)), "members\\[0\\]: got a DpSgd"),  # type: ignore[arg-type]
    "a run as checkpoint": (
        lambda: LinearCombination(checkpoints=[run()], weights=[1.0]),  # type: ignore[list-item]
        "checkpoints\\[0\\]: got a DpSgd; accepted: a Checkpoint",
    ),
    "negative divisor": (lambda: Smoothness(kind="logistic", divisor=-1.0), "smoothness.divisor: got -1.0"),
    "negative momentum": (lambda: Optimizer(momentum=-0.5), "momentum: got -0.5"),
    "dampening above one": (lambda: Optimizer(dampening=1.5), "dampening: got 1.5"),
    "a step beyond the run": (lambda: run().profile(upto=5), "step of run: got 5; accepted: an integer from 0 to 4"),
    "a negative step": (lambda: run().profile(upto=-1), "step of run: got -1"),
    "a fractional step": (lambda: Checkpoint(run(), 1.5), "step of run: got 1.5"),  # type: ignore[arg-type]
    "a release without sensitivity": (
        lambda: GaussianRelease(sensitivity=0.0, standard_deviation=1.0, adjacency=Adjacency.REPLACE_ONE),
        "sensitivity: got 0.0",
    ),
    "exposure across adjacencies": (
        lambda: Exposure.of([Checkpoint(run(), 1), Checkpoint(run(adjacency="add_remove"), 1)]),
        "adjacency: got .*; accepted: the same adjacency for every run",
    ),
    "a parent of another adjacency": (
        lambda: run(ancestry=Checkpoint(run(adjacency="add_remove"), 1)).profile(),
        "adjacency: got",
    ),
    "an import of unknown adjacency": (
        lambda: NonPrivate(adjacency="substitute"),  # type: ignore[arg-type]
        "adjacency: got 'substitute'; accepted: replace_one or add_remove or zero_out",
    ),
}


@pytest.mark.parametrize("name", INVALID)
def test_invalid_facts_are_refused_by_name(name: str) -> None:
    build, message = INVALID[name]
    with pytest.raises(InvalidInputError, match=message):
        build()


def test_points_that_nearly_coincide_divide_by_no_zero() -> None:
    """One minus the exponential of their distance is zero, and no number is divided by it."""
    points = ((1.0, 0.0), (1e-281, 1e-294))
    profile = ApproximateDp(points=points, adjacency=Adjacency.ADD_REMOVE).profile()
    assert 0 < profile.delta(0.0) < 1e-30
    assert profile.epsilon(1e-5) == 0.0
