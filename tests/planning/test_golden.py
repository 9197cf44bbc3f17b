"""`dpmerge plan --json` for ten targets on each example, against what it said when a person last read it.

After a change that is meant: `python tests/planning/test_golden.py` writes the files anew; read the difference.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dpmerge.cli import app

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "data" / "plans"
TARGETS = {
    "mnist": [0.051, 0.06, 0.075, 0.1, 0.2, 0.3, 0.5, 0.8, 1.0, 2.0],
    "probe": [0.01, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.0, 1.5, 3.0],
}
CASES = [(example, epsilon) for example, targets in TARGETS.items() for epsilon in targets]


def planned(example: str, epsilon: float) -> Any:
    arguments = ["plan", str(ROOT / "examples" / example), "--epsilon", str(epsilon), "--delta", "1e-5", "--json"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.mark.parametrize(("example", "epsilon"), CASES)
def test_plans_of_the_examples_are_as_last_read(example: str, epsilon: float) -> None:
    expected = json.loads((GOLDEN / f"{example}-{epsilon}.json").read_text())
    assert differences(planned(example, epsilon), expected) == []


def test_a_changed_number_or_theorem_is_found_as_a_difference() -> None:
    expected = json.loads((GOLDEN / "mnist-0.8.json").read_text())
    changed = json.loads(json.dumps(expected))
    changed["guarantee"]["epsilon"] *= 0.999
    changed["candidates"][0]["theorem"] = "hidden_state"
    assert differences(changed, expected) == ["guarantee.epsilon", "candidates.0.theorem"]


def differences(found: Any, expected: Any, where: str = "") -> list[str]:
    """Where two documents differ; numbers may by 1e-6, since no two machines round alike."""
    if isinstance(expected, dict) and isinstance(found, dict):
        if list(found) != list(expected):
            return [where or "fields"]
        return [d for name in expected for d in differences(found[name], expected[name], f"{where}.{name}".lstrip("."))]
    if isinstance(expected, list) and isinstance(found, list):
        if len(found) != len(expected):
            return [where]
        return [
            d for n, (a, b) in enumerate(zip(found, expected, strict=True)) for d in differences(a, b, f"{where}.{n}")
        ]
    if isinstance(expected, float) and isinstance(found, float):
        return [] if math.isclose(found, expected, rel_tol=1e-6, abs_tol=1e-12) else [where]
    return [] if type(found) is type(expected) and found == expected else [where]


if __name__ == "__main__":
    for example, epsilon in CASES:
        file = GOLDEN / f"{example}-{epsilon}.json"
        file.write_text(json.dumps(planned(example, epsilon), indent=1) + "\n")
