"""Numbers as they come back from a results file."""

from __future__ import annotations

import json
from typing import Any

from dpmerge.experiments.results import read_back, written


def roundtrip(numbers: dict[str, Any]) -> dict[str, Any]:
    back: dict[str, Any] = read_back(json.loads(json.dumps(written(numbers), allow_nan=False)))
    return back
