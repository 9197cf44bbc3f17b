"""The experiments by name. Each is a module with a title, settings, a measurement, drawings and statements.

Guarantees: drawings and statements are functions of the numbers alone, as they come back from a results file.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast

from dpmerge.errors import InvalidInputError

if TYPE_CHECKING:
    from dpmerge.report.plots import Drawing
    from reproduction.run_store import RunStore
    from reproduction.statements import Statement

EXPERIMENTS = (
    "mean",
    "mnist",
    "cifar10",
    "checkpoints",
    "composition",
    "ladder",
    "probe",
    "soundness",
    "worst_case",
    "mnist_audit",
)


class Experiment(Protocol):
    """What a module of an experiment has."""

    TITLE: str

    def settings(self, store: RunStore) -> dict[str, Any]:
        """Everything one needs to know to repeat it."""
        ...

    def measure(self, store: RunStore) -> dict[str, Any]:
        """All numbers: this is what takes long."""
        ...

    def drawings(self, numbers: dict[str, Any]) -> list[Drawing]: ...

    def statements(self, numbers: dict[str, Any]) -> list[Statement]: ...


def experiment(name: str) -> Experiment:
    """The experiment of that name."""
    if name not in EXPERIMENTS:
        raise InvalidInputError("experiment", name, ", ".join((*EXPERIMENTS, "all")))
    return cast(Experiment, import_module(f"reproduction.{name}"))


def chosen(names: Sequence[str]) -> list[str]:
    """These experiments, each once, in the order of the paper; `all` is every one of them."""
    for name in names:
        if name != "all":
            experiment(name)
    return [name for name in EXPERIMENTS if name in names or "all" in names]
