"""Every reference number, to 1e-8 relative (hidden state 1e-6), through the Python interface."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dpmerge import accounting as dp

RELATIVE = 1e-8


def runs_of(case: dict[str, Any]) -> list[dp.DpSgd]:
    runs = []
    for run in case["runs"]:
        blocks = []
        for block in run["blocks"]:
            rate = block["learning_rate"]
            blocks.append(dp.StepBlock(**{**block, "learning_rate": tuple(rate) if isinstance(rate, list) else rate}))
        runs.append(dp.DpSgd(blocks=tuple(blocks), adjacency=case["adjacency"]))
    return runs


def close(value: float, relative: float = RELATIVE) -> Any:
    return pytest.approx(value, rel=relative, abs=0)


def test_default_orders_are_the_reference_grid(gaussian_values: dict[str, Any]) -> None:
    for case in gaussian_values["cases"]:
        np.testing.assert_array_equal(dp.DEFAULT_ORDERS, case["rdp_orders"])


@pytest.mark.parametrize("number", range(3))
def test_single_runs_cost_the_reference_numbers(gaussian_values: dict[str, Any], number: int) -> None:
    case = gaussian_values["cases"][number]
    for run, expected in zip(runs_of(case), case["single"], strict=True):
        profile = run.profile()
        assert isinstance(profile, dp.GaussianProfile)
        assert profile.mu == close(expected["mu"])
        assert profile.epsilon(case["delta"]) == close(expected["epsilon"])
        for epsilon, delta in expected["delta_at"].items():
            assert profile.delta(float(epsilon)) == close(delta)
        curve = dp.RenyiProfile.of(profile)
        assert curve.epsilon(case["delta"]) == close(expected["epsilon_rdp_improved"])
        assert curve.converted("classic").epsilon(case["delta"]) == close(expected["epsilon_rdp_classic"])


@pytest.mark.parametrize("number", range(3))
def test_random_selections_cost_the_reference_numbers(gaussian_values: dict[str, Any], number: int) -> None:
    case = gaussian_values["cases"][number]
    members = tuple(run.profile() for run in runs_of(case))
    for expected in case["random_selection"]:
        profile = dp.SelectionProfile(members, tuple(expected["probabilities"]))
        assert profile.epsilon(case["delta"]) == close(expected["epsilon_pld"])
        curve = dp.RenyiProfile.of(profile)
        assert curve.epsilon(case["delta"]) == close(expected["epsilon_rdp_improved"])
        assert curve.converted("classic").epsilon(case["delta"]) == close(expected["epsilon_rdp_classic"])
        rows = [expected["probabilities"]]
        assert dp.selection_epsilons(members, rows, case["delta"])[0] == close(expected["epsilon_pld"])
        curves = np.array([member.renyi_divergence(dp.DEFAULT_ORDERS) for member in members])
        for conversion in ("classic", "improved"):
            many = dp.selection_renyi_epsilons(curves, rows, case["delta"], dp.DEFAULT_ORDERS, conversion)
            assert many[0] == close(expected[f"epsilon_rdp_{conversion}"])


@pytest.mark.parametrize("number", range(3))
def test_linear_combinations_cost_the_reference_numbers_by_every_theorem(
    gaussian_values: dict[str, Any], number: int
) -> None:
    case = gaussian_values["cases"][number]
    for expected in case["linear_combination"]:
        combination = dp.LinearCombination.of_runs(runs_of(case), expected["weights"])
        for theorem in ("joint_release", "last_step", "merged_trajectory", "merged_trajectory_prepended"):
            bound = dp.THEOREMS[theorem](combination)
            assert bound.mu == close(expected[theorem]["mu"]), theorem
            assert bound.epsilon(case["delta"]) == close(expected[theorem]["epsilon"]), theorem
            assert bound.profile is not None
            classic = dp.RenyiProfile.of(bound.profile).converted("classic").epsilon(case["delta"])
            assert classic == close(expected[theorem]["epsilon_rdp_classic"]), theorem


def test_the_no_free_lunch_limit_equals_the_reference_numbers(gaussian_values: dict[str, Any]) -> None:
    for case in gaussian_values["no_free_lunch"]:
        arguments = {name: value for name, value in case.items() if name != "tv_limit"}
        assert dp.no_free_lunch(**arguments) == close(case["tv_limit"])


def test_advanced_composition_equals_the_reference_numbers(gaussian_values: dict[str, Any]) -> None:
    for case in gaussian_values["advanced_composition"]:
        epsilon, delta = dp.advanced_composition(case["epsilon"], case["delta"], case["count"], case["delta_slack"])
        assert epsilon == close(case["composed_epsilon"])
        assert delta == close(case["composed_delta"])


@pytest.mark.parametrize("number", range(10))
def test_hidden_state_bounds_equal_the_reference_numbers(
    hidden_state_values: list[dict[str, Any]], number: int
) -> None:
    case = hidden_state_values[number]
    adjacency = "replace_one" if case["k"] == 2 else "add_remove"
    runs = [
        dp.DpSgd(
            blocks=(
                dp.StepBlock(steps=len(rates), noise_multiplier=noise, clip_norm=clip, learning_rate=tuple(rates)),
            ),
            adjacency=adjacency,
            smoothness=dp.DeclaredLipschitz(factors=float(factor)),
        )
        for rates, noise, clip, factor in zip(
            case["learning_rates"], case["noise_multipliers"], case["clip_norms"], case["lipschitz"], strict=True
        )
    ]
    combination = dp.LinearCombination.of_runs(runs, case["weights"], release_noise=case["release_noise"])
    bound = dp.hidden_state(combination)
    assert bound.certifies
    assert bound.mu == close(case["mu"], 1e-6)
    assert bound.epsilon(case["delta"]) == close(case["epsilon"], 1e-6)
    assert dp.last_step(combination).mu == close(case["mu_last_step"])
    assert dp.joint_release(combination).mu == close(case["mu_joint"])
    tau = case["release_noise"]
    assert dp.hidden_state_mus(runs, [case["weights"]], tau)[0] == close(case["mu"], 1e-6)
    assert dp.linear_mus(runs, [case["weights"]], tau)[0] == close(case["mu_if_linear"], 1e-6)
