"""Settings shared by all tests: reproducible hypothesis runs, and the reference numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("dpmerge", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("dpmerge")

DATA = Path(__file__).parent / "data"


@pytest.fixture(scope="session")
def gaussian_values() -> dict[str, Any]:
    """Computed with mpmath at 50 digits."""
    return json.loads((DATA / "gaussian_values.json").read_text())


@pytest.fixture(scope="session")
def hidden_state_values() -> list[dict[str, Any]]:
    """The quadratic program solved to 1e-12."""
    return json.loads((DATA / "hidden_state_values.json").read_text())
