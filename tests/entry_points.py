"""What pyproject.toml declares, read from the file: an older installation beside this tree does not matter."""

from __future__ import annotations

import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"


def declared_scenarios() -> list[EntryPoint]:
    """The audit's scenarios in the wheel."""
    group = "dpmerge.audit_scenarios"
    declared = tomllib.loads(PYPROJECT.read_text())["project"]["entry-points"][group]
    return [EntryPoint(name=name, value=value, group=group) for name, value in declared.items()]
