"""The least release noise for a cost: enough, and no more than it takes."""

from __future__ import annotations

import numpy as np
import pytest

from dpmerge.accounting import hidden_state_mus, linear_mus
from dpmerge.planning.feasible_weights import Weightings
from dpmerge.planning.usable_checkpoints import usable_checkpoints
from planning.synthetic import ladder

SCHEDULES = {
    "constant": 0.01,
    "decaying to nothing": [0.01 * (1 - step / 20) for step in range(20)],
    "rising": [0.001 * (1 + step) for step in range(20)],
}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_least_noise_is_enough_and_hardly_more(schedule: str) -> None:
    random = np.random.default_rng(3)
    smooth = ladder(3, noise=[16.0, 64.0, 256.0], smooth=True, learning_rate=SCHEDULES[schedule])
    checkpoints = tuple(checkpoint.prefix for checkpoint in usable_checkpoints(smooth, 1e-5).checkpoints)
    weightings = Weightings(checkpoints, "hidden_state")
    rows = np.concatenate([np.eye(3), random.dirichlet([1, 1, 1], 200)])
    own = weightings.mus(rows)
    wanted = own * random.uniform(0.01, 1.2, len(rows))
    noise = weightings.least_release_noise(rows, wanted)
    reached = hidden_state_mus(checkpoints, rows, noise)
    assert np.all(reached <= wanted)
    assert np.all(noise[own <= wanted * (1 - 1e-9)] == 0)
    needed = noise > 0
    # Six digits are kept, rounded up: a little less is too little.
    assert np.all(hidden_state_mus(checkpoints, rows[needed], noise[needed] * (1 - 1e-4)) > wanted[needed])
    assert np.all(linear_mus(checkpoints, rows, noise) <= reached * (1 + 1e-9))


def test_an_unreachable_cost_takes_infinite_noise_or_noise_that_is_enough() -> None:
    smooth = ladder(1, smooth=True)
    weightings = Weightings((usable_checkpoints(smooth, 1e-5).checkpoints[0].prefix,), "hidden_state")
    noise = weightings.least_release_noise(np.ones((2, 1)), np.array([1e-40, 1e-3]))
    assert np.isinf(noise[0]) or weightings.mus(np.ones((1, 1)), noise[0])[0] <= 1e-40
    assert np.isfinite(noise[1])
