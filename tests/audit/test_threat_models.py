"""What attackers see is simulated truly: scores against densities, averages against matrix algebra and PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from dp_accounting import NeighboringRelation
from dp_accounting.pld import privacy_loss_distribution
from scipy.integrate import quad
from scipy.stats import kstest, norm

from dpmerge.auditing.attacks import Array, Attack
from dpmerge.auditing.estimate import estimate_epsilon
from dpmerge.auditing.gaussian_estimator import mu_interval
from dpmerge.auditing.gradients import chances
from dpmerge.auditing.outputs import Part, SimulatedOutput, WithMomentum
from dpmerge.auditing.schedules import Schedule
from dpmerge.auditing.threat_models import (
    alone,
    alone_output,
    everything,
    merged,
    merged_output,
    revealed,
    selected,
    together,
    trained,
    trained_output,
)
from dpmerge.errors import InvalidInputError
from oracle import sampled_last_step
from reproduction.scenarios.hidden_draw import selected_hidden

SURE = 1 - 1e-6
WORLDS = (False, True)


def run(name: str = "run", **facts: Any) -> Schedule:
    return Schedule.of(name, **{"steps": 3, "noise_multiplier": 2.0, "adjacency": "replace_one", **facts})


def drawn(attack: Attack, trials: int, seed: int = 7) -> tuple[Array, Array]:
    """Scores without the record, and with it."""
    first, second = (attack.play(np.random.default_rng([seed, world]), trials, world).scores for world in WORLDS)
    return first, second


def assert_gaussian_ratio(attack: Attack, mu: float, trials: int = 60_000) -> None:
    """The log-likelihood ratio of N(0, 1) against N(μ, 1) is N(∓μ²/2, μ²); and μ is found again."""
    assert attack.gaussian
    without, within = drawn(attack, trials)
    assert kstest((without + mu**2 / 2) / mu, norm.cdf).pvalue > 1e-4
    assert kstest((within - mu**2 / 2) / mu, norm.cdf).pvalue > 1e-4
    found = mu_interval(without, within, SURE)
    assert found.low <= mu <= found.high


def assert_hockey_stick(attack: Attack, delta: Callable[[float], float], epsilon: float, trials: int = 400_000) -> None:
    """Where scores are log-likelihood ratios, P(s > ε | there) − e^ε P(s > ε | not there) is exactly δ(ε)."""
    without, within = drawn(attack, trials)
    hits = (within > epsilon).mean(), (without > epsilon).mean()
    spread = math.sqrt((hits[0] + math.exp(2 * epsilon) * hits[1]) / trials)
    expected = delta(epsilon)
    assert expected > 10 * spread  # or the test could not fail
    assert hits[0] - math.exp(epsilon) * hits[1] == pytest.approx(expected, abs=5 * spread)


def gaussian_delta(mu: float, epsilon: float) -> float:
    return float(norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu))


class Tape:
    """A source of randomness that remembers what it gave."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.given: list[Array] = []

    def _kept(self, values: Array) -> Array:
        self.given.append(values)
        return values

    def standard_normal(self, size: int) -> Array:
        return self._kept(self.rng.standard_normal(size))

    def random(self, size: int) -> Array:
        return self._kept(self.rng.random(size))


# Everything is seen


@pytest.mark.parametrize(
    ("facts", "width"),
    [
        ({"adjacency": "replace_one"}, 2),
        ({"adjacency": "add_remove"}, 1),
        ({"adjacency": "add_remove", "aggregate": True}, 2),
        ({"adjacency": "replace_one", "aggregate": True}, 2),
    ],
)
def test_full_batch_gradients_tell_what_theory_says(facts: dict[str, Any], width: int) -> None:
    noises = [3.0, 2.0, 3.0, 5.0]
    one = run(steps=4, noise_multiplier=noises, rates=[1.0, 0.5, 0.0, 2.0], clip_norm=3.0, **facts)
    other = run(steps=2, noise_multiplier=4.0, **facts)
    mu = width * math.sqrt(sum(1 / noise**2 for noise in [*noises[:3], 4.0, 4.0]))
    assert_gaussian_ratio(everything([(one, 3), (other, 2)]), mu)


def test_a_run_seen_twice_is_seen_to_its_later_step_and_ancestors_once() -> None:
    parent = run(steps=5, noise_multiplier=3.0)
    children = [run(steps=2, noise_multiplier=noise, parent=(parent, step)) for noise, step in ((4.0, 4), (6.0, 2))]
    mu = 2 * math.sqrt(4 / 9 + 1 / 16 + 2 / 36)
    assert_gaussian_ratio(everything([(children[0], 1), (children[0], 0), (children[1], 2)]), mu)


@pytest.mark.parametrize(
    ("facts", "drawn_at", "idle_at"),
    [
        ({"adjacency": "add_remove"}, (0, 1), 0),
        ({"adjacency": "replace_one"}, (-1, 1), 0),
        ({"adjacency": "add_remove", "aggregate": True}, (-1, 1), -1),
    ],
)
@pytest.mark.parametrize("present", WORLDS)
def test_sampled_steps_are_scored_by_their_densities(
    facts: dict[str, Any], drawn_at: tuple[int, int], idle_at: int, present: bool
) -> None:
    rate, noise, trials = 0.2, 0.7, 500
    tape = Tape(3)
    attack = everything([(run(steps=3, noise_multiplier=noise, sampling_rate=rate, **facts), 3)])
    scores = attack.play(tape, trials, present).scores  # type: ignore[arg-type]
    expected = np.zeros(trials)
    for coin, normal in zip(tape.given[::2], tape.given[1::2], strict=True):
        seen = np.where(coin < rate, drawn_at[present], idle_at) + noise * normal
        without, within = (
            np.log(rate * norm.pdf(seen, at, noise) + (1 - rate) * norm.pdf(seen, idle_at, noise)) for at in drawn_at
        )
        expected += within - without
    assert len(tape.given) == 6
    assert scores == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert not attack.gaussian


def test_a_sampled_run_with_full_steps_is_scored_as_both() -> None:
    mixed = Schedule(
        name="mixed",
        rates=np.ones(2),
        clip_norms=np.ones(2),
        noise_multipliers=np.array([1.0, 1.0]),
        sampling_rates=np.array([0.5, 1.0]),
        adjacency="add_remove",
        sampling="poisson",
    )

    x = np.linspace(-10, 12, 20_001)
    without, within = norm.pdf(x), 0.5 * norm.pdf(x) + 0.5 * norm.pdf(x, 1)

    def delta(epsilon: float) -> float:
        """Over the sampled step's x; given it, the full step's y has to exceed a bound."""
        bound = epsilon + 0.5 - np.log(within / without)
        excess = within * norm.sf(bound, 1) - math.exp(epsilon) * without * norm.sf(bound)
        return float(np.trapezoid(excess, x))

    assert_hockey_stick(everything([(mixed, 2)]), delta, 1.0, trials=200_000)


def test_shuffled_epochs_cost_one_step_at_their_least_noise() -> None:
    noises = [5.0, 3.0, 4.0, 6.0, 7.0, 2.5, 8.0, 9.0]
    shuffled = run(steps=8, noise_multiplier=noises, sampling="shuffled", steps_per_epoch=3)
    # The third epoch has begun and its worst step so far is the first.
    assert_gaussian_ratio(everything([(shuffled, 7)]), 2 * math.sqrt(1 / 9 + 1 / 2.5**2 + 1 / 64))


def test_a_million_full_batch_steps_take_one_draw() -> None:
    long = run(steps=1_000_000, noise_multiplier=2000.0)
    attack = everything([(long, 1_000_000)])
    assert attack.draws == 1
    found = mu_interval(*drawn(attack, 50_000), SURE)
    assert found.low <= 1.0 <= found.high


@pytest.mark.parametrize("adjacency", ["add_remove", "replace_one"])
def test_scores_of_a_sampled_run_have_the_composed_profile(adjacency: str) -> None:
    sampled = run(steps=8, noise_multiplier=1.0, sampling_rate=0.3, adjacency=adjacency)
    step = privacy_loss_distribution.from_gaussian_mechanism(
        1.0,
        sampling_prob=0.3,
        neighboring_relation=NeighboringRelation.REPLACE_ONE
        if adjacency == "replace_one"
        else NeighboringRelation.ADD_OR_REMOVE_ONE,
    )
    whole = step.self_compose(8)
    assert_hockey_stick(
        everything([(sampled, 8)]), lambda e: float(whole.get_delta_for_epsilon(e)), 1.0, trials=100_000
    )


def test_a_sampled_run_is_attacked_to_most_of_its_cost() -> None:
    sampled = run(steps=10, noise_multiplier=1.0, sampling_rate=0.3, adjacency="add_remove")
    step = privacy_loss_distribution.from_gaussian_mechanism(1.0, sampling_prob=0.3)
    certified = step.self_compose(10).get_epsilon_for_delta(0.01)
    found = estimate_epsilon(everything([(sampled, 10)]), delta=0.01, trials=100_000, confidence=0.999, seed=5)
    assert found.estimator == "counting"
    assert 0.8 * certified < found.bound < certified


# No noise hides nothing


@pytest.mark.parametrize(
    "attack",
    [
        everything([(run(noise_multiplier=[2.0, 0.0, 2.0]), 3)]),
        everything([(run(noise_multiplier=1e-200, sampling_rate=1.0), 3)]),
        merged([(run(noise_multiplier=0.0), 3, 1.0)], 0.0, stretches=[1.0]),
        trained([(run(noise_multiplier=0.0, momentum=0.9), 3, 1.0)], 0.0),
        revealed([(run(noise_multiplier=[0.0, 1.0, 1.0]), 3, 1.0)], 1.0),
    ],
)
def test_without_noise_the_worlds_are_told_apart_for_certain(attack: Attack) -> None:
    assert not attack.gaussian
    without, within = drawn(attack, 1000)
    assert np.all(np.isfinite([without, within]))
    assert within.min() > 1e9
    assert without.max() < -1e9


@pytest.mark.parametrize(
    "attack",
    [
        everything([(run(), 0)]),
        merged([(run(rates=0.0), 3, 1.0)], 0.0, stretches=[1.0]),
        revealed([(run(), 0, 1.0)], 0.0),
    ],
)
def test_an_attack_that_sees_nothing_scores_zero(attack: Attack) -> None:
    assert not attack.gaussian
    assert np.all(np.concatenate(drawn(attack, 1000)) == 0)


# Averages


def matrix_law(parts: list[Part], release_noise: float, gains: list[list[float]]) -> tuple[float, float, float]:
    """Mean without, mean with, and variance, from x_T = Σ_t (Π_{s>t} G_s) η_t C_t (push + σ_t z) of each run."""
    means, variance = [0.0, 0.0], release_noise**2
    for (each, step, weight), factors in zip(parts, gains, strict=True):
        for t in range(step):
            reach = weight * math.prod(factors[t + 1 : step]) * each.rates[t] * each.clip_norms[t]
            means[0] += reach * (-1 if each.aggregate or each.adjacency == "replace_one" else 0)
            means[1] += reach
            variance += (reach * each.noise_multipliers[t]) ** 2
    return means[0], means[1], variance


def assert_law(output: SimulatedOutput, without: float, within: float, variance: float, trials: int = 40_000) -> None:
    """As stated and as simulated."""
    for law, mean in zip(output.laws, (without, within), strict=True):
        assert law.means == pytest.approx([mean], rel=1e-9)
    assert output.variance == pytest.approx(variance, rel=1e-9)
    for world, mean in zip(WORLDS, (without, within), strict=True):
        values = output.draw(np.random.default_rng([11, world]), trials, world)
        assert values.mean() == pytest.approx(mean, abs=5 * math.sqrt(variance / trials))
        assert values.var() == pytest.approx(variance, rel=5 * math.sqrt(2 / trials))
    assert_gaussian_ratio(output.attack(), (within - without) / math.sqrt(variance))


def uneven(adjacency: str, **facts: Any) -> list[Part]:
    """Two runs that differ in everything, one looked at before its end."""
    first = run(
        "a", steps=5, noise_multiplier=[1, 3, 2, 4, 2], rates=[1.0, 0.5, 0.0, 2.0, 9.0], adjacency=adjacency, **facts
    )
    second = run("b", steps=2, noise_multiplier=[2.0, 1.0], clip_norm=3.0, rates=0.25, adjacency=adjacency, **facts)
    return [(first, 4, 0.7), (second, 2, 0.3)]


@pytest.mark.parametrize("release_noise", [0.0, 1.5])
@pytest.mark.parametrize(
    "facts", [{"adjacency": "replace_one"}, {"adjacency": "add_remove"}, {"adjacency": "add_remove", "aggregate": True}]
)
def test_averages_of_stretched_states_follow_the_law_of_their_matrices(
    facts: dict[str, Any], release_noise: float
) -> None:
    parts = uneven(**facts)
    gains = [[7.0, 0.5, 1.2, -0.8], [3.0, 1.1]]
    output = merged_output(parts, release_noise, stretches=gains)
    assert_law(output, *matrix_law(parts, release_noise, gains))


def test_one_factor_stands_for_the_same_factor_at_every_step() -> None:
    parts = uneven("replace_one")
    output = merged_output(parts, 0.0, stretches=(0.9, np.float64(1.1)))
    without, within, variance = matrix_law(parts, 0.0, [[0.9] * 4, [1.1] * 2])
    assert output.distance == pytest.approx((within - without) / math.sqrt(variance), rel=1e-12)


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"weight_decay": 0.01, "divisor": 20.0},
        {"momentum": 0.9},
        {"momentum": 0.5, "dampening": 0.3, "weight_decay": 0.2},
        {"momentum": 0.8, "nesterov": True, "weight_decay": 0.1, "divisor": 2.0},
    ],
)
def test_averages_of_trained_models_follow_the_law_of_pytorch(facts: dict[str, Any]) -> None:
    parts = uneven("add_remove", **facts)
    output = trained_output(parts, 0.5)
    without, within, variance = 0.0, 0.0, 0.25
    for each, step, weight in parts:
        reach = weight * torch_responses(each, step)
        within += float(reach @ each.clip_norms[:step])
        variance += float(np.sum((reach * each.clip_norms[:step] * each.noise_multipliers[:step]) ** 2))
    assert_law(output, without, within, variance)


def torch_responses(each: Schedule, steps: int) -> Array:
    """What one unit of gradient at each step does to the last weights, by PyTorch's own SGD, of the *mean* gradient."""
    found = np.empty(steps)
    for place in range(steps):
        weight = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
        optimizer = torch.optim.SGD(
            [weight],
            lr=1.0,
            momentum=each.momentum,
            dampening=each.dampening,
            nesterov=each.nesterov,
            weight_decay=each.weight_decay,
        )
        for step in range(steps):
            optimizer.param_groups[0]["lr"] = float(each.rates[step]) * each.divisor
            weight.grad = torch.full((1,), -float(step == place) / each.divisor, dtype=torch.float64)
            optimizer.step()
        found[place] = weight.item()
    return found


def test_momentum_moves_as_pytorch_does() -> None:
    rng = np.random.default_rng(2)
    for _ in range(20):
        steps = int(rng.integers(1, 7))
        momentum, dampening, decay = rng.uniform(0.1, 1.2), rng.uniform(0, 1), rng.uniform(0, 0.5)
        nesterov = bool(rng.integers(2))
        rates, gradients = rng.uniform(0, 2, steps), rng.standard_normal(steps)
        weight = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
        optimizer = torch.optim.SGD(
            [weight],
            lr=1.0,
            momentum=momentum,
            dampening=0.0 if nesterov else dampening,
            nesterov=nesterov,
            weight_decay=decay,
        )
        for rate, gradient in zip(rates, gradients, strict=True):
            optimizer.param_groups[0]["lr"] = float(rate)
            weight.grad = torch.tensor([-gradient], dtype=torch.float64)
            optimizer.step()
        motion = WithMomentum(rates, momentum, 0.0 if nesterov else dampening, nesterov, decay)
        assert motion.final(iter(gradients)) == pytest.approx(weight.item(), rel=1e-9)
        assert float(motion.responses() @ gradients) == pytest.approx(weight.item(), rel=1e-9)


def test_of_one_run_the_last_model_alone_tells_as_much_as_every_step() -> None:
    noises = [2.0, 3.0, 4.0, 2.5]
    single = run(steps=4, noise_multiplier=noises, rates=[1.0, 2.0, 0.5, 0.1], clip_norm=2.0)
    assert_gaussian_ratio(alone(single, 4), 2 * math.sqrt(sum(1 / noise**2 for noise in noises)))
    assert_gaussian_ratio(alone(single, 2), 2 * math.sqrt(1 / 4 + 1 / 9))


def test_a_step_that_does_not_act_is_not_in_the_model() -> None:
    single = run(steps=4, noise_multiplier=[2.0, 3.0, 4.0, 2.5], rates=[1.0, 0.0, 0.5, 0.0])
    assert alone_output(single, 4).distance == pytest.approx(2 * math.sqrt(1 / 4 + 1 / 16))


# All but the last step revealed


@pytest.mark.parametrize(
    ("facts", "coefficients"),
    [
        ({}, (1.0, 1.0)),
        ({"weight_decay": 0.3}, (1.0, 1.0)),
        ({"momentum": 0.9}, (1.0, 1.0)),
        ({"momentum": 0.9, "dampening": 0.4}, (0.6, 1.0)),
        ({"momentum": 0.5, "nesterov": True}, (1.5, 1.5)),
    ],
)
def test_the_last_acting_step_is_seen_merged_and_all_before_as_they_are(
    facts: dict[str, Any], coefficients: tuple[float, float]
) -> None:
    first = run("a", steps=4, noise_multiplier=[2.0, 3.0, 4.0, 5.0], rates=[1.0, 0.5, 2.0, 0.0], clip_norm=2.0, **facts)
    second = run("b", steps=1, noise_multiplier=3.0, rates=0.5, **facts)
    reach = 0.4 * coefficients[0] * 2.0 * 2.0, 0.6 * coefficients[1] * 0.5
    shared = (2 * sum(reach)) ** 2 / ((4 * reach[0]) ** 2 + (3 * reach[1]) ** 2 + 1.5**2)
    mu = math.sqrt(4 * (1 / 4 + 1 / 9) + shared)
    assert_gaussian_ratio(revealed([(first, 4, 0.4), (second, 1, 0.6)], 1.5), mu)


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1.0])
def test_sampled_runs_are_revealed_but_for_which_of_them_drew_the_record_last(epsilon: float) -> None:
    """Within Hoeffding's bound at 1e-9 of the exact law, by integration."""
    described = [sampled_last_step.Run([1.5, 1.0], 0.3), sampled_last_step.Run([2.0, 1.2], 0.3)]
    runs = [
        run(name, steps=2, noise_multiplier=list(each.noise), sampling_rate=each.q, adjacency="add_remove")
        for name, each in zip("ab", described, strict=True)
    ]
    attack = revealed([(one, 2, weight) for one, weight in zip(runs, (0.4, 0.6), strict=True)], 0.0)
    trials = 100_000
    scores = attack.play(np.random.default_rng(3), trials, True).scores
    told = float(np.mean(np.maximum(0.0, -np.expm1(epsilon - scores))))
    truth = sampled_last_step.seen_delta(epsilon, described, (0.4, 0.6), 0.0, removal=True)
    assert told == pytest.approx(truth, abs=math.sqrt(math.log(2e9) / (2 * trials)))


def test_a_record_is_in_each_pass_begun_and_in_the_last_one_as_likely_as_it_was_seen() -> None:
    noises = [2.0, 1.0, 3.0, 4.0, 2.0, 5.0]
    facts: dict[str, Any] = {"noise_multiplier": noises, "sampling": "shuffled", "steps_per_epoch": 3}
    assert chances(run(steps=6, **facts), 5).tolist() == [0, 1, 0, 0, 1]
    cut = run(steps=6, passes=(1, 3, 2), **facts)
    assert chances(cut, 6).tolist() == [1, 1, 0, 0, 1, 0]
    assert chances(cut, 3).tolist() == [1, 1, 0]
    assert chances(run(steps=6, shares={5: 0.25}, **facts), 5).tolist() == [0, 1, 0, 0, 0.25]


def test_what_a_revealed_run_started_from_is_seen_once() -> None:
    parent = run("parent", steps=3, noise_multiplier=4.0)
    children = [
        run(f"child-{k}", steps=1, noise_multiplier=3.0, parent=(parent, step)) for k, step in enumerate((1, 2))
    ]
    mu = 2 * math.sqrt(2 / 16 + 1 / (2 * 9 * 0.25))
    assert_gaussian_ratio(revealed([(child, 1, 0.5) for child in children], 0.0), mu)


# Sampled averages


def test_a_sampled_average_of_one_step_is_scored_by_its_exact_mixture() -> None:
    parts: list[Part] = [
        (run("a", steps=1, noise_multiplier=1.0, sampling_rate=0.3, adjacency="add_remove"), 1, 0.6),
        (run("b", steps=1, noise_multiplier=0.5, sampling_rate=0.2, clip_norm=2.0, adjacency="add_remove"), 1, 0.4),
    ]
    deviation = math.hypot(0.6 * 1.0, 0.4 * 2.0 * 0.5)
    outcomes = [(0.0, 0.56), (0.6, 0.24), (0.8, 0.14), (1.4, 0.06)]

    def delta(epsilon: float) -> float:
        def excess(x: float) -> float:
            with_it = sum(chance * norm.pdf(x, mean, deviation) for mean, chance in outcomes)
            return max(float(with_it - math.exp(epsilon) * norm.pdf(x, 0, deviation)), 0.0)

        return quad(excess, -6, 8, limit=400)[0]

    for attack in (merged(parts, 0.0, stretches=(1.0, 1.0)), trained(parts, 0.0)):
        assert not attack.gaussian
        assert_hockey_stick(attack, delta, 0.5)
    assert merged(parts, 0.0, stretches=(1.0, 1.0)).draws == 4


def test_equal_steps_of_a_sampled_run_make_a_binomial() -> None:
    sampled = run(steps=12, noise_multiplier=1.0, sampling_rate=0.25, adjacency="add_remove", aggregate=True)
    output = trained_output([(sampled, 12, 1.0)], 0.0)
    expected = [math.comb(12, k) * 0.25**k * 0.75 ** (12 - k) for k in range(13)]
    assert output.laws[True].means == pytest.approx([-12.0 + 2 * k for k in range(13)])
    assert output.laws[True].chances == pytest.approx(expected)
    assert output.laws[False].means == pytest.approx([-12.0])


def test_too_many_components_become_one_gaussian_of_the_same_mean() -> None:
    rates = np.random.default_rng(1).uniform(0.5, 1.5, 30)
    sampled = run(steps=30, noise_multiplier=1.0, sampling_rate=0.5, adjacency="replace_one", rates=rates.tolist())
    output = trained_output([(sampled, 30, 1.0)], 0.0)
    assert output.laws[True].means == pytest.approx([0.5 * rates.sum()])
    assert output.laws[False].means == pytest.approx([-0.5 * rates.sum()])
    assert output.variance == pytest.approx(1.25 * float(rates @ rates))
    assert not output.gaussian


# Draws between candidates


def test_a_visible_draw_costs_the_mixture_of_its_candidates() -> None:
    runs = [run(steps=1, noise_multiplier=noise) for noise in (1.0, 4.0)]
    attack = selected([alone(runs[0], 1), everything([(runs[1], 1)])], (0.25, 0.75))
    assert attack.gaussian
    assert attack.probabilities == (0.25, 0.75)
    assert_hockey_stick(attack, lambda e: 0.25 * gaussian_delta(2.0, e) + 0.75 * gaussian_delta(0.5, e), 1.0)


def test_the_public_index_says_which_candidate_was_drawn() -> None:
    runs = [run(steps=1, noise_multiplier=noise) for noise in (1.0, 4.0)]
    played = selected([everything([(each, 1)]) for each in runs], (0.25, 0.75)).play(
        np.random.default_rng(3), 80_000, True
    )
    assert played.index is not None
    share = (played.index == 0).mean()
    assert share == pytest.approx(0.25, abs=5 * math.sqrt(0.25 * 0.75 / 80_000))
    for place, mu in enumerate((2.0, 0.5)):
        scores = played.scores[played.index == place]
        assert scores.mean() == pytest.approx(mu**2 / 2, abs=5 * mu / math.sqrt(len(scores)))
        assert scores.std() == pytest.approx(mu, rel=0.05)


def test_a_hidden_draw_costs_what_its_true_mixture_does() -> None:
    outputs = [
        merged_output([(run(steps=1, noise_multiplier=noise), 1, 1.0)], 0.0, stretches=[1.0]) for noise in (1.0, 3.0)
    ]

    def delta(epsilon: float) -> float:
        def excess(x: float) -> float:
            within, without = (0.4 * norm.pdf(x, at, 1) + 0.6 * norm.pdf(x, at, 3) for at in (1, -1))
            return max(float(within - math.exp(epsilon) * without), 0.0)

        return quad(excess, -20, 20, limit=400, points=[0.0, 1.0])[0]

    attack = selected_hidden(outputs, (0.4, 0.6))
    assert not attack.gaussian
    assert_hockey_stick(attack, delta, 0.5)
    visible = 0.4 * gaussian_delta(2.0, 0.5) + 0.6 * gaussian_delta(2 / 3, 0.5)
    assert delta(0.5) < 0.95 * visible  # hiding the index of one number does hide something


@pytest.mark.parametrize("value", [-7.0, -1.0, 0.3, 2.0, 20.0])
def test_a_hidden_draw_is_scored_by_the_densities_of_its_mixtures(value: float) -> None:
    outputs = [
        replace(
            merged_output([(run(steps=1, noise_multiplier=noise), 1, 1.0)], 0.0, stretches=[1.0]),
            draw=lambda rng, trials, present: np.full(trials, value),
        )
        for noise in (1.0, 3.0)
    ]
    scores = selected_hidden(outputs, (0.1, 0.9)).play(np.random.default_rng(0), 4, True).scores
    within, without = (math.log(0.1 * norm.pdf(value, at, 1) + 0.9 * norm.pdf(value, at, 3)) for at in (1, -1))
    assert scores == pytest.approx([within - without] * 4, rel=1e-12)


def test_scores_of_independent_parts_add_up() -> None:
    attack = together([everything([(run(steps=1, noise_multiplier=noise), 1)]) for noise in (2.0, 4.0)])
    assert_gaussian_ratio(attack, math.hypot(1.0, 0.5))


# What is refused

SHUFFLED = {"sampling": "shuffled", "steps_per_epoch": 2}
PAIR = [run("a"), run("b")]

REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "a step before the first": (lambda: everything([(run(), -1)]), "step of run"),
    "a step after the last": (lambda: everything([(run(), 4)]), "step of run"),
    "mixed adjacency": (lambda: everything([(run(), 3), (run(adjacency="add_remove"), 3)]), "adjacency"),
    "shuffled under add_remove": (lambda: everything([(run(adjacency="add_remove", **SHUFFLED), 3)]), "run.sampling"),
    "shuffled without epochs": (lambda: everything([(run(sampling="shuffled"), 3)]), "run.sampling"),
    "a rate for full batches": (
        lambda: everything([(run(sampling_rate=0.5, sampling="full_batch"), 3)]),
        "run.sampling_rates",
    ),
    "no parts": (lambda: merged([], 0.0, stretches=[]), "parts"),
    "one run twice": (lambda: trained([(PAIR[0], 2, 0.5), (PAIR[0], 3, 0.5)], 0.0), "parts"),
    "a weight of zero": (lambda: trained([(run(), 3, 0.0)], 0.0), "weight of run"),
    "an infinite weight": (lambda: trained([(run(), 3, math.inf)], 0.0), "weight of run"),
    "negative release noise": (lambda: trained([(run(), 3, 1.0)], -1.0), "release_noise"),
    "averages of mixed adjacency": (
        lambda: trained([(run(), 3, 0.5), (run("b", adjacency="add_remove"), 3, 0.5)], 0.0),
        "adjacency",
    ),
    "factors for too few runs": (lambda: merged([(run(), 3, 1.0)], 0.0, stretches=[]), "stretches"),
    "factors for too few steps": (lambda: merged([(run(), 3, 1.0)], 0.0, stretches=[[1.0, 1.0]]), "stretches of run"),
    "an infinite factor": (lambda: merged([(run(), 3, 1.0)], 0.0, stretches=[math.inf]), "stretches of run"),
    "states that overflow": (lambda: merged([(run(), 3, 1.0)], 0.0, stretches=[1e200]), "dynamics of run"),
    "adam trained": (lambda: trained([(run(optimizer="adam"), 3, 1.0)], 0.0), "run.optimizer"),
    "adam revealed": (lambda: revealed([(run(optimizer="adam"), 3, 1.0)], 0.0), "run.optimizer"),
    "shuffled batches revealed": (
        lambda: revealed([(run(sampling="shuffled", steps_per_epoch=3), 3, 1.0)], 0.0),
        "run.sampling",
    ),
    "a run and its child revealed": (
        lambda: revealed([(PAIR[0], 3, 0.5), (run("child", parent=(PAIR[0], 2)), 3, 0.5)], 0.0),
        "parts",
    ),
    "sampled batches alone": (lambda: alone(run(sampling_rate=0.5, adjacency="add_remove"), 3), "run.sampling"),
    "a step without noise alone": (lambda: alone(run(noise_multiplier=[1.0, 0.0, 1.0]), 3), "noise_multipliers"),
    "too few probabilities": (lambda: selected([everything([(run(), 3)])], ()), "probabilities"),
    "a probability of zero": (lambda: selected([everything([(run(), 3)])] * 2, (1.0, 0.0)), "probabilities"),
    "probabilities that do not sum to one": (
        lambda: selected([everything([(run(), 3)])] * 2, (0.5, 0.4)),
        "probabilities",
    ),
    "hidden probabilities that do not sum to one": (
        lambda: selected_hidden([alone_output(run(), 3)], (0.9,)),
        "probabilities",
    ),
    "a draw between draws": (
        lambda: selected([selected([everything([(run(), 3)])] * 2, (0.5, 0.5))], (1.0,)),
        "attacks",
    ),
    "a draw together with another view": (
        lambda: together([selected([everything([(run(), 3)])] * 2, (0.5, 0.5))]),
        "attacks",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_invalid_threat_models_are_refused_by_the_name_of_the_field(name: str) -> None:
    attempt, field = REFUSED[name]
    with pytest.raises(InvalidInputError) as refused:
        attempt()
    assert refused.value.field == field
