"""A short run of the fuzzer with a fixed seed: `python -m fuzz` runs a million."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fuzz.__main__ import drawn
from fuzz.checks import Checks
from fuzz.mutations import LISTINGS, TARGETS, valid_headers, valid_manifests

from portfolio.portfolios import safetensors_bytes

SHARES = {"manifest": 10_000, "header": 6_000, "file": 3_000, "listing": 1_000}


@pytest.mark.parametrize("target", TARGETS)
def test_every_mutated_input_is_refused_by_name_or_consistent(target: str, tmp_path: Path) -> None:
    checks = Checks(tmp_path)
    outcomes = set()
    for _, content in drawn(20260401, SHARES[target], target):
        try:
            outcomes.add(checks.check(target, content))
        except Exception as error:
            pytest.fail(f"{type(error).__name__}: {error} from {content[:3000]!r}")
    assert "accepted" in outcomes
    assert len(outcomes) > 1


def test_the_inputs_before_mutation_are_valid(tmp_path: Path) -> None:
    """Otherwise the fuzzer would never get past the first check."""
    checks = Checks(tmp_path)
    for document in valid_manifests():
        assert checks.check("manifest", json.dumps(document).encode()) == "accepted"
    for header, data in valid_headers():
        for target in ("header", "file"):
            assert checks.check(target, safetensors_bytes(header, data)) == "accepted"
    for text in LISTINGS:
        assert checks.check("listing", text.encode()) == "accepted"


def test_mutated_inputs_depend_on_the_seed_alone() -> None:
    assert list(drawn(1, 200)) == list(drawn(1, 200))
    assert list(drawn(1, 200)) != list(drawn(2, 200))
