"""What another auditor says of some scores: the values in tests/data/jax_privacy_values.json.

They are those of `CanaryScoreAuditor` of jax_privacy 2.0.0. Its module needs only numpy, scipy and dp_accounting, so it
is loaded from where the package is installed without importing the package, which would need jax. To make the file
again, where jax-privacy is installed:

    python tests/oracle/jax_privacy_values.py
"""

from __future__ import annotations

import importlib.util
import json
import sys
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

VALUES = Path(__file__).parents[1] / "data" / "jax_privacy_values.json"

SIGNIFICANCES = (0.05, 0.01)
DELTAS = (0.0, 1e-5, 0.01)


def samples() -> dict[str, tuple[list[float], list[float], list[float]]]:
    """Name → scores without the record, scores with it, thresholds."""
    rng = np.random.default_rng(20)

    def rounded(values: np.ndarray) -> list[float]:
        return [round(float(value), 2) for value in values]

    noise = rng.standard_normal((8, 150))
    return {
        "stairs": (list(map(float, range(100))), [k + 9.5 for k in range(100)], [50.0, 95.0, 101.0]),
        "near": (rounded(noise[0]), rounded(noise[1] + 1), [0.5, 1.5, -1.0]),
        "far": (rounded(noise[2]), rounded(noise[3] + 6), [3.0, 1.0, 5.0]),
        "unequal": (rounded(noise[4]), rounded(noise[5, :40] + 2), [1.0, 2.0]),
        "few values": (rounded(np.sign(noise[6] - 1)), rounded(np.sign(noise[7] + 1)), [0.0]),
        "turned around": (rounded(noise[1] + 1), rounded(noise[0]), [0.5]),
        "alike": (rounded(noise[2]), rounded(noise[4]), [0.5]),
    }


def values(auditing: ModuleType, absent: list[float], present: list[float], thresholds: list[float]) -> dict[str, Any]:
    auditor = auditing.CanaryScoreAuditor(present, absent)
    found: list[dict[str, Any]] = []
    for significance in SIGNIFICANCES:
        for delta in DELTAS:
            case: dict[str, Any] = {"significance": significance, "delta": delta}
            case["all thresholds"] = float(auditor.epsilon_clopper_pearson(significance, delta, one_sided=False))
            if delta > 0:
                case["gdp"] = float(auditor.epsilon_from_gdp(significance, delta))
            case["at"] = []
            for threshold in thresholds:
                explicit = {"threshold_strategy": auditing.Explicit(threshold)}
                at = {
                    "threshold": threshold,
                    "both ways": float(auditor.epsilon_clopper_pearson(significance, delta, False, **explicit)),
                    "one way": float(auditor.epsilon_clopper_pearson(significance, delta, True, **explicit)),
                }
                if delta > 0:
                    at["one run"] = float(auditor.epsilon_one_run(significance, delta, **explicit))
                    at["one run, f-DP"] = float(auditor.epsilon_one_run_fdp(significance, delta, **explicit))
                case["at"].append(at)
            found.append(case)
    return {
        "absent": absent,
        "present": present,
        # Of all thresholds it keeps those on the convex hull of the ROC curve, infinity among them.
        "thresholds kept": len(auditor._thresholds),
        "finite ones": [float(value) for value in auditor._thresholds if np.isfinite(value)],
        "cases": found,
    }


def _auditing() -> ModuleType:
    package = importlib.util.find_spec("jax_privacy")
    if package is None or not package.submodule_search_locations:
        sys.exit("jax_privacy is not installed: pip install jax-privacy==2.0.0")
    path = Path(package.submodule_search_locations[0]) / "auditing.py"
    spec = importlib.util.spec_from_file_location("jax_privacy_auditing", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


def main() -> None:
    auditing = _auditing()
    document = {
        "made by": f"jax_privacy {version('jax-privacy')}",
        "samples": {name: values(auditing, *sample) for name, sample in samples().items()},
    }
    text = json.dumps(document, separators=(",", ":"), allow_nan=False)
    VALUES.write_text(text.replace('"cases"', '\n"cases"').replace('{"significance"', '\n{"significance"') + "\n")


if __name__ == "__main__":
    main()
