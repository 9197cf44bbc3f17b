"""The shipped portfolios at many targets: mix is never worse than what it contains, and everything meets its target."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import dpmerge as dpm

EXAMPLES = Path(__file__).parents[2] / "examples"
TARGETS = {"mnist": np.geomspace(0.0506, 2.0, 15), "probe": np.geomspace(0.02, 3.0, 10)}


@pytest.mark.parametrize("accounting", ["pld", "rdp"])
@pytest.mark.parametrize("example", TARGETS)
def test_mix_is_at_least_as_good_as_selection_and_combination(example: str, accounting: str) -> None:
    portfolio = dpm.Portfolio.load(EXAMPLES / example)
    compared = 0
    for epsilon in TARGETS[example].tolist():
        target = dpm.Guarantee(epsilon=epsilon, delta=1e-5)
        noise: dict[str, float] = {}
        for method in ("select", "combine", "mix"):
            try:
                made = dpm.plan(portfolio, target, method=method, accounting=accounting)  # type: ignore[arg-type]
            except dpm.errors.TargetOutOfReachError:
                continue
            assert made.guarantee.epsilon <= epsilon
            assert made.profile.epsilon(1e-5) == made.guarantee.epsilon
            assert made.noise_to_signal is not None
            noise[method] = made.noise_to_signal
        for method in set(noise) - {"mix"}:
            assert noise["mix"] <= noise[method] * (1 + 1e-7), (epsilon, method)
            compared += 1
    assert compared >= len(TARGETS[example])
