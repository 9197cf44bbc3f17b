"""The result of an experiment as one JSON document: settings, seeds, versions, timings, numbers.

Guarantees: figures, statements and pages are computed from this document alone, so that anybody can draw them again
without training anything; infinity is written as "inf", not a number as null, and both are read back.
Refuses: documents of another kind, or of an experiment that is not known.
"""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from dpmerge.errors import InvalidInputError
from reproduction.experiments import EXPERIMENTS
from reproduction.presets import LARGER

SCHEMA = "dpmerge/reproduction/v1"

_PACKAGES = ("dpmerge", "numpy", "scipy", "dp-accounting", "torch", "opacus", "safetensors", "matplotlib", "plotly")


@dataclass(frozen=True)
class Results:
    """One experiment, as it was run."""

    experiment: str
    preset: str
    seed: int
    seeds: dict[str, int]  # of the noise of every run, spawned from the seed
    settings: dict[str, Any]
    numbers: dict[str, Any]  # lists and numbers; see each experiment
    versions: dict[str, str]
    timings: dict[str, float]  # seconds

    @property
    def name(self) -> str:
        """Of its folder and files: a larger preset stands beside the usual one where the two differ."""
        beside = self.preset in LARGER and "cifar10" in EXPERIMENTS.get(self.experiment, ())
        return f"{self.experiment}-{self.preset}" if beside else self.experiment

    def document(self) -> dict[str, Any]:
        named = {name: getattr(self, name) for name in self.__dataclass_fields__}
        content: dict[str, Any] = written({"schema": SCHEMA, **named})
        return content

    @classmethod
    def read(cls, file: Path) -> Results:
        """A document as `document` writes it."""
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            told = error.strerror if isinstance(error, OSError) else error
            raise InvalidInputError("results", str(file), "a results file", found=f"{file}: {told}") from None
        return cls.parsed(content, str(file))

    @classmethod
    def parsed(cls, content: Any, source: str) -> Results:
        """A document that was read; `source` says from where."""
        fields = set(cls.__dataclass_fields__)
        if not isinstance(content, dict) or content.get("schema") != SCHEMA or set(content) != {"schema", *fields}:
            raise InvalidInputError(
                "results", source, f"a document of schema {SCHEMA}", found=f"{source}, which is none"
            )
        return cls(**{**{name: content[name] for name in fields}, "numbers": read_back(content["numbers"])})


def versions() -> dict[str, str]:
    """Of everything that could change a number, and how many cores there were."""
    found = {"python": platform.python_version(), "cores": str(os.cpu_count())}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def written(value: Any) -> Any:
    """As JSON has it; floats to ten digits, which is more than any of them means."""
    if isinstance(value, np.ndarray | np.generic):
        return written(value.tolist())
    if isinstance(value, Mapping):
        return {str(name): written(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [written(item) for item in value]
    if isinstance(value, float):
        if math.isfinite(value):
            return float(f"{value:.10g}")
        return None if math.isnan(value) else "inf" if value > 0 else "-inf"
    return value


def read_back(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: read_back(item) for name, item in value.items()}
    if isinstance(value, list):
        return [read_back(item) for item in value]
    if value is None:
        return math.nan
    return {"inf": math.inf, "-inf": -math.inf}.get(value, value) if isinstance(value, str) else value
