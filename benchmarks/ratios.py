"""Ratios that were committed, and what has become worse than they say.

Guarantees: a ratio is compared with the one of its own section and name, or said to have none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

RATIOS = Path(__file__).with_name("ratios.json")
TOLERANCE = 0.3
"""Half of it is what ratios move by between two runs on one quiet machine."""

Ratios = Mapping[str, Mapping[str, float]]


def committed(file: Path = RATIOS) -> Ratios:
    found: Ratios = json.loads(file.read_text())["ratios"]
    return found


def compare(measured: Ratios, before: Ratios, tolerance: float = TOLERANCE) -> tuple[list[str], list[str]]:
    """A line for each ratio that fell by more than the tolerance, and the names that nothing is known of."""
    worse, silent = [], []
    for section, ratios in measured.items():
        for name, ratio in ratios.items():
            known = before.get(section, {}).get(name)
            if known is None:
                silent.append(f"{section}: {name}")
            elif ratio < known * (1 - tolerance):
                worse.append(f"worse: {section}: {name}: {ratio:.3g} times the peer, {known:.3g} before")
    return worse, silent


def write(measured: Ratios, *, load: float, file: Path = RATIOS) -> None:
    """Sections that were not measured stay as they are."""
    ratios = dict(committed(file)) if file.exists() else {}
    ratios |= {
        section: {name: float(f"{ratio:.3g}") for name, ratio in found.items()}
        for section, found in measured.items()
        if found
    }
    note = "How many times faster than its peer each is, both measured one after the other; `make bench` compares."
    document = {"note": note, "load_average": round(load, 1), "ratios": ratios}
    file.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
