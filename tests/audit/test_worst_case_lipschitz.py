"""Factors chosen against the record: within what is stated, and as bad as any could be."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize

from dpmerge.auditing.outputs import Part
from dpmerge.auditing.schedules import Schedule
from dpmerge.auditing.threat_models import merged_output
from dpmerge.auditing.worst_case_lipschitz import even, worst
from dpmerge.errors import InvalidInputError
from oracle.hidden_state_taut import exact_mu


def random_parts(rng: np.random.Generator) -> tuple[list[Part], float]:
    """Runs of every length, with steps that do not act, factors of zero and release noise."""
    adjacency = ("replace_one", "add_remove")[rng.integers(2)]
    parts = []
    weights = rng.dirichlet(np.ones(rng.integers(1, 4)))
    for place, weight in enumerate(weights):
        steps = int(rng.integers(1, 9))
        run = Schedule.of(
            f"run-{place}",
            steps=steps,
            noise_multiplier=rng.uniform(0.3, 5, steps).tolist(),
            clip_norm=float(rng.uniform(0.5, 2)),
            rates=(rng.uniform(0.01, 2, steps) * (rng.random(steps) > 0.2)).tolist(),
            adjacency=adjacency,  # type: ignore[arg-type]
            stretches=np.where(rng.random(steps) < 0.05, 0.0, rng.uniform(0.3, 1.4, steps)),
        )
        parts.append((run, steps, float(weight)))
    return parts, float(rng.choice([0.0, rng.uniform(0, 3)]))


def attained(parts: list[Part], release_noise: float) -> float:
    """μ of the best attack on the merged model alone."""
    return merged_output(parts, release_noise, stretches=worst(parts, release_noise)).distance


def test_the_best_attack_costs_what_hidden_state_proves() -> None:
    """The program of hidden_state, solved exactly from the theorem, is what some linear losses do cost: it is tight."""
    rng = np.random.default_rng(4)
    compared = 0
    for _ in range(60):
        parts, noise = random_parts(rng)
        acting = [np.flatnonzero(run.rates) for run, _, _ in parts]
        if not all(each.size for each in acting):
            continue
        width = 2 if parts[0][0].adjacency == "replace_one" else 1
        reach = [(run.rates * run.clip_norms)[each] for (run, _, _), each in zip(parts, acting, strict=True)]
        noises = [run.noise_multipliers[each] for (run, _, _), each in zip(parts, acting, strict=True)]
        proved = exact_mu(
            [(width * r).tolist() for r in reach],
            [(r * n).tolist() for r, n in zip(reach, noises, strict=True)],
            [run.stretches[each].tolist() for (run, _, _), each in zip(parts, acting, strict=True)],  # type: ignore[index]
            [weight for _, _, weight in parts],
            noise,
        )
        assert attained(parts, noise) == pytest.approx(float(proved), rel=1e-9)
        compared += 1
    assert compared > 40


def test_the_best_attack_attains_the_committed_values_of_hidden_state(
    hidden_state_values: list[dict[str, Any]],
) -> None:
    for case in hidden_state_values:
        parts: list[Part] = [
            (
                Schedule.of(
                    "run",
                    steps=len(rates),
                    noise_multiplier=noise,
                    clip_norm=clip,
                    rates=rates,
                    adjacency="replace_one" if case["k"] == 2 else "add_remove",
                    stretches=np.full(len(rates), float(factor)),
                ),
                len(rates),
                weight,
            )
            for rates, noise, clip, factor, weight in zip(
                case["learning_rates"],
                case["noise_multipliers"],
                case["clip_norms"],
                case["lipschitz"],
                case["weights"],
                strict=True,
            )
        ]
        assert attained(parts, case["release_noise"]) == pytest.approx(case["mu"], rel=1e-6)


def test_no_factor_of_the_worst_case_is_above_the_stated_one() -> None:
    rng = np.random.default_rng(8)
    for _ in range(40):
        parts, noise = random_parts(rng)
        for (run, step, _), factors in zip(parts, worst(parts, noise), strict=True):
            acting = np.flatnonzero(run.rates[:step])
            assert run.stretches is not None
            assert np.all(factors[acting[1:]] <= run.stretches[acting[1:]])
            assert np.all(factors >= 0)


def test_no_other_factors_found_by_search_cost_more() -> None:
    """A search over the factors themselves finds nothing worse for the record."""
    rng = np.random.default_rng(9)
    for _ in range(5):
        parts, noise = random_parts(rng)
        best = attained(parts, noise)
        if best == 0:
            continue
        sizes = np.cumsum([step for _, step, _ in parts])[:-1]
        stated = np.concatenate([run.stretches for run, _, _ in parts if run.stretches is not None])
        # A step that does not act leaves the state alone.
        stated = np.where(np.concatenate([run.rates for run, _, _ in parts]) > 0, stated, 1.0)

        def loss(shares: np.ndarray, stated=stated, parts=parts, noise=noise, sizes=sizes) -> float:  # type: ignore[no-untyped-def]
            return -merged_output(parts, noise, stretches=np.split(shares * stated, sizes)).distance

        start = rng.uniform(0.2, 1, len(stated))
        found = -minimize(loss, start, bounds=[(0, 1)] * len(stated), method="L-BFGS-B").fun
        assert 0.97 * best < found <= best * (1 + 1e-9)


def test_an_unbounded_factor_reveals_all_but_the_last_step() -> None:
    """hidden_state with L = ∞ is last_step, and the merged model alone tells as much."""
    runs = [
        Schedule.of("a", steps=3, noise_multiplier=4.0, adjacency="replace_one", stretches=np.full(3, np.inf)),
        Schedule.of("b", steps=2, noise_multiplier=2.0, adjacency="replace_one", stretches=np.full(2, np.inf)),
    ]
    parts: list[Part] = [(runs[0], 3, 0.75), (runs[1], 2, 0.25)]
    merged_step = 4 / ((0.75 * 4) ** 2 + (0.25 * 2) ** 2)
    assert attained(parts, 0.0) == pytest.approx(math.sqrt(2 * 4 / 16 + 4 / 4 + merged_step), rel=1e-9)


def test_a_run_without_noise_is_hidden_by_release_noise_alone() -> None:
    run = Schedule.of(
        "a", steps=2, noise_multiplier=0.0, adjacency="add_remove", rates=[1.0, 2.0], stretches=np.full(2, 0.5)
    )
    assert attained([(run, 2, 1.0)], 5.0) == pytest.approx((0.5 + 2.0) / 5)


def test_without_noise_at_the_last_step_the_earlier_steps_are_forgotten() -> None:
    run = Schedule.of("a", steps=2, noise_multiplier=[3.0, 0.0], adjacency="add_remove", stretches=np.ones(2))
    output = merged_output([(run, 2, 1.0)], 0.0, stretches=worst([(run, 2, 1.0)], 0.0))
    assert not output.gaussian
    assert output.draw(np.random.default_rng(0), 5, True).tolist() == [1.0] * 5


def test_runs_that_do_not_move_tell_nothing() -> None:
    run = Schedule.of("a", steps=2, noise_multiplier=1.0, rates=0.0, adjacency="add_remove", stretches=np.ones(2))
    assert attained([(run, 2, 1.0)], 1.0) == 0


def test_one_map_for_all_runs_makes_every_merged_step_count() -> None:
    """merged_trajectory under a shared affine map: μ² = Σ_t (Σ λ_iη_ikC_i)² / Σ (λ_iη_iσ_iC_i)²."""
    rates = [[1.0, 0.5, 0.0, 2.0], [0.3, 1.0, 0.0, 0.1]]
    parts: list[Part] = [
        (Schedule.of("run", steps=4, noise_multiplier=noise, rates=each, adjacency="replace_one"), 4, weight)
        for noise, each, weight in zip((6.0, 2.0), rates, (0.6, 0.4), strict=True)
    ]
    first, second = 0.6 * np.array(rates[0]), 0.4 * np.array(rates[1])
    with np.errstate(invalid="ignore"):
        costs = (2 * (first + second)) ** 2 / ((6 * first) ** 2 + (2 * second) ** 2)
    output = merged_output(parts, 0.0, stretches=[even(parts)] * 2)
    assert output.distance == pytest.approx(math.sqrt(np.nansum(costs)), rel=1e-9)


def test_a_common_map_for_runs_of_unequal_length_is_refused() -> None:
    runs = [Schedule.of("run", steps=steps, noise_multiplier=1.0, adjacency="add_remove") for steps in (2, 3)]
    with pytest.raises(InvalidInputError, match="runs of equal length"):
        even([(runs[0], 2, 0.5), (runs[1], 3, 0.5)])


def test_a_common_map_for_a_step_without_noise_is_refused() -> None:
    run = Schedule.of("run", steps=2, noise_multiplier=[1.0, 0.0], adjacency="add_remove")
    with pytest.raises(InvalidInputError, match="a step without noise leaves nothing to even out"):
        even([(run, 2, 1.0)])


def test_factors_of_a_run_without_stated_stretches_are_refused() -> None:
    run = Schedule.of("run", steps=2, noise_multiplier=1.0, adjacency="add_remove")
    with pytest.raises(InvalidInputError, match="run.stretches: nobody says how far an update may pull"):
        worst([(run, 2, 1.0)], 0.0)
