"""The scenarios under zero_out: tight where scores are Gaussian, violated where a divisor is refused."""

from __future__ import annotations

import math

import pytest

from reproduction.scenarios.null_records import EPSILON, SCENARIOS

BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}


def test_a_full_batch_is_tight() -> None:
    [finding] = BY_NAME["zero_out_full_batch"].play(trials=200_000, confidence=0.999, seed=0).findings
    assert finding.claim.proved
    assert finding.claim.mu == pytest.approx(math.sqrt(20) / 8)
    assert finding.verdict == "tight"
    assert finding.estimate.estimator == "gaussian"


def test_poisson_batches_show_much_of_what_is_certified_and_no_more() -> None:
    [finding] = BY_NAME["zero_out_poisson"].play(trials=800_000, confidence=0.99, seed=0).findings
    assert finding.claim.proved
    assert finding.tightness is not None
    assert 0.55 < finding.tightness < 1


def test_the_amplification_that_a_realised_divisor_destroys_is_found_out() -> None:
    """δ at ε = 1.5 is 0.0147 with a constant divisor, and 0.0303 with this one (4·10⁵ trials of its loss)."""
    played = BY_NAME["zero_out_realised_divisor"].play(trials=200_000, confidence=0.999, seed=0)
    [finding] = played.findings
    assert played.as_theory_says
    assert EPSILON == 1.5
    assert finding.claim.value == pytest.approx(0.0147, rel=0.01)
    assert finding.verdict == "violated"
    assert 0.022 < finding.estimate.bound < 0.0303
