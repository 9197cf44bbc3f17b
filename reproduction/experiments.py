"""The experiments by name. Each is a module with a title, settings, a measurement, drawings and statements.

Guarantees: drawings and statements are functions of the numbers alone, as they come back from a results file.
Refuses: names that are not known; an experiment that has nothing to do with the one data set asked for.
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

EXPERIMENTS = {
    "mean": (),
    "mnist": ("mnist",),
    "cifar10": ("cifar10",),
    "checkpoints": ("mnist", "cifar10"),
    "composition": (),
    "ladder": ("mnist", "cifar10"),
    "probe": ("mnist",),
    "soundness": ("mnist",),
    "worst_case": (),
    "mnist_audit": ("mnist",),
}
"""In the order of the paper, each with the data sets that it trains on."""

DATA_SETS = ("mnist", "cifar10")


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


def chosen(names: Sequence[str], only: str | None = None) -> list[str]:
    """These experiments, each once, in the order of the paper; `all` is every one, or every one on the `only` data set.

    >>> chosen(["ladder", "mnist"]), chosen(["all"], "cifar10")
    (['mnist', 'ladder'], ['cifar10', 'checkpoints', 'ladder'])
    """
    if only not in (None, *DATA_SETS):
        raise InvalidInputError("only", only, ", ".join(DATA_SETS))
    for name in names:
        if name == "all":
            continue
        experiment(name)
        if only is not None and only not in EXPERIMENTS[name]:
            has = [other for other, data in EXPERIMENTS.items() if only in data]
            raise InvalidInputError("experiment", name, f"with --only {only}: {', '.join(has)}")
    within = [name for name, data in EXPERIMENTS.items() if only is None or only in data]
    return [name for name in within if name in names or "all" in names]
